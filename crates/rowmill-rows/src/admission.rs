//! Admission: which ids get a row.

use serde::{Deserialize, Serialize};

use crate::SpecError;

/// Limits of a sketch's size, in bytes.
const BYTES_MIN: u64 = 1 << 10;
const BYTES_MAX: u64 = 1 << 30;

/// An id gets a row after `min_count` training reads. A sketch of fixed size counts these reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// Number of training reads of an id after which it gets a row, including the read that creates the row.
    pub min_count: u8,
    /// Size of the sketch in bytes. A sketch never counts an id too low. It may count it too high; a larger
    /// sketch does so less often.
    pub bytes: u64,
}

impl Admission {
    /// Check every field; the error names the first invalid one.
    ///
    /// # Errors
    /// [`SpecError`] with the field, its permitted values and its value.
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
            "admission min_count must be between 2 and 255, got 1: omit admission to admit every id"
        );
        for bytes in [0, 512, 1000, 1 << 31] {
            assert_eq!(
                check(2, bytes).unwrap_err(),
                format!("admission bytes must be a power of two from 1 KiB to 1 GiB, got {bytes}")
            );
        }
    }
}
