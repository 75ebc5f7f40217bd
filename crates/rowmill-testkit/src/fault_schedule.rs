//! Fault schedules: which operation fails, and how. Equal seeds and equal orders of operations give equal
//! faults.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rowmill_io::{BLOCK_BYTES, Crash, MemoryVolume};
use rowmill_splitmix::SplitMix64;
use rowmill_sync::unranked::Mutex;

/// Duration of a slow operation, unless a function runs meanwhile.
const SLOW: Duration = Duration::from_millis(1);

/// Function that runs during a slow operation. Arguments: "read", "write" or "sync", and the name of the
/// device or file.
pub(crate) type Meanwhile = Arc<dyn Fn(&'static str, &str) + Send + Sync>;

/// Kinds of faults of a device or file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// A read fails (EIO).
    ReadError,
    /// A read succeeds with one bit flipped.
    BitFlip,
    /// A read succeeds, with one block in its version before the last write. Only writes made while a fault
    /// of this kind is injected are recorded. Devices only.
    StaleRead,
    /// A read succeeds, with one block from another offset. Devices only.
    MisdirectedRead,
    /// A write fails (EIO) after it may have written its first part.
    WriteError,
    /// A write fails for lack of space after it may have written its first part.
    Full,
    /// A write succeeds, but only some of its sectors reach the device.
    TornWrite,
    /// A sync of a device, a file or the volume fails (EIO) and makes nothing durable.
    SyncError,
    /// A sync of a device, a file or the volume succeeds and makes nothing durable.
    LostSync,
    /// A rename fails (EIO) and changes nothing.
    RenameError,
    /// A read, write or sync of a device takes long, so that other operations overtake it. See
    /// [`FaultyVolume::meanwhile`](crate::FaultyVolume::meanwhile).
    Slow,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::ReadError,
        Self::BitFlip,
        Self::StaleRead,
        Self::MisdirectedRead,
        Self::WriteError,
        Self::Full,
        Self::TornWrite,
        Self::SyncError,
        Self::LostSync,
        Self::RenameError,
        Self::Slow,
    ];
}

/// Which of the possible operations a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Every operation.
    Always,
    /// One operation, counted from 1 since the injection.
    Nth(u64),
    /// Every operation with probability 1 / n, drawn by the seed.
    OneIn(u64),
}

/// Rules and counts of faults, for one machine between two crashes.
#[derive(Debug)]
pub(crate) struct FaultSchedule {
    /// Shared by the machine before and after a crash.
    state: Arc<Mutex<State>>,
    /// The machine has crashed: no further faults hit its operations.
    crashed: AtomicBool,
    /// The machine, if it can crash.
    memory: Option<MemoryVolume>,
}

struct State {
    rules: Vec<Rule>,
    seeded: SplitMix64,
    fired: BTreeMap<Fault, u64>,
    /// Per device, the blocks before their last write.
    older: HashMap<String, HashMap<u64, Vec<u8>>>,
    meanwhile: Option<Meanwhile>,
    /// Number of changes until the power fails, including the change during which it fails.
    changes_left: Option<u64>,
    /// The result of the crash, until a test takes it.
    found: Option<Crash<MemoryVolume>>,
}

impl Debug for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("rules", &self.rules)
            .field("fired", &self.fired)
            .field("changes_left", &self.changes_left)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Rule {
    fault: Fault,
    when: When,
    /// Applies only to names with this prefix.
    prefix: String,
    seen: u64,
}

/// A fault to apply now, and a random number for its details.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub(crate) fault: Fault,
    pub(crate) random: u64,
}

impl FaultSchedule {
    pub(crate) fn new(seed: u64, memory: Option<MemoryVolume>) -> Self {
        let state = State {
            rules: Vec::new(),
            seeded: SplitMix64::new(seed),
            fired: BTreeMap::new(),
            older: HashMap::new(),
            meanwhile: None,
            changes_left: None,
            found: None,
        };
        Self { state: Arc::new(Mutex::new(state)), crashed: AtomicBool::new(false), memory }
    }

    pub(crate) fn inject(&self, prefix: &str, fault: Fault, when: When) {
        assert!(!matches!(when, When::Nth(0) | When::OneIn(0)), "counting starts at 1");
        self.state.lock().rules.push(Rule { fault, when, prefix: prefix.to_owned(), seen: 0 });
    }

    pub(crate) fn heal(&self) {
        let mut state = self.state.lock();
        state.rules.clear();
        state.older.clear();
        state.changes_left = None;
    }

    pub(crate) fn fired(&self, fault: Fault) -> u64 {
        self.state.lock().fired.get(&fault).copied().unwrap_or(0)
    }

    pub(crate) fn meanwhile(&self, work: Meanwhile) {
        self.state.lock().meanwhile = Some(work);
    }

    pub(crate) fn lose_power_in(&self, changes: u64) {
        assert!(changes > 0, "counting starts at 1");
        self.state.lock().changes_left = Some(changes);
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.crashed.load(Ordering::Acquire)
    }

    /// The result of the crash, which happens now if it has not happened yet, and the schedule of the machine
    /// after it.
    pub(crate) fn crash(&self) -> (Crash<MemoryVolume>, Self) {
        if !self.has_crashed() {
            self.lose_power();
        }
        let crash = self.state.lock().found.take().expect("a machine crashes once");
        let memory = Some(crash.volume.clone());
        (crash, Self { state: Arc::clone(&self.state), crashed: AtomicBool::new(false), memory })
    }

    fn lose_power(&self) {
        let mut state = self.state.lock();
        // If several threads change something now, the power is lost once. A thread that sees the loss finds
        // its result too.
        if self.crashed.swap(true, Ordering::AcqRel) {
            return;
        }
        state.older.clear();
        state.changes_left = None;
        let memory = self.memory.as_ref().expect("only a volume over memory crashes");
        state.found = Some(memory.crash(state.seeded.next_u64()));
    }

    /// Make a change of a device or file. `None` if the power fails during it; the change may then be made or
    /// not.
    pub(crate) fn change<T>(&self, make: impl FnOnce() -> T) -> Option<T> {
        let made = {
            let mut state = self.state.lock();
            match &mut state.changes_left {
                // If 0 are left, another thread is making the last change; this change is still before the
                // loss.
                Some(left) if *left > 0 && !self.has_crashed() => {
                    *left -= 1;
                    (*left == 0).then(|| state.seeded.one_in(2))
                }
                _ => None,
            }
        };
        let Some(made) = made else { return Some(make()) };
        if made {
            make();
        }
        self.lose_power();
        None
    }

    /// Whether an operation on `name` is slow, with a random number for its details.
    pub(crate) fn slow(&self, name: &str) -> Option<Hit> {
        self.hit(name, |_, fault| fault == Fault::Slow)
    }

    /// Run the `meanwhile` function, or sleep, in a slow operation on `name`.
    pub(crate) fn pass_time(&self, operation: &'static str, name: &str) {
        let meanwhile = self.state.lock().meanwhile.clone();
        match meanwhile {
            Some(work) => work(operation, name),
            None => std::thread::sleep(SLOW),
        }
    }

    /// The fault that hits an operation on `name`, if any. `possible` filters the kinds of faults. The fault
    /// counts as fired, so the caller must apply it.
    pub(crate) fn hit(&self, name: &str, possible: impl Fn(&Past<'_>, Fault) -> bool) -> Option<Hit> {
        if self.has_crashed() {
            return None;
        }
        let mut state = self.state.lock();
        let State { rules, seeded, fired, older, .. } = &mut *state;
        let past = Past(older.get(name));
        let mut found = None;
        for rule in rules {
            if !name.starts_with(&rule.prefix) || !possible(&past, rule.fault) {
                continue;
            }
            rule.seen += 1;
            let hits = match rule.when {
                When::Always => true,
                When::Nth(position) => rule.seen == position,
                When::OneIn(chance) => seeded.one_in(chance),
            };
            // One operation gets one fault; later rules still count the operation.
            if hits && found.is_none() {
                found = Some(Hit { fault: rule.fault, random: seeded.next_u64() });
            }
        }
        if let Some(hit) = found {
            *fired.entry(hit.fault).or_insert(0) += 1;
        }
        found
    }

    /// Whether blocks must be passed to [`Self::remember`] before they are overwritten.
    pub(crate) fn remembers(&self, name: &str) -> bool {
        let rules = &self.state.lock().rules;
        rules.iter().any(|rule| rule.fault == Fault::StaleRead && name.starts_with(&rule.prefix))
    }

    pub(crate) fn remember(&self, name: &str, block: u64, content: &[u8]) {
        let mut state = self.state.lock();
        state.older.entry(name.to_owned()).or_default().insert(block, content.to_vec());
    }

    /// The earlier version of the block, if recorded.
    pub(crate) fn older(&self, name: &str, block: u64) -> Option<Vec<u8>> {
        self.state.lock().older.get(name)?.get(&block).cloned()
    }

    /// The name now refers to another file, so its recorded blocks are dropped.
    pub(crate) fn forget(&self, name: &str) {
        self.state.lock().older.remove(name);
    }
}

/// Earlier content of one device.
pub(crate) struct Past<'a>(Option<&'a HashMap<u64, Vec<u8>>>);

impl Past<'_> {
    /// The blocks of a range whose earlier version is recorded.
    pub(crate) fn blocks(&self, offset: u64, bytes: usize) -> impl Iterator<Item = u64> {
        let first = offset / BLOCK_BYTES as u64;
        let range = first..first + (bytes / BLOCK_BYTES) as u64;
        range.filter(|block| self.0.is_some_and(|blocks| blocks.contains_key(block)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_concurrent_with_the_last_one_completes_before_the_power_failure() {
        let mut beside = 0;
        for seed in 0..40 {
            let schedule = FaultSchedule::new(seed, Some(MemoryVolume::crashable()));
            schedule.lose_power_in(1);
            let last = schedule.change(|| {
                // Simulates another thread that makes a change during the last one.
                assert_eq!(schedule.change(|| 7), Some(7));
                beside += 1;
            });
            assert_eq!(last, None);
            assert!(schedule.has_crashed());
            schedule.crash();
        }
        assert!(beside > 5, "{beside}");
    }
}
