//! One connection to a controller, which is one queue: from commands to bytes, from bytes to completions.
//!
//! Memory is what the commands of the host hold: their data, and room for what they read.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use zerocopy::FromZeros;

use crate::command::{Command, Completion, Sgl};
use crate::pdu::{
    DataLimits, Digests, Fatal, FatalReason, Initialize, Kind, Outbox, Payload, Pdu, Received, Receiver,
    Side, Terminate, Transfer, field, flag,
};
use crate::{CAPSULE_DATA_BYTES, TRANSFER_BYTES_MAX};

/// The least that a controller must take in one H2CData.
const DATA_PDU_BYTES_MIN: u32 = 4096;

/// Limits of one connection.
#[derive(Clone, Copy, Debug)]
pub struct HostLimits {
    /// Digests to ask for. A controller that does not grant them is left.
    pub digests: Digests,
    /// Most commands at a time.
    pub commands_max: usize,
    /// Most bytes of data that commands other than those of fabrics have in their capsule: 8 KiB on an admin queue,
    /// [`Ready::capsule_data_bytes`](crate::Ready) on an I/O queue.
    pub capsule_data_bytes: usize,
    /// The time until the controller has initialized the connection.
    pub setup_time: Duration,
}

/// The data of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// None.
    None,
    /// From the host.
    Send(Vec<u8>),
    /// To the host: this many bytes.
    Receive(usize),
}

/// Why a connection is over. Its commands get no completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostClosed {
    /// This side found an error. A termination request is queued.
    Fatal(Fatal),
    /// The controller sent a termination request: its reason and information.
    ByPeer {
        /// A [`FatalReason`], if it is one.
        reason: u16,
        /// Further information, whose meaning depends on the reason.
        information: u32,
    },
    /// The controller did not answer in time.
    TimedOut,
}

/// What a connection reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// The connection is initialized: commands can be sent.
    Initialized,
    /// A command is complete.
    Completed {
        /// Its completion.
        completion: Completion,
        /// Data that it read.
        data: Vec<u8>,
        /// The digest of the data was right, or there is none.
        is_intact: bool,
    },
    /// The connection has ended.
    Closed(HostClosed),
}

#[derive(Debug)]
enum Phase {
    Initializing { deadline: Instant },
    Open { data_pdu_bytes: usize },
    Closed,
}

#[derive(Debug)]
struct Pending {
    /// Data that the controller may request.
    to_send: Arc<Vec<u8>>,
    /// Bytes that the controller has requested.
    asked: usize,
    /// The data of the last R2T has left when this many bytes have.
    leaves_at: u64,
    received: Vec<u8>,
    receive_bytes: usize,
    is_intact: bool,
}

/// Data that comes now.
#[derive(Clone, Copy, Debug)]
struct Sink {
    cid: u16,
    /// The command has succeeded when the data is complete.
    is_success: bool,
}

/// One connection to a controller.
#[derive(Debug)]
pub struct HostConnection {
    limits: HostLimits,
    phase: Phase,
    receiver: Receiver,
    outbox: Outbox,
    pending: HashMap<u16, Pending>,
    next_cid: u16,
    sink: Option<Sink>,
    events: VecDeque<HostEvent>,
}

impl HostConnection {
    /// A connection that was just opened. Its first bytes are ready to be sent.
    pub fn new(now: Instant, limits: HostLimits) -> HostConnection {
        let mut outbox = Outbox::new(Digests::default(), 4);
        let request = Initialize { digests: limits.digests.to_bits(), ..Initialize::new_zeroed() };
        outbox.pdu(Kind::InitializeRequest, 0, &request, None);
        let data_limits = DataLimits { command: 0, transfer: TRANSFER_BYTES_MAX };
        HostConnection {
            limits,
            phase: Phase::Initializing { deadline: now + limits.setup_time },
            receiver: Receiver::new(Side::Host, data_limits),
            outbox,
            pending: HashMap::new(),
            next_cid: 0,
            sink: None,
            events: VecDeque::new(),
        }
    }

    /// Send a command. Its identifier is chosen here; the result has it. `None`, if the connection is not initialized
    /// or has as many commands as it may have.
    ///
    /// # Panics
    ///
    /// If there is more data than a command can have.
    pub fn submit(&mut self, mut command: Command, exchange: Exchange) -> Option<u16> {
        if !matches!(self.phase, Phase::Open { .. }) || self.pending.len() >= self.limits.commands_max {
            return None;
        }
        let mut cid = self.next_cid;
        while self.pending.contains_key(&cid) {
            cid = cid.wrapping_add(1);
        }
        self.next_cid = cid.wrapping_add(1);
        let (to_send, receive_bytes) = match exchange {
            Exchange::None => (Vec::new(), 0),
            Exchange::Send(data) => (data, 0),
            Exchange::Receive(bytes) => (Vec::new(), bytes),
        };
        let bytes = to_send.len().max(receive_bytes);
        assert!(
            bytes <= TRANSFER_BYTES_MAX,
            "a command has at most {TRANSFER_BYTES_MAX} bytes of data, not {bytes}"
        );
        let is_fabrics = command.fabrics_kind().is_some();
        let capsule_bytes = if is_fabrics { CAPSULE_DATA_BYTES } else { self.limits.capsule_data_bytes };
        let is_in_capsule = (1..=capsule_bytes).contains(&to_send.len());
        command.cid = cid.into();
        command.sgl = if is_in_capsule { Sgl::capsule(bytes as u32) } else { Sgl::transfer(bytes as u32) };
        let to_send = Arc::new(to_send);
        let payload = is_in_capsule.then(|| Payload::slice(&to_send, 0..to_send.len()));
        self.outbox.pdu(Kind::Command, 0, &command, payload);
        let asked = if is_in_capsule { to_send.len() } else { 0 };
        let received = Vec::with_capacity(receive_bytes);
        self.pending
            .insert(cid, Pending { to_send, asked, leaves_at: 0, received, receive_bytes, is_intact: true });
        Some(cid)
    }

    /// Take bytes from the controller; all of them.
    pub fn receive(&mut self, mut bytes: &[u8]) {
        while !self.is_closed() {
            match self.receiver.next(&mut bytes) {
                Ok(Some(received)) => {
                    if let Err(fatal) = self.step(&received) {
                        self.terminate(fatal);
                    }
                }
                Ok(None) => break,
                Err(fatal) => self.terminate(fatal),
            }
        }
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// When [`HostConnection::expire`] must be called, if ever.
    pub fn deadline(&self) -> Option<Instant> {
        if let Phase::Initializing { deadline } = self.phase { Some(deadline) } else { None }
    }

    /// End the connection if the controller has not initialized it in time.
    pub fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.close(HostClosed::TimedOut);
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

    /// Commands without a completion.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// The connection has ended.
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    fn close(&mut self, closed: HostClosed) {
        self.phase = Phase::Closed;
        self.pending.clear();
        self.events.push_back(HostEvent::Closed(closed));
    }

    fn terminate(&mut self, fatal: Fatal) {
        let terminate = Terminate {
            reason: (fatal.reason as u16).into(),
            information: fatal.information.into(),
            ..Terminate::new_zeroed()
        };
        let header = self.receiver.header().to_vec();
        self.outbox.pdu(Kind::HostTerminate, 0, &terminate, Some(header.into()));
        self.close(HostClosed::Fatal(fatal));
    }

    fn step(&mut self, received: &Received<'_>) -> Result<(), Fatal> {
        match *received {
            Received::Header { pdu, flags, .. } => match pdu {
                Pdu::Initialize(response) => self.initialize(&response),
                Pdu::Terminate(request) => {
                    let (reason, information) = (request.reason.get(), request.information.get());
                    self.close(HostClosed::ByPeer { reason, information });
                    Ok(())
                }
                Pdu::Response(completion) => {
                    self.complete(completion).ok_or(Fatal::field(field::RESPONSE_CID))
                }
                Pdu::ControllerData(transfer) => self.data(&transfer, flags),
                Pdu::ReadyToTransfer(transfer) => self.send_data(&transfer),
                // The receiver lets no PDU of a host through.
                _ => Err(Fatal::new(FatalReason::SequenceError)),
            },
            Received::Data(piece) => {
                if let Some(pending) = self.sink.and_then(|sink| self.pending.get_mut(&sink.cid)) {
                    pending.received.extend_from_slice(piece);
                }
                Ok(())
            }
            Received::DataEnd { is_intact } => {
                if let Some(sink) = self.sink.take() {
                    if let Some(pending) = self.pending.get_mut(&sink.cid) {
                        pending.is_intact &= is_intact;
                    }
                    if sink.is_success {
                        let completion = Completion {
                            cid: sink.cid.into(),
                            queue_head: u16::MAX.into(),
                            ..Completion::new_zeroed()
                        };
                        self.complete(completion);
                    }
                }
                Ok(())
            }
        }
    }

    fn initialize(&mut self, response: &Initialize) -> Result<(), Fatal> {
        if response.version.get() != 0 {
            return Err(Fatal::parameter(field::VERSION));
        }
        if response.alignment > 31 {
            return Err(Fatal::field(field::ALIGNMENT));
        }
        let digests = Digests::from_bits(response.digests);
        if digests != self.limits.digests {
            return Err(Fatal::parameter(field::DIGESTS));
        }
        let data_pdu_bytes = response.limit.get();
        if data_pdu_bytes < DATA_PDU_BYTES_MIN || !data_pdu_bytes.is_multiple_of(4) {
            return Err(Fatal::field(field::LIMIT));
        }
        self.outbox.initialized(digests, (usize::from(response.alignment) + 1) * 4);
        self.receiver.initialized(digests);
        self.phase = Phase::Open { data_pdu_bytes: data_pdu_bytes as usize };
        self.events.push_back(HostEvent::Initialized);
        Ok(())
    }

    fn complete(&mut self, completion: Completion) -> Option<()> {
        let pending = self.pending.remove(&completion.cid.get())?;
        let (data, is_intact) = (pending.received, pending.is_intact);
        self.events.push_back(HostEvent::Completed { completion, data, is_intact });
        Some(())
    }

    fn data(&mut self, transfer: &Transfer, flags: u8) -> Result<(), Fatal> {
        let cid = transfer.cid.get();
        let pending = self.pending.get(&cid).ok_or(Fatal::field(field::CID))?;
        let end = pending.received.len() + transfer.bytes.get() as usize;
        if transfer.offset.get() as usize != pending.received.len() || end > pending.receive_bytes {
            return Err(Fatal::new(FatalReason::DataOutOfRange));
        }
        let is_success = flags & flag::SUCCESS != 0;
        if is_success && flags & flag::LAST == 0 {
            return Err(Fatal::field(field::FLAGS));
        }
        self.sink = Some(Sink { cid, is_success });
        Ok(())
    }

    /// Queue the data that the controller asks for.
    fn send_data(&mut self, ready: &Transfer) -> Result<(), Fatal> {
        let Phase::Open { data_pdu_bytes } = self.phase else {
            return Err(Fatal::new(FatalReason::SequenceError));
        };
        let pending = self.pending.get_mut(&ready.cid.get()).ok_or(Fatal::field(field::CID))?;
        let (start, bytes) = (ready.offset.get() as usize, ready.bytes.get() as usize);
        if bytes == 0 {
            return Err(Fatal::field(field::BYTES));
        }
        if start != pending.asked || start + bytes > pending.to_send.len() {
            return Err(Fatal::new(FatalReason::DataOutOfRange));
        }
        // One R2T per command may be open, which is what the initialization asked for.
        if self.outbox.total_sent() < pending.leaves_at {
            return Err(Fatal::new(FatalReason::LimitExceeded));
        }
        let end = start + bytes;
        for from in (start..end).step_by(data_pdu_bytes) {
            let to = end.min(from + data_pdu_bytes);
            let transfer = Transfer {
                cid: ready.cid,
                tag: ready.tag,
                offset: (from as u32).into(),
                bytes: ((to - from) as u32).into(),
                ..Transfer::new_zeroed()
            };
            let flags = if to == end { flag::LAST } else { 0 };
            self.outbox.pdu(
                Kind::HostData,
                flags,
                &transfer,
                Some(Payload::slice(&pending.to_send, from..to)),
            );
        }
        pending.asked = end;
        pending.leaves_at = self.outbox.total_sent() + self.outbox.unsent_bytes() as u64;
        Ok(())
    }
}
