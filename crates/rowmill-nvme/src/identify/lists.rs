//! Lists of Identify: active namespaces, and descriptors of a namespace.

use super::IDENTIFY_BYTES;
use crate::controller::Namespace;

/// NIDT of a descriptor: an NGUID follows.
const DESCRIPTOR_GUID: u8 = 2;
/// NIDT of a descriptor: a UUID follows.
const DESCRIPTOR_UUID: u8 = 3;

/// Numbers of active namespaces above `after`, in ascending order.
pub(crate) fn active_namespaces(namespaces: &[Namespace], after: u32) -> Vec<u8> {
    let mut numbers: Vec<u32> = namespaces.iter().map(|namespace| namespace.number).collect();
    numbers.sort_unstable();
    let numbers = numbers.into_iter().filter(|&number| number > after);
    let mut bytes: Vec<u8> = numbers.take(IDENTIFY_BYTES / 4).flat_map(u32::to_le_bytes).collect();
    bytes.resize(IDENTIFY_BYTES, 0);
    bytes
}

/// Identifiers of a namespace: its NGUID, which is also its UUID.
pub(crate) fn namespace_descriptors(namespace: &Namespace) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(IDENTIFY_BYTES);
    for kind in [DESCRIPTOR_GUID, DESCRIPTOR_UUID] {
        bytes.extend([kind, 16, 0, 0]);
        bytes.extend(namespace.guid);
    }
    bytes.resize(IDENTIFY_BYTES, 0);
    bytes
}
