//! Push a checkpoint to a URL, and remove old ones.

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

/// The number of a removed checkpoint stays reserved until this many later checkpoints exist.
const NUMBERS_KEPT: u64 = 64;

/// Result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushInfo {
    /// Number of the pushed checkpoint.
    pub epoch: u64,
    /// Parts uploaded; the other parts already existed at the URL.
    pub parts_uploaded: u64,
    /// Bytes uploaded.
    pub bytes_uploaded: u64,
    /// Total bytes of the checkpoint's parts.
    pub bytes: u64,
    /// Number of removed objects, which no checkpoint needs.
    pub objects_removed: u64,
}

/// Copy a checkpoint to a URL, keep the last `keep` checkpoints there, and remove older ones. Parts that an
/// earlier checkpoint at the URL already has are not uploaded again. `interrupted` is called ten times per
/// second.
///
/// # Errors
/// [`RemoteError::Foreign`] or [`RemoteError::Conflict`] if another writer pushes to the URL. Unless removing
/// objects failed, the visible checkpoints are unchanged.
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
            // This push was so slow that its number was released and its objects were removed.
            remote.put(&entry_key(number), Vec::new()).await?;
            return Err(conflict(remote, epoch, &pushes));
        }
    }
    info.objects_removed = clean(remote, pushes, keep).await?;
    Ok(info)
}

/// Whether `latest` is this checkpoint (true), or an earlier checkpoint that it continues (false); otherwise
/// an error.
fn follows(checkpoint: &PinnedCheckpoint, latest: &Contents, remote: &Remote) -> Result<bool, RemoteError> {
    let epoch = checkpoint.epoch();
    let writer = |lineage| writer_of(lineage, latest.epoch);
    if latest.epoch > epoch || writer(&latest.lineage) != writer(checkpoint.lineage()) {
        return Err(RemoteError::Foreign { url: remote.url().to_owned(), latest: latest.epoch, epoch });
    }
    Ok(latest.epoch == epoch)
}

/// If a server overwrites in spite of `If-None-Match`, two writers can damage each other's objects.
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
    // Only parts of the latest checkpoint: no writer removes those before this push ends.
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

/// Upload parts into `folder`, which is the first in the contents' list of pushes.
async fn upload_all(
    mut reader: PartReader<'_>,
    remote: &Remote,
    folder: &str,
    parts: Vec<&CheckpointPart>,
) -> Result<Vec<PartEntry>, RemoteError> {
    // Parts are read in order, whenever there is room for another request.
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
    // The object may be this push's own, if the response to the first try was lost.
    if remote.get(&key).await?.is_some_and(|found| found == sealed) {
        return Ok(());
    }
    Err(conflict(remote, entry.epoch, &Pushes::load(remote).await?))
}

fn conflict(remote: &Remote, epoch: u64, pushes: &Pushes) -> RemoteError {
    let other = pushes.visible.last().map_or(0, |push| push.entry.epoch);
    RemoteError::Conflict { url: remote.url().to_owned(), epoch, other }
}

/// Hide all but the last `keep` checkpoints, then remove all objects that no visible checkpoint needs.
/// Returns the number of removed objects. Checkpoints are hidden before their objects are removed.
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
    // Folders of later pushes may still be uploading.
    let is_garbage =
        |key: &str| object_number(key).is_some_and(|number| number <= last) && !named.contains(key);
    let objects = remote.list(OBJECTS).await?.into_iter().map(|listed| listed.key);
    let garbage: Vec<String> = objects.filter(|key| is_garbage(key)).collect();
    let removed = garbage.len() as u64;
    let forgotten = pushes.removed.iter().filter(|&&number| number + NUMBERS_KEPT < last);
    remote.remove(garbage.into_iter().chain(forgotten.map(|&number| entry_key(number))).collect()).await?;
    Ok(removed)
}

/// The error for a part whose push is missing from the contents' list of pushes.
pub(crate) fn unlisted(remote: &Remote, contents: &Contents, part: &PartEntry) -> RemoteError {
    let push = contents.pushes.first().map_or("?", String::as_str);
    remote.corrupt(&contents_key(push), format!("its list of pushes lacks the push of part {}", part.name))
}
