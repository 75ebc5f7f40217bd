//! The lock order of the engine, outermost first; see docs/decisions/0017-locks-and-threads.md.

use crate::Rank;

/// Declare a rank: its type, its level, and its name in messages.
macro_rules! ranks {
    ($($(#[$doc:meta])* $rank:ident = $level:literal, $name:literal;)*) => {$(
        #[doc = concat!("Rank of ", $name, ".")]
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $rank {}

        impl Rank for $rank {
            const LEVEL: u8 = $level;
            const NAME: &'static str = $name;
        }
    )*};
}

ranks! {
    /// Contents of the last checkpoint; held while the next one is made.
    Saved = 10, "the saved checkpoint";
    /// Handles of the store's threads; each is held while its thread is started, used or ended.
    Lookahead = 20, "the lookahead handle";
    Queue = 21, "the queue handle";
    Compaction = 22, "the compaction handle";
    Publisher = 23, "the publisher handle";
    /// Changes collected by the feed.
    Feed = 30, "the feed";
    /// Held shared while rows change, and exclusively by the cut of a checkpoint and by evictions.
    Changes = 40, "changes";
    /// Tables by name.
    Tables = 50, "the tables of the store";
    /// Groups by number.
    Groups = 60, "the groups of the store";
    /// The rows of one shard; numbered by group, then shard.
    Shard = 70, "shard";
    /// Tables of a group by number.
    GroupTables = 80, "the tables of a group";
    /// Which shard a queued get waits in.
    QueuedGet = 90, "a queued get";
    /// Gets in the queue.
    QueueRequests = 91, "the queue's requests";
    /// The result of a queued get.
    QueuedResult = 92, "the result of a queued get";
    /// Tickets that wait for a row of a shard.
    ShardWaiting = 100, "the waiting tickets of a shard";
    /// All open tickets.
    Tickets = 110, "the open tickets";
    /// The clocks that a ticket holds, and the rows that its calls wait for.
    TicketHolds = 111, "the holds of a ticket";
    TicketWaits = 112, "the waits of a ticket";
    /// Announcements that lookahead has yet to process.
    Announcements = 120, "the announcements";
    /// Counts of looked-up and admitted ids of a table.
    Sketch = 130, "the sketch of a table";
    HotRows = 131, "the hot rows of a table";
    /// The log of index changes.
    IndexLogCurrent = 140, "the current index log";
    IndexLogFrozen = 141, "the frozen index log";
    IndexLogMoves = 142, "the moved rows of the index log";
    IndexLogError = 143, "the error of the index log";
    /// The log of a group.
    LogDiscards = 148, "the discards of a log";
    LogVersions = 149, "the versions of a log";
    LogTail = 150, "the tail of a log";
    LogBuffer = 151, "a buffer of a log's tail";
    LogSegments = 152, "the segments of a log";
    LogReadings = 153, "the readers of a log";
    LogScratch = 154, "the read buffers of a log";
    /// Why the feed, or the store, accepts no more writes.
    FeedFailure = 160, "the failure of the feed";
    Pins = 161, "the pinned checkpoints";
    VolumeLock = 162, "the lock of the folder";
    Poison = 163, "the poison of the store";
    /// Whether a thread of the store should end.
    Stopping = 170, "the end of a thread";
}
