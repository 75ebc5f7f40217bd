//! Comparing an id with all ids of a bucket at once.

/// How five ids are compared with one. Without branches: which entry matches is random, and a wrong guess
/// costs more than five comparisons.
pub trait Compare {
    /// Bit `e` is set where `ids[e] == id`.
    ///
    /// # Safety
    /// The CPU has the instructions of the implementor.
    unsafe fn matches(ids: &[u64; 5], id: u64) -> u32;
}

/// With what every CPU has.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Compare for Plain {
    #[inline(always)]
    unsafe fn matches(ids: &[u64; 5], id: u64) -> u32 {
        (0..5).fold(0, |matches, e| matches | u32::from(ids[e] == id) << e)
    }
}

/// With AVX-512: one load and one comparison.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx512;

#[cfg(target_arch = "x86_64")]
impl Compare for Avx512 {
    #[inline(always)]
    unsafe fn matches(ids: &[u64; 5], id: u64) -> u32 {
        use std::arch::x86_64::{_mm512_cmpeq_epi64_mask, _mm512_maskz_loadu_epi64, _mm512_set1_epi64};
        const ALL: u8 = 0b1_1111;
        // SAFETY: the caller's; the mask keeps the load within the five ids.
        unsafe {
            let ids = _mm512_maskz_loadu_epi64(ALL, ids.as_ptr().cast());
            u32::from(_mm512_cmpeq_epi64_mask(ids, _mm512_set1_epi64(id as i64)) & ALL)
        }
    }
}
