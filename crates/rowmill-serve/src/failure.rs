//! Failures: the reasons for which a request gets no answer.

use crate::{ArenaError, CallError, Refusal, Status};

/// A status for programs and a text for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// For programs.
    pub status: Status,
    /// For people: what happened, why, and what to do.
    pub text: String,
}

impl Failure {
    /// A failure of `status`.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// The request is wrong.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(Status::Invalid, text)
    }
}

impl From<ArenaError> for Failure {
    fn from(error: ArenaError) -> Self {
        let status = match error {
            ArenaError::TooLarge { .. } => Status::Invalid,
            _ => Status::Full,
        };
        Self::new(status, error.to_string())
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let status = match &error {
            CallError::Failed { status, .. } => *status,
            CallError::Deadline { .. } => Status::Late,
            CallError::Busy { .. } => Status::Full,
            // The other half is not there: ask another server.
            _ => Status::Draining,
        };
        Self::new(status, error.to_string())
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::TooLarge { .. } => Status::Invalid,
            Refusal::Full { .. } => Status::Full,
            Refusal::Closed => Status::Draining,
            _ => Status::Late,
        };
        Self::new(status, refusal.to_string())
    }
}
