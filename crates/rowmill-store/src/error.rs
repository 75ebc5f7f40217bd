//! What can go wrong in a store, in terms its user can act on.

use std::time::Duration;

use rowmill_io::DeviceError;
use rowmill_log::{LogError, PoisonCause};
use rowmill_rows::{BagError, RowKey, SpecError};
use rowmill_sync::Poisoned;

/// Every failure of a store operation. Unless a variant says otherwise the operation changed nothing
/// and the store stays usable. After [`StoreError::Full`], [`StoreError::Poisoned`], [`StoreError::Device`],
/// [`StoreError::Corrupt`] and [`StoreError::NoPlaces`] an update may have changed some of its rows in memory; the
/// last checkpoint is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no store where one was expected.
    #[error("no store at {location}: check the path, or open it for writing and let it be created")]
    Missing {
        /// Where it was looked for.
        location: String,
    },
    /// A checkpoint from elsewhere is being put into the folder, or was and did not finish.
    #[error(
        "{location} is being filled by a restore, or was by one that did not finish: run the same restore again, \
         or remove the folder"
    )]
    Restoring {
        /// The folder.
        location: String,
    },
    /// There is no checkpoint yet.
    #[error("the store in {location} has no checkpoint yet: make one first")]
    NoCheckpoint {
        /// The store.
        location: String,
    },
    /// A checkpoint was prepared and not committed.
    #[error(
        "{location} has checkpoint {prepared} prepared and not committed, beside its last one, {committed}: say which \
         of them holds, with at={committed} or at={prepared} when opening it; if it is a part of a checkpoint of many \
         ranks, open that"
    )]
    InDoubt {
        /// The store.
        location: String,
        /// The last checkpoint; 0 for none.
        committed: u64,
        /// The one that waits.
        prepared: u64,
    },
    /// The store has another checkpoint than the one it was to be opened at.
    #[error(
        "{location} has checkpoint {there}, not {at}: a store opens at its last one, or at one that was prepared"
    )]
    NotAt {
        /// The store.
        location: String,
        /// The checkpoint asked for.
        at: u64,
        /// Those that are there.
        there: String,
    },
    /// The store was written by a newer build.
    #[error(
        "{location} has format version {found}, this build reads up to {supported}: upgrade rowmill to open it"
    )]
    Newer {
        /// The store.
        location: String,
        /// Its version.
        found: u32,
        /// Newest version this build reads.
        supported: u32,
    },
    /// Bytes on the device do not match their checksum. They were not returned.
    #[error("{what}: the stored bytes are damaged; restore the folder from a copy, or remove it")]
    Corrupt {
        /// What was damaged and how that was seen.
        what: String,
    },
    /// A device or file operation failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device has no space left. Writes are refused from now on, reads go on.
    #[error("{cause}; the store refuses writes until it is reopened, then it stands at its last checkpoint")]
    Full {
        /// Which write found no space.
        cause: String,
    },
    /// An earlier write or sync failed; writes are refused, reads of healthy rows go on.
    #[error(
        "the store refuses writes since an earlier failure ({cause}); fix the cause and reopen it: it will \
         stand at its last checkpoint"
    )]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// A write to a store opened read-only.
    #[error("{operation} needs a writable store, this one was opened read-only")]
    ReadOnly {
        /// What was tried.
        operation: &'static str,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The store was opened by a process that this one was forked from.
    #[error(
        "the store in {location} was opened before this process was forked (a DataLoader worker, or multiprocessing \
         with fork), and a forked child cannot use it: open it again here, read-only"
    )]
    Forked {
        /// The store.
        location: String,
    },
    /// The memory budget cannot hold what must be in memory.
    #[error("{option}={given} bytes is too small: {what} needs at least {needed} bytes")]
    MemoryTooSmall {
        /// `memory` or `row_memory`.
        option: &'static str,
        /// The budget.
        given: u64,
        /// The least that would do.
        needed: u64,
        /// What needs it.
        what: String,
    },
    /// A table is opened with a spec other than the one it was made with.
    #[error(
        "table {table:?} has {field} {stored}, not {given}: open it with the stored value, or use another name"
    )]
    SpecMismatch {
        /// The table.
        table: String,
        /// The field that differs.
        field: &'static str,
        /// Value in the store.
        stored: String,
        /// Value given.
        given: String,
    },
    /// A spec that no table can have.
    #[error("table {table:?}: {source}")]
    Spec {
        /// The table.
        table: String,
        /// What is wrong.
        source: SpecError,
    },
    /// The system refused to start a thread.
    #[error(
        "the system refused to start thread {name}: {source}; raise its limit of threads or open fewer stores"
    )]
    Thread {
        /// Name of the thread.
        name: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A group has used up its row places, the 31-bit numbers of rows on the device. Rows can still be read, and rows in
    /// memory changed and saved.
    #[error(
        "group {group} has used {used} of {limit} row places and keeps the rest for checkpoints: delete or evict rows \
         and make a checkpoint, or give some tables another dim or optimizer, which puts them into another group \
         (rowmill inspect lists the tables of a group)"
    )]
    NoPlaces {
        /// The group.
        group: u32,
        /// Places of current rows, and of old versions that are not cleaned yet or belong to the last checkpoint.
        used: u64,
        /// All places of the group.
        limit: u64,
    },
    /// A table that does not exist.
    #[error("no table {name:?} in this store; it has: {known}")]
    UnknownTable {
        /// The name asked for.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// An id outside a dense table.
    #[error("id {id} is outside table {table:?}, which holds ids 0..{rows}")]
    IdRange {
        /// The table.
        table: String,
        /// The id.
        id: i64,
        /// Number of ids of the table.
        rows: u64,
    },
    /// An argument whose length does not fit the others.
    #[error("{argument} has {got} values, expected {expected} ({why})")]
    Length {
        /// Name of the argument.
        argument: &'static str,
        /// Values given.
        got: usize,
        /// Values needed.
        expected: usize,
        /// Where the number comes from.
        why: String,
    },
    /// Bags that cannot be pooled.
    #[error("table {table:?}: {source}")]
    Bag {
        /// The table.
        table: String,
        /// What is wrong.
        source: BagError,
    },
    /// Tables of different groups in one fused call.
    #[error("tables {first:?} and {second:?} have different specs and cannot share one lookup")]
    MixedGroups {
        /// A table.
        first: String,
        /// A table of another group.
        second: String,
    },
    /// Features of one table in one backward with different learning rates. No row was changed.
    #[error(
        "features of table {table:?} have different learning rates, {first} and {second}: give all features of a table \
         one rate, or look them up in separate calls"
    )]
    MixedRates {
        /// The table.
        table: String,
        /// Rate of its first feature.
        first: f32,
        /// Another one.
        second: f32,
    },
    /// A ticket, table or lookup of another store.
    #[error(
        "{what} belongs to another store, in {other}, and not to this one, in {location}: use the one that this store \
         gave out (a store that was closed and opened again is another one)"
    )]
    OtherStore {
        /// The ticket, table or lookup.
        what: String,
        /// Where its store is.
        other: String,
        /// Where the store is that was asked.
        location: String,
    },
    /// Features of one table in one call with different padding ids.
    #[error("features of table {table:?} in one lookup must share one padding id: use two lookups")]
    MixedPadding {
        /// The table.
        table: String,
    },
    /// A gradient, value or rate that is not a finite number. No row was changed.
    #[error(
        "{argument} of table {table:?} is {value} at position {position}: not a finite number; no row was changed"
    )]
    NotFinite {
        /// `gradients`, `values` or `lr`.
        argument: &'static str,
        /// The table.
        table: String,
        /// The first offending value.
        value: f32,
        /// Its position in the argument.
        position: usize,
    },
    /// A row stayed beyond its staleness bound until the deadline.
    #[error(
        "waited {waited:?} for {key} of table {table:?}: {outstanding} outstanding gets, staleness bound \
         {bound}, held by {holders}; finish or drop those steps, or raise the bound"
    )]
    StalenessTimeout {
        /// The row.
        key: RowKey,
        /// Its table.
        table: String,
        /// Outstanding gets of the row.
        outstanding: u32,
        /// The bound.
        bound: u8,
        /// Time waited.
        waited: Duration,
        /// Tickets that hold the row, with their age.
        holders: String,
    },
    /// Two steps wait for rows of each other; this one, the younger, gives way.
    #[error(
        "step {ticket} and another step wait for rows of each other (here {key}); this younger step gives way: \
         drop it and run it again, or fetch all tables of a step in one call"
    )]
    StepConflict {
        /// The ticket that gave way.
        ticket: u64,
        /// The row it waited for.
        key: RowKey,
    },
    /// The step of a queued get ended before the get could go on.
    #[error("step {ticket} is over: collect its queued gets before its ticket is released")]
    StepOver {
        /// The ticket that was dropped.
        ticket: u64,
    },
    /// The queue of gets holds as many gets, or as many bytes of them, as it may.
    #[error(
        "the get of {rows} rows of table {table:?} was not queued: {gets} gets of {bytes} bytes wait or were not \
         collected, the limits are {gets_max} gets and {bytes_max} bytes; collect or drop queued gets first, or get \
         fewer rows at once"
    )]
    QueueFull {
        /// The table.
        table: String,
        /// Rows of the get that was refused.
        rows: usize,
        /// Gets that wait or whose rows were not collected.
        gets: u64,
        /// The bound on them.
        gets_max: u64,
        /// Bytes that they take.
        bytes: u64,
        /// The bound on these: a share of the memory budget.
        bytes_max: u64,
    },
    /// A queued get was not served within the deadline of the store.
    #[error(
        "a queued get of {rows} rows of table {table:?} was not served within {waited:?}: the gets before it or the \
         device took too long; finish or drop earlier steps, or raise the store's wait deadline"
    )]
    QueueTimeout {
        /// The table.
        table: String,
        /// Rows asked for.
        rows: usize,
        /// Time waited.
        waited: Duration,
    },
    /// A reader found a newer checkpoint whenever it had begun to open one.
    #[error(
        "{location} was opened read-only {tries} times, and each time the writer replaced the checkpoint meanwhile: \
         open it again, or have the writer make checkpoints less often"
    )]
    Outrun {
        /// The store.
        location: String,
        /// How often it was tried.
        tries: u32,
    },
    /// More steps are open than can be.
    #[error("{open} steps are open, the limit is {limit}: finish or drop steps before starting more")]
    TooManySteps {
        /// Open tickets.
        open: usize,
        /// The bound on open tickets.
        limit: usize,
    },
    /// A step would hold the clocks of more rows than it can.
    #[error(
        "step {ticket} holds the clocks of {held} rows and asks for {wanted} more, the limit is {limit} rows for each \
         step: update or release rows before asking for more, or use smaller batches"
    )]
    TooManyRows {
        /// Number of the ticket.
        ticket: u64,
        /// Rows it holds.
        held: usize,
        /// Rows of the call that it does not hold.
        wanted: usize,
        /// The bound on rows that a step holds.
        limit: usize,
    },
    /// Rows that live by event time, and no event time.
    #[error(
        "rows of table {table:?} live by event time, and no step has said one: begin steps with an event time"
    )]
    NoEventTime {
        /// The table.
        table: String,
    },
    /// An option outside its range.
    #[error("{option} must be {expected}, got {got}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What it must be.
        expected: String,
        /// What it was.
        got: String,
    },
    /// The changes since a checkpoint are not kept any more.
    #[error(
        "the changes since checkpoint {since} are not kept any more, the oldest that can be asked for are those \
         since {oldest}: copy the whole store once (since=0), then ask more often or give the store a larger history"
    )]
    ChangesGone {
        /// The checkpoint asked for.
        since: u64,
        /// The oldest checkpoint that can be.
        oldest: u64,
    },
    /// There is no feed.
    #[error(
        "there is no feed in {location}: open the store for writing with a feed, then it publishes what changes"
    )]
    NoFeed {
        /// The store.
        location: String,
    },
    /// What a follower would read next is not there: it fell too far behind, or the feed began anew.
    #[error("{what}: start again with a copy of the last checkpoint, and follow from there")]
    FeedGap {
        /// What was looked for, and what there is.
        what: String,
    },
    /// The feed could not be written, or not fast enough; the store works without it.
    #[error("nothing is published until the next checkpoint, from which followers start again: {cause}")]
    FeedFailed {
        /// The first failure.
        cause: String,
    },
    /// A reader's checkpoint has been replaced and its space reused.
    #[error("the checkpoint this reader stands on was replaced by a newer one; open the store again")]
    Superseded,
}

impl StoreError {
    /// Whether the store must refuse writes after this.
    pub(crate) fn poisons(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Poisoned { .. })
    }
}

impl From<Poisoned> for StoreError {
    fn from(Poisoned { cause }: Poisoned) -> Self {
        Self::Poisoned { cause }
    }
}

impl From<LogError> for StoreError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Poisoned { cause, .. } => match &*cause {
                PoisonCause::Device(DeviceError::Full { .. }) => Self::Full { cause: cause.to_string() },
                PoisonCause::Closed => Self::Closed,
                PoisonCause::Device(_) | PoisonCause::Panic(_) => Self::Poisoned { cause: cause.to_string() },
            },
            LogError::Thread { name, source } => {
                Self::Thread { name, source: std::io::Error::new(source.kind(), source.to_string()) }
            }
            LogError::Full { group, used, limit } => Self::NoPlaces { group, used, limit },
            LogError::Corrupt { .. } | LogError::Moved { .. } | LogError::BadState { .. } => {
                Self::Corrupt { what: error.to_string() }
            }
            LogError::Read { ref cause, .. } => match &**cause {
                DeviceError::Io { operation, name, offset, source } => Self::Device(DeviceError::Io {
                    operation,
                    name: name.clone(),
                    offset: *offset,
                    source: std::io::Error::new(source.kind(), source.to_string()),
                }),
                _ => Self::Corrupt { what: error.to_string() },
            },
            LogError::ReadOnly { .. } => Self::ReadOnly { operation: "writing rows" },
        }
    }
}
