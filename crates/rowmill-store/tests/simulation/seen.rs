//! Counts of events over many runs.

use std::collections::BTreeMap;

use rowmill_store::Stats;
use rowmill_testkit::Fault;

/// Counts of one run, or of many.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) schedules: u64,
    pub(crate) calls: u64,
    /// Schedules in which a fault of the kind hit an operation.
    pub(crate) hit: BTreeMap<Fault, u64>,
    /// Schedules whose outcome a fault of the kind changed: it caused an error, lost a checkpoint or rows, or
    /// let calls overtake.
    pub(crate) changed: BTreeMap<Fault, u64>,
    /// Crashes, crashes in the middle of a change of the device, and crashes that lost data.
    pub(crate) crashes: u64,
    pub(crate) power_failures: u64,
    pub(crate) crashes_that_lost: u64,
    /// Stores that opened at a checkpoint whose call had failed.
    pub(crate) unacknowledged: u64,
    /// Stores that had two checkpoints to choose from.
    pub(crate) in_doubt: u64,
    /// Stores that were refused for their damage.
    pub(crate) refused: u64,
    pub(crate) checkpoints: u64,
    pub(crate) evictions: u64,
    pub(crate) cold_reads: u64,
    pub(crate) compactions: u64,
    pub(crate) lookahead_loaded: u64,
    pub(crate) snapshots: u64,
    /// Versions that were compared with the content of their checkpoint.
    pub(crate) versions: u64,
}

impl Seen {
    /// Record that a fault changed the outcome of this run.
    pub(crate) fn changed_by(&mut self, fault: Fault) {
        self.changed.insert(fault, 1);
    }

    pub(crate) fn add_stats(&mut self, stats: &Stats) {
        self.checkpoints += stats.checkpoints;
        self.evictions += stats.evictions;
        self.cold_reads += stats.cold_reads;
        self.compactions += stats.compactions;
        self.lookahead_loaded += stats.lookahead_loaded;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.schedules += other.schedules;
        self.calls += other.calls;
        for (into, from) in [(&mut self.hit, &other.hit), (&mut self.changed, &other.changed)] {
            for (fault, count) in from {
                *into.entry(*fault).or_default() += count;
            }
        }
        self.crashes += other.crashes;
        self.power_failures += other.power_failures;
        self.crashes_that_lost += other.crashes_that_lost;
        self.unacknowledged += other.unacknowledged;
        self.in_doubt += other.in_doubt;
        self.refused += other.refused;
        self.checkpoints += other.checkpoints;
        self.evictions += other.evictions;
        self.cold_reads += other.cold_reads;
        self.compactions += other.compactions;
        self.lookahead_loaded += other.lookahead_loaded;
        self.snapshots += other.snapshots;
        self.versions += other.versions;
    }

    /// Check that every event occurred in some run; otherwise the runs show nothing.
    pub(crate) fn assert_complete(&self) {
        self.assert_faults(&Fault::ALL);
        for (what, count) in [
            ("crash lost anything", self.crashes_that_lost),
            ("power failed in a change", self.power_failures),
            ("checkpoint was found that had not been acknowledged", self.unacknowledged),
            ("store was in doubt between two checkpoints", self.in_doubt),
            ("store was refused for its damage", self.refused),
            ("row was evicted", self.evictions),
            ("row was read from the device", self.cold_reads),
            ("segment was cleaned", self.compactions),
            ("row was loaded by lookahead", self.lookahead_loaded),
            ("snapshot of an index was written", self.snapshots),
            ("version was read", self.versions),
        ] {
            assert!(count > 0, "no {what}");
        }
    }

    /// Check that each of these kinds of fault hit an operation, and changed the outcome of some schedule.
    pub(crate) fn assert_faults(&self, kinds: &[Fault]) {
        for fault in kinds {
            let count = |of: &BTreeMap<Fault, u64>| of.get(fault).copied().unwrap_or(0);
            assert!(count(&self.hit) > 0, "{fault:?} hit no operation");
            assert!(count(&self.changed) > 0, "{fault:?} changed the outcome of no schedule");
        }
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} schedules, {} calls: {} checkpoints, {} snapshots, {} evictions, {} cold reads, {} segments \
             cleaned, {} rows loaded by lookahead",
            self.schedules,
            self.calls,
            self.checkpoints,
            self.snapshots,
            self.evictions,
            self.cold_reads,
            self.compactions,
            self.lookahead_loaded,
        )?;
        writeln!(
            f,
            "{} crashes, {} of them in a change, {} lost something; {} stores stood at an unacknowledged \
             checkpoint, {} were in doubt, {} were refused",
            self.crashes,
            self.power_failures,
            self.crashes_that_lost,
            self.unacknowledged,
            self.in_doubt,
            self.refused,
        )?;
        writeln!(f, "{:<16} {:>14} {:>22}", "fault", "schedules hit", "outcome changed")?;
        for fault in Fault::ALL {
            let of = |counts: &BTreeMap<Fault, u64>| counts.get(&fault).copied().unwrap_or(0);
            writeln!(f, "{:<16} {:>14} {:>22}", format!("{fault:?}"), of(&self.hit), of(&self.changed))?;
        }
        Ok(())
    }
}
