//! Responses to challenges.

use ring::hmac;

use super::{Hash, Key};
use crate::command::Nqn;

/// What a response is computed from, besides the key.
pub(super) struct Proof<'a> {
    pub(super) hash: Hash,
    pub(super) challenge: &'a [u8],
    pub(super) sequence: u32,
    pub(super) transaction: u16,
    pub(super) host: &'a Nqn,
    pub(super) subsystem: &'a Nqn,
}

impl Proof<'_> {
    /// The response by which a host proves that it has its key.
    pub(super) fn of_host(&self, key: &Key) -> hmac::Tag {
        let parts = self.parts(b"HostHost", self.host, self.subsystem);
        hmac::sign(&key.bind(self.hash, self.host), &parts)
    }

    /// The response by which a controller proves that it has its key.
    pub(super) fn of_controller(&self, key: &Key) -> hmac::Tag {
        let parts = self.parts(b"Controller", self.subsystem, self.host);
        hmac::sign(&key.bind(self.hash, self.subsystem), &parts)
    }

    /// The response of a host is right. Takes equally long for each wrong one.
    pub(super) fn is_of_host(&self, key: &Key, response: &[u8]) -> bool {
        let parts = self.parts(b"HostHost", self.host, self.subsystem);
        hmac::verify(&key.bind(self.hash, self.host), &parts, response).is_ok()
    }

    /// The response of a controller is right.
    pub(super) fn is_of_controller(&self, key: &Key, response: &[u8]) -> bool {
        let parts = self.parts(b"Controller", self.subsystem, self.host);
        hmac::verify(&key.bind(self.hash, self.subsystem), &parts, response).is_ok()
    }

    fn parts(&self, role: &[u8], own: &Nqn, other: &Nqn) -> Vec<u8> {
        // The byte after the transaction says: no secure channel.
        let sequence = self.sequence.to_le_bytes();
        let transaction = self.transaction.to_le_bytes();
        let (own, other) = (own.as_str().as_bytes(), other.as_str().as_bytes());
        [self.challenge, &sequence, &transaction, &[0], role, own, &[0], other].concat()
    }
}

/// A challenge and its sequence number, which is not 0. They differ for each seed and each `round`.
pub(super) fn challenge(seed: &[u8; 32], round: u32, hash: Hash) -> (Vec<u8>, u32) {
    let key = hmac::Key::new(hmac::HMAC_SHA512, seed);
    let value = hmac::sign(&key, &[b"challenge", &round.to_le_bytes()[..]].concat());
    let sequence = hmac::sign(&key, &[b"sequence", &round.to_le_bytes()[..]].concat());
    let sequence = u32::from_le_bytes(sequence.as_ref()[..4].try_into().expect("four bytes"));
    (value.as_ref()[..hash.bytes()].to_vec(), sequence.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn responses_equal_those_of_a_second_computation() {
        let (host, subsystem) = (Nqn::from_uuid([1; 16]), Nqn::from_uuid([2; 16]));
        let lines = include_str!("../../tests/golden/responses-1.txt").lines();
        let mut count = 0;
        for line in lines.filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split(' ').collect();
            let key: Key = fields[0].parse().unwrap();
            let hash = Hash::from_byte(fields[1].parse().unwrap()).unwrap();
            let challenge: Vec<u8> = (0..hash.bytes()).map(|at| (at * 5) as u8).collect();
            let proof = Proof {
                hash,
                challenge: &challenge,
                sequence: 0x0102_0304,
                transaction: 0x0506,
                host: &host,
                subsystem: &subsystem,
            };
            assert_eq!(proof.of_host(&key).as_ref(), bytes(fields[2]), "{line}");
            assert_eq!(proof.of_controller(&key).as_ref(), bytes(fields[3]), "{line}");
            assert!(proof.is_of_host(&key, proof.of_host(&key).as_ref()));
            assert!(!proof.is_of_host(&key, proof.of_controller(&key).as_ref()));
            assert!(!proof.is_of_host(&key, &proof.of_host(&key).as_ref()[1..]));
            count += 1;
        }
        assert_eq!(count, 12);
    }

    #[test]
    fn challenges_differ_by_seed_and_round() {
        let all: std::collections::HashSet<_> = [[1; 32], [2; 32]]
            .iter()
            .flat_map(|seed| (0..50).map(move |round| challenge(seed, round, Hash::Sha384)))
            .collect();
        assert_eq!(all.len(), 100);
        assert!(all.iter().all(|(value, sequence)| value.len() == 48 && *sequence > 0));
    }
}
