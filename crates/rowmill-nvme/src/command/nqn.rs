//! NVMe qualified names (NQNs), which name hosts and subsystems.

use std::fmt;
use std::str::FromStr;

/// The name of the discovery subsystem, which every port has.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Bytes of the longest name.
const NQN_BYTES_MAX: usize = 223;

/// An NVMe qualified name of a subsystem or a host: 1 to 223 printable characters that start with `nqn.`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(String);

/// A text that is no NVMe qualified name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{0:?} is no NVMe qualified name: it must start with \"nqn.\" and have at most 223 printable characters"
)]
pub struct NqnError(String);

impl Nqn {
    /// The name made from a UUID.
    pub fn from_uuid(uuid: [u8; 16]) -> Nqn {
        let hex = uuid.map(|byte| format!("{byte:02x}")).concat();
        let part = |from: usize, to: usize| &hex[from..to];
        let (a, b, c, d, e) = (part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32));
        Nqn(format!("nqn.2014-08.org.nvmexpress:uuid:{a}-{b}-{c}-{d}-{e}"))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name in a field of 256 bytes, which zeros fill up.
    pub(crate) fn to_field(&self) -> [u8; 256] {
        let mut field = [0; 256];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    /// The name in a field that a zero ends.
    pub(crate) fn from_field(field: &[u8; 256]) -> Result<Nqn, NqnError> {
        let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
        String::from_utf8_lossy(&field[..end]).parse()
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Nqn, NqnError> {
        let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.starts_with("nqn.") && text.len() <= NQN_BYTES_MAX && is_printable {
            Ok(Nqn(text.to_owned()))
        } else {
            Err(NqnError(text.to_owned()))
        }
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_from_uuids_and_survive_their_field() {
        let name = Nqn::from_uuid(*b"\x00\x112\xffABCDEFGHIJ\x01\x02");
        assert_eq!(name.as_str(), "nqn.2014-08.org.nvmexpress:uuid:001132ff-4142-4344-4546-4748494a0102");
        assert_eq!(Nqn::from_field(&name.to_field()), Ok(name));
        assert_eq!(DISCOVERY_NQN.parse::<Nqn>().unwrap().as_str(), DISCOVERY_NQN);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "iqn.2014-08.org", "nqn.a b", "nqn.\u{e9}", &format!("nqn.{}", "x".repeat(220))] {
            assert!(text.parse::<Nqn>().is_err(), "{text}");
        }
    }
}
