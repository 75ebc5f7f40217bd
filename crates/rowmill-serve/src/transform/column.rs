//! A raw column of a request, or one part of a history.

use crate::plan::Array;
use crate::{Buffer, DType, Failure};

/// The type of a column's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Numbers.
    Numbers(DType),
    /// Texts, each behind its number of bytes, 4 bytes little-endian.
    Texts,
}

/// The elements of a column as a client sent them.
#[derive(Clone, Debug)]
pub struct Column {
    /// Their type.
    pub elements: Elements,
    /// Their number.
    pub count: usize,
    /// Numbers, little-endian; or texts, which are not checked yet.
    pub data: Buffer,
}

impl Column {
    /// Its numbers.
    ///
    /// # Errors
    /// When it holds texts, or its bytes are not as many as its numbers need.
    pub(super) fn numbers(&self, name: &str) -> Result<Array, Failure> {
        let Elements::Numbers(dtype) = self.elements else {
            return Err(Failure::invalid(format!("column {name:?} holds texts, must hold numbers")));
        };
        if self.count.checked_mul(dtype.bytes()) != Some(self.data.len()) {
            return Err(Failure::invalid(format!(
                "column {name:?} has {} bytes, must have {} for {} numbers",
                self.data.len(),
                dtype.bytes(),
                self.count
            )));
        }
        Ok(Array { dtype, shape: vec![self.count], data: self.data.clone() })
    }

    /// Pass each text with its number to `each`.
    ///
    /// # Errors
    /// When the bytes are not `count` texts, or `each` fails.
    pub(super) fn each_text(
        &self,
        name: &str,
        mut each: impl FnMut(usize, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut rest: &[u8] = &self.data;
        for row in 0..self.count {
            let text = rest.split_first_chunk().and_then(|(length, behind)| {
                let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
                rest = behind;
                Some(text)
            });
            let text = text.ok_or_else(|| {
                Failure::invalid(format!(
                    "column {name:?}, row {row}: {} bytes are left, too few for the length of a text and the text",
                    rest.len()
                ))
            })?;
            each(row, text)?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        Err(Failure::invalid(format!(
            "column {name:?} has {} bytes behind its {} texts",
            rest.len(),
            self.count
        )))
    }
}
