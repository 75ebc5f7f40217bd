//! How a request ended.

use crate::plan::Array;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The server answered it.
    Answered,
    /// The server refused it because of its load.
    Refused,
    /// There is no answer, or the server reports an error.
    Failed,
}

/// The end of a request.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) verdict: Verdict,
    /// The status by which the run counts it: "200", "429", "unreachable".
    pub(super) status: String,
    /// Why there is no answer.
    pub(super) text: String,
    /// Bytes of the body of the reply.
    pub(super) bytes: usize,
    /// Outputs of an answer, or why they cannot be read; only where the run compares answers.
    pub(super) outputs: Option<Result<Vec<Array>, String>>,
}

impl Reply {
    /// A request that ended without an answer of the server.
    pub(super) fn failed(status: &str, text: impl Into<String>) -> Self {
        Self { verdict: Verdict::Failed, status: status.into(), text: text.into(), bytes: 0, outputs: None }
    }
}
