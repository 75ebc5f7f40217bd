//! The side of the trainer: fills a namespace of a node with the weights of a store, and sends the feed.
//!
//! Some frames are sent before the first of them is answered. The node applies those of a queue in their order, so after one
//! that it refuses it refuses all that follow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_host::{Client, HostError, HostSettings, NvmeUrl, Pending, Rows};
use rowmill_nvme::{Status, TableEntry};
use rowmill_store::{
    Dtype, FeedChange, FeedEvent, FeedReader, StoreError, TableSpec, Volume, WeightsSource, WeightsTarget,
    copy_weights,
};

/// The time that a node has to end a fill: it makes a checkpoint and opens the store.
const END_TIME: Duration = Duration::from_mins(10);
/// Most bytes of ids and weights of a frame, unless one row is larger.
const FRAME_BYTES: usize = 256 << 10;
/// Most frames that are not answered. The node takes 1 MiB of data of one queue at a time.
const IN_FLIGHT_MAX: usize = 8;
/// The wait when the feed has nothing new. The trainer publishes every 100 ms by default.
const FEED_WAIT: Duration = Duration::from_millis(10);
/// The wait before the node is asked again after a lost connection.
const LOST_WAIT: Duration = Duration::from_millis(200);
/// The wait before a frame is sent again to a node whose disk is full.
const FULL_WAIT: Duration = Duration::from_secs(1);
/// How often in a row a follower fills before it gives up.
const FILLS_MAX: u32 = 5;

/// Why a fill or a follower ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The store or its feed cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The node cannot be reached or refuses a command.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The feed does not begin at a checkpoint that can be copied.
    #[error(
        "the feed of {location} does not continue its last checkpoint, after {FILLS_MAX} fills: is it of another run, or \
         shorter than the time between checkpoints? Raise --feed of the training"
    )]
    NoStart {
        /// The store.
        location: String,
    },
}

/// What a fill has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillReport {
    /// Tables.
    pub tables: usize,
    /// Rows.
    pub rows: u64,
    /// Bytes of ids and weights.
    pub bytes: u64,
    /// Up to which frame of the feed the rows are; 0 without a feed.
    pub sequence: u64,
}

/// A namespace, and the time that the node has for one command.
#[derive(Debug)]
struct Target {
    rows: Rows,
    time: Duration,
}

impl Target {
    /// Commands are sent on one queue, one after the other: the node applies them in this order.
    fn open(url: &NvmeUrl, settings: &HostSettings) -> Result<Target, HostError> {
        let time = settings.command_time;
        let settings = HostSettings { io_queues: 1, command_time: END_TIME, ..settings.clone() };
        let rows = Rows::open(Arc::new(Client::connect(url, &settings)?), url)?;
        Ok(Target { rows, time })
    }

    fn soon(&self) -> Instant {
        Instant::now() + self.time
    }

    /// The last frame that the node has applied; 0 for none. One row is read for it, because results say so.
    fn applied(&self) -> Result<u64, HostError> {
        let tables = self.rows.tables()?;
        let Some(entry) = tables.entries().first() else { return Ok(0) };
        let mut row = vec![0_f32; entry.dim as usize];
        self.rows.get(&[(&entry.name, &[0])], &mut row, self.soon())
    }

    /// The number of the connection, which grows with each reconnect.
    fn connection(&self) -> u64 {
        self.rows.client().connection()
    }

    /// A node that was restarted has no fill, so it refuses what was sent over the next connection. That is a lost
    /// connection, too.
    fn fill(
        &self,
        sources: &[WeightsSource],
        replicated: &[String],
        dtype: Option<Dtype>,
    ) -> Result<FillReport, SendError> {
        let connection = self.connection();
        self.try_fill(sources, replicated, dtype).map_err(|error| match error {
            SendError::Host(HostError::Failed { url, command, status: Status::FILL_CONFLICT })
                if self.connection() != connection =>
            {
                let reason = "the node was restarted, or another host has filled it meanwhile".into();
                HostError::Lost { url, command, reason }.into()
            }
            error => error,
        })
    }

    fn try_fill(
        &self,
        sources: &[WeightsSource],
        replicated: &[String],
        dtype: Option<Dtype>,
    ) -> Result<FillReport, SendError> {
        let mut sending =
            Sending { target: self, next: 0, report: FillReport::default(), in_flight: VecDeque::new() };
        let sequence = copy_weights(sources, replicated, dtype, &mut sending)?;
        for frame in sending.in_flight {
            frame.wait()?;
        }
        self.rows.end_fill(sequence, Instant::now() + END_TIME)?;
        Ok(FillReport { sequence, ..sending.report })
    }
}

/// Fill a namespace of rows with the weights of a store, or of the stores of all ranks.
///
/// The new tables take the place of the old ones when they are whole. The tables in `replicated` are copied from the first
/// store, because each rank has all their rows. `dtype` is that of rows on the node; `None` keeps the one of each table.
///
/// # Errors
///
/// See [`SendError`].
pub fn fill(
    sources: &[WeightsSource],
    replicated: &[String],
    url: &NvmeUrl,
    settings: &HostSettings,
    dtype: Option<Dtype>,
) -> Result<FillReport, SendError> {
    Target::open(url, settings)?.fill(sources, replicated, dtype)
}

/// The tables of a namespace, and up to which frame of the feed their rows are.
///
/// # Errors
///
/// See [`SendError`].
pub fn status(url: &NvmeUrl, settings: &HostSettings) -> Result<(Vec<TableEntry>, u64), SendError> {
    let target = Target::open(url, settings)?;
    Ok((target.rows.tables()?.entries().to_vec(), target.applied()?))
}

struct Sending<'a> {
    target: &'a Target,
    next: u64,
    report: FillReport,
    in_flight: VecDeque<Pending>,
}

impl WeightsTarget for Sending<'_> {
    type Error = SendError;

    fn begin(&mut self, seed: u64, tables: &[(String, TableSpec)]) -> Result<(), SendError> {
        let texts: Vec<String> = tables
            .iter()
            .map(|(_, spec)| serde_json::to_string(spec).expect("a spec is plain data"))
            .collect();
        let specs: Vec<_> = tables
            .iter()
            .zip(&texts)
            .map(|((name, _), spec)| rowmill_nvme::TableSpec { name, spec })
            .collect();
        // What a copy that starts over has sent belongs to a fill that this one replaces.
        self.in_flight.clear();
        (self.next, self.report) = (0, FillReport { tables: tables.len(), ..FillReport::default() });
        Ok(self.target.rows.begin_fill(seed, &specs, self.target.soon())?)
    }

    fn rows(&mut self, table: &str, dim: usize, ids: &[u64], weights: &[f32]) -> Result<(), SendError> {
        let at_a_time = (FRAME_BYTES / (8 + 4 * dim)).max(1);
        for (ids, weights) in ids.chunks(at_a_time).zip(weights.chunks(at_a_time * dim)) {
            let (ids, weights) = (ids.to_vec(), weights.to_vec());
            self.report.rows += ids.len() as u64;
            self.report.bytes += (ids.len() * 8 + weights.len() * 4) as u64;
            let change = FeedChange::Rows { table: table.to_owned(), step: 0, dim, ids, weights };
            let payload = FeedEvent { sequence: self.next, published_ns: 0, change }.payload();
            if self.in_flight.len() >= IN_FLIGHT_MAX
                && let Some(first) = self.in_flight.pop_front()
            {
                first.wait()?;
            }
            let sent = self.target.rows.send_frame(self.next, 0, &payload, self.target.soon())?;
            self.in_flight.push_back(sent);
            self.next += 1;
        }
        Ok(())
    }
}

/// What a follower has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Fills, of which the first may be that of an empty namespace.
    pub fills: u64,
    /// Frames that the node has applied.
    pub frames: u64,
    /// Rows written and deleted by them.
    pub rows: u64,
    /// The last frame that the node has applied.
    pub sequence: u64,
    /// When that frame was published, in nanoseconds since 1970; 0 for none.
    pub published_ns: u64,
    /// The node refuses the next frame, because its disk is full or its memory too small. It is sent again each second.
    pub is_refused: bool,
}

/// A frame that was sent.
#[derive(Clone, Copy, Debug)]
struct SentFrame {
    sequence: u64,
    published_ns: u64,
    /// Rows written and deleted.
    rows: u64,
}

/// Keeps a namespace up to date with the feed of a store of one rank. After a crash of any side it goes on from what the
/// node has, and fills again where the feed has a gap.
#[derive(Debug)]
pub struct Follower {
    volume: Arc<dyn Volume>,
    target: Target,
    dtype: Option<Dtype>,
    /// None before the node was asked where to go on.
    reader: Option<FeedReader>,
    /// The last frame that the node had when the reader was opened.
    opened_at: u64,
    /// The number of the connection at that time.
    connection: u64,
    /// The last frame that was sent.
    sent: u64,
    in_flight: VecDeque<(Pending, SentFrame)>,
    fills_in_a_row: u32,
    followed: Followed,
}

impl Follower {
    /// Connect to a namespace.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    pub fn connect(
        volume: Arc<dyn Volume>,
        url: &NvmeUrl,
        settings: &HostSettings,
        dtype: Option<Dtype>,
    ) -> Result<Follower, SendError> {
        let target = Target::open(url, settings)?;
        Ok(Follower {
            volume,
            target,
            dtype,
            reader: None,
            opened_at: 0,
            connection: 0,
            sent: 0,
            in_flight: VecDeque::new(),
            fills_in_a_row: 0,
            followed: Followed::default(),
        })
    }

    /// Send what is published, for about this time. A fill takes as long as it takes.
    ///
    /// # Errors
    ///
    /// See [`SendError`]. A lost connection is no error, nor is a node without space for a frame.
    pub fn run(&mut self, time: Duration) -> Result<Followed, SendError> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            match self.step().or_else(|error| self.close_gap(error)) {
                Err(SendError::Host(HostError::Lost { .. } | HostError::TimedOut { .. })) => {
                    // Whether the last command was executed is not known: ask the node what it has.
                    self.reader = None;
                    std::thread::sleep(LOST_WAIT);
                }
                other => other?,
            }
        }
        Ok(self.followed)
    }

    /// Fill if `error` says that the feed does not continue what the node has. Wait if the node has no space. Else return
    /// the error.
    fn close_gap(&mut self, error: SendError) -> Result<(), SendError> {
        match error {
            SendError::Store(StoreError::FeedGap { .. }) => self.fill(),
            SendError::Host(error) if error.status().is_some_and(is_gap) => {
                self.reader = None;
                // The node may have gone on, because another host has filled it, or it has still applied a frame of a
                // lost connection. Or it was restarted, and is where its last checkpoint is. Otherwise it refuses the
                // first frame after the one that it has, so it lacks a table.
                if self.target.applied()? == self.opened_at && self.target.connection() == self.connection {
                    self.fill()?;
                }
                Ok(())
            }
            SendError::Host(error) if error.status() == Some(Status::CAPACITY_EXCEEDED) => {
                (self.reader, self.followed.is_refused) = (None, true);
                std::thread::sleep(FULL_WAIT);
                Ok(())
            }
            error => Err(error),
        }
    }

    fn step(&mut self) -> Result<(), SendError> {
        let Some(reader) = &mut self.reader else {
            self.in_flight.clear();
            self.connection = self.target.connection();
            self.opened_at = self.target.applied()?;
            (self.sent, self.followed.sequence) = (self.opened_at, self.opened_at);
            self.reader = Some(FeedReader::open(&self.volume, self.opened_at)?);
            return Ok(());
        };
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return self.settle();
        }
        let Some(event) = reader.poll()? else {
            if self.in_flight.is_empty() {
                std::thread::sleep(FEED_WAIT);
            }
            return self.settle();
        };
        let rows = match &event.change {
            FeedChange::Rows { ids, .. } | FeedChange::Deleted { ids, .. } => ids.len() as u64,
            _ => 0,
        };
        let skipped = event.sequence - self.sent - 1;
        let payload = event.payload();
        let pending = self.target.rows.send_frame(event.sequence, skipped, &payload, self.target.soon())?;
        self.sent = event.sequence;
        let frame = SentFrame { sequence: event.sequence, published_ns: event.published_ns, rows };
        self.in_flight.push_back((pending, frame));
        Ok(())
    }

    /// Wait for the answer to the first frame that is not answered, if there is one.
    fn settle(&mut self) -> Result<(), SendError> {
        let Some((pending, frame)) = self.in_flight.pop_front() else { return Ok(()) };
        pending.wait()?;
        self.fills_in_a_row = 0;
        self.followed.frames += 1;
        self.followed.rows += frame.rows;
        self.followed.sequence = frame.sequence;
        self.followed.published_ns = frame.published_ns;
        self.followed.is_refused = false;
        Ok(())
    }

    fn fill(&mut self) -> Result<(), SendError> {
        if self.fills_in_a_row >= FILLS_MAX {
            return Err(SendError::NoStart { location: self.volume.location() });
        }
        self.reader = None;
        self.in_flight.clear();
        self.target.fill(&[(Arc::clone(&self.volume), None)], &[], self.dtype)?;
        self.fills_in_a_row += 1;
        self.followed.fills += 1;
        self.followed.is_refused = false;
        Ok(())
    }
}

/// The node does not take the next frame of the feed.
fn is_gap(status: Status) -> bool {
    matches!(status, Status::FEED_GAP | Status::FILL_CONFLICT)
}
