//! What hosts reach at one address: subsystems, and the controllers that hosts have made by connecting. A controller
//! exists from the Connect of its admin queue until that connection ends, or until the host is silent for longer than
//! its keep-alive time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::admin::View;
use super::async_events::{AsyncEvents, Happening};
use super::connect::{self, Parameter, Parsed};
use super::features::Features;
use super::registers::{Change, Registers};
use super::{Answer, Connected, Namespace, Outcome, Refusal, Request, Role, Subsystem};
use crate::auth::ControllerAuth;
use crate::command::{DISCOVERY_NQN, Nqn, Status};
use crate::log::{CHANGED_MAX, Endpoint, ErrorLog, ErrorPlace};

/// Most entries of an admin queue.
const ADMIN_ENTRIES_MAX: u16 = 128;
/// Numbers of controllers are below this; larger ones are reserved.
const CONTROLLERS_END: u16 = 0xfff0;
/// Keep-alive times are rounded up to this.
const KEEP_ALIVE_UNIT_MS: u32 = 1000;

/// What a port reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// Answer this command of the controller's admin queue, which was held.
    Answer {
        /// The controller.
        controller: u16,
        /// The command.
        cid: u16,
        /// Its answer.
        answer: Answer,
    },
    /// The host has disabled the controller: close the connections of its I/O queues.
    Reset {
        /// The controller.
        controller: u16,
    },
    /// The host is about to leave: make writes durable.
    Shutdown {
        /// The controller.
        controller: u16,
    },
    /// The controller no longer exists: close all of its connections.
    Gone {
        /// The controller.
        controller: u16,
    },
}

#[derive(Debug)]
pub(super) struct Controller {
    pub(super) number: u16,
    /// Index in the port; none for discovery.
    pub(super) subsystem: Option<usize>,
    pub(super) host: Nqn,
    host_id: [u8; 16],
    role: Role,
    pub(super) registers: Registers,
    pub(super) features: Features,
    pub(super) events: AsyncEvents,
    pub(super) errors: ErrorLog,
    /// Namespaces that changed since the host last read their log; one more than the log holds stands for all.
    pub(super) changed: BTreeSet<u32>,
    /// A held request that the last command aborted.
    pub(super) aborted: Option<u16>,
    /// I/O queues with a connection.
    pub(super) queues: BTreeSet<u16>,
    heard: Instant,
}

impl Controller {
    fn deadline(&self) -> Option<Instant> {
        let keep_alive_ms = self.features.keep_alive_ms.checked_next_multiple_of(KEEP_ALIVE_UNIT_MS);
        let keep_alive = Duration::from_millis(keep_alive_ms.unwrap_or(u32::MAX).into());
        (!keep_alive.is_zero()).then(|| self.heard + keep_alive)
    }

    fn happened(&mut self, happening: Happening, events: &mut VecDeque<PortEvent>) {
        self.events.happened(happening);
        self.tell(events);
    }

    /// Answer held requests with what has happened.
    fn tell(&mut self, events: &mut VecDeque<PortEvent>) {
        while let Some((cid, result)) = self.events.next(self.features.async_events) {
            let answer = Answer::result(result);
            events.push_back(PortEvent::Answer { controller: self.number, cid, answer });
        }
    }
}

/// Subsystems and controllers behind one address.
#[derive(Debug)]
pub struct Port {
    endpoint: Endpoint,
    subsystems: Vec<Subsystem>,
    /// Changes with the discovery log.
    generation: u64,
    controllers: BTreeMap<u16, Controller>,
    controllers_max: usize,
    last_number: u16,
    events: VecDeque<PortEvent>,
}

impl Port {
    /// A port without controllers. Discovery tells hosts of `endpoint`.
    pub fn new(endpoint: Endpoint, subsystems: Vec<Subsystem>, controllers_max: usize) -> Port {
        Port {
            endpoint,
            subsystems,
            generation: 1,
            controllers: BTreeMap::new(),
            controllers_max,
            last_number: 0,
            events: VecDeque::new(),
        }
    }

    /// The subsystems, by index.
    pub fn subsystems(&self) -> &[Subsystem] {
        &self.subsystems
    }

    /// The next event. Calls of other methods make events, at most a few per controller.
    pub fn poll(&mut self) -> Option<PortEvent> {
        self.events.pop_front()
    }

    /// Execute a Connect command. `seed` is random; a host with a key is challenged with it.
    ///
    /// # Errors
    ///
    /// The answer to the command.
    pub fn connect(&mut self, now: Instant, request: &Request, seed: [u8; 32]) -> Result<Connected, Refusal> {
        let parsed = connect::parse(request)?;
        let subsystem = if parsed.subsystem.as_str() == DISCOVERY_NQN {
            None
        } else {
            let index = self.subsystems.iter().position(|subsystem| subsystem.name == parsed.subsystem);
            Some(index.ok_or(Parameter::Subsystem.refusal())?)
        };
        if parsed.connect.queue == 0 {
            self.connect_admin(now, &parsed, subsystem, seed)
        } else {
            self.connect_io(&parsed, subsystem, seed)
        }
    }

    fn connect_admin(
        &mut self,
        now: Instant,
        parsed: &Parsed,
        subsystem: Option<usize>,
        seed: [u8; 32],
    ) -> Result<Connected, Refusal> {
        let (queue_size_max, io_queues_max, role) = match subsystem.map(|index| &self.subsystems[index]) {
            None => (ADMIN_ENTRIES_MAX - 1, 1, Role::Read),
            Some(subsystem) => {
                let (role, _) = subsystem.hosts.find(&parsed.host).ok_or(Status::CONNECT_INVALID_HOST)?;
                (subsystem.io_queue_entries_max - 1, subsystem.io_queues_max, role)
            }
        };
        if parsed.controller != u16::MAX {
            return Err(Parameter::Controller.refusal());
        }
        if parsed.connect.queue_size >= ADMIN_ENTRIES_MAX {
            return Err(Parameter::QueueSize.refusal());
        }
        if self.controllers.len() >= self.controllers_max {
            return Err(Status::CONNECT_CONTROLLER_BUSY.into());
        }
        let number = self.free_number().ok_or(Status::CONNECT_CONTROLLER_BUSY)?;
        self.controllers.insert(
            number,
            Controller {
                number,
                subsystem,
                host: parsed.host.clone(),
                host_id: parsed.host_id,
                role,
                registers: Registers::new(queue_size_max),
                features: Features::new(parsed.host_id, io_queues_max, parsed.connect.keep_alive_ms),
                events: AsyncEvents::default(),
                errors: ErrorLog::default(),
                changed: BTreeSet::new(),
                aborted: None,
                queues: BTreeSet::new(),
                heard: now,
            },
        );
        Ok(self.connected(number, parsed, subsystem, role, seed))
    }

    /// A number that no controller has; one that was in use is used again as late as possible.
    fn free_number(&mut self) -> Option<u16> {
        let after = (self.last_number + 1..CONTROLLERS_END).chain(1..=self.last_number);
        let number = after.into_iter().find(|number| !self.controllers.contains_key(number))?;
        self.last_number = number;
        Some(number)
    }

    fn connect_io(
        &mut self,
        parsed: &Parsed,
        subsystem: Option<usize>,
        seed: [u8; 32],
    ) -> Result<Connected, Refusal> {
        let Some(index) = subsystem else { return Err(Parameter::Queue.refusal()) };
        let limits = &self.subsystems[index];
        let controller = self
            .controllers
            .get_mut(&parsed.controller)
            .filter(|controller| controller.subsystem == subsystem)
            .ok_or(Parameter::Controller.refusal())?;
        if controller.host != parsed.host {
            return Err(Parameter::Host.refusal());
        }
        if controller.host_id != parsed.host_id {
            return Err(Parameter::HostId.refusal());
        }
        if parsed.connect.queue > limits.io_queues_max {
            return Err(Parameter::Queue.refusal());
        }
        if parsed.connect.queue_size >= limits.io_queue_entries_max {
            return Err(Parameter::QueueSize.refusal());
        }
        if !controller.registers.is_ready() || !controller.queues.insert(parsed.connect.queue) {
            return Err(Status::SEQUENCE_ERROR.into());
        }
        let (number, role) = (controller.number, controller.role);
        Ok(self.connected(number, parsed, subsystem, role, seed))
    }

    fn connected(
        &self,
        controller: u16,
        parsed: &Parsed,
        subsystem: Option<usize>,
        role: Role,
        seed: [u8; 32],
    ) -> Connected {
        let auth = subsystem.and_then(|index| {
            let subsystem = &self.subsystems[index];
            let (_, key) = subsystem.hosts.find(&parsed.host)?;
            let (host, name) = (parsed.host.clone(), subsystem.name.clone());
            Some(ControllerAuth::new(host, name, key?.clone(), subsystem.key.clone(), seed))
        });
        Connected {
            controller,
            queue: parsed.connect.queue,
            entries: parsed.connect.queue_size + 1,
            is_flow_control_off: parsed.connect.is_flow_control_off,
            subsystem,
            role,
            auth,
        }
    }

    /// Execute a command of an admin queue, other than Connect.
    pub fn admin(&mut self, now: Instant, controller: u16, request: &Request) -> Outcome {
        let Some(controller) = self.controllers.get_mut(&controller) else {
            return Outcome::Answer(Status::SEQUENCE_ERROR.into());
        };
        controller.heard = now;
        let view = View {
            subsystem: controller.subsystem.map(|index| &self.subsystems[index]),
            subsystems: &self.subsystems,
            endpoint: &self.endpoint,
            generation: self.generation,
        };
        let (outcome, change) = controller.execute(&view, request);
        let number = controller.number;
        match change {
            Change::None => (),
            Change::Shutdown => self.events.push_back(PortEvent::Shutdown { controller: number }),
            Change::Reset => {
                let held = controller.events.remove_all();
                controller.features.reset();
                controller.queues.clear();
                self.events.extend(held.into_iter().map(|cid| aborted(number, cid)));
                self.events.push_back(PortEvent::Reset { controller: number });
            }
        }
        if let Some(cid) = controller.aborted.take() {
            self.events.push_back(aborted(number, cid));
        }
        controller.tell(&mut self.events);
        outcome
    }

    /// The connection of a queue has ended. With its admin queue, the controller ends.
    pub fn release(&mut self, controller: u16, queue: u16) {
        if queue > 0 {
            if let Some(controller) = self.controllers.get_mut(&controller) {
                controller.queues.remove(&queue);
            }
        } else if self.controllers.remove(&controller).is_some() {
            self.events.push_back(PortEvent::Gone { controller });
        }
    }

    /// When [`Port::expire`] must be called, if ever.
    pub fn deadline(&self) -> Option<Instant> {
        self.controllers.values().filter_map(Controller::deadline).min()
    }

    /// End controllers whose hosts are silent for too long.
    pub fn expire(&mut self, now: Instant) {
        let events = &mut self.events;
        self.controllers.retain(|&number, controller| {
            let is_alive = controller.deadline().is_none_or(|deadline| now < deadline);
            if !is_alive {
                events.push_back(PortEvent::Gone { controller: number });
            }
            is_alive
        });
    }

    /// Put a namespace in the place of the one with its number, or add it. Connected hosts get an event.
    pub fn put_namespace(&mut self, subsystem: usize, namespace: Namespace) {
        let number = namespace.number;
        let namespaces = &mut self.subsystems[subsystem].namespaces;
        namespaces.retain(|other| other.number != number);
        namespaces.push(namespace);
        for controller in self.controllers.values_mut() {
            if controller.subsystem == Some(subsystem) {
                if controller.changed.len() <= CHANGED_MAX {
                    controller.changed.insert(number);
                }
                controller.happened(Happening::Namespace, &mut self.events);
            }
        }
    }

    /// Add a subsystem. Hosts that are connected to discovery get an event.
    pub fn add_subsystem(&mut self, subsystem: Subsystem) {
        self.subsystems.push(subsystem);
        self.generation += 1;
        for controller in self.controllers.values_mut() {
            if controller.subsystem.is_none() {
                controller.happened(Happening::Discovery, &mut self.events);
            }
        }
    }

    /// Put an error into the error log of a controller. Answer the command with `has_more`.
    pub fn record_error(&mut self, controller: u16, queue: u16, cid: u16, status: Status, place: ErrorPlace) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.errors.record(queue, cid, status, place);
        }
    }
}

fn aborted(controller: u16, cid: u16) -> PortEvent {
    PortEvent::Answer { controller, cid, answer: Status::ABORTED.into() }
}
