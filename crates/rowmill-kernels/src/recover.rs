//! Recovery: bags pooled straight from the rows of a message, by one combined index (`FusedRec`, Section 3), and back.

use rowmill_rows::{Dtype, Pooling};

use crate::arch::{InstructionSet, Kernel, Vector, prefetch};
use crate::float::Float;
use crate::{Lookups, Message, RowPtr, SKIP, pool};

/// How many bags ahead of the one being spread gradients are asked for: lines of the output lie too far apart for the
/// processor to see a pattern. A backward of 512 samples and 200 features of 4 to 64 floats takes 2.0 ms, 2.3 without.
const PREFETCH_DISTANCE: usize = 24;

/// A feature whose bags are pooled.
#[derive(Clone, Copy, Debug)]
pub struct RecoveredFeature {
    /// Floats of a row.
    pub dim: usize,
    /// Where its vectors begin in a line of the output.
    pub column: usize,
    /// How a bag becomes one vector.
    pub pooling: Pooling,
}

/// The bags of several features over the rows of one message.
#[derive(Clone, Copy, Debug)]
pub struct Recovery<'a> {
    /// What the message holds.
    pub message: Message<'a>,
    /// For every lookup its row in the message, or [`SKIP`].
    pub combined: &'a [u32],
    /// Bag `b` of feature `f` has the lookups `offsets[f * B + b]..offsets[f * B + b + 1]`.
    pub offsets: &'a [i64],
    /// One factor per lookup, for sums.
    pub weights: Option<&'a [f32]>,
    /// `F` of them.
    pub features: &'a [RecoveredFeature],
    /// `B`.
    pub bags: usize,
    /// Floats from one line of the output to the next.
    pub stride: usize,
}

impl<'a> Recovery<'a> {
    /// Where each row begins; panics if anything reaches beyond `wire` or `out`, by their numbers of floats.
    fn starts(&self, wire: usize, out: usize) -> Vec<usize> {
        assert_eq!(Some(wire), self.message.floats(), "a value for every row of the message");
        // Sizes come from callers: a product that wraps around would let `recover` write anywhere.
        assert_eq!(Some(out), self.bags.checked_mul(self.stride), "a line for every bag");
        let ends = self.features.len().checked_mul(self.bags).and_then(|bags| bags.checked_add(1));
        assert_eq!(Some(self.offsets.len()), ends, "an end for every bag");
        assert!(self.offsets.is_sorted(), "offsets must not decrease");
        assert_eq!(
            (self.offsets[0], self.offsets[self.offsets.len() - 1]),
            (0, self.combined.len() as i64),
            "offsets run from 0 to the number of lookups"
        );
        let weights = self.weights.map_or(self.combined.len(), <[f32]>::len);
        assert_eq!(weights, self.combined.len(), "a factor for every lookup");
        let starts = self.message.starts();
        for (number, feature) in self.features.iter().enumerate() {
            let columns = feature.column.checked_add(feature.dim);
            assert!(columns.is_some_and(|end| end <= self.stride), "a column for every float");
            let (begin, end) =
                (self.offsets[number * self.bags] as usize, self.offsets[(number + 1) * self.bags] as usize);
            let fits =
                |row: u32| wire.checked_sub(starts[row as usize]).is_some_and(|left| feature.dim <= left);
            let inside = |&row: &u32| row == SKIP || fits(row);
            assert!(self.combined[begin..end].iter().all(inside), "a row for every lookup");
        }
        starts
    }

    /// The lookups of every feature.
    fn features(&self) -> impl Iterator<Item = (RecoveredFeature, Lookups<'a>)> {
        let Self { combined, offsets, weights, bags, .. } = *self;
        self.features.iter().enumerate().map(move |(number, &feature)| {
            let offsets = &offsets[number * bags..=(number + 1) * bags];
            (feature, Lookups { inverse: combined, offsets, weights, pooling: feature.pooling })
        })
    }
}

/// Pool every bag: `out[b * stride + column..][..dim]` of each feature.
///
/// Bit for bit what [`pool`] makes of the same rows, rounded to the nearest where it is written as bfloat16.
///
/// # Panics
/// If lengths do not agree, offsets decrease, or rows or columns reach beyond their buffers.
pub fn recover<T: Float>(recovery: &Recovery<'_>, wire: &[f32], out: &mut [T]) {
    let starts = recovery.starts(wire.len(), out.len());
    let base = wire.as_ptr();
    let rows: Vec<RowPtr> = starts.iter().map(|&start| base.wrapping_add(start)).collect();
    if recovery.bags == 0 {
        return;
    }
    for (feature, lookups) in recovery.features() {
        // SAFETY: `starts` looked at every lookup: its row has `dim` floats in `wire`; and every line of the output has
        // the feature's columns.
        unsafe {
            let out = out.as_mut_ptr().add(feature.column);
            pool(&rows, &lookups, Dtype::F32, feature.dim, out, recovery.stride);
        }
    }
}

/// The backward of [`recover`]: fill `wire` with the gradient of every row, the sum of those of its lookups in their
/// order.
///
/// # Panics
/// As [`recover`].
pub fn recover_backward<T: Float>(recovery: &Recovery<'_>, gradients: &[T], wire: &mut [f32]) {
    let starts = recovery.starts(wire.len(), gradients.len());
    wire.fill(0.0);
    for (feature, lookups) in recovery.features() {
        let spread = Spread {
            lookups,
            starts: &starts,
            gradients: gradients.as_ptr().wrapping_add(feature.column),
            stride: recovery.stride,
            dim: feature.dim,
            wire: wire.as_mut_ptr(),
        };
        // SAFETY: `starts` looked at every lookup: its row has `dim` floats in `wire`; and every line of the gradients has
        // the feature's columns.
        unsafe { InstructionSet::best().run(spread) };
    }
}

/// The gradients of one feature's bags, added to those of the rows that they were pooled from.
struct Spread<'a, T> {
    lookups: Lookups<'a>,
    /// Where each row begins in `wire`.
    starts: &'a [usize],
    /// Of the first bag; `stride` floats from one to the next.
    gradients: *const T,
    stride: usize,
    dim: usize,
    wire: *mut f32,
}

impl<T: Float> Kernel for Spread<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { lookups, starts, gradients, stride, dim, wire } = self;
        for bag in 0..lookups.bags() {
            // Past the last bag it asks for what nobody reads, which is no fault.
            prefetch(gradients.wrapping_add((bag + PREFETCH_DISTANCE) * stride).cast(), size_of::<T>() * dim);
            let share = match lookups.pooling {
                Pooling::Mean => 1.0 / lookups.count(bag).max(1) as f32,
                Pooling::Sum => 1.0,
            };
            for lookup in lookups.offsets[bag] as usize..lookups.offsets[bag + 1] as usize {
                let row = lookups.inverse[lookup];
                if row == SKIP {
                    continue;
                }
                let factor = lookups.weights.map_or(share, |weights| weights[lookup]);
                // SAFETY: as the caller says of rows and gradients.
                unsafe {
                    let sums = wire.add(starts[row as usize]);
                    add_scaled::<V, T>(sums, gradients.add(bag * stride), factor, dim);
                }
            }
        }
    }
}

/// `sums += factor * values`, both rounded.
///
/// # Safety
/// Both have `dim` floats; only called below [`InstructionSet::run`].
#[inline(always)]
unsafe fn add_scaled<V: Vector, T: Float>(sums: *mut f32, values: *const T, factor: f32, dim: usize) {
    // SAFETY: the caller's.
    unsafe {
        let factor = V::splat(factor);
        for column in (0..dim).step_by(V::LANES) {
            let count = V::LANES.min(dim - column);
            let sum = V::load_up_to(sums.add(column), count);
            let value = T::load_up_to::<V>(values.add(column), count);
            sum.add(value.mul(factor)).store_up_to(sums.add(column), count);
        }
    }
}

/// The gradient of every lookup's factor: what its row and the gradient of its bag come to, multiplied and added up in
/// order. That of a lookup without a row is 0.
///
/// # Panics
/// As [`recover`]; if bags become means, which have no factors.
pub fn weights_backward(recovery: &Recovery<'_>, wire: &[f32], gradients: &[f32], factors: &mut [f32]) {
    let starts = recovery.starts(wire.len(), gradients.len());
    assert_eq!(factors.len(), recovery.combined.len(), "a factor for every lookup");
    for (feature, lookups) in recovery.features() {
        assert_eq!(feature.pooling, Pooling::Sum, "means have no factors");
        for bag in 0..recovery.bags {
            let gradient = &gradients[bag * recovery.stride + feature.column..][..feature.dim];
            let ends = lookups.offsets[bag] as usize..lookups.offsets[bag + 1] as usize;
            for (factor, &row) in factors[ends.clone()].iter_mut().zip(&lookups.inverse[ends]) {
                *factor = if row == SKIP {
                    0.0
                } else {
                    let row = &wire[starts[row as usize]..][..feature.dim];
                    row.iter().zip(gradient).map(|(weight, gradient)| weight * gradient).sum()
                };
            }
        }
    }
}
