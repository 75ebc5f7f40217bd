//! What a store tells about itself.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Clock values counted one by one; the last bucket holds the rest.
pub(crate) const STALENESS_BUCKETS: usize = 17;

/// Counters of a whole store. All figures grow from 0 at open.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) lookups: AtomicU64,
    pub(crate) rows_looked_up: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) updates: AtomicU64,
    pub(crate) rows_updated: AtomicU64,
    pub(crate) deletes: AtomicU64,
    pub(crate) cold_reads: AtomicU64,
    pub(crate) cold_wait_ns: AtomicU64,
    pub(crate) clock_waits: AtomicU64,
    pub(crate) clock_wait_ns: AtomicU64,
    pub(crate) lookahead_rows: AtomicU64,
    pub(crate) lookahead_loaded: AtomicU64,
    pub(crate) lookahead_late: AtomicU64,
    pub(crate) lookahead_dropped: AtomicU64,
    pub(crate) lookahead_errors: AtomicU64,
    pub(crate) compactions: AtomicU64,
    pub(crate) rows_compacted: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) staleness: [AtomicU64; STALENESS_BUCKETS],
}

impl Counters {
    /// A call looked up this many ids, this many of them distinct.
    pub(crate) fn count_call(&self, lookups: usize, rows: usize) {
        self.calls.fetch_add(1, Relaxed);
        self.lookups.fetch_add(lookups as u64, Relaxed);
        self.rows_looked_up.fetch_add(rows as u64, Relaxed);
    }

    /// A call changed this many rows.
    pub(crate) fn count_update(&self, rows: usize) {
        self.updates.fetch_add(1, Relaxed);
        self.rows_updated.fetch_add(rows as u64, Relaxed);
    }

    /// Clocks were taken.
    pub(crate) fn count_staleness(&self, taken: &StalenessCounts) {
        for (total, &count) in self.staleness.iter().zip(&taken.0).filter(|(_, count)| **count > 0) {
            total.fetch_add(count, Relaxed);
        }
    }
}

/// Clocks taken by one call, by how many gets were outstanding.
#[derive(Debug, Default)]
pub(crate) struct StalenessCounts([u64; STALENESS_BUCKETS]);

impl StalenessCounts {
    #[inline]
    pub(crate) fn count(&mut self, outstanding: u32) {
        self.0[(outstanding as usize).min(STALENESS_BUCKETS - 1)] += 1;
    }
}

/// State of one table.
#[derive(Clone, Debug)]
pub struct TableStats {
    /// Name.
    pub name: String,
    /// Group the table belongs to.
    pub group: u32,
    /// Rows.
    pub rows: u64,
    /// Bytes of one row with its optimizer state, in memory and on the device.
    pub row_bytes: u64,
    /// Lookups since the table was made.
    pub accesses: u64,
    /// Rows born since the table was made (unique ids seen in training).
    pub births: u64,
    /// Rows deleted since the table was made.
    pub deletes: u64,
    /// Rows evicted for good since the table was made, by its rule.
    pub evicted: u64,
    /// Optimizer steps since the table was made.
    pub steps: u64,
}

/// State of one group of tables.
#[derive(Clone, Debug)]
pub struct GroupStats {
    /// Its number.
    pub group: u32,
    /// Row places that cannot be written now: those of rows on the device, and of old versions that are not cleaned yet
    /// or belong to the last checkpoint.
    pub row_places_used: u64,
    /// All row places. New rows are refused before all are used, because some are kept for checkpoints.
    pub row_places: u64,
}

impl GroupStats {
    /// Share of the row places that are used, from 0 to 1.
    pub fn row_places_share(&self) -> f64 {
        self.row_places_used as f64 / self.row_places as f64
    }
}

/// State of a store. Bytes and counts; times in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Tables by name.
    pub tables: Vec<TableStats>,
    /// Groups by number.
    pub groups: Vec<GroupStats>,
    /// The memory budget.
    pub memory_budget: u64,
    /// Index memory.
    pub index_bytes: u64,
    /// Resident rows.
    pub row_bytes: u64,
    /// What resident rows may take.
    pub row_limit: u64,
    /// Bookkeeping of resident rows and cache policy.
    pub overhead_bytes: u64,
    /// Log buffers, I/O rings and scratch.
    pub buffer_bytes: u64,
    /// Rows in memory.
    pub rows_resident: u64,
    /// Rows changed since the last checkpoint cut and in memory.
    pub rows_dirty: u64,
    /// Rows evicted.
    pub evictions: u64,
    /// Rows and deletes published in the feed.
    pub feed_rows: u64,
    /// The last frame of the feed; 0 where none is kept.
    pub feed_sequence: u64,
    /// Why nothing is published before the next checkpoint; empty while it is.
    pub feed_failure: String,
    /// Bytes of rows that left memory, and ids that were deleted, and wait to be published.
    pub feed_waiting_bytes: u64,
    /// Device bytes of live rows.
    pub device_live_bytes: u64,
    /// Device bytes of segments with live rows.
    pub device_used_bytes: u64,
    /// Device bytes kept for the last checkpoint only.
    pub device_pinned_bytes: u64,
    /// Device bytes ready for reuse; what was given back to the file system is not among them.
    pub device_free_bytes: u64,
    /// Bytes written to the logs.
    pub device_bytes_written: u64,
    /// Blocks of 4 KiB read from the logs.
    pub device_blocks_read: u64,
    /// Damaged blocks seen.
    pub corrupt_blocks: u64,
    /// Fused lookups and reads.
    pub calls: u64,
    /// Lookups (ids, duplicates counted).
    pub lookups: u64,
    /// Distinct rows looked up per call, summed.
    pub rows_looked_up: u64,
    /// Distinct rows that had to be read from the device by the call that needed them.
    pub cold_reads: u64,
    /// Time calls waited for the device.
    pub cold_wait_ns: u64,
    /// Update calls.
    pub updates: u64,
    /// Rows updated.
    pub rows_updated: u64,
    /// Rows deleted.
    pub deletes: u64,
    /// Waits for clocks.
    pub clock_waits: u64,
    /// Time waited for clocks.
    pub clock_wait_ns: u64,
    /// Clocks taken, by the number of gets outstanding before (last: 16 and more).
    pub staleness: Vec<u64>,
    /// Ids announced by lookahead.
    pub lookahead_rows: u64,
    /// Rows lookahead read from the device.
    pub lookahead_loaded: u64,
    /// Rows lookahead left alone because the step that wanted them had begun.
    pub lookahead_late: u64,
    /// Lookahead calls dropped because the queue was full.
    pub lookahead_dropped: u64,
    /// Reads of lookahead that failed; the get that needs the row reports the error.
    pub lookahead_errors: u64,
    /// Segments cleaned.
    pub compactions: u64,
    /// Rows moved by cleaning.
    pub rows_compacted: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Open steps.
    pub tickets: u64,
    /// How devices are read.
    pub io: String,
}

/// Name, kind, help and value of a figure that every table, or every group, has.
type Family<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);

impl Stats {
    /// Share of distinct row lookups that found their row in memory (1 when nothing was looked up).
    pub fn hit_rate(&self) -> f64 {
        if self.rows_looked_up == 0 { 1.0 } else { 1.0 - self.cold_reads as f64 / self.rows_looked_up as f64 }
    }

    /// The figures as Prometheus text exposition (version 0.0.4).
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, value: f64| {
            let _ = write!(
                text,
                "# HELP rowmill_{name} {help}\n# TYPE rowmill_{name} {kind}\nrowmill_{name} {value}\n"
            );
        };
        let seconds = |ns: u64| ns as f64 / 1e9;
        metric("memory_budget_bytes", "gauge", "Memory budget.", self.memory_budget as f64);
        metric("index_bytes", "gauge", "Index memory.", self.index_bytes as f64);
        metric("row_bytes", "gauge", "Memory of resident rows.", self.row_bytes as f64);
        metric("overhead_bytes", "gauge", "Bookkeeping of resident rows.", self.overhead_bytes as f64);
        metric("buffer_bytes", "gauge", "Log buffers, I/O rings and scratch.", self.buffer_bytes as f64);
        metric("rows_resident", "gauge", "Rows in memory.", self.rows_resident as f64);
        metric(
            "rows_dirty",
            "gauge",
            "Rows in memory that the next checkpoint saves.",
            self.rows_dirty as f64,
        );
        metric("device_live_bytes", "gauge", "Device bytes of live rows.", self.device_live_bytes as f64);
        metric(
            "device_used_bytes",
            "gauge",
            "Device bytes of segments with live rows.",
            self.device_used_bytes as f64,
        );
        metric(
            "device_pinned_bytes",
            "gauge",
            "Device bytes kept for the last checkpoint.",
            self.device_pinned_bytes as f64,
        );
        metric("hit_rate", "gauge", "Share of row lookups found in memory.", self.hit_rate());
        metric("open_steps", "gauge", "Open tickets.", self.tickets as f64);
        metric("evictions_total", "counter", "Rows evicted.", self.evictions as f64);
        metric(
            "device_written_bytes_total",
            "counter",
            "Bytes written to the logs.",
            self.device_bytes_written as f64,
        );
        metric(
            "device_blocks_read_total",
            "counter",
            "Blocks read from the logs.",
            self.device_blocks_read as f64,
        );
        metric("corrupt_blocks_total", "counter", "Damaged blocks seen.", self.corrupt_blocks as f64);
        metric("calls_total", "counter", "Reads and fused lookups.", self.calls as f64);
        metric("lookups_total", "counter", "Ids looked up.", self.lookups as f64);
        metric(
            "rows_looked_up_total",
            "counter",
            "Distinct rows looked up per call.",
            self.rows_looked_up as f64,
        );
        metric(
            "cold_reads_total",
            "counter",
            "Rows read from the device by the call that needed them.",
            self.cold_reads as f64,
        );
        metric(
            "cold_wait_seconds_total",
            "counter",
            "Time calls waited for the device.",
            seconds(self.cold_wait_ns),
        );
        metric("updates_total", "counter", "Update calls.", self.updates as f64);
        metric("rows_updated_total", "counter", "Rows updated.", self.rows_updated as f64);
        metric("deletes_total", "counter", "Rows deleted.", self.deletes as f64);
        metric("clock_waits_total", "counter", "Waits for staleness clocks.", self.clock_waits as f64);
        metric("clock_wait_seconds_total", "counter", "Time waited for clocks.", seconds(self.clock_wait_ns));
        metric("lookahead_rows_total", "counter", "Ids announced by lookahead.", self.lookahead_rows as f64);
        metric("lookahead_loaded_total", "counter", "Rows lookahead read.", self.lookahead_loaded as f64);
        metric("lookahead_late_total", "counter", "Rows announced too late.", self.lookahead_late as f64);
        metric(
            "lookahead_dropped_total",
            "counter",
            "Lookahead calls dropped.",
            self.lookahead_dropped as f64,
        );
        metric(
            "lookahead_errors_total",
            "counter",
            "Lookahead reads that failed.",
            self.lookahead_errors as f64,
        );
        metric("compactions_total", "counter", "Segments cleaned.", self.compactions as f64);
        metric("checkpoints_total", "counter", "Checkpoints completed.", self.checkpoints as f64);
        self.labelled(&mut text);
        text
    }

    fn labelled(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "# HELP rowmill_staleness_total Clocks taken by gets outstanding before.\n# TYPE rowmill_staleness_total counter"
        );
        for (outstanding, count) in self.staleness.iter().enumerate() {
            let _ = writeln!(text, "rowmill_staleness_total{{outstanding=\"{outstanding}\"}} {count}");
        }
        let families: [Family<TableStats>; 6] = [
            ("table_rows", "gauge", "Rows of the table.", |table| table.rows),
            ("table_accesses_total", "counter", "Lookups of the table.", |table| table.accesses),
            ("table_births_total", "counter", "Rows born: unique ids seen in training.", |table| {
                table.births
            }),
            ("table_deletes_total", "counter", "Rows of the table deleted.", |table| table.deletes),
            ("table_evicted_total", "counter", "Rows of the table evicted for good.", |table| table.evicted),
            ("table_steps_total", "counter", "Optimizer steps of the table.", |table| table.steps),
        ];
        let places: [Family<GroupStats>; 2] = [
            ("group_row_places_used", "gauge", "Row places of the group that are used.", |group| {
                group.row_places_used
            }),
            ("group_row_places", "gauge", "Row places of the group.", |group| group.row_places),
        ];
        for (name, kind, help, value) in places {
            let _ = writeln!(text, "# HELP rowmill_{name} {help}\n# TYPE rowmill_{name} {kind}");
            for group in &self.groups {
                let _ = writeln!(text, "rowmill_{name}{{group=\"{}\"}} {}", group.group, value(group));
            }
        }
        for (name, kind, help, value) in families {
            let _ = writeln!(text, "# HELP rowmill_{name} {help}\n# TYPE rowmill_{name} {kind}");
            for table in &self.tables {
                let label = table.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = writeln!(text, "rowmill_{name}{{table=\"{label}\"}} {}", value(table));
            }
        }
    }
}
