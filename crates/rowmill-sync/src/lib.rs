//! Synchronisation: locks with ranks, the table of those ranks, a gate, a fork-join pool, and store
//! poisoning.
//!
//! Invariants:
//! - A thread takes locks in ascending order of rank, and locks of one rank in ascending order of number.
//!   Builds with `debug_assertions` check every acquisition and panic with the names of both locks. Release
//!   builds store no ranks and check nothing.
//! - A pool task counts as holding its caller's locks, so it never waits for its own caller.
//! - A thread that waits for pool tasks runs nothing else meanwhile.
//!
//! The gate and the pool are model-checked under loom (`--cfg loom`).

mod gate;
mod lock;
mod poison;
mod pool;
mod rank;
pub mod ranks;
pub mod unranked;

pub use gate::Gate;
pub use lock::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use poison::{Poison, Poisoned, panicked};
pub use pool::Pool;
pub use rank::{Rank, as_another_thread, report};
