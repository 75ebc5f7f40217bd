//! A namespace of rows: a store whose rows are pooled for hosts, and whose dense tables can be read as blocks.
//!
//! A stage command is checked and entered at once, in the order of its queue, so that a fetch behind it finds its handle.
//! Threads make the result; a fetch that comes before waits without a thread.

mod filled;
mod job;
mod pooling;
mod rate;
mod staging;
mod tables;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rowmill_nvme::{Apply, AsOf, BlockRange, Fetch, Stage, Status, VendorArea};
use rowmill_store::{Store, StoreError};

use self::filled::Filled;
pub use self::filled::FilledOptions;
use self::job::Job;
pub(crate) use self::pooling::PoolingThreads;
use self::rate::Rate;
use self::staging::Staging;
use self::tables::Tables;
use crate::NodeError;
use crate::counters::{Count, Counters};
use crate::fault::Fault;
use crate::session::Reply;

/// What hosts may use of a namespace of rows.
#[derive(Clone, Copy, Debug)]
pub struct RowsLimits {
    /// Bytes of staged results and what they are made from, of all hosts.
    pub staged_bytes_max: u64,
    /// Rows looked up per second, of all hosts; none for no limit.
    pub lookups_per_second: Option<u64>,
    /// A result that is not fetched is dropped after this time, in whole seconds.
    pub staged_time: Duration,
}

impl Default for RowsLimits {
    /// The limits of a subsystem without settings.
    fn default() -> RowsLimits {
        RowsLimits {
            staged_bytes_max: 16 << 20,
            lookups_per_second: None,
            staged_time: Duration::from_mins(1),
        }
    }
}

pub(crate) struct Rows {
    tables: RwLock<Arc<Tables>>,
    staging: Arc<Mutex<Staging<Reply>>>,
    rate: Option<Mutex<Rate>>,
    threads: Arc<PoolingThreads>,
    /// Where fills and frames go; none for a store that does not change.
    filled: Option<Filled>,
}

impl Rows {
    /// The rows of a store that does not change.
    pub(crate) fn of(
        store: Arc<Store>,
        limits: RowsLimits,
        threads: Arc<PoolingThreads>,
    ) -> Result<Rows, StoreError> {
        let tables = Tables::of(store, AsOf { sequence: 0, generation: 1 })?;
        Ok(Self::new(tables, limits, threads, None))
    }

    /// Rows that hosts fill.
    pub(crate) fn filled(
        options: FilledOptions,
        limits: RowsLimits,
        threads: Arc<PoolingThreads>,
    ) -> Result<Rows, NodeError> {
        let (filled, tables) = Filled::open(options)?;
        Ok(Self::new(tables, limits, threads, Some(filled)))
    }

    fn new(tables: Tables, limits: RowsLimits, threads: Arc<PoolingThreads>, filled: Option<Filled>) -> Rows {
        let rate = limits.lookups_per_second.map(|rate| Mutex::new(Rate::new(Instant::now(), rate)));
        Rows {
            tables: RwLock::new(Arc::new(tables)),
            staging: Arc::new(Mutex::new(Staging::new(limits.staged_bytes_max, limits.staged_time))),
            rate,
            threads,
            filled,
        }
    }

    pub(crate) fn area(limits: RowsLimits) -> VendorArea {
        staging::area(limits.staged_bytes_max, limits.staged_time)
    }

    /// Blocks of the namespace.
    pub(crate) fn blocks(&self) -> u64 {
        self.tables().blocks()
    }

    pub(crate) fn tables(&self) -> Arc<Tables> {
        Arc::clone(&self.tables.read())
    }

    pub(crate) fn staged_bytes(&self) -> u64 {
        self.staging.lock().bytes()
    }

    /// Accept a stage command. Does not wait.
    pub(crate) fn stage(
        &self,
        controller: u16,
        stage: &Stage<'_>,
        counters: &Counters,
    ) -> Result<(), Status> {
        let job = Job::new(stage, &self.tables())?;
        let (now, handle, lookups) = (Instant::now(), stage.handle, job.ids() as u64);
        if self.rate.as_ref().is_some_and(|rate| !rate.lock().allows(now, lookups)) {
            return Err(Status::RATE_EXCEEDED);
        }
        self.staging.lock().begin(now, controller, handle, job.bytes())?;
        counters.add(Count::Stages, 1);
        counters.add(Count::Lookups, lookups);
        let (staging, as_of) = (Arc::clone(&self.staging), job.tables.as_of());
        let deliver = Box::new(move |result| {
            let answered = staging.lock().finish(Instant::now(), controller, handle, result, as_of);
            for (reply, fetched) in answered {
                reply.answer(fetched);
            }
        });
        self.threads.run(job, deliver);
        Ok(())
    }

    /// Answer a fetch command, at once or when its result is ready. Does not wait.
    pub(crate) fn fetch(&self, controller: u16, fetch: Fetch, bytes: usize, reply: Reply) {
        let answer = self.staging.lock().fetch(Instant::now(), controller, reply.clone(), fetch, bytes);
        if let Some(answer) = answer {
            reply.answer(answer);
        }
    }

    pub(crate) fn read(&self, blocks: BlockRange) -> Result<Vec<u8>, Fault> {
        self.tables().read(blocks)
    }

    /// Execute an apply command. True, if new tables have taken the place of the old ones.
    pub(crate) fn apply(&self, apply: Apply<'_>) -> Result<bool, Fault> {
        match &self.filled {
            Some(filled) => filled.apply(apply, &self.tables),
            None => Err(Status::WRITE_PROTECTED.into()),
        }
    }

    /// Whether it is time for a checkpoint. Does not wait.
    pub(crate) fn is_save_due(&self) -> bool {
        self.filled.as_ref().is_some_and(Filled::is_save_due)
    }

    /// Make durable what came since the last checkpoint.
    pub(crate) fn save(&self) {
        if let Some(filled) = &self.filled {
            filled.save(&self.tables);
        }
    }

    /// A controller is gone.
    pub(crate) fn remove(&self, controller: u16) {
        self.staging.lock().remove(controller);
    }

    /// Drop staged results that are too old.
    pub(crate) fn expire(&self, now: Instant) {
        self.staging.lock().expire(now);
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rows({:?})", self.tables().as_of())
    }
}
