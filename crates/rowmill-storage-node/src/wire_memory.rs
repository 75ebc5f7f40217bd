//! How `wire_memory` is divided: a quarter each for connections, data of commands, answers, and staged results.
//!
//! A connection has a small share from its beginning, so it can always receive a command with data in its capsule. More is
//! taken when bytes come or are asked for. Without more, the socket is not read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rowmill_nvme::{CAPSULE_DATA_BYTES, ConnectionLimits, Digests, TRANSFER_BYTES_MAX};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
/// A connection ends if it has memory that others may wait for, and moves no byte for this time: its host must send data or
/// take answers, or its apply commands wait for memory for one before them.
pub(crate) const STALL_TIME: Duration = Duration::from_secs(30);
/// What a connection may hold of received bytes and small answers without taking memory.
pub(crate) const OWN_BYTES: usize = CAPSULE_DATA_BYTES + (4 << 10);
/// What each connection counts with: its own bytes, its state, and its commands without data.
const CONNECTION_BYTES: usize = 32 << 10;
/// Controllers are numbered with 16 bits.
const CONNECTIONS_MAX: usize = 60_000;
/// Least `wire_memory`: some connections, and answers of the largest size.
pub(crate) const BYTES_MIN: u64 = 32 << 20;

/// Most connections at a time.
pub(crate) fn connections_max(wire_memory: u64) -> usize {
    (wire_memory as usize / 4 / CONNECTION_BYTES).min(CONNECTIONS_MAX)
}

/// Bytes of data of commands, of all connections.
pub(crate) fn command_bytes_max(wire_memory: u64) -> usize {
    wire_memory as usize / 4
}

/// Bytes of answers, of all connections.
pub(crate) fn answer_bytes_max(wire_memory: u64) -> usize {
    wire_memory as usize / 4
}

/// Bytes of staged results, and of what they are made from, of all hosts.
pub(crate) fn staged_bytes_max(wire_memory: u64) -> u64 {
    wire_memory / 4
}

/// What one connection has taken of the memory for data of commands. Its commands keep the lease until they are done, also
/// after the end of the connection.
#[derive(Debug)]
pub(crate) struct Lease {
    memory: Arc<Semaphore>,
    bytes: AtomicUsize,
    /// Its share of the number of connections.
    _connection: OwnedSemaphorePermit,
}

impl Lease {
    pub(crate) fn new(memory: &Arc<Semaphore>, connection: OwnedSemaphorePermit) -> Lease {
        Lease { memory: Arc::clone(memory), bytes: AtomicUsize::new(0), _connection: connection }
    }

    pub(crate) fn memory(&self) -> &Arc<Semaphore> {
        &self.memory
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Take more, if there is more. At most 4 GiB.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        let Ok(taken) = Arc::clone(&self.memory).try_acquire_many_owned(bytes as u32) else { return false };
        self.keep(taken);
        true
    }

    /// Keep memory that was taken.
    pub(crate) fn keep(&self, taken: OwnedSemaphorePermit) {
        self.bytes.fetch_add(taken.num_permits(), Ordering::Relaxed);
        taken.forget();
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.memory.add_permits(bytes);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.memory.add_permits(*self.bytes.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_memory_has_room_for_a_host_and_its_answers() {
        assert!(connections_max(BYTES_MIN) >= 100, "{}", connections_max(BYTES_MIN));
        assert!(command_bytes_max(BYTES_MIN) >= 4 * TRANSFER_BYTES_MAX);
        assert!(answer_bytes_max(BYTES_MIN) >= 4 * TRANSFER_BYTES_MAX);
        assert!(connections_max(256 << 20) >= 2000);
    }

    #[test]
    fn what_a_connection_took_comes_back_when_its_last_command_is_done() {
        let memory = Arc::new(Semaphore::new(100));
        let connections = Arc::new(Semaphore::new(1));
        let lease = Lease::new(&memory, Arc::clone(&connections).try_acquire_owned().unwrap());
        assert!(lease.try_take(60) && !lease.try_take(60));
        lease.give_back(20);
        assert_eq!((lease.bytes(), memory.available_permits()), (40, 60));
        lease.keep(Arc::clone(&memory).try_acquire_many_owned(60).unwrap());
        let of_command = Arc::new(lease);
        let of_session = Arc::clone(&of_command);
        drop(of_session);
        assert_eq!((memory.available_permits(), connections.available_permits()), (0, 0));
        drop(of_command);
        assert_eq!((memory.available_permits(), connections.available_permits()), (100, 1));
    }
}
