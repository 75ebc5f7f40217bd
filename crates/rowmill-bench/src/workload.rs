//! Threads that call an engine with batches of ids during a round.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rowmill_testkit::{Drift, UniformIds, ZipfIds};

use crate::settings::Settings;

/// Number of ids drawn before the clock starts, for all threads together.
const IDS: usize = 1 << 22;
/// Fraction of the hot set that a drift replaces.
const DRIFT_SHARE: f64 = 0.1;

/// The ids of every thread, and each thread's position among its ids.
pub(crate) struct Workload {
    batch: usize,
    seconds: f64,
    threads: Vec<Thread>,
}

struct Thread {
    source: Source,
    ids: Vec<u64>,
    next: usize,
    buffer: Vec<f32>,
}

#[allow(clippy::large_enum_variant, reason = "one per thread")]
enum Source {
    Uniform(UniformIds),
    Zipf(ZipfIds),
}

impl Workload {
    /// Ids for `threads` threads, distributed as in the settings. Frequent ids are spread over the whole
    /// range.
    pub(crate) fn new(settings: &Settings, threads: usize) -> Self {
        let thread = |thread| Thread {
            source: Source::new(settings, threads, settings.seed + thread as u64),
            ids: vec![0; (IDS / threads).max(settings.batch)],
            next: 0,
            buffer: vec![0.25; settings.batch * settings.row_bytes / 4],
        };
        Self { batch: settings.batch, seconds: settings.seconds, threads: (0..threads).map(thread).collect() }
    }

    /// Draw the ids of the next round. Otherwise, a round repeats the ids of the previous one.
    pub(crate) fn draw(&mut self) {
        for thread in &mut self.threads {
            match &mut thread.source {
                Source::Uniform(source) => source.fill(&mut thread.ids),
                Source::Zipf(source) => source.fill(&mut thread.ids),
            }
            thread.next = 0;
        }
    }

    /// Call `work` with a batch of ids and `width` floats per id, on every thread, until the round ends.
    /// Returns the number of rows processed.
    pub(crate) fn run(&mut self, width: usize, work: impl Fn(&[u64], &mut [f32]) + Sync) -> u64 {
        let rows = AtomicU64::new(0);
        let (batch, seconds) = (self.batch, self.seconds);
        std::thread::scope(|scope| {
            for thread in &mut self.threads {
                let (rows, work) = (&rows, &work);
                scope.spawn(move || {
                    let end = Instant::now() + Duration::from_secs_f64(seconds);
                    while Instant::now() < end {
                        let (ids, buffer) = thread.batch(batch, width);
                        work(ids, buffer);
                        rows.fetch_add(ids.len() as u64, Relaxed);
                    }
                });
            }
        });
        rows.into_inner()
    }

    /// Call `work` with the next batch of the first thread.
    pub(crate) fn one<T>(&mut self, width: usize, work: impl FnOnce(&[u64], &mut [f32]) -> T) -> T {
        let (ids, buffer) = self.threads[0].batch(self.batch, width);
        work(ids, buffer)
    }
}

impl Thread {
    /// The next ids, with `width` floats for each.
    fn batch(&mut self, batch: usize, width: usize) -> (&[u64], &mut [f32]) {
        let first = self.next;
        let end = (first + batch).min(self.ids.len());
        self.next = if end == self.ids.len() { 0 } else { end };
        (&self.ids[first..end], &mut self.buffer[..(end - first) * width])
    }
}

impl Source {
    fn new(settings: &Settings, threads: usize, seed: u64) -> Self {
        if settings.zipf == 0.0 {
            return Self::Uniform(UniformIds::new(settings.rows, seed));
        }
        let ids = ZipfIds::new(settings.rows, settings.zipf, seed).scrambled(settings.seed);
        if settings.drift_every == 0 {
            return Self::Zipf(ids);
        }
        let drift = Drift {
            every: (settings.drift_every / threads as u64).max(1),
            hot: hot_rows(settings),
            share: DRIFT_SHARE,
        };
        // All threads use the same seed for the drift, so they agree on the hot ids.
        Self::Zipf(ids.drifting(drift, settings.seed))
    }
}

/// The hot set: as many of the most frequent rows as fit in memory.
fn hot_rows(settings: &Settings) -> u64 {
    (settings.memory / settings.row_bytes as u64).clamp(1, settings.rows - 1)
}

/// Share of accesses that the best fixed set of `resident` rows would serve.
pub(crate) fn best_static_hits(settings: &Settings, resident: u64) -> f64 {
    let weights = (1..=settings.rows).map(|rank| (rank as f64).powf(-settings.zipf));
    let (mut hits, mut total) = (0.0, 0.0);
    for (rank, weight) in weights.enumerate() {
        total += weight;
        if (rank as u64) < resident {
            hits += weight;
        }
    }
    hits / total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: &str) -> Settings {
        let line = format!("cell --rows 1000 --batch 100 --seconds 0.01 {options}");
        Settings::parse(line.split_whitespace().map(str::to_owned)).unwrap()
    }

    #[test]
    fn batches_continue_in_order_or_are_drawn_again() {
        let mut workload = Workload::new(&settings(""), 1);
        workload.draw();
        let first = workload.one(1, |ids, _| ids.to_vec());
        let second = workload.one(1, |ids, buffer| {
            assert_eq!(buffer.len(), ids.len());
            ids.to_vec()
        });
        assert_ne!(first, second);
        workload.draw();
        assert_ne!(workload.one(1, |ids, _| ids.to_vec()), first);
    }

    #[test]
    fn threads_draw_independently_from_the_same_hot_ids() {
        let settings = settings("--zipf 1.5 --drift-every 1000 --memory 6400 --row-bytes 64");
        let mut workload = Workload::new(&settings, 2);
        workload.draw();
        let hottest = |ids: &[u64]| {
            let mut counts = vec![0; 1000];
            for id in ids {
                counts[*id as usize] += 1;
            }
            (0..1000).max_by_key(|id| counts[*id]).unwrap()
        };
        let last = workload.threads[0].ids.len() - 500;
        let [one, two] = [0, 1].map(|thread| hottest(&workload.threads[thread].ids[last..]));
        assert_eq!(one, two);
        assert_ne!(workload.threads[0].ids[..100], workload.threads[1].ids[..100]);
    }

    #[test]
    fn the_best_set_of_rows_serves_its_share() {
        assert_eq!(best_static_hits(&settings(""), 250), 0.25);
        let zipf = best_static_hits(&settings("--zipf 0.99"), 250);
        assert!((0.78..0.84).contains(&zipf), "{zipf}");
    }
}
