//! Commands of I/O queues, parsed and checked for the node.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::admin::ALL_NAMESPACES;
use super::{Content, Namespace, Request, Role, Subsystem};
use crate::command::{Command, Status, fabrics, io};
use crate::vendor::{Apply, Fetch, Stage};

/// Consecutive blocks of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// The first block.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// A command of an I/O queue, parsed and checked against its namespace. The node executes it.
#[derive(Clone, Debug, PartialEq)]
pub enum IoCommand<'a> {
    /// Answer with the content of blocks.
    Read {
        /// The namespace.
        namespace: u32,
        /// The blocks.
        blocks: BlockRange,
    },
    /// Write the data into blocks.
    Write {
        /// The namespace.
        namespace: u32,
        /// The blocks.
        blocks: BlockRange,
        /// Answer only when the blocks are durable.
        is_durable: bool,
        /// Their content.
        data: &'a [u8],
    },
    /// Make all answered writes durable.
    Flush {
        /// The namespace; none for all.
        namespace: Option<u32>,
    },
    /// The content of these blocks is not needed any more.
    Deallocate {
        /// The namespace.
        namespace: u32,
        /// The blocks, at most 256 ranges.
        ranges: Vec<BlockRange>,
    },
    /// A hint about blocks, which changes nothing.
    Hint,
    /// Pool rows under a handle.
    Stage {
        /// The namespace.
        namespace: u32,
        /// Which rows.
        stage: Stage<'a>,
    },
    /// Answer with the result of a handle.
    Fetch {
        /// The namespace.
        namespace: u32,
        /// Which result.
        fetch: Fetch,
        /// Bytes of the answer.
        bytes: usize,
    },
    /// Apply a part of a fill or a frame of the feed.
    Apply {
        /// The namespace.
        namespace: u32,
        /// What to apply.
        apply: Apply<'a>,
    },
}

#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RangeEntry {
    _attributes: U32,
    count: U32,
    first: U64,
}

/// Write: force unit access.
const DURABLE: u32 = 1 << 30;
/// Dataset Management: deallocate.
const DEALLOCATE: u32 = 1 << 2;

impl<'a> IoCommand<'a> {
    /// Parse a command of a host with this role.
    ///
    /// # Errors
    ///
    /// The status that the command is to be answered with.
    pub fn parse(request: &'a Request, subsystem: &Subsystem, role: Role) -> Result<IoCommand<'a>, Status> {
        let command = &request.command;
        let number = command.nsid.get();
        if let Some(kind) = command.fabrics_kind() {
            return Err(if kind == fabrics::CONNECT {
                Status::SEQUENCE_ERROR
            } else {
                Status::INVALID_OPCODE
            });
        }
        if command.opcode == io::FLUSH && number == ALL_NAMESPACES {
            return Ok(IoCommand::Flush { namespace: None });
        }
        let is_known = [io::FLUSH, io::WRITE, io::READ, io::DATASET_MANAGEMENT].contains(&command.opcode);
        let is_for_rows = [io::STAGE, io::FETCH, io::APPLY].contains(&command.opcode);
        if !(is_known || is_for_rows && subsystem.area.is_some()) {
            return Err(Status::INVALID_OPCODE);
        }
        let namespace = subsystem.namespace(number).ok_or(Status::INVALID_NAMESPACE)?;
        if is_for_rows && namespace.content != Content::Rows {
            return Err(Status::INVALID_NAMESPACE);
        }
        let may_write = |is_protected: bool| match role {
            Role::Read => Err(Status::ACCESS_DENIED),
            Role::Write if is_protected => Err(Status::WRITE_PROTECTED),
            Role::Write => Ok(()),
        };
        match command.opcode {
            io::FLUSH => Ok(IoCommand::Flush { namespace: Some(number) }),
            io::READ => {
                let blocks = block_range(command, namespace, request.answer_bytes)?;
                Ok(IoCommand::Read { namespace: number, blocks })
            }
            io::WRITE => {
                may_write(namespace.is_write_protected)?;
                let blocks = block_range(command, namespace, request.data.len())?;
                let is_durable = command.dword(12) & DURABLE != 0;
                Ok(IoCommand::Write { namespace: number, blocks, is_durable, data: &request.data })
            }
            io::DATASET_MANAGEMENT => {
                let ranges = deallocated_ranges(command, namespace, &request.data)?;
                if command.dword(11) & DEALLOCATE == 0 {
                    return Ok(IoCommand::Hint);
                }
                may_write(namespace.is_write_protected)?;
                Ok(IoCommand::Deallocate { namespace: number, ranges })
            }
            io::STAGE => {
                let features_max = subsystem.area.map_or(0, |area| area.features_max.get());
                let stage = Stage::parse(command, &request.data, features_max)?;
                Ok(IoCommand::Stage { namespace: number, stage })
            }
            io::FETCH if request.answer_bytes < FETCH_BYTES_MIN => Err(Status::DATA_LENGTH_INVALID),
            io::FETCH => {
                let fetch = Fetch::parse(command)?;
                Ok(IoCommand::Fetch { namespace: number, fetch, bytes: request.answer_bytes })
            }
            _ => {
                may_write(false)?;
                Ok(IoCommand::Apply { namespace: number, apply: Apply::parse(command, &request.data)? })
            }
        }
    }
}

/// A fetch has room for its header.
const FETCH_BYTES_MIN: usize = size_of::<crate::vendor::FetchHeader>();

/// The blocks of a read or a write with this many bytes.
fn block_range(command: &Command, namespace: &Namespace, bytes: usize) -> Result<BlockRange, Status> {
    let blocks = BlockRange { first: command.quadword(10), count: u64::from(command.dword(12) & 0xffff) + 1 };
    if blocks.count << namespace.block_shift > crate::TRANSFER_BYTES_MAX as u64 {
        return Err(Status::INVALID_FIELD);
    }
    if blocks.count << namespace.block_shift != bytes as u64 {
        return Err(Status::DATA_LENGTH_INVALID);
    }
    check_range(blocks, namespace)
}

fn check_range(blocks: BlockRange, namespace: &Namespace) -> Result<BlockRange, Status> {
    let end = blocks.first.checked_add(blocks.count);
    if end.is_some_and(|end| end <= namespace.blocks) { Ok(blocks) } else { Err(Status::BLOCK_OUT_OF_RANGE) }
}

fn deallocated_ranges(
    command: &Command,
    namespace: &Namespace,
    data: &[u8],
) -> Result<Vec<BlockRange>, Status> {
    let count = (command.dword(10) & 0xff) as usize + 1;
    let (entries, _) =
        <[RangeEntry]>::ref_from_prefix_with_elems(data, count).map_err(|_| Status::DATA_LENGTH_INVALID)?;
    let ranges =
        entries.iter().map(|entry| BlockRange { first: entry.first.get(), count: entry.count.get().into() });
    ranges.map(|range| check_range(range, namespace)).collect()
}
