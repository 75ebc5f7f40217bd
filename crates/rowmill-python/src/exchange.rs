//! Kernels of the fused exchange. Positions and counts are int32 arrays; position -1 means padding.

use std::cell::RefCell;

use pyo3::prelude::*;
use rowmill_kernels::{
    CategoryWork, Message, RankScratch, RecoveredFeature, Recovery, SortedFeature, UniqueScratch,
};
use rowmill_rows::Pooling;

use crate::buffers::{
    Buffer, FloatArray, floats, floats_mut, ids as id_buffer, is_bf16, numbers, numbers_mut,
};
use crate::errors::invalid;
use crate::threads::spread;

/// Least number of ids per thread: processing as many takes at least 0.1 ms.
const IDS_PER_THREAD: usize = 1 << 16;

thread_local! {
    /// Buffers of the kernels, kept between calls: an exchange makes all its calls from one thread.
    static HASHES: RefCell<UniqueScratch> = RefCell::default();
    static RANKS: RefCell<RankScratch> = RefCell::default();
}

/// Find the distinct ids of every category, written to `unique`; see
/// [`rowmill_kernels::segment_unique_by_category`]. Returns their number.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one argument per array")]
pub(crate) fn segment_unique(
    py: Python<'_>,
    ids: &Bound<'_, PyAny>,
    offsets: Vec<usize>,
    paddings: Vec<Option<i64>>,
    unique: &Bound<'_, PyAny>,
    counts: &Bound<'_, PyAny>,
    inverse: &Bound<'_, PyAny>,
    threads: usize,
) -> PyResult<usize> {
    let ids = id_buffer(ids)?;
    let mut unique = Buffer::<i64>::write(unique, "unique", "int64")?;
    let (mut counts, mut inverse) = (numbers_mut(counts, "counts")?, numbers_mut(inverse, "inverse")?);
    let (ids, unique) = (ids.ids(), unique.ids_mut());
    let (counts, inverse) = (counts.numbers_mut(), inverse.numbers_mut());
    let rising = offsets.is_sorted() && offsets.first() == Some(&0) && offsets.last() == Some(&ids.len());
    if !rising {
        return Err(invalid(
            py,
            format!("offsets must ascend from 0 to the number of ids ({}), got {offsets:?}", ids.len()),
        ));
    }
    check(py, "paddings", paddings.len(), offsets.len() - 1)?;
    check(py, "counts", counts.len(), offsets.len() - 1)?;
    check(py, "inverse", inverse.len(), ids.len())?;
    check(py, "unique", unique.len(), ids.len())?;
    let paddings: Vec<Option<u64>> = paddings.into_iter().map(|id| id.map(|id| id as u64)).collect();
    let threads = threads.min(ids.len() / IDS_PER_THREAD);
    let runs = runs(threads, counts.len());
    Ok(py.detach(|| {
        rowmill_kernels::segment_unique_by_category(
            ids,
            &offsets,
            &paddings,
            unique,
            counts,
            inverse,
            runs,
            by_category(threads),
        )
    }))
}

/// Sort distinct ids by owner rank; see [`rowmill_kernels::rank_sort`].
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one argument per array")]
pub(crate) fn rank_sort(
    py: Python<'_>,
    unique: &Bound<'_, PyAny>,
    unique_counts: &Bound<'_, PyAny>,
    categories: Vec<u64>,
    ranks: u32,
    sorted: &Bound<'_, PyAny>,
    positions: &Bound<'_, PyAny>,
    counts: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (unique, unique_counts) = (id_buffer(unique)?, numbers(unique_counts, "unique_counts")?);
    let mut sorted = Buffer::<i64>::write(sorted, "sorted", "int64")?;
    let (mut positions, mut counts) = (numbers_mut(positions, "positions")?, numbers_mut(counts, "counts")?);
    let (unique, unique_counts, sorted) = (unique.ids(), unique_counts.numbers(), sorted.ids_mut());
    let (positions, counts) = (positions.numbers_mut(), counts.numbers_mut());
    if ranks == 0 {
        return Err(invalid(py, "ranks must be at least 1, got 0"));
    }
    check(py, "unique", unique.len(), total(unique_counts))?;
    check(py, "unique_counts", unique_counts.len(), categories.len())?;
    check(py, "sorted", sorted.len(), unique.len())?;
    check(py, "positions", positions.len(), unique.len())?;
    check(py, "counts", counts.len(), (ranks as usize).saturating_mul(categories.len()))?;
    py.detach(|| {
        RANKS.with_borrow_mut(|scratch| {
            rowmill_kernels::rank_sort(
                unique,
                unique_counts,
                &categories,
                ranks,
                scratch,
                sorted,
                positions,
                counts,
            );
        });
    });
    Ok(())
}

/// Sort ids of bags by the ranks that pool them; see [`rowmill_kernels::bag_sort`]. A feature is `(category,
/// rank that pools all its ids or None, padding)`. Returns the number of ids without padding.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one argument per array")]
pub(crate) fn bag_sort(
    py: Python<'_>,
    ids: &Bound<'_, PyAny>,
    offsets: &Bound<'_, PyAny>,
    features: Vec<(u64, Option<u32>, Option<i64>)>,
    ranks: u32,
    sorted: &Bound<'_, PyAny>,
    positions: &Bound<'_, PyAny>,
    lengths: &Bound<'_, PyAny>,
) -> PyResult<usize> {
    let (ids, offsets) = (id_buffer(ids)?, Buffer::<i64>::read(offsets, "offsets", "int64")?);
    let mut sorted = Buffer::<i64>::write(sorted, "sorted", "int64")?;
    let (mut positions, mut lengths) =
        (numbers_mut(positions, "positions")?, numbers_mut(lengths, "lengths")?);
    let (ids, offsets, sorted) = (ids.ids(), offsets.positions(), sorted.ids_mut());
    let (positions, lengths) = (positions.numbers_mut(), lengths.numbers_mut());
    let ends = (offsets.first().copied(), offsets.last().copied());
    if !offsets.is_sorted() || ends != (Some(0), Some(ids.len() as i64)) {
        return Err(invalid(py, format!("offsets must ascend from 0 to the number of ids ({})", ids.len())));
    }
    let bags = offsets.len() - 1;
    if !bags.is_multiple_of(features.len().max(1)) {
        return Err(invalid(
            py,
            format!("offsets must have as many bags for each feature, got {bags} in all"),
        ));
    }
    if let Some((_, Some(rank), _)) = features.iter().find(|(_, whole, _)| whole.is_some_and(|r| r >= ranks))
    {
        return Err(invalid(py, format!("ranks of features must be below {ranks}, got {rank}")));
    }
    check(py, "sorted", sorted.len(), ids.len())?;
    check(py, "positions", positions.len(), ids.len())?;
    check(py, "lengths", lengths.len(), bags.saturating_mul(ranks as usize))?;
    let features: Vec<SortedFeature> = features
        .into_iter()
        .map(|(category, whole, padding)| SortedFeature {
            category,
            whole,
            padding: padding.map(|id| id as u64),
        })
        .collect();
    Ok(py.detach(|| {
        RANKS.with_borrow_mut(|scratch| {
            rowmill_kernels::bag_sort(ids, offsets, &features, ranks, scratch, sorted, positions, lengths)
        })
    }))
}

/// Find the distinct ids of every category among the ids of all ranks, written to `unique`; see
/// [`rowmill_kernels::owner_unique`]. Returns their number.
#[pyfunction]
pub(crate) fn owner_unique(
    py: Python<'_>,
    received: &Bound<'_, PyAny>,
    counts: &Bound<'_, PyAny>,
    unique: &Bound<'_, PyAny>,
    unique_counts: &Bound<'_, PyAny>,
    inverse: &Bound<'_, PyAny>,
    threads: usize,
) -> PyResult<usize> {
    let (received, counts) = (id_buffer(received)?, numbers(counts, "counts")?);
    let mut unique = Buffer::<i64>::write(unique, "unique", "int64")?;
    let (mut unique_counts, mut inverse) =
        (numbers_mut(unique_counts, "unique_counts")?, numbers_mut(inverse, "inverse")?);
    let (received, counts, unique) = (received.ids(), counts.numbers(), unique.ids_mut());
    let (unique_counts, inverse) = (unique_counts.numbers_mut(), inverse.numbers_mut());
    if !counts.len().is_multiple_of(unique_counts.len().max(1)) {
        return Err(invalid(py, "counts must have one entry per rank and category"));
    }
    check(py, "received", received.len(), total(counts))?;
    check(py, "unique", unique.len(), received.len())?;
    check(py, "inverse", inverse.len(), received.len())?;
    let threads = threads.min(received.len() / IDS_PER_THREAD);
    let runs = runs(threads, unique_counts.len());
    Ok(py.detach(|| {
        rowmill_kernels::owner_unique(
            received,
            counts,
            unique,
            unique_counts,
            inverse,
            runs,
            by_category(threads),
        )
    }))
}

/// Number of runs: one per category for several threads, so that a late thread delays no other; else one in
/// all.
fn runs(threads: usize, categories: usize) -> usize {
    if threads > 1 { categories } else { 1 }
}

/// Spreads runs of categories over threads, each with its own hash table.
fn by_category(threads: usize) -> impl Fn(usize, &CategoryWork<'_>) {
    move |runs, work| {
        spread(0..runs, threads, |run| HASHES.with_borrow_mut(|scratch| work(run, scratch)));
    }
}

/// Compose two indices: `combined[i] = positions[inverse[i]]`, the row of lookup `i` in the message.
#[pyfunction]
pub(crate) fn combine(
    py: Python<'_>,
    inverse: &Bound<'_, PyAny>,
    positions: &Bound<'_, PyAny>,
    combined: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (inverse, positions) = (numbers(inverse, "inverse")?, numbers(positions, "positions")?);
    let mut combined = numbers_mut(combined, "combined")?;
    let (inverse, positions, combined) = (inverse.numbers(), positions.numbers(), combined.numbers_mut());
    check(py, "combined", combined.len(), inverse.len())?;
    py.detach(|| rowmill_kernels::combine(inverse, positions, combined));
    Ok(())
}

/// Copy an owner's rows into the message for the ranks that requested them.
#[pyfunction]
pub(crate) fn pack(
    py: Python<'_>,
    rows: &Bound<'_, PyAny>,
    owned: OwnedArguments<'_>,
    wire: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (rows, mut wire) = (floats(rows, "rows")?, floats_mut(wire, "wire")?);
    let owned = Owned::read(owned)?;
    let (rows, wire) = (rows.values(), wire.values_mut());
    owned.check(py, rows.len(), wire.len())?;
    let (message, unique_counts, inverse) = owned.parts();
    py.detach(|| rowmill_kernels::pack(message, rows, unique_counts, inverse, wire));
    Ok(())
}

/// Add the rows of a received message to an owner's rows.
#[pyfunction]
pub(crate) fn unpack_add(
    py: Python<'_>,
    wire: &Bound<'_, PyAny>,
    owned: OwnedArguments<'_>,
    rows: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (wire, mut rows) = (floats(wire, "wire")?, floats_mut(rows, "rows")?);
    let owned = Owned::read(owned)?;
    let (wire, rows) = (wire.values(), rows.values_mut());
    owned.check(py, rows.len(), wire.len())?;
    let (message, unique_counts, inverse) = owned.parts();
    py.detach(|| rowmill_kernels::unpack_add(message, wire, unique_counts, inverse, rows));
    Ok(())
}

/// `(unique_counts, inverse, counts, dims)`: distinct rows per category, the distinct row of each row of the
/// message, and the message's counts and dims.
type OwnedArguments<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Vec<u32>);

/// The message and the distinct rows of an owner, borrowed for one call.
struct Owned {
    unique_counts: Buffer<i32>,
    inverse: Buffer<i32>,
    counts: Buffer<i32>,
    dims: Vec<u32>,
}

impl Owned {
    fn read((unique_counts, inverse, counts, dims): OwnedArguments<'_>) -> PyResult<Self> {
        Ok(Self {
            unique_counts: numbers(&unique_counts, "unique_counts")?,
            inverse: numbers(&inverse, "inverse")?,
            counts: numbers(&counts, "counts")?,
            dims,
        })
    }

    /// The message, the number of distinct rows per category, and the distinct row of each row of the
    /// message.
    fn parts(&self) -> (Message<'_>, &[u32], &[u32]) {
        let message = Message { counts: self.counts.numbers(), dims: &self.dims };
        (message, self.unique_counts.numbers(), self.inverse.numbers())
    }

    /// Return an error if `rows` or `wire` has the wrong number of floats.
    fn check(&self, py: Python<'_>, rows: usize, wire: usize) -> PyResult<()> {
        let (message, unique_counts, inverse) = self.parts();
        check(py, "unique_counts", unique_counts.len(), message.dims.len())?;
        check(py, "inverse", inverse.len(), message.rows())?;
        let unique = Message { counts: unique_counts, dims: message.dims };
        check(py, "wire", wire, floats_of(py, "counts", message)?)?;
        check(py, "rows", rows, floats_of(py, "unique_counts", unique)?)
    }
}

/// Pool bags from the rows of a message into `out` (float32, or bfloat16 bits as int16).
#[pyfunction]
pub(crate) fn recover(
    py: Python<'_>,
    wire: &Bound<'_, PyAny>,
    bags: BagArguments<'_>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let recover = if is_bf16(out) { recover_as::<i16> } else { recover_as::<f32> };
    recover(py, wire, bags, out)
}

fn recover_as<T: FloatArray>(
    py: Python<'_>,
    wire: &Bound<'_, PyAny>,
    bags: BagArguments<'_>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (wire, mut out) = (floats(wire, "wire")?, Buffer::<T>::write(out, "out", T::DTYPE)?);
    let bags = Bags::read(bags)?;
    let (wire, out) = (wire.values(), T::floats_mut(&mut out));
    py.detach(|| rowmill_kernels::recover(&bags.recovery(), wire, out));
    Ok(())
}

/// The backward of [`recover`]: gradients of the rows of a message from gradients of pooled vectors.
#[pyfunction]
pub(crate) fn recover_backward(
    py: Python<'_>,
    gradients: &Bound<'_, PyAny>,
    bags: BagArguments<'_>,
    wire: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let backward = if is_bf16(gradients) { recover_backward_of::<i16> } else { recover_backward_of::<f32> };
    backward(py, gradients, bags, wire)
}

fn recover_backward_of<T: FloatArray>(
    py: Python<'_>,
    gradients: &Bound<'_, PyAny>,
    bags: BagArguments<'_>,
    wire: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let gradients = Buffer::<T>::read(gradients, "gradients", T::DTYPE)?;
    let mut wire = floats_mut(wire, "wire")?;
    let bags = Bags::read(bags)?;
    let (gradients, wire) = (T::floats(&gradients), wire.values_mut());
    py.detach(|| rowmill_kernels::recover_backward(&bags.recovery(), gradients, wire));
    Ok(())
}

/// Gradients of the lookups' factors from gradients of pooled vectors.
#[pyfunction]
pub(crate) fn weights_backward(
    py: Python<'_>,
    wire: &Bound<'_, PyAny>,
    gradients: &Bound<'_, PyAny>,
    bags: BagArguments<'_>,
    factors: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (wire, gradients) = (floats(wire, "wire")?, floats(gradients, "gradients")?);
    let mut factors = floats_mut(factors, "factors")?;
    let bags = Bags::read(bags)?;
    if bags.features.iter().any(|feature| matches!(feature.pooling, Pooling::Mean)) {
        return Err(invalid(
            py,
            "weights of ids work only with sum pooling, got a feature with mean pooling",
        ));
    }
    let (wire, gradients, factors) = (wire.values(), gradients.values(), factors.values_mut());
    py.detach(|| rowmill_kernels::weights_backward(&bags.recovery(), wire, gradients, factors));
    Ok(())
}

/// `(counts, dims, combined, offsets, weights, features, bags, stride)`: counts and dims of the message, each
/// lookup's row in it, bag offsets, factors of lookups, features, bags per feature, and floats per sample of
/// the output. A feature is `(dim, column, mean)`.
type BagArguments<'py> = (
    Bound<'py, PyAny>,
    Vec<u32>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Option<Bound<'py, PyAny>>,
    Vec<(usize, usize, bool)>,
    usize,
    usize,
);

/// The bags of a recovery, borrowed for one call.
struct Bags {
    counts: Buffer<i32>,
    dims: Vec<u32>,
    combined: Buffer<i32>,
    offsets: Buffer<i64>,
    weights: Option<Buffer<f32>>,
    features: Vec<RecoveredFeature>,
    count: usize,
    stride: usize,
}

impl Bags {
    fn read(arguments: BagArguments<'_>) -> PyResult<Self> {
        let (counts, dims, combined, offsets, weights, features, count, stride) = arguments;
        let feature = |(dim, column, mean)| {
            let pooling = if mean { Pooling::Mean } else { Pooling::Sum };
            RecoveredFeature { dim, column, pooling }
        };
        Ok(Self {
            counts: numbers(&counts, "counts")?,
            dims,
            combined: numbers(&combined, "combined")?,
            offsets: Buffer::read(&offsets, "offsets", "int64")?,
            weights: weights.as_ref().map(|weights| floats(weights, "weights")).transpose()?,
            features: features.into_iter().map(feature).collect(),
            count,
            stride,
        })
    }

    fn recovery(&self) -> Recovery<'_> {
        Recovery {
            message: Message { counts: self.counts.numbers(), dims: &self.dims },
            combined: self.combined.numbers(),
            offsets: self.offsets.positions(),
            weights: self.weights.as_ref().map(Buffer::values),
            features: &self.features,
            bags: self.count,
            stride: self.stride,
        }
    }
}

/// Number of floats of a message; `name` is the argument with its counts, for errors.
fn floats_of(py: Python<'_>, name: &str, message: Message<'_>) -> PyResult<usize> {
    message.floats().ok_or_else(|| {
        let Message { dims, .. } = message;
        invalid(
            py,
            format!(
                "{name} must describe a message that fits memory, but its floats with dims {dims:?} overflow"
            ),
        )
    })
}

fn total(counts: &[u32]) -> usize {
    counts.iter().map(|&count| count as usize).sum()
}

fn check(py: Python<'_>, name: &str, got: usize, expected: usize) -> PyResult<()> {
    if got == expected {
        return Ok(());
    }
    Err(invalid(py, format!("{name} must have {expected} entries, got {got}")))
}
