//! What tests and benchmarks share: seeded numbers and ids, volumes that fail or are slow, and the kernel's own counts of
//! memory and disk reads.
//!
//! Nothing here is part of a normal build. Equal seeds give equal numbers on every machine.
#![forbid(unsafe_code)]

mod fault_schedule;
mod faulty_device;
mod faulty_volume;
mod ids;
mod permutation;
mod process;
mod rng;
mod throttled_volume;
mod zipf;

pub use fault_schedule::{Fault, When};
pub use faulty_volume::FaultyVolume;
pub use ids::{Drift, UniformIds, ZipfIds};
pub use permutation::Permutation;
pub use process::{disk_read_bytes, disk_written_bytes, resident_bytes, resident_bytes_peak};
pub use rng::Rng64;
pub use throttled_volume::{ThrottleLimits, ThrottledVolume};
pub use zipf::Zipf;
