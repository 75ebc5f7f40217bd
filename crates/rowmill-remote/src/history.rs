//! The checkpoints at a URL.

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::RemoteError;
use crate::layout::{CHECKPOINTS, Contents, Entry, contents_key, entry_key, entry_number};
use crate::remote::{REQUESTS, Remote};
use crate::runtime::block_on;

/// A checkpoint that can be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteCheckpoint {
    /// Its number in the store.
    pub epoch: u64,
    /// Number of rows.
    pub rows: u64,
    /// Bytes to download.
    pub bytes: u64,
    /// Time of the push by the object store's clock, in seconds since 1970.
    pub pushed_s: i64,
}

/// The checkpoints at a URL, oldest first.
///
/// # Errors
/// When the URL cannot be listed, or an entry cannot be read.
pub fn checkpoints(
    remote: &Remote,
    interrupted: &dyn Fn() -> bool,
) -> Result<Vec<RemoteCheckpoint>, RemoteError> {
    let visible = block_on(interrupted, Pushes::load(remote))?.visible;
    let told = |push: Push| {
        let Entry { epoch, rows, bytes, .. } = push.entry;
        RemoteCheckpoint { epoch, rows, bytes, pushed_s: push.pushed_s }
    };
    Ok(visible.into_iter().map(told).collect())
}

/// The pushes to a URL.
#[derive(Debug)]
pub(crate) struct Pushes {
    /// Pushes whose checkpoint is visible, oldest first.
    pub(crate) visible: Vec<Push>,
    /// Numbers of pushes whose checkpoint was removed.
    pub(crate) removed: Vec<u64>,
}

#[derive(Debug)]
pub(crate) struct Push {
    pub(crate) number: u64,
    pub(crate) entry: Entry,
    pushed_s: i64,
}

impl Pushes {
    pub(crate) async fn load(remote: &Remote) -> Result<Self, RemoteError> {
        let mut pushes = Self { visible: Vec::new(), removed: Vec::new() };
        for listed in remote.list(CHECKPOINTS).await? {
            let Some(number) = entry_number(&listed.key) else { continue };
            // Removed meanwhile, or earlier.
            let bytes = if listed.bytes == 0 { None } else { remote.get(&listed.key).await? };
            match bytes.filter(|bytes| !bytes.is_empty()) {
                Some(bytes) => {
                    let entry = remote.unsealed(&listed.key, &bytes)?;
                    pushes.visible.push(Push { number, entry, pushed_s: listed.modified_s });
                }
                None => pushes.removed.push(number),
            }
        }
        Ok(pushes)
    }

    /// The number of the last push, 0 before the first.
    pub(crate) fn last(&self) -> u64 {
        let visible = self.visible.iter().map(|push| push.number);
        visible.chain(self.removed.iter().copied()).max().unwrap_or(0)
    }
}

impl Push {
    /// Whether its checkpoint is still visible.
    pub(crate) async fn is_visible(&self, remote: &Remote) -> Result<bool, RemoteError> {
        Ok(remote.get(&entry_key(self.number)).await?.is_some_and(|entry| !entry.is_empty()))
    }

    /// Contents of its checkpoint; `None` if it was removed meanwhile.
    pub(crate) async fn contents(&self, remote: &Remote) -> Result<Option<Contents>, RemoteError> {
        let key = contents_key(&self.entry.push);
        let Some(bytes) = remote.get(&key).await? else {
            let is_visible = self.is_visible(remote).await?;
            return if is_visible { Err(remote.corrupt(&key, "it does not exist")) } else { Ok(None) };
        };
        if (bytes.len() as u64, rowmill_io::crc32c(&bytes)) != self.entry.contents {
            return Err(remote.corrupt(&key, "its length or checksum differs from its checkpoint's entry"));
        }
        let contents: Contents = remote.unsealed(&key, &bytes)?;
        if contents.epoch != self.entry.epoch {
            return Err(remote.corrupt(&key, format!("it belongs to checkpoint {}", contents.epoch)));
        }
        Ok(Some(contents))
    }
}

/// Contents of the pushes, without those removed meanwhile.
pub(crate) async fn contents_of(remote: &Remote, pushes: &[Push]) -> Result<Vec<Contents>, RemoteError> {
    let contents: Vec<Option<Contents>> =
        stream::iter(pushes).map(|push| push.contents(remote)).buffered(REQUESTS).try_collect().await?;
    Ok(contents.into_iter().flatten().collect())
}
