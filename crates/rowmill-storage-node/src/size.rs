//! A number of bytes in a settings file: `"10GiB"`, or a plain number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let found = UNITS.iter().find_map(|&(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
        let (number, shift) = found.unwrap_or((text, 0));
        let bytes = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        bytes.map(Size).ok_or_else(|| {
            format!("{text:?} is no size: write a number of bytes, KiB, MiB, GiB or TiB, such as \"10GiB\"")
        })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fitting = UNITS.iter().find(|&&(_, shift)| self.0 > 0 && self.0.is_multiple_of(1 << shift));
        match fitting {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"10GiB\"")
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                let unfit = || E::invalid_value(de::Unexpected::Signed(bytes), &self);
                u64::try_from(bytes).map(Size).map_err(|_| unfit())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_1024() {
        for (text, bytes) in
            [("7", 7), ("4KiB", 4096), ("3 MiB", 3 << 20), ("2GiB", 2 << 30), ("1TiB", 1 << 40)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)));
        }
        assert_eq!(Size(10 << 30).to_string(), "10GiB");
        assert_eq!(Size(0).to_string(), "0");
        assert_eq!(Size(4097).to_string(), "4097");
        for text in ["", "GiB", "1GB", "-1", "1.5GiB", "99999999999TiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
