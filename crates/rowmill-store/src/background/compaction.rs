//! The compaction thread.

use std::sync::Arc;
use std::time::Duration;

use rowmill_sync::Poison;

use crate::error::StoreError;
use crate::group::{Groups, balance};
use crate::memory::Budget;
use crate::threads::Rounds;

/// Interval between two rounds.
const PERIOD: Duration = Duration::from_millis(50);

/// Start the cleaning thread.
pub(crate) fn start(groups: Groups, budget: Arc<Budget>, poison: Arc<Poison>) -> Result<Rounds, StoreError> {
    Rounds::start("compaction", PERIOD, poison, move |stopping| {
        let groups: Vec<_> = groups.read().clone();
        // A failed spill is reported by the next change of a row.
        let _ = balance(&groups, &budget);
        for group in groups {
            while group.clean_turn() && !stopping.is_due() {}
        }
        true
    })
}
