//! Threads that call an engine with batches of ids for the length of a round.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rowmill_testkit::{UniformIds, ZipfIds};

use crate::settings::Settings;

/// Ids drawn before the clock starts, per thread.
const IDS: usize = 1 << 22;

/// The ids of every thread, and where each stands among its own.
pub(crate) struct Workload<'a> {
    settings: &'a Settings,
    threads: Vec<Thread>,
}

struct Thread {
    ids: Vec<u64>,
    next: usize,
    buffer: Vec<f32>,
}

impl<'a> Workload<'a> {
    /// Ids as the settings distribute them; frequent ones are spread over the whole range.
    pub(crate) fn new(settings: &'a Settings) -> Self {
        let threads = (0..settings.threads)
            .map(|thread| {
                let seed = settings.seed + thread as u64;
                let mut ids = vec![0; IDS];
                if settings.zipf > 0.0 {
                    ZipfIds::new(settings.rows, settings.zipf, seed).scrambled(settings.seed).fill(&mut ids);
                } else {
                    UniformIds::new(settings.rows, seed).fill(&mut ids);
                }
                Thread { ids, next: 0, buffer: vec![0.25; settings.batch * settings.row_bytes / 4] }
            })
            .collect();
        Self { settings, threads }
    }

    /// Call `work` with a batch of ids and `width` floats per id on every thread until the round is over;
    /// the rows worked on.
    pub(crate) fn run(&mut self, width: usize, work: impl Fn(&[u64], &mut [f32]) + Sync) -> u64 {
        let rows = AtomicU64::new(0);
        let (batch, seconds) = (self.settings.batch, self.settings.seconds);
        std::thread::scope(|scope| {
            for thread in &mut self.threads {
                let (rows, work) = (&rows, &work);
                scope.spawn(move || {
                    let end = Instant::now() + Duration::from_secs_f64(seconds);
                    while Instant::now() < end {
                        let first = thread.next;
                        let ids = &thread.ids[first..(first + batch).min(IDS)];
                        thread.next = (first + ids.len()) % IDS;
                        work(ids, &mut thread.buffer[..ids.len() * width]);
                        rows.fetch_add(ids.len() as u64, Relaxed);
                    }
                });
            }
        });
        rows.into_inner()
    }
}

/// The share of accesses that the best set of `resident` rows, chosen beforehand, would serve.
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
