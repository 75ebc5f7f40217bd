//! Copying a checkpoint to a place, and removing those that are too old.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use futures_util::{StreamExt, TryStreamExt, stream};
use rowmill_store::{CheckpointPart, PartReader, PinnedCheckpoint};

use crate::RemoteError;
use crate::history::{Pushes, contents_of};
use crate::layout::{
    Contents, Entry, OBJECTS, PartEntry, contents_key, entry_key, object_number, part_key, probe_key,
    push_folder, seal, writer_of,
};
use crate::remote::{REQUESTS, Remote};
use crate::runtime::block_on;

/// Numbers of removed checkpoints stay taken until so many later ones are there.
const NUMBERS_KEPT: u64 = 64;

/// What a push did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushInfo {
    /// Number of the checkpoint that is there now.
    pub epoch: u64,
    /// Its parts that were uploaded; the others were there.
    pub parts_uploaded: u64,
    /// Bytes of those.
    pub bytes_uploaded: u64,
    /// Bytes of all its parts.
    pub bytes: u64,
    /// Objects that no checkpoint needed any more and that were removed.
    pub objects_removed: u64,
}

/// Copy a checkpoint to a place, keep the last `keep` there and remove older ones. What an earlier
/// checkpoint of the place has in common with this one is not uploaded again. `interrupted` is asked ten
/// times a second.
///
/// # Errors
/// [`RemoteError::Foreign`] and [`RemoteError::Conflict`] when somebody else pushes to the place. Unless
/// the error came from removing, the place shows what it did before.
pub fn push(
    checkpoint: &PinnedCheckpoint,
    remote: &Remote,
    keep: usize,
    interrupted: &dyn Fn() -> bool,
) -> Result<PushInfo, RemoteError> {
    if keep == 0 {
        return Err(RemoteError::Option { option: "keep", expected: "at least 1", got: keep.to_string() });
    }
    block_on(interrupted, push_and_clean(checkpoint, remote, keep))
}

async fn push_and_clean(
    checkpoint: &PinnedCheckpoint,
    remote: &Remote,
    keep: usize,
) -> Result<PushInfo, RemoteError> {
    let epoch = checkpoint.epoch();
    let mut pushes = Pushes::load(remote).await?;
    let latest = match pushes.visible.last() {
        Some(push) => push.contents(remote).await?,
        None => None,
    };
    let is_there = match &latest {
        Some(latest) => follows(checkpoint, latest, remote)?,
        None => false,
    };
    let mut info = PushInfo { epoch, parts_uploaded: 0, bytes_uploaded: 0, bytes: 0, objects_removed: 0 };
    if is_there {
        info.bytes = pushes.visible.last().map_or(0, |push| push.entry.bytes);
    } else {
        let number = pushes.last() + 1;
        let folder = push_folder(number, RandomState::new().build_hasher().finish());
        if number == 1 {
            check_conditions(remote, &folder).await?;
        }
        let contents = upload(checkpoint, remote, &folder, latest.as_ref(), &mut info).await?;
        let sealed = seal(&contents);
        let entry = Entry {
            epoch,
            rows: checkpoint.rows(),
            bytes: info.bytes,
            contents: (sealed.len() as u64, rowmill_io::crc32c(&sealed)),
            push: folder,
        };
        remote.put(&contents_key(&entry.push), sealed).await?;
        commit(remote, number, &entry).await?;
        pushes = Pushes::load(remote).await?;
        if number + NUMBERS_KEPT < pushes.last() {
            // So slow that the number was given back, and what the entry names was removed.
            remote.put(&entry_key(number), Vec::new()).await?;
            return Err(conflict(remote, epoch, &pushes));
        }
    }
    info.objects_removed = clean(remote, pushes, keep).await?;
    Ok(info)
}

/// Whether `latest` is this very checkpoint, or else one that it follows.
fn follows(checkpoint: &PinnedCheckpoint, latest: &Contents, remote: &Remote) -> Result<bool, RemoteError> {
    let epoch = checkpoint.epoch();
    let writer = |lineage| writer_of(lineage, latest.epoch);
    if latest.epoch > epoch || writer(&latest.lineage) != writer(checkpoint.lineage()) {
        return Err(RemoteError::Foreign { url: remote.url().to_owned(), latest: latest.epoch, epoch });
    }
    Ok(latest.epoch == epoch)
}

/// A server that overwrites in spite of `If-None-Match` would let two writers damage each other's work.
async fn check_conditions(remote: &Remote, folder: &str) -> Result<(), RemoteError> {
    let key = probe_key(folder);
    remote.create(&key, b"probe".to_vec()).await?;
    if remote.create(&key, b"probe".to_vec()).await? {
        return Err(RemoteError::Unconditional { url: remote.url_of(&key) });
    }
    Ok(())
}

async fn upload(
    checkpoint: &PinnedCheckpoint,
    remote: &Remote,
    folder: &str,
    latest: Option<&Contents>,
    info: &mut PushInfo,
) -> Result<Contents, RemoteError> {
    // Only what the latest names: nobody removes that before this push is over.
    let there: HashMap<&str, (&String, &PartEntry)> = latest
        .into_iter()
        .flat_map(|latest| latest.parts.iter().map(move |part| (latest, part)))
        .filter_map(|(latest, part)| Some((part.name.as_str(), (latest.push_of(part)?, part))))
        .collect();
    let mut contents = Contents {
        epoch: checkpoint.epoch(),
        lineage: checkpoint.lineage().to_vec(),
        pushes: vec![folder.to_owned()],
        parts: Vec::new(),
    };
    let parts = checkpoint.parts();
    let mut missing = Vec::new();
    for part in &parts {
        info.bytes += part.bytes();
        let Some((push, entry)) = there.get(part.name.as_str()).filter(|(_, entry)| entry.holds(part)) else {
            missing.push(part);
            continue;
        };
        let at = contents.pushes.iter().position(|known| known == *push).unwrap_or_else(|| {
            contents.pushes.push((*push).clone());
            contents.pushes.len() - 1
        });
        contents.parts.push(PartEntry { push: at as u32, ..(*entry).clone() });
    }
    info.parts_uploaded = missing.len() as u64;
    info.bytes_uploaded = missing.iter().map(|part| part.bytes()).sum();
    contents.parts.extend(upload_all(checkpoint.reader()?, remote, folder, missing).await?);
    Ok(contents)
}

/// Upload parts into `folder`, the first of its contents' pushes.
async fn upload_all(
    mut reader: PartReader<'_>,
    remote: &Remote,
    folder: &str,
    parts: Vec<&CheckpointPart>,
) -> Result<Vec<PartEntry>, RemoteError> {
    // Parts are read in order, as there is room for another request.
    let uploads =
        parts.into_iter().map(move |part| (part, reader.read(part))).map(|(part, bytes)| async move {
            let bytes = bytes?;
            let crc = rowmill_io::crc32c(&bytes);
            remote.put(&part_key(folder, &part.name), bytes).await?;
            let CheckpointPart { name, file, spans, .. } = part.clone();
            Ok::<_, RemoteError>(PartEntry { name, file, spans, push: 0, crc })
        });
    stream::iter(uploads).buffered(REQUESTS).try_collect().await
}

/// Make the checkpoint visible.
async fn commit(remote: &Remote, number: u64, entry: &Entry) -> Result<(), RemoteError> {
    let (key, sealed) = (entry_key(number), seal(entry));
    if remote.create(&key, sealed.clone()).await? {
        return Ok(());
    }
    // It may be our own, when the answer to the first try was lost.
    if remote.get(&key).await?.is_some_and(|found| found == sealed) {
        return Ok(());
    }
    Err(conflict(remote, entry.epoch, &Pushes::load(remote).await?))
}

fn conflict(remote: &Remote, epoch: u64, pushes: &Pushes) -> RemoteError {
    let other = pushes.visible.last().map_or(0, |push| push.entry.epoch);
    RemoteError::Conflict { url: remote.url().to_owned(), epoch, other }
}

/// Hide all but the last `keep` checkpoints, then remove what no visible one names; the number of objects
/// removed. Objects go only after the checkpoints that named them cannot be seen any more.
async fn clean(remote: &Remote, mut pushes: Pushes, keep: usize) -> Result<u64, RemoteError> {
    let last = pushes.last();
    let expired = pushes.visible.len().saturating_sub(keep);
    for push in pushes.visible.drain(..expired) {
        remote.put(&entry_key(push.number), Vec::new()).await?;
    }
    let mut named: HashSet<String> =
        pushes.visible.iter().map(|push| contents_key(&push.entry.push)).collect();
    for contents in contents_of(remote, &pushes.visible).await? {
        for part in &contents.parts {
            let key = contents.key(part);
            named.insert(key.ok_or_else(|| unlisted(remote, &contents, part))?);
        }
    }
    // Folders of later pushes are being filled.
    let is_garbage =
        |key: &str| object_number(key).is_some_and(|number| number <= last) && !named.contains(key);
    let objects = remote.list(OBJECTS).await?.into_iter().map(|listed| listed.key);
    let garbage: Vec<String> = objects.filter(|key| is_garbage(key)).collect();
    let removed = garbage.len() as u64;
    let forgotten = pushes.removed.iter().filter(|&&number| number + NUMBERS_KEPT < last);
    remote.remove(garbage.into_iter().chain(forgotten.map(|&number| entry_key(number))).collect()).await?;
    Ok(removed)
}

/// The error for a part whose push is not in the list of its contents.
pub(crate) fn unlisted(remote: &Remote, contents: &Contents, part: &PartEntry) -> RemoteError {
    let push = contents.pushes.first().map_or("?", String::as_str);
    remote.corrupt(&contents_key(push), format!("{} is of a push that it does not list", part.name))
}
