use zerocopy::{FromBytes, IntoBytes};

use super::message::security_command;
use super::message::{
    AuthFailure, COMMON, DHCHAP, Failure, GROUP_NULL, Negotiate, RECEIVE_BYTES, Start, Values, id, success2,
};
use super::proof::{Proof, challenge};
use super::{Hash, Key};
use crate::command::{Command, Nqn, fabrics};
use crate::host::Exchange;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Negotiate,
    Challenge,
    Reply,
    Success1,
    /// Success2 or failure2 was sent: the last message.
    Last,
}

/// Why a host could not authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The controller refused, and gave this reason, if it is one.
    #[error("the controller refused authentication{}; compare the key of this host on both sides", named(*.0))]
    Refused(Option<AuthFailure>),
    /// The controller sent an unexpected message.
    #[error("the controller sent an unexpected message during authentication: {0:?}")]
    Unexpected(AuthFailure),
    /// The controller does not have its key.
    #[error("the controller did not prove its key; compare the controller's key on both sides")]
    ControllerFailed,
}

fn named(failure: Option<AuthFailure>) -> String {
    failure.map_or_else(String::new, |failure| format!(" ({failure:?})"))
}

/// The side of a host, for one queue.
#[derive(Debug)]
pub struct HostAuth {
    host: Nqn,
    subsystem: Nqn,
    host_key: Key,
    /// The key that the controller must prove.
    controller_key: Option<Key>,
    seed: [u8; 32],
    transaction: u16,
    stage: Stage,
    hash: Hash,
    error: Option<AuthError>,
}

impl HostAuth {
    /// A host that proves `host_key`. With `controller_key`, the controller must prove that one. `seed` is random, and
    /// used for this queue only.
    pub fn new(
        host: Nqn,
        subsystem: Nqn,
        host_key: Key,
        controller_key: Option<Key>,
        seed: [u8; 32],
    ) -> HostAuth {
        let transaction = u16::from_le_bytes([seed[0], seed[1]]);
        HostAuth {
            host,
            subsystem,
            host_key,
            controller_key,
            seed,
            transaction,
            stage: Stage::Negotiate,
            hash: Hash::Sha256,
            error: None,
        }
    }

    /// The first command.
    pub fn start(&self) -> (Command, Exchange) {
        send(Negotiate::new(self.transaction).as_bytes().to_vec())
    }

    /// The next command, after the last one has succeeded; `data` is what it received. `None`, if both sides have
    /// proved what they must.
    ///
    /// # Errors
    ///
    /// Why the authentication failed. The connection is useless.
    pub fn next(&mut self, data: &[u8]) -> Result<Option<(Command, Exchange)>, AuthError> {
        let receive = || {
            let command = security_command(fabrics::AUTHENTICATION_RECEIVE, RECEIVE_BYTES);
            (command, Exchange::Receive(RECEIVE_BYTES))
        };
        let (stage, command) = match self.stage {
            Stage::Negotiate => (Stage::Challenge, receive()),
            Stage::Reply => (Stage::Success1, receive()),
            Stage::Last => return self.error.map_or(Ok(None), Err),
            Stage::Challenge => match self.expect(data, id::CHALLENGE)? {
                Ok(values) => match self.reply(&values, data) {
                    Ok(reply) => (Stage::Reply, send(reply)),
                    Err(failure) => self.give_up(failure, AuthError::Unexpected(failure)),
                },
                Err(failure) => self.give_up(failure, AuthError::Unexpected(failure)),
            },
            Stage::Success1 => match self.expect(data, id::SUCCESS1)? {
                Ok(_) if self.controller_key.is_none() => return Ok(None),
                Ok(values) if self.is_proved(&values, data) => {
                    (Stage::Last, send(success2(self.transaction)))
                }
                Ok(_) => self.give_up(AuthFailure::Failed, AuthError::ControllerFailed),
                Err(failure) => self.give_up(failure, AuthError::Unexpected(failure)),
            },
        };
        self.stage = stage;
        Ok(Some(command))
    }

    fn give_up(&mut self, failure: AuthFailure, error: AuthError) -> (Stage, (Command, Exchange)) {
        self.error = Some(error);
        (Stage::Last, send(Failure::new(id::FAILURE2, self.transaction, failure).as_bytes().to_vec()))
    }

    /// The message has this identifier; else what is wrong with it.
    fn expect(&self, data: &[u8], expected: u8) -> Result<Result<Values, AuthFailure>, AuthError> {
        if let Ok((failure, _)) = Failure::read_from_prefix(data)
            && (failure.start.kind, failure.start.id) == (COMMON, id::FAILURE1)
        {
            return Err(AuthError::Refused(AuthFailure::from_byte(failure.explanation)));
        }
        let Ok((values, _)) = Values::read_from_prefix(data) else {
            return Ok(Err(AuthFailure::IncorrectPayload));
        };
        let Start { kind, id, transaction, .. } = values.start;
        let is_expected = (kind, id, transaction.get()) == (DHCHAP, expected, self.transaction);
        Ok(if is_expected { Ok(values) } else { Err(AuthFailure::IncorrectMessage) })
    }

    fn proof<'a>(&'a self, challenge: &'a [u8], sequence: u32) -> Proof<'a> {
        let (host, subsystem) = (&self.host, &self.subsystem);
        Proof { hash: self.hash, challenge, sequence, transaction: self.transaction, host, subsystem }
    }

    fn reply(&mut self, values: &Values, data: &[u8]) -> Result<Vec<u8>, AuthFailure> {
        self.hash = Hash::from_byte(values.hash_or_valid).ok_or(AuthFailure::HashNotUsable)?;
        if values.group != GROUP_NULL {
            return Err(AuthFailure::GroupNotUsable);
        }
        let hash_bytes = self.hash.bytes();
        let challenged =
            data[size_of::<Values>()..].get(..hash_bytes).ok_or(AuthFailure::IncorrectPayload)?;
        if usize::from(values.hash_bytes) != hash_bytes || values.group_bytes.get() != 0 {
            return Err(AuthFailure::IncorrectPayload);
        }
        let response = self.proof(challenged, values.sequence.get()).of_host(&self.host_key);
        let (own, sequence) = match self.controller_key {
            Some(_) => challenge(&self.seed, 0, self.hash),
            None => (vec![0; hash_bytes], 0),
        };
        let asks = u8::from(self.controller_key.is_some());
        let header = Values::new(id::REPLY, self.transaction, self.hash, asks, sequence);
        Ok([header.as_bytes(), response.as_ref(), &own].concat())
    }

    fn is_proved(&self, values: &Values, data: &[u8]) -> bool {
        let response = data[size_of::<Values>()..].get(..self.hash.bytes());
        let (own, sequence) = challenge(&self.seed, 0, self.hash);
        let (Some(key), Some(response)) = (&self.controller_key, response) else { return false };
        values.hash_or_valid == 1 && self.proof(&own, sequence).is_of_controller(key, response)
    }
}

fn send(message: Vec<u8>) -> (Command, Exchange) {
    (security_command(fabrics::AUTHENTICATION_SEND, message.len()), Exchange::Send(message))
}
