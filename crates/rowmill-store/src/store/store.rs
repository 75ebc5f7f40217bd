//! The store: tables in groups, one memory budget, checkpoints.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use rowmill_io::{Process, ProcessLocal, Volume, VolumeLock};
use rowmill_kernels::RowUpdater;
use rowmill_log::{Geometry, Log, LogConfig, LogState};
use rowmill_rows::{Category, GroupSpec, IdRange, TableSpec};
use rowmill_sync::{Mutex, Poison, RwLock, ranks};

use super::gather_stats::gather_stats;
use super::index_room::NewIndex;
use super::log_device::{log_device, log_name};
use super::request_queue::{QueuedGet, RequestQueue};
use super::saved::Saved;
use super::table::Table;
use crate::error::StoreError;
use crate::feed::Feed;
use crate::files::{self, IndexLog, Pins, TABLES_MAX};
use crate::group::{Group, GroupTable, Groups, Ticket, shards_for, shrink_all_if_over};
use crate::lookahead::{Announcement, Destination, Lookahead};
use crate::lookup::Lookup;
use crate::memory::{Budget, Purpose};
use crate::metrics::{Counters, Stats};
use crate::options::StoreOptions;
use crate::shard::{Core, FeedBacklog, Reason, STEPS_MAX};
use crate::staleness::Tickets;
use crate::table::{EVENT_TIME_MAX, EventClock, TableState};
use crate::threads::{Rounds, Workers};

/// Number of write buffers of a log: two streams (changed rows, rows that cleaning moves), each with one
/// buffer that takes rows while another is written.
pub(crate) const TAIL_BUFFERS: usize = 4;
/// The buffers of a log use 1/16 of the memory for rows.
const TAIL_SHARE: u64 = 16;
/// Maximum bytes of a table's name.
const NAME_BYTES_MAX: usize = 255;

/// A group, and ids by table of it.
type GroupIds<'a> = (&'a Arc<Group>, Vec<(u32, &'a [u64])>);

/// An open store. All methods may be called from any thread. Dropping it loses the changes since the last
/// checkpoint.
#[derive(Debug)]
pub struct Store {
    pub(crate) volume: Arc<dyn Volume>,
    pub(crate) options: StoreOptions,
    pub(crate) budget: Arc<Budget>,
    pub(crate) groups: Groups,
    pub(crate) tables: RwLock<BTreeMap<String, GroupTable>, ranks::Tables>,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) events: Arc<EventClock>,
    pub(crate) index_log: Arc<IndexLog>,
    /// Held shared by every change of rows, exclusively by the cut of a checkpoint.
    pub(crate) changes: Arc<RwLock<(), ranks::Changes>>,
    /// The last checkpoint. Its lock admits one checkpoint at a time.
    pub(crate) saved: Mutex<Saved, ranks::Saved>,
    pub(crate) next_category: AtomicU32,
    pub(crate) poison: Arc<Poison>,
    pub(crate) closed: AtomicBool,
    pub(crate) process: Process,
    // Dropping these joins threads, which a forked child does not have.
    pub(crate) lookahead: Mutex<Option<ProcessLocal<Lookahead>>, ranks::Lookahead>,
    /// Started by the first queued get.
    pub(crate) queue: Mutex<Option<ProcessLocal<RequestQueue>>, ranks::Queue>,
    pub(crate) compaction: Mutex<Option<ProcessLocal<Rounds>>, ranks::Compaction>,
    pub(crate) feed: Option<Arc<Feed>>,
    /// Changes that wait to be published; `None` without a feed.
    pub(crate) waiting: Option<Arc<FeedBacklog>>,
    pub(crate) publisher: Mutex<Option<ProcessLocal<Rounds>>, ranks::Publisher>,
    /// Shared with pinned checkpoints: no other process may write to the folder before they are unpinned.
    pub(crate) lock: Mutex<Option<Arc<dyn VolumeLock>>, ranks::VolumeLock>,
    /// Random number of this opening.
    pub(crate) incarnation: u64,
    pub(crate) pins: Pins,
}

impl Store {
    /// Create a table, or open it if it exists with the same spec. Learning rate and staleness bound may
    /// differ: they belong to the handle, not to the rows.
    ///
    /// # Errors
    /// [`StoreError::Spec`]; [`StoreError::SpecMismatch`] with the first field that differs;
    /// [`StoreError::MemoryTooSmall`] when the memory cannot hold one more group or index.
    pub fn table(self: &Arc<Self>, name: &str, spec: &TableSpec) -> Result<Table, StoreError> {
        self.check_open()?;
        spec.validate().map_err(|source| StoreError::Spec { table: name.to_owned(), source })?;
        if let Some((group, state)) = self.tables.read().get(name) {
            check_spec(name, &state.spec, spec)?;
            return Ok(Table::new(Arc::clone(self), Arc::clone(group), Arc::clone(state), *spec));
        }
        self.check_writable("creating a table")?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
            return Err(StoreError::Option {
                option: "name",
                expected: format!("1 to {NAME_BYTES_MAX} bytes without control characters"),
                got: format!("{:?} ({} bytes)", name.chars().take(40).collect::<String>(), name.len()),
            });
        }
        let mut tables = self.tables.write();
        if let Some((group, state)) = tables.get(name) {
            check_spec(name, &state.spec, spec)?;
            return Ok(Table::new(Arc::clone(self), Arc::clone(group), Arc::clone(state), *spec));
        }
        if tables.len() >= TABLES_MAX as usize {
            return Err(StoreError::Option {
                option: "tables",
                expected: format!("at most {TABLES_MAX}"),
                got: (tables.len() + 1).to_string(),
            });
        }
        let group = self.group(&spec.group())?;
        if let Some(admission) = spec.admission {
            group.core.check_room(admission.bytes, || format!("the sketch of table {name:?}"))?;
        }
        let index = NewIndex { table: name, ids: spec.ids, rows: 0, group: &group };
        self.check_indexes(&[index], Purpose::Grow)?;
        let category = Category(self.next_category.fetch_add(1, Relaxed));
        let entry = self.enter_table(&mut tables, name, category, &group, spec, 0);
        drop(tables);
        // A direct index uses its memory at once. Rows of any group may have to leave memory for it.
        let groups = self.groups.read().clone();
        self.settle(shrink_all_if_over(&groups, &self.budget))?;
        Ok(Table::new(Arc::clone(self), entry.0, entry.1, *spec))
    }

    /// Open a table that exists.
    ///
    /// # Errors
    /// [`StoreError::UnknownTable`] with the names that exist.
    pub fn open_table(self: &Arc<Self>, name: &str) -> Result<Table, StoreError> {
        self.check_open()?;
        let tables = self.tables.read();
        let Some((group, state)) = tables.get(name) else {
            let known: Vec<&str> = tables.keys().map(String::as_str).collect();
            return Err(StoreError::UnknownTable { name: name.to_owned(), known: known.join(", ") });
        };
        Ok(Table::new(Arc::clone(self), Arc::clone(group), Arc::clone(state), state.spec))
    }

    /// Names of all tables, sorted.
    pub fn table_names(&self) -> Vec<String> {
        self.tables.read().keys().cloned().collect()
    }

    pub(crate) fn enter_table(
        &self,
        tables: &mut BTreeMap<String, GroupTable>,
        name: &str,
        category: Category,
        group: &Arc<Group>,
        spec: &TableSpec,
        steps: u64,
    ) -> GroupTable {
        let local = group.tables.read().len() as u32;
        self.budget.add_fixed(spec.admission.map_or(0, |admission| admission.bytes));
        let events = Arc::clone(&self.events);
        let seed = self.options.seed;
        let state = Arc::new(TableState::new(name.to_owned(), category, local, *spec, seed, steps, events));
        group.add_table(&state);
        tables.insert(name.to_owned(), (Arc::clone(group), Arc::clone(&state)));
        (Arc::clone(group), state)
    }

    /// The group of a spec; creates it if there is none.
    fn group(&self, spec: &GroupSpec) -> Result<Arc<Group>, StoreError> {
        if let Some(group) = self.groups.read().iter().find(|group| group.core.spec == *spec) {
            return Ok(Arc::clone(group));
        }
        let segment_bytes = segment_bytes(self.budget.row_target());
        self.open_group(spec, segment_bytes, &LogState::default(), Purpose::Grow)
    }

    /// Create the group of a spec and open its log.
    pub(crate) fn open_group(
        &self,
        spec: &GroupSpec,
        segment_bytes: usize,
        state: &LogState,
        purpose: Purpose,
    ) -> Result<Arc<Group>, StoreError> {
        let mut groups = self.groups.write();
        let number = groups.len() as u32;
        let layout = spec.layout();
        let geometry = Geometry::new(layout.stride, segment_bytes);
        let writable = !self.options.read_only;
        let config = LogConfig {
            group: number,
            geometry,
            tail_buffers: if writable { TAIL_BUFFERS } else { 0 },
            writer_thread: self.options.background.has_threads(),
            checksum_bytes_max: (self.budget.memory() / 64) as usize,
            incarnation: self.incarnation,
            row_numbers: self.options.row_places,
            poison: Arc::clone(&self.poison),
        };
        let device = log_device(&*self.volume, &log_name(number), state, writable)?;
        let log = Log::open(device, config, state)?;
        let shards = shards_for(self.budget.row_target(), layout.stride);
        let core = Core {
            number,
            spec: *spec,
            segment_bytes,
            layout,
            updater: RowUpdater::new(&spec.optimizer, layout.dtype, layout.dim),
            log,
            log_charged: AtomicU64::new(0),
            scratch_charged: AtomicU64::new(0),
            index_log: Arc::clone(&self.index_log),
            waiting: self.waiting.clone(),
            budget: Arc::clone(&self.budget),
            shards,
            used_bytes: AtomicU64::new(0),
            cap_bytes: AtomicU64::new(u64::MAX),
            spills_seen: AtomicU64::new(0),
        };
        core.charge_log();
        // Rows of other groups leave memory for this group, down to the minimum of each group.
        let rows_min = groups.iter().map(|group| group.core.rows_min()).sum::<u64>() + core.rows_min();
        if let Some((option, given, needed)) = self.budget.too_small_for_rows(rows_min, purpose) {
            return Err(StoreError::MemoryTooSmall {
                option,
                given,
                // More memory means larger write buffers, up to a sixteenth of it.
                needed: needed + needed / 8,
                what: format!(
                    "one more group of tables (rows of {} bytes) with its write buffers",
                    layout.stride
                ),
            });
        }
        let (tickets, workers) = (Arc::clone(&self.tickets), Arc::clone(&self.workers));
        let counters = Arc::clone(&self.counters);
        let group = Arc::new(Group::new(core, tickets, workers, counters, self.options.wait_deadline)?);
        groups.push(Arc::clone(&group));
        Ok(group)
    }

    /// Begin a training step.
    ///
    /// # Errors
    /// [`StoreError::TooManySteps`].
    pub fn ticket(&self) -> Result<Ticket, StoreError> {
        self.ticket_at(None)
    }

    /// As [`Store::ticket`], for a step that learns from events at `event_time`, in seconds since an origin
    /// that the caller chooses.
    ///
    /// # Errors
    /// As [`Store::ticket`], and [`StoreError::Option`] for a time beyond 2^62.
    pub fn ticket_at(&self, event_time: Option<u64>) -> Result<Ticket, StoreError> {
        self.check_writable("a training step")?;
        if let Some(time) = event_time {
            if time > EVENT_TIME_MAX {
                return Err(StoreError::Option {
                    option: "event_time",
                    expected: "between 0 and 2^62 seconds".into(),
                    got: time.to_string(),
                });
            }
            self.events.advance(time);
        }
        let ticket = Ticket::new(&self.tickets, &self.groups, event_time)?;
        if let Some(lookahead) = &*self.lookahead.lock() {
            lookahead.step_begins();
        }
        Ok(ticket)
    }

    /// The latest event time that a step passed, in seconds.
    pub fn event_time(&self) -> Option<u64> {
        self.events.now()
    }

    /// Announce ids that will be looked up soon; returns at once. Returns `false` when some were dropped
    /// because too many announcements or announced ids wait.
    ///
    /// # Errors
    /// [`StoreError::Closed`], ids outside a dense table, or [`StoreError::Poisoned`] after a lookahead
    /// thread panicked.
    pub fn lookahead(&self, ids: &[(&Table, &[u64])], destination: Destination) -> Result<bool, StoreError> {
        self.check_open()?;
        let reason = match destination {
            Destination::Buffer { steps } => {
                Reason::Wanted(self.tickets.issued() + steps.clamp(1, STEPS_MAX))
            }
            Destination::Cache => Reason::Announced,
        };
        let mut by_group: Vec<GroupIds<'_>> = Vec::new();
        for &(table, ids) in ids {
            self.check_table(table)?;
            Group::check_ids(table.state(), ids)?;
            self.counters.lookahead_rows.fetch_add(ids.len() as u64, Relaxed);
            let group = table.group();
            let entry = (table.state().local, ids);
            match by_group.iter_mut().find(|(other, _)| other.core.number == group.core.number) {
                Some((_, entries)) => entries.push(entry),
                None => by_group.push((group, vec![entry])),
            }
        }
        by_group.retain(|(group, _)| !group.all_in_memory());
        let announcements: Vec<_> =
            by_group.iter().map(|(group, ids)| Announcement::new(group, ids, reason)).collect();
        let lookahead = self.lookahead.lock();
        let Some(lookahead) = lookahead.as_ref() else { return Err(StoreError::Closed) };
        if lookahead.is_dead() {
            self.poison.check()?;
        }
        let mut all = true;
        for announcement in announcements {
            if !announcement.is_some_and(|announcement| lookahead.announce(announcement)) {
                self.counters.lookahead_dropped.fetch_add(1, Relaxed);
                all = false;
            }
        }
        Ok(all)
    }

    /// Add a get to the queue.
    pub(crate) fn enqueue(
        &self,
        table: Table,
        lookup: Lookup,
        ticket: &Arc<Ticket>,
    ) -> Result<QueuedGet, StoreError> {
        let mut queue = self.queue.lock();
        if queue.is_none() {
            let started = RequestQueue::start(Arc::clone(&self.tickets), Arc::clone(&self.poison))?;
            *queue = Some(ProcessLocal::new(started));
        }
        let queue = queue.as_ref().expect("started above");
        queue.push(table, lookup, ticket)
    }

    /// Run the next piece of lookahead work, in a store without lookahead threads. Returns whether there was
    /// any.
    pub(crate) fn look_ahead_once(&self) -> bool {
        // Run it outside the lock: reads take long, and other calls may announce meanwhile.
        let turn = self.lookahead.lock().as_ref().and_then(|lookahead| lookahead.turn());
        turn.map(|turn| turn()).is_some()
    }

    /// Number of announcements that lookahead has not processed. Announcements that wait for room are not counted.
    pub fn lookahead_pending(&self) -> u64 {
        self.lookahead.lock().as_ref().map_or(0, |lookahead| lookahead.pending())
    }

    /// Publish all changes so far. Returns the sequence number of the feed's last frame. In a store with
    /// threads, a thread also does this at every interval.
    ///
    /// # Errors
    /// [`StoreError::NoFeed`] of a store opened without a feed; [`StoreError::FeedFailed`], or the cause of a
    /// new failure.
    pub fn publish(&self) -> Result<u64, StoreError> {
        self.check_open()?;
        let Some(feed) = &self.feed else { return Err(StoreError::NoFeed { location: self.location() }) };
        let groups = self.groups.read().clone();
        let published = feed.publish(&groups);
        self.check_open()?;
        published
    }

    /// Where the store is.
    pub fn location(&self) -> String {
        self.volume.location()
    }

    /// The seed that rows are created with: the seed of the first opening.
    pub fn seed(&self) -> u64 {
        self.options.seed
    }

    /// Whether the store refuses changes.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Stop the store's threads, release the volume, and free the memory of rows and indexes. Nothing is
    /// saved: changes since the last checkpoint are lost. Later calls fail with [`StoreError::Closed`];
    /// running calls may fail, too. In a forked child it does nothing, because all of these belong to the
    /// parent.
    pub fn close(&self) {
        if !self.process.is_current() {
            return;
        }
        self.closed.store(true, Relaxed);
        // Take the handles first: dropping one joins its threads, which must not happen under a lock.
        let lookahead = self.lookahead.lock().take();
        let queue = self.queue.lock().take();
        let compaction = self.compaction.lock().take();
        let publisher = self.publisher.lock().take();
        drop((lookahead, queue, compaction, publisher));
        // A running checkpoint still needs the rows. It must not write to the folder after the folder's lock
        // is released.
        let _no_checkpoint = self.saved.lock();
        // A running call may append rows. None must be written after another process may own the folder.
        for group in self.groups.read().iter() {
            group.core.log.close();
        }
        if let Some(feed) = &self.feed {
            feed.close();
        }
        self.index_log.close();
        *self.lock.lock() = None;
        for group in self.groups.read().iter() {
            for (number, cell) in group.shards.iter().enumerate() {
                // Memory that cannot be freed now is freed when the store is dropped.
                let _ = cell.state.write().empty(&group.core, number);
            }
        }
    }

    // ------------------------------------------------------------------ states

    /// Check that this process opened the store. Call this before any method that returns no error: in a
    /// forked child such a method may wait forever for a lock that a thread of the parent held.
    ///
    /// # Errors
    /// [`StoreError::Forked`] in a forked child.
    pub fn check_process(&self) -> Result<(), StoreError> {
        if self.process.is_current() { Ok(()) } else { Err(StoreError::Forked { location: self.location() }) }
    }

    pub(crate) fn check_open(&self) -> Result<(), StoreError> {
        self.check_process()?;
        if self.closed.load(Relaxed) { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Check that a table belongs to this store.
    pub(crate) fn check_table(&self, table: &Table) -> Result<(), StoreError> {
        self.tickets.check_own(&table.group().tickets, || format!("table {:?}", table.name()))
    }

    pub(crate) fn check_writable(&self, operation: &'static str) -> Result<(), StoreError> {
        self.check_open()?;
        if self.options.read_only {
            return Err(StoreError::ReadOnly { operation });
        }
        Ok(self.poison.check()?)
    }

    /// Map the result of an operation. A failed write makes the store refuse all later ones. A read error
    /// becomes [`StoreError::Superseded`] if the writer has replaced the checkpoint, and any result becomes
    /// [`StoreError::Closed`] if the store was closed meanwhile.
    pub(crate) fn settle<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        self.check_open()?;
        result.map_err(|error| {
            if error.poisons() {
                self.poison(&error);
            }
            let unreadable = matches!(error, StoreError::Corrupt { .. } | StoreError::Device(_));
            if self.options.read_only && unreadable && self.is_superseded() {
                return StoreError::Superseded;
            }
            error
        })
    }

    /// Check that the store was not opened at a version, since `what` covers the last checkpoint only.
    ///
    /// # Errors
    /// [`StoreError::Option`].
    pub(crate) fn check_at_last(&self, what: &str) -> Result<(), StoreError> {
        let Some(version) = &self.options.version else { return Ok(()) };
        Err(StoreError::Option {
            option: "version",
            expected: format!(
                "not given for {what}, which covers the last checkpoint: roll back to the version first"
            ),
            got: format!("{version:?}"),
        })
    }

    /// Whether there is a later checkpoint than the one that this store was opened at.
    fn is_superseded(&self) -> bool {
        let manifest = files::load_manifest(&*self.volume);
        manifest
            .is_ok_and(|manifest| manifest.is_some_and(|manifest| manifest.epoch > self.saved.lock().latest))
    }

    /// Make the store refuse all later writes.
    pub(crate) fn poison(&self, cause: &StoreError) {
        self.poison.set(|| match cause {
            StoreError::Full { cause } | StoreError::Poisoned { cause } => cause.clone(),
            cause => cause.to_string(),
        });
    }

    /// Number of calls so far whose work was spread over the threads.
    pub fn jobs_spread(&self) -> u64 {
        self.workers.spread()
    }

    /// The metrics of the store.
    pub fn stats(&self) -> Stats {
        gather_stats(self)
    }

    /// The metrics as Prometheus text.
    pub fn metrics(&self) -> String {
        self.stats().prometheus()
    }
}

/// Bytes of a log segment: large enough for fast writes, small compared with the memory for rows.
pub(crate) fn segment_bytes(row_bytes: u64) -> usize {
    const SEGMENT_MIN: u64 = 16 << 10;
    const SEGMENT_MAX: u64 = 1 << 20;
    let wanted = (row_bytes / TAIL_SHARE / TAIL_BUFFERS as u64).clamp(SEGMENT_MIN, SEGMENT_MAX);
    if wanted.is_power_of_two() { wanted as usize } else { wanted.next_power_of_two() as usize / 2 }
}

/// Check that a table has the given spec, apart from learning rate and staleness bound.
pub(crate) fn check_spec(table: &str, stored: &TableSpec, given: &TableSpec) -> Result<(), StoreError> {
    let mismatch = |field, stored: String, given: String| {
        Err(StoreError::SpecMismatch { table: table.to_owned(), field, stored, given })
    };
    if stored.dim != given.dim {
        return mismatch("dim", stored.dim.to_string(), given.dim.to_string());
    }
    if stored.dtype != given.dtype {
        return mismatch("dtype", stored.dtype.to_string(), given.dtype.to_string());
    }
    if stored.optimizer.with_lr(0.0) != given.optimizer.with_lr(0.0) {
        return mismatch("optimizer", format!("{:?}", stored.optimizer), format!("{:?}", given.optimizer));
    }
    if stored.initializer != given.initializer {
        return mismatch(
            "initializer",
            format!("{:?}", stored.initializer),
            format!("{:?}", given.initializer),
        );
    }
    if stored.ids != given.ids {
        let text = |ids| match ids {
            IdRange::Dense { rows } => format!("[0, {rows})"),
            IdRange::Sparse => "any id".into(),
        };
        return mismatch("ids", text(stored.ids), text(given.ids));
    }
    if stored.admission != given.admission {
        let text = |admission| format!("{admission:?}");
        return mismatch("admission", text(stored.admission), text(given.admission));
    }
    if stored.eviction != given.eviction {
        return mismatch("eviction", format!("{:?}", stored.eviction), format!("{:?}", given.eviction));
    }
    Ok(())
}
