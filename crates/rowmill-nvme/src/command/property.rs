//! The commands Property Get and Property Set of fabrics.

use super::{Command, fabrics};

/// A register of a controller, which Property Get and Property Set read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// CAP: the capabilities of the controller.
    Capabilities,
    /// VS: the version of the standard.
    Version,
    /// CC: how the host wants the controller.
    Configuration,
    /// CSTS: how the controller is.
    Status,
}

impl Property {
    /// The register at an offset.
    pub fn at(offset: u32) -> Option<Property> {
        [Property::Capabilities, Property::Version, Property::Configuration, Property::Status]
            .into_iter()
            .find(|property| property.offset() == offset)
    }

    /// Where the register is.
    pub fn offset(self) -> u32 {
        match self {
            Property::Capabilities => 0x00,
            Property::Version => 0x08,
            Property::Configuration => 0x14,
            Property::Status => 0x1c,
        }
    }

    /// The size as the attributes of a command have it: 0 for 4 bytes, 1 for 8 bytes.
    pub fn size(self) -> u32 {
        u32::from(self == Property::Capabilities)
    }

    /// The command that reads the register.
    pub fn get(self) -> Command {
        Command::fabrics(fabrics::PROPERTY_GET).with(10, self.size()).with(11, self.offset())
    }

    /// The command that writes the register.
    pub fn set(self, value: u64) -> Command {
        Command::fabrics(fabrics::PROPERTY_SET)
            .with(10, self.size())
            .with(11, self.offset())
            .with_quadword(12, value)
    }
}

/// Fields of CAP.
pub mod capability {
    /// Most entries of a queue, less one: bits 0 to 15.
    pub fn queue_size_max(value: u64) -> u16 {
        value as u16
    }

    /// Most time that a change of CC.EN takes, in units of 500 ms: bits 24 to 31.
    pub fn ready_timeout_halves(value: u64) -> u8 {
        (value >> 24) as u8
    }

    /// The smallest memory page is 2 to this power: 12 plus bits 48 to 51.
    pub fn page_shift_min(value: u64) -> u32 {
        12 + (value >> 48 & 0xf) as u32
    }

    /// CAP of a controller of the NVM command set whose queues have at most this many entries, less one, and are
    /// contiguous, and which is ready within 15 s.
    pub fn encode(queue_size_max: u16) -> u64 {
        u64::from(queue_size_max) | 1 << 16 | 30 << 24 | 1 << 37
    }
}

/// Fields of CC.
pub mod configuration {
    /// Enable: bit 0.
    pub const ENABLE: u32 = 1;
    /// Submission queue entries of 2^6 and completion queue entries of 2^4 bytes.
    pub const ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
    /// Bits of the entry sizes.
    pub const ENTRY_SIZES_MASK: u32 = 0xff << 16;
    /// Command set, page size and arbitration: 0 in all that this crate supports.
    pub const OTHER_MASK: u32 = 0x3ff0;
    /// Shut down: bits 14 and 15, 1 normal, 2 abrupt.
    pub const SHUTDOWN_MASK: u32 = 3 << 14;
    /// A normal shutdown.
    pub const SHUTDOWN_NORMAL: u32 = 1 << 14;
}

/// Fields of CSTS.
pub mod controller_status {
    /// Ready: bit 0.
    pub const READY: u32 = 1;
    /// A fatal error: bit 1.
    pub const FATAL: u32 = 1 << 1;
    /// Shutdown is complete: bits 2 and 3 are 2.
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;
}
