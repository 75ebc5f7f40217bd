//! The registers of a controller: enabling, shutdown and status.

use crate::command::{Property, Status, capability, configuration, controller_status};
use crate::identify::VERSION;

/// What a write to the configuration register does, besides changing registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// The controller is disabled: its I/O queues are deleted.
    Reset,
    /// The host is about to leave.
    Shutdown,
}

/// The registers of a controller.
#[derive(Debug)]
pub(super) struct Registers {
    queue_size_max: u16,
    configuration: u32,
    status: u32,
}

impl Registers {
    /// Registers of a new controller, whose queues have at most this many entries, less one.
    pub(super) fn new(queue_size_max: u16) -> Registers {
        Registers { queue_size_max, configuration: 0, status: 0 }
    }

    /// The controller executes commands.
    pub(super) fn is_ready(&self) -> bool {
        self.status & (controller_status::READY | controller_status::FATAL) == controller_status::READY
    }

    /// Read the register at `offset`, as `size` of a command says: 0 for 4 bytes, 1 for 8.
    pub(super) fn get(&self, offset: u32, size: u32) -> Result<u64, Status> {
        let property = Property::at(offset).filter(|property| property.size() == size);
        Ok(match property.ok_or(Status::INVALID_FIELD)? {
            Property::Capabilities => capability::encode(self.queue_size_max),
            Property::Version => VERSION.into(),
            Property::Configuration => self.configuration.into(),
            Property::Status => self.status.into(),
        })
    }

    /// Write a register. Only the configuration can be written.
    pub(super) fn set(&mut self, offset: u32, size: u32, value: u64) -> Result<Change, Status> {
        if Property::at(offset) != Some(Property::Configuration) || size != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let value = value as u32;
        let (was, is) = (self.configuration & configuration::ENABLE, value & configuration::ENABLE);
        let shuts_down = |value: u32| value & configuration::SHUTDOWN_MASK != 0;
        let begins_shutdown = shuts_down(value) && !shuts_down(self.configuration);
        self.configuration = value;
        if is > was {
            let has_sizes = value & configuration::ENTRY_SIZES_MASK == configuration::ENTRY_SIZES;
            let is_supported = has_sizes && value & configuration::OTHER_MASK == 0;
            self.status = if is_supported { controller_status::READY } else { controller_status::FATAL };
        } else if is < was {
            self.status = 0;
            return Ok(Change::Reset);
        }
        if begins_shutdown {
            self.status |= controller_status::SHUTDOWN_COMPLETE;
            return Ok(Change::Shutdown);
        }
        Ok(Change::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CC: u32 = 0x14;
    const CSTS: u32 = 0x1c;
    const ENABLED: u64 = 0x46_0001;

    #[test]
    fn a_controller_is_enabled_shut_down_and_reset() {
        let mut registers = Registers::new(127);
        assert_eq!(registers.get(CSTS, 0), Ok(0));
        assert_eq!(registers.set(CC, 0, ENABLED), Ok(Change::None));
        assert!(registers.is_ready());
        assert_eq!(registers.get(CC, 0), Ok(ENABLED));
        assert_eq!(registers.set(CC, 0, ENABLED | 1 << 14), Ok(Change::Shutdown));
        assert_eq!(registers.set(CC, 0, ENABLED | 1 << 14), Ok(Change::None), "once");
        assert_eq!(registers.get(CSTS, 0), Ok(9));
        assert_eq!(registers.set(CC, 0, ENABLED & !1), Ok(Change::Reset));
        assert_eq!(registers.get(CSTS, 0), Ok(0));
    }

    #[test]
    fn an_unsupported_configuration_is_fatal_until_reset() {
        for value in [1, ENABLED | 1 << 4, ENABLED | 1 << 7, ENABLED | 1 << 11, 0x66_0001] {
            let mut registers = Registers::new(127);
            registers.set(CC, 0, value).unwrap();
            assert_eq!(registers.get(CSTS, 0), Ok(2), "{value:#x}");
            assert!(!registers.is_ready());
            registers.set(CC, 0, 0).unwrap();
            registers.set(CC, 0, ENABLED).unwrap();
            assert!(registers.is_ready());
        }
    }

    #[test]
    fn registers_have_a_size_and_most_are_read_only() {
        let mut registers = Registers::new(127);
        assert_eq!(registers.get(0, 1), Ok(0x20_1e01_007f));
        assert_eq!(registers.get(8, 0), Ok(0x1_0400));
        for (offset, size) in [(0, 0), (8, 1), (CC, 1), (CSTS, 1), (4, 0), (0x20, 0), (0x1000, 0)] {
            assert_eq!(registers.get(offset, size), Err(Status::INVALID_FIELD));
        }
        for (offset, size) in [(0, 1), (8, 0), (CC, 1), (CSTS, 0), (0x20, 0)] {
            assert_eq!(registers.set(offset, size, 0), Err(Status::INVALID_FIELD));
        }
    }
}
