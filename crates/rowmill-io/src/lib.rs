//! Block devices and the folders that hold them, behind two traits: [`Device`] and [`Volume`].
//!
//! This crate knows nothing about rows.

mod aligned_buffer;
mod arena;
mod checksum;
mod device;
mod directory_volume;
mod file_device;
mod fork;
mod memory_file;
mod memory_volume;
mod pread;
mod read_plan;
mod registered_files;
mod ring;

mod sealed;
mod thread_ring;
mod volume;

pub use aligned_buffer::AlignedBuffer;
pub use checksum::{checksum, crc32c, crc32c_append};
pub use device::{BLOCK_BYTES, Device, DeviceError, ReadResult, Span};
pub use directory_volume::{DirectoryVolume, IoChoice};
pub use file_device::open_disk;
pub use fork::{Process, ProcessLocal};
pub use memory_file::SECTOR_BYTES;
pub use memory_volume::{Crash, MemoryVolume};
pub use sealed::{Sealed, seal, unseal};
pub use thread_ring::io_bytes_per_thread;
pub use volume::{FileWriter, Volume, VolumeLock};
