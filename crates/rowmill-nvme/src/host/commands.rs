//! Commands that hosts send.

use crate::command::{Command, admin, io};
use crate::controller::BlockRange;

/// Identify; the answer has 4,096 bytes.
pub fn identify(cns: u8, namespace: u32) -> Command {
    Command::new(admin::IDENTIFY, namespace).with(10, cns.into())
}

/// Get Log Page: `bytes` bytes of a page from `offset` on; both are multiples of 4. With `retains_event`, the event that
/// names the page is not sent again.
pub fn log_page(page: u8, namespace: u32, offset: u64, bytes: u32, retains_event: bool) -> Command {
    let words = bytes / 4 - 1;
    Command::new(admin::GET_LOG_PAGE, namespace)
        .with(10, u32::from(page) | u32::from(retains_event) << 15 | words << 16)
        .with(11, words >> 16)
        .with_quadword(12, offset)
}

/// Get Features: the current value.
pub fn get_feature(feature: u8) -> Command {
    Command::new(admin::GET_FEATURES, 0).with(10, feature.into())
}

/// Set Features.
pub fn set_feature(feature: u8, value: u32) -> Command {
    Command::new(admin::SET_FEATURES, 0).with(10, feature.into()).with(11, value)
}

/// Set Features: ask for this many I/O queues.
pub fn set_io_queues(queues: u16) -> Command {
    let most = u32::from(queues) - 1;
    set_feature(0x07, most | most << 16)
}

/// Set Features: the events that the host wants, by the bits of Identify Controller.
pub fn set_async_events(events: u32) -> Command {
    set_feature(0x0b, events)
}

/// Keep Alive.
pub fn keep_alive() -> Command {
    Command::new(admin::KEEP_ALIVE, 0)
}

/// Asynchronous Event Request.
pub fn async_event() -> Command {
    Command::new(admin::ASYNC_EVENT, 0)
}

/// Abort command `cid` of a queue.
pub fn abort(queue: u16, cid: u16) -> Command {
    Command::new(admin::ABORT, 0).with(10, u32::from(queue) | u32::from(cid) << 16)
}

/// Read 1 to 65,536 blocks.
pub fn read(namespace: u32, blocks: BlockRange) -> Command {
    on_blocks(io::READ, namespace, blocks)
}

/// Write 1 to 65,536 blocks. With `is_durable`, the answer says that they are durable.
pub fn write(namespace: u32, blocks: BlockRange, is_durable: bool) -> Command {
    let command = on_blocks(io::WRITE, namespace, blocks);
    command.with(12, command.dword(12) | u32::from(is_durable) << 30)
}

fn on_blocks(opcode: u8, namespace: u32, blocks: BlockRange) -> Command {
    Command::new(opcode, namespace).with_quadword(10, blocks.first).with(12, (blocks.count - 1) as u32)
}

/// Flush a namespace; all ones for all of them.
pub fn flush(namespace: u32) -> Command {
    Command::new(io::FLUSH, namespace)
}

/// Deallocate 1 to 256 ranges: the command and its data.
pub fn deallocate(namespace: u32, ranges: &[BlockRange]) -> (Command, Vec<u8>) {
    let data = ranges.iter().flat_map(|range| {
        let entry = u128::from(range.first) << 64 | u128::from(range.count as u32) << 32;
        entry.to_le_bytes()
    });
    let command =
        Command::new(io::DATASET_MANAGEMENT, namespace).with(10, ranges.len() as u32 - 1).with(11, 1 << 2);
    (command, data.collect())
}
