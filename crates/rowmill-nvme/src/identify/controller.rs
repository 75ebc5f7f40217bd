//! The data of Identify Controller.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::Nqn;
use crate::vendor::VendorArea;

/// Identify Controller.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI vendor: 0, as there is no PCI device.
    pub vendor: U16,
    /// PCI subsystem vendor.
    pub subsystem_vendor: U16,
    /// Serial number, filled up with spaces.
    pub serial: [u8; 20],
    /// Model, filled up with spaces.
    pub model: [u8; 40],
    /// Version of the program, filled up with spaces.
    pub firmware: [u8; 8],
    reserved_72: [u8; 4],
    /// CMIC: paths to the subsystem.
    pub paths: u8,
    /// MDTS: the largest transfer is 2 to this power, in pages of 4 KiB.
    pub transfer_shift: u8,
    /// CNTLID: the number of the controller.
    pub controller: U16,
    /// VER: version of the standard.
    pub version: U32,
    reserved_84: [u8; 8],
    /// OAES: events that the controller can send.
    pub events: U32,
    reserved_96: [u8; 15],
    /// CNTRLTYPE: 1 I/O, 2 discovery.
    pub kind: u8,
    reserved_112: [u8; 144],
    /// OACS: optional admin commands.
    pub admin_commands: U16,
    /// ACL: Abort commands at a time, less one.
    pub aborts_max: u8,
    /// AERL: async event requests at a time, less one.
    pub async_events_max: u8,
    /// FRMW: firmware slots.
    pub firmware_slots: u8,
    /// LPA: bit 1 the log of supported commands, bit 2 long log pages.
    pub log_pages: u8,
    /// ELPE: entries of the error log, less one.
    pub errors_max: u8,
    reserved_263: [u8; 57],
    /// KAS: keep-alive time in units of 100 ms.
    pub keep_alive_unit: U16,
    reserved_322: [u8; 190],
    /// SQES: size of submission queue entries.
    pub submission_entry: u8,
    /// CQES: size of completion queue entries.
    pub completion_entry: u8,
    /// MAXCMD: most commands at a time on one queue.
    pub commands_max: U16,
    /// NN: largest number of a namespace.
    pub namespace_max: U32,
    /// ONCS: bit 2 Dataset Management.
    pub optional_commands: U16,
    reserved_522: [u8; 3],
    /// VWC: bit 0 writes need a flush, bits 1 and 2 a flush may name all namespaces.
    pub write_cache: u8,
    reserved_526: [u8; 10],
    /// SGLS: SGL descriptors that are supported.
    pub sgls: U32,
    reserved_540: [u8; 228],
    /// SUBNQN: name of the subsystem.
    pub subsystem: [u8; 256],
    reserved_1024: [u8; 768],
    /// IOCCSZ: bytes of a command capsule, in units of 16.
    pub command_capsule: U32,
    /// IORCSZ: bytes of a response capsule, in units of 16.
    pub response_capsule: U32,
    /// ICDOFF: where data starts in a capsule, after the command.
    pub capsule_data_offset: U16,
    /// FCATT: 0, controllers are made when a host connects.
    pub fabrics_attributes: u8,
    /// MSDBD: SGL descriptors per command.
    pub descriptors_max: u8,
    reserved_1804: [u8; 1268],
    /// The vendor area, which says that the commands for rows exist.
    pub vendor_area: VendorArea,
    reserved_3136: [u8; 960],
}

/// The version of the standard that controllers follow: 1.4.
pub(crate) const VERSION: u32 = 0x0001_0400;
/// Entries of the error log.
pub(crate) const ERRORS_MAX: usize = 64;
/// Async event requests that a controller keeps.
pub(crate) const ASYNC_EVENTS_MAX: usize = 4;
/// OAES: a namespace changed.
pub(crate) const EVENT_NAMESPACE: u32 = 1 << 8;
/// OAES: the discovery log changed.
pub(crate) const EVENT_DISCOVERY: u32 = 1 << 31;
/// The kind of an I/O controller.
pub(crate) const KIND_IO: u8 = 1;
/// The kind of a discovery controller.
pub(crate) const KIND_DISCOVERY: u8 = 2;

impl IdentifyController {
    /// A controller of either kind. `capsule_bytes` is the size of a command capsule with data, `queue_entries` the
    /// size of its queues.
    pub(crate) fn new(controller: u16, subsystem: &Nqn, capsule_bytes: usize, queue_entries: u16) -> Self {
        IdentifyController {
            serial: *b"                    ",
            model: [b' '; 40],
            firmware: [b' '; 8],
            // 512 KiB.
            transfer_shift: 7,
            controller: controller.into(),
            version: VERSION.into(),
            aborts_max: 3,
            async_events_max: ASYNC_EVENTS_MAX as u8 - 1,
            // One slot, which is read-only.
            firmware_slots: 1 << 1 | 1,
            log_pages: 1 << 1 | 1 << 2,
            errors_max: (ERRORS_MAX - 1) as u8,
            keep_alive_unit: 10.into(),
            submission_entry: 0x66,
            completion_entry: 0x44,
            commands_max: queue_entries.into(),
            // SGLs without alignment, by offset in the capsule and by transport.
            sgls: (1 | 1 << 20 | 1 << 21).into(),
            subsystem: subsystem.to_field(),
            command_capsule: (capsule_bytes as u32 / 16).into(),
            response_capsule: 1.into(),
            descriptors_max: 1,
            ..IdentifyController::new_zeroed()
        }
    }
}

/// Write a text to a field that is padded with spaces. A longer text is cut.
pub(crate) fn fill_text(field: &mut [u8], text: &str) {
    field.fill(b' ');
    for (byte, new) in field.iter_mut().zip(text.bytes().filter(u8::is_ascii_graphic)) {
        *byte = new;
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        assert_eq!(size_of::<IdentifyController>(), 4096);
        let expected = [
            (offset_of!(IdentifyController, serial), 4),
            (offset_of!(IdentifyController, model), 24),
            (offset_of!(IdentifyController, firmware), 64),
            (offset_of!(IdentifyController, paths), 76),
            (offset_of!(IdentifyController, transfer_shift), 77),
            (offset_of!(IdentifyController, controller), 78),
            (offset_of!(IdentifyController, version), 80),
            (offset_of!(IdentifyController, events), 92),
            (offset_of!(IdentifyController, kind), 111),
            (offset_of!(IdentifyController, admin_commands), 256),
            (offset_of!(IdentifyController, async_events_max), 259),
            (offset_of!(IdentifyController, log_pages), 261),
            (offset_of!(IdentifyController, errors_max), 262),
            (offset_of!(IdentifyController, keep_alive_unit), 320),
            (offset_of!(IdentifyController, submission_entry), 512),
            (offset_of!(IdentifyController, commands_max), 514),
            (offset_of!(IdentifyController, namespace_max), 516),
            (offset_of!(IdentifyController, optional_commands), 520),
            (offset_of!(IdentifyController, write_cache), 525),
            (offset_of!(IdentifyController, sgls), 536),
            (offset_of!(IdentifyController, subsystem), 768),
            (offset_of!(IdentifyController, command_capsule), 1792),
            (offset_of!(IdentifyController, response_capsule), 1796),
            (offset_of!(IdentifyController, capsule_data_offset), 1800),
            (offset_of!(IdentifyController, descriptors_max), 1803),
            (offset_of!(IdentifyController, vendor_area), 3072),
        ];
        for (number, (offset, of_the_standard)) in expected.into_iter().enumerate() {
            assert_eq!(offset, of_the_standard, "field {number} of the list");
        }
    }

    #[test]
    fn texts_are_cut_and_filled_up() {
        let mut field = [0; 4];
        fill_text(&mut field, "ab");
        assert_eq!(&field, b"ab  ");
        fill_text(&mut field, "abc def");
        assert_eq!(&field, b"abcd");
    }
}
