//! Background work that the caller does, one turn at a time, in a store without threads.

use crate::error::StoreError;
use crate::group::balance;
use crate::store::Store;

/// One kind of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Write the oldest full segment of every log.
    Write,
    /// Balance the memory between groups, and clean one segment of each.
    Clean,
    /// Process the first waiting announcement.
    LookAhead,
}

impl Store {
    /// Do one piece of work in a store without threads ([`Background::Turns`](crate::Background)). Returns
    /// whether there was any. A failure is not reported here, but by the next call that runs into it.
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
                groups.iter().fold(false, |any, group| group.clean_turn() | any)
            }
            Work::LookAhead => self.look_ahead_once(),
        })
    }
}
