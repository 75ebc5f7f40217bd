//! Errors of the protocol that terminate a connection.

use std::fmt;

/// The reason for a termination: the fatal error status of a termination request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum FatalReason {
    /// A field of a header has an invalid value; the information is its byte offset.
    InvalidHeaderField = 1,
    /// A PDU came when its kind is not allowed.
    SequenceError = 2,
    /// The digest of a header is wrong; the information is the received digest.
    HeaderDigestError = 3,
    /// Data outside of the requested range.
    DataOutOfRange = 4,
    /// A PDU with more data than allowed, or more requests for data than allowed.
    LimitExceeded = 5,
    /// A parameter of the initialization is not supported; the information is its byte offset.
    UnsupportedParameter = 6,
}

impl FatalReason {
    /// Every reason.
    pub const ALL: [FatalReason; 6] = [
        FatalReason::InvalidHeaderField,
        FatalReason::SequenceError,
        FatalReason::HeaderDigestError,
        FatalReason::DataOutOfRange,
        FatalReason::LimitExceeded,
        FatalReason::UnsupportedParameter,
    ];
}

/// An error of the transport that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// The kind of the error.
    pub reason: FatalReason,
    /// Offset of a field in the header, or the received digest, by the reason; else 0.
    pub information: u32,
}

impl Fatal {
    pub(crate) fn new(reason: FatalReason) -> Fatal {
        Fatal { reason, information: 0 }
    }

    /// A field of the header, by its byte offset.
    pub(crate) fn field(offset: u32) -> Fatal {
        Fatal { reason: FatalReason::InvalidHeaderField, information: offset }
    }

    /// A parameter of the initialization, by its byte offset.
    pub(crate) fn parameter(offset: u32) -> Fatal {
        Fatal { reason: FatalReason::UnsupportedParameter, information: offset }
    }
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            FatalReason::InvalidHeaderField => {
                write!(f, "invalid PDU header field at byte {}", self.information)
            }
            FatalReason::SequenceError => write!(f, "PDU out of sequence"),
            FatalReason::HeaderDigestError => write!(f, "header digest {:#010x} is wrong", self.information),
            FatalReason::DataOutOfRange => write!(f, "data outside of the range that was asked for"),
            FatalReason::LimitExceeded => write!(f, "more data or requests for data than allowed"),
            FatalReason::UnsupportedParameter => {
                write!(f, "unsupported parameter at byte {} of the initialization", self.information)
            }
        }
    }
}
