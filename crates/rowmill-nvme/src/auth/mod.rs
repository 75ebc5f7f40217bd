//! DH-HMAC-CHAP: a host proves that it has a key, and a controller too if the host asks for it. Only the null Diffie-Hellman
//! group is done, so a key that leaks later reveals nothing about data, because nothing is encrypted anyway.
//!
//! A challenge is derived from a seed, which the caller draws at random for each connection.

mod controller;
mod hash;
mod host;
mod key;
mod message;
mod proof;

pub use controller::ControllerAuth;
pub use hash::Hash;
pub use host::{AuthError, HostAuth};
pub use key::{Key, KeyError};
pub use message::AuthFailure;
pub(crate) use message::{AUTH_MESSAGE_BYTES_MAX, is_security_protocol};
