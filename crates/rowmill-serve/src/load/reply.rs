//! The outcomes of a request.

use crate::plan::Array;

/// Characters of an error that the report keeps.
const TEXT_MAX: usize = 300;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The server answered it.
    Answered,
    /// The server refused it because of its load.
    Refused,
    /// The server gave it up: its deadline had passed.
    Expired,
    /// There is no answer, or the server reports an error.
    Failed,
}

/// The end of a request.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) verdict: Verdict,
    /// The status by which the run counts it: 200, `RESOURCE_EXHAUSTED`, unreachable.
    pub(super) status: String,
    /// Why there is no answer.
    pub(super) text: String,
    /// Bytes of the body of the reply.
    pub(super) bytes: usize,
    /// Outputs of an answer, or why they cannot be read; only where the run compares answers.
    pub(super) outputs: Option<Result<Vec<Array>, String>>,
}

impl Reply {
    pub(super) fn new(verdict: Verdict, status: &str, bytes: usize) -> Self {
        Self { verdict, status: status.into(), text: String::new(), bytes, outputs: None }
    }

    /// A request that ended without an answer of the server.
    pub(super) fn failed(status: &str, text: &str) -> Self {
        let mut reply = Self::new(Verdict::Failed, status, 0);
        reply.explain(text);
        reply
    }

    /// Why there is no answer, as far as the report keeps it.
    pub(super) fn explain(&mut self, text: &str) {
        self.text = text.chars().take(TEXT_MAX).collect();
    }
}
