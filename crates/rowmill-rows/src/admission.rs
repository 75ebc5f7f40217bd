//! Which ids get a row.

use serde::{Deserialize, Serialize};

use crate::SpecError;

/// Least and most bytes of a sketch.
const BYTES_MIN: u64 = 1 << 10;
const BYTES_MAX: u64 = 1 << 30;

/// An id gets a row once enough training reads asked for it, which a sketch of a fixed size counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// Training reads that must ask for an id, the one that makes its row included.
    pub min_count: u8,
    /// Bytes of the sketch. It may count an id too high, more rarely the larger it is, and never too low.
    pub bytes: u64,
}

impl Admission {
    /// Check every field; the error names the first that is wrong.
    ///
    /// # Errors
    /// [`SpecError`] with the field, what it must be and what it was.
    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        if self.min_count < 2 {
            return Err(SpecError::MinCount(self.min_count));
        }
        if !self.bytes.is_power_of_two() || !(BYTES_MIN..=BYTES_MAX).contains(&self.bytes) {
            return Err(SpecError::SketchBytes(self.bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_admission_is_named_with_its_value_and_what_it_must_be() {
        let check = |min_count, bytes| Admission { min_count, bytes }.validate().map_err(|e| e.to_string());
        assert_eq!(check(2, 1024), Ok(()));
        assert_eq!(check(255, 1 << 30), Ok(()));
        assert_eq!(
            check(1, 1024).unwrap_err(),
            "admission min_count must be between 2 and 255, got 1: leave admission out to admit every id"
        );
        for bytes in [0, 512, 1000, 1 << 31] {
            assert_eq!(
                check(2, bytes).unwrap_err(),
                format!("admission bytes must be a power of two from 1 KiB to 1 GiB, got {bytes}")
            );
        }
    }
}
