//! What threads of the store share work and wait with: locks with ranks, a gate, and a fork-join pool.
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
mod pool;
mod rank;

pub use gate::Gate;
pub use lock::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use pool::Pool;
pub use rank::{Rank, as_another_thread, report};
