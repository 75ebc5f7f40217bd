//! Resumes a feed when its store is opened at a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rowmill_io::Volume;

use super::frame::FeedChange;
use super::publisher::Feed;
use super::reader::FeedReader;
use super::segment::{self, NOTHING};
use super::segment_bytes;
use super::writer::FeedWriter;
use crate::error::StoreError;
use crate::group::{Group, GroupTable};
use crate::options::FeedOptions;
use crate::shard::{FeedBacklog, Miss};
use crate::table::floats_of;

/// Maximum rows per frame when rows are rolled back.
const FRAME_ROWS: usize = 1024;
/// Maximum floats per such frame.
const FRAME_FLOATS: usize = 16 << 10;
/// Maximum of sequence numbers skipped when a feed resumes. After a power failure, followers may have read
/// frames that the feed has lost; their numbers must not be reused.
const SKIP_MASK: u64 = 0xf_ffff;

/// Changes published after a checkpoint.
struct Published {
    since: u64,
    last: u64,
    ids: BTreeMap<String, BTreeSet<u64>>,
    anything: bool,
}

/// Open the feed of a store that was just opened at checkpoint `epoch`. `mark` is the checkpoint's frame; 0
/// if the checkpoint is older than the feed or has none.
///
/// # Errors
/// When the feed cannot be written, or rows to be rolled back cannot be read.
pub(crate) fn open(
    volume: &Arc<dyn Volume>,
    options: &FeedOptions,
    waiting: &Arc<FeedBacklog>,
    incarnation: u64,
    tables: &BTreeMap<String, GroupTable>,
    epoch: u64,
    mark: u64,
) -> Result<Feed, StoreError> {
    let skip = 1 + (incarnation & SKIP_MASK);
    let published = published_after(volume, epoch, mark)?;
    let newest = segment::list(&**volume)?.last().copied().unwrap_or(0);
    let Some(published) = published else {
        // A segment has fewer frames than bytes.
        let first = newest + segment_bytes(options) + skip;
        let mut writer = FeedWriter::begin(volume, options, first, NOTHING)?;
        writer.append(&FeedChange::Checkpoint { epoch })?;
        writer.flush()?;
        return Ok(Feed::new(writer, waiting));
    };
    // An earlier opening that published nothing has left an empty segment, which follows the same frame. Readers look
    // for the newest one.
    let first = published.last.max(newest) + skip;
    let mut writer = FeedWriter::begin(volume, options, first, published.last)?;
    if published.anything {
        writer.append(&FeedChange::Rollback { to: published.since, epoch })?;
        for (name, ids) in published.ids {
            let ids: Vec<u64> = ids.into_iter().collect();
            for ids in ids.chunks(FRAME_ROWS) {
                take_back(&mut writer, &name, tables.get(&name), ids)?;
            }
        }
        writer.append(&FeedChange::Checkpoint { epoch })?;
        writer.flush()?;
    }
    Ok(Feed::new(writer, waiting))
}

/// The changes published after the frame of a checkpoint; `None` if they cannot be determined.
fn published_after(volume: &Arc<dyn Volume>, epoch: u64, mark: u64) -> Result<Option<Published>, StoreError> {
    let cannot_be_told = |error: StoreError| match error {
        StoreError::FeedGap { .. } | StoreError::NoFeed { .. } | StoreError::Corrupt { .. } => Ok(None),
        error => Err(error),
    };
    let opened =
        if mark > 0 { FeedReader::open(volume, mark) } else { FeedReader::at_checkpoint(volume, epoch) };
    let mut reader = match opened {
        Ok(reader) => reader,
        Err(error) => return cannot_be_told(error),
    };
    let since = reader.position();
    let mut published = Published { since, last: since, ids: BTreeMap::new(), anything: false };
    loop {
        match reader.poll() {
            Ok(None) => return Ok(Some(published)),
            Ok(Some(event)) => {
                published.last = event.sequence;
                published.anything = true;
                if let FeedChange::Rows { table, ids, .. } | FeedChange::Deleted { table, ids, .. } =
                    event.change
                {
                    published.ids.entry(table).or_default().extend(ids);
                }
            }
            Err(error) => return cannot_be_told(error),
        }
    }
}

/// Publish the current values of rows, in a store without rows in memory.
fn take_back(
    writer: &mut FeedWriter,
    name: &str,
    entry: Option<&GroupTable>,
    ids: &[u64],
) -> Result<(), StoreError> {
    let table = name.to_owned();
    let Some((group, state)) = entry else {
        writer.append(&FeedChange::Deleted { table, step: 0, ids: ids.to_vec() })?;
        return Ok(());
    };
    let step = state.steps();
    let (misses, gone) = find(group, entry.expect("a table with ids exists"), ids);
    if !gone.is_empty() {
        writer.append(&FeedChange::Deleted { table: table.clone(), step, ids: gone })?;
    }
    let dim = group.core.layout.dim;
    let reading = group.core.log.reading();
    for misses in misses.chunks((FRAME_FLOATS / dim).max(1)) {
        let rows = group.read_ahead(&reading, misses)?;
        let (mut weights, mut scratch) = (Vec::with_capacity(misses.len() * dim), Vec::new());
        for (number, miss) in misses.iter().enumerate() {
            let Some(row) = rows.row(number) else {
                let what =
                    format!("{} is not at the row number in the index", group.key(state.local, miss.key.id));
                return Err(StoreError::Corrupt { what });
            };
            // SAFETY: a whole row, borrowed.
            weights.extend_from_slice(unsafe { floats_of(&group.core.layout, row.as_ptr(), &mut scratch) });
        }
        let ids = misses.iter().map(|miss| miss.key.id).collect();
        writer.append(&FeedChange::Rows { table: table.clone(), step, dim, ids, weights })?;
    }
    Ok(())
}

/// Row numbers of ids on the device, and ids without a row.
fn find(group: &Group, (_, state): &GroupTable, ids: &[u64]) -> (Vec<Miss>, Vec<u64>) {
    let keys = group.keys(state, ids);
    let (mut misses, mut gone) = (Vec::new(), Vec::new());
    for (shard, cell) in group.shards.iter().enumerate() {
        let shard_state = cell.state.read();
        for key in keys.of_shard(shard) {
            match shard_state.find(key) {
                Some(found) => {
                    let row = found.location.row().expect("no row is in memory yet");
                    misses.push(Miss { key: *key, row });
                }
                None => gone.push(key.id),
            }
        }
    }
    (misses, gone)
}
