//! One connection of a host, which is one queue: from bytes to commands with their data, from answers to bytes.
//!
//! - At most `entries` commands are between capsule and answer.
//! - Data in capsules is bounded by their number. Other data is asked for (R2T) only when it fits into the memory that the
//!   node has lent, at most `held_bytes_max`; it counts until its command is answered.
//! - While more than `unsent_bytes_max` bytes wait to be sent, no bytes are consumed.
//! - Apply commands reach the node in the order of their capsules, although their data may come in another one.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use zerocopy::FromZeros;

use super::slot::{Progress, Slot};
use super::{Answer, Connected};
use crate::auth::{AUTH_MESSAGE_BYTES_MAX, ControllerAuth, is_security_protocol};
use crate::command::{Command, Completion, Status, fabrics, io};
use crate::pdu::{
    DataLimits, Digests, Fatal, FatalReason, Initialize, Kind, Outbox, Payload, Pdu, Received, Receiver,
    Side, Terminate, Transfer, field, flag,
};
use crate::{CAPSULE_DATA_BYTES, TRANSFER_BYTES_MAX};

/// Limits of one connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Digests that a host may ask for.
    pub digests: Digests,
    /// Most bytes of one H2CData: a multiple of 4, at least 4,096. Linux before 5.17 ignores it, and sends what an R2T asks
    /// for in one PDU, which is up to 512 KiB.
    pub data_pdu_bytes_max: usize,
    /// Most bytes of data that commands may hold, besides those in capsules: at least 512 KiB. They need
    /// [`Connection::lend`], too.
    pub held_bytes_max: usize,
    /// Unsent bytes above which no more bytes are consumed.
    pub unsent_bytes_max: usize,
    /// The time until the host has initialized the connection, connected its queue, and proved its key if it has one.
    pub setup_time: Duration,
}

/// A command with its data.
#[derive(Debug)]
pub struct Request {
    /// The command.
    pub command: Command,
    /// Its data.
    pub data: Vec<u8>,
    /// Bytes of data that the host takes back.
    pub answer_bytes: usize,
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// This side found an error. A termination request is queued.
    Fatal(Fatal),
    /// The other side sent a termination request: its reason and information.
    ByPeer {
        /// A [`FatalReason`], if it is one.
        reason: u16,
        /// Further information, whose meaning depends on the reason.
        information: u32,
    },
    /// The set-up took too long.
    TimedOut,
    /// Authentication failed, of the host or of this side. The host has received the failure.
    Unauthenticated,
}

/// What a connection reports.
#[derive(Debug)]
pub enum ConnectionEvent {
    /// A command to execute. Each gets one [`Connection::answer`].
    Command(Request),
    /// The connection has ended. Send the unsent bytes, then close the socket.
    Closed(Closed),
}

/// Unsent bytes above which no more bytes are consumed from a host that has not authenticated.
const SETUP_UNSENT_BYTES_MAX: usize = 8 << 10;
/// Limit on the data requested from a host that has not authenticated. A command with more data waits.
const SETUP_HELD_BYTES_MAX: usize = CAPSULE_DATA_BYTES;
/// Of the result of a Connect: the host must authenticate.
const AUTHENTICATION_BIT: u64 = 1 << 17;

#[derive(Debug)]
enum Phase {
    Initializing,
    /// Only a Connect is allowed.
    Unconnected,
    Connected {
        queue: u16,
        entries: u16,
        head: Option<u16>,
    },
    Closed,
}

/// One connection of a host.
#[derive(Debug)]
pub struct Connection {
    limits: ConnectionLimits,
    phase: Phase,
    setup_deadline: Instant,
    /// What a host with a key must prove.
    auth: Option<ControllerAuth>,
    receiver: Receiver,
    outbox: Outbox,
    slots: HashMap<u16, Slot>,
    /// Commands that wait for room for their data, in order.
    waiting: VecDeque<u16>,
    /// Apply commands that are not with the node yet, in the order of their capsules.
    ordered: VecDeque<u16>,
    /// Memory that the node has lent for data besides that in capsules.
    lent_bytes: usize,
    held_bytes: usize,
    /// Bytes of data that came in capsules, of commands that are not answered.
    capsule_bytes: usize,
    /// Commands whose data was requested or has partly arrived.
    incomplete: usize,
    next_tag: u16,
    /// The command that gets the data which comes now; none, if the data is dropped.
    sink: Option<u16>,
    events: VecDeque<ConnectionEvent>,
}

impl Connection {
    /// A connection that a host has just opened.
    ///
    /// # Panics
    ///
    /// If a limit is below its minimum.
    pub fn new(now: Instant, limits: ConnectionLimits) -> Connection {
        assert!(limits.held_bytes_max >= TRANSFER_BYTES_MAX, "held_bytes_max must allow one transfer");
        let data_pdu_bytes = limits.data_pdu_bytes_max;
        assert!(
            data_pdu_bytes >= 4096 && data_pdu_bytes.is_multiple_of(4),
            "data_pdu_bytes_max is {data_pdu_bytes}"
        );
        let data_limits = DataLimits { command: CAPSULE_DATA_BYTES, transfer: data_pdu_bytes };
        Connection {
            limits,
            phase: Phase::Initializing,
            setup_deadline: now + limits.setup_time,
            auth: None,
            receiver: Receiver::new(Side::Controller, data_limits),
            outbox: Outbox::new(Digests::default(), 4),
            slots: HashMap::new(),
            waiting: VecDeque::new(),
            ordered: VecDeque::new(),
            lent_bytes: 0,
            held_bytes: 0,
            capsule_bytes: 0,
            incomplete: 0,
            next_tag: 0,
            sink: None,
            events: VecDeque::new(),
        }
    }

    /// Take bytes from the host. Returns how many are consumed: fewer than all while too many bytes wait to be sent.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !self.is_closed() && self.outbox.unsent_bytes() <= self.unsent_bytes_max() {
            match self.receiver.next(&mut rest) {
                Ok(Some(received)) => {
                    if let Err(fatal) = self.step(&received) {
                        self.terminate(fatal);
                    }
                }
                Ok(None) => break,
                Err(fatal) => self.terminate(fatal),
            }
        }
        if self.is_closed() { bytes.len() } else { bytes.len() - rest.len() }
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<ConnectionEvent> {
        self.events.pop_front()
    }

    /// Answer a command. An answer to no running command, or after the end of the connection, is ignored.
    pub fn answer(&mut self, cid: u16, answer: Answer) {
        let Some(slot) = self.slots.remove(&cid) else { return };
        self.held_bytes -= slot.held_bytes;
        self.capsule_bytes -= slot.capsule_bytes;
        self.respond(cid, slot.answer_bytes, answer);
        self.grant();
    }

    /// Answer the Connect command `cid` with success.
    pub fn accept(&mut self, cid: u16, connected: &Connected) {
        if self.is_closed() {
            return;
        }
        let head = (!connected.is_flow_control_off).then_some(0);
        self.phase = Phase::Connected { queue: connected.queue, entries: connected.entries, head };
        self.auth.clone_from(&connected.auth);
        let auth = if self.auth.is_some() { AUTHENTICATION_BIT } else { 0 };
        self.answer(cid, Answer::result(u64::from(connected.controller) | auth));
    }

    /// When [`Connection::expire`] must be called, if ever.
    pub fn deadline(&self) -> Option<Instant> {
        let is_setting_up = match self.phase {
            Phase::Initializing | Phase::Unconnected => true,
            Phase::Connected { .. } => self.auth.as_ref().is_some_and(|auth| !auth.is_authenticated()),
            Phase::Closed => false,
        };
        is_setting_up.then_some(self.setup_deadline)
    }

    /// End the connection if its set-up takes too long.
    pub fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.close(Closed::TimedOut);
        }
    }

    /// Bytes to send, in order.
    pub fn unsent(&self) -> impl Iterator<Item = &[u8]> {
        self.outbox.unsent()
    }

    /// How many bytes wait to be sent.
    pub fn unsent_bytes(&self) -> usize {
        self.outbox.unsent_bytes()
    }

    /// The first `bytes` unsent bytes are sent.
    pub fn sent(&mut self, bytes: usize) {
        self.outbox.sent(bytes);
    }

    /// Bytes of data that commands hold or may send, besides those in capsules.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Bytes of data that came in capsules, of commands that are not answered.
    pub fn capsule_bytes(&self) -> usize {
        self.capsule_bytes
    }

    /// Data was requested from the host, or has partly arrived.
    pub fn awaits_data(&self) -> bool {
        self.incomplete > 0
    }

    /// Some apply command has not all its data, so all apply commands behind it wait.
    pub fn holds_back(&self) -> bool {
        !self.ordered.is_empty()
    }

    /// Bytes that must be lent before the data of the next command is requested; 0 if no command waits, or if it waits
    /// for answers to other commands.
    pub fn wanted_bytes(&self) -> usize {
        let Some(slot) = self.waiting.front().and_then(|cid| self.slots.get(cid)) else { return 0 };
        let needed = self.held_bytes + slot.data_bytes;
        if needed > self.held_bytes_max() { 0 } else { needed.saturating_sub(self.lent_bytes) }
    }

    /// Lend memory for data that does not come in capsules. A connection begins with none.
    pub fn lend(&mut self, bytes: usize) {
        self.lent_bytes += bytes;
        self.grant();
    }

    /// Take back lent memory that no command has. Returns how many bytes.
    pub fn take_back(&mut self) -> usize {
        let unused = self.lent_bytes - self.held_bytes;
        self.lent_bytes = self.held_bytes;
        unused
    }

    /// A host that has not proved who it is gets little memory.
    fn unsent_bytes_max(&self) -> usize {
        let is_set_up = self.deadline().is_none();
        let most = self.limits.unsent_bytes_max;
        if is_set_up { most } else { most.min(SETUP_UNSENT_BYTES_MAX) }
    }

    fn held_bytes_max(&self) -> usize {
        let is_set_up = self.deadline().is_none();
        if is_set_up { self.limits.held_bytes_max } else { SETUP_HELD_BYTES_MAX }
    }

    /// The connection is over.
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    fn close(&mut self, closed: Closed) {
        self.phase = Phase::Closed;
        self.slots.clear();
        self.waiting.clear();
        self.ordered.clear();
        (self.held_bytes, self.capsule_bytes, self.incomplete) = (0, 0, 0);
        self.events.push_back(ConnectionEvent::Closed(closed));
    }

    fn terminate(&mut self, fatal: Fatal) {
        let terminate = Terminate {
            reason: (fatal.reason as u16).into(),
            information: fatal.information.into(),
            ..Terminate::new_zeroed()
        };
        let header = self.receiver.header().to_vec();
        self.outbox.pdu(Kind::ControllerTerminate, 0, &terminate, Some(header.into()));
        self.close(Closed::Fatal(fatal));
    }

    fn step(&mut self, received: &Received<'_>) -> Result<(), Fatal> {
        match *received {
            Received::Header { pdu, flags, data_bytes } => match pdu {
                Pdu::Initialize(request) => self.initialize(&request),
                Pdu::Terminate(request) => {
                    let (reason, information) = (request.reason.get(), request.information.get());
                    self.close(Closed::ByPeer { reason, information });
                    Ok(())
                }
                Pdu::Command(command) => self.start(command, data_bytes),
                Pdu::HostData(transfer) => self.data(&transfer, flags),
                // The receiver lets no PDU of a controller through.
                _ => Err(Fatal::new(FatalReason::SequenceError)),
            },
            Received::Data(piece) => {
                if let Some(slot) = self.sink.and_then(|cid| self.slots.get_mut(&cid)) {
                    slot.data.extend_from_slice(piece);
                    if slot.progress == Progress::InCapsule {
                        slot.capsule_bytes += piece.len();
                        self.capsule_bytes += piece.len();
                    }
                }
                Ok(())
            }
            Received::DataEnd { is_intact } => {
                if let Some(cid) = self.sink.take() {
                    self.data_end(cid, is_intact);
                }
                Ok(())
            }
        }
    }

    fn initialize(&mut self, request: &Initialize) -> Result<(), Fatal> {
        if request.version.get() != 0 {
            return Err(Fatal::parameter(field::VERSION));
        }
        if request.alignment > 31 {
            return Err(Fatal::field(field::ALIGNMENT));
        }
        let digests = Digests::from_bits(request.digests).and(self.limits.digests);
        let response = Initialize {
            digests: digests.to_bits(),
            limit: (self.limits.data_pdu_bytes_max as u32).into(),
            ..Initialize::new_zeroed()
        };
        self.outbox.pdu(Kind::InitializeResponse, 0, &response, None);
        self.outbox.initialized(digests, (usize::from(request.alignment) + 1) * 4);
        self.receiver.initialized(digests);
        self.phase = Phase::Unconnected;
        Ok(())
    }

    fn start(&mut self, command: Command, capsule_bytes: usize) -> Result<(), Fatal> {
        let cid = command.cid.get();
        let is_connect = command.fabrics_kind() == Some(fabrics::CONNECT);
        let (entries, is_allowed) = match self.phase {
            Phase::Connected { entries, .. } => (entries, true),
            _ => (1, is_connect),
        };
        let slot = if self.slots.contains_key(&cid) {
            Err(Status::CID_CONFLICT)
        } else if self.slots.len() >= usize::from(entries) {
            return Err(Fatal::new(FatalReason::LimitExceeded));
        } else if is_allowed {
            Slot::new(command, capsule_bytes)
        } else {
            Err(Status::SEQUENCE_ERROR)
        };
        match slot {
            Err(status) => self.respond(cid, 0, status.into()),
            Ok(slot) => {
                if command.opcode == io::APPLY {
                    self.ordered.push_back(cid);
                }
                let is_complete = slot.progress == Progress::Executing;
                match slot.progress {
                    Progress::Executing => (),
                    Progress::InCapsule => {
                        self.sink = Some(cid);
                        self.incomplete += 1;
                    }
                    _ => self.waiting.push_back(cid),
                }
                self.slots.insert(cid, slot);
                if is_complete {
                    self.complete(cid);
                }
                self.grant();
            }
        }
        Ok(())
    }

    /// Ask for the data of commands that wait, in order, as far as there is room.
    fn grant(&mut self) {
        let most = self.held_bytes_max().min(self.lent_bytes);
        while let Some(cid) = self.waiting.front() {
            let slot = self.slots.get_mut(cid).expect("a command that waits is not answered");
            let needed = self.held_bytes + slot.data_bytes;
            if needed > most {
                break;
            }
            self.incomplete += 1;
            self.next_tag = self.next_tag.wrapping_add(1);
            slot.grant(self.next_tag);
            self.held_bytes += slot.held_bytes;
            let ready = Transfer {
                cid: (*cid).into(),
                tag: self.next_tag.into(),
                bytes: (slot.data_bytes as u32).into(),
                ..Transfer::new_zeroed()
            };
            self.outbox.pdu(Kind::ReadyToTransfer, 0, &ready, None);
            self.waiting.pop_front();
        }
    }

    fn data(&mut self, transfer: &Transfer, flags: u8) -> Result<(), Fatal> {
        let cid = transfer.cid.get();
        let slot = self.slots.get(&cid).ok_or(Fatal::field(field::CID))?;
        let Progress::Granted { tag } = slot.progress else { return Err(Fatal::field(field::CID)) };
        if transfer.tag.get() != tag {
            return Err(Fatal::field(field::TAG));
        }
        let end = slot.data.len() + transfer.bytes.get() as usize;
        if transfer.offset.get() as usize != slot.data.len() || end > slot.data_bytes {
            return Err(Fatal::new(FatalReason::DataOutOfRange));
        }
        if (flags & flag::LAST != 0) != (end == slot.data_bytes) {
            return Err(Fatal::field(field::FLAGS));
        }
        self.sink = Some(cid);
        Ok(())
    }

    fn data_end(&mut self, cid: u16, is_intact: bool) {
        let Some(slot) = self.slots.get_mut(&cid) else { return };
        slot.is_damaged |= !is_intact;
        if slot.is_complete() {
            self.incomplete -= 1;
            self.complete(cid);
        }
    }

    /// All data of a command has come.
    fn complete(&mut self, cid: u16) {
        let Some(slot) = self.slots.get_mut(&cid) else { return };
        slot.progress = Progress::Complete;
        if !self.ordered.contains(&cid) {
            self.pass_on(cid);
            return;
        }
        while let Some(&first) = self.ordered.front()
            && self.slots.get(&first).is_some_and(|slot| slot.progress == Progress::Complete)
        {
            self.ordered.pop_front();
            self.pass_on(first);
        }
    }

    fn pass_on(&mut self, cid: u16) {
        let Some(slot) = self.slots.get_mut(&cid) else { return };
        if slot.is_damaged {
            self.answer(cid, Status::TRANSIENT_TRANSPORT_ERROR.into());
        } else {
            let request = slot.request();
            self.dispatch(request);
        }
    }

    /// A command has all its data: the node executes it, unless the host must prove its key first.
    fn dispatch(&mut self, request: Request) {
        let Some(auth) = &mut self.auth else {
            self.events.push_back(ConnectionEvent::Command(request));
            return;
        };
        let answer = match request.command.fabrics_kind() {
            Some(fabrics::AUTHENTICATION_SEND | fabrics::AUTHENTICATION_RECEIVE) => {
                authenticate(auth, &request)
            }
            _ if auth.is_authenticated() => {
                self.events.push_back(ConnectionEvent::Command(request));
                return;
            }
            _ => Status::AUTHENTICATION_REQUIRED.into(),
        };
        let has_failed = auth.has_failed();
        self.answer(request.command.cid.get(), answer);
        if has_failed {
            self.close(Closed::Unauthenticated);
        }
    }

    fn respond(&mut self, cid: u16, answer_bytes: usize, answer: Answer) {
        let (queue, entries, head) = match &mut self.phase {
            Phase::Connected { queue, entries, head } => (*queue, *entries, head.as_mut()),
            Phase::Closed => return,
            _ => (0, 1, None),
        };
        let has_flow_control = head.is_some();
        let queue_head = head.map_or(u16::MAX, |head| {
            *head = (*head + 1) % entries;
            *head
        });
        let mut data = answer.data;
        let has_data = answer.status == Status::SUCCESS && !data.is_empty() && answer_bytes > 0;
        // Without flow control, the last data says that the command succeeded, and no response follows.
        let ends_with_data = has_data && !has_flow_control && answer.result == 0;
        if has_data {
            data.resize(answer_bytes, 0);
            let transfer =
                Transfer { cid: cid.into(), bytes: (answer_bytes as u32).into(), ..Transfer::new_zeroed() };
            let success = if ends_with_data { flag::SUCCESS } else { 0 };
            self.outbox.pdu(Kind::ControllerData, flag::LAST | success, &transfer, Some(Payload::from(data)));
        }
        if !ends_with_data {
            let completion = Completion {
                result: answer.result.into(),
                queue_head: queue_head.into(),
                queue: queue.into(),
                cid: cid.into(),
                status: Completion::status_field(answer.status, answer.has_more),
            };
            self.outbox.pdu(Kind::Response, 0, &completion, None);
        }
    }
}

/// Most bytes that a host may ask for with Authentication Receive, before it has proved who it is. Linux asks for 4,096.
const AUTH_ANSWER_BYTES_MAX: usize = 4096;

/// Authentication Send or Authentication Receive.
fn authenticate(auth: &mut ControllerAuth, request: &Request) -> Answer {
    let bytes = request.data.len().max(request.answer_bytes);
    if !is_security_protocol(&request.command, bytes) {
        return Status::INVALID_FIELD.into();
    }
    if request.command.fabrics_kind() == Some(fabrics::AUTHENTICATION_SEND) {
        auth.send(&request.data);
        return Answer::success();
    }
    if !(AUTH_MESSAGE_BYTES_MAX..=AUTH_ANSWER_BYTES_MAX).contains(&request.answer_bytes) {
        return Status::DATA_LENGTH_INVALID.into();
    }
    Answer::data(auth.receive())
}
