//! Measured rounds.

use std::time::{Duration, Instant};

use rowmill_testkit::{disk_read_bytes, disk_written_bytes, resident_bytes};
use serde::{Deserialize, Serialize};

/// One round of one engine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) engine: String,
    /// Number of calling threads.
    pub(crate) threads: usize,
    pub(crate) round: usize,
    /// Number of rows processed.
    pub(crate) rows: u64,
    pub(crate) wall_s: f64,
    /// User and system time of all threads.
    pub(crate) cpu_s: f64,
    pub(crate) device_read_bytes: u64,
    pub(crate) device_write_bytes: u64,
    /// Resident memory of the process after the round.
    pub(crate) resident_bytes: u64,
    /// Duration of background work after the round, which is not included in the other numbers.
    pub(crate) settle_s: f64,
}

/// Run `work`, which returns the number of rows it processed.
pub(crate) fn sample(engine: &str, threads: usize, round: usize, work: impl FnOnce() -> u64) -> Sample {
    let (read, written) = (disk_read_bytes().unwrap_or(0), disk_written_bytes().unwrap_or(0));
    let (start, cpu) = (Instant::now(), cpu_time());
    let rows = work();
    Sample {
        engine: engine.to_owned(),
        threads,
        round,
        rows,
        wall_s: start.elapsed().as_secs_f64(),
        cpu_s: cpu_time().saturating_sub(cpu).as_secs_f64(),
        device_read_bytes: disk_read_bytes().unwrap_or(0) - read,
        device_write_bytes: disk_written_bytes().unwrap_or(0) - written,
        resident_bytes: resident_bytes().unwrap_or(0),
        settle_s: 0.0,
    }
}

/// Print one line of JSON.
pub(crate) fn print(line: &impl Serialize) {
    println!("{}", serde_json::to_string(line).expect("numbers and names are JSON"));
}

/// User and system time of this process so far.
pub(crate) fn cpu_time() -> Duration {
    // SAFETY: all-zero is a valid value of the plain struct rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one rusage to the pointer.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
