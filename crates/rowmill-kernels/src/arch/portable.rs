//! Portable instruction set for every machine: vectors of four floats in plain Rust. Compilers map them to
//! SSE2 or NEON.

use super::{Bits, Vector};

/// Four floats.
#[derive(Clone, Copy)]
pub(super) struct Lanes4([f32; 4]);

impl Vector for Lanes4 {
    const LANES: usize = 4;
    type Bits = Bits4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller gives 4 readable floats; an array of floats has the alignment of one float.
        Self(unsafe { *source.cast() })
    }

    #[inline(always)]
    unsafe fn load_first(source: *const f32, count: usize) -> Self {
        let mut lanes = [0.0; 4];
        for (lane, value) in lanes.iter_mut().enumerate().take(count) {
            // SAFETY: the caller gives `count` readable floats.
            *value = unsafe { *source.add(lane) };
        }
        Self(lanes)
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller gives 4 writable floats.
        unsafe { *target.cast() = self.0 };
    }

    #[inline(always)]
    unsafe fn store_first(self, target: *mut f32, count: usize) {
        for (lane, value) in self.0.into_iter().enumerate().take(count) {
            // SAFETY: the caller gives `count` writable floats.
            unsafe { *target.add(lane) = value };
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] - other.0[lane]))
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] * other.0[lane]))
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] / other.0[lane]))
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        Self(std::array::from_fn(
            |lane| if self.0[lane] < other.0[lane] { self.0[lane] } else { other.0[lane] },
        ))
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(std::array::from_fn(
            |lane| if self.0[lane] > other.0[lane] { self.0[lane] } else { other.0[lane] },
        ))
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane].mul_add(factor.0[lane], term.0[lane])))
    }

    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        Self(self.0.map(f32::sqrt))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        (a + c) + (b + d)
    }

    #[inline(always)]
    unsafe fn to_bits(self) -> Bits4 {
        Bits4(self.0.map(f32::to_bits))
    }

    #[inline(always)]
    unsafe fn from_bits(bits: Bits4) -> Self {
        Self(bits.0.map(f32::from_bits))
    }
}

/// Four integers.
#[derive(Clone, Copy)]
pub(super) struct Bits4([u32; 4]);

impl Bits for Bits4 {
    #[inline(always)]
    unsafe fn splat(value: u32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    unsafe fn ascending() -> Self {
        Self([0, 1, 2, 3])
    }

    #[inline(always)]
    unsafe fn load_halves(source: *const u16) -> Self {
        // SAFETY: the caller gives 4 readable integers.
        unsafe { Self::load_halves_first(source, 4) }
    }

    #[inline(always)]
    unsafe fn load_halves_first(source: *const u16, count: usize) -> Self {
        let mut lanes = [0; 4];
        for (lane, value) in lanes.iter_mut().enumerate().take(count) {
            // SAFETY: the caller gives `count` readable integers.
            *value = u32::from(unsafe { source.add(lane).read_unaligned() });
        }
        Self(lanes)
    }

    #[inline(always)]
    unsafe fn store_halves(self, target: *mut u16) {
        // SAFETY: the caller gives 4 writable integers.
        unsafe { self.store_halves_first(target, 4) }
    }

    #[inline(always)]
    unsafe fn store_halves_first(self, target: *mut u16, count: usize) {
        for (lane, value) in self.0.into_iter().enumerate().take(count) {
            // SAFETY: the caller gives `count` writable integers.
            unsafe { target.add(lane).write_unaligned(value as u16) };
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane].wrapping_add(other.0[lane])))
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane].wrapping_mul(other.0[lane])))
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] ^ other.0[lane]))
    }

    #[inline(always)]
    unsafe fn shift_left(self, places: u32) -> Self {
        Self(self.0.map(|value| value << places))
    }

    #[inline(always)]
    unsafe fn shift_right(self, places: u32) -> Self {
        Self(self.0.map(|value| value >> places))
    }
}
