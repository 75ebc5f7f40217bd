//! Opens a store: chooses the checkpoint, loads its index, and starts the threads of the store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use rowmill_io::{DeviceError, DirectoryVolume, Process, ProcessLocal, Volume};
use rowmill_sync::{Mutex, Poison, Pool, RwLock};

use super::alter::alter;
use super::prepared::settle;
use super::versions::find_version;
use crate::background;
use crate::error::StoreError;
use crate::feed;
use crate::files::{IndexLog, Manifest, Pins, load_version};
use crate::group::Groups;
use crate::lookahead::{self, Lookahead};
use crate::memory::Budget;
use crate::options::StoreOptions;
use crate::shard::FeedBacklog;
use crate::staleness::Tickets;
use crate::store::{Saved, Store};
use crate::threads::Workers;

/// How often a reader retries when the writer replaces the checkpoint while it is being opened.
const OPEN_TRIES: u32 = 32;

impl Store {
    /// Open the store in a folder; create it if there is none and `options.create` is set.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Newer`], [`StoreError::Corrupt`], a locked folder, or a budget
    /// that is too small for the index.
    pub fn open(path: &Path, options: StoreOptions) -> Result<Arc<Self>, StoreError> {
        options.validate()?;
        let missing = || StoreError::Missing { location: path.display().to_string() };
        if path.as_os_str().is_empty() || (path.is_file() && !options.read_only) {
            return Err(StoreError::Option {
                option: "path",
                expected: "a folder for this store alone, existing or to be created".into(),
                got: format!(
                    "\"{}\"{}",
                    path.display(),
                    if path.is_file() { ", which is a file" } else { "" }
                ),
            });
        }
        if !path.is_dir() {
            if !options.create || options.read_only {
                return Err(missing());
            }
            let failed = |source| DeviceError::from_io("create", path.display().to_string(), 0, 0, source);
            std::fs::create_dir_all(path).map_err(failed)?;
        }
        let volume: Arc<dyn Volume> = Arc::new(DirectoryVolume::open(path, options.io)?);
        Self::open_volume(volume, options)
    }

    /// Open the store in a volume; create it if there is none and `options.create` is set.
    ///
    /// # Errors
    /// As [`Store::open`].
    #[allow(clippy::needless_pass_by_value, reason = "the store keeps both")]
    pub fn open_volume(volume: Arc<dyn Volume>, options: StoreOptions) -> Result<Arc<Self>, StoreError> {
        options.validate()?;
        let lock = if options.read_only { None } else { Some(Arc::from(volume.lock()?)) };
        for _ in 0..OPEN_TRIES {
            let manifest = settle(&*volume, options.at, options.read_only)?;
            let epoch = manifest.as_ref().map(|manifest| manifest.epoch);
            let opened = match (&options.version, manifest) {
                (Some(version), Some(latest)) => Self::open_version(&volume, &latest, version, &options),
                (_, manifest) => Self::open_at(&volume, manifest, options.clone()),
            };
            // The files of a checkpoint are removed once it is replaced. A reader that opens it meanwhile
            // retries with the new checkpoint.
            let moved_on = || {
                let now = settle(&*volume, options.at, true).ok().flatten();
                now.map(|manifest| manifest.epoch) != epoch
            };
            if options.read_only && opened.is_err() && moved_on() {
                continue;
            }
            let store = opened?;
            *store.lock.lock() = lock;
            return Ok(store);
        }
        Err(StoreError::Outrun { location: volume.location(), tries: OPEN_TRIES })
    }

    /// Open a version of the store whose last checkpoint is `latest`.
    fn open_version(
        volume: &Arc<dyn Volume>,
        latest: &Manifest,
        version: &str,
        options: &StoreOptions,
    ) -> Result<Arc<Self>, StoreError> {
        let entry = find_version(&**volume, latest, version)?;
        let store = Self::open_at(volume, Some(load_version(&**volume, latest, entry)?), options.clone())?;
        store.saved.lock().latest = latest.epoch;
        Ok(store)
    }

    /// Open the store at a checkpoint without locking the volume.
    pub(crate) fn open_at(
        volume: &Arc<dyn Volume>,
        mut manifest: Option<Manifest>,
        mut options: StoreOptions,
    ) -> Result<Arc<Self>, StoreError> {
        let volume = Arc::clone(volume);
        if manifest.is_none() && (!options.create || options.read_only) {
            return Err(StoreError::Missing { location: volume.location() });
        }
        if let Some(manifest) = &mut manifest {
            alter(manifest, &options.alter)?;
            // Rows created later must get the same initial values as before.
            options.seed = manifest.seed;
        }
        let epoch = manifest.as_ref().map_or(0, |manifest| manifest.epoch) + 1;
        let pool = Pool::new(options.threads).map_err(|error| StoreError::Option {
            option: "threads",
            expected: format!("a number of threads that the system can start ({error})"),
            got: options.threads.to_string(),
        })?;
        let index_log = IndexLog::new(Arc::clone(&volume), (!options.read_only).then_some(epoch))?;
        let budget = Arc::new(Budget::new(options.memory, options.row_memory));
        // One ring per worker, per lookahead thread, and for the calling thread.
        let rings = options.threads + lookahead::THREADS + 1;
        budget.add_fixed((rings * rowmill_io::io_bytes_per_thread(options.io) + IndexLog::bytes()) as u64);
        let saved = Saved::new(epoch, manifest.as_ref());
        let last = manifest.iter().flat_map(|manifest| &manifest.tables).map(|table| table.category.0).max();
        let next_category = last.map_or(0, |category| category + 1);
        let tickets = Arc::new(Tickets::new(volume.location()));
        // A reader must not write.
        let publishes = options.feed.filter(|_| !options.read_only);
        let poison: Arc<Poison> = Arc::default();
        let lookahead = Lookahead::start(options.background.has_threads(), &poison)?;
        let mut store = Self {
            volume,
            budget,
            groups: Groups::default(),
            tables: RwLock::default(),
            tickets,
            workers: Arc::new(Workers::new(pool, options.spread_rows_min)),
            counters: Arc::default(),
            events: Arc::default(),
            index_log: Arc::new(index_log),
            changes: Arc::default(),
            saved: Mutex::new(saved),
            next_category: AtomicU32::new(next_category),
            poison,
            closed: AtomicBool::new(false),
            process: Process::current(),
            lookahead: Mutex::new(Some(ProcessLocal::new(lookahead))),
            queue: Mutex::default(),
            compaction: Mutex::default(),
            feed: None,
            waiting: publishes.map(|feed| Arc::new(FeedBacklog::new(feed.waiting))),
            publisher: Mutex::default(),
            lock: Mutex::default(),
            incarnation: options.background.incarnation(),
            pins: Pins::default(),
            options,
        };
        let mark = manifest.as_ref().map_or(0, |manifest| manifest.feed);
        if let Some(manifest) = manifest {
            store.recover(&manifest)?;
        }
        if let Some(options) = publishes {
            let waiting = store.waiting.as_ref().expect("a store with a feed has a backlog");
            let (tables, incarnation) = (store.tables.read(), store.incarnation);
            let opened = feed::open(&store.volume, &options, waiting, incarnation, &tables, epoch - 1, mark)?;
            drop(tables);
            let feed = Arc::new(opened);
            if store.options.background.has_threads() {
                let (groups, poison) = (Arc::clone(&store.groups), Arc::clone(&store.poison));
                let publisher = feed::start(Arc::clone(&feed), groups, options.interval, poison)?;
                *store.publisher.lock() = Some(ProcessLocal::new(publisher));
            }
            store.feed = Some(feed);
        }
        if !store.options.read_only && store.options.background.has_threads() {
            let (groups, poison) = (Arc::clone(&store.groups), Arc::clone(&store.poison));
            let compaction = background::start_compaction(groups, Arc::clone(&store.budget), poison)?;
            *store.compaction.lock() = Some(ProcessLocal::new(compaction));
        }
        Ok(Arc::new(store))
    }
}
