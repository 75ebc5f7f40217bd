//! Block devices and the folders they live in, behind two traits: [`Device`] and [`Volume`].
//!
//! Nothing here knows what a row is.

mod device;
mod volume;

pub use device::{BLOCK_BYTES, Device, DeviceError, Span};
pub use volume::{FileWriter, Volume, VolumeLock};
