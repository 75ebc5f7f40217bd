//! Features of a controller, which hosts get and set.

use super::{Answer, Request};
use crate::command::Status;

/// Identifiers of features.
mod feature {
    pub(super) const ARBITRATION: u8 = 0x01;
    pub(super) const POWER: u8 = 0x02;
    pub(super) const TEMPERATURE: u8 = 0x04;
    pub(super) const ERROR_RECOVERY: u8 = 0x05;
    pub(super) const WRITE_CACHE: u8 = 0x06;
    pub(super) const QUEUES: u8 = 0x07;
    pub(super) const ATOMICITY: u8 = 0x0a;
    pub(super) const ASYNC_EVENTS: u8 = 0x0b;
    pub(super) const KEEP_ALIVE: u8 = 0x0f;
    pub(super) const HOST_ID: u8 = 0x81;
}

/// Temperatures are not known, so no threshold is ever crossed.
const TEMPERATURE_NEVER: u32 = 0xffff;

/// Features of a controller.
#[derive(Debug)]
pub(super) struct Features {
    host_id: [u8; 16],
    io_queues_max: u16,
    /// Arbitration, error recovery and atomicity: stored for Get Features, without an effect.
    arbitration: u32,
    error_recovery: u32,
    atomicity: u32,
    temperature: u32,
    /// Events that the host asks for.
    pub(super) async_events: u32,
    /// Time between two Keep Alives; 0 is never.
    pub(super) keep_alive_ms: u32,
}

impl Features {
    pub(super) fn new(host_id: [u8; 16], io_queues_max: u16, keep_alive_ms: u32) -> Features {
        Features {
            host_id,
            io_queues_max,
            arbitration: 0,
            error_recovery: 0,
            atomicity: 0,
            temperature: TEMPERATURE_NEVER,
            async_events: 0,
            keep_alive_ms,
        }
    }

    /// Values after a reset.
    pub(super) fn reset(&mut self) {
        *self = Features::new(self.host_id, self.io_queues_max, self.keep_alive_ms);
    }

    /// Get Features.
    pub(super) fn get(&self, request: &Request) -> Result<Answer, Status> {
        let (low, identifier) = (request.command.dword(10), request.command.dword(10) as u8);
        match low >> 8 & 7 {
            0 => self.current(identifier, request),
            1 | 2 => {
                // Nothing can be saved, so saved values are the defaults.
                Features::new(self.host_id, self.io_queues_max, 0).current(identifier, request)
            }
            3 => {
                self.current(identifier, request)?;
                let is_changeable = !matches!(identifier, feature::WRITE_CACHE | feature::HOST_ID);
                Ok(Answer::result(u64::from(is_changeable) << 2))
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn current(&self, identifier: u8, request: &Request) -> Result<Answer, Status> {
        let value = match identifier {
            feature::ARBITRATION => self.arbitration,
            feature::POWER => 0,
            feature::TEMPERATURE => self.temperature,
            feature::ERROR_RECOVERY => self.error_recovery,
            feature::WRITE_CACHE => 1,
            feature::QUEUES => self.queues(),
            feature::ATOMICITY => self.atomicity,
            feature::ASYNC_EVENTS => self.async_events,
            feature::KEEP_ALIVE => self.keep_alive_ms,
            feature::HOST_ID => {
                // Over fabrics, host identifiers have 128 bits.
                let is_extended = request.command.dword(11) & 1 == 1;
                return if is_extended {
                    Ok(Answer::data(self.host_id.to_vec()))
                } else {
                    Err(Status::INVALID_FIELD)
                };
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Answer::result(value.into()))
    }

    /// Queues of each kind, less one.
    fn queues(&self) -> u32 {
        let most = u32::from(self.io_queues_max) - 1;
        most | most << 16
    }

    /// Set Features. `has_io_queues`: the controller has I/O queues already.
    pub(super) fn set(&mut self, request: &Request, has_io_queues: bool) -> Result<Answer, Status> {
        let (low, value) = (request.command.dword(10), request.command.dword(11));
        if low >> 31 == 1 {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        match low as u8 {
            feature::ARBITRATION => self.arbitration = value,
            feature::POWER if value % 32 == 0 => (),
            feature::TEMPERATURE => self.temperature = value & 0xffff,
            feature::ERROR_RECOVERY => self.error_recovery = value,
            feature::WRITE_CACHE => return Err(Status::FEATURE_NOT_CHANGEABLE),
            feature::QUEUES if has_io_queues => return Err(Status::SEQUENCE_ERROR),
            feature::QUEUES if value as u16 == u16::MAX || value >> 16 == 0xffff => {
                return Err(Status::INVALID_FIELD);
            }
            feature::QUEUES => {
                // The host makes as many pairs of queues as it asked for, at most those granted.
                return Ok(Answer::result(self.queues().into()));
            }
            feature::ATOMICITY => self.atomicity = value & 1,
            feature::ASYNC_EVENTS => self.async_events = value,
            feature::KEEP_ALIVE => self.keep_alive_ms = value,
            feature::HOST_ID => return Err(Status::SEQUENCE_ERROR),
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(Answer::success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Command, admin};

    fn request(low: u32, value: u32) -> Request {
        let command = Command::new(admin::SET_FEATURES, 0).with(10, low).with(11, value);
        Request { command, data: Vec::new(), answer_bytes: 0 }
    }

    #[test]
    fn values_are_kept_until_a_reset() {
        let mut features = Features::new([5; 16], 4, 1000);
        for (identifier, value, kept) in [(1, 7, 7), (4, 300, 300), (5, 9, 9), (10, 3, 1), (11, 0x100, 0x100)]
        {
            let before = features.get(&request(identifier, 0)).unwrap();
            features.set(&request(identifier, value), false).unwrap();
            assert_eq!(features.get(&request(identifier, 0)), Ok(Answer::result(kept)));
            assert_eq!(features.get(&request(identifier | 1 << 8, 0)), Ok(before.clone()), "default");
            features.reset();
            assert_eq!(features.get(&request(identifier, 0)), Ok(before));
        }
        assert_eq!(features.get(&request(15, 0)), Ok(Answer::result(1000)));
        assert_eq!(features.get(&request(0x81, 1)), Ok(Answer::data(vec![5; 16])));
    }

    #[test]
    fn queues_are_granted_once() {
        let mut features = Features::new([0; 16], 4, 0);
        assert_eq!(features.set(&request(7, 0x000f_000f), false), Ok(Answer::result(0x0003_0003)));
        assert_eq!(features.set(&request(7, 0), true), Err(Status::SEQUENCE_ERROR));
        assert_eq!(features.set(&request(7, 0xffff), false), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn the_rest_is_refused_with_its_status() {
        let mut features = Features::new([0; 16], 4, 0);
        assert_eq!(features.set(&request(1 | 1 << 31, 0), false), Err(Status::FEATURE_NOT_SAVEABLE));
        assert_eq!(features.set(&request(6, 0), false), Err(Status::FEATURE_NOT_CHANGEABLE));
        assert_eq!(features.set(&request(0x81, 0), false), Err(Status::SEQUENCE_ERROR));
        assert_eq!(features.set(&request(2, 1), false), Err(Status::INVALID_FIELD));
        assert_eq!(features.set(&request(3, 0), false), Err(Status::INVALID_FIELD));
        assert_eq!(features.get(&request(3, 0)), Err(Status::INVALID_FIELD));
        assert_eq!(features.get(&request(0x81, 0)), Err(Status::INVALID_FIELD));
        assert_eq!(features.get(&request(1 | 4 << 8, 0)), Err(Status::INVALID_FIELD));
        assert_eq!(features.get(&request(1 | 3 << 8, 0)), Ok(Answer::result(4)));
    }
}
