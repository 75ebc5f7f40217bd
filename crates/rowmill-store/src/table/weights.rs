//! Reads and writes the weights of one row as 32-bit floats, for every dtype.

use rowmill_rows::{Dtype, RowLayout};

/// Copy the weights of a row to `out` (`dim` floats), for a dtype that stores 16-bit halves.
///
/// # Safety
/// `row` is a row of `layout` whose weights are stored as halves, and no thread writes it meanwhile.
#[inline]
pub(crate) unsafe fn join_weights(layout: &RowLayout, row: *const f32, out: &mut [f32]) {
    debug_assert_ne!(layout.dtype, Dtype::F32);
    // SAFETY: by the contract of this function; a row begins with its weights and is aligned to 4 bytes.
    let halves = unsafe { std::slice::from_raw_parts(row.cast::<u16>(), halves(layout)) };
    let (upper, lower) = halves.split_at(layout.dim);
    if lower.is_empty() {
        rowmill_kernels::widen(upper, out);
    } else {
        rowmill_kernels::join(upper, lower, out);
    }
}

/// Number of 16-bit halves that the weights of a row take.
fn halves(layout: &RowLayout) -> usize {
    layout.dim * layout.dtype.bytes() / 2
}

/// Store `values` (`dim` floats) as the weights of a row, rounded to nearest for its dtype.
///
/// # Safety
/// `row` is a row of `layout`, or at least its weights, and no other thread accesses it meanwhile.
#[inline(always)]
pub(crate) unsafe fn write_weights(layout: &RowLayout, values: &[f32], row: *mut f32) {
    debug_assert_eq!(values.len(), layout.dim);
    match layout.dtype {
        // SAFETY: by the contract of this function; a row begins with its weights.
        Dtype::F32 => unsafe { copy_floats(values.as_ptr(), row, layout.dim) },
        Dtype::Bf16 | Dtype::SplitBf16 => {
            // SAFETY: as above; a row is aligned to 4 bytes.
            let halves = unsafe { std::slice::from_raw_parts_mut(row.cast::<u16>(), halves(layout)) };
            let (upper, lower) = halves.split_at_mut(layout.dim);
            if lower.is_empty() {
                rowmill_kernels::narrow(values, upper);
            } else {
                rowmill_kernels::split(values, upper, lower);
            }
        }
    }
}

/// The weights of a row: a slice of the row itself for fp32, else converted into `scratch`.
///
/// # Safety
/// `row` is a row of `layout`, and no thread writes it while the result is used.
pub(crate) unsafe fn floats_of<'a>(
    layout: &RowLayout,
    row: *const f32,
    scratch: &'a mut Vec<f32>,
) -> &'a [f32] {
    match layout.dtype {
        // SAFETY: by the contract of this function; a row begins with its weights.
        Dtype::F32 => unsafe { std::slice::from_raw_parts(row, layout.dim) },
        Dtype::Bf16 | Dtype::SplitBf16 => {
            scratch.resize(layout.dim, 0.0);
            // SAFETY: as above.
            unsafe { join_weights(layout, row, scratch) };
            scratch
        }
    }
}

/// Decode a row read from a device: weights and optimizer state, `dim + state_floats` floats.
pub(crate) fn decode_row(layout: &RowLayout, bytes: &[u8], out: &mut [f32]) {
    let (weights, state) = out.split_at_mut(layout.dim);
    match layout.dtype {
        Dtype::F32 => decode(bytes, weights, f32::from_le_bytes),
        Dtype::Bf16 | Dtype::SplitBf16 => {
            decode(bytes, weights, |half| f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16));
            let lower = bytes[2 * layout.dim..2 * halves(layout)].as_chunks().0;
            for (weight, &lower) in weights.iter_mut().zip(lower) {
                *weight = f32::from_bits(weight.to_bits() | u32::from(u16::from_le_bytes(lower)));
            }
        }
    }
    decode(&bytes[layout.state_offset()..], state, f32::from_le_bytes);
}

fn decode<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (float, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *float = decode(*bytes);
    }
}

/// Write a row from the floats of [`decode_row`].
///
/// # Safety
/// `row` is a row of `layout`, and no other thread accesses it meanwhile.
pub(crate) unsafe fn write_row(layout: &RowLayout, values: &[f32], row: *mut f32) {
    let (weights, state) = values.split_at(layout.dim);
    // SAFETY: by the contract of this function; the state, `state_floats` floats, lies behind the weights.
    unsafe {
        write_weights(layout, weights, row);
        copy_floats(state.as_ptr(), row.byte_add(layout.state_offset()), state.len());
    }
}

/// Copy `width` floats. Rows are short, so a call of the C library's `memcpy` would cost more than the copy.
///
/// # Safety
/// Both pointers have `width` floats, and the ranges do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_floats(row: *const f32, out: *mut f32, width: usize) {
    const LINE_FLOATS: usize = 16;
    if width >= 4 * LINE_FLOATS {
        // SAFETY: by the contract of this function.
        unsafe { std::ptr::copy_nonoverlapping(row, out, width) };
        return;
    }
    let lines = width / LINE_FLOATS;
    // SAFETY: by the contract of this function.
    unsafe {
        for line in 0..lines {
            let column = line * LINE_FLOATS;
            let line: [f32; LINE_FLOATS] = row.add(column).cast::<[f32; LINE_FLOATS]>().read_unaligned();
            out.add(column).cast::<[f32; LINE_FLOATS]>().write_unaligned(line);
        }
        for rest in lines * LINE_FLOATS..width {
            *out.add(rest) = *row.add(rest);
        }
    }
}
