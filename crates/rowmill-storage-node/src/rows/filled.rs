//! The store of a namespace that hosts fill, and keep up to date with a feed.
//!
//! The file `current` in the folder names the folder of the store, `rows-N`. A fill writes `rows-(N+1)`, which takes its place
//! when it is whole.
//!
//! Invariants:
//!
//! - `current` names a whole store, or does not exist. Other `rows-N` are left-overs of a crash, and removed.
//! - Each checkpoint has attached up to which frame of the feed its rows are.
//!
//! On a full disk, the store refuses writes and is still read. Frames are refused until there is space again. Then the store
//! is opened at its last checkpoint, and the follower goes on from there.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rowmill_io::{DeviceError, DirectoryVolume, IoChoice, Volume};
use rowmill_nvme::{Apply, ApplyBegin, AsOf, Status};
use rowmill_store::{FeedChange, FeedEvent, Store, StoreError, StoreOptions, TableSpec};

use super::tables::Tables;
use crate::fault::Fault;
use crate::wire_memory::QUEUE_ENTRIES_MAX;
use crate::{NAMESPACE, NodeError};

/// Names the folder of the store.
const CURRENT: &str = "current";
const CURRENT_NEW: &str = "current.new";
/// The attachment with the sequence number of the last frame, 8 bytes.
const SEQUENCE: &str = "rowmill.storage.sequence";

/// Space that a full disk must have again before its store is opened again: a checkpoint of a few rows needs less.
const SPACE_BYTES: usize = 1 << 20;
/// The file that shows whether there is as much.
const SPACE: &str = "space";

/// How the stores of a namespace are opened.
#[derive(Clone, Debug)]
pub struct FilledOptions {
    /// The folder of the stores.
    pub folder: PathBuf,
    /// Bytes of memory of the store that is served.
    pub memory: u64,
    /// Bytes of memory of the store that is being filled.
    pub fill_memory: u64,
    /// Threads that share the work of a large batch.
    pub threads: usize,
    /// Time between checkpoints, while frames of a feed come.
    pub save_every: Duration,
}

/// A store that is being filled.
struct Filling {
    number: u64,
    store: Arc<Store>,
    /// The number of the next frame.
    next: u64,
}

struct State {
    /// Number of the folder of the store; 0 for none.
    number: u64,
    filling: Option<Filling>,
    /// The last checkpoint has all frames.
    is_saved: bool,
    saved: Instant,
    /// The store refuses writes since the disk was full.
    is_full: bool,
}

pub(crate) struct Filled {
    options: FilledOptions,
    /// Apply commands run one after the other.
    state: Mutex<State>,
}

impl FilledOptions {
    fn store(&self, number: u64) -> PathBuf {
        self.folder.join(format!("rows-{number}"))
    }

    fn open(&self, number: u64) -> Result<Tables, StoreError> {
        if number == 0 {
            return Ok(Tables::none());
        }
        let options = StoreOptions {
            memory: self.memory,
            threads: self.threads,
            create: false,
            ..StoreOptions::default()
        };
        let store = Store::open(&self.store(number), options)?;
        let attached = store.attachment(SEQUENCE)?;
        let sequence = attached.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
        let sequence = sequence.ok_or_else(|| StoreError::Corrupt {
            what: format!("the checkpoint of {} has no sequence number", store.location()),
        })?;
        Tables::of(store, AsOf { sequence, generation: number })
    }

    fn has_space(&self) -> bool {
        let file = self.folder.join(SPACE);
        let written = std::fs::File::create(&file).and_then(|mut file| {
            file.write_all(&vec![0; SPACE_BYTES])?;
            file.sync_all()
        });
        // Without it, nothing was written.
        let _ = std::fs::remove_file(&file);
        written.is_ok()
    }

    fn remove(&self, number: u64) {
        let folder = self.store(number);
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%error, folder = %folder.display(), "cannot remove the folder of an old store");
            }
            _ => (),
        }
    }
}

impl Filling {
    /// Apply the next frame: rows of one table.
    fn apply(&mut self, sequence: u64, payload: &[u8]) -> Result<(), Fault> {
        let event = FeedEvent::parse(sequence, payload).ok_or(Status::MALFORMED)?;
        let FeedChange::Rows { table, dim, ids, weights, .. } = event.change else {
            return Err(Status::MALFORMED.into());
        };
        let table = self.store.open_table(&table).map_err(|_| Status::UNKNOWN_TABLE)?;
        if dim != table.spec().dim as usize {
            return Err(Status::MALFORMED.into());
        }
        table.put(&ids, &weights, None).map_err(failed)?;
        self.next += 1;
        Ok(())
    }
}

impl Filled {
    /// Open the store of a folder. Returns its tables, too.
    pub(crate) fn open(options: FilledOptions) -> Result<(Filled, Tables), NodeError> {
        let number = read_current(&options.folder)?;
        for entry in
            std::fs::read_dir(&options.folder).map_err(|error| folder_error(&options.folder, error))?
        {
            let name = entry.map_err(|error| folder_error(&options.folder, error))?.file_name();
            let found = name.to_str().and_then(|name| name.strip_prefix("rows-")?.parse().ok());
            if let Some(other) = found.filter(|&other| other != number) {
                options.remove(other);
            }
        }
        let tables = options.open(number)?;
        let state = State { number, filling: None, is_saved: true, saved: Instant::now(), is_full: false };
        let state = Mutex::new(state);
        Ok((Filled { options, state }, tables))
    }

    /// Execute an apply command. True, if new tables have taken the place of the old ones.
    pub(crate) fn apply(&self, apply: Apply<'_>, tables: &RwLock<Arc<Tables>>) -> Result<bool, Fault> {
        let state = &mut *self.state.lock();
        match (apply, &mut state.filling) {
            (Apply::Begin(begin), _) => {
                self.begin(state, &begin)?;
                Ok(false)
            }
            // Frames of a feed go on while a fill is under way. Their numbers are far above those of a fill. A host may have
            // sent more frames of the fill behind one that was refused.
            (Apply::Frame { sequence, payload, skipped: 0 }, Some(filling))
                if (filling.next..filling.next + u64::from(QUEUE_ENTRIES_MAX)).contains(&sequence) =>
            {
                if sequence != filling.next {
                    return Err(Status::FILL_CONFLICT.into());
                }
                filling.apply(sequence, payload)?;
                Ok(false)
            }
            (Apply::Frame { .. }, _) if state.is_full => {
                self.reopen(state, tables)?;
                // The next frame follows the checkpoint, and this one does not.
                Err(Status::CAPACITY_EXCEEDED.into())
            }
            (Apply::Frame { sequence, payload, skipped }, filling) => {
                let tables = Arc::clone(&tables.read());
                let follows = sequence.checked_sub(1).and_then(|before| before.checked_sub(skipped));
                if follows != Some(tables.as_of().sequence) || state.number == 0 {
                    let is_filling = filling.is_some();
                    return Err(if is_filling { Status::FILL_CONFLICT } else { Status::FEED_GAP }.into());
                }
                let event = FeedEvent::parse(sequence, payload).ok_or(Status::MALFORMED)?;
                if let Err(refused) = follow(&tables, event.change) {
                    if let Refused::Store(error) = &refused {
                        self.note_full(state, error);
                    }
                    return Err(refused.into());
                }
                tables.advance(sequence);
                state.is_saved = false;
                Ok(false)
            }
            (Apply::End { sequence }, Some(_)) => {
                self.end(state, sequence, tables)?;
                Ok(true)
            }
            (Apply::End { .. }, None) => Err(Status::FILL_CONFLICT.into()),
        }
    }

    /// Begin a fill. An unfinished one is dropped: its host has crashed, or its next frame is refused.
    fn begin(&self, state: &mut State, begin: &ApplyBegin<'_>) -> Result<(), Fault> {
        let number = state.filling.take().map_or(state.number, |filling| {
            filling.store.close();
            self.options.remove(filling.number);
            filling.number
        }) + 1;
        let specs = begin.tables.iter().map(|table| {
            let spec: TableSpec = serde_json::from_str(table.spec).map_err(|error| {
                tracing::error!(%error, table = table.name, "the spec of a table of a fill is malformed");
                Status::MALFORMED
            })?;
            Ok((table.name, spec))
        });
        let specs = specs.collect::<Result<Vec<_>, Status>>()?;
        self.options.remove(number);
        let options = StoreOptions {
            memory: self.options.fill_memory,
            threads: self.options.threads,
            seed: begin.seed,
            ..StoreOptions::default()
        };
        let store = Store::open(&self.options.store(number), options).map_err(failed)?;
        for (name, spec) in specs {
            store.table(name, &spec).map_err(failed)?;
        }
        state.filling = Some(Filling { number, store, next: 0 });
        Ok(())
    }

    fn end(&self, state: &mut State, sequence: u64, tables: &RwLock<Arc<Tables>>) -> Result<(), Fault> {
        let Some(Filling { number, store, .. }) = state.filling.take() else {
            return Err(Status::FILL_CONFLICT.into());
        };
        let saved = store.checkpoint(&[(SEQUENCE, &sequence.to_le_bytes())]);
        store.close();
        drop(store);
        let opened = saved.and_then(|_| self.options.open(number)).map_err(failed)?;
        write_current(&self.options.folder, number).map_err(|error| failed(error.into()))?;
        // Jobs that run still read the old store; its files go when they are done.
        let old = std::mem::replace(&mut *tables.write(), Arc::new(opened));
        // Closing a store takes a while, during which lookups go on.
        drop(old);
        self.options.remove(state.number);
        (state.number, state.is_saved, state.is_full) = (number, true, false);
        tracing::info!(number, sequence, "a fill has replaced the tables");
        Ok(())
    }

    fn note_full(&self, state: &mut State, error: &StoreError) {
        if matches!(error, StoreError::Full { .. }) {
            state.is_full = true;
            let folder = self.options.folder.display();
            tracing::error!(
                %error, %folder,
                "the disk is full: frames of the feed are refused until there is space in the folder; free some, and the node \
                 continues from its last checkpoint"
            );
        }
    }

    /// Open the store again at its last checkpoint, if the disk has space again. Until it is open, lookups fail.
    fn reopen(&self, state: &mut State, tables: &RwLock<Arc<Tables>>) -> Result<(), Fault> {
        if !self.options.has_space() {
            return Ok(());
        }
        if let Some(store) = tables.read().store() {
            store.close();
        }
        let opened = self.options.open(state.number).map_err(failed)?;
        tracing::info!(sequence = opened.as_of().sequence, "the disk has space again: frames are taken");
        *tables.write() = Arc::new(opened);
        (state.is_saved, state.is_full) = (true, false);
        Ok(())
    }

    /// Whether it is time for a checkpoint. Does not wait.
    pub(crate) fn is_save_due(&self) -> bool {
        let state = self.state.try_lock();
        state.is_some_and(|state| {
            !state.is_saved && !state.is_full && state.saved.elapsed() >= self.options.save_every
        })
    }

    /// Make a checkpoint if frames have come since the last one.
    pub(crate) fn save(&self, tables: &RwLock<Arc<Tables>>) {
        let mut state = self.state.lock();
        let tables = Arc::clone(&tables.read());
        let Some(store) = tables.store().filter(|_| !state.is_saved && !state.is_full) else { return };
        let sequence = tables.as_of().sequence;
        state.saved = Instant::now();
        match store.checkpoint(&[(SEQUENCE, &sequence.to_le_bytes())]) {
            Ok(_) => state.is_saved = true,
            Err(error) => {
                tracing::error!(%error, sequence, "the checkpoint of a namespace failed");
                self.note_full(&mut state, &error);
            }
        }
    }
}

/// Why a change of the trainer is not applied.
enum Refused {
    Status(Status),
    Store(StoreError),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Refused {
        Refused::Store(error)
    }
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Fault {
        match refused {
            Refused::Status(status) => status.into(),
            Refused::Store(error) => failed(error),
        }
    }
}

/// Apply a change of the trainer.
fn follow(tables: &Tables, change: FeedChange) -> Result<(), Refused> {
    // A table that the fill did not have: its spec is not in the feed.
    let find = |name: &str| tables.named(name).ok_or(Refused::Status(Status::FEED_GAP));
    match change {
        FeedChange::Rows { table, dim, ids, weights, .. } => {
            let table = find(&table)?;
            if dim != table.spec().dim as usize {
                return Err(Refused::Status(Status::MALFORMED));
            }
            Ok(table.put(&ids, &weights, None)?)
        }
        FeedChange::Deleted { table, ids, .. } => Ok(find(&table)?.delete(&ids).map(drop)?),
        // The rows of a rollback follow as frames of their own.
        _ => Ok(()),
    }
}

fn failed(error: StoreError) -> Fault {
    match error {
        StoreError::Spec { .. } | StoreError::SpecMismatch { .. } | StoreError::NotFinite { .. } => {
            tracing::error!(%error, "an apply command was refused");
            Status::MALFORMED.into()
        }
        error => {
            Fault::of_store(&error, rowmill_nvme::ErrorPlace { namespace: NAMESPACE, ..Default::default() })
        }
    }
}

fn folder_error(folder: &Path, error: std::io::Error) -> NodeError {
    DeviceError::from_io("list", folder.display().to_string(), 0, 0, error).into()
}

/// The number that `current` names; 0 for none.
fn read_current(folder: &Path) -> Result<u64, NodeError> {
    let volume = DirectoryVolume::open(folder, IoChoice::Auto)?;
    let mut text = String::new();
    match volume.open(CURRENT) {
        Ok(mut file) => {
            let read = file.read_to_string(&mut text);
            read.map_err(|error| DeviceError::from_io("read", volume.path(CURRENT), 0, 0, error))?;
        }
        Err(DeviceError::Missing { .. }) => return Ok(0),
        Err(error) => return Err(error.into()),
    }
    let number = text.trim().strip_prefix("rows-").and_then(|number| number.parse().ok());
    number.ok_or_else(|| {
        let what = format!("{} has {text:?} and not the name of a folder", volume.path(CURRENT));
        StoreError::Corrupt { what }.into()
    })
}

fn write_current(folder: &Path, number: u64) -> Result<(), DeviceError> {
    let volume = DirectoryVolume::open(folder, IoChoice::Auto)?;
    let mut file = volume.create(CURRENT_NEW)?;
    writeln!(file, "rows-{number}")
        .map_err(|error| DeviceError::from_io("write", volume.path(CURRENT_NEW), 0, 0, error))?;
    file.sync()?;
    drop(file);
    volume.rename(CURRENT_NEW, CURRENT)?;
    volume.sync()
}
