//! The metrics of a store, of its groups and of its tables.
//!
//! This list is the only one: Prometheus text and the dictionaries of Python are generated from it.

use super::metric::{Metric, MetricKind, MetricUnit, MetricValue, metrics};

metrics! {
    /// State of one table.
    #[derive(Clone, Debug)]
    pub struct TableStats {
        fields {
            /// Name.
            name: String,
            /// Group the table belongs to.
            group: u32,
        }
        metrics {
            rows: u64, Gauge Count "table_rows" "Rows of the table.";
            row_bytes: u64, Gauge Bytes "table_row_bytes"
                "Bytes of one row with its optimizer state, in memory and on the device.";
            accesses: u64, Counter Count "table_accesses_total" "Lookups since the table was made.";
            births: u64, Counter Count "table_births_total"
                "Rows created since the table was made (unique ids seen in training).";
            deletes: u64, Counter Count "table_deletes_total" "Rows deleted since the table was made.";
            evicted: u64, Counter Count "table_evicted_total"
                "Rows evicted since the table was made, by its eviction rule.";
            steps: u64, Counter Count "table_steps_total" "Optimizer steps since the table was made.";
        }
        computed {}
    }
}

metrics! {
    /// State of one group of tables.
    #[derive(Clone, Debug)]
    pub struct GroupStats {
        fields {
            /// Its number.
            group: u32,
        }
        metrics {
            row_places_used: u64, Gauge Count "group_row_places_used"
                "Row places of the group in use, including old versions of rows.";
            row_places: u64, Gauge Count "group_row_places"
                "All row places of the group. Some are reserved for checkpoints, so new rows are refused earlier.";
        }
        computed {
            row_places_share, Gauge "group_row_places_share" "Share of the row places of the group that are used.";
        }
    }
}

metrics! {
    /// State of a store.
    #[derive(Clone, Debug, Default)]
    pub struct Stats {
        fields {
            /// Tables by name.
            tables: Vec<TableStats>,
            /// Groups by number.
            groups: Vec<GroupStats>,
        }
        metrics {
            memory_budget: u64, Gauge Bytes "memory_budget_bytes" "Memory budget.";
            index_bytes: u64, Gauge Bytes "index_bytes" "Index memory.";
            row_bytes: u64, Gauge Bytes "row_bytes" "Memory of resident rows.";
            row_limit: u64, Gauge Bytes "row_limit_bytes" "Memory that resident rows may use.";
            overhead_bytes: u64, Gauge Bytes "overhead_bytes" "Bookkeeping of resident rows and of the cache policy.";
            buffer_bytes: u64, Gauge Bytes "buffer_bytes" "Log buffers, I/O rings and scratch.";
            rows_resident: u64, Gauge Count "rows_resident" "Rows in memory.";
            rows_dirty: u64, Gauge Count "rows_dirty" "Rows in memory that the next checkpoint saves.";
            rows_unsaved: u64, Gauge Count "rows_unsaved"
                "Rows changed or deleted since the last checkpoint. A row that left memory and changed again counts twice.";
            evictions: u64, Counter Count "evictions_total" "Rows that left memory to make room for others.";
            feed_rows: u64, Counter Count "feed_rows_total" "Rows and deletes published in the feed.";
            feed_sequence: u64, Gauge Count "feed_sequence" "Number of the last frame of the feed; 0 without a feed.";
            feed_failure: String, Gauge Text "feed_failure"
                "Why the feed publishes nothing until the next checkpoint; empty while the feed works.";
            feed_waiting_bytes: u64, Gauge Bytes "feed_waiting_bytes"
                "Bytes of rows that left memory and of deleted ids, waiting to be published.";
            device_live_bytes: u64, Gauge Bytes "device_live_bytes" "Device bytes of live rows.";
            device_used_bytes: u64, Gauge Bytes "device_used_bytes" "Device bytes of segments with live rows.";
            device_pinned_bytes: u64, Gauge Bytes "device_pinned_bytes"
                "Device bytes kept for the last checkpoint only.";
            device_free_bytes: u64, Gauge Bytes "device_free_bytes"
                "Device bytes ready for reuse; space returned to the file system is not counted.";
            device_bytes_written: u64, Counter Bytes "device_written_bytes_total" "Bytes written to the logs.";
            device_blocks_read: u64, Counter Count "device_blocks_read_total" "Blocks of 4 KiB read from the logs.";
            corrupt_blocks: u64, Counter Count "corrupt_blocks_total" "Damaged blocks found.";
            calls: u64, Counter Count "calls_total" "Reads and pooled lookups.";
            lookups: u64, Counter Count "lookups_total" "Ids looked up, duplicates counted.";
            rows_looked_up: u64, Counter Count "rows_looked_up_total" "Distinct rows looked up per call, summed.";
            lookups_apart: u64, Counter Count "lookups_apart_total"
                "Ids pooled in evaluation on the slower path of training, mostly because a row had to be read from the device.";
            cold_reads: u64, Counter Count "cold_reads_total"
                "Distinct rows that calls had to read from the device themselves.";
            cold_wait_ns: u64, Counter Nanoseconds "cold_wait_seconds_total" "Time that calls waited for the device.";
            updates: u64, Counter Count "updates_total" "Update calls.";
            rows_updated: u64, Counter Count "rows_updated_total" "Rows updated.";
            deletes: u64, Counter Count "deletes_total" "Rows deleted.";
            clock_waits: u64, Counter Count "clock_waits_total" "Waits for staleness clocks.";
            clock_wait_ns: u64, Counter Nanoseconds "clock_wait_seconds_total"
                "Time that calls waited for staleness clocks.";
            staleness: Vec<u64>, Counter Count "staleness_total"
                "Clocks taken, by the number of gets outstanding before (last: 16 or more).";
            lookahead_rows: u64, Counter Count "lookahead_rows_total" "Ids announced by lookahead.";
            lookahead_loaded: u64, Counter Count "lookahead_loaded_total" "Rows that lookahead read from the device.";
            lookahead_late: u64, Counter Count "lookahead_late_total"
                "Rows that lookahead did not read because the step that announced them had begun.";
            lookahead_dropped: u64, Counter Count "lookahead_dropped_total"
                "Lookahead calls dropped because the queue was full.";
            lookahead_errors: u64, Counter Count "lookahead_errors_total"
                "Lookahead reads that failed; the get that needs the row reports the error.";
            compactions: u64, Counter Count "compactions_total" "Segments cleaned.";
            rows_compacted: u64, Counter Count "rows_compacted_total" "Rows moved by cleaning.";
            checkpoints: u64, Counter Count "checkpoints_total" "Checkpoints completed.";
            tickets: u64, Gauge Count "open_steps" "Open tickets.";
            io: String, Gauge Text "io" "How devices are read.";
        }
        computed {
            hit_rate, Gauge "hit_rate" "Share of distinct row lookups that found their row in memory.";
        }
    }
}

impl GroupStats {
    /// Share of the row places that are in use, from 0 to 1.
    pub fn row_places_share(&self) -> f64 {
        self.row_places_used as f64 / self.row_places as f64
    }
}

impl Stats {
    /// Share of distinct row lookups whose row was in memory; 1 when nothing was looked up.
    pub fn hit_rate(&self) -> f64 {
        if self.rows_looked_up == 0 { 1.0 } else { 1.0 - self.cold_reads as f64 / self.rows_looked_up as f64 }
    }
}
