//! Steps that look at many elements at once: softmax, sums, means, and the largest.
//!
//! Sums are taken in 64 bits and rounded once. Torch adds in an order of its own, so the last bits may differ.

use std::cmp::Ordering;

use super::array::{Array, Split, store_f64, store_i64};
use super::layout::{gather, permute, view};
use crate::{Arena, DType, Failure};

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::Float32 | DType::Float64 | DType::Float16 | DType::BFloat16)
}

/// Places of the elements that lie side by side along a dimension: for each block and inner place, all of them. No lanes
/// if they are empty: there may be any number of those.
fn lanes(Split { outer, size, inner }: Split) -> impl Iterator<Item = impl Iterator<Item = usize>> {
    (0..if size == 0 { 0 } else { outer * inner }).map(move |lane| {
        let first = lane / inner * size * inner + lane % inner;
        (0..size).map(move |at| first + at * inner)
    })
}

pub(super) fn softmax(arena: &Arena, array: &Array, dim: usize) -> Result<Array, Failure> {
    if !is_float(array.dtype) {
        return Err(Failure::invalid(format!("softmax is not defined for {}", array.dtype.name())));
    }
    let values = array.to_f64();
    let mut results = vec![0.0; values.len()];
    if !values.is_empty() {
        // A tensor without dimensions is a lane of its own.
        let split =
            if array.shape.is_empty() { Split { outer: 1, size: 1, inner: 1 } } else { array.split(dim)? };
        for lane in lanes(split) {
            let lane: Vec<usize> = lane.collect();
            let most = lane.iter().map(|&at| values[at]).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = lane.iter().map(|&at| (values[at] - most).exp()).sum();
            for at in lane {
                results[at] = (values[at] - most).exp() / sum;
            }
        }
    }
    Array::make(arena, array.dtype, &array.shape, |out| {
        store_f64(out, array.dtype, results.into_iter());
        Ok(())
    })
}

/// The sum over dimensions, or the mean.
pub(super) fn reduce(
    arena: &Arena,
    array: &Array,
    dims: &[usize],
    keep: bool,
    is_mean: bool,
) -> Result<Array, Failure> {
    if is_mean && !is_float(array.dtype) {
        return Err(Failure::invalid(format!("a mean is not defined for {}", array.dtype.name())));
    }
    if let Some(dim) = dims.iter().find(|&&dim| dim >= array.shape.len()) {
        return Err(Failure::invalid(format!("a tensor of shape {:?} has no dimension {dim}", array.shape)));
    }
    let kept: Vec<usize> = (0..array.shape.len()).filter(|dim| !dims.contains(dim)).collect();
    let mut order = kept.clone();
    order.extend(dims);
    // The elements of each sum side by side.
    let beside = permute(arena, array, &order)?;
    let count: usize = dims.iter().map(|&dim| array.shape[dim]).product();
    let shape: Vec<usize> = (0..array.shape.len())
        .filter(|dim| keep || !dims.contains(dim))
        .map(|dim| if dims.contains(&dim) { 1 } else { array.shape[dim] })
        .collect();
    let dtype = if is_float(array.dtype) { array.dtype } else { DType::Int64 };
    Array::make(arena, dtype, &shape, |out| {
        let sums = out.len() / dtype.bytes();
        let of = |at: usize| at * count..(at + 1) * count;
        if is_float(dtype) {
            let values = beside.to_f64();
            let by = if is_mean { count as f64 } else { 1.0 };
            store_f64(out, dtype, (0..sums).map(|at| values[of(at)].iter().sum::<f64>() / by));
        } else {
            let values = beside.to_i64();
            let sum = |at: usize| values[of(at)].iter().fold(0_i64, |sum, &value| sum.wrapping_add(value));
            store_i64(out, dtype, (0..sums).map(sum));
        }
        Ok(())
    })
}

/// The first `count` items of a dimension in order, all of them without a count, with their positions. NaN counts as
/// larger than every number; of equal items the first comes first.
pub(super) fn order(
    arena: &Arena,
    array: &Array,
    dim: usize,
    descending: bool,
    count: Option<usize>,
) -> Result<[Array; 2], Failure> {
    if array.shape.is_empty() {
        let zero = Array::make(arena, DType::Int64, &[], |_| Ok(()))?;
        return Ok([array.clone(), zero]);
    }
    let split = array.split(dim)?;
    let count = count.unwrap_or(split.size);
    if count > split.size {
        return Err(Failure::invalid(format!(
            "{count} items are more than the {} of dimension {dim}",
            split.size
        )));
    }
    // Floats compare as 64-bit ones, integers as they are.
    let by: Box<dyn Fn(usize, usize) -> Ordering> = if is_float(array.dtype) {
        let values = array.to_f64();
        Box::new(move |a, b| {
            let (a, b) = (values[a], values[b]);
            a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        })
    } else {
        let values = array.to_i64();
        Box::new(move |a, b| values[a].cmp(&values[b]))
    };
    let (mut places, mut positions) = (Vec::new(), Vec::new());
    for lane in lanes(split) {
        let lane: Vec<usize> = lane.collect();
        let mut order: Vec<usize> = (0..lane.len()).collect();
        order.sort_by(|&a, &b| {
            let found = by(lane[a], lane[b]);
            if descending { found.reverse() } else { found }
        });
        order.truncate(count);
        places.extend(order.iter().map(|&at| lane[at] as i64));
        positions.extend(order.into_iter().map(|at| at as i64));
    }
    // Lanes lie behind each other so far: [outer, inner, count].
    let along = [split.outer, split.inner, count];
    let mut shape = array.shape.clone();
    shape[dim] = count;
    let turned = |values: Vec<i64>| {
        let lanes = Array::make(arena, DType::Int64, &along, |out| {
            store_i64(out, DType::Int64, values.into_iter());
            Ok(())
        })?;
        permute(arena, &lanes, &[0, 2, 1])
    };
    let (places, positions) = (turned(places)?, turned(positions)?);
    let flat = view(array, vec![array.count()])?;
    let values = gather(arena, &flat, 0, &places)?;
    let found = Array { shape: shape.clone(), ..values };
    Ok([found, view(&positions, shape)?])
}
