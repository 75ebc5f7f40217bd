//! AVX2 with fused multiply-add (Haswell, Zen, and later): vectors of eight floats.

use std::arch::x86_64::{
    __m128, __m128i, __m256, __m256i, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_loadu_si128,
    _mm_movehdup_ps, _mm_movehl_ps, _mm_packus_epi32, _mm_storeu_si128, _mm256_add_epi32, _mm256_add_ps,
    _mm256_castps_si256, _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cvtepu16_epi32, _mm256_div_ps, _mm256_extractf128_ps, _mm256_extracti128_si256, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_maskload_ps, _mm256_maskstore_ps, _mm256_max_ps,
    _mm256_min_ps, _mm256_mul_ps, _mm256_mullo_epi32, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32,
    _mm256_sllv_epi32, _mm256_sqrt_ps, _mm256_srlv_epi32, _mm256_storeu_ps, _mm256_sub_ps, _mm256_xor_si256,
};

use super::{Bits, Kernel, Vector};

/// Whether this machine supports the instruction set.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// Run `kernel` with the instruction set enabled.
///
/// # Safety
/// The machine supports the set ([`is_available`]), and the kernel's arguments meet its requirements.
#[target_feature(enable = "avx,avx2,fma")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller upholds the contract.
    unsafe { kernel.run::<Lanes8>() }
}

/// The sum of eight floats, by halves.
///
/// # Safety
/// The instruction set is enabled.
#[inline(always)]
pub(super) unsafe fn sum(eight: __m256) -> f32 {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let four: __m128 = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// Eight floats.
#[derive(Clone, Copy)]
struct Lanes8(__m256);

/// The eight integers from position `8 - count` on have their sign bit set in the first `count`.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
unsafe fn mask(count: usize) -> __m256i {
    debug_assert!(count <= 8);
    // SAFETY: `count` is at most 8, so eight integers follow that position; the instruction set is enabled.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - count).cast()) }
}

// SAFETY of all methods: a `Vector` is used only where the instruction set is enabled. The caller guarantees
// that pointers are valid; masked lanes are not accessed.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Lanes8 {
    const LANES: usize = 8;
    type Bits = Bits8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        Self(unsafe { _mm256_loadu_ps(source) })
    }

    #[inline(always)]
    unsafe fn load_first(source: *const f32, count: usize) -> Self {
        Self(unsafe { _mm256_maskload_ps(source, mask(count)) })
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        unsafe { _mm256_storeu_ps(target, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, target: *mut f32, count: usize) {
        unsafe { _mm256_maskstore_ps(target, mask(count), self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        Self(unsafe { _mm256_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        Self(unsafe { _mm256_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, term.0) })
    }

    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        Self(unsafe { _mm256_sqrt_ps(self.0) })
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { sum(self.0) }
    }

    #[inline(always)]
    unsafe fn to_bits(self) -> Bits8 {
        Bits8(unsafe { _mm256_castps_si256(self.0) })
    }

    #[inline(always)]
    unsafe fn from_bits(bits: Bits8) -> Self {
        Self(unsafe { _mm256_castsi256_ps(bits.0) })
    }
}

/// Eight integers.
#[derive(Clone, Copy)]
struct Bits8(__m256i);

// SAFETY of all methods: as above. AVX2 cannot mask 16-bit integers, so partial loads and stores use the
// stack.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Bits for Bits8 {
    #[inline(always)]
    unsafe fn splat(value: u32) -> Self {
        Self(unsafe { _mm256_set1_epi32(value.cast_signed()) })
    }

    #[inline(always)]
    unsafe fn ascending() -> Self {
        Self(unsafe { _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7) })
    }

    #[inline(always)]
    unsafe fn load_halves(source: *const u16) -> Self {
        Self(unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(source.cast())) })
    }

    #[inline(always)]
    unsafe fn load_halves_first(source: *const u16, count: usize) -> Self {
        let mut halves = [0_u16; 8];
        debug_assert!(count < 8);
        unsafe {
            source.cast::<u8>().copy_to_nonoverlapping(halves.as_mut_ptr().cast(), 2 * count);
            Self::load_halves(halves.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_halves(self, target: *mut u16) {
        unsafe {
            let low: __m128i = _mm256_castsi256_si128(self.0);
            _mm_storeu_si128(target.cast(), _mm_packus_epi32(low, _mm256_extracti128_si256::<1>(self.0)));
        }
    }

    #[inline(always)]
    unsafe fn store_halves_first(self, target: *mut u16, count: usize) {
        let mut halves = [0_u16; 8];
        debug_assert!(count < 8);
        unsafe {
            self.store_halves(halves.as_mut_ptr());
            target.cast::<u8>().copy_from_nonoverlapping(halves.as_ptr().cast(), 2 * count);
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(unsafe { _mm256_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm256_mullo_epi32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn shift_left(self, places: u32) -> Self {
        Self(unsafe { _mm256_sllv_epi32(self.0, _mm256_set1_epi32(places.cast_signed())) })
    }

    #[inline(always)]
    unsafe fn shift_right(self, places: u32) -> Self {
        Self(unsafe { _mm256_srlv_epi32(self.0, _mm256_set1_epi32(places.cast_signed())) })
    }
}
