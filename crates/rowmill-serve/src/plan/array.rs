//! Arrays that steps of a plan take and make: contiguous, in row-major order. Large ones are in the arena.

use crate::messages::SMALL_BYTES;
use crate::{Arena, Buffer, DType, Failure};

/// A value of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Buffer,
}

/// An array's shape seen from one dimension: `outer` blocks of `size` items of `inner` elements each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    pub(super) outer: usize,
    pub(super) size: usize,
    pub(super) inner: usize,
}

/// The number of elements of a shape, checked.
pub(super) fn count_of(shape: &[usize]) -> Result<usize, Failure> {
    shape
        .iter()
        .try_fold(1_usize, |count, &size| count.checked_mul(size))
        .filter(|&count| count <= isize::MAX as usize / 8)
        .ok_or_else(|| Failure::invalid(format!("a tensor of shape {shape:?} does not fit into memory")))
}

impl Array {
    /// An array whose bytes `write` fills; they are zeros, or arbitrary in a large array. `write` is not called for an
    /// array without elements: one dimension of 0 may stand beside others of any size, and loops over those would not end.
    pub(crate) fn make(
        arena: &Arena,
        dtype: DType,
        shape: &[usize],
        write: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let bytes = count_of(shape)? * dtype.bytes();
        let data = if bytes == 0 {
            Buffer::from(&[][..])
        } else if bytes <= SMALL_BYTES {
            let mut data = vec![0; bytes];
            write(&mut data)?;
            Buffer::from(&data[..])
        } else {
            let mut lease = arena.lease(bytes)?;
            write(&mut lease)?;
            lease.share()
        };
        Ok(Self { dtype, shape: shape.to_vec(), data })
    }

    /// Number of elements.
    pub(super) fn count(&self) -> usize {
        self.data.len() / self.dtype.bytes()
    }

    /// Its shape seen from dimension `dim`.
    pub(super) fn split(&self, dim: usize) -> Result<Split, Failure> {
        let Some((before, [size, behind @ ..])) = self.shape.split_at_checked(dim) else {
            return Err(Failure::invalid(format!(
                "a tensor of shape {:?} has no dimension {dim}",
                self.shape
            )));
        };
        Ok(Split { outer: before.iter().product(), size: *size, inner: behind.iter().product() })
    }

    /// Elements as they lie in memory.
    pub(super) fn elements<const BYTES: usize>(&self) -> &[[u8; BYTES]] {
        debug_assert_eq!(BYTES, self.dtype.bytes());
        self.data.as_chunks().0
    }

    /// Its elements as 64-bit integers; those of floats are cut.
    pub(crate) fn to_i64(&self) -> Vec<i64> {
        match self.dtype {
            DType::Int64 => self.elements().iter().map(|&bytes| i64::from_le_bytes(bytes)).collect(),
            DType::Int32 => self.elements().iter().map(|&bytes| i32::from_le_bytes(bytes).into()).collect(),
            DType::Int16 => self.elements().iter().map(|&bytes| i16::from_le_bytes(bytes).into()).collect(),
            DType::Int8 => self.data.iter().map(|&byte| (byte as i8).into()).collect(),
            DType::UInt8 => self.data.iter().map(|&byte| byte.into()).collect(),
            DType::Bool => self.data.iter().map(|&byte| i64::from(byte != 0)).collect(),
            DType::Float64 => self.to_f64().into_iter().map(|value| value as i64).collect(),
            DType::Float32 | DType::Float16 | DType::BFloat16 => {
                self.to_f32().into_iter().map(|value| value as i64).collect()
            }
        }
    }

    /// Its elements as 32-bit floats.
    pub(crate) fn to_f32(&self) -> Vec<f32> {
        match self.dtype {
            DType::Float32 => self.elements().iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
            DType::BFloat16 => self
                .elements()
                .iter()
                .map(|&bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16))
                .collect(),
            DType::Float16 => {
                self.elements().iter().map(|&bytes| f32_of_half(u16::from_le_bytes(bytes))).collect()
            }
            DType::Float64 => self.to_f64().into_iter().map(|value| value as f32).collect(),
            _ => self.to_i64().into_iter().map(|value| value as f32).collect(),
        }
    }

    /// Its elements as 64-bit floats.
    pub(crate) fn to_f64(&self) -> Vec<f64> {
        match self.dtype {
            DType::Float64 => self.elements().iter().map(|&bytes| f64::from_le_bytes(bytes)).collect(),
            DType::Float32 | DType::Float16 | DType::BFloat16 => {
                self.to_f32().into_iter().map(f64::from).collect()
            }
            _ => self.to_i64().into_iter().map(|value| value as f64).collect(),
        }
    }
}

/// Store elements one after the other.
fn put<const BYTES: usize>(out: &mut [u8], values: impl Iterator<Item = [u8; BYTES]>) {
    for (target, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *target = value;
    }
}

/// Store integers as elements of `dtype`; integers that do not fit lose their upper bits.
pub(super) fn store_i64(out: &mut [u8], dtype: DType, values: impl Iterator<Item = i64>) {
    match dtype {
        DType::Int64 => put(out, values.map(i64::to_le_bytes)),
        DType::Int32 => put(out, values.map(|value| (value as i32).to_le_bytes())),
        DType::Int16 => put(out, values.map(|value| (value as i16).to_le_bytes())),
        DType::Int8 | DType::UInt8 => put(out, values.map(|value| [value as u8])),
        DType::Bool => put(out, values.map(|value| [u8::from(value != 0)])),
        DType::Float64 => put(out, values.map(|value| (value as f64).to_le_bytes())),
        DType::Float32 => put(out, values.map(|value| (value as f32).to_le_bytes())),
        DType::BFloat16 => put(out, values.map(|value| bf16_of(value as f32).to_le_bytes())),
        DType::Float16 => put(out, values.map(|value| half_of_f32(value as f32).to_le_bytes())),
    }
}

/// Store 32-bit floats as elements of `dtype`, rounded to the nearest.
pub(super) fn store_f32(out: &mut [u8], dtype: DType, values: impl Iterator<Item = f32>) {
    match dtype {
        DType::Float32 => put(out, values.map(f32::to_le_bytes)),
        DType::BFloat16 => put(out, values.map(|value| bf16_of(value).to_le_bytes())),
        DType::Float16 => put(out, values.map(|value| half_of_f32(value).to_le_bytes())),
        DType::Float64 => put(out, values.map(|value| f64::from(value).to_le_bytes())),
        DType::Bool => put(out, values.map(|value| [u8::from(value != 0.0)])),
        _ => store_i64(out, dtype, values.map(|value| value as i64)),
    }
}

/// The same of 64-bit floats.
pub(super) fn store_f64(out: &mut [u8], dtype: DType, values: impl Iterator<Item = f64>) {
    match dtype {
        DType::Float64 => put(out, values.map(f64::to_le_bytes)),
        DType::Float32 | DType::Float16 | DType::BFloat16 => {
            store_f32(out, dtype, values.map(|value| value as f32));
        }
        DType::Bool => put(out, values.map(|value| [u8::from(value != 0.0)])),
        _ => store_i64(out, dtype, values.map(|value| value as i64)),
    }
}

/// Round to bfloat16, to the nearest and to even.
fn bf16_of(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return 0x7FC0;
    }
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

fn f32_of_half(half: u16) -> f32 {
    let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from((half >> 10) & 0x1F), f32::from(half & 0x3FF));
    sign * match exponent {
        0 => fraction * 2_f32.powi(-24),
        0x1F if fraction == 0.0 => f32::INFINITY,
        0x1F => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2_f32.powi(exponent - 15),
    }
}

/// Round to the nearest of the 65,504 finite halves and to even.
fn half_of_f32(value: f32) -> u16 {
    let sign = ((value.to_bits() >> 16) & 0x8000) as u16;
    let size = value.abs();
    if value.is_nan() {
        return 0x7E00;
    }
    if size >= 65_520.0 {
        return sign | 0x7C00;
    }
    // The unit in the last place: at least that of the subnormal halves. Scaling by powers of two is exact.
    let exponent = ((size.to_bits() >> 23) as i32 - 127).max(-14);
    let units = (size * 2_f32.powi(10 - exponent)).round_ties_even() as u32;
    // Units of 1,024 and above carry into the exponent by themselves.
    let biased = (exponent + 14) as u32;
    sign | (biased * 1024 + units) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_the_way_over_32_bits() {
        for half in 0..=u16::MAX {
            let value = f32_of_half(half);
            if !value.is_nan() {
                assert_eq!(half_of_f32(value), half, "{value}");
            }
        }
        for (value, half) in
            [(1.0 + 1.0 / 2048.0, 0x3C00), (1.0 + 3.0 / 2048.0, 0x3C02), (1e-9, 0), (7e4, 0x7C00)]
        {
            assert_eq!(half_of_f32(value), half, "{value}");
        }
    }

    #[test]
    fn bfloat16_rounds_to_the_nearest_and_to_even() {
        for (value, bits) in
            [(1.0, 0x3F80), (1.0 + 1.0 / 256.0, 0x3F80), (1.0 + 3.0 / 256.0, 0x3F82), (f32::INFINITY, 0x7F80)]
        {
            assert_eq!(bf16_of(value), bits, "{value}");
        }
    }
}
