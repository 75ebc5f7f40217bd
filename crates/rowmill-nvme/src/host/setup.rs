//! How a host makes a controller ready: which command to send next, from what the last one answered.

use std::time::{Duration, Instant};

use zerocopy::{FromBytes, IntoBytes};

use super::{Exchange, commands};
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
    #[error("the controller asks for authentication: set the key of this host")]
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
                self.ready.area = Some(identified.vendor_area).filter(VendorArea::is_valid);
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

fn authenticated() -> (Stage, SetupStep) {
    (Stage::Capabilities, send(Property::Capabilities.get(), Exchange::None))
}

fn send(command: Command, exchange: Exchange) -> SetupStep {
    SetupStep::Send { command, exchange, not_before: None }
}
