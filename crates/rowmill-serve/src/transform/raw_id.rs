//! Raw ids of a request: 64-bit integers, or texts in base 10 or 16.

use super::{Column, Elements};
use crate::Failure;

/// Bytes of a wrong text that an error shows.
const SHOWN_BYTES: usize = 40;

/// How a transform reads ids.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawIds {
    /// 10 or 16.
    pub(super) base: u32,
    /// Stands for a missing value.
    pub(super) missing: i64,
}

impl RawIds {
    /// The ids of a column, the missing one for an empty text.
    ///
    /// # Errors
    /// When a text is no id; names column, row and value.
    pub(super) fn read(self, name: &str, column: &Column) -> Result<Vec<i64>, Failure> {
        if column.elements != Elements::Texts {
            return Ok(column.numbers(name)?.to_i64());
        }
        // Each text takes 4 bytes at least, so the data bound the memory.
        let mut ids = Vec::with_capacity(column.count.min(column.data.len() / 4));
        column.each_text(name, |row, text| {
            ids.push(if text.is_empty() { self.missing } else { self.parse(name, row, text)? });
            Ok(())
        })?;
        Ok(ids)
    }

    fn parse(self, name: &str, row: usize, text: &[u8]) -> Result<i64, Failure> {
        let wrong = |reason: &str| {
            let shown = String::from_utf8_lossy(&text[..text.len().min(SHOWN_BYTES)]);
            Err(Failure::invalid(format!("column {name:?}, row {row}: {shown:?} {reason}")))
        };
        let id = if self.base == 16 { parse_base_16(text) } else { parse_base_10(text) };
        match id {
            None if self.base == 16 => {
                wrong("is no id: it must be 1 to 16 digits of base 16 (0-9, a-f, A-F)")
            }
            None => wrong("is no id: it must be a 64-bit integer in base 10"),
            Some(id) if id == self.missing => {
                wrong("is reserved for missing values: send an empty string for a missing value")
            }
            Some(id) => Ok(id),
        }
    }
}

fn parse_base_16(text: &[u8]) -> Option<i64> {
    if text.len() > 16 {
        return None;
    }
    let digits = text.iter().map(|&byte| char::from(byte).to_digit(16));
    let bits = digits.map(|digit| digit.map(u64::from)).try_fold(0, |id, digit| Some(id << 4 | digit?));
    bits.map(u64::cast_signed)
}

fn parse_base_10(text: &[u8]) -> Option<i64> {
    // Rust would take a plus.
    if text.first() == Some(&b'+') {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_both_bases_are_64_bit_ids() {
        for (text, id) in [
            ("0", Some(0)),
            ("00a", Some(10)),
            ("fFffFFFFffffffff", Some(-1)),
            ("8000000000000001", Some(i64::MIN + 1)),
            ("00000000000000000", None),
            ("0x1", None),
            ("-1", None),
            ("g", None),
            ("é", None),
        ] {
            assert_eq!(parse_base_16(text.as_bytes()), id, "{text}");
        }
        for (text, id) in [
            ("0", Some(0)),
            ("-007", Some(-7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("+1", None),
            (" 1", None),
            ("1.0", None),
            ("-", None),
            ("٣", None),
        ] {
            assert_eq!(parse_base_10(text.as_bytes()), id, "{text}");
        }
    }
}
