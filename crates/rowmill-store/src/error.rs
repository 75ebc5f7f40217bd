//! Errors of a store, with the values that a user needs to act on them.

use std::time::Duration;

use rowmill_io::DeviceError;
use rowmill_log::{LogError, PoisonCause};
use rowmill_rows::{BagError, RowKey, SpecError};
use rowmill_sync::Poisoned;

/// Every failure of a store operation. Unless a variant says otherwise, the operation changed nothing and the
/// store stays usable.
///
/// After [`StoreError::Full`], [`StoreError::Poisoned`], [`StoreError::Device`], [`StoreError::Corrupt`] and
/// [`StoreError::NoPlaces`] an update may have changed some of its rows in memory. The last checkpoint is
/// unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no store at the location.
    #[error("no store at {location}: check the path, or create the store by opening it for writing")]
    Missing {
        /// The location that was searched.
        location: String,
    },
    /// A restore is copying a checkpoint into the folder, or one started and did not finish.
    #[error(
        "{location} holds an unfinished restore, which may still be running: run the same restore again, \
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
        "{location} has checkpoint {prepared} prepared and not committed, besides its last one, {committed}: choose one \
         with at={committed} or at={prepared}; if it is a part of a checkpoint of many ranks, open that checkpoint \
         instead"
    )]
    InDoubt {
        /// The store.
        location: String,
        /// Number of the last checkpoint; 0 for none.
        committed: u64,
        /// Number of the prepared checkpoint.
        prepared: u64,
    },
    /// The store has no checkpoint with the number that it was opened at.
    #[error(
        "{location} has checkpoint {there}, not {at}: open the store at its last checkpoint or at a prepared one"
    )]
    NotAt {
        /// The store.
        location: String,
        /// Number of the checkpoint asked for.
        at: u64,
        /// Numbers of the existing checkpoints.
        there: String,
    },
    /// The store was written by a newer build.
    #[error(
        "{location} has format version {found}, this build reads up to {supported}: upgrade rowmill to open it"
    )]
    Newer {
        /// The store.
        location: String,
        /// Format version of the store.
        found: u32,
        /// Newest version this build reads.
        supported: u32,
    },
    /// Bytes on the device do not match their checksum. They were not returned.
    #[error(
        "{what}: the stored bytes are damaged; restore the folder from a copy, or run rowmill fsck, whose --repair keeps what is intact"
    )]
    Corrupt {
        /// Which file or block is damaged, and which check found it.
        what: String,
    },
    /// A device or file operation failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device has no space left. The store refuses writes from now on; reads continue.
    #[error("{cause}; the store refuses writes until it is reopened at its last checkpoint")]
    Full {
        /// The write that found no space.
        cause: String,
    },
    /// An earlier write or sync failed. The store refuses writes; rows in healthy blocks can be read.
    #[error(
        "the store refuses writes since an earlier failure ({cause}); fix the cause and reopen the store, \
         which then starts from its last checkpoint"
    )]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// A write to a store opened read-only.
    #[error("{operation} needs a writable store; this store was opened read-only")]
    ReadOnly {
        /// The refused operation.
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
    /// The memory budget is too small for data that must stay in memory.
    #[error("{option}={given} bytes is too small: {what} needs at least {needed} bytes")]
    MemoryTooSmall {
        /// `memory` or `row_memory`.
        option: &'static str,
        /// The budget.
        given: u64,
        /// The smallest sufficient value.
        needed: u64,
        /// Which data needs it.
        what: String,
    },
    /// A table is opened with another spec than it was created with.
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
    /// A table spec is invalid.
    #[error("table {table:?}: {source}")]
    Spec {
        /// The table.
        table: String,
        /// Which value is invalid.
        source: SpecError,
    },
    /// The operating system refused to start a thread.
    #[error(
        "the system refused to start thread {name}: {source}; raise the limit on threads or open fewer stores"
    )]
    Thread {
        /// Name of the thread.
        name: String,
        /// The reason of the operating system.
        source: std::io::Error,
    },
    /// A group has used up its row places, the 31-bit numbers of rows on the device. Rows can still be read,
    /// and rows in memory can be changed and saved.
    #[error(
        "group {group} has used {used} of {limit} row places and reserves the rest for checkpoints: delete or evict rows \
         and make a checkpoint, or give some tables another dim or optimizer, which moves them to another group \
         (rowmill inspect lists the tables of a group)"
    )]
    NoPlaces {
        /// The group.
        group: u32,
        /// Places in use: current rows, and old versions that are not cleaned yet or that the last checkpoint
        /// names.
        used: u64,
        /// All places of the group.
        limit: u64,
    },
    /// The store has no table with this name.
    #[error("the store has no table {name:?}; it has: {known}")]
    UnknownTable {
        /// The name asked for.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// An id is outside the id range of its table.
    #[error("id {id} is outside table {table:?}, whose ids are in [0, {rows})")]
    IdRange {
        /// The table.
        table: String,
        /// The id.
        id: i64,
        /// Number of ids of the table.
        rows: u64,
    },
    /// The length of an argument does not fit the other arguments.
    #[error("{argument} has {got} values, expected {expected} ({why})")]
    Length {
        /// Name of the argument.
        argument: &'static str,
        /// Values given.
        got: usize,
        /// Values needed.
        expected: usize,
        /// Why this number is expected.
        why: String,
    },
    /// Bags that are invalid.
    #[error("table {table:?}: {source}")]
    Bag {
        /// The table.
        table: String,
        /// What is wrong with them.
        source: BagError,
    },
    /// Tables of different groups in one pooled lookup.
    #[error(
        "tables {first:?} and {second:?} have different specs and cannot share one lookup: use two lookups"
    )]
    MixedGroups {
        /// A table.
        first: String,
        /// A table of another group.
        second: String,
    },
    /// Features of one table have different learning rates in one backward. No row was changed.
    #[error(
        "features of table {table:?} have different learning rates, {first} and {second}: give all features of a table \
         one rate, or look them up in separate calls"
    )]
    MixedRates {
        /// The table.
        table: String,
        /// Learning rate of its first feature.
        first: f32,
        /// The different learning rate.
        second: f32,
    },
    /// A ticket, table or lookup belongs to another store.
    #[error(
        "{what} belongs to another store, in {other}, and not to the store in {location}: use one that this store \
         returned (a store that was closed and reopened is another store)"
    )]
    OtherStore {
        /// The ticket, table or lookup.
        what: String,
        /// Location of the store that it belongs to.
        other: String,
        /// Location of the store that was called.
        location: String,
    },
    /// Features of one table have different padding ids in one lookup.
    #[error("features of table {table:?} in one lookup must share one padding id: use two lookups")]
    MixedPadding {
        /// The table.
        table: String,
    },
    /// A gradient, value or learning rate is NaN or infinite. No row was changed.
    #[error(
        "{argument} of table {table:?} is {value} at position {position}, but must be finite; no row was changed"
    )]
    NotFinite {
        /// `gradients`, `values` or `lr`.
        argument: &'static str,
        /// The table.
        table: String,
        /// The first value that is not finite.
        value: f32,
        /// Its position in the argument.
        position: usize,
    },
    /// A row stayed beyond its staleness bound until the deadline passed.
    #[error(
        "waited {waited:?} for {key} of table {table:?}, which has {outstanding} outstanding gets (staleness bound \
         {bound}), held by {holders}; finish or drop those steps, or raise the bound"
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
        /// Tickets that hold the row, with their ages.
        holders: String,
    },
    /// Two steps wait for each other's rows. This step is the younger and gives way.
    #[error(
        "step {ticket} and another step wait for each other's rows (here {key}), and this younger step gives way: \
         drop it and run it again, or fetch all tables of a step in one call"
    )]
    StepConflict {
        /// The ticket of the step that gave way.
        ticket: u64,
        /// The row it waited for.
        key: RowKey,
    },
    /// The step of a queued get ended before the get completed.
    #[error("step {ticket} is over: collect its queued gets before its ticket is released")]
    StepOver {
        /// The ticket of that step.
        ticket: u64,
    },
    /// The queue of gets has reached its limit of gets or of bytes.
    #[error(
        "the get of {rows} rows of table {table:?} was not queued: {gets} gets of {bytes} bytes wait or are not yet \
         collected, the limits are {gets_max} gets and {bytes_max} bytes: collect or drop queued gets first, or get \
         fewer rows at once"
    )]
    QueueFull {
        /// The table.
        table: String,
        /// Rows of the get that was refused.
        rows: usize,
        /// Gets that wait or are not collected yet.
        gets: u64,
        /// The limit on gets.
        gets_max: u64,
        /// Bytes that these gets use.
        bytes: u64,
        /// The limit on bytes: a share of the memory budget.
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
    /// The writer replaced the checkpoint every time a reader tried to open it.
    #[error(
        "opening {location} read-only was tried {tries} times, and each time the writer replaced the checkpoint: \
         open it again, or let the writer make checkpoints less often"
    )]
    Outrun {
        /// The store.
        location: String,
        /// Number of tries.
        tries: u32,
    },
    /// The limit on open steps is reached.
    #[error("{open} steps are open and the limit is {limit}: finish or drop steps before starting more")]
    TooManySteps {
        /// Open tickets.
        open: usize,
        /// The bound on open tickets.
        limit: usize,
    },
    /// A step would hold the clocks of more rows than the limit.
    #[error(
        "step {ticket} has read {held} rows that it has not updated, and reads {wanted} more, but the limit is {limit} \
         rows per step: update or release rows first, or use smaller batches"
    )]
    TooManyRows {
        /// Number of the ticket.
        ticket: u64,
        /// Rows it holds.
        held: usize,
        /// Rows of the call that it does not hold yet.
        wanted: usize,
        /// The limit on rows that one step holds.
        limit: usize,
    },
    /// The eviction rule of a table needs event times, and no step has passed one.
    #[error(
        "table {table:?} evicts rows by event time, but no step has an event time: begin steps with an event time"
    )]
    NoEventTime {
        /// The table.
        table: String,
    },
    /// An option is outside its range.
    #[error("{option} must be {expected}, got {got}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// The allowed values.
        expected: String,
        /// The value given.
        got: String,
    },
    /// The changes since a checkpoint are no longer kept.
    #[error(
        "the changes since checkpoint {since} are not kept any more, the oldest available are the changes \
         since checkpoint {oldest}: copy the whole store once (since=0), then ask more often or set a larger history"
    )]
    ChangesGone {
        /// The checkpoint asked for.
        since: u64,
        /// The oldest checkpoint with changes that are still kept.
        oldest: u64,
    },
    /// The store has no feed.
    #[error("there is no feed in {location}: open the store for writing with a feed to publish its changes")]
    NoFeed {
        /// The store.
        location: String,
    },
    /// The feed no longer has the position that a follower would read next: it fell too far behind, or the
    /// feed restarted.
    #[error("{what}: start again with a copy of the last checkpoint and follow from there")]
    FeedGap {
        /// The position that was looked for, and the positions that exist.
        what: String,
    },
    /// The feed could not be written, or not fast enough. The store continues without it.
    #[error(
        "the feed publishes nothing until the next checkpoint, from which followers start again: {cause}"
    )]
    FeedFailed {
        /// The first failure.
        cause: String,
    },
    /// The checkpoint that a reader uses was replaced and its space reused.
    #[error("the checkpoint that this reader opened was replaced by a newer one: open the store again")]
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
