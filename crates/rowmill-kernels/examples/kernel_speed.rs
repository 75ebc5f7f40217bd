//! How fast are the kernels on this machine? Prints nanoseconds of CPU time per lookup, id, row or sample.
//!
//! `cargo run --release -p rowmill-kernels --example kernel_speed [FILTER]` takes about half a minute. Rows
//! are at random positions in half a GiB of huge pages, as in a store, so the times of pool, gather and apply
//! include cache misses. Ids are uniform (the worst case) or Zipf.

use std::cell::RefCell;
use std::hint::black_box;

use rowmill_kernels::{
    CategoryWork, InstructionSet, Interaction, LookupOrder, Lookups, RankScratch, Rounding, RoundingKey,
    RowArray, RowInitializer, RowPtr, RowUpdater, UniqueScratch, Update, accumulate_range, first_non_finite,
    gather, interact_backward_with, interact_with, owner_unique, pool_array, pool_with, rank_sort,
    segment_unique, segment_unique_by_category,
};
use rowmill_rows::{Dtype, IdBag, Initializer, OptimizerSpec, Pooling};

const MEMORY_BYTES: usize = 1 << 29;
const BAGS: usize = 2048;
/// Samples per interaction: the size of one task, which stays in the L2 cache.
const SAMPLES: usize = 32;
/// Batches to cycle through, so that their rows do not stay in the caches.
const BATCHES: usize = 64;
/// Many short rounds: the best one ran undisturbed by other processes.
const ROUNDS: usize = 40;
const ROUND_SECONDS: f64 = 0.005;

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let memory = Memory::new();
    println!("{:44} {:>9}", "CPU ns per lookup, id or row", "best");
    for (name, question) in QUESTIONS {
        if name.contains(&filter) {
            question(&memory);
        }
    }
}

type Question = fn(&Memory);

const QUESTIONS: [(&str, Question); 10] = [
    ("unique", unique_speed),
    ("exchange", exchange_speed),
    ("pool", pool_speed),
    ("array", array_speed),
    ("gather", gather_speed),
    ("accumulate", accumulate_speed),
    ("apply", apply_speed),
    ("backward", backward_speed),
    ("initialize", initialize_speed),
    ("interaction", interaction_speed),
];

fn unique_speed(_memory: &Memory) {
    for (ids_name, zipf) in [("uniform", false), ("zipf", true)] {
        for length in [1, 20] {
            let batches: Vec<Vec<u64>> =
                (0..BATCHES).map(|seed| ids(seed, BAGS * length, 1 << 20, zipf)).collect();
            let mut scratch = UniqueScratch::default();
            let (mut unique, mut inverse) = (Vec::new(), vec![0; BAGS * length]);
            report(&format!("unique {ids_name} {}", BAGS * length), BAGS * length, |batch| {
                segment_unique(&batches[batch], None, &mut scratch, &mut unique, &mut inverse)
            });
        }
    }
}

/// Work of a rank: the ids of 57 categories before it sends them, and as an owner the ids of 4 ranks.
fn exchange_speed(_memory: &Memory) {
    const CATEGORIES: usize = 57;
    const RANKS: u32 = 4;
    let categories: Vec<u64> = (0..CATEGORIES as u64).collect();
    for length in [1, 20] {
        let per_category = BAGS * length;
        let batches: Vec<Vec<u64>> = (0..4)
            .map(|seed| {
                (0..CATEGORIES)
                    .flat_map(|category| ids(seed * 100 + category, per_category, 1 << 20, true))
                    .collect()
            })
            .collect();
        let offsets: Vec<usize> = (0..=CATEGORIES).map(|category| category * per_category).collect();
        let lookups = CATEGORIES * per_category;
        let mut rank_scratch = RankScratch::default();
        let (mut unique, mut unique_counts) = (vec![0; lookups], vec![0; CATEGORIES]);
        let (mut inverse, mut found) = (vec![0; lookups], 0);
        let scratch = RefCell::new(UniqueScratch::default());
        let one_thread = |parts: usize, work: &CategoryWork<'_>| {
            (0..parts).for_each(|part| work(part, &mut scratch.borrow_mut()));
        };
        report(&format!("unique of {CATEGORIES} categories, {per_category} ids each"), lookups, |batch| {
            let ids = &batches[batch % 4];
            found = segment_unique_by_category(
                ids,
                &offsets,
                &[None; CATEGORIES],
                &mut unique,
                &mut unique_counts,
                &mut inverse,
                1,
                one_thread,
            );
        });
        unique.truncate(found);
        let (mut sorted, mut positions) = (vec![0; unique.len()], vec![0; unique.len()]);
        let mut counts = vec![0; RANKS as usize * CATEGORIES];
        report(&format!("rank sort of {} ids, {RANKS} ranks", unique.len()), unique.len(), |_| {
            rank_sort(
                &unique,
                &unique_counts,
                &categories,
                RANKS,
                &mut rank_scratch,
                &mut sorted,
                &mut positions,
                &mut counts,
            );
        });
        let (mut owned, mut owned_counts) = (vec![0; sorted.len()], vec![0; CATEGORIES]);
        let mut owner_inverse = vec![0; sorted.len()];
        report(&format!("owner unique of {} ids", sorted.len()), sorted.len(), |_| {
            owner_unique(&sorted, &counts, &mut owned, &mut owned_counts, &mut owner_inverse, 1, one_thread);
        });
    }
}

fn pool_speed(memory: &Memory) {
    for set in InstructionSet::available() {
        for dim in [16, 64, 128] {
            for length in [1, 20] {
                for (ids_name, zipf) in [("uniform", false), ("zipf", true)] {
                    let batches: Vec<Batch> =
                        (0..BATCHES).map(|seed| Batch::new(memory, seed, length, dim, zipf)).collect();
                    let mut out = vec![0.0; BAGS * dim];
                    for dtype in [Dtype::F32, Dtype::SplitBf16] {
                        let name = format!("pool {set} {dtype} D={dim} L={length} {ids_name}");
                        report(&name, BAGS * length, |batch| {
                            let Batch { rows, .. } = &batches[batch];
                            let lookups = batches[batch].lookups();
                            // SAFETY: all rows are in `memory`, and `out` has `dim` floats per bag.
                            unsafe { pool_with(set, rows, &lookups, dtype, dim, out.as_mut_ptr(), dim) };
                            out[0]
                        });
                    }
                }
            }
        }
    }
}

/// Rows stored in the order of their ids, in 16 shards. Their output columns are next to those of seven other
/// features.
fn array_speed(memory: &Memory) {
    const SHARDS: usize = 16;
    const FEATURES: usize = 8;
    for dim in [16, 64, 128] {
        let rows = MEMORY_BYTES / 4 / dim;
        let firsts: Vec<RowPtr> = (0..SHARDS).map(|shard| memory.row(dim, shard * (rows / SHARDS))).collect();
        let array = RowArray { firsts: &firsts, stride: 4 * dim, rows: rows as u64 };
        let mut out = vec![0.0; BAGS * dim * FEATURES];
        for length in [1, 20] {
            let offsets: Vec<i64> = (0..=BAGS).map(|bag| (bag * length) as i64).collect();
            for (ids_name, zipf) in [("uniform", false), ("zipf", true)] {
                let batches: Vec<Vec<u64>> =
                    (0..BATCHES).map(|seed| ids(seed, BAGS * length, rows as u64, zipf)).collect();
                let feature = |batch: usize| batch % FEATURES * dim;
                report(&format!("array D={dim} L={length} {ids_name}"), BAGS * length, |batch| {
                    let (ids, padding, pooling) = (&batches[batch][..], None, Pooling::Sum);
                    let bag = IdBag { ids, offsets: &offsets, weights: None, padding, pooling };
                    let out = out[feature(batch)..].as_mut_ptr();
                    // SAFETY: all rows are in `memory`, and `out` has a line of all features per bag.
                    let has_all =
                        unsafe { pool_array(&array, &bag, 0..BAGS, Dtype::F32, dim, out, FEATURES * dim) };
                    assert!(has_all);
                });
            }
        }
    }
}

fn gather_speed(memory: &Memory) {
    for dim in [16, 64, 128] {
        let batches: Vec<Batch> = (0..BATCHES).map(|seed| Batch::new(memory, seed, 1, dim, false)).collect();
        let mut out = vec![0.0; BAGS * dim];
        let rows = batches[0].rows.len();
        report(&format!("gather D={dim}"), rows, |batch| {
            let rows = &batches[batch].rows[..rows.min(batches[batch].rows.len())];
            // SAFETY: all rows are in `memory`.
            unsafe { gather(rows, Dtype::F32, dim, &mut out, dim) };
            out[0]
        });
    }
}

fn accumulate_speed(memory: &Memory) {
    for dim in [16, 64, 128] {
        for length in [1, 20] {
            let batches: Vec<Batch> =
                (0..BATCHES).map(|seed| Batch::new(memory, seed, length, dim, true)).collect();
            let gradients = vec![1.0; BAGS * dim];
            let mut order = LookupOrder::default();
            let mut out = Vec::new();
            report(&format!("order D={dim} L={length} zipf"), BAGS * length, |batch| {
                order.build(&batches[batch].lookups(), batches[batch].rows.len());
                order.unique()
            });
            order.build(&batches[0].lookups(), batches[0].rows.len());
            report(&format!("accumulate D={dim} L={length} zipf"), BAGS * length, |_| {
                out.resize(order.unique() * dim, 0.0);
                // SAFETY: there is one gradient per bag.
                unsafe {
                    accumulate_range(&order, 0..order.unique(), gradients.as_ptr(), dim, dim, &mut out);
                }
                out[0]
            });
            report(&format!("finite D={dim} (per bag)"), BAGS, |_| first_non_finite(&gradients));
        }
    }
}

fn apply_speed(memory: &Memory) {
    let optimizers = [
        ("sgd", OptimizerSpec::Sgd { lr: 0.0 }),
        ("momentum sgd", OptimizerSpec::MomentumSgd { lr: 0.0, momentum: 0.9, nesterov: false }),
        ("adagrad", OptimizerSpec::Adagrad { lr: 0.0, eps: 1e-8, initial_accumulator: 0.0 }),
        ("rowwise adagrad", OptimizerSpec::RowwiseAdagrad { lr: 0.0, eps: 1e-8, initial_accumulator: 0.0 }),
        ("adam", OptimizerSpec::Adam { lr: 0.0, beta1: 0.9, beta2: 0.999, eps: 1e-8 }),
        ("rowwise adam", OptimizerSpec::RowwiseAdam { lr: 0.0, beta1: 0.9, beta2: 0.999, eps: 1e-8 }),
        ("ftrl", OptimizerSpec::Ftrl { lr: 0.0, beta: 1.0, l1: 0.0, l2: 0.0, initial_accumulator: 0.0 }),
    ];
    for dim in [16, 64, 128] {
        for (name, optimizer) in optimizers {
            let stride = (dim + optimizer.state_floats(dim)).next_multiple_of(4);
            let key = RoundingKey::new(1, 2);
            let batches: Vec<Batch> =
                (0..BATCHES).map(|seed| Batch::new(memory, seed, 1, stride, false)).collect();
            let count = batches.iter().map(|batch| batch.rows.len()).min().unwrap_or(0);
            let gradients = vec![1e-3; count * dim];
            let ids: Vec<u64> = (0..count as u64).collect();
            for dtype in Dtype::ALL {
                let updater = RowUpdater::new(&optimizer, dtype, dim);
                let mut step = 0;
                report(&format!("apply {name} {dtype} D={dim}"), count, |batch| {
                    step += 1;
                    let rows: Vec<*mut f32> =
                        batches[batch].rows[..count].iter().map(|row| row.cast_mut()).collect();
                    let update = Update { lr: 1e-3, step, rounding: Some(Rounding { key, ids: &ids }) };
                    // SAFETY: all rows are in `memory`, `stride` floats apart, and no other thread uses them.
                    unsafe { updater.apply_many(&rows, &gradients, &update) };
                });
            }
        }
    }
}

/// The complete backward of a step: sort, sum, update.
fn backward_speed(memory: &Memory) {
    for dim in [16, 64, 128] {
        for length in [1, 20] {
            let batches: Vec<Batch> =
                (0..BATCHES).map(|seed| Batch::new(memory, seed, length, dim, true)).collect();
            let gradients = vec![1e-3; BAGS * dim];
            let updater = RowUpdater::new(&OptimizerSpec::Sgd { lr: 0.0 }, Dtype::F32, dim);
            let update = Update { lr: 1e-3, step: 1, rounding: None };
            let mut order = LookupOrder::default();
            let mut sums = vec![0.0; BAGS * length * dim];
            let rows =
                |batch: &Batch| -> Vec<*mut f32> { batch.rows.iter().map(|row| row.cast_mut()).collect() };
            report(&format!("backward in two passes D={dim} L={length} zipf"), BAGS * length, |batch| {
                let (lookups, rows) = (batches[batch].lookups(), rows(&batches[batch]));
                order.build(&lookups, rows.len());
                let sums = &mut sums[..rows.len() * dim];
                // SAFETY: all rows are in `memory`, and there is one gradient per bag.
                unsafe {
                    accumulate_range(&order, 0..rows.len(), gradients.as_ptr(), dim, dim, sums);
                    updater.apply_many(&rows, sums, &update);
                }
            });
            report(&format!("backward in one pass D={dim} L={length} zipf"), BAGS * length, |batch| {
                let (lookups, rows) = (batches[batch].lookups(), rows(&batches[batch]));
                let unique: Vec<u32> = (0..rows.len() as u32).collect();
                order.build(&lookups, rows.len());
                // SAFETY: as above: rows in `memory`, one gradient per bag.
                unsafe {
                    updater.apply_lookups(&rows, &order, &unique, gradients.as_ptr(), dim, &update);
                }
            });
        }
    }
}

fn initialize_speed(_memory: &Memory) {
    let initializers = [
        ("uniform", Initializer::Uniform { low: -0.1, high: 0.1 }),
        ("normal", Initializer::Normal { mean: 0.0, std: 0.1 }),
        ("truncated", Initializer::TruncatedNormal { mean: 0.0, std: 0.1, low: -0.2, high: 0.2 }),
    ];
    for dim in [16, 64] {
        for (name, initializer) in initializers {
            let rows = RowInitializer::new(&initializer, 1, 2);
            let mut weights = vec![0.0; dim];
            report(&format!("initialize {name} D={dim} (per row)"), 1000, |batch| {
                for id in 0..1000 {
                    rows.fill(batch as u64 * 1000 + id, &mut weights);
                }
                weights[0]
            });
        }
    }
}

fn interaction_speed(_memory: &Memory) {
    for set in InstructionSet::available() {
        for (features, dim) in [(8, 64), (26, 16), (26, 64), (26, 128)] {
            let shape = Interaction { samples: SAMPLES, features, dim };
            // Aligned to cache lines, as tensors are.
            let memory = [shape.dense_len(), shape.pooled_len()].map(|floats| vec![0.01_f32; floats + 16]);
            let aligned = |vec: &Vec<f32>| vec.as_ptr().align_offset(64);
            let [dense, pooled] = [0, 1].map(|n| &memory[n][aligned(&memory[n])..]);
            let (dense, pooled) = (&dense[..shape.dense_len()], &pooled[..shape.pooled_len()]);
            let mut out = vec![0.0; shape.out_len()];
            report(&format!("interact {set} F={features} D={dim} (per sample)"), SAMPLES, |_| {
                interact_with(set, shape, dense, pooled, &mut out);
                out[0]
            });
            let (mut one, mut other) = (dense.to_vec(), pooled.to_vec());
            report(&format!("interact backward {set} F={features} D={dim} (per sample)"), SAMPLES, |_| {
                interact_backward_with(set, shape, dense, pooled, &out, &mut one, &mut other);
                one[0]
            });
        }
    }
}

/// Print the best of some rounds, in ns of this thread's CPU time per unit.
fn report<T>(name: &str, units: usize, mut call: impl FnMut(usize) -> T) {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (start, mut calls) = (cpu_seconds(), 0);
        while cpu_seconds() - start < ROUND_SECONDS {
            for batch in 0..BATCHES {
                black_box(call(batch));
            }
            calls += BATCHES;
        }
        best = best.min((cpu_seconds() - start) * 1e9 / (calls * units) as f64);
    }
    println!("{name:44} {best:9.2}");
}

/// CPU time of this thread in seconds: other processes disturb it less than wall-clock time.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec to write to.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0, "this system has no clock for the CPU time of a thread");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Half a GiB of huge pages with finite floats in them.
struct Memory {
    floats: Vec<f32>,
    start: usize,
}

impl Memory {
    fn new() -> Self {
        const HUGE_BYTES: usize = 2 << 20;
        let mut floats: Vec<f32> = Vec::with_capacity((MEMORY_BYTES + HUGE_BYTES) / 4);
        let start = floats.as_ptr().align_offset(HUGE_BYTES);
        // SAFETY: the range is inside the allocation, and the advice does not change its content.
        unsafe {
            libc::madvise(floats.as_mut_ptr().add(start).cast(), MEMORY_BYTES, libc::MADV_HUGEPAGE);
        }
        floats.resize(floats.capacity(), 0.01);
        Self { floats, start }
    }

    fn row(&self, stride: usize, row: usize) -> RowPtr {
        &raw const self.floats[self.start + row * stride]
    }
}

/// A batch of bags of one length, with its unique rows.
struct Batch {
    rows: Vec<RowPtr>,
    inverse: Vec<u32>,
    offsets: Vec<i64>,
}

impl Batch {
    fn new(memory: &Memory, seed: usize, length: usize, stride: usize, zipf: bool) -> Self {
        let ids = ids(seed, BAGS * length, (MEMORY_BYTES / 4 / stride) as u64, zipf);
        let (mut unique, mut inverse) = (Vec::new(), vec![0; ids.len()]);
        segment_unique(&ids, None, &mut UniqueScratch::default(), &mut unique, &mut inverse);
        let rows = unique.iter().map(|&id| memory.row(stride, id as usize)).collect();
        let offsets = (0..=BAGS).map(|bag| (bag * length) as i64).collect();
        Self { rows, inverse, offsets }
    }

    fn lookups(&self) -> Lookups<'_> {
        Lookups { inverse: &self.inverse, offsets: &self.offsets, weights: None, pooling: Pooling::Sum }
    }
}

/// Ids in `[0, range)`, uniform or approximately Zipf with exponent 1.05 (by the inverse of its integral),
/// scattered over the range.
fn ids(seed: usize, count: usize, range: u64, zipf: bool) -> Vec<u64> {
    const EXPONENT: f64 = 1.05;
    let mut state = 0x5851_f42d_4c95_7f2d_u64.wrapping_mul(seed as u64 + 1);
    let total = 1.0 - (range as f64).powf(1.0 - EXPONENT);
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let u = (state >> 11) as f64 / (1_u64 << 53) as f64;
            if zipf {
                let rank = (1.0 - u * total).powf(1.0 / (1.0 - EXPONENT)) as u64;
                rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % range
            } else {
                (u * range as f64) as u64
            }
        })
        .collect()
}
