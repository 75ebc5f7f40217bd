//! Interaction: the dot products of all pairs of a sample's vectors, and the backward.
//!
//! A sample has `features + 1` vectors: one dense vector, then the pooled ones (Naumov et al. 2019, arXiv
//! 1906.00091). A sample whose vectors are aligned whole lines of 32-bit floats is read where it lies. Any other one
//! is copied to such lines, padded with zeros so that loops need no tails. Neither the stacked vectors of a batch nor
//! the square of all products is written to memory.

use std::ops::Range;

use crate::arch::{InstructionSet, Kernel, Vector, prefetch};
use crate::float::Float;

/// Vectors multiplied with as many others at a time. The partial sums and factors fit into 32 registers.
const BLOCK: usize = 4;

/// Partial sums of a dot product: partial `p` sums elements `p`, `p + 16`, `p + 32`, ... Every instruction
/// set computes these and adds them in one order, so all give the same bits.
const PARTIALS: usize = 16;

/// The shape of an interaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interaction {
    /// Number of samples, B.
    pub samples: usize,
    /// Number of pooled vectors per sample, F.
    pub features: usize,
    /// Floats per vector, D.
    pub dim: usize,
}

impl Interaction {
    /// Vectors per sample: the dense one and the pooled ones.
    pub fn vectors(&self) -> usize {
        self.features + 1
    }

    /// Pairs of distinct vectors per sample.
    pub fn pairs(&self) -> usize {
        self.vectors() * self.features / 2
    }

    /// Floats per sample of the output: the dense vector, then one product per pair.
    pub fn width(&self) -> usize {
        self.dim + self.pairs()
    }

    /// Floats of all dense vectors, `[B, D]`.
    pub fn dense_len(&self) -> usize {
        self.samples * self.dim
    }

    /// Floats of all pooled vectors, `[B, F, D]`.
    pub fn pooled_len(&self) -> usize {
        self.samples * self.features * self.dim
    }

    /// Floats of the output, `[B, D + F (F + 1) / 2]`.
    pub fn out_len(&self) -> usize {
        self.samples * self.width()
    }

    /// Whether every length of this shape fits `usize`. The longest are the buffers of one sample's padded
    /// vectors and products, and as many floats for every sample.
    pub fn fits(&self) -> bool {
        let Self { samples, features, dim } = *self;
        let floats = || {
            let vectors = features.checked_add(1)?.checked_next_multiple_of(BLOCK)?;
            let stride = dim.checked_add(vectors)?.checked_next_multiple_of(PARTIALS)?;
            vectors.checked_mul(stride)?.checked_mul(samples.max(1))
        };
        floats().is_some()
    }

    /// The same shape with the number of samples of a range.
    #[must_use]
    pub fn part(&self, samples: &Range<usize>) -> Self {
        Self { samples: samples.len(), ..*self }
    }
}

/// Write for each sample its dense vector, then the products of all pairs of its vectors: the lower triangle
/// without the diagonal, row by row.
///
/// # Panics
/// If the length of a slice does not match `shape`, or the shape overflows ([`Interaction::fits`]).
pub fn interact<T: Float>(shape: Interaction, dense: &[T], pooled: &[T], out: &mut [T]) {
    interact_with(InstructionSet::best(), shape, dense, pooled, out);
}

/// [`interact`] with a chosen instruction set.
///
/// # Panics
/// As for [`interact`].
pub fn interact_with<T: Float>(
    set: InstructionSet,
    shape: Interaction,
    dense: &[T],
    pooled: &[T],
    out: &mut [T],
) {
    assert!(shape.fits(), "the lengths of {shape:?} overflow usize");
    check("dense", dense.len(), shape.dense_len());
    check("pooled", pooled.len(), shape.pooled_len());
    check("out", out.len(), shape.out_len());
    // SAFETY: the slices have the lengths that the kernel requires, as checked above.
    unsafe { set.run(Forward { shape, dense, pooled, out }) }
}

/// The gradients of dense and pooled vectors, given the gradient of the output of [`interact`].
///
/// # Panics
/// If the length of a slice does not match `shape`, or the shape overflows ([`Interaction::fits`]).
pub fn interact_backward<T: Float>(
    shape: Interaction,
    dense: &[T],
    pooled: &[T],
    gradient: &[T],
    dense_gradient: &mut [T],
    pooled_gradient: &mut [T],
) {
    let set = InstructionSet::best();
    interact_backward_with(set, shape, dense, pooled, gradient, dense_gradient, pooled_gradient);
}

/// [`interact_backward`] with a chosen instruction set.
///
/// # Panics
/// As for [`interact_backward`].
pub fn interact_backward_with<T: Float>(
    set: InstructionSet,
    shape: Interaction,
    dense: &[T],
    pooled: &[T],
    gradient: &[T],
    dense_gradient: &mut [T],
    pooled_gradient: &mut [T],
) {
    assert!(shape.fits(), "the lengths of {shape:?} overflow usize");
    check("dense", dense.len(), shape.dense_len());
    check("pooled", pooled.len(), shape.pooled_len());
    check("gradient", gradient.len(), shape.out_len());
    check("dense_gradient", dense_gradient.len(), shape.dense_len());
    check("pooled_gradient", pooled_gradient.len(), shape.pooled_len());
    let backward = Backward { shape, dense, pooled, gradient, dense_gradient, pooled_gradient };
    // SAFETY: the slices have the lengths that the kernel requires, as checked above.
    unsafe { set.run(backward) }
}

fn check(name: &str, got: usize, expected: usize) {
    assert_eq!(got, expected, "{name} has {got} floats, the shape needs {expected}");
}

struct Forward<'a, T> {
    shape: Interaction,
    dense: &'a [T],
    pooled: &'a [T],
    out: &'a mut [T],
}

impl<T: Float> Kernel for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Interaction { features, dim, .. } = self.shape;
        let (vectors, width) = (self.shape.vectors(), self.shape.width());
        let mut sample = Sample::new(vectors, dim);
        let mut products = Lines::new(vectors, vectors);
        for number in 0..self.shape.samples {
            let dense = &self.dense[number * dim..][..dim];
            // SAFETY: the caller upholds the contract.
            unsafe { sample.fill::<V, T>(dense, &self.pooled[number * features * dim..][..features * dim]) };
            let next = self.pooled.get((number + 1) * features * dim..).unwrap_or_default();
            let next = &next[..next.len().min(features * dim)];
            // SAFETY: both buffers were made for these vectors.
            unsafe { multiply::<V>(&sample, &mut products, next.as_ptr().cast(), size_of_val(next)) };
            let (copy, mut pairs) = self.out[number * width..][..width].split_at_mut(dim);
            copy.copy_from_slice(dense);
            for row in 1..vectors {
                // A whole vector takes fewer instructions than its first lanes. What it writes behind this row, the next ones
                // write again.
                let whole = row.next_multiple_of(V::LANES);
                let count = if whole <= pairs.len() { whole } else { row };
                // SAFETY: the caller upholds the contract.
                unsafe { convert::<V, _, _>(&products.vector(row)[..count], &mut pairs[..count]) };
                pairs = &mut pairs[row..];
            }
        }
    }
}

struct Backward<'a, T> {
    shape: Interaction,
    dense: &'a [T],
    pooled: &'a [T],
    gradient: &'a [T],
    dense_gradient: &'a mut [T],
    pooled_gradient: &'a mut [T],
}

impl<T: Float> Kernel for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Interaction { features, dim, .. } = self.shape;
        let (vectors, width) = (self.shape.vectors(), self.shape.width());
        let mut sample = Sample::new(vectors, dim);
        let mut sums = Lines::new(vectors, dim);
        let mut factors = Lines::new(vectors, vectors);
        for number in 0..self.shape.samples {
            let dense = &self.dense[number * dim..][..dim];
            // SAFETY: the caller upholds the contract.
            unsafe { sample.fill::<V, T>(dense, &self.pooled[number * features * dim..][..features * dim]) };
            let (copied, mut pairs) = self.gradient[number * width..][..width].split_at(dim);
            for row in 1..vectors {
                let (source, rest) = pairs.split_at(row);
                for (column, factor) in source.iter().enumerate() {
                    let factor = factor.widen();
                    factors.vector_mut(row)[column] = factor;
                    factors.vector_mut(column)[row] = factor;
                }
                pairs = rest;
            }
            // SAFETY: all three buffers were made for these vectors.
            unsafe { combine::<V>(&factors, &sample, &mut sums, vectors) };
            for (sum, copied) in sums.vector_mut(0).iter_mut().zip(copied) {
                *sum += copied.widen();
            }
            let targets = &mut self.pooled_gradient[number * features * dim..][..features * dim];
            // SAFETY: the caller upholds the contract.
            unsafe {
                convert::<V, _, _>(&sums.vector(0)[..dim], &mut self.dense_gradient[number * dim..][..dim]);
                for (feature, target) in targets.chunks_exact_mut(dim.max(1)).enumerate() {
                    convert::<V, _, _>(&sums.vector(feature + 1)[..dim], target);
                }
            }
        }
    }
}

/// Compute the product of every vector with the vectors before it. Values on and above the diagonal are not meaningful.
/// Meanwhile `next_bytes` from `next` on are prefetched: the vectors of a request that another core has looked up are in the
/// caches of that core.
///
/// # Safety
/// Only call this inside [`InstructionSet::run`]; `products` has as many vectors as `sample`, each of as many
/// floats.
#[inline(always)]
unsafe fn multiply<V: Vector>(sample: &Sample, products: &mut Lines, next: *const f32, next_bytes: usize) {
    let rows = sample.starts.len() / BLOCK;
    let step = next_bytes.div_ceil(rows).next_multiple_of(size_of::<Line>());
    for row in (0..sample.starts.len()).step_by(BLOCK) {
        // SAFETY: the caller upholds the contract; the number of vectors is a multiple of the block.
        unsafe {
            if V::LANES == PARTIALS {
                let (mut ahead, columns) = (row / BLOCK * step, row / BLOCK + 1);
                let end = (ahead + step).min(next_bytes);
                let part = step.div_ceil(columns).next_multiple_of(size_of::<Line>());
                for column in (0..row).step_by(BLOCK) {
                    if ahead < end {
                        prefetch(next.wrapping_byte_add(ahead), part.min(end - ahead));
                        ahead += part;
                    }
                    multiply_block::<V, BLOCK, 1>(sample, products, row, column);
                }
                if ahead < end {
                    prefetch(next.wrapping_byte_add(ahead), end - ahead);
                }
                multiply_triangle::<V>(sample, products, row);
            } else {
                // With half the lanes, use blocks of half the size and several registers for the partial sums
                // of one product.
                for row in [row, row + BLOCK / 2] {
                    for column in (0..row + BLOCK / 2).step_by(BLOCK / 2) {
                        if 2 * V::LANES == PARTIALS {
                            multiply_block::<V, { BLOCK / 2 }, 2>(sample, products, row, column);
                        } else {
                            multiply_block::<V, { BLOCK / 2 }, 4>(sample, products, row, column);
                        }
                    }
                }
            }
        }
    }
}

/// `N` times `N` products, each in `P` registers of partial sums.
#[inline(always)]
unsafe fn multiply_block<V: Vector, const N: usize, const P: usize>(
    sample: &Sample,
    products: &mut Lines,
    row: usize,
    column: usize,
) {
    // SAFETY: the caller upholds the contract; every vector has a whole number of lines, of `P` registers
    // each.
    unsafe {
        let mut partials = [[[V::splat(0.0); P]; N]; N];
        for line in (0..sample.floats).step_by(PARTIALS) {
            for p in 0..P {
                let at = line + p * V::LANES;
                let rights: [V; N] = std::array::from_fn(|n| V::load(sample.start(column + n).add(at)));
                for (r, partials) in partials.iter_mut().enumerate() {
                    let left = V::load(sample.start(row + r).add(at));
                    for (partials, right) in partials.iter_mut().zip(rights) {
                        partials[p] = left.mul_add(right, partials[p]);
                    }
                }
            }
        }
        let square = partials.map(|partials| {
            partials.map(|mut partials| {
                // Add by halves: first the registers, then the lanes of the last register.
                let mut count = P;
                while count > 1 {
                    count /= 2;
                    for p in 0..count {
                        partials[p] = partials[p].add(partials[p + count]);
                    }
                }
                partials[0]
            })
        });
        V::store_sums_of_square(square, products.pointer_mut(row).add(column), products.stride);
    }
}

/// The products of [`BLOCK`] vectors with one another, each in one register of partial sums.
#[inline(always)]
unsafe fn multiply_triangle<V: Vector>(sample: &Sample, products: &mut Lines, row: usize) {
    // SAFETY: the caller upholds the contract; every vector has a whole number of registers.
    unsafe {
        let mut of_d = [V::splat(0.0); BLOCK];
        let mut of_c = of_d;
        for at in (0..sample.floats).step_by(PARTIALS) {
            let [a, b, c, d]: [V; BLOCK] = std::array::from_fn(|n| V::load(sample.start(row + n).add(at)));
            of_d =
                [d.mul_add(a, of_d[0]), d.mul_add(b, of_d[1]), d.mul_add(c, of_d[2]), b.mul_add(a, of_d[3])];
            of_c = [c.mul_add(a, of_c[0]), c.mul_add(b, of_c[1]), of_c[2], of_c[3]];
        }
        // What lies beyond the triangle is not meaningful, so the product of `b` and `a` may pass through there.
        V::store_sums(of_d, products.pointer_mut(row + 3).add(row));
        V::store_sums(of_c, products.pointer_mut(row + 2).add(row));
        *products.pointer_mut(row + 1).add(row) = *products.pointer(row + 3).add(row + 3);
    }
}

/// Set vector `v` of `sums` to the sum of all vectors of `sample`, in order, each times its element of
/// `factors[v]`.
///
/// # Safety
/// Only call this inside [`InstructionSet::run`]; `sums` has the shape of `sample`, and `factors` as many
/// vectors with one float per vector of `sample`.
#[inline(always)]
unsafe fn combine<V: Vector>(factors: &Lines, sample: &Sample, sums: &mut Lines, vectors: usize) {
    for row in (0..sample.starts.len()).step_by(BLOCK) {
        let mut at = 0;
        // SAFETY: the caller upholds the contract; vectors are padded to whole blocks and lines.
        unsafe {
            // 16 registers of sums where there are 32 registers, 8 where there are 16.
            if V::LANES == PARTIALS {
                while sample.floats - at >= 4 * V::LANES {
                    combine_block::<V, 4>(factors, sample, sums, vectors, row, at);
                    at += 4 * V::LANES;
                }
                while at < sample.floats {
                    combine_block::<V, 1>(factors, sample, sums, vectors, row, at);
                    at += V::LANES;
                }
            } else {
                while at < sample.floats {
                    combine_block::<V, 2>(factors, sample, sums, vectors, row, at);
                    at += 2 * V::LANES;
                }
            }
        }
    }
}

/// `N` registers of each of [`BLOCK`] sums.
#[inline(always)]
unsafe fn combine_block<V: Vector, const N: usize>(
    factors: &Lines,
    sample: &Sample,
    sums: &mut Lines,
    vectors: usize,
    row: usize,
    at: usize,
) {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let mut registers = [[V::splat(0.0); N]; BLOCK];
        for vector in 0..vectors {
            let source = sample.start(vector).add(at);
            let parts: [V; N] = std::array::from_fn(|n| V::load(source.add(n * V::LANES)));
            for (r, registers) in registers.iter_mut().enumerate() {
                let factor = V::splat(*factors.pointer(row + r).add(vector));
                for (register, part) in registers.iter_mut().zip(parts) {
                    *register = factor.mul_add(part, *register);
                }
            }
        }
        for (r, registers) in registers.into_iter().enumerate() {
            let target = sums.pointer_mut(row + r).add(at);
            for (n, register) in registers.into_iter().enumerate() {
                register.store(target.add(n * V::LANES));
            }
        }
    }
}

/// The vectors of a sample, whole lines each, in a number padded to whole blocks. The padding is 0.
struct Sample {
    /// Where each vector is. All are in `copies`, or all but the padding in the sample itself.
    starts: Vec<*const f32>,
    copies: Lines,
    /// Floats per vector.
    floats: usize,
}

impl Sample {
    fn new(vectors: usize, floats: usize) -> Self {
        let copies = Lines::new(vectors, floats);
        let starts = (0..copies.vectors).map(|number| copies.pointer(number)).collect();
        Self { starts, floats: copies.stride, copies }
    }

    /// Address of a vector.
    ///
    /// # Safety
    /// The number is below that of the vectors, with those that pad the last block.
    #[inline(always)]
    unsafe fn start(&self, number: usize) -> *const f32 {
        debug_assert!(number < self.starts.len());
        // SAFETY: the caller upholds the contract.
        unsafe { *self.starts.get_unchecked(number) }
    }

    /// Take the first vector, then further vectors of equal length from one slice: in place where they are aligned whole lines
    /// of 32-bit floats.
    ///
    /// # Safety
    /// Only call this inside [`InstructionSet::run`]. The slices must live as long as the vectors are used.
    #[inline(always)]
    unsafe fn fill<V: Vector, T: Float>(&mut self, first: &[T], others: &[T]) {
        let floats = first.len();
        if let (Some(first), Some(others)) = (T::as_f32(first), T::as_f32(others))
            && floats > 0
            && [first, others].iter().all(|slice| slice.as_ptr().addr().is_multiple_of(size_of::<Line>()))
            && floats.is_multiple_of(PARTIALS)
        {
            let vectors = std::iter::once(first).chain(others.chunks_exact(floats));
            for (start, vector) in self.starts.iter_mut().zip(vectors) {
                *start = vector.as_ptr();
            }
            return;
        }
        // SAFETY: the caller upholds the contract.
        unsafe {
            convert::<V, _, _>(first, &mut self.copies.vector_mut(0)[..floats]);
            for (number, other) in others.chunks_exact(floats.max(1)).enumerate() {
                convert::<V, _, _>(other, &mut self.copies.vector_mut(number + 1)[..floats]);
            }
        }
    }
}

/// A cache line of floats.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "its floats are read through pointers")] [f32; PARTIALS]);

/// Vectors padded to whole lines, in a number padded to whole blocks. The padding is 0 unless it is written
/// to.
struct Lines {
    memory: Vec<Line>,
    /// Number of vectors, including those that pad the last block.
    vectors: usize,
    /// Floats from the start of one vector to the next.
    stride: usize,
}

impl Lines {
    fn new(vectors: usize, floats: usize) -> Self {
        let vectors = vectors.next_multiple_of(BLOCK);
        let stride = floats.next_multiple_of(PARTIALS);
        Self { memory: vec![Line([0.0; PARTIALS]); vectors * stride / PARTIALS], vectors, stride }
    }

    /// Address of a vector. The pointer is valid if the number is below `vectors`.
    #[inline(always)]
    fn pointer(&self, number: usize) -> *const f32 {
        self.memory.as_ptr().cast::<f32>().wrapping_add(number * self.stride)
    }

    #[inline(always)]
    fn pointer_mut(&mut self, number: usize) -> *mut f32 {
        self.memory.as_mut_ptr().cast::<f32>().wrapping_add(number * self.stride)
    }

    #[inline(always)]
    fn vector(&self, number: usize) -> &[f32] {
        assert!(number < self.vectors, "vector {number} of {}", self.vectors);
        // SAFETY: the lines hold `vectors * stride` floats, without gaps.
        unsafe { std::slice::from_raw_parts(self.pointer(number), self.stride) }
    }

    #[inline(always)]
    fn vector_mut(&mut self, number: usize) -> &mut [f32] {
        assert!(number < self.vectors, "vector {number} of {}", self.vectors);
        // SAFETY: the lines hold `vectors * stride` floats, and `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.pointer_mut(number), self.stride) }
    }
}

/// Convert the numbers of one slice into another slice of the same length.
///
/// # Safety
/// Only call this inside [`InstructionSet::run`].
#[inline(always)]
unsafe fn convert<V: Vector, S: Float, T: Float>(source: &[S], target: &mut [T]) {
    let count = source.len();
    assert_eq!(count, target.len());
    let (source, target) = (source.as_ptr(), target.as_mut_ptr());
    // SAFETY: the caller upholds the contract; both slices have `count` numbers.
    unsafe {
        let mut at = 0;
        while at + V::LANES <= count {
            T::store_up_to(S::load_up_to::<V>(source.add(at), V::LANES), target.add(at), V::LANES);
            at += V::LANES;
        }
        if at < count {
            T::store_up_to(S::load_up_to::<V>(source.add(at), count - at), target.add(at), count - at);
        }
    }
}
