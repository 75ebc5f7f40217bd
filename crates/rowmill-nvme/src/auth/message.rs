//! Messages of DH-HMAC-CHAP, which Authentication Send and Authentication Receive carry.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Hash;
use crate::command::{Command, fabrics};

/// Messages of all protocols.
pub(super) const COMMON: u8 = 0;
/// Messages of DH-HMAC-CHAP.
pub(super) const DHCHAP: u8 = 1;

/// Identifiers of messages.
pub(super) mod id {
    pub(crate) const NEGOTIATE: u8 = 0x00;
    pub(crate) const CHALLENGE: u8 = 0x01;
    pub(crate) const REPLY: u8 = 0x02;
    pub(crate) const SUCCESS1: u8 = 0x03;
    pub(crate) const SUCCESS2: u8 = 0x04;
    pub(crate) const FAILURE2: u8 = 0xf0;
    pub(crate) const FAILURE1: u8 = 0xf1;
}

/// Why an authentication failed, as the messages say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AuthFailure {
    /// The other side does not have the key.
    Failed = 1,
    /// No protocol that both sides have.
    NotUsable = 2,
    /// The host requests a secure channel, which is not supported.
    SecureChannel = 3,
    /// No hash function that both sides have.
    HashNotUsable = 4,
    /// No Diffie-Hellman group that both sides have; here, only the null group exists.
    GroupNotUsable = 5,
    /// A message has a wrong content.
    IncorrectPayload = 6,
    /// A message came when another one was expected.
    IncorrectMessage = 7,
}

impl AuthFailure {
    /// Every failure.
    pub const ALL: [AuthFailure; 7] = [
        AuthFailure::Failed,
        AuthFailure::NotUsable,
        AuthFailure::SecureChannel,
        AuthFailure::HashNotUsable,
        AuthFailure::GroupNotUsable,
        AuthFailure::IncorrectPayload,
        AuthFailure::IncorrectMessage,
    ];

    pub(super) fn from_byte(byte: u8) -> Option<AuthFailure> {
        AuthFailure::ALL.into_iter().find(|&failure| failure as u8 == byte)
    }
}

/// How every message starts.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Start {
    pub(super) kind: u8,
    pub(super) id: u8,
    reserved: [u8; 2],
    pub(super) transaction: U16,
}

impl Start {
    pub(super) fn new(kind: u8, id: u8, transaction: u16) -> Start {
        Start { kind, id, reserved: [0; 2], transaction: transaction.into() }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Negotiate {
    pub(super) start: Start,
    pub(super) secure_channel: u8,
    pub(super) protocols: u8,
    pub(super) protocol: u8,
    reserved: u8,
    pub(super) hash_count: u8,
    pub(super) group_count: u8,
    pub(super) hashes: [u8; 30],
    pub(super) groups: [u8; 30],
}

/// The protocol DH-HMAC-CHAP in a negotiation.
pub(super) const PROTOCOL: u8 = 1;
/// The null group.
pub(super) const GROUP_NULL: u8 = 0;

impl Negotiate {
    /// All hash functions and the null group.
    pub(super) fn new(transaction: u16) -> Negotiate {
        let mut message = Negotiate {
            start: Start::new(COMMON, id::NEGOTIATE, transaction),
            protocols: 1,
            protocol: PROTOCOL,
            hash_count: Hash::ALL.len() as u8,
            group_count: 1,
            ..Negotiate::new_zeroed()
        };
        message.groups[0] = GROUP_NULL;
        for (byte, hash) in message.hashes.iter_mut().zip(Hash::ALL) {
            *byte = hash as u8;
        }
        message
    }
}

/// Challenge, reply and success1. Values of `hash_bytes` bytes follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Values {
    pub(super) start: Start,
    pub(super) hash_bytes: u8,
    reserved_7: u8,
    /// Of a challenge: the hash. Of the others: the second value is valid.
    pub(super) hash_or_valid: u8,
    pub(super) group: u8,
    pub(super) group_bytes: U16,
    /// Of a challenge and a reply.
    pub(super) sequence: U32,
}

impl Values {
    pub(super) fn new(id: u8, transaction: u16, hash: Hash, hash_or_valid: u8, sequence: u32) -> Values {
        Values {
            start: Start::new(DHCHAP, id, transaction),
            hash_bytes: hash.bytes() as u8,
            hash_or_valid,
            sequence: sequence.into(),
            ..Values::new_zeroed()
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Failure {
    pub(super) start: Start,
    pub(super) reason: u8,
    pub(super) explanation: u8,
}

impl Failure {
    pub(super) fn new(id: u8, transaction: u16, failure: AuthFailure) -> Failure {
        // The only reason that exists; the explanation says more.
        Failure { start: Start::new(COMMON, id, transaction), reason: 1, explanation: failure as u8 }
    }
}

/// Success2 ends with ten zeros.
pub(super) fn success2(transaction: u16) -> Vec<u8> {
    let mut bytes = Start::new(DHCHAP, id::SUCCESS2, transaction).as_bytes().to_vec();
    bytes.resize(16, 0);
    bytes
}

/// Bytes that a host receives at a time: room for every message.
pub(super) const RECEIVE_BYTES: usize = 4096;
/// Bytes of the longest message to a host: a challenge with SHA-512.
pub(crate) const AUTH_MESSAGE_BYTES_MAX: usize = size_of::<Values>() + 64;
/// Security protocol 0xE9, with its two specific bytes of 1.
const SECURITY_PROTOCOL: u32 = 0xe9 << 24 | 1 << 16 | 1 << 8;

/// Authentication Send or Authentication Receive, with this many bytes of data.
pub(super) fn security_command(kind: u8, bytes: usize) -> Command {
    debug_assert!([fabrics::AUTHENTICATION_SEND, fabrics::AUTHENTICATION_RECEIVE].contains(&kind));
    Command::fabrics(kind).with(10, SECURITY_PROTOCOL).with(11, bytes as u32)
}

/// The command is of DH-HMAC-CHAP and says this length.
pub(crate) fn is_security_protocol(command: &Command, bytes: usize) -> bool {
    command.dword(10) == SECURITY_PROTOCOL && command.dword(11) as usize == bytes
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_standard_puts_them() {
        assert_eq!(size_of::<Negotiate>(), 72);
        assert_eq!(offset_of!(Negotiate, protocol), 8);
        assert_eq!(offset_of!(Negotiate, hashes), 12);
        assert_eq!(offset_of!(Negotiate, groups), 42);
        assert_eq!(size_of::<Values>(), 16);
        assert_eq!(offset_of!(Values, hash_or_valid), 8);
        assert_eq!(offset_of!(Values, sequence), 12);
        assert_eq!(size_of::<Failure>(), 8);
        let command = security_command(fabrics::AUTHENTICATION_SEND, 72);
        assert_eq!(command.as_bytes()[40..48], [0, 1, 1, 0xe9, 72, 0, 0, 0]);
        assert_eq!(command.fabrics_kind(), Some(5));
    }
}
