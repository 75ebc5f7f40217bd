//! Bytes as numbers, in place.

use std::borrow::Cow;

/// Numbers that every pattern of bits is a value of.
pub(crate) trait Word: Copy {
    /// From bytes that lie anywhere.
    fn read(bytes: &[u8]) -> Vec<Self>;
}

macro_rules! words {
    ($($number:ty),*) => {$(
        impl Word for $number {
            fn read(bytes: &[u8]) -> Vec<Self> {
                bytes.as_chunks().0.iter().map(|bytes| Self::from_le_bytes(*bytes)).collect()
            }
        }
    )*};
}

words!(u64, i64, f32, u16);

/// Bytes as numbers: the same memory where it is aligned, else a copy.
pub(crate) fn words<T: Word>(bytes: &[u8]) -> Cow<'_, [T]> {
    // SAFETY: every pattern of bits is a value of a `Word`.
    match unsafe { bytes.align_to::<T>() } {
        ([], words, []) => Cow::Borrowed(words),
        _ => Cow::Owned(T::read(bytes)),
    }
}

/// Bytes to write as numbers.
///
/// # Panics
/// When they are not aligned: leases and vectors of numbers are.
pub(crate) fn words_mut<T: Word>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: every pattern of bits is a value of a `Word`, and each of its values is bytes.
    match unsafe { bytes.align_to_mut::<T>() } {
        ([], words, []) => words,
        _ => panic!("a buffer for numbers is not aligned"),
    }
}
