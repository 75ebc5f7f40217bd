//! The weights of one row as 32-bit floats, however the row stores them.

use rowmill_rows::{Dtype, RowLayout};

/// Copy the weights of a row that are no floats to `out` (`dim` floats).
///
/// # Safety
/// `row` is a row of `layout`, whose weights are stored as halves, that nobody writes meanwhile.
#[inline]
pub(crate) unsafe fn join_weights(layout: &RowLayout, row: *const f32, out: &mut [f32]) {
    debug_assert_ne!(layout.dtype, Dtype::F32);
    // SAFETY: the caller's: a row begins with its weights, and on a multiple of 4.
    let halves = unsafe { std::slice::from_raw_parts(row.cast::<u16>(), halves(layout)) };
    let (upper, lower) = halves.split_at(layout.dim);
    if lower.is_empty() {
        rowmill_kernels::widen(upper, out);
    } else {
        rowmill_kernels::join(upper, lower, out);
    }
}

/// How many halves of floats the weights of a row are.
fn halves(layout: &RowLayout) -> usize {
    layout.dim * layout.dtype.bytes() / 2
}

/// Make `values` (`dim` floats) the weights of a row, rounded to the nearest it can store.
///
/// # Safety
/// `row` is a row of `layout` that nobody else uses meanwhile, or as much of one as its weights.
#[inline(always)]
pub(crate) unsafe fn write_weights(layout: &RowLayout, values: &[f32], row: *mut f32) {
    debug_assert_eq!(values.len(), layout.dim);
    match layout.dtype {
        // SAFETY: the caller's: a row begins with its weights.
        Dtype::F32 => unsafe { copy_floats(values.as_ptr(), row, layout.dim) },
        Dtype::Bf16 | Dtype::SplitBf16 => {
            // SAFETY: as above; a row begins on a multiple of 4.
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

/// The weights of a row: where they lie, or put together in `scratch`.
///
/// # Safety
/// `row` is a row of `layout` that nobody writes as long as the result is used.
pub(crate) unsafe fn floats_of<'a>(
    layout: &RowLayout,
    row: *const f32,
    scratch: &'a mut Vec<f32>,
) -> &'a [f32] {
    match layout.dtype {
        // SAFETY: the caller's: a row begins with its weights.
        Dtype::F32 => unsafe { std::slice::from_raw_parts(row, layout.dim) },
        Dtype::Bf16 | Dtype::SplitBf16 => {
            scratch.resize(layout.dim, 0.0);
            // SAFETY: as above.
            unsafe { join_weights(layout, row, scratch) };
            scratch
        }
    }
}

/// Weights and optimizer state of a row whose bytes were read from a device: `dim + state_floats` floats.
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

/// Make a row of what [`decode_row`] made of one.
///
/// # Safety
/// `row` is a row of `layout` that nobody else uses meanwhile.
pub(crate) unsafe fn write_row(layout: &RowLayout, values: &[f32], row: *mut f32) {
    let (weights, state) = values.split_at(layout.dim);
    // SAFETY: the caller's; the state lies behind the weights, `state_floats` floats.
    unsafe {
        write_weights(layout, weights, row);
        copy_floats(state.as_ptr(), row.byte_add(layout.state_offset()), state.len());
    }
}

/// Copy `width` floats. Rows are short: a call of the C library's copy would cost more than the copy.
///
/// # Safety
/// Both sides have `width` floats, and they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_floats(row: *const f32, out: *mut f32, width: usize) {
    const LINE_FLOATS: usize = 16;
    if width >= 4 * LINE_FLOATS {
        // SAFETY: the caller's: `width` floats on both sides, which do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(row, out, width) };
        return;
    }
    let lines = width / LINE_FLOATS;
    // SAFETY: the caller's: `width` floats on both sides, which do not overlap.
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
