//! Restore a checkpoint into a folder.
//!
//! The file `RESTORING` is written first and removed last. While it exists, the folder does not open as a
//! store. It lists the files of the restore. A repeated restore continues with them, keeps every part that is
//! already correct, and changes no other files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use futures_util::{StreamExt, TryStreamExt, stream};
use rowmill_io::{DeviceError, DirectoryVolume, IoChoice, Volume};
use rowmill_store::RESTORING;
use serde::{Deserialize, Serialize};

use crate::RemoteError;
use crate::history::{Push, Pushes};
use crate::layout::{Contents, PartEntry, contents_key};
use crate::push::unlisted;
use crate::remote::{REQUESTS, Remote};
use crate::runtime::block_on;

/// The lock file of a folder, which is not part of its content.
const LOCK: &str = "LOCK";

/// Result of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreInfo {
    /// Number of the checkpoint at which the folder opens.
    pub epoch: u64,
    /// Number of rows.
    pub rows: u64,
    /// Total bytes of the checkpoint's parts.
    pub bytes: u64,
    /// Bytes downloaded; an earlier, unfinished restore downloaded the rest.
    pub bytes_downloaded: u64,
}

/// Content of `RESTORING`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Progress {
    url: String,
    checkpoint: u64,
    files: BTreeSet<String>,
}

/// Make `folder` a store at checkpoint `epoch`, or at the latest one. The folder must be new, empty, or left
/// by an unfinished restore. `interrupted` is called ten times per second.
///
/// # Errors
/// [`RemoteError::NoCheckpoint`], [`RemoteError::Occupied`], [`RemoteError::Corrupt`], or the error of a
/// request or file. The folder then does not open as a store. Repeat the restore to continue.
pub fn restore(
    remote: &Remote,
    folder: &Path,
    epoch: Option<u64>,
    interrupted: &dyn Fn() -> bool,
) -> Result<RestoreInfo, RemoteError> {
    block_on(interrupted, async {
        let push = find(remote, epoch).await?;
        let gone = || absent(remote, push.entry.epoch.to_string(), "it was removed meanwhile".into());
        let contents = push.contents(remote).await?.ok_or_else(gone)?;
        let files = files_of(remote, &push, &contents)?;
        let target = Target::prepare(folder, remote, &push, &files)?;
        let bytes_downloaded = match download(remote, &contents, &target).await {
            // An object is removed only after its checkpoint, so check whether the checkpoint was removed.
            Err(RemoteError::Corrupt { .. }) if !push.is_visible(remote).await? => return Err(gone()),
            downloaded => downloaded?,
        };
        target.finish()?;
        let bytes = contents.parts.iter().filter_map(PartEntry::bytes).sum();
        Ok(RestoreInfo { epoch: push.entry.epoch, rows: push.entry.rows, bytes, bytes_downloaded })
    })
}

async fn find(remote: &Remote, epoch: Option<u64>) -> Result<Push, RemoteError> {
    let mut visible = Pushes::load(remote).await?.visible;
    let known = visible.iter().map(|push| push.entry.epoch.to_string()).collect::<Vec<_>>().join(", ");
    let found = match epoch {
        Some(epoch) => visible.iter().rposition(|push| push.entry.epoch == epoch),
        None => visible.len().checked_sub(1),
    };
    let Some(at) = found else {
        let wanted = epoch.map_or("at all".into(), |epoch| epoch.to_string());
        return Err(absent(
            remote,
            wanted,
            if known.is_empty() { "push one first".into() } else { format!("it has {known}") },
        ));
    };
    Ok(visible.swap_remove(at))
}

fn absent(remote: &Remote, wanted: String, known: String) -> RemoteError {
    RemoteError::NoCheckpoint { url: remote.url().to_owned(), wanted, known }
}

/// Names and lengths of the files. Names that lead out of the folder are refused.
fn files_of(remote: &Remote, push: &Push, contents: &Contents) -> Result<BTreeMap<String, u64>, RemoteError> {
    let corrupt = |what: String| remote.corrupt(&contents_key(&push.entry.push), what);
    let mut files = BTreeMap::new();
    for part in &contents.parts {
        let name = &part.file;
        if name.is_empty()
            || name.contains(['/', '\0'])
            || [".", "..", LOCK, RESTORING].contains(&name.as_str())
        {
            return Err(corrupt(format!("it names a file {name:?}, which is not allowed")));
        }
        part.bytes().ok_or_else(|| corrupt(format!("part {} has a length that overflows", part.name)))?;
        let len = files.entry(name.clone()).or_insert(0);
        *len = part.spans.iter().map(|(offset, bytes)| offset + bytes).fold(*len, u64::max);
    }
    Ok(files)
}

/// The folder being filled. It is locked, so that no two restores fill it at once.
struct Target {
    volume: DirectoryVolume,
    _lock: Box<dyn rowmill_io::VolumeLock>,
    files: BTreeMap<String, File>,
}

impl Target {
    fn prepare(
        folder: &Path,
        remote: &Remote,
        push: &Push,
        files: &BTreeMap<String, u64>,
    ) -> Result<Self, RemoteError> {
        // Before anything is created: the folder may belong to another program.
        found_in(folder)?;
        let volume = DirectoryVolume::create(folder, IoChoice::Auto)?;
        let lock = volume.lock()?;
        // Again, now under the lock: another program may have filled the folder meanwhile.
        let before = found_in(folder)?;
        let mut names = files.keys().cloned().collect::<BTreeSet<_>>();
        for old in before.difference(&names).filter(|name| *name != RESTORING) {
            volume.remove(old)?;
        }
        names.extend(before.into_iter().filter(|name| name != RESTORING));
        let progress = Progress { url: remote.url().to_owned(), checkpoint: push.entry.epoch, files: names };
        write_progress(&volume, &progress)?;
        let open = |(name, len): (&String, &u64)| {
            let path = folder.join(name);
            let opened = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
            let file = opened.and_then(|file| file.set_len(*len).map(|()| file));
            Ok((name.clone(), file.map_err(|error| failed("create", &path, 0, error))?))
        };
        let files = files.iter().map(open).collect::<Result<_, RemoteError>>()?;
        Ok(Self { volume, _lock: lock, files })
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(self.volume.path(name))
    }

    /// Whether the folder already has the bytes of a part.
    fn has(&self, part: &PartEntry) -> bool {
        let mut crc = 0;
        let mut bytes = Vec::new();
        for &(offset, len) in &part.spans {
            bytes.resize(len as usize, 0);
            if self.files[&part.file].read_exact_at(&mut bytes, offset).is_err() {
                return false;
            }
            crc = rowmill_io::crc32c_append(crc, &bytes);
        }
        crc == part.crc
    }

    fn write(&self, part: &PartEntry, bytes: &[u8]) -> Result<(), RemoteError> {
        let mut rest = bytes;
        for &(offset, len) in &part.spans {
            let (span, after) = rest.split_at(len as usize);
            let written = self.files[&part.file].write_all_at(span, offset);
            written.map_err(|error| failed("write", &self.path(&part.file), offset, error))?;
            rest = after;
        }
        Ok(())
    }

    /// Make everything durable, then remove `RESTORING`, so that the folder opens as a store.
    fn finish(self) -> Result<(), RemoteError> {
        for (name, file) in &self.files {
            file.sync_all().map_err(|error| failed("sync", &self.path(name), 0, error))?;
        }
        self.volume.sync()?;
        self.volume.remove(RESTORING)?;
        Ok(self.volume.sync()?)
    }
}

/// Names in a folder that a restore may fill: an empty folder, or files of an unfinished restore.
fn found_in(folder: &Path) -> Result<BTreeSet<String>, RemoteError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(failed("list", folder, 0, error)),
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        let entry = entry.map_err(|error| failed("list", folder, 0, error))?;
        names.insert(entry.file_name().to_string_lossy().into_owned());
    }
    names.remove(LOCK);
    let mut ours = BTreeSet::new();
    if names.contains(RESTORING) {
        let mut text = Vec::new();
        let read = File::open(folder.join(RESTORING)).and_then(|mut file| file.read_to_end(&mut text));
        read.map_err(|error| failed("read", &folder.join(RESTORING), 0, error))?;
        // If `RESTORING` was only partly written, no other file was written.
        ours = serde_json::from_slice::<Progress>(&text).unwrap_or_default().files;
        ours.insert(RESTORING.to_owned());
        ours.insert(RESTORING_NEW.to_owned());
    }
    match names.difference(&ours).next() {
        Some(name) => Err(RemoteError::Occupied { folder: folder.to_owned(), name: name.clone() }),
        None => Ok(names),
    }
}

/// The new version of `RESTORING`, before it replaces the old one.
const RESTORING_NEW: &str = "RESTORING.new";

fn write_progress(volume: &DirectoryVolume, progress: &Progress) -> Result<(), RemoteError> {
    let json = serde_json::to_vec(progress).expect("names and numbers are JSON");
    // The old file stays valid until the new one is complete.
    let name = if volume.list()?.iter().any(|name| name == RESTORING) { RESTORING_NEW } else { RESTORING };
    let mut file = volume.create(name)?;
    file.write_all(&json).map_err(|error| failed("write", Path::new(&volume.path(name)), 0, error))?;
    file.sync()?;
    if name != RESTORING {
        volume.rename(name, RESTORING)?;
    }
    Ok(volume.sync()?)
}

/// Download every missing part into the folder. Returns the number of bytes downloaded.
async fn download(remote: &Remote, contents: &Contents, target: &Target) -> Result<u64, RemoteError> {
    let fetch = |part: &PartEntry| {
        let key = contents.key(part);
        let part = part.clone();
        async move {
            let key = key.ok_or_else(|| unlisted(remote, contents, &part))?;
            if target.has(&part) {
                return Ok(0);
            }
            let bytes = remote.get(&key).await?.ok_or_else(|| remote.corrupt(&key, "it does not exist"))?;
            let expected = part.bytes().unwrap_or(u64::MAX);
            if bytes.len() as u64 != expected {
                return Err(remote.corrupt(&key, format!("it has {} bytes, not {expected}", bytes.len())));
            }
            let crc = rowmill_io::crc32c(&bytes);
            if crc != part.crc {
                let what = format!("its checksum is {crc:08x} instead of {:08x}", part.crc);
                return Err(remote.corrupt(&key, what));
            }
            target.write(&part, &bytes)?;
            Ok(bytes.len() as u64)
        }
    };
    let fetched = stream::iter(&contents.parts).map(fetch).buffer_unordered(REQUESTS);
    fetched.try_fold(0, |sum, bytes| async move { Ok(sum + bytes) }).await
}

fn failed(operation: &'static str, path: &Path, offset: u64, error: std::io::Error) -> RemoteError {
    DeviceError::from_io(operation, path.display().to_string(), offset, 0, error).into()
}
