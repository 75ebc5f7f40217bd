//! Locks with ranks and the one table of those ranks, a gate to wait at, a fork-join pool, and the first failure of a
//! store, after which it refuses writes.
//!
//! Invariants:
//! - A thread takes locks in the order of their ranks, and locks of one rank in the order of their numbers. Builds
//!   with `debug_assertions` check every acquisition and panic with the names of both locks; release builds carry
//!   neither the ranks nor the checks.
//! - A task of the pool counts as holding what its caller holds, so it never waits for its own caller.
//! - A thread that waits for tasks of the pool runs nothing else meanwhile.
//!
//! The gate and the pool are model-checked under loom (`--cfg loom`).

mod gate;
mod lock;
mod poison;
mod pool;
mod rank;
pub mod ranks;

pub use gate::Gate;
pub use lock::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use poison::{Poison, Poisoned, panicked};
pub use pool::Pool;
pub use rank::{Rank, as_another_thread, report};
