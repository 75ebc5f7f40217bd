//! How a host makes a controller ready: which command to send next, from what the last one answered.

use std::time::{Duration, Instant};

use zerocopy::{FromBytes, IntoBytes};

use super::{Exchange, commands};
use crate::TRANSFER_BYTES_MAX;
use crate::auth::{AuthError, HostAuth, Key};
use crate::command::{
    Command, Completion, Connect, ConnectData, DISCOVERY_NQN, Nqn, Property, Status, capability,
    configuration, controller_status,
};
use crate::identify::{EVENT_NAMESPACE, IDENTIFY_BYTES, IdentifyController, cns};
use crate::vendor::VendorArea;

/// Of the result of a Connect: the host must authenticate, with or without a secure channel.
const AUTHENTICATION_BITS: u64 = 3 << 17;
/// Entries of an admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// The status register is read again after this.
const READY_POLL: Duration = Duration::from_millis(10);

/// What to do next.
#[derive(Debug)]
pub enum SetupStep {
    /// Send a command on the admin queue, and call [`Setup::next`] with its completion.
    Send {
        /// The command.
        command: Command,
        /// Its data.
        exchange: Exchange,
        /// When to send it, if not at once.
        not_before: Option<Instant>,
    },
    /// The controller is ready.
    Ready(Box<Ready>),
}

/// What a host is known by.
#[derive(Clone, Debug)]
pub struct HostIdentity {
    /// Its name.
    pub name: Nqn,
    /// A UUID of the machine.
    pub id: [u8; 16],
    /// The key that it proves to controllers that ask for it.
    pub key: Option<Key>,
    /// The key that controllers must prove. A controller that asks for no authentication is refused.
    pub controller_key: Option<Key>,
}

/// A controller that is ready for I/O queues.
#[derive(Debug, Default)]
pub struct Ready {
    /// Its number.
    pub controller: u16,
    /// I/O queues that the host may make.
    pub io_queues: u16,
    /// Most entries of an I/O queue.
    pub io_queue_entries_max: u16,
    /// Most bytes of data in a command capsule of an I/O queue.
    pub capsule_data_bytes: usize,
    /// Most bytes of data of one command: at most 512 KiB.
    pub transfer_bytes_max: usize,
    /// Limits of commands on rows; none, if the controller has none.
    pub area: Option<VendorArea>,
    /// Numbers of active namespaces.
    pub namespaces: Vec<u32>,
}

/// Why a controller cannot be made ready.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SetupError {
    /// A command failed.
    #[error("{command} failed: {status}")]
    Failed {
        /// The command.
        command: &'static str,
        /// Its status.
        status: Status,
    },
    /// The controller reports a fatal error.
    #[error("the controller reports a fatal error")]
    Fatal,
    /// The controller did not become ready in the time that it announces.
    #[error("the controller is not ready after {0:?}, the time that it announces")]
    NotReady(Duration),
    /// The controller asks for authentication.
    #[error("the controller asks for authentication: give the key file of this host")]
    NoKey,
    /// The controller need not authenticate, but its key is set.
    #[error(
        "the controller asks for no authentication, so it cannot prove its key: remove the controller's key"
    )]
    NoAuthentication,
    /// Authentication failed.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// Data of a command has a wrong length or a wrong digest.
    #[error("{command} gave damaged data")]
    Damaged {
        /// The command.
        command: &'static str,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connect,
    Authenticate,
    Capabilities,
    Enable,
    WaitReady { until: Instant },
    Identify,
    Queues,
    Events,
    Namespaces,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::Connect => "Connect",
            Stage::Authenticate => "authentication",
            Stage::Capabilities | Stage::WaitReady { .. } => "Property Get",
            Stage::Enable => "Property Set",
            Stage::Identify => "Identify Controller",
            Stage::Queues | Stage::Events => "Set Features",
            Stage::Namespaces => "Identify (namespaces)",
        }
    }
}

/// The way to a controller that is ready.
#[derive(Debug)]
pub struct Setup {
    host: HostIdentity,
    subsystem: Nqn,
    keep_alive_ms: u32,
    io_queues: u16,
    seed: [u8; 32],
    stage: Stage,
    auth: Option<HostAuth>,
    ready_timeout: Duration,
    page_shift: u32,
    ready: Ready,
}

impl Setup {
    /// A way to a new controller of `subsystem` with up to `io_queues` I/O queues. `seed` is random, and used for this
    /// admin queue only.
    pub fn new(
        host: HostIdentity,
        subsystem: Nqn,
        keep_alive_ms: u32,
        io_queues: u16,
        seed: [u8; 32],
    ) -> Setup {
        Setup {
            host,
            subsystem,
            keep_alive_ms,
            io_queues,
            seed,
            stage: Stage::Connect,
            auth: None,
            ready_timeout: Duration::ZERO,
            page_shift: 0,
            ready: Ready::default(),
        }
    }

    /// The first step.
    pub fn start(&self) -> SetupStep {
        let connect = Connect {
            format: 0,
            queue: 0,
            queue_size: ADMIN_ENTRIES - 1,
            is_flow_control_off: false,
            keep_alive_ms: self.keep_alive_ms,
        };
        self.connect(connect, u16::MAX)
    }

    /// Connect I/O queue `queue` of the ready controller, on a connection of its own.
    pub fn connect_io(&self, ready: &Ready, queue: u16, entries: u16) -> SetupStep {
        let connect = Connect {
            format: 0,
            queue,
            queue_size: entries - 1,
            is_flow_control_off: true,
            keep_alive_ms: 0,
        };
        self.connect(connect, ready.controller)
    }

    fn connect(&self, connect: Connect, controller: u16) -> SetupStep {
        let data = ConnectData::new(self.host.id, controller, &self.subsystem, &self.host.name);
        send(connect.to_command(), Exchange::Send(data.as_bytes().to_vec()))
    }

    /// What must be proved on a queue whose Connect has this completion; `None` if nothing. `seed` is random, and used
    /// for this queue only.
    ///
    /// # Errors
    ///
    /// [`SetupError::NoKey`] and [`SetupError::NoAuthentication`].
    pub fn authenticate(&self, connect: &Completion, seed: [u8; 32]) -> Result<Option<HostAuth>, SetupError> {
        if connect.result.get() & AUTHENTICATION_BITS == 0 {
            let is_trusted = self.host.controller_key.is_none();
            return if is_trusted { Ok(None) } else { Err(SetupError::NoAuthentication) };
        }
        let key = self.host.key.clone().ok_or(SetupError::NoKey)?;
        let (host, subsystem) = (self.host.name.clone(), self.subsystem.clone());
        Ok(Some(HostAuth::new(host, subsystem, key, self.host.controller_key.clone(), seed)))
    }

    /// The step after the last one has completed.
    ///
    /// # Errors
    ///
    /// Why the controller cannot be made ready.
    pub fn next(
        &mut self,
        now: Instant,
        completion: &Completion,
        data: &[u8],
        is_intact: bool,
    ) -> Result<SetupStep, SetupError> {
        let command = self.stage.name();
        let status = completion.status();
        if status != Status::SUCCESS {
            return Err(SetupError::Failed { command, status });
        }
        if !is_intact {
            return Err(SetupError::Damaged { command });
        }
        let result = completion.result.get();
        let identify = || Exchange::Receive(IDENTIFY_BYTES);
        let (stage, step) = match self.stage {
            Stage::Connect => {
                self.ready.controller = result as u16;
                self.auth = self.authenticate(completion, self.seed)?;
                let first = self.auth.as_ref().map(HostAuth::start);
                first.map_or_else(authenticated, |(command, exchange)| {
                    (Stage::Authenticate, send(command, exchange))
                })
            }
            Stage::Authenticate => {
                let next = self.auth.as_mut().map_or(Ok(None), |auth| auth.next(data))?;
                next.map_or_else(authenticated, |(command, exchange)| {
                    (Stage::Authenticate, send(command, exchange))
                })
            }
            Stage::Capabilities => {
                let halves = u32::from(capability::ready_timeout_halves(result)) + 1;
                self.ready_timeout = Duration::from_millis(500) * halves;
                self.ready.io_queue_entries_max = capability::queue_size_max(result).saturating_add(1);
                self.page_shift = capability::page_shift_min(result);
                let value = configuration::ENABLE | configuration::ENTRY_SIZES;
                (Stage::Enable, send(Property::Configuration.set(value.into()), Exchange::None))
            }
            Stage::Enable => {
                let until = now + self.ready_timeout;
                (Stage::WaitReady { until }, send(Property::Status.get(), Exchange::None))
            }
            Stage::WaitReady { until } => {
                let value = result as u32;
                if value & controller_status::FATAL != 0 {
                    return Err(SetupError::Fatal);
                }
                if value & controller_status::READY != 0 {
                    (Stage::Identify, send(commands::identify(cns::CONTROLLER, 0), identify()))
                } else if now >= until {
                    return Err(SetupError::NotReady(self.ready_timeout));
                } else {
                    let not_before = Some(now + READY_POLL);
                    let (command, exchange) = (Property::Status.get(), Exchange::None);
                    (self.stage, SetupStep::Send { command, exchange, not_before })
                }
            }
            Stage::Identify => {
                let identified = IdentifyController::ref_from_bytes(data);
                let identified = identified.map_err(|_| SetupError::Damaged { command })?;
                self.ready.area = Some(identified.vendor_area).filter(VendorArea::is_present);
                self.ready.capsule_data_bytes = capsule_data_bytes(identified);
                self.ready.transfer_bytes_max = transfer_bytes_max(identified, self.page_shift);
                if self.subsystem.as_str() == DISCOVERY_NQN {
                    return Ok(self.finish());
                }
                (Stage::Queues, send(commands::set_io_queues(self.io_queues), Exchange::None))
            }
            Stage::Queues => {
                let granted = (result as u16).min((result >> 16) as u16).saturating_add(1);
                self.ready.io_queues = granted.min(self.io_queues);
                (Stage::Events, send(commands::set_async_events(EVENT_NAMESPACE), Exchange::None))
            }
            Stage::Events => {
                (Stage::Namespaces, send(commands::identify(cns::ACTIVE_NAMESPACES, 0), identify()))
            }
            Stage::Namespaces => {
                if data.len() != IDENTIFY_BYTES {
                    return Err(SetupError::Damaged { command });
                }
                let (numbers, _) = data.as_chunks::<4>();
                let numbers = numbers.iter().map(|&bytes| u32::from_le_bytes(bytes));
                self.ready.namespaces = numbers.take_while(|&number| number != 0).collect();
                return Ok(self.finish());
            }
        };
        self.stage = stage;
        Ok(step)
    }

    fn finish(&mut self) -> SetupStep {
        SetupStep::Ready(Box::new(std::mem::take(&mut self.ready)))
    }
}

/// All that the controller takes: the target of Linux (up to 6.1 at least) takes data of this size for data in a capsule
/// whatever the command says, and never asks for it. A controller whose data does not follow the command at once gets none.
fn capsule_data_bytes(identified: &IdentifyController) -> usize {
    let capsule_bytes = identified.command_capsule.get() as usize * 16;
    let follows = identified.capsule_data_offset.get() == 0;
    if follows { capsule_bytes.saturating_sub(size_of::<Command>()).min(TRANSFER_BYTES_MAX) } else { 0 }
}

fn transfer_bytes_max(identified: &IdentifyController, page_shift: u32) -> usize {
    // 0 is no limit.
    let shift = u32::from(identified.transfer_shift);
    let limit = 1_usize.checked_shl(shift + page_shift).filter(|_| shift > 0);
    limit.unwrap_or(TRANSFER_BYTES_MAX).min(TRANSFER_BYTES_MAX)
}

fn authenticated() -> (Stage, SetupStep) {
    (Stage::Capabilities, send(Property::Capabilities.get(), Exchange::None))
}

fn send(command: Command, exchange: Exchange) -> SetupStep {
    SetupStep::Send { command, exchange, not_before: None }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn completion(result: u64, status: Status) -> Completion {
        Completion {
            result: result.into(),
            status: Completion::status_field(status, false),
            ..Completion::new_zeroed()
        }
    }

    fn success(result: u64) -> Completion {
        completion(result, Status::SUCCESS)
    }

    /// A set-up whose next command is Property Get of the status.
    fn waiting(now: Instant) -> Setup {
        let name = Nqn::from_uuid([1; 16]);
        let host = HostIdentity { name: name.clone(), id: [0; 16], key: None, controller_key: None };
        let mut setup = Setup::new(host, name, 0, 4, [0; 32]);
        // Ready within 1 s; pages of 8 KiB.
        for result in [7, 127 | 1 << 24 | 1 << 48, 0] {
            setup.next(now, &success(result), &[], true).unwrap();
        }
        setup
    }

    #[test]
    fn a_controller_that_never_gets_ready_is_given_up() {
        let now = Instant::now();
        let mut setup = waiting(now);
        let step = setup.next(now, &success(0), &[], true).unwrap();
        let SetupStep::Send { not_before, .. } = step else { panic!("{step:?}") };
        assert_eq!(not_before, Some(now + READY_POLL));
        let late = now + Duration::from_secs(1);
        let error = setup.next(late, &success(0), &[], true).unwrap_err();
        assert_eq!(error, SetupError::NotReady(Duration::from_secs(1)));
        assert_eq!(waiting(now).next(now, &success(2), &[], true).unwrap_err(), SetupError::Fatal);
    }

    #[test]
    fn failed_and_damaged_commands_are_named() {
        let now = Instant::now();
        let error = waiting(now).next(now, &completion(0, Status::INVALID_FIELD), &[], true).unwrap_err();
        assert_eq!(error.to_string(), "Property Get failed: invalid field (0/0x02)");
        let mut setup = waiting(now);
        setup.next(now, &success(1), &[], true).unwrap();
        for (data, is_intact) in [(vec![0; 4095], true), (vec![0; 4096], false)] {
            let error = setup.next(now, &success(0), &data, is_intact).unwrap_err();
            assert_eq!(error, SetupError::Damaged { command: "Identify Controller" });
        }
    }

    #[test]
    fn limits_of_other_controllers_are_kept() {
        let now = Instant::now();
        // Bytes of a capsule in units of 16, offset of its data, shift of a transfer; what follows from them.
        let cases = [
            (4, 0, 0, 0, TRANSFER_BYTES_MAX),
            (260, 0, 5, 4096, 32 * 8192),
            // The target of Linux.
            (1028, 0, 0, 16 << 10, TRANSFER_BYTES_MAX),
            (1 << 20, 0, 9, TRANSFER_BYTES_MAX, TRANSFER_BYTES_MAX),
            (516, 1, 255, 0, TRANSFER_BYTES_MAX),
        ];
        for (capsule, offset, shift, capsule_data_bytes, transfer_bytes_max) in cases {
            let mut setup = waiting(now);
            let mut identified = IdentifyController::new_zeroed();
            identified.command_capsule = capsule.into();
            identified.capsule_data_offset = offset.into();
            identified.transfer_shift = shift;
            setup.next(now, &success(1), &[], true).unwrap();
            setup.next(now, &success(0), identified.as_bytes(), true).unwrap();
            // It grants two of four queues.
            for result in [1 | 1 << 16, 0] {
                setup.next(now, &success(result), &[], true).unwrap();
            }
            let step = setup.next(now, &success(0), &[0; 4096], true).unwrap();
            let SetupStep::Ready(ready) = step else { panic!("{step:?}") };
            assert_eq!((ready.controller, ready.io_queues, ready.io_queue_entries_max), (7, 2, 128));
            assert_eq!(ready.capsule_data_bytes, capsule_data_bytes);
            assert_eq!(ready.transfer_bytes_max, transfer_bytes_max);
            assert!(ready.area.is_none() && ready.namespaces.is_empty());
        }
    }
}
