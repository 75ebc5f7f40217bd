//! Errors of messages that cannot be read.

use super::VERSION;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Other bytes than the first four of every message.
    #[error("not a rowmill message: it begins with {found:#010x}")]
    Magic {
        /// The first four bytes.
        found: u32,
    },
    /// The peer is a newer or older build.
    #[error(
        "the peer sends messages of version {found}, this build reads version {VERSION}: use equal builds"
    )]
    Version {
        /// Its version.
        found: u16,
    },
    /// Bytes changed on their way.
    #[error("{part} is damaged: CRC32C {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Header, table or a tensor.
        part: String,
        /// The checksum of the bytes.
        found: u32,
        /// The checksum they were sent with.
        expected: u32,
    },
    /// A field of the header has a value that none of the protocol's parties writes.
    #[error("header: {field} is {found}, must be {expected}")]
    Header {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The allowed values.
        expected: &'static str,
    },
    /// An entry of the table has a value that none of the protocol's parties writes.
    #[error("tensor {tensor}: {field} is {found}, must be {expected}")]
    Tensor {
        /// Its place in the table.
        tensor: u16,
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// The required value.
        expected: String,
    },
    /// The table ends inside an entry, or has bytes after the last entry.
    #[error("the table of {tensors} tensors does not fill its {table_bytes} bytes")]
    Table {
        /// Tensors by the header.
        tensors: u16,
        /// Bytes by the header.
        table_bytes: u32,
    },
    /// A name is not UTF-8.
    #[error("tensor {tensor}: its name is not UTF-8")]
    Name {
        /// Its place in the table.
        tensor: u16,
    },
    /// Two tensors have one name.
    #[error("tensor {tensor}: its name occurs twice")]
    Twice {
        /// Its place in the table.
        tensor: u16,
    },
    /// More tensors than the reader takes.
    #[error("the message has {tensors} tensors, the limit is {limit}: use a model with fewer")]
    TooManyTensors {
        /// Tensors by the header.
        tensors: u16,
        /// How many are allowed.
        limit: u16,
    },
    /// More bytes than the reader takes.
    #[error(
        "the tensors of the message have {bytes} bytes, but the receiver's request_max is {limit}: send fewer rows, or \
         raise request_max there"
    )]
    TooLarge {
        /// Bytes of all payloads.
        bytes: u64,
        /// How many are allowed.
        limit: u64,
    },
    /// Bytes between payloads are not zero.
    #[error("bytes between the payloads are not zero")]
    Padding,
}
