//! Instruction sets: one vector trait, one file per set, and the choice of the set.
//!
//! A kernel is a struct of its arguments that implements [`Kernel`]. Its `run` is generic over [`Vector`] and
//! inlined into one function per instruction set, where that set is enabled. A new kernel changes no file
//! here. A new instruction set adds one file and three lines here.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use std::sync::OnceLock;

/// A vector of `LANES` floats. Every operation rounds as IEEE 754 requires, lane by lane, so that all
/// instruction sets give the same bits.
///
/// # Safety
/// All methods may run only where the implementor's instruction set is enabled, that is inside
/// [`InstructionSet::run`]. Pointers need no alignment.
/// [`InstructionSet::run`]. Pointers need no alignment.
pub(crate) trait Vector: Copy {
    /// Floats per vector, at most 16.
    const LANES: usize;
    /// A vector of `LANES` 32-bit integers.
    type Bits: Bits;

    /// `value` in every lane.
    unsafe fn splat(value: f32) -> Self;
    /// Reads `LANES` floats.
    unsafe fn load(source: *const f32) -> Self;
    /// Reads the first `count < LANES` floats; the other lanes are 0.
    unsafe fn load_first(source: *const f32, count: usize) -> Self;
    /// Writes `LANES` floats.
    unsafe fn store(self, target: *mut f32);
    /// Writes the first `count < LANES` floats.
    unsafe fn store_first(self, target: *mut f32, count: usize);
    /// `self + other`
    unsafe fn add(self, other: Self) -> Self;
    /// `self - other`
    unsafe fn sub(self, other: Self) -> Self;
    /// `self * other`
    unsafe fn mul(self, other: Self) -> Self;
    /// `self / other`
    unsafe fn div(self, other: Self) -> Self;
    /// `self` where it is less than `other`, else `other`.
    unsafe fn min(self, other: Self) -> Self;
    /// `self` where it is greater than `other`, else `other`.
    unsafe fn max(self, other: Self) -> Self;
    /// `self * factor + term`, rounded once.
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self;
    /// Square root.
    unsafe fn sqrt(self) -> Self;
    /// The sum of all lanes, by halves: first lane `p` plus lane `p + LANES / 2`, and so on.
    unsafe fn sum(self) -> f32;
    /// Writes the sums of `N` vectors to as many floats, each as [`Self::sum`] computes it.
    #[inline(always)]
    unsafe fn store_sums<const N: usize>(vectors: [Self; N], target: *mut f32) {
        for (number, vector) in vectors.into_iter().enumerate() {
            // SAFETY: the caller upholds the contract.
            unsafe { *target.add(number) = vector.sum() };
        }
    }
    /// Writes the sums of `N` rows of `N` vectors, each as [`Self::sum`] computes it. Sums of a row are neighbours in memory;
    /// from one row to the next are `stride` floats.
    #[inline(always)]
    unsafe fn store_sums_of_square<const N: usize>(square: [[Self; N]; N], target: *mut f32, stride: usize) {
        for (number, row) in square.into_iter().enumerate() {
            // SAFETY: the caller upholds the contract.
            unsafe { Self::store_sums(row, target.add(number * stride)) };
        }
    }
    /// The bits of the floats.
    unsafe fn to_bits(self) -> Self::Bits;
    /// The floats with these bits.
    unsafe fn from_bits(bits: Self::Bits) -> Self;

    /// Reads `count <= LANES` floats. Has no branches if `count` is known to be `LANES`.
    #[inline(always)]
    unsafe fn load_up_to(source: *const f32, count: usize) -> Self {
        // SAFETY: the caller upholds the contract.
        unsafe { if count == Self::LANES { Self::load(source) } else { Self::load_first(source, count) } }
    }

    /// Writes `count <= LANES` floats. Has no branches if `count` is known to be `LANES`.
    #[inline(always)]
    unsafe fn store_up_to(self, target: *mut f32, count: usize) {
        // SAFETY: the caller upholds the contract.
        unsafe { if count == Self::LANES { self.store(target) } else { self.store_first(target, count) } }
    }
}

/// A vector of 32-bit integers, as many as a [`Vector`] has floats. Arithmetic wraps around on overflow.
///
/// # Safety
/// As for [`Vector`].
pub(crate) trait Bits: Copy {
    /// `value` in every lane.
    unsafe fn splat(value: u32) -> Self;
    /// 0, 1, 2, ...
    unsafe fn ascending() -> Self;
    /// Reads `LANES` 16-bit integers.
    unsafe fn load_halves(source: *const u16) -> Self;
    /// Reads the first `count < LANES` 16-bit integers; the other lanes are 0.
    unsafe fn load_halves_first(source: *const u16, count: usize) -> Self;
    /// Writes the lower 16 bits of every lane; the upper 16 bits must be 0.
    unsafe fn store_halves(self, target: *mut u16);
    /// Writes the first `count < LANES` of them.
    unsafe fn store_halves_first(self, target: *mut u16, count: usize);
    /// `self + other`
    unsafe fn add(self, other: Self) -> Self;
    /// `self * other`
    unsafe fn mul(self, other: Self) -> Self;
    /// `self ^ other`
    unsafe fn xor(self, other: Self) -> Self;
    /// `self << places`; one instruction if `places` is a constant.
    unsafe fn shift_left(self, places: u32) -> Self;
    /// `self >> places`; one instruction if `places` is a constant.
    unsafe fn shift_right(self, places: u32) -> Self;
}

/// The arguments of one kernel call.
pub(crate) trait Kernel {
    /// What the call returns.
    type Output;

    /// The algorithm. Must be `#[inline(always)]`, as must everything it calls per element: functions that
    /// are not inlined are compiled without the instruction set.
    ///
    /// # Safety
    /// Only [`InstructionSet::run`] may call it, and the arguments must meet the kernel's requirements.
    unsafe fn run<V: Vector>(self) -> Self::Output;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// An instruction set of this machine. The existence of a value proves that its kernels may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionSet(Kind);

impl InstructionSet {
    /// The fastest set of this machine, detected once.
    pub fn best() -> Self {
        static BEST: OnceLock<InstructionSet> = OnceLock::new();
        *BEST.get_or_init(|| Self::available()[0])
    }

    /// Every set of this machine, fastest first. Tests run each of them.
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if avx512::is_available() {
                sets.push(Self(Kind::Avx512));
            }
            if avx2::is_available() {
                sets.push(Self(Kind::Avx2));
            }
        }
        sets.push(Self(Kind::Portable));
        sets
    }

    /// Name for logs and reports.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            Kind::Portable => "portable",
        }
    }

    /// Run a kernel with this set.
    ///
    /// # Safety
    /// The kernel's arguments must meet its requirements.
    #[inline]
    pub(crate) unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` exists, so the machine supports the set. The caller guarantees the kernel's
        // requirements.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => avx512::run(kernel),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => avx2::run(kernel),
                Kind::Portable => kernel.run::<portable::Lanes4>(),
            }
        }
    }
}

impl std::fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Prefetch `bytes` bytes at `target`. Never faults, so any address is allowed.
#[inline(always)]
pub(crate) fn prefetch(target: *const f32, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let target = target.cast::<i8>();
        // SAFETY: a prefetch is a hint without visible effects.
        unsafe {
            for line in (0..bytes).step_by(LINE_BYTES) {
                _mm_prefetch::<_MM_HINT_T0>(target.wrapping_add(line));
            }
            // A row that does not start on a cache line may end on one more line.
            if target.addr() % LINE_BYTES != 0 {
                _mm_prefetch::<_MM_HINT_T0>(target.wrapping_add(bytes - 1));
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = (target, bytes, LINE_BYTES);
    }
}
