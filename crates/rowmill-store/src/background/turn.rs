//! Work beside calls that the caller does, one turn at a time, where the store has no threads.

use crate::error::StoreError;
use crate::group::balance;
use crate::store::Store;

/// Work that goes on beside calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Write the oldest full segment of every log.
    Write,
    /// Share the memory between groups anew, and clean a segment of each.
    Clean,
    /// Bring in the rows announced first.
    LookAhead,
}

impl Store {
    /// Do one piece of work that has no thread of its own ([`Background::Turns`](crate::Background)); whether there was
    /// any.
    /// What fails is met again, and reported, by the call that needs it.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn turn(&self, work: Work) -> Result<bool, StoreError> {
        self.check_open()?;
        if self.options.background.has_threads() {
            return Ok(false);
        }
        let groups: Vec<_> = self.groups.read().clone();
        Ok(match work {
            Work::Write => groups.iter().fold(false, |any, group| group.core.log.write_one() | any),
            Work::Clean if self.options.read_only => false,
            Work::Clean => {
                let _ = balance(&groups, &self.budget);
                groups.iter().fold(false, |any, group| group.clean_one().unwrap_or(false) | any)
            }
            Work::LookAhead => self.look_ahead_once(),
        })
    }
}
