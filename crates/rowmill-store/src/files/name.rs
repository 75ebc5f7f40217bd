//! Names of the files of a store.
//!
//! Every name but the manifest's holds the epoch of the first checkpoint that names the file. So files that a
//! crash left behind differ from files that the next checkpoint writes.

/// The manifest.
pub(crate) const MANIFEST: &str = "MANIFEST";
/// Exists once the first checkpoint is durable.
pub(crate) const MARKER: &str = "STORE";
/// Exists while a restore fills the folder, which is not a store yet.
pub const RESTORING: &str = "RESTORING";
/// The manifest of a prepared checkpoint.
pub(crate) const MANIFEST_PREPARED: &str = "MANIFEST.prepared";
/// A manifest being written.
pub(super) const MANIFEST_NEW: &str = "MANIFEST.new";

pub(super) fn delta(epoch: u64) -> String {
    format!("index-{epoch}.delta")
}

pub(super) fn snapshot(epoch: u64) -> String {
    format!("index-{epoch}.snapshot")
}

pub(super) fn attachment(epoch: u64, name: &str) -> String {
    format!("attachment-{epoch}-{name}")
}

pub(super) fn sketch(epoch: u64, category: u32) -> String {
    format!("sketch-{epoch}-{category}")
}

pub(super) fn moves(epoch: u64) -> String {
    format!("index-{epoch}.moves")
}

pub(super) fn rows(epoch: u64) -> String {
    format!("index-{epoch}.rows")
}

pub(super) fn version(epoch: u64) -> String {
    format!("version-{epoch}.manifest")
}

/// Whether a file of index changes lists moved rows of versions.
pub(crate) fn lists_moves(name: &str) -> bool {
    name.strip_suffix(".moves").is_some()
}

/// The epoch in the name of a file that a checkpoint names; `None` for any other file.
pub(crate) fn epoch_of(name: &str) -> Option<u64> {
    let epoch = if let Some(rest) = name.strip_prefix("index-") {
        let (epoch, kind) = rest.split_once('.')?;
        ["delta", "snapshot", "moves", "rows"].contains(&kind).then_some(epoch)?
    } else if let Some(rest) = name.strip_prefix("version-") {
        rest.strip_suffix(".manifest")?
    } else {
        name.strip_prefix("attachment-").or_else(|| name.strip_prefix("sketch-"))?.split_once('-')?.0
    };
    epoch.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_read_from_our_names_only() {
        for epoch in [0, 7, u64::MAX] {
            assert_eq!(epoch_of(&delta(epoch)), Some(epoch));
            assert_eq!(epoch_of(&snapshot(epoch)), Some(epoch));
            assert_eq!(epoch_of(&attachment(epoch, "state-9.pt")), Some(epoch));
            assert_eq!(epoch_of(&sketch(epoch, 3)), Some(epoch));
            assert_eq!(epoch_of(&moves(epoch)), Some(epoch));
            assert_eq!(epoch_of(&rows(epoch)), Some(epoch));
            assert_eq!(epoch_of(&version(epoch)), Some(epoch));
        }
        for other in
            ["MANIFEST", "group-1.log", "index-.delta", "index-1", "attachment-1", "notes.txt", "version-1"]
        {
            assert_eq!(epoch_of(other), None, "{other}");
        }
    }
}
