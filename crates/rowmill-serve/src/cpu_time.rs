//! CPU time of this process, and of cores.

use std::time::Duration;

/// Linux counts CPU time in hundredths of a second for programs, on every architecture that this runs on.
const TICK: Duration = Duration::from_millis(10);

/// CPU time that all threads have used; zero where the system does not say it.
pub(crate) fn cpu_time() -> Duration {
    std::fs::read_to_string("/proc/self/stat").ok().and_then(|text| parse(&text)).unwrap_or_default()
}

/// CPU time that all processes have used on these cores; zero where the system does not say it.
pub(crate) fn cpu_time_of_cores(cores: &[usize]) -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    text.lines().filter_map(|line| used(line, cores)).sum()
}

/// The CPU time of a core, by a line such as `cpu0 user nice system idle iowait irq softirq`; `None` for other lines and cores.
fn used(line: &str, cores: &[usize]) -> Option<Duration> {
    let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let core: usize = fields.next()?.parse().ok()?;
    let ticks: Vec<u32> = fields.take(7).map(|ticks| ticks.parse().ok()).collect::<Option<_>>()?;
    let [user, nice, system, _, _, irq, softirq] = ticks.try_into().ok()?;
    cores.contains(&core).then_some(TICK * (user + nice + system + irq + softirq))
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
    fn time_in_which_a_core_is_idle_is_not_used() {
        let line = "cpu3 100 20 3 90000 8000 4 5 60000 0 0";
        assert_eq!(used(line, &[1, 3]), Some(Duration::from_millis(1320)));
        assert_eq!(used(line, &[1]), None);
        assert_eq!(used("cpu  100 20 3 90000 8000 4 5 60000 0 0", &[0]), None, "all cores together");
        assert_eq!(used("ctxt 9", &[0]), None);
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
