//! The discovery log page, which lists the subsystems of a port.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::Nqn;

/// An address at which hosts reach a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// An IP address.
    pub address: core::net::IpAddr,
    /// A TCP port.
    pub port: u16,
}

/// The first 1,024 bytes of the discovery log.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Changes with the log.
    pub generation: U64,
    /// Entries that follow.
    pub entries: U64,
    /// Format of the entries: 0.
    pub format: U16,
    reserved_18: [u8; 1006],
}

/// One entry of the discovery log: a subsystem and where it is.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// TRTYPE: 3 is TCP.
    pub transport: u8,
    /// ADRFAM: 1 is IPv4, 2 is IPv6.
    pub family: u8,
    /// SUBTYPE: 2 is an NVM subsystem, 3 is this discovery subsystem.
    pub kind: u8,
    /// TREQ: 2, a secure channel is not required.
    pub requirements: u8,
    /// PORTID: the port.
    pub port: U16,
    /// CNTLID: all ones, controllers are made when a host connects.
    pub controller: U16,
    /// ASQSZ: most entries of an admin queue.
    pub admin_queue: U16,
    /// EFLAGS.
    pub flags: U16,
    reserved_12: [u8; 20],
    /// TRSVCID: the TCP port as text, filled up with zeros.
    pub service: [u8; 32],
    reserved_64: [u8; 192],
    /// SUBNQN: the subsystem.
    pub subsystem: [u8; 256],
    /// TRADDR: the address as text, filled up with zeros.
    pub address: [u8; 256],
    /// TSAS: zeros, no TLS.
    pub specific: [u8; 256],
}

const TRANSPORT_TCP: u8 = 3;
const KIND_NVM: u8 = 2;
const SECURE_CHANNEL_NOT_REQUIRED: u8 = 2;

impl DiscoveryEntry {
    fn new(subsystem: &Nqn, endpoint: &Endpoint) -> DiscoveryEntry {
        let mut entry = DiscoveryEntry {
            transport: TRANSPORT_TCP,
            family: if endpoint.address.is_ipv4() { 1 } else { 2 },
            kind: KIND_NVM,
            requirements: SECURE_CHANNEL_NOT_REQUIRED,
            port: 1.into(),
            controller: u16::MAX.into(),
            admin_queue: 32.into(),
            subsystem: subsystem.to_field(),
            ..DiscoveryEntry::new_zeroed()
        };
        let (service, address) = (endpoint.port.to_string(), endpoint.address.to_string());
        entry.service[..service.len()].copy_from_slice(service.as_bytes());
        entry.address[..address.len()].copy_from_slice(address.as_bytes());
        entry
    }
}

/// The discovery log: one entry per subsystem.
pub(crate) fn discovery_page<'a>(
    subsystems: impl ExactSizeIterator<Item = &'a Nqn>,
    endpoint: &Endpoint,
    generation: u64,
) -> Vec<u8> {
    let header = DiscoveryHeader {
        generation: generation.into(),
        entries: (subsystems.len() as u64).into(),
        ..DiscoveryHeader::new_zeroed()
    };
    let mut bytes = header.as_bytes().to_vec();
    for subsystem in subsystems {
        bytes.extend(DiscoveryEntry::new(subsystem, endpoint).as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        assert_eq!((size_of::<DiscoveryHeader>(), size_of::<DiscoveryEntry>()), (1024, 1024));
        assert_eq!(offset_of!(DiscoveryEntry, port), 4);
        assert_eq!(offset_of!(DiscoveryEntry, controller), 6);
        assert_eq!(offset_of!(DiscoveryEntry, admin_queue), 8);
        assert_eq!(offset_of!(DiscoveryEntry, service), 32);
        assert_eq!(offset_of!(DiscoveryEntry, subsystem), 256);
        assert_eq!(offset_of!(DiscoveryEntry, address), 512);
        assert_eq!(offset_of!(DiscoveryEntry, specific), 768);
    }

    #[test]
    fn a_page_names_every_subsystem_and_its_address() {
        let names = [Nqn::from_uuid([1; 16]), Nqn::from_uuid([2; 16])];
        let endpoint = Endpoint { address: [127, 0, 0, 1].into(), port: 4420 };
        let page = discovery_page(names.iter(), &endpoint, 7);
        assert_eq!((page.len(), page[0], page[8]), (3072, 7, 2));
        let second = DiscoveryEntry::read_from_bytes(&page[2048..]).unwrap();
        assert_eq!(second.subsystem, names[1].to_field());
        assert_eq!(
            (&second.service[..5], &second.address[..10]),
            (b"4420\0".as_slice(), b"127.0.0.1\0".as_slice())
        );
    }
}
