//! Checkpoints: make all rows durable at one cut.
//!
//! A checkpoint has four phases. *Snapshot* (only now and then): the index is written while work continues.
//! Concurrent changes also go to the index log, which is replayed over the snapshot. *Cut*: changes of rows
//! are blocked briefly, dirty rows become frozen and the index log is switched. *Save*: frozen rows are
//! appended to the log while work continues. *Commit*: logs and files are synced, then the manifest is
//! replaced. A crash before that leaves the previous checkpoint, whose segments were not overwritten.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rowmill_rows::Category;

use crate::error::StoreError;
use crate::feed::{self, FeedCut};
use crate::files::{self, FileEntry, GroupEntry, Manifest, SnapshotWriter, TableEntry};
use crate::group::Group;
use crate::store::{CheckpointInfo, Saved, Store, Written, log_name};

use super::versions::{NewVersion, moves_since};

/// Frozen rows saved per acquisition of a shard's lock: about 50 us.
const SAVE_ROWS: usize = 256;
/// A new snapshot of the index is written when the changes since the last one exceed 1/2 of the index.
const DELTA_SHARE: u64 = 2;
/// The same while there are versions: each of them keeps the snapshot that it was made with.
const DELTA_SHARE_WITH_VERSIONS: u64 = 1;
/// The changes must also exceed this many bytes, so that a store of few rows does not write a snapshot each
/// time.
const DELTA_BYTES_MIN: u64 = 16 << 10;
/// Openings that a lineage keeps.
const LINEAGE_MAX: usize = 1024;
/// Maximum files of index changes kept for [`Store::changes`]. It limits stores of few rows, whose files are
/// small.
const HISTORY_FILES_MAX: usize = 256;
/// Bytes of one index entry in a snapshot.
const ENTRY_BYTES: u64 = 12;

/// Whether a cut remembers the rows of the checkpoint, and the version that it becomes.
#[derive(Clone, Copy)]
enum CutRows {
    Forget,
    Keep(Option<u64>),
}

/// State fixed by a cut, for the manifest.
struct Cut {
    /// Number of the cut in each group's log.
    logs: Vec<u64>,
    tables: Vec<TableEntry>,
    /// Sketches of the tables with admission.
    sketches: Vec<(Category, Vec<u8>)>,
}

impl Store {
    /// Make rows, optimizer state and `attachments` (name and bytes each) durable, all or nothing. Work may
    /// continue meanwhile; its changes after the cut belong to the next checkpoint. Call it between steps:
    /// open clocks are not saved.
    ///
    /// # Errors
    /// After any failure the store refuses all later writes, except after [`StoreError::NoPlaces`] and wrong
    /// arguments, which change nothing. The store can still be opened at the previous checkpoint.
    pub fn checkpoint(&self, attachments: &[(&str, &[u8])]) -> Result<CheckpointInfo, StoreError> {
        self.checkpoint_as(attachments, None)
    }

    /// As [`Store::checkpoint`]. The checkpoint becomes a version if `version` is given; older versions go as
    /// it says.
    ///
    /// # Errors
    /// As [`Store::checkpoint`].
    pub fn checkpoint_as(
        &self,
        attachments: &[(&str, &[u8])],
        version: Option<&NewVersion>,
    ) -> Result<CheckpointInfo, StoreError> {
        self.with_saved("a checkpoint", |saved| {
            let written = self.write_checkpoint(saved, attachments, version)?;
            written.manifest.save(&*self.volume)?;
            self.adopt_checkpoint(saved, written)
        })
    }

    /// Run `work` on the saved state, exclusively. Any failure but wrong arguments and
    /// [`StoreError::NoPlaces`] poisons the store.
    pub(crate) fn with_saved<T>(
        &self,
        what: &'static str,
        work: impl FnOnce(&mut Saved) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut saved = self.saved.lock();
        // Checked under the lock: while this call waited for it, the store may have been closed.
        self.check_writable(what)?;
        work(&mut saved).inspect_err(|error| {
            let changed_nothing = matches!(
                error,
                StoreError::Option { .. } | StoreError::InDoubt { .. } | StoreError::NoPlaces { .. }
            );
            if !changed_nothing {
                self.poison(error);
            }
        })
    }

    /// Write all parts of the next checkpoint except its manifest.
    pub(crate) fn write_checkpoint(
        &self,
        saved: &mut Saved,
        attachments: &[(&str, &[u8])],
        version: Option<&NewVersion>,
    ) -> Result<Written, StoreError> {
        if let Some(prepared) = &saved.prepared {
            return Err(self.in_doubt(saved.next_epoch - 1, prepared.manifest.epoch));
        }
        let begun = Instant::now();
        let epoch = saved.next_epoch;
        self.retire_versions(saved, version)?;
        let kept = saved.versions.clone();
        let keeps = version.is_some() || !kept.is_empty();
        if keeps {
            self.track_rows();
        }
        let written_before = self.log_bytes_written();
        let attached = attachments
            .iter()
            .map(|(name, bytes)| files::save_attachment(&*self.volume, epoch, name, bytes))
            .collect::<Result<Vec<_>, _>>()?;
        let snapshot = if self.snapshot_is_due(saved) { Some(self.write_snapshot(epoch)?) } else { None };

        let groups = self.groups.read().clone();
        let mut published = self.feed.as_ref().map(|feed| feed.begin_cut(groups));

        let cut_at = Instant::now();
        let rows = if keeps { CutRows::Keep(version.map(|_| epoch)) } else { CutRows::Forget };
        let cut = self.cut(epoch + 1, published.as_mut(), rows)?;
        let stall = cut_at.elapsed();
        let mark = published.map_or(0, |feed| feed.finish(epoch));

        let groups = self.groups.read().clone();
        let mut rows_saved = 0;
        for group in &groups {
            // The cut checked that there are enough places, so this is a failure in the middle of a
            // checkpoint.
            rows_saved += save_frozen(group).map_err(|error| match error {
                StoreError::NoPlaces { .. } => StoreError::Poisoned { cause: error.to_string() },
                error => error,
            })?;
        }
        for group in &groups {
            group.core.log.flush()?;
            group.core.log.sync()?;
        }
        let delta = self.index_log.finish_cut()?;
        let moved = self.index_log.finish_moves()?;

        let sketches = cut
            .sketches
            .iter()
            .map(|(category, bytes)| files::save_sketch(&*self.volume, epoch, *category, bytes))
            .collect::<Result<Vec<_>, _>>()?;
        let mut file_bytes = delta.len + attached.iter().chain(&sketches).map(|entry| entry.len).sum::<u64>();
        let mut next = Saved {
            next_epoch: epoch + 1,
            snapshot: saved.snapshot.clone(),
            deltas: saved.deltas.clone(),
            history: saved.history.clone(),
            attachments: attached,
            sketches,
            lineage: continued(&saved.lineage, epoch, self.incarnation),
            rows: None,
            moves: moves_since(&saved.moves, moved.as_ref(), &kept),
            versions: kept,
            latest: epoch,
            prepared: None,
        };
        if keeps {
            let sets: Vec<_> = groups
                .iter()
                .take(cut.logs.len())
                .map(|group| group.core.log.finish_cut_rows().unwrap_or_default())
                .collect();
            let rows = files::save_row_sets(&*self.volume, epoch, &sets)?;
            file_bytes += rows.len;
            next.rows = Some(rows);
        }
        if let Some(snapshot) = snapshot {
            file_bytes += snapshot.len;
            next.snapshot = Some(snapshot);
            let lists = next.deltas.drain(..).filter(|file| !files::lists_moves(&file.name));
            next.history.extend(lists);
        }
        next.deltas.push(delta);
        forget_history(&mut next.history, self.options.history);
        let mut manifest = self.manifest(epoch, &next, mark, cut.tables, &cut.logs, &groups);
        if let Some(version) = version {
            let kept = self.save_version(&manifest, version)?;
            file_bytes += kept.entry.manifest.len;
            manifest.versions.push(kept.entry.clone());
            next.versions.push(kept);
        }
        let manifest = manifest.stamped();
        if mark == 0 {
            // The rows come from changes that are not in the feed, so older feed segments must not lead to
            // this checkpoint.
            feed::remove_all(&*self.volume)?;
        }
        let log_bytes = self.log_bytes_written() - written_before;
        let info =
            CheckpointInfo { epoch, rows_saved, log_bytes, file_bytes, stall, duration: begun.elapsed() };
        Ok(Written { manifest, next, cuts: cut.logs, info })
    }

    /// The manifest of `written` is now the store's: files that only the previous one named may be removed.
    pub(crate) fn adopt_checkpoint(
        &self,
        saved: &mut Saved,
        written: Written,
    ) -> Result<CheckpointInfo, StoreError> {
        let Written { manifest, next, cuts, info } = written;
        *saved = next;
        if info.epoch == 1 {
            // The mark guards against a rare case. A durable checkpoint must not fail because of it.
            let _ = files::mark(&*self.volume);
        }
        for (group, cut) in self.groups.read().iter().zip(&cuts) {
            group.core.log.checkpoint_durable(*cut);
            group.give_space_back();
        }
        let holds = |name: &str| self.pins.hold(name) || saved.keeps(name);
        files::collect_garbage(&*self.volume, &manifest, &holds)?;
        self.counters.checkpoints.fetch_add(1, Relaxed);
        Ok(info)
    }

    /// Number of the last durable checkpoint; 0 if there is none.
    pub fn checkpoint_epoch(&self) -> u64 {
        self.saved.lock().next_epoch - 1
    }

    /// An attachment of the last durable checkpoint.
    ///
    /// # Errors
    /// When the attachment is damaged.
    pub fn attachment(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.check_open()?;
        let saved = self.saved.lock();
        let Some(entry) = saved.attachments.iter().find(|entry| entry.name == name) else { return Ok(None) };
        Ok(Some(files::load_attachment(&*self.volume, entry)?))
    }

    /// Names of the attachments of the last durable checkpoint.
    pub fn attachment_names(&self) -> Vec<String> {
        self.saved.lock().attachments.iter().map(|entry| entry.name.clone()).collect()
    }

    fn snapshot_is_due(&self, saved: &Saved) -> bool {
        let rows: usize = self.tables.read().values().map(|(group, table)| group.len(table.local)).sum();
        let changes: u64 = saved.deltas.iter().map(|delta| delta.len).sum();
        let share = if saved.versions.is_empty() { DELTA_SHARE } else { DELTA_SHARE_WITH_VERSIONS };
        changes > (rows as u64 * ENTRY_BYTES / share).max(DELTA_BYTES_MIN)
    }

    /// Write the row numbers of all rows, shard by shard, while work continues.
    fn write_snapshot(&self, epoch: u64) -> Result<FileEntry, StoreError> {
        let mut writer = SnapshotWriter::create(&*self.volume, epoch)?;
        for group in self.groups.read().iter() {
            let tables = group.tables.read().clone();
            for cell in &group.shards {
                for table in &tables {
                    let mut entries = Vec::new();
                    cell.state.read().on_device(table.local, |id, row| entries.push((id, row)));
                    for (id, row) in entries {
                        writer.push(table.category, id, row)?;
                    }
                }
            }
        }
        Ok(writer.finish()?)
    }

    /// Separate the changes of this checkpoint from the changes of the next, `next_epoch`.
    fn cut(&self, next_epoch: u64, feed: Option<&mut FeedCut<'_>>, rows: CutRows) -> Result<Cut, StoreError> {
        let _nobody_changes = self.changes.write();
        let by_name = self.tables.read();
        let groups = self.groups.read();
        // Rows are also created and spilled outside of changes, so every shard is locked as well.
        let mut shards: Vec<_> =
            groups.iter().flat_map(|group| group.shards.iter()).map(|cell| cell.state.write()).collect();
        let mut dirty = shards.iter().map(|shard| shard.dirty_rows());
        for group in groups.iter() {
            group.core.check_places_for(dirty.by_ref().take(group.shards.len()).sum())?;
        }
        self.index_log.cut(next_epoch)?;
        let logs = groups.iter().map(|group| group.core.log.cut()).collect();
        if let CutRows::Keep(version) = rows {
            let mut rest = shards.as_slice();
            for group in groups.iter() {
                let (own, others) = rest.split_at(group.shards.len());
                group.cut_rows(own.iter().map(|shard| &**shard), version);
                rest = others;
            }
        }
        for shard in &mut shards {
            shard.freeze();
        }
        if let Some(feed) = feed {
            let groups = groups.iter().flat_map(|group| group.shards.iter().map(move |_| group));
            groups.zip(&mut shards).for_each(|(group, shard)| feed.collect(group, shard));
        }
        let rows_of = |group: u32, local: u32| -> u64 {
            let before: usize = groups.iter().take(group as usize).map(|group| group.shards.len()).sum();
            let own = groups[group as usize].shards.len();
            shards[before..before + own].iter().map(|shard| shard.index(local).len() as u64).sum()
        };
        let mut tables: Vec<TableEntry> = by_name
            .iter()
            .map(|(name, (group, state))| TableEntry {
                name: name.clone(),
                category: state.category,
                group: group.core.number,
                spec: state.spec,
                steps: state.steps(),
                rows: rows_of(group.core.number, state.local),
                accesses: state.accesses(),
                births: state.births(),
                deletes: state.deletes(),
                evicted: state.evicted(),
                hot: state.hot_counts(),
            })
            .collect();
        tables.sort_by_key(|table| table.category);
        let sketches = by_name
            .values()
            .filter_map(|(_, state)| Some((state.category, state.sketch.as_ref()?.lock().bytes().to_vec())))
            .collect();
        Ok(Cut { logs, tables, sketches })
    }

    fn manifest(
        &self,
        epoch: u64,
        saved: &Saved,
        feed: u64,
        tables: Vec<TableEntry>,
        cuts: &[u64],
        groups: &[std::sync::Arc<Group>],
    ) -> Manifest {
        let group = |(group, cut): (&std::sync::Arc<Group>, &u64)| GroupEntry {
            spec: group.core.spec,
            shards: group.shards.len() as u32,
            stride: group.core.layout.stride as u32,
            segment_bytes: group.core.segment_bytes as u64,
            log_device: log_name(group.core.number),
            log: group.core.log.state(*cut),
        };
        Manifest {
            format_version: files::FORMAT_VERSION,
            epoch,
            seed: self.options.seed,
            created_by: env!("CARGO_PKG_VERSION").to_owned(),
            lineage: saved.lineage.clone(),
            groups: groups.iter().zip(cuts).map(group).collect(),
            tables,
            event_time: self.events.now(),
            snapshot: saved.snapshot.clone(),
            deltas: saved.deltas.clone(),
            history: saved.history.clone(),
            feed,
            attachments: saved.attachments.clone(),
            sketches: saved.sketches.clone(),
            rows: saved.rows.clone(),
            versions: saved.versions.iter().map(|version| version.entry.clone()).collect(),
            moves: saved.moves.clone(),
        }
    }

    fn log_bytes_written(&self) -> u64 {
        self.groups.read().iter().map(|group| group.core.log.counts().bytes_written).sum()
    }
}

/// A lineage, extended by checkpoint `epoch` of opening `incarnation`.
pub(super) fn continued(lineage: &[(u64, u64)], epoch: u64, incarnation: u64) -> Vec<(u64, u64)> {
    let mut lineage = lineage.to_vec();
    if lineage.last().is_none_or(|&(_, last)| last != incarnation) {
        lineage.push((epoch, incarnation));
        lineage.drain(..lineage.len().saturating_sub(LINEAGE_MAX));
    }
    lineage
}

/// Remove the oldest change lists until the rest fits.
fn forget_history(history: &mut Vec<FileEntry>, bytes_max: u64) {
    let mut bytes: u64 = history.iter().map(|file| file.len).sum();
    let mut gone = history.len().saturating_sub(HISTORY_FILES_MAX);
    bytes -= history[..gone].iter().map(|file| file.len).sum::<u64>();
    while bytes > bytes_max {
        bytes -= history[gone].len;
        gone += 1;
    }
    history.drain(..gone);
}

/// Append the rows that the cut froze while work continues. The shards take turns of `SAVE_ROWS` rows, so that
/// calls that wait for a shard get its lock meanwhile. This thread waits for the log's writer, so that other
/// appenders find idle buffers.
fn save_frozen(group: &Group) -> Result<u64, StoreError> {
    let mut rows = 0;
    let mut unsaved: Vec<_> = group.shards.iter().collect();
    while !unsaved.is_empty() {
        let mut with_more = Vec::with_capacity(unsaved.len());
        for cell in unsaved {
            group.core.log.await_written();
            let (saved, more) = cell.state.write().save_some(&group.core, SAVE_ROWS)?;
            rows += saved as u64;
            if more {
                with_more.push(cell);
            }
        }
        unsaved = with_more;
    }
    Ok(rows)
}
