//! Tools shared by tests and benchmarks: seeded numbers and ids, faulty and slow volumes, counts of allocations, and the
//! kernel's counts of memory and disk reads.
//!
//! No normal build contains this crate. Equal seeds give equal numbers on every machine.

pub mod conformance;
mod counting_allocator;
mod fault_schedule;
mod faulty_device;
mod faulty_volume;
mod ids;
mod permutation;
mod process;
mod rng;
mod throttled_volume;
mod zipf;

pub use counting_allocator::CountingAllocator;
pub use fault_schedule::{Fault, When};
pub use faulty_volume::FaultyVolume;
pub use ids::{Drift, UniformIds, ZipfIds};
pub use permutation::Permutation;
pub use process::{disk_read_bytes, disk_written_bytes, resident_bytes, resident_bytes_peak};
pub use rng::Rng64;
pub use throttled_volume::{ThrottleLimits, ThrottledVolume};
pub use zipf::Zipf;
