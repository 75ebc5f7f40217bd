//! Shapes and floats for the tests.

use proptest::prelude::*;
use rowmill_kernels::{Lookups, SKIP};
use rowmill_rows::Pooling;

/// A small generator, so that a test case is a few numbers instead of thousands of floats.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (((self.next() >> 32) * end as u64) >> 32) as usize
    }

    /// Floats of all sizes and signs, so that sums round at nearly every step. Some are zeros.
    pub(crate) fn float(&mut self) -> f32 {
        let bits = self.next();
        let value = (bits >> 40) as f32 / (1 << 24) as f32 - 0.5;
        match bits % 16 {
            0 => 0.0,
            1 => -0.0,
            2 => value * 1e-30,
            3 => value * 1e6,
            _ => value,
        }
    }

    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.float()).collect()
    }
}

/// Widths: the specialised ones, their neighbours, and all small ones.
pub(crate) fn dims() -> impl Strategy<Value = usize> {
    prop_oneof![
        1_usize..=40,
        prop::sample::select(vec![16, 32, 48, 64, 96, 112, 128, 192, 256, 320, 384, 768]),
        prop::sample::select(vec![63, 65, 127, 129, 255, 257, 300]),
    ]
}

/// Bags of lookups, owned.
#[derive(Clone, Debug)]
pub(crate) struct Bags {
    pub(crate) unique: usize,
    pub(crate) inverse: Vec<u32>,
    pub(crate) offsets: Vec<i64>,
    pub(crate) weights: Option<Vec<f32>>,
    pub(crate) pooling: Pooling,
}

impl Bags {
    pub(crate) fn lookups(&self) -> Lookups<'_> {
        Lookups {
            inverse: &self.inverse,
            offsets: &self.offsets,
            weights: self.weights.as_deref(),
            pooling: self.pooling,
        }
    }

    /// The lookups of bag `bag` without padding: position and unique index.
    pub(crate) fn bag(&self, bag: usize) -> impl Iterator<Item = (usize, usize)> {
        (self.offsets[bag] as usize..self.offsets[bag + 1] as usize)
            .filter(|&lookup| self.inverse[lookup] != SKIP)
            .map(|lookup| (lookup, self.inverse[lookup] as usize))
    }
}

/// Bags of any length, including empty ones, with repeated rows, unused rows, padding, and lookups before the
/// first and after the last offset.
pub(crate) fn bags() -> impl Strategy<Value = Bags> {
    let lengths = prop::collection::vec(prop_oneof![Just(0_i64), Just(1), 0_i64..30], 0..12);
    let kind = 0_u8..3;
    (lengths, 1_usize..40, 0_i64..3, 0_usize..3, 0_u64..4, kind, any::<u64>()).prop_map(
        |(lengths, unique, before, behind, padding, kind, seed)| {
            let mut random = Random::new(seed);
            let mut offsets = vec![before];
            for length in lengths {
                offsets.push(offsets.last().unwrap() + length);
            }
            let count = *offsets.last().unwrap() as usize + behind;
            let mut index = || {
                if random.next() % 8 < padding { SKIP } else { random.below(unique) as u32 }
            };
            let inverse = (0..count).map(|_| index()).collect();
            let weights = (kind == 2).then(|| random.floats(count));
            let pooling = if kind == 1 { Pooling::Mean } else { Pooling::Sum };
            Bags { unique, inverse, offsets, weights, pooling }
        },
    )
}

/// Compare bits, so that -0 is not 0.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
