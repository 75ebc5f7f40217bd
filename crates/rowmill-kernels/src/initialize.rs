//! Initialize: the initial weights of a row, a pure function of (seed, category, id, element).
//!
//! Random bits come from a counter: each pair of elements of a row uses one output of `SplitMix64`
//! ([`crate::hash`]), whose state starts at a hash of seed, category and id. For one (seed, category), the
//! hash is a bijection of the id, so no two ids share a state.
//!
//! Stored data depends on these bits: an id without a stored row has its initial value. So they must never
//! change; a test pins them.

use rowmill_rows::{Dtype, Initializer};
use rowmill_splitmix::{STEP, absorb, mix};

use crate::arch::{InstructionSet, Kernel, Vector};
use crate::bf16;
use crate::normal_quantile::{lower_tail, quantiles};

/// Most draws per block. The buffers of a block stay in the L1 cache.
const BLOCK: usize = 32;

/// Draws the initial weights of the rows of one table.
#[derive(Clone, Copy, Debug)]
pub struct RowInitializer {
    distribution: Distribution,
    /// Hash of seed and category.
    key: u64,
    dtype: Dtype,
    set: InstructionSet,
}

/// An [`Initializer`] with all precomputed values that do not depend on the row.
#[derive(Clone, Copy, Debug)]
enum Distribution {
    Constant { value: f32 },
    Uniform { low: f32, high: f32, largest: f32 },
    Normal { mean: f64, std: f64 },
    Truncated { mean: f64, scale: f64, begin: f64, width: f64, low: f32, high: f32 },
}

/// Fill `weights` with the initial weights of one row. For many rows, keep a [`RowInitializer`].
pub fn initialize(initializer: &Initializer, seed: u64, category: u32, id: u64, weights: &mut [f32]) {
    RowInitializer::new(initializer, seed, category).fill(id, weights);
}

impl RowInitializer {
    /// An initializer for the rows of `category` in a store with seed `seed`.
    pub fn new(initializer: &Initializer, seed: u64, category: u32) -> Self {
        Self::with(InstructionSet::best(), initializer, seed, category)
    }

    /// [`RowInitializer::new`] with a chosen instruction set.
    pub fn with(set: InstructionSet, initializer: &Initializer, seed: u64, category: u32) -> Self {
        let key = absorb(absorb(0, seed), u64::from(category));
        Self { distribution: Distribution::new(initializer), key, dtype: Dtype::F32, set }
    }

    /// The same for weights stored as `dtype`: values are rounded to the nearest number of that type.
    #[must_use]
    pub fn for_dtype(self, dtype: Dtype) -> Self {
        Self { dtype, ..self }
    }

    /// Fill `weights` with the initial weights of row `id`.
    pub fn fill(&self, id: u64, weights: &mut [f32]) {
        if let Distribution::Constant { value } = self.distribution {
            weights.fill(value);
        } else {
            let state = absorb(self.key, id);
            let fill = Fill { distribution: self.distribution, state, weights: &mut *weights };
            // SAFETY: the kernel has no requirements.
            unsafe { self.set.run(fill) }
        }
        match self.dtype {
            Dtype::F32 | Dtype::SplitBf16 => {}
            Dtype::Bf16 => bf16::round(self.set, weights),
        }
    }
}

impl Distribution {
    fn new(initializer: &Initializer) -> Self {
        match *initializer {
            Initializer::Zeros => Self::Constant { value: 0.0 },
            Initializer::Constant { value } => Self::Constant { value },
            Initializer::Uniform { low, high } => Self::Uniform { low, high, largest: high.next_down() },
            Initializer::Normal { mean, std } => Self::Normal { mean: f64::from(mean), std: f64::from(std) },
            Initializer::TruncatedNormal { mean, std, low, high } => {
                let (mean, std) = (f64::from(mean), f64::from(std));
                let (mut begin, mut end) = ((f64::from(low) - mean) / std, (f64::from(high) - mean) / std);
                // Probabilities near 0 have more digits than probabilities near 1, so an interval in the
                // upper tail is mirrored.
                let mut scale = std;
                if begin > 0.0 {
                    (begin, end, scale) = (-end, -begin, -std);
                }
                let begin = lower_tail(begin);
                let end = if end <= 0.0 { lower_tail(end) } else { 1.0 - lower_tail(-end) };
                Self::Truncated { mean, scale, begin, width: end - begin, low, high }
            }
        }
    }
}

struct Fill<'a> {
    distribution: Distribution,
    state: u64,
    weights: &'a mut [f32],
}

impl Kernel for Fill<'_> {
    type Output = ();

    /// Loops of a length known only at run time: the compiler vectorises these for each instruction set, but
    /// unrolls short loops of fixed length instead.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (mut draws, mut values) = ([0; BLOCK], [0.0; BLOCK]);
        for (block, weights) in self.weights.chunks_mut(BLOCK).enumerate() {
            let count = weights.len();
            let values = &mut values[..count];
            draw(self.state, block * BLOCK, &mut draws[..count.next_multiple_of(2)]);
            match self.distribution {
                Distribution::Constant { value } => weights.fill(value),
                Distribution::Uniform { low, high, largest } => {
                    for (weight, bits) in weights.iter_mut().zip(draws) {
                        // 24 bits: every multiple of 2^-24 below 1 is a float, and all are equally likely.
                        let u = (bits >> 8) as i32 as f32 / (1 << 24) as f32;
                        *weight = (low * (1.0 - u) + high * u).max(low).min(largest);
                    }
                }
                Distribution::Normal { mean, std } => {
                    for (value, bits) in values.iter_mut().zip(draws) {
                        *value = open_unit(bits);
                    }
                    quantiles(values);
                    for (weight, z) in weights.iter_mut().zip(values) {
                        *weight = (mean + std * *z) as f32;
                    }
                }
                Distribution::Truncated { mean, scale, begin, width, low, high } => {
                    for (value, bits) in values.iter_mut().zip(draws) {
                        *value = begin + width * open_unit(bits);
                    }
                    quantiles(values);
                    for (weight, z) in weights.iter_mut().zip(values) {
                        *weight = ((mean + scale * *z) as f32).max(low).min(high);
                    }
                }
            }
        }
    }
}

/// The draws of a row from element `first` on. `first` and the number of draws are even.
#[inline(always)]
fn draw(state: u64, first: usize, draws: &mut [u32]) {
    let mut counter = state.wrapping_add((first as u64 / 2).wrapping_mul(STEP));
    for pair in draws.chunks_exact_mut(2) {
        counter = counter.wrapping_add(STEP);
        let bits = mix(counter);
        pair[0] = bits as u32;
        pair[1] = (bits >> 32) as u32;
    }
}

/// The midpoint of one of 2^32 equal parts of (0, 1).
#[inline(always)]
fn open_unit(bits: u32) -> f64 {
    (f64::from(bits) + 0.5) / (1_u64 << 32) as f64
}
