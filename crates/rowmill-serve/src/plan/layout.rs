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

/// A dimension of a copy: its items, and their distance in the source.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dimension {
    size: usize,
    stride: usize,
}

/// Copy elements whose places, per dimension of the result, have these distances in the source.
fn strided(arena: &Arena, array: &Array, shape: &[usize], strides: &[usize]) -> Result<Array, Failure> {
    let dimensions = joined(shape, strides);
    Array::make(arena, array.dtype, shape, |out| {
        match array.dtype.bytes() {
            1 => copy::<1>(array.elements(), &dimensions, out.as_chunks_mut().0),
            2 => copy::<2>(array.elements(), &dimensions, out.as_chunks_mut().0),
            4 => copy::<4>(array.elements(), &dimensions, out.as_chunks_mut().0),
            _ => copy::<8>(array.elements(), &dimensions, out.as_chunks_mut().0),
        }
        Ok(())
    })
}

/// The fewest dimensions that visit the same elements in the same order.
fn joined(shape: &[usize], strides: &[usize]) -> Vec<Dimension> {
    let mut joined: Vec<Dimension> = Vec::new();
    for (&size, &stride) in shape.iter().zip(strides).filter(|&(&size, _)| size != 1) {
        match joined.last_mut() {
            Some(last) if last.stride == stride * size => {
                *last = Dimension { size: last.size * size, stride };
            }
            _ => joined.push(Dimension { size, stride }),
        }
    }
    joined
}

/// Fill `out` with elements from the first one of `source` on.
fn copy<const BYTES: usize>(source: &[[u8; BYTES]], dimensions: &[Dimension], out: &mut [[u8; BYTES]]) {
    if out.is_empty() {
        return;
    }
    match *dimensions {
        [] => out[0] = source[0],
        [Dimension { stride: 0, .. }] => out.fill(source[0]),
        [Dimension { stride: 1, size }] => out.copy_from_slice(&source[..size]),
        [Dimension { stride, .. }] => {
            for (target, element) in out.iter_mut().zip(source.iter().step_by(stride)) {
                *target = *element;
            }
        }
        [Dimension { size, stride }, ref inner @ ..] => {
            for (item, target) in out.chunks_exact_mut(out.len() / size).enumerate() {
                copy(&source[item * stride..], inner, target);
            }
        }
    }
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
    take(arena, array, dim, &(start..stop.max(start)).step_by(step))
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
    take(arena, array, dim, &positions.collect::<Result<Vec<_>, _>>()?.into_iter())
}

fn take(
    arena: &Arena,
    array: &Array,
    dim: usize,
    items: &(impl ExactSizeIterator<Item = usize> + Clone),
) -> Result<Array, Failure> {
    let Split { outer, size, inner } = array.split(dim)?;
    let mut shape = array.shape.clone();
    shape[dim] = items.len();
    let width = inner * array.dtype.bytes();
    Array::make(arena, array.dtype, &shape, |out| {
        let mut rest = out;
        for block in 0..outer {
            for item in items.clone() {
                let (target, behind) = rest.split_at_mut(width);
                target.copy_from_slice(&array.data[(block * size + item) * width..][..width]);
                rest = behind;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Buffer, DType};

    proptest! {
        /// Against the place of each element, for dimensions in any order, of size 0 and 1 too, and repeated ones.
        #[test]
        fn copies_agree_with_the_places_of_elements(
            sizes in prop::collection::vec((0_usize..5, any::<bool>()), 0..5),
            order in any::<prop::sample::Index>(),
            dtype in prop::sample::select(vec![DType::Bool, DType::Float16, DType::Int32, DType::Int64]),
        ) {
            // Repeated dimensions have one item in the source.
            let held: Vec<usize> = sizes.iter().map(|&(size, is_repeated)| if is_repeated { 1 } else { size }).collect();
            let count: usize = held.iter().product();
            let width = dtype.bytes();
            let bytes: Vec<u8> = (0..count * width).map(|at| (at % 251) as u8).collect();
            let array = Array { dtype, shape: held.clone(), data: Buffer::from(&bytes[..]) };
            let mut dims: Vec<usize> = (0..sizes.len()).collect();
            dims.rotate_left(order.index(sizes.len().max(1)));
            let held_strides = strides_of(&held);
            let shape: Vec<usize> = dims.iter().map(|&dim| sizes[dim].0).collect();
            let strides: Vec<usize> =
                dims.iter().map(|&dim| if sizes[dim].1 { 0 } else { held_strides[dim] }).collect();
            let copied = strided(&Arena::new(1 << 20).unwrap(), &array, &shape, &strides).unwrap();
            let mut expected: Vec<u8> = Vec::new();
            for number in 0..shape.iter().product::<usize>() {
                let (mut rest, mut from) = (number, 0);
                for (size, stride) in shape.iter().zip(&strides).rev() {
                    from += rest % size * stride;
                    rest /= size;
                }
                expected.extend(&bytes[from * width..][..width]);
            }
            prop_assert_eq!(&copied.data[..], &expected[..]);
        }
    }

    #[test]
    fn neighbouring_dimensions_are_one() {
        let of = |shape: &[usize], strides: &[usize]| -> Vec<(usize, usize)> {
            joined(shape, strides).iter().map(|dimension| (dimension.size, dimension.stride)).collect()
        };
        assert_eq!(of(&[3, 1, 4], &[4, 9, 1]), [(12, 1)]);
        assert_eq!(of(&[3, 2, 10], &[10, 30, 1]), [(3, 10), (2, 30), (10, 1)]);
        assert_eq!(of(&[5, 4, 3], &[0, 0, 1]), [(20, 0), (3, 1)]);
        assert_eq!(of(&[1, 1], &[7, 7]), []);
    }
}
