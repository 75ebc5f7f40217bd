//! A command of a caller, from its submission to its answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_nvme::{Command, Exchange};
use rowmill_sync::unranked::{Condvar, Mutex};

use crate::HostError;
use crate::lane::Lane;

/// A command to send.
#[derive(Clone, Debug)]
pub struct Request {
    /// What errors call it.
    pub name: &'static str,
    /// The command; its identifier is chosen later.
    pub command: Command,
    /// Its data.
    pub exchange: Exchange,
    /// Send it again if the connection ends before it is answered. Only for commands that may run twice.
    pub is_repeatable: bool,
}

/// The answer of a command that succeeded.
#[derive(Clone, Debug)]
pub struct Completed {
    /// The result of its completion.
    pub result: u64,
    /// Data that it read.
    pub data: Vec<u8>,
    /// The number of the connection that executed it, from 1 on. After a reconnect it is larger.
    pub connection: u64,
}

/// Why a command failed, without the URL.
#[derive(Debug)]
pub(crate) enum Failure {
    Status(rowmill_nvme::Status),
    Damaged,
    Lost(String),
}

#[derive(Debug, Default)]
pub(crate) struct Slot {
    state: Mutex<SlotState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SlotState {
    answer: Option<Result<Completed, Failure>>,
    is_abandoned: bool,
}

impl Slot {
    pub(crate) fn fill(&self, answer: Result<Completed, Failure>) {
        self.state.lock().answer = Some(answer);
        self.changed.notify_all();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.state.lock().is_abandoned
    }

    /// The answer, if it comes by `deadline`. Afterwards the slot is abandoned.
    fn take(&self, deadline: Instant) -> Option<Result<Completed, Failure>> {
        let (mut state, mut in_time) = (self.state.lock(), true);
        while in_time && state.answer.is_none() {
            (state, in_time) = self.changed.wait_until(state, deadline);
        }
        state.is_abandoned = true;
        state.answer.take()
    }
}

/// A command that was sent, or waits to be. Drop it if the answer does not matter any more.
#[derive(Debug)]
#[must_use = "a command that is not waited for may have failed"]
pub struct Pending {
    pub(crate) name: &'static str,
    pub(crate) slot: Arc<Slot>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
}

impl Pending {
    /// Block until the answer is there.
    ///
    /// # Errors
    ///
    /// [`HostError::Failed`], [`HostError::Damaged`], [`HostError::Lost`] and [`HostError::TimedOut`].
    pub fn wait(self) -> Result<Completed, HostError> {
        let answer = self.slot.take(self.deadline);
        let (url, command) = (|| self.lane.url(), self.name);
        match answer {
            Some(Ok(completed)) => Ok(completed),
            Some(Err(Failure::Status(status))) => Err(HostError::Failed { url: url(), command, status }),
            Some(Err(Failure::Damaged)) => Err(HostError::Damaged { url: url(), command }),
            Some(Err(Failure::Lost(reason))) => Err(HostError::Lost { url: url(), command, reason }),
            None => Err(HostError::TimedOut {
                url: url(),
                command,
                after: round(self.deadline.saturating_duration_since(self.started)),
                state: self.lane.state(),
            }),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // A command that was never sent needs not be sent any more.
        self.slot.state.lock().is_abandoned = true;
        self.lane.forget(&self.slot);
    }
}

/// Whole milliseconds, which messages show.
pub(crate) fn round(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}
