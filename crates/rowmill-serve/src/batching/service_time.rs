//! Prediction of the time of a batch, from recent batches.

use std::time::Duration;

/// Weight of earlier batches relative to a new one: about the last ten batches count.
const MEMORY: f64 = 0.9;
/// Deviations added to a prediction, so that jitter alone misses few deadlines. TCP adds four to its round-trip time
/// (Jacobson, "Congestion avoidance and control", 1988); a late reply costs less than a retransmission.
const DEVIATIONS: f64 = 2.0;
/// Rows vary when their variance is above this part of their mean square.
const SPREAD_MIN: f64 = 1e-6;

/// Predicts a batch's time from its rows: a fixed part and a part per row, fitted by least squares over recent
/// batches.
#[derive(Clone, Debug, Default)]
pub struct ServiceTime {
    /// Decaying sums over batches: their number, rows, seconds, rows squared, rows times seconds.
    batches: f64,
    rows: f64,
    seconds: f64,
    rows_rows: f64,
    rows_seconds: f64,
    /// Decaying mean of the distance between prediction and truth, in seconds.
    deviation: f64,
    line: Line,
}

/// What batches are likely to take, in seconds: `fixed + per_row rows`, but at least `least`.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    least: f64,
    fixed: f64,
    per_row: f64,
}

impl Line {
    fn at(&self, rows: f64) -> f64 {
        (self.fixed + self.per_row * rows).max(self.least)
    }
}

impl ServiceTime {
    /// Learn that a batch of `rows` took `time`.
    pub fn observe(&mut self, rows: u32, time: Duration) {
        let (rows, seconds) = (f64::from(rows), time.as_secs_f64());
        if self.batches > 0.0 {
            let distance = (self.line.at(rows) - seconds).abs();
            self.deviation = MEMORY * self.deviation + (1.0 - MEMORY) * distance;
        }
        for (sum, term) in [
            (&mut self.batches, 1.0),
            (&mut self.rows, rows),
            (&mut self.seconds, seconds),
            (&mut self.rows_rows, rows * rows),
            (&mut self.rows_seconds, rows * seconds),
        ] {
            *sum = MEMORY * *sum + term;
        }
        self.line = self.fitted();
    }

    /// The time a batch of `rows` is likely to stay within; zero before the first batch.
    pub fn predict(&self, rows: u32) -> Duration {
        duration(self.line.at(f64::from(rows)))
    }

    /// What to add to the predicted end of a batch that runs behind `ahead` others, before comparing it with a deadline.
    ///
    /// The deviations of n batches grow as the square root of n. The error of their mean, which is estimated from about
    /// ten batches, grows as n.
    pub fn margin(&self, ahead: usize) -> Duration {
        let ahead = ahead as f64;
        let grown = ((1.0 + ahead) * (1.0 + (1.0 - MEMORY) * ahead)).sqrt();
        duration(DEVIATIONS * grown * self.deviation)
    }

    /// The line through recent batches.
    fn fitted(&self) -> Line {
        let spread = self.batches * self.rows_rows - self.rows * self.rows;
        if spread > SPREAD_MIN * self.rows_rows * self.batches {
            let per_row = (self.batches * self.rows_seconds - self.rows * self.seconds) / spread;
            let fixed = (self.seconds - per_row * self.rows) / self.batches;
            if per_row >= 0.0 && fixed >= 0.0 {
                return Line { least: 0.0, fixed, per_row };
            }
            if per_row >= 0.0 {
                return Line { least: 0.0, fixed: 0.0, per_row: self.rows_seconds / self.rows_rows };
            }
        }
        // Batches of one size say nothing about others: more rows take longer in proportion, fewer take as long.
        let (mean_rows, mean_seconds) = (self.rows / self.batches, self.seconds / self.batches);
        Line { least: mean_seconds, fixed: 0.0, per_row: mean_seconds / mean_rows.max(1.0) }
    }
}

/// A time in whole nanoseconds: much faster than the exact conversion. Up to 584 years.
fn duration(seconds: f64) -> Duration {
    Duration::from_nanos((seconds * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    fn is_near(found: Duration, expected: Duration) -> bool {
        found.abs_diff(expected) <= expected / 100 + micros(1)
    }

    #[test]
    fn a_fixed_part_and_a_part_per_row_are_found() {
        let mut time = ServiceTime::default();
        assert_eq!(time.predict(100), Duration::ZERO);
        for rows in [1, 64, 3, 128, 17, 90, 5, 64] {
            time.observe(rows, micros(200 + 10 * u64::from(rows)));
        }
        for rows in [1, 50, 500] {
            assert!(is_near(time.predict(rows), micros(200 + 10 * u64::from(rows))), "{rows}");
        }
    }

    #[test]
    fn equal_batches_scale_up_and_never_down() {
        let mut time = ServiceTime::default();
        (0..20).for_each(|_| time.observe(64, micros(640)));
        assert!(is_near(time.predict(128), micros(1280)));
        assert!(is_near(time.predict(1), micros(640)));
        assert_eq!(time.margin(0), Duration::ZERO);
    }

    #[test]
    fn a_slower_device_is_noticed_within_some_batches_and_jitter_widens_the_margin() {
        let mut time = ServiceTime::default();
        (0..50).for_each(|_| time.observe(10, micros(100)));
        (0..30).for_each(|_| time.observe(10, micros(1000)));
        assert!(time.predict(10) > micros(950), "{:?}", time.predict(10));
        let steady = time.margin(0);
        (0..20).for_each(|round| time.observe(10, micros(if round % 2 == 0 { 500 } else { 1500 })));
        assert!(time.margin(0) > steady.max(micros(500)), "{:?}", time.margin(0));
        assert!(
            is_near(time.margin(9), time.margin(0).mul_f64(19.0_f64.sqrt())),
            "ten batches, of a mean of ten"
        );
    }

    #[test]
    fn times_that_fall_with_rows_do_not_predict_negative_ones() {
        let mut time = ServiceTime::default();
        for (rows, span) in [(1, 900), (100, 100), (1, 900), (100, 100)] {
            time.observe(rows, micros(span));
        }
        assert!(time.predict(10_000) >= micros(100));
        time.observe(0, micros(5));
        assert!(time.predict(0) > Duration::ZERO);
    }
}
