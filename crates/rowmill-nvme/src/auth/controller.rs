//! The controller's side of an authentication, as a state machine.

use zerocopy::{FromBytes, IntoBytes};

use super::message::{
    AuthFailure, COMMON, DHCHAP, Failure, GROUP_NULL, Negotiate, PROTOCOL, Start, Values, id,
};
use super::proof::{Proof, challenge};
use super::{Hash, Key};
use crate::command::Nqn;

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// A negotiation comes next.
    Negotiate,
    /// The host receives its challenge next.
    Challenge {
        hash: Hash,
    },
    /// A reply to the challenge comes next.
    Reply {
        hash: Hash,
        challenge: Vec<u8>,
        sequence: u32,
    },
    /// The host has proved its key. It receives this message next, and then proves that it took it, if it asked for a
    /// proof of the controller.
    Success1 {
        message: Vec<u8>,
        asks_for_proof: bool,
    },
    /// The host says next that the controller has proved its key.
    Success2,
    Done,
    /// The host receives this failure next.
    Failure1 {
        failure: AuthFailure,
    },
    Failed,
}

/// The side of the controller, for one queue of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerAuth {
    host: Nqn,
    subsystem: Nqn,
    host_key: Key,
    controller_key: Option<Key>,
    seed: [u8; 32],
    round: u32,
    transaction: u16,
    state: State,
    is_authenticated: bool,
}

impl ControllerAuth {
    /// A host that has not proved its key. `seed` is random, and used for this queue only.
    pub fn new(
        host: Nqn,
        subsystem: Nqn,
        host_key: Key,
        controller_key: Option<Key>,
        seed: [u8; 32],
    ) -> ControllerAuth {
        ControllerAuth {
            host,
            subsystem,
            host_key,
            controller_key,
            seed,
            round: 0,
            transaction: 0,
            state: State::Negotiate,
            is_authenticated: false,
        }
    }

    /// The host has proved its key.
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// The authentication failed and the host was told. The connection must end.
    pub fn has_failed(&self) -> bool {
        self.state == State::Failed
    }

    /// A message of the host.
    pub fn send(&mut self, message: &[u8]) {
        let state = self.step(message).unwrap_or_else(|failure| State::Failure1 { failure });
        if matches!(state, State::Failure1 { .. } | State::Failed) {
            self.is_authenticated = false;
        }
        self.state = state;
    }

    fn step(&mut self, message: &[u8]) -> Result<State, AuthFailure> {
        let (start, _) = Start::read_from_prefix(message).map_err(|_| AuthFailure::IncorrectPayload)?;
        if (start.kind, start.id) == (COMMON, id::NEGOTIATE) && self.state != State::Failed {
            return self.negotiate(message);
        }
        if start.transaction.get() != self.transaction {
            return Err(AuthFailure::IncorrectMessage);
        }
        match (start.kind, start.id, &self.state) {
            (DHCHAP, id::REPLY, State::Reply { hash, challenge, sequence }) => {
                self.reply(*hash, challenge, *sequence, message)
            }
            (DHCHAP, id::SUCCESS2, State::Success2) => {
                self.is_authenticated = true;
                Ok(State::Done)
            }
            (COMMON, id::FAILURE2, _) => Ok(State::Failed),
            _ => Err(AuthFailure::IncorrectMessage),
        }
    }

    fn negotiate(&mut self, message: &[u8]) -> Result<State, AuthFailure> {
        let (offer, _) = Negotiate::read_from_prefix(message).map_err(|_| AuthFailure::IncorrectPayload)?;
        self.transaction = offer.start.transaction.get();
        if offer.secure_channel != 0 {
            return Err(AuthFailure::SecureChannel);
        }
        if offer.protocols != 1 || offer.protocol != PROTOCOL {
            return Err(AuthFailure::NotUsable);
        }
        let hashes = offer.hashes.get(..offer.hash_count.into()).ok_or(AuthFailure::IncorrectPayload)?;
        let groups = offer.groups.get(..offer.group_count.into()).ok_or(AuthFailure::IncorrectPayload)?;
        let hash = hashes.iter().find_map(|&byte| Hash::from_byte(byte)).ok_or(AuthFailure::HashNotUsable)?;
        if !groups.contains(&GROUP_NULL) {
            return Err(AuthFailure::GroupNotUsable);
        }
        Ok(State::Challenge { hash })
    }

    fn reply(
        &self,
        hash: Hash,
        challenge: &[u8],
        sequence: u32,
        message: &[u8],
    ) -> Result<State, AuthFailure> {
        let (values, rest) = Values::read_from_prefix(message).map_err(|_| AuthFailure::IncorrectPayload)?;
        let hash_bytes = hash.bytes();
        let is_valid = usize::from(values.hash_bytes) == hash_bytes
            && values.group_bytes.get() == 0
            && rest.len() >= 2 * hash_bytes
            && values.hash_or_valid <= 1;
        if !is_valid {
            return Err(AuthFailure::IncorrectPayload);
        }
        let (response, rest) = rest.split_at(hash_bytes);
        let proof = Proof {
            hash,
            challenge,
            sequence,
            transaction: self.transaction,
            host: &self.host,
            subsystem: &self.subsystem,
        };
        if !proof.is_of_host(&self.host_key, response) {
            return Err(AuthFailure::Failed);
        }
        let asks_for_proof = values.hash_or_valid == 1;
        let header = Values::new(id::SUCCESS1, self.transaction, hash, asks_for_proof.into(), 0);
        let mut message = header.as_bytes().to_vec();
        if asks_for_proof {
            let key = self.controller_key.as_ref().ok_or(AuthFailure::Failed)?;
            let proof = Proof { challenge: &rest[..hash_bytes], sequence: values.sequence.get(), ..proof };
            message.extend(proof.of_controller(key).as_ref());
        }
        Ok(State::Success1 { message, asks_for_proof })
    }

    /// The message that the host receives now.
    pub fn receive(&mut self) -> Vec<u8> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Challenge { hash } => {
                let (challenge, sequence) = challenge(&self.seed, self.round, hash);
                self.round += 1;
                let header = Values::new(id::CHALLENGE, self.transaction, hash, hash as u8, sequence);
                let message = [header.as_bytes(), &challenge].concat();
                self.state = State::Reply { hash, challenge, sequence };
                message
            }
            State::Success1 { message, asks_for_proof } => {
                self.is_authenticated |= !asks_for_proof;
                self.state = if asks_for_proof { State::Success2 } else { State::Done };
                message
            }
            State::Failure1 { failure } => self.failure1(failure),
            _ => {
                self.is_authenticated = false;
                self.failure1(AuthFailure::IncorrectMessage)
            }
        }
    }

    fn failure1(&self, failure: AuthFailure) -> Vec<u8> {
        Failure::new(id::FAILURE1, self.transaction, failure).as_bytes().to_vec()
    }
}
