//! The log page of supported commands and their effects.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::{admin, io};

/// The command exists.
const SUPPORTED: u32 = 1;
/// The command changes blocks.
const CHANGES_BLOCKS: u32 = 1 << 1;

/// Commands of the admin queue of an I/O controller.
const ADMIN_COMMANDS: [u8; 7] = [
    admin::GET_LOG_PAGE,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT,
    admin::KEEP_ALIVE,
];
/// Commands on blocks.
const IO_COMMANDS: [u8; 4] = [io::FLUSH, io::WRITE, io::READ, io::DATASET_MANAGEMENT];
/// Commands on rows.
const ROW_COMMANDS: [u8; 3] = [io::STAGE, io::FETCH, io::APPLY];

/// The log of supported commands and their effects, by opcode.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SupportedCommands {
    /// Admin commands.
    pub admin: [U32; 256],
    /// I/O commands.
    pub io: [U32; 256],
    reserved_2048: [u8; 2048],
}

impl SupportedCommands {
    pub(crate) fn new(has_rows: bool) -> SupportedCommands {
        let mut page = SupportedCommands::new_zeroed();
        for opcode in ADMIN_COMMANDS {
            page.admin[opcode as usize] = SUPPORTED.into();
        }
        let rows: &[u8] = if has_rows { &ROW_COMMANDS } else { &[] };
        for &opcode in IO_COMMANDS.iter().chain(rows) {
            page.io[opcode as usize] = SUPPORTED.into();
        }
        for opcode in [io::WRITE, io::DATASET_MANAGEMENT] {
            page.io[opcode as usize] = (SUPPORTED | CHANGES_BLOCKS).into();
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_on_rows_are_named_where_they_exist() {
        assert_eq!(size_of::<SupportedCommands>(), 4096);
        for has_rows in [false, true] {
            let page = SupportedCommands::new(has_rows);
            assert_eq!(page.io[0x82].get(), u32::from(has_rows));
            assert_eq!((page.io[1].get(), page.io[2].get(), page.admin[6].get()), (3, 1, 1));
        }
    }
}
