//! Where a dense half listens.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::str::FromStr;

/// An address: `tcp://host:port`, or `shm:///path` of a Unix socket over which the peers share memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// `host:port`.
    Tcp(String),
    /// Path of a Unix socket.
    Shm(PathBuf),
}

/// A text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address: give tcp://HOST:PORT, or shm:///PATH for a process on this machine")]
pub struct AddressError {
    /// The text.
    pub text: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let is_host_and_port = |rest: &str| {
            rest.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        match text.split_once("://") {
            Some(("tcp", rest)) if is_host_and_port(rest) => Ok(Self::Tcp(rest.into())),
            Some(("shm", path)) if path.starts_with('/') && path.len() > 1 => Ok(Self::Shm(path.into())),
            _ => Err(AddressError { text: text.into() }),
        }
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Shm(path) => write!(f, "shm://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["tcp://localhost:8100", "tcp://[::1]:0", "shm:///run/rowmill/dense.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "localhost:8100",
            "tcp://",
            "tcp://host",
            "tcp://:1",
            "tcp://host:70000",
            "shm://",
            "shm:///",
            "shm://relative",
            "rdma://host:1",
        ] {
            assert!(
                text.parse::<Address>().unwrap_err().to_string().contains(&format!("{text:?}")),
                "{text}"
            );
        }
    }
}
