//! Steps that move elements without computing.

use super::array::{Array, Split};
use super::elementwise::{cast, promote};
use crate::{Arena, Failure};

/// The same elements with another shape.
pub(super) fn view(array: &Array, shape: Vec<usize>) -> Result<Array, Failure> {
    if super::array::count_of(&shape)? != array.count() {
        return Err(Failure::invalid(format!(
            "a tensor of shape {:?} has no view of shape {shape:?}",
            array.shape
        )));
    }
    Ok(Array { shape, ..array.clone() })
}

/// Copy elements whose places, per dimension of the result, have these distances in the source.
fn strided(arena: &Arena, array: &Array, shape: &[usize], strides: &[usize]) -> Result<Array, Failure> {
    let width = array.dtype.bytes();
    Array::make(arena, array.dtype, shape, |out| {
        let mut place = vec![0_usize; shape.len()];
        let mut from = 0;
        for target in out.chunks_exact_mut(width) {
            target.copy_from_slice(&array.data[from * width..(from + 1) * width]);
            for dim in (0..shape.len()).rev() {
                place[dim] += 1;
                from += strides[dim];
                if place[dim] < shape[dim] {
                    break;
                }
                from -= strides[dim] * shape[dim];
                place[dim] = 0;
            }
        }
        Ok(())
    })
}

/// Distances in elements between neighbours of each dimension.
fn strides_of(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    strides
}

/// Dimensions in another order.
pub(super) fn permute(arena: &Arena, array: &Array, dims: &[usize]) -> Result<Array, Failure> {
    let strides = strides_of(&array.shape);
    let sorted = {
        let mut sorted = dims.to_vec();
        sorted.sort_unstable();
        sorted
    };
    if !sorted.iter().copied().eq(0..array.shape.len()) {
        return Err(Failure::invalid(format!("{dims:?} is no order of the dimensions {:?}", array.shape)));
    }
    let shape: Vec<usize> = dims.iter().map(|&dim| array.shape[dim]).collect();
    let strides: Vec<usize> = dims.iter().map(|&dim| strides[dim]).collect();
    strided(arena, array, &shape, &strides)
}

/// Repeat dimensions of size 1, and add dimensions in front.
pub(super) fn broadcast(arena: &Arena, array: &Array, shape: &[usize]) -> Result<Array, Failure> {
    if array.shape == shape {
        return Ok(array.clone());
    }
    let misfit = || Failure::invalid(format!("a tensor of shape {:?} cannot become {shape:?}", array.shape));
    let added = shape.len().checked_sub(array.shape.len()).ok_or_else(misfit)?;
    let mut strides = vec![0; shape.len()];
    for (dim, (&size, stride)) in array.shape.iter().zip(strides_of(&array.shape)).enumerate() {
        if size == shape[added + dim] {
            strides[added + dim] = stride;
        } else if size != 1 {
            return Err(misfit());
        }
    }
    strided(arena, array, shape, &strides)
}

/// Arrays side by side along a dimension, in the type that all of them have in common.
pub(super) fn cat(arena: &Arena, arrays: &[&Array], dim: usize) -> Result<Array, Failure> {
    let dtype = arrays.iter().map(|array| array.dtype).reduce(promote);
    let dtype = dtype.ok_or_else(|| Failure::invalid("nothing to put side by side"))?;
    // As torch, which skips empty tensors of one dimension.
    let used: Vec<Array> = arrays
        .iter()
        .filter(|array| array.shape != [0])
        .map(|array| cast(arena, array, dtype))
        .collect::<Result<_, _>>()?;
    let Some(first) = used.first() else {
        return Ok(arrays[0].clone());
    };
    let Split { outer, inner, .. } = first.split(dim)?;
    let mut shape = first.shape.clone();
    shape[dim] = 0;
    for array in &used {
        let mut alike = array.shape.clone();
        if let Some(size) = alike.get_mut(dim) {
            shape[dim] += *size;
            *size = shape[dim];
        }
        if alike != shape {
            return Err(Failure::invalid(format!(
                "tensors of shapes {:?} and {:?} do not fit side by side along dimension {dim}",
                first.shape, array.shape
            )));
        }
    }
    let row = shape[dim] * inner * dtype.bytes();
    Array::make(arena, dtype, &shape, |out| {
        let mut at = 0;
        for array in &used {
            let part = array.shape[dim] * inner * dtype.bytes();
            for block in 0..outer {
                out[block * row + at..][..part].copy_from_slice(&array.data[block * part..][..part]);
            }
            at += part;
        }
        Ok(())
    })
}

/// Items `start`, `start + step`, ... below `stop` of a dimension, bounds as in Python.
pub(super) fn slice(
    arena: &Arena,
    array: &Array,
    dim: usize,
    (start, stop, step): (i64, i64, usize),
) -> Result<Array, Failure> {
    let size = array.split(dim)?.size;
    let bound = |at: i64| {
        let at = if at < 0 { at.saturating_add(size as i64) } else { at };
        at.clamp(0, size as i64) as usize
    };
    let (start, stop) = (bound(start), bound(stop));
    if step == 0 {
        return Err(Failure::invalid("a slice has a step of 0"));
    }
    if (start, stop, step) == (0, size, 1) {
        return Ok(array.clone());
    }
    let items: Vec<usize> = (start..stop.max(start)).step_by(step).collect();
    take(arena, array, dim, &items)
}

/// Items of a dimension by their positions; negative ones count from the end.
pub(super) fn gather(arena: &Arena, array: &Array, dim: usize, index: &Array) -> Result<Array, Failure> {
    let size = array.split(dim)?.size;
    let positions = index.to_i64().into_iter().map(|at| {
        let place = if at < 0 { at.checked_add(size as i64) } else { Some(at) };
        place.and_then(|place| usize::try_from(place).ok()).filter(|&place| place < size).ok_or_else(|| {
            Failure::invalid(format!("position {at} is outside of dimension {dim} of {size} items"))
        })
    });
    take(arena, array, dim, &positions.collect::<Result<Vec<_>, _>>()?)
}

fn take(arena: &Arena, array: &Array, dim: usize, items: &[usize]) -> Result<Array, Failure> {
    let Split { outer, size, inner } = array.split(dim)?;
    let mut shape = array.shape.clone();
    shape[dim] = items.len();
    let width = inner * array.dtype.bytes();
    Array::make(arena, array.dtype, &shape, |out| {
        let mut rest = out;
        for block in 0..outer {
            for item in items {
                let (target, behind) = rest.split_at_mut(width);
                target.copy_from_slice(&array.data[(block * size + item) * width..][..width]);
                rest = behind;
            }
        }
        Ok(())
    })
}
