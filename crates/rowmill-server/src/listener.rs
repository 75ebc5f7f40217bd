//! Sockets that accept connections. They are on loopback unless the caller allows another address.

use std::io;
use std::net::ToSocketAddrs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tokio::net::{TcpListener, UnixListener, UnixStream};

/// Which addresses a listener may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// Loopback alone: other machines cannot connect.
    Loopback,
    /// Any address, without encryption or authentication (`--insecure`).
    Insecure,
    /// Any address: the protocol authenticates every connection.
    Authenticated,
}

/// Why a process cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is reachable from other machines.
    #[error(
        "{address} is not a loopback address, and connections are neither encrypted nor authenticated: listen on \
         127.0.0.1, or pass --insecure in a network that you trust"
    )]
    Exposed {
        /// The address as given.
        address: String,
    },
    /// Another process listens there.
    #[error("another process listens at {address}: stop it, or choose another address")]
    InUse {
        /// The address as given.
        address: String,
    },
    /// The path names a file that is not a socket.
    #[error("{path} exists and is not a socket: remove it, or choose another path")]
    NotASocket {
        /// The path as given.
        path: String,
    },
    /// The system refused.
    #[error("cannot listen at {address}: {cause}")]
    System {
        /// The address as given.
        address: String,
        /// The error of the system.
        cause: io::Error,
    },
}

impl ListenError {
    fn system(address: &str, cause: io::Error) -> Self {
        if cause.kind() == io::ErrorKind::AddrInUse {
            return Self::InUse { address: address.into() };
        }
        Self::System { address: address.into(), cause }
    }
}

/// Listen at `host:port`; port 0 takes a free one. Call it within a runtime.
///
/// # Errors
/// When the address is unknown, in use, or more exposed than `exposure` allows.
pub fn bind_tcp(address: &str, exposure: Exposure) -> Result<TcpListener, ListenError> {
    let listen = || {
        let resolved: Vec<_> = address.to_socket_addrs()?.collect();
        if exposure == Exposure::Loopback && !resolved.iter().all(|one| one.ip().is_loopback()) {
            return Ok(None);
        }
        let listener = std::net::TcpListener::bind(&resolved[..])?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Some)
    };
    match listen() {
        Ok(Some(listener)) => Ok(listener),
        Ok(None) => Err(ListenError::Exposed { address: address.into() }),
        Err(cause) => Err(ListenError::system(address, cause)),
    }
}

/// Listen at a Unix socket that only this user may connect to. A socket that a killed process left behind is
/// replaced. Call it within a runtime.
///
/// # Errors
/// When another process listens there, the path is another file, or the system refuses.
pub async fn bind_unix(path: &Path) -> Result<UnixListener, ListenError> {
    let name = path.display().to_string();
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) {
            return Err(ListenError::NotASocket { path: name });
        }
        if UnixStream::connect(path).await.is_ok() {
            return Err(ListenError::InUse { address: name });
        }
        std::fs::remove_file(path).map_err(|cause| ListenError::system(&name, cause))?;
    }
    let listen = || {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    listen().map_err(|cause| ListenError::system(&name, cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn addresses_that_other_machines_reach_need_consent() {
        block_on(async {
            for address in ["0.0.0.0:0", "[::]:0"] {
                let error = bind_tcp(address, Exposure::Loopback).unwrap_err().to_string();
                assert!(error.contains(address) && error.contains("--insecure"), "{error}");
            }
            assert!(bind_tcp("0.0.0.0:0", Exposure::Insecure).is_ok());
            let listener = bind_tcp("127.0.0.1:0", Exposure::Loopback).unwrap();
            assert!(listener.local_addr().unwrap().ip().is_loopback());
            let taken = listener.local_addr().unwrap().to_string();
            assert!(matches!(bind_tcp(&taken, Exposure::Loopback), Err(ListenError::InUse { .. })));
            assert!(matches!(bind_tcp("no port", Exposure::Loopback), Err(ListenError::System { .. })));
        });
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_a_live_one_is_not() {
        block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("dense.sock");
            let listener = bind_unix(&path).await.unwrap();
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            assert!(matches!(bind_unix(&path).await, Err(ListenError::InUse { .. })));
            drop(listener);
            assert!(path.exists(), "closing leaves the file");
            drop(bind_unix(&path).await.unwrap());

            let file = folder.path().join("notes");
            std::fs::write(&file, "text").unwrap();
            assert!(matches!(bind_unix(&file).await, Err(ListenError::NotASocket { .. })));
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
        });
    }
}
