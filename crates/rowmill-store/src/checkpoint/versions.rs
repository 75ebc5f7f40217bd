//! Versions: checkpoints that are kept when later ones are made, up to a number.
//!
//! A version costs the rows that later checkpoints changed, and its index files. Its rows stay in the log,
//! where cleaning moves them together with the rows of the index. See docs/decisions/0024-versions.md.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rowmill_io::Volume;
use rowmill_log::{Geometry, RowSet};

use crate::error::StoreError;
use crate::files::{self, FileEntry, Manifest, VersionEntry, epoch_of, load_manifest};
use crate::group::Group;
use crate::shard::Shard;
use crate::store::{KeptVersion, Saved, Store};

/// Maximum bytes of a version's name.
const NAME_BYTES_MAX: usize = 100;
/// How often listing restarts because a writer made the next checkpoint meanwhile.
const TRIES: usize = 4;
/// Maximum number of versions. Each takes one bit of memory per row place.
const VERSIONS_MAX: usize = 1000;

/// Which metric is best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Best {
    /// The highest.
    Highest,
    /// The lowest.
    Lowest,
}

/// What a checkpoint becomes.
#[derive(Clone, Debug, PartialEq)]
pub struct NewVersion {
    /// Its name. An older version of this name goes.
    pub name: String,
    /// Step of the caller, for information.
    pub step: Option<u64>,
    /// Metric of the caller.
    pub metric: Option<f64>,
    /// Number of versions to keep, this one included. The oldest go first.
    pub keep: usize,
    /// Whether the version with the best metric stays, however old it is. Of equal ones the oldest stays.
    pub best: Option<Best>,
}

/// A version of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionInfo {
    /// Number of the checkpoint.
    pub epoch: u64,
    /// Name.
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
    /// Step of the caller.
    pub step: Option<u64>,
    /// Metric of the caller.
    pub metric: Option<f64>,
    /// Number of rows of all tables.
    pub rows: u64,
    /// Bytes of rows and files that only this version keeps.
    pub bytes_alone: u64,
}

impl NewVersion {
    fn check(&self) -> Result<(), StoreError> {
        let option = |option, expected: &str, got: String| {
            Err(StoreError::Option { option, expected: expected.into(), got })
        };
        if self.name.is_empty()
            || self.name.len() > NAME_BYTES_MAX
            || self.name.contains(char::is_control)
            || self.name.parse::<u64>().is_ok()
        {
            let expected = "1 to 100 bytes without control characters, and not a number alone";
            return option("version name", expected, format!("{:?}", self.name));
        }
        if self.keep == 0 || self.keep > VERSIONS_MAX {
            return option("keep", "between 1 and 1000 versions", self.keep.to_string());
        }
        if self.metric.is_some_and(|metric| !metric.is_finite()) {
            return option("metric", "a finite number, or none", format!("{:?}", self.metric));
        }
        Ok(())
    }

    /// Numbers of the older versions that stay, of `older` ones with their metrics, oldest first.
    fn staying(&self, older: &[(u64, Option<f64>)]) -> Vec<u64> {
        let better = |one: f64, other: f64| match self.best {
            Some(Best::Highest) => one > other,
            Some(Best::Lowest) => one < other,
            None => false,
        };
        let mut best = None;
        for (number, metric) in
            older.iter().map(|&(epoch, metric)| (Some(epoch), metric)).chain([(None, self.metric)])
        {
            let Some(metric) = metric.filter(|_| self.best.is_some()) else { continue };
            if best.is_none_or(|(_, most)| better(metric, most)) {
                best = Some((number, metric));
            }
        }
        let best = best.and_then(|(number, _)| number).filter(|_| self.keep > 1);
        // The new one takes a place, and the best one, if it is not among the newest.
        let others = self.keep - 1;
        let newest = |count: usize| &older[older.len().saturating_sub(count)..];
        let is_newest = |count| best.is_none_or(|best| newest(count).iter().any(|(epoch, _)| *epoch == best));
        let count = if is_newest(others) { others } else { others - 1 };
        let stays =
            |epoch: u64| Some(epoch) == best || newest(count).iter().any(|(other, _)| *other == epoch);
        older.iter().map(|(epoch, _)| *epoch).filter(|&epoch| stays(epoch)).collect()
    }
}

impl Store {
    /// Let go of the versions that do not stay when `version` is made. Their space is free once the checkpoint
    /// is durable; until then the last checkpoint still names their segments. If the checkpoint is refused,
    /// the next one leaves them out.
    ///
    /// # Errors
    /// [`StoreError::Option`]; nothing is changed then.
    pub(super) fn retire_versions(
        &self,
        saved: &mut Saved,
        version: Option<&NewVersion>,
    ) -> Result<(), StoreError> {
        let Some(version) = version else { return Ok(()) };
        version.check()?;
        let older = saved.versions.iter().filter(|older| older.entry.name != version.name);
        let older: Vec<_> = older.map(|older| (older.entry.epoch, older.entry.metric)).collect();
        let staying = version.staying(&older);
        let goes = |older: &mut KeptVersion| !staying.contains(&older.entry.epoch);
        let gone: Vec<_> = saved.versions.extract_if(.., goes).collect();
        if gone.is_empty() {
            return Ok(());
        }
        let groups = self.groups.read().clone();
        for group in groups {
            for version in &gone {
                group.core.log.let_go(version.entry.epoch);
            }
            group.clean_for_cut();
        }
        Ok(())
    }

    /// Let the logs remember which rows the index names, while work continues.
    pub(super) fn track_rows(&self) {
        for group in self.groups.read().iter().filter(|group| !group.core.log.is_tracking()) {
            group.core.log.track();
            for cell in &group.shards {
                group.name_rows(&cell.state.read());
            }
            group.core.charge_log();
        }
    }

    /// Write the file of the version that `manifest` becomes.
    pub(super) fn save_version(
        &self,
        manifest: &Manifest,
        version: &NewVersion,
    ) -> Result<KeptVersion, StoreError> {
        let file = files::save_version(&*self.volume, manifest)?;
        let made = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let entry = VersionEntry {
            epoch: manifest.epoch,
            name: version.name.clone(),
            // A schedule of a simulation repeats bit for bit.
            made: if self.options.background.has_threads() { made } else { 0 },
            step: version.step,
            metric: version.metric,
            manifest: file,
            rows: manifest.rows.clone().expect("a checkpoint with versions has its rows"),
        };
        let alone =
            Manifest { history: Vec::new(), versions: Vec::new(), moves: Vec::new(), ..manifest.clone() };
        Ok(KeptVersion::new(entry, &alone))
    }

    /// Checkpoint number and name of the versions of the last durable checkpoint, oldest first. Reads no file.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn kept_versions(&self) -> Result<Vec<(u64, String)>, StoreError> {
        self.check_open()?;
        let saved = self.saved.lock();
        Ok(saved.versions.iter().map(|version| (version.entry.epoch, version.entry.name.clone())).collect())
    }

    /// The versions of the last durable checkpoint, oldest first.
    ///
    /// # Errors
    /// Damaged files.
    pub fn versions(&self) -> Result<Vec<VersionInfo>, StoreError> {
        self.check_open()?;
        // No checkpoint replaces the files meanwhile.
        let saved = self.saved.lock();
        if saved.latest == 0 { Ok(Vec::new()) } else { versions(&self.volume) }
    }
}

impl Group {
    /// Name all rows of a shard to the log.
    fn name_rows(&self, shard: &Shard) {
        for table in self.tables.read().iter() {
            shard.on_device(table.local, |_, row| self.core.log.name(row));
        }
    }

    /// The cut of a checkpoint, under the locks of all shards: remember its rows.
    pub(super) fn cut_rows<'a>(&self, shards: impl Iterator<Item = &'a Shard>, version: Option<u64>) {
        if !self.core.log.is_tracking() {
            // A group that was created after the checkpoint began.
            self.core.log.track();
            shards.for_each(|shard| self.name_rows(shard));
        }
        self.core.log.cut_rows(version);
    }
}

/// The moves that the next checkpoint lists: those after the oldest version that stays.
pub(super) fn moves_since(
    moves: &[FileEntry],
    moved: Option<&FileEntry>,
    kept: &[KeptVersion],
) -> Vec<FileEntry> {
    let oldest = kept.first().map(|version| version.entry.epoch);
    let needed = |file: &&FileEntry| oldest.is_some() && epoch_of(&file.name) > oldest;
    moves.iter().chain(moved).filter(needed).cloned().collect()
}

/// The versions of the store in a volume, oldest first. Another process may have the store open.
///
/// # Errors
/// [`StoreError::Missing`], [`StoreError::Newer`], and damaged files.
pub fn versions(volume: &Arc<dyn Volume>) -> Result<Vec<VersionInfo>, StoreError> {
    for _ in 0..TRIES {
        let Some(latest) = load_manifest(&**volume)? else {
            return Err(StoreError::Missing { location: volume.location() });
        };
        let found = versions_of(volume, &latest);
        // A writer may have removed the files of an older checkpoint meanwhile.
        if found.is_ok() || load_manifest(&**volume)?.is_some_and(|now| now.epoch == latest.epoch) {
            return found;
        }
    }
    Err(StoreError::Superseded)
}

fn versions_of(volume: &Arc<dyn Volume>, latest: &Manifest) -> Result<Vec<VersionInfo>, StoreError> {
    let groups = latest.groups.len();
    let load = |rows: &FileEntry| files::load_row_sets(&**volume, rows, groups, &latest.moves);
    let mut holders: Vec<(Manifest, Vec<RowSet>)> = Vec::new();
    for entry in &latest.versions {
        holders.push((files::load_version(&**volume, latest, entry)?, load(&entry.rows)?));
    }
    if let Some(rows) = &latest.rows {
        let plain = Manifest { versions: Vec::new(), moves: Vec::new(), ..latest.clone() };
        holders.push((plain, load(rows)?));
    }
    let mut files: HashMap<String, (u64, usize)> = HashMap::new();
    for (manifest, _) in &holders {
        for (name, len) in manifest.files() {
            files.entry(name.to_owned()).or_insert((len, 0)).1 += 1;
        }
    }
    let alone = |which: usize| {
        let (manifest, rows) = &holders[which];
        let own = manifest.files().filter(|(name, _)| files[*name].1 == 1).map(|(_, len)| len).sum::<u64>();
        let rows = (0..).zip(rows).zip(&manifest.groups).map(|((group, rows), entry)| {
            let others = holders.iter().enumerate().filter(|(other, _)| *other != which);
            let others: Vec<&RowSet> = others.filter_map(|(_, (_, rows))| rows.get(group)).collect();
            let count = rows.rows().filter(|&row| !others.iter().any(|other| other.has(row))).count();
            let geometry = Geometry::new(entry.stride as usize, entry.segment_bytes as usize);
            (count * geometry.packed_row_bytes()) as u64
        });
        own + rows.sum::<u64>()
    };
    Ok((0..)
        .zip(&latest.versions)
        .map(|(which, entry)| VersionInfo {
            epoch: entry.epoch,
            name: entry.name.clone(),
            made_s: entry.made,
            step: entry.step,
            metric: entry.metric,
            rows: holders[which].0.tables.iter().map(|table| table.rows).sum(),
            bytes_alone: alone(which) + entry.manifest.len,
        })
        .collect())
}

/// The version of a store with this name or checkpoint number.
///
/// # Errors
/// [`StoreError::Option`] with the versions that exist.
pub(super) fn find_version<'a>(
    volume: &dyn Volume,
    latest: &'a Manifest,
    version: &str,
) -> Result<&'a VersionEntry, StoreError> {
    let named = |entry: &&VersionEntry| entry.name == version || entry.epoch.to_string() == version;
    latest.versions.iter().find(named).ok_or_else(|| {
        let known: Vec<String> = latest.versions.iter().map(|entry| format!("{:?}", entry.name)).collect();
        let known = if known.is_empty() { "no versions".into() } else { known.join(", ") };
        StoreError::Option {
            option: "version",
            expected: format!("a version that {} keeps, which has {known}", volume.location()),
            got: format!("{version:?}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(keep: usize, best: Option<Best>, metric: Option<f64>) -> NewVersion {
        NewVersion { name: "v".into(), step: None, metric, keep, best }
    }

    #[test]
    fn the_oldest_versions_go_and_the_best_stays() {
        let older = [(1, Some(0.5)), (2, Some(0.9)), (3, None), (4, Some(0.7)), (5, Some(0.9))];
        assert_eq!(new(3, None, None).staying(&older), [4, 5]);
        assert_eq!(new(9, None, None).staying(&older), [1, 2, 3, 4, 5]);
        assert_eq!(new(1, None, None).staying(&older), [0; 0]);
        // Of equal metrics the older version is the best.
        assert_eq!(new(3, Some(Best::Highest), Some(0.8)).staying(&older), [2, 5]);
        assert_eq!(new(4, Some(Best::Lowest), Some(0.8)).staying(&older), [1, 4, 5]);
        // The new one is the best, or there is room for one only.
        assert_eq!(new(3, Some(Best::Highest), Some(0.95)).staying(&older), [4, 5]);
        assert_eq!(new(1, Some(Best::Highest), Some(0.1)).staying(&older), [0; 0]);
        assert_eq!(new(5, Some(Best::Highest), None).staying(&older), [2, 3, 4, 5]);
    }

    #[test]
    fn names_that_look_like_numbers_are_refused() {
        for (name, keep, metric) in
            [("", 1, None), ("12", 1, None), ("a\nb", 1, None), ("a", 0, None), ("a", 1, Some(f64::NAN))]
        {
            let version = NewVersion { name: name.into(), ..new(keep, None, metric) };
            assert!(matches!(version.check(), Err(StoreError::Option { .. })), "{version:?}");
        }
    }
}
