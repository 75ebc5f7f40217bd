//! How `wire_memory` is divided: half for connections, a quarter for answers, a quarter for staged results.

use std::time::Duration;

use rowmill_nvme::{CAPSULE_DATA_BYTES, ConnectionLimits, Digests, TRANSFER_BYTES_MAX};

/// Most entries of an I/O queue.
pub(crate) const QUEUE_ENTRIES_MAX: u16 = 64;
/// Bytes read from a socket at a time.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// Limits of one connection. Two transfers: one is executed while the next one comes.
pub(crate) const LIMITS: ConnectionLimits = ConnectionLimits {
    digests: Digests { header: true, data: true },
    data_pdu_bytes_max: TRANSFER_BYTES_MAX,
    held_bytes_max: 2 * TRANSFER_BYTES_MAX,
    unsent_bytes_max: TRANSFER_BYTES_MAX / 2,
    setup_time: Duration::from_secs(10),
};
/// What one connection may hold: what was read, data of commands outside and inside of capsules, what is not sent.
const CONNECTION_BYTES: usize = READ_BYTES
    + LIMITS.held_bytes_max
    + QUEUE_ENTRIES_MAX as usize * CAPSULE_DATA_BYTES
    + LIMITS.unsent_bytes_max
    + TRANSFER_BYTES_MAX;
/// Least `wire_memory`: some connections, and answers of the largest size.
pub(crate) const BYTES_MIN: u64 = 32 << 20;

/// Most connections at a time.
pub(crate) fn connections_max(wire_memory: u64) -> usize {
    wire_memory as usize / 2 / CONNECTION_BYTES
}

/// Bytes of answers, of all connections.
pub(crate) fn answer_bytes_max(wire_memory: u64) -> usize {
    wire_memory as usize / 4
}

/// Bytes of staged results, and of what they are made from, of all hosts.
pub(crate) fn staged_bytes_max(wire_memory: u64) -> u64 {
    wire_memory / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_memory_has_room_for_a_host_and_its_answers() {
        assert!(connections_max(BYTES_MIN) >= 4, "{}", connections_max(BYTES_MIN));
        assert!(answer_bytes_max(BYTES_MIN) >= 4 * TRANSFER_BYTES_MAX);
        let all = connections_max(BYTES_MIN) * CONNECTION_BYTES + answer_bytes_max(BYTES_MIN);
        assert!(all as u64 <= BYTES_MIN);
    }
}
