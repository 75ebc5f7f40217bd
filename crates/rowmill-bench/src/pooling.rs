//! The limit of pooled lookups by a hash index: two bare loops, with and without the cache miss of a bucket.
//!
//! `array` reads the row at the position that is the id. `index` reads a bucket first, which has the position. Neither
//! hashes, compares ids, counts or takes a lock. So a store with a hash index gets nearer to an array than `index` only
//! where the array's own lookups take longer than `array`.

use std::time::{Duration, Instant};

use rowmill_testkit::{UniformIds, ZipfIds};

use crate::measure::{print, sample};
use crate::memory_probe::MemoryProbe;
use crate::settings::Settings;

/// Ids that are drawn before the clock starts: more than any cache has rows.
const IDS: usize = 1 << 25;

/// A loop over ids, with the ids of one vector and the vectors.
type Pool = fn(&MemoryProbe, &[u64], usize, &mut [f32]);

/// One thread. Calls take turns over the tables, with `--batch` vectors of `--bag` ids each.
pub(crate) fn run(settings: &Settings) {
    let tables: Vec<_> =
        (0..settings.tables).map(|_| MemoryProbe::new(settings.rows, settings.row_bytes)).collect();
    let ids = draw(settings);
    let mut out = vec![0.0; settings.batch * settings.row_bytes / size_of::<f32>()];
    let ways: [(&str, Pool); 2] = [("array", MemoryProbe::pool_array), ("index", MemoryProbe::pool)];
    let mut calls =
        ways.map(|_| tables.iter().cycle().zip(ids.chunks_exact(settings.batch * settings.bag).cycle()));
    for round in 0..settings.rounds {
        for ((engine, pool), calls) in ways.iter().zip(&mut calls) {
            print(&sample(engine, 1, round, || {
                let end = Instant::now() + Duration::from_secs_f64(settings.seconds);
                let mut rows = 0;
                while Instant::now() < end {
                    let (table, ids) = calls.next().expect("both take turns for ever");
                    pool(table, ids, settings.bag, &mut out);
                    rows += ids.len() as u64;
                }
                rows
            }));
        }
    }
}

/// Ids as in the settings. Frequent ids are spread over the whole range.
fn draw(settings: &Settings) -> Vec<u64> {
    let mut ids = vec![0; IDS.max(settings.batch * settings.bag)];
    if settings.zipf == 0.0 {
        UniformIds::new(settings.rows, settings.seed).fill(&mut ids);
    } else {
        ZipfIds::new(settings.rows, settings.zipf, settings.seed).scrambled(settings.seed).fill(&mut ids);
    }
    ids
}
