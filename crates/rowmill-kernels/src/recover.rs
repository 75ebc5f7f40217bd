//! Recovery: pool bags directly from the rows of a message, by one combined index (`FusedRec`, Section 3),
//! and the backward.

use rowmill_rows::{Dtype, Pooling};

use crate::arch::{InstructionSet, Kernel, Vector, prefetch};
use crate::float::Float;
use crate::{Lookups, Message, RowPtr, SKIP, pool};

/// How many bags ahead to prefetch gradients: lines of the output are too far apart for the hardware
/// prefetcher. A backward of 512 samples and 200 features of 4 to 64 floats takes 2.0 ms with prefetching,
/// 2.3 ms without.
const PREFETCH_DISTANCE: usize = 24;

/// A feature to pool.
#[derive(Clone, Copy, Debug)]
pub struct RecoveredFeature {
    /// Floats per row.
    pub dim: usize,
    /// First column of its vectors in a line of the output.
    pub column: usize,
    /// How a bag is pooled into one vector.
    pub pooling: Pooling,
}

/// The bags of `F` features over the rows of one message, with `B` bags per feature.
#[derive(Clone, Copy, Debug)]
pub struct Recovery<'a> {
    /// Layout of the message.
    pub message: Message<'a>,
    /// For every lookup, the number of its row in the message, or [`SKIP`].
    pub combined: &'a [u32],
    /// Bag `b` of feature `f` has the lookups `offsets[f * B + b]..offsets[f * B + b + 1]`.
    pub offsets: &'a [i64],
    /// One factor per lookup; only for sums.
    pub weights: Option<&'a [f32]>,
    /// The `F` features.
    pub features: &'a [RecoveredFeature],
    /// Bags per feature, `B`.
    pub bags: usize,
    /// Floats from the start of one line of the output to the next.
    pub stride: usize,
}

impl<'a> Recovery<'a> {
    /// Offset of each row in floats. Panics if any index exceeds `wire` or `out`, given their lengths in
    /// floats.
    fn starts(&self, wire: usize, out: usize) -> Vec<usize> {
        assert_eq!(Some(wire), self.message.floats(), "wire must have the length of the message");
        // Sizes come from callers: a product that overflows would let `recover` write out of bounds.
        assert_eq!(Some(out), self.bags.checked_mul(self.stride), "out must have bags * stride numbers");
        let ends = self.features.len().checked_mul(self.bags).and_then(|bags| bags.checked_add(1));
        assert_eq!(Some(self.offsets.len()), ends, "offsets must have one entry per bag and one more");
        assert!(self.offsets.is_sorted(), "offsets must not decrease");
        assert_eq!(
            (self.offsets[0], self.offsets[self.offsets.len() - 1]),
            (0, self.combined.len() as i64),
            "offsets must run from 0 to the number of lookups"
        );
        let weights = self.weights.map_or(self.combined.len(), <[f32]>::len);
        assert_eq!(weights, self.combined.len(), "weights must have one entry per lookup");
        let starts = self.message.starts();
        for (number, feature) in self.features.iter().enumerate() {
            let columns = feature.column.checked_add(feature.dim);
            assert!(
                columns.is_some_and(|end| end <= self.stride),
                "a feature's columns must be within the stride"
            );
            let (begin, end) =
                (self.offsets[number * self.bags] as usize, self.offsets[(number + 1) * self.bags] as usize);
            let fits =
                |row: u32| wire.checked_sub(starts[row as usize]).is_some_and(|left| feature.dim <= left);
            let inside = |&row: &u32| row == SKIP || fits(row);
            assert!(
                self.combined[begin..end].iter().all(inside),
                "every lookup's row must be within the message"
            );
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

/// Pool every bag into `out[b * stride + column..][..dim]` of each feature.
///
/// Equals [`pool`] of the same rows bit for bit. Output of type bfloat16 is rounded to nearest.
///
/// # Panics
/// If lengths do not agree, offsets decrease, or rows or columns exceed their buffers.
pub fn recover<T: Float>(recovery: &Recovery<'_>, wire: &[f32], out: &mut [T]) {
    let starts = recovery.starts(wire.len(), out.len());
    let base = wire.as_ptr();
    let rows: Vec<RowPtr> = starts.iter().map(|&start| base.wrapping_add(start)).collect();
    if recovery.bags == 0 {
        return;
    }
    for (feature, lookups) in recovery.features() {
        // SAFETY: `starts` has checked every lookup, so its row has `dim` floats in `wire`, and every line of
        // the output has the feature's columns.
        unsafe {
            let out = out.as_mut_ptr().add(feature.column);
            pool(&rows, &lookups, Dtype::F32, feature.dim, out, recovery.stride);
        }
    }
}

/// The backward of [`recover`]: set every row of `wire` to its gradient, the sum over its lookups in order.
///
/// # Panics
/// As for [`recover`].
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
        // SAFETY: `starts` has checked every lookup, so its row has `dim` floats in `wire`, and every line of
        // the gradients has the feature's columns.
        unsafe { InstructionSet::best().run(spread) };
    }
}

/// Adds the gradients of one feature's bags to the gradients of their rows.
struct Spread<'a, T> {
    lookups: Lookups<'a>,
    /// Offset of each row in `wire`, in floats.
    starts: &'a [usize],
    /// Gradient of the first bag; bags are `stride` numbers apart.
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
            // Beyond the last bag, this prefetches unused addresses, which is harmless.
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
                // SAFETY: `recover_backward` has checked that rows and gradients are in bounds.
                unsafe {
                    let sums = wire.add(starts[row as usize]);
                    add_scaled::<V, T>(sums, gradients.add(bag * stride), factor, dim);
                }
            }
        }
    }
}

/// `sums += factor * values`, with product and sum each rounded.
///
/// # Safety
/// Both have `dim` numbers. Only call this inside [`InstructionSet::run`].
#[inline(always)]
unsafe fn add_scaled<V: Vector, T: Float>(sums: *mut f32, values: *const T, factor: f32, dim: usize) {
    // SAFETY: the caller upholds the contract.
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

/// The gradient of every lookup's factor: the dot product of its row and the gradient of its bag, added in
/// order. It is 0 for padding.
///
/// # Panics
/// As for [`recover`]; also if a feature is pooled to means, which have no factors.
pub fn weights_backward(recovery: &Recovery<'_>, wire: &[f32], gradients: &[f32], factors: &mut [f32]) {
    let starts = recovery.starts(wire.len(), gradients.len());
    assert_eq!(factors.len(), recovery.combined.len(), "factors must have one entry per lookup");
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
