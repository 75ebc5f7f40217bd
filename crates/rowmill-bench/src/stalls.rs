//! How long resident memory keeps a thread waiting: random accesses to huge pages, each timed.
//!
//! A miss of all caches takes less than a microsecond. An access that takes much longer, and is no page fault of this
//! process, waits for something outside of it: another thread or an interrupt on its core, or the host of a virtual machine.

use std::time::{Duration, Instant};

use rowmill_testkit::Rng64;
use serde::Serialize;

use crate::measure::print;
use crate::memory_probe::HugePages;
use crate::settings::Settings;

/// An access that takes longer is a stall.
const STALL: Duration = Duration::from_micros(20);
/// Accesses between two looks at the time that is left.
const ACCESSES: u64 = 1000;

/// One round.
#[derive(Serialize)]
struct Line {
    round: usize,
    bytes: u64,
    seconds: f64,
    accesses: u64,
    stalls: u64,
    /// Time of all stalls.
    stalled_s: f64,
    page_faults: i64,
    /// How often another thread took the core.
    preemptions: i64,
}

/// Time single accesses to `--memory` bytes for `--seconds`.
pub(crate) fn run(settings: &Settings) {
    let mut pages = HugePages::new(settings.memory as usize);
    pages.touch();
    let mut offsets = Rng64::new(settings.seed);
    for round in 0..settings.rounds {
        let (before, begun) = (Usage::now(), Instant::now());
        let (mut accesses, mut stalls, mut stalled) = (0, 0, Duration::ZERO);
        while begun.elapsed().as_secs_f64() < settings.seconds {
            for _ in 0..ACCESSES {
                let offset = offsets.below(settings.memory);
                let start = Instant::now();
                pages.increment(offset as usize);
                let taken = start.elapsed();
                if taken > STALL {
                    stalls += 1;
                    stalled += taken;
                }
            }
            accesses += ACCESSES;
        }
        let after = Usage::now();
        print(&Line {
            round,
            bytes: settings.memory,
            seconds: begun.elapsed().as_secs_f64(),
            accesses,
            stalls,
            stalled_s: stalled.as_secs_f64(),
            page_faults: after.page_faults - before.page_faults,
            preemptions: after.preemptions - before.preemptions,
        });
    }
}

/// Counts of this process so far.
struct Usage {
    page_faults: i64,
    preemptions: i64,
}

impl Usage {
    fn now() -> Self {
        // SAFETY: all-zero is a valid value of the plain struct rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes one rusage to the pointer.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        Self { page_faults: usage.ru_minflt + usage.ru_majflt, preemptions: usage.ru_nivcsw }
    }
}
