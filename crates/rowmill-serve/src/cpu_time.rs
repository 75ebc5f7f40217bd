//! CPU time of this process.

use std::time::Duration;

/// Linux counts CPU time in hundredths of a second for programs, on every architecture that this runs on.
const TICK: Duration = Duration::from_millis(10);

/// CPU time that all threads have used; zero where the system does not say it.
pub(crate) fn cpu_time() -> Duration {
    std::fs::read_to_string("/proc/self/stat").ok().and_then(|text| parse(&text)).unwrap_or_default()
}

/// Fields 14 and 15 are time in the program and in the kernel. The name of the program, which may hold spaces, ends with
/// the last parenthesis and is the second field.
fn parse(text: &str) -> Option<Duration> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(TICK * (ticks()? + ticks()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_times_are_read_whatever_the_name() {
        let text = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0";
        assert_eq!(parse(text), Some(Duration::from_millis(1750)));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn work_takes_cpu_time() {
        let before = cpu_time();
        let mut sum = 0_u64;
        while cpu_time() < before + TICK {
            sum = std::hint::black_box(sum + 1);
        }
    }
}
