//! Gathers the metrics of a store, its groups and its tables.

use std::sync::atomic::Ordering::Relaxed;

use super::store::Store;
use crate::files::IndexLog;
use crate::group::GroupTable;
use crate::metrics::{GroupStats, Stats, TableStats};

pub(super) fn gather_stats(store: &Store) -> Stats {
    let counters = &store.counters;
    let mut stats = Stats {
        tables: tables(store),
        memory_budget: store.budget.memory(),
        index_bytes: store.budget.index_bytes(),
        row_limit: store.budget.row_limit(),
        buffer_bytes: IndexLog::bytes() as u64 + store.budget.working_bytes(),
        calls: counters.calls.load(Relaxed),
        lookups: counters.lookups.load(Relaxed),
        rows_looked_up: counters.rows_looked_up.load(Relaxed),
        lookups_apart: counters.lookups_apart.load(Relaxed),
        cold_reads: counters.cold_reads.load(Relaxed),
        cold_wait_ns: counters.cold_wait_ns.load(Relaxed),
        updates: counters.updates.load(Relaxed),
        rows_updated: counters.rows_updated.load(Relaxed),
        deletes: counters.deletes.load(Relaxed),
        clock_waits: counters.clock_waits.load(Relaxed),
        clock_wait_ns: counters.clock_wait_ns.load(Relaxed),
        staleness: counters.staleness.iter().map(|count| count.load(Relaxed)).collect(),
        lookahead_rows: counters.lookahead_rows.load(Relaxed),
        lookahead_loaded: counters.lookahead_loaded.load(Relaxed),
        lookahead_late: counters.lookahead_late.load(Relaxed),
        lookahead_dropped: counters.lookahead_dropped.load(Relaxed),
        lookahead_errors: counters.lookahead_errors.load(Relaxed),
        compactions: counters.compactions.load(Relaxed),
        rows_compacted: counters.rows_compacted.load(Relaxed),
        checkpoints: counters.checkpoints.load(Relaxed),
        rows_unsaved: store.index_log.recorded(),
        tickets: store.tickets.len() as u64,
        io: store.volume.describe(),
        ..Stats::default()
    };
    if let Some(feed) = &store.feed {
        (stats.feed_rows, stats.feed_sequence) = feed.counts();
        stats.feed_failure = feed.failure().unwrap_or_default();
        stats.feed_waiting_bytes = feed.waiting_bytes();
    }
    for group in store.groups.read().iter() {
        for cell in &group.shards {
            let shard = cell.state.read();
            let (rows, _, overhead) = shard.bytes(&group.core);
            stats.row_bytes += rows as u64;
            stats.overhead_bytes += overhead as u64;
            stats.rows_resident += shard.resident() as u64;
            let dirty = shard.dirty_rows() as u64;
            stats.rows_dirty += dirty;
            stats.rows_unsaved += dirty;
            stats.evictions += shard.spills;
        }
        let space = group.core.log.space();
        stats.device_live_bytes += space.live;
        stats.device_used_bytes += space.used;
        stats.device_pinned_bytes += space.pinned;
        stats.device_free_bytes += space.free;
        let counts = group.core.log.counts();
        stats.device_bytes_written += counts.bytes_written;
        stats.device_blocks_read += counts.blocks_read;
        stats.corrupt_blocks += counts.corrupt;
        let (row_places_used, row_places) = group.core.log.row_numbers();
        stats.groups.push(GroupStats { group: group.core.number, row_places_used, row_places });
        stats.buffer_bytes += (group.core.log.bytes() + group.core.log.scratch_bytes()) as u64;
    }
    stats
}

fn tables(store: &Store) -> Vec<TableStats> {
    let tables = store.tables.read();
    let table = |(name, (group, state)): (&String, &GroupTable)| TableStats {
        name: name.clone(),
        group: group.core.number,
        rows: group.len(state.local) as u64,
        row_bytes: group.core.layout.stride as u64,
        accesses: state.accesses(),
        births: state.births(),
        deletes: state.deletes(),
        evicted: state.evicted(),
        steps: state.steps(),
    };
    tables.iter().map(table).collect()
}
