//! Four floats in plain Rust: what every machine has (the compiler makes SSE2 or NEON of it).

use super::Vector;

/// Four floats.
#[derive(Clone, Copy)]
pub(super) struct Lanes4([f32; 4]);

impl Vector for Lanes4 {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller gives 4 readable floats; an array of floats has the alignment of one.
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
}
