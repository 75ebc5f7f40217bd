//! Block devices and the folders they live in, behind two traits: [`Device`] and [`Volume`].
//!
//! Nothing here knows what a row is.

mod aligned_buffer;
mod checksum;
mod device;
mod directory_volume;
mod file_device;
mod memory_file;
mod memory_volume;
mod pread;
mod read_plan;
mod seeded;
mod volume;

pub use aligned_buffer::AlignedBuffer;
pub use checksum::checksum;
pub use device::{BLOCK_BYTES, Device, DeviceError, Span};
pub use directory_volume::{DirectoryVolume, IoChoice};
pub use memory_volume::{Crash, MemoryVolume};
pub use volume::{FileWriter, Volume, VolumeLock};
