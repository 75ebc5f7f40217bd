//! AVX-512 (F, DQ, BW and VL: Skylake servers, Zen 4, and later): vectors of sixteen floats.

use std::arch::x86_64::{
    __m128, __m512, __m512i, _mm_storeu_ps, _mm256_add_ps, _mm256_loadu_si256, _mm256_mask_storeu_epi16,
    _mm256_maskz_loadu_epi16, _mm256_storeu_si256, _mm512_add_epi32, _mm512_add_ps, _mm512_castps_si512,
    _mm512_castps512_ps128, _mm512_castps512_ps256, _mm512_castsi512_ps, _mm512_cvtepi32_epi16,
    _mm512_cvtepu16_epi32, _mm512_div_ps, _mm512_extractf32x4_ps, _mm512_extractf32x8_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_mask_blend_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_max_ps,
    _mm512_min_ps, _mm512_mul_ps, _mm512_mullo_epi32, _mm512_permute_ps, _mm512_permutexvar_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setr_epi32, _mm512_shuffle_f32x4, _mm512_shuffle_ps,
    _mm512_sllv_epi32, _mm512_sqrt_ps, _mm512_srlv_epi32, _mm512_storeu_ps, _mm512_sub_ps, _mm512_xor_si512,
};

use super::{Bits, Kernel, Vector};

/// Whether this machine supports the instruction set.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && super::avx2::is_available()
}

/// Run `kernel` with the instruction set enabled.
///
/// # Safety
/// The machine supports the set ([`is_available`]), and the kernel's arguments meet its requirements.
#[target_feature(enable = "avx,avx2,fma,avx512f,avx512dq,avx512bw,avx512vl")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller upholds the contract.
    unsafe { kernel.run::<Lanes16>() }
}

/// Sixteen floats.
#[derive(Clone, Copy)]
struct Lanes16(__m512);

#[inline(always)]
fn mask(count: usize) -> u16 {
    debug_assert!(count < 16);
    (1 << count) - 1
}

/// The sums of four vectors, each added by halves as [`Vector::sum`] does it: less than half of its instructions, because
/// lanes of several vectors share them.
#[inline(always)]
unsafe fn sums_of_4(a: __m512, b: __m512, c: __m512, d: __m512) -> __m128 {
    // SAFETY: the caller upholds the contract.
    unsafe {
        // Eight lanes of each: the lower half plus the upper half.
        let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
        let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
        // Four lanes of each, then two, then one.
        let four = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd));
        let two = _mm512_add_ps(four, _mm512_permute_ps::<0x4E>(four));
        let one = _mm512_add_ps(two, _mm512_permute_ps::<0xB1>(two));
        let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one))
    }
}

/// The sums of 16 vectors, each as [`Vector::sum`] computes it: `columns[c][r]` becomes lane `4 r + c`. Every step adds halves of
/// two vectors at once, so that it leaves no lane unused: fewer instructions than four times [`sums_of_4`].
#[inline(always)]
unsafe fn sums_of_16([a, b, c, d]: [[__m512; 4]; 4]) -> __m512 {
    // SAFETY: the caller upholds the contract.
    unsafe {
        // Four lanes of each row, then two of each of two columns, then one of each of four.
        let (a, b) = (fours_of_4(a), fours_of_4(b));
        let (c, d) = (fours_of_4(c), fours_of_4(d));
        let ac = _mm512_add_ps(_mm512_mask_blend_ps(0xCCCC, a, c), _mm512_shuffle_ps::<0x4E>(a, c));
        let bd = _mm512_add_ps(_mm512_mask_blend_ps(0xCCCC, b, d), _mm512_shuffle_ps::<0x4E>(b, d));
        let moved = _mm512_permute_ps::<0xB1>(_mm512_mask_blend_ps(0x5555, ac, bd));
        _mm512_add_ps(_mm512_mask_blend_ps(0xAAAA, ac, bd), moved)
    }
}

/// Four lanes of each of four vectors, in their order: of 16 lanes, the sum of every fourth.
#[inline(always)]
unsafe fn fours_of_4([a, b, c, d]: [__m512; 4]) -> __m512 {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let ac = _mm512_add_ps(_mm512_mask_blend_ps(0xFF00, a, c), _mm512_shuffle_f32x4::<0x4E>(a, c));
        let bd = _mm512_add_ps(_mm512_mask_blend_ps(0xFF00, b, d), _mm512_shuffle_f32x4::<0x4E>(b, d));
        let moved = _mm512_mask_blend_ps(0x0F0F, ac, bd);
        let moved = _mm512_shuffle_f32x4::<0xB1>(moved, moved);
        _mm512_add_ps(_mm512_mask_blend_ps(0xF0F0, ac, bd), moved)
    }
}

// SAFETY of all methods: a `Vector` is used only where the instruction set is enabled. The caller guarantees
// that pointers are valid; masked lanes are not accessed.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Lanes16 {
    const LANES: usize = 16;
    type Bits = Bits16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        Self(unsafe { _mm512_loadu_ps(source) })
    }

    #[inline(always)]
    unsafe fn load_first(source: *const f32, count: usize) -> Self {
        Self(unsafe { _mm512_maskz_loadu_ps(mask(count), source) })
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        unsafe { _mm512_storeu_ps(target, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, target: *mut f32, count: usize) {
        unsafe { _mm512_mask_storeu_ps(target, mask(count), self.0) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, term.0) })
    }

    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        Self(unsafe { _mm512_sqrt_ps(self.0) })
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let halves = (_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            super::avx2::sum(_mm256_add_ps(halves.0, halves.1))
        }
    }

    #[inline(always)]
    unsafe fn store_sums<const N: usize>(vectors: [Self; N], target: *mut f32) {
        unsafe {
            let mut at = 0;
            while at + 4 <= N {
                let [a, b, c, d] = std::array::from_fn(|n| vectors[at + n].0);
                _mm_storeu_ps(target.add(at), sums_of_4(a, b, c, d));
                at += 4;
            }
            while at < N {
                *target.add(at) = vectors[at].sum();
                at += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn store_sums_of_square<const N: usize>(square: [[Self; N]; N], target: *mut f32, stride: usize) {
        unsafe {
            if N == 4 {
                let sums = sums_of_16(std::array::from_fn(|c| std::array::from_fn(|r| square[r][c].0)));
                _mm_storeu_ps(target, _mm512_castps512_ps128(sums));
                _mm_storeu_ps(target.add(stride), _mm512_extractf32x4_ps::<1>(sums));
                _mm_storeu_ps(target.add(2 * stride), _mm512_extractf32x4_ps::<2>(sums));
                _mm_storeu_ps(target.add(3 * stride), _mm512_extractf32x4_ps::<3>(sums));
            } else {
                for (number, row) in square.into_iter().enumerate() {
                    Self::store_sums(row, target.add(number * stride));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn to_bits(self) -> Bits16 {
        Bits16(unsafe { _mm512_castps_si512(self.0) })
    }

    #[inline(always)]
    unsafe fn from_bits(bits: Bits16) -> Self {
        Self(unsafe { _mm512_castsi512_ps(bits.0) })
    }
}

/// Sixteen integers.
#[derive(Clone, Copy)]
struct Bits16(__m512i);

// SAFETY of all methods: as above: the set is enabled, and the caller guarantees valid pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Bits for Bits16 {
    #[inline(always)]
    unsafe fn splat(value: u32) -> Self {
        Self(unsafe { _mm512_set1_epi32(value.cast_signed()) })
    }

    #[inline(always)]
    unsafe fn ascending() -> Self {
        Self(unsafe { _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) })
    }

    #[inline(always)]
    unsafe fn load_halves(source: *const u16) -> Self {
        Self(unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(source.cast())) })
    }

    #[inline(always)]
    unsafe fn load_halves_first(source: *const u16, count: usize) -> Self {
        Self(unsafe { _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask(count), source.cast())) })
    }

    #[inline(always)]
    unsafe fn store_halves(self, target: *mut u16) {
        unsafe { _mm256_storeu_si256(target.cast(), _mm512_cvtepi32_epi16(self.0)) }
    }

    #[inline(always)]
    unsafe fn store_halves_first(self, target: *mut u16, count: usize) {
        unsafe { _mm256_mask_storeu_epi16(target.cast(), mask(count), _mm512_cvtepi32_epi16(self.0)) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(unsafe { _mm512_add_epi32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm512_mullo_epi32(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn shift_left(self, places: u32) -> Self {
        Self(unsafe { _mm512_sllv_epi32(self.0, _mm512_set1_epi32(places.cast_signed())) })
    }

    #[inline(always)]
    unsafe fn shift_right(self, places: u32) -> Self {
        Self(unsafe { _mm512_srlv_epi32(self.0, _mm512_set1_epi32(places.cast_signed())) })
    }
}
