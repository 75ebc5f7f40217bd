//! Commands of admin queues: fabrics, Identify, features, log pages, async events, abort.

use zerocopy::{FromZeros, IntoBytes};

use super::port::Controller;
use super::registers::Change;
use super::{Answer, Content, Outcome, Request, Subsystem};
use crate::command::{DISCOVERY_NQN, Status, admin, fabrics};
use crate::identify::{
    EVENT_DISCOVERY, EVENT_NAMESPACE, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, KIND_DISCOVERY,
    KIND_IO, active_namespaces, cns, fill_text, namespace_descriptors,
};
use crate::log::Endpoint;
use crate::{CAPSULE_BYTES, Namespace};

const MODEL: &str = "rowmill-storage-node";
/// Dataset Management exists.
const DATASET_MANAGEMENT: u16 = 1 << 2;
/// Writes need a flush, and a flush may name all namespaces.
const WRITE_CACHE: u8 = 1 | 3 << 1;
/// The number that stands for all namespaces.
pub(super) const ALL_NAMESPACES: u32 = u32::MAX;

/// What a controller sees of its port.
pub(super) struct View<'a> {
    /// Its subsystem; none for discovery.
    pub(super) subsystem: Option<&'a Subsystem>,
    pub(super) subsystems: &'a [Subsystem],
    pub(super) endpoint: &'a Endpoint,
    pub(super) generation: u64,
}

impl View<'_> {
    pub(super) fn namespaces(&self) -> &[Namespace] {
        self.subsystem.map_or(&[], |subsystem| &subsystem.namespaces)
    }

    fn namespace(&self, number: u32) -> Result<&Namespace, Status> {
        let found = self.namespaces().iter().find(|namespace| namespace.number == number);
        found.ok_or(Status::INVALID_NAMESPACE)
    }

    fn largest_namespace(&self) -> u32 {
        self.namespaces().iter().map(|namespace| namespace.number).max().unwrap_or(0)
    }

    pub(super) fn has_rows(&self) -> bool {
        self.namespaces().iter().any(|namespace| namespace.content == Content::Rows)
    }
}

impl Controller {
    pub(super) fn execute(&mut self, view: &View<'_>, request: &Request) -> (Outcome, Change) {
        if request.command.fabrics_kind().is_some() {
            return match self.fabrics(request) {
                Ok((answer, change)) => (Outcome::Answer(answer), change),
                Err(status) => (Outcome::Answer(status.into()), Change::None),
            };
        }
        let outcome =
            if self.registers.is_ready() { self.admin(view, request) } else { Err(Status::SEQUENCE_ERROR) };
        (outcome.unwrap_or_else(|status| Outcome::Answer(status.into())), Change::None)
    }

    fn fabrics(&mut self, request: &Request) -> Result<(Answer, Change), Status> {
        let command = &request.command;
        let (size, offset) = (command.dword(10) & 7, command.dword(11));
        match command.fabrics_kind() {
            Some(fabrics::PROPERTY_GET) => {
                Ok((Answer::result(self.registers.get(offset, size)?), Change::None))
            }
            Some(fabrics::PROPERTY_SET) => {
                let change = self.registers.set(offset, size, command.quadword(12))?;
                Ok((Answer::success(), change))
            }
            // The queue is connected already.
            Some(fabrics::CONNECT) => Err(Status::SEQUENCE_ERROR),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn admin(&mut self, view: &View<'_>, request: &Request) -> Result<Outcome, Status> {
        let command = &request.command;
        let answer = match command.opcode {
            admin::IDENTIFY => Answer::data(self.identify(view, request)?),
            admin::GET_LOG_PAGE => return self.log_page(view, request),
            admin::GET_FEATURES => self.features.get(request)?,
            admin::SET_FEATURES => self.features.set(request, !self.queues.is_empty())?,
            admin::KEEP_ALIVE => Answer::success(),
            admin::ASYNC_EVENT => {
                let is_held = self.events.hold(command.cid.get());
                return if is_held { Ok(Outcome::Held) } else { Err(Status::ASYNC_LIMIT_EXCEEDED) };
            }
            admin::ABORT => {
                let (queue, cid) = (command.dword(10) as u16, (command.dword(10) >> 16) as u16);
                let is_aborted = queue == 0 && self.events.remove(cid);
                self.aborted = is_aborted.then_some(cid);
                Answer::result(u64::from(!is_aborted))
            }
            _ => return Err(Status::INVALID_OPCODE),
        };
        Ok(Outcome::Answer(answer))
    }

    fn identify(&self, view: &View<'_>, request: &Request) -> Result<Vec<u8>, Status> {
        let command = &request.command;
        if request.answer_bytes != IDENTIFY_BYTES {
            return Err(Status::DATA_LENGTH_INVALID);
        }
        let number = command.nsid.get();
        let command_set = command.dword(11) >> 24;
        Ok(match command.dword(10) as u8 {
            cns::CONTROLLER => self.identify_controller(view).as_bytes().to_vec(),
            cns::NAMESPACE => {
                if number == 0 || number > view.largest_namespace() {
                    return Err(Status::INVALID_NAMESPACE);
                }
                // A namespace that is not active is all zeros.
                let found = view.namespace(number).ok().map(IdentifyNamespace::new);
                found.unwrap_or_else(IdentifyNamespace::new_zeroed).as_bytes().to_vec()
            }
            cns::ACTIVE_NAMESPACES if number >= ALL_NAMESPACES - 1 => return Err(Status::INVALID_NAMESPACE),
            cns::ACTIVE_NAMESPACES => active_namespaces(view.namespaces(), number),
            cns::DESCRIPTORS => namespace_descriptors(view.namespace(number)?),
            // Limits of the NVM command set: none besides the size of transfers.
            cns::CONTROLLER_OF_COMMAND_SET if command_set == 0 => vec![0; IDENTIFY_BYTES],
            _ => return Err(Status::INVALID_FIELD),
        })
    }

    fn identify_controller(&self, view: &View<'_>) -> IdentifyController {
        let Some(subsystem) = view.subsystem else {
            let name = DISCOVERY_NQN.parse().expect("it is a valid name");
            let mut data = IdentifyController::new(self.number, &name, CAPSULE_BYTES, 128);
            fill_text(&mut data.model, MODEL);
            data.kind = KIND_DISCOVERY;
            data.events = EVENT_DISCOVERY.into();
            return data;
        };
        let entries = subsystem.io_queue_entries_max;
        let mut data = IdentifyController::new(self.number, &subsystem.name, CAPSULE_BYTES, entries);
        fill_text(&mut data.serial, &subsystem.serial);
        fill_text(&mut data.model, MODEL);
        fill_text(&mut data.firmware, &subsystem.firmware);
        data.kind = KIND_IO;
        data.events = EVENT_NAMESPACE.into();
        data.namespace_max = view.largest_namespace().into();
        data.optional_commands = DATASET_MANAGEMENT.into();
        data.write_cache = WRITE_CACHE;
        if let Some(area) = subsystem.area.filter(|_| view.has_rows()) {
            data.vendor_area = area;
        }
        data
    }
}
