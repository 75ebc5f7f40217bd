//! SGL descriptors, which say how the data of a command is transferred.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Status;

/// The SGL descriptor of a command, which says where its data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sgl {
    /// Offset in the capsule; 0 for data that is sent apart.
    pub offset: U64,
    /// Bytes of data.
    pub bytes: U32,
    /// Zeros.
    pub reserved: [u8; 3],
    /// Type in the upper four bits, subtype in the lower.
    pub kind: u8,
}

/// Where the data of a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlace {
    /// In the command's capsule.
    Capsule,
    /// In data PDUs.
    Transfer,
}

/// A data block whose address is an offset in the capsule.
const CAPSULE: u8 = 0x01;
/// A data block that the transport moves.
const TRANSPORT: u8 = 0x5a;

impl Sgl {
    /// Data that follows its command in the capsule.
    pub fn capsule(bytes: u32) -> Sgl {
        Sgl { offset: 0.into(), bytes: bytes.into(), reserved: [0; 3], kind: CAPSULE }
    }

    /// Data that is sent in data PDUs; also of commands without data, with 0 bytes.
    pub fn transfer(bytes: u32) -> Sgl {
        Sgl { offset: 0.into(), bytes: bytes.into(), reserved: [0; 3], kind: TRANSPORT }
    }

    /// Where the data is.
    ///
    /// # Errors
    ///
    /// Statuses for other types of descriptors, and for an offset other than 0.
    pub fn place(&self) -> Result<DataPlace, Status> {
        match self.kind {
            CAPSULE if self.offset.get() == 0 => Ok(DataPlace::Capsule),
            CAPSULE => Err(Status::SGL_OFFSET_INVALID),
            TRANSPORT => Ok(DataPlace::Transfer),
            _ => Err(Status::SGL_TYPE_INVALID),
        }
    }
}
