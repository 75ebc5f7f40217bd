//! Who does what goes on beside calls: threads of the store, or its caller.

use crate::error::StoreError;
use crate::group::balance;
use crate::store::Store;

/// Who writes segments, cleans them and looks ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    /// Threads of the store.
    #[default]
    Threads,
    /// The caller, with [`Store::turn`], and any call that cannot go on without. Nothing then depends on
    /// time or chance: equal calls make equal reads and writes, which is what a simulation needs.
    Turns {
        /// Must differ at every opening of a store, and is drawn at random where there are threads.
        incarnation: u64,
    },
}

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

impl Background {
    /// A number that differs from opening to opening: segments written by a run that crashed must not look
    /// like those of the next.
    pub(crate) fn incarnation(self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        match self {
            Self::Threads => std::collections::hash_map::RandomState::new().build_hasher().finish(),
            Self::Turns { incarnation } => incarnation,
        }
    }

    /// Whether the store has threads for it.
    pub(crate) fn has_threads(self) -> bool {
        self == Self::Threads
    }
}

impl Store {
    /// Do one piece of work that has no thread of its own ([`Background::Turns`]); whether there was any.
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
