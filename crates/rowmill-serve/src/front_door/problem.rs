//! Problems: the reasons for which a request of the front door gets no reply.

use std::time::Duration;

use crate::{ArenaError, Status};

/// What kind of problem it is. Each protocol has a status for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The request is wrong.
    Invalid,
    /// There is no such model or version.
    NotFound,
    /// The server lacks this part of the protocol.
    Unsupported,
    /// The request does not say how long it is.
    NoLength,
    /// The request is beyond a limit.
    TooLarge,
    /// The request did not arrive in time.
    Slow,
    /// The request cannot be answered in time, or there is no room for it. It has not run.
    Refused,
    /// The worker or the model takes no requests.
    Unavailable,
    /// There is no answer in time.
    Late,
    /// The model failed.
    Failed,
}

/// Bytes of a text at most: it quotes values of any size, and gRPC sends it in a header.
const TEXT_BYTES_MAX: usize = 2000;

/// A kind for programs and a text for people.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) kind: Kind,
    pub(super) text: String,
}

impl Problem {
    pub(super) fn new(kind: Kind, text: String) -> Self {
        Self { kind, text: shortened(text) }
    }

    /// The request is wrong.
    pub(super) fn invalid(text: String) -> Self {
        Self::new(Kind::Invalid, text)
    }

    /// The request did not arrive.
    pub(super) fn slow(within: Duration) -> Self {
        Self::new(Kind::Slow, format!("the body did not arrive within {within:?}"))
    }

    /// The model's function refused or failed.
    pub(super) fn of_status(status: Status, text: String) -> Self {
        let kind = match status {
            Status::Invalid => Kind::Invalid,
            Status::Late | Status::Full => Kind::Refused,
            Status::Draining | Status::UnknownProgram => Kind::Unavailable,
            Status::Ok | Status::Failed => Kind::Failed,
        };
        Self::new(kind, text)
    }
}

impl Kind {
    /// The status by which requests are counted, which HTTP sends, too.
    pub(super) fn http_status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::NotFound | Self::Unsupported => 404,
            Self::Slow => 408,
            Self::NoLength => 411,
            Self::TooLarge => 413,
            Self::Refused => 429,
            Self::Failed => 500,
            Self::Unavailable => 503,
            Self::Late => 504,
        }
    }
}

/// The begin and the end of a long text: the end says what a value must be.
fn shortened(text: String) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text;
    }
    let begin = &text[..text.floor_char_boundary(TEXT_BYTES_MAX / 2)];
    let end = &text[text.ceil_char_boundary(text.len() - TEXT_BYTES_MAX / 2)..];
    format!("{begin} ... {end}")
}

impl From<ArenaError> for Problem {
    fn from(error: ArenaError) -> Self {
        let kind = match error {
            ArenaError::TooLarge { .. } => Kind::TooLarge,
            _ => Kind::Refused,
        };
        Self::new(kind, error.to_string())
    }
}
