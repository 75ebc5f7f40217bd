//! One subsystem of a node: what it serves, and to which hosts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::RwLock;
use rowmill_io::{Device, Volume, VolumeLock};
use rowmill_nvme::{
    Answer, Connected, Content, ErrorPlace, Hosts, IoCommand, Key, Namespace, Nqn, Request, Status, Subsystem,
};
use rowmill_store::Store;

use crate::counters::{Count, Counters};
use crate::fault::Fault;
use crate::rows::{FilledOptions, PoolingThreads, Rows, RowsLimits};
use crate::session::Reply;
use crate::wire_memory::QUEUE_ENTRIES_MAX;
use crate::{BLOCK_SHIFT, Blocks, Identity, NAMESPACE, NodeError};

/// The device of the blocks, in the folder of a subsystem.
const DEVICE: &str = "blocks";
/// Most I/O queues of one host.
const IO_QUEUES_MAX: u16 = 16;

/// A subsystem to serve: a namespace in a folder.
#[derive(Clone, Debug)]
pub struct Export<'a> {
    /// The folder of the data and of the names that hosts know it by.
    pub volume: &'a dyn Volume,
    /// The content of the namespace.
    pub content: ExportContent,
    /// The hosts that may connect.
    pub hosts: Hosts,
    /// The key that the node proves to hosts that ask for it.
    pub key: Option<Key>,
}

/// What a namespace holds.
#[derive(Clone, Debug)]
pub enum ExportContent {
    /// This many blocks of 4 KiB.
    Blocks(u64),
    /// All blocks of a disk.
    Disk(Arc<dyn Device>),
    /// The rows of a store that is open read-only.
    Store(Arc<Store>, RowsLimits),
    /// Rows that hosts fill.
    Filled(FilledOptions, RowsLimits),
}

#[derive(Debug)]
enum Data {
    Blocks(Blocks),
    Rows(Rows),
}

/// A subsystem being served.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) name: Nqn,
    subsystem: RwLock<Arc<Subsystem>>,
    data: Data,
    /// A fill has replaced the tables, and hosts do not know it yet.
    has_new_tables: AtomicBool,
    pub(crate) counters: Counters,
    /// No other node may write to the folder.
    _lock: Box<dyn VolumeLock>,
}

impl Served {
    pub(crate) fn open(export: Export<'_>, threads: &Arc<PoolingThreads>) -> Result<Served, NodeError> {
        let lock = export.volume.lock()?;
        let identity = Identity::load(export.volume)?;
        let threads = Arc::clone(threads);
        let of_rows = |rows: Rows, limits| {
            let blocks = rows.blocks();
            (Data::Rows(rows), Some(Rows::area(limits)), blocks)
        };
        let (data, area, blocks) = match export.content {
            ExportContent::Blocks(blocks) => {
                (Data::Blocks(Blocks::new(export.volume.device(DEVICE, true)?)), None, blocks)
            }
            ExportContent::Disk(disk) => {
                let blocks = disk.bytes() >> BLOCK_SHIFT;
                (Data::Blocks(Blocks::new(disk)), None, blocks)
            }
            ExportContent::Store(store, limits) => of_rows(Rows::of(store, limits, threads)?, limits),
            ExportContent::Filled(options, limits) => {
                of_rows(Rows::filled(options, limits, threads)?, limits)
            }
        };
        let is_rows = area.is_some();
        let subsystem = Subsystem {
            name: Nqn::from_uuid(identity.subsystem),
            serial: identity.subsystem.map(|byte| format!("{byte:02x}"))[..10].concat(),
            firmware: env!("CARGO_PKG_VERSION").into(),
            namespaces: vec![Namespace {
                number: NAMESPACE,
                content: if is_rows { Content::Rows } else { Content::Blocks },
                guid: identity.namespace,
                blocks,
                block_shift: BLOCK_SHIFT,
                is_write_protected: is_rows,
                is_zero_after_deallocate: true,
            }],
            hosts: export.hosts,
            key: export.key,
            area,
            io_queues_max: IO_QUEUES_MAX,
            io_queue_entries_max: QUEUE_ENTRIES_MAX,
        };
        Ok(Served {
            name: subsystem.name.clone(),
            subsystem: RwLock::new(Arc::new(subsystem)),
            data,
            has_new_tables: AtomicBool::new(false),
            counters: Counters::new(Instant::now()),
            _lock: lock,
        })
    }

    pub(crate) fn subsystem(&self) -> Arc<Subsystem> {
        Arc::clone(&self.subsystem.read())
    }

    /// The namespace, if a fill has replaced its tables since this was asked last.
    pub(crate) fn changed_namespace(&self) -> Option<Namespace> {
        let is_new = self.has_new_tables.swap(false, Ordering::AcqRel);
        is_new.then(|| self.subsystem().namespaces[0].clone())
    }

    /// The rows, of a namespace of rows.
    pub(crate) fn rows(&self) -> Option<&Rows> {
        match &self.data {
            Data::Rows(rows) => Some(rows),
            Data::Blocks(_) => None,
        }
    }

    /// Accept a stage command. Does not wait for the disk.
    pub(crate) fn stage(&self, connected: &Connected, request: &Request) -> Answer {
        let parsed = IoCommand::parse(request, &self.subsystem(), connected.role);
        let staged = parsed.and_then(|command| match (command, self.rows()) {
            (IoCommand::Stage { stage, .. }, Some(rows)) => {
                rows.stage(connected.controller, &stage, &self.counters)
            }
            _ => Err(Status::INVALID_OPCODE),
        });
        match staged {
            Ok(()) => Answer::success(),
            Err(status) => {
                self.counters.add(Count::Errors, 1);
                status.into()
            }
        }
    }

    /// Answer a fetch command, now or when its result is ready. Does not wait.
    pub(crate) fn fetch(&self, connected: &Connected, request: &Request, reply: Reply) {
        self.counters.add(Count::Fetches, 1);
        match (IoCommand::parse(request, &self.subsystem(), connected.role), self.rows()) {
            (Ok(IoCommand::Fetch { fetch, bytes, .. }), Some(rows)) => {
                rows.fetch(connected.controller, fetch, bytes, reply);
            }
            (Err(status), _) => reply.answer(status.into()),
            (Ok(_), _) => reply.answer(Status::INVALID_OPCODE.into()),
        }
    }

    /// Execute another command of an I/O queue. It may wait for the disk.
    pub(crate) fn io(&self, connected: &Connected, request: &Request) -> Result<Answer, Fault> {
        let subsystem = self.subsystem();
        match (IoCommand::parse(request, &subsystem, connected.role)?, &self.data) {
            (IoCommand::Read { blocks, .. }, data) => {
                self.counters.add(Count::Reads, 1);
                self.counters.add(Count::ReadBytes, request.answer_bytes as u64);
                let content = match data {
                    Data::Rows(rows) => rows.read(blocks)?,
                    Data::Blocks(stored) => stored.read(blocks).map_err(|status| Fault {
                        status,
                        place: Some(ErrorPlace { namespace: NAMESPACE, block: blocks.first, table: None }),
                    })?,
                };
                Ok(Answer::data(content))
            }
            (IoCommand::Write { blocks, data, is_durable, .. }, Data::Blocks(stored)) => {
                self.counters.add(Count::Writes, 1);
                self.counters.add(Count::WrittenBytes, data.len() as u64);
                stored.write(blocks.first, data, is_durable)?;
                Ok(Answer::success())
            }
            (IoCommand::Deallocate { ranges, .. }, Data::Blocks(stored)) => {
                stored.deallocate(&ranges)?;
                Ok(Answer::success())
            }
            (IoCommand::Flush { .. }, data) => {
                self.counters.add(Count::Flushes, 1);
                if let Data::Blocks(stored) = data {
                    stored.flush()?;
                }
                Ok(Answer::success())
            }
            (IoCommand::Hint, _) => Ok(Answer::success()),
            (IoCommand::Apply { apply, .. }, Data::Rows(rows)) => {
                self.counters.add(Count::Applies, 1);
                if rows.apply(apply)? {
                    let mut changed = Subsystem::clone(&subsystem);
                    changed.namespaces[0].blocks = rows.blocks();
                    *self.subsystem.write() = Arc::new(changed);
                    self.has_new_tables.store(true, Ordering::Release);
                }
                Ok(Answer::success())
            }
            (IoCommand::Write { .. } | IoCommand::Deallocate { .. } | IoCommand::Apply { .. }, _) => {
                Err(Status::WRITE_PROTECTED.into())
            }
            // They are executed elsewhere, in their order.
            (IoCommand::Stage { .. } | IoCommand::Fetch { .. }, _) => Err(Status::INVALID_OPCODE.into()),
        }
    }
}
