//! One connection of a host on its socket. It waits for bytes, for answers and for room to send, and never for the disk:
//! commands of I/O queues run on threads that may block.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use rowmill_nvme::{
    Answer, Connected, Connection, ConnectionEvent, ErrorPlace, Request, Status, io as io_opcode,
};
use rowmill_server::Hold;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{AcquireError, OwnedSemaphorePermit};

use crate::Node;
use crate::fault::{Fault, Fetched};
use crate::node::{Control, PERMIT_BYTES};
use crate::wire_memory::{LIMITS, Lease, OWN_BYTES, READ_BYTES};

/// Most parts of one vectored write.
const PARTS_MAX: usize = 64;

/// The result of a command that ran on another thread, with its share of the memory for answers.
struct Done {
    cid: u16,
    result: Result<Answer, Status>,
    /// Where rows or blocks could not be read.
    places: Vec<ErrorPlace>,
    permit: Arc<OwnedSemaphorePermit>,
}

/// Where the result of one command goes.
#[derive(Clone)]
pub(crate) struct Reply {
    cid: u16,
    done: UnboundedSender<Done>,
    permit: Arc<OwnedSemaphorePermit>,
}

impl Reply {
    pub(crate) fn answer(self, Fetched { data, places }: Fetched) {
        self.finish(data.map(Answer::data), places);
    }

    fn finish(self, result: Result<Answer, Status>, places: Vec<ErrorPlace>) {
        // A session that has ended needs no answer.
        let _ = self.done.send(Done { cid: self.cid, result, places, permit: self.permit });
    }
}

struct Session {
    node: Arc<Node>,
    connection: Connection,
    connected: Option<Connected>,
    done: UnboundedSender<Done>,
    control: UnboundedSender<Control>,
    /// Apply commands, which run one after the other; none before the first one.
    applies: Option<UnboundedSender<(Request, Arc<Lease>)>>,
    memory: Arc<Lease>,
    /// Of the memory that is taken: bytes lent to the connection for data that it asks for.
    lent_bytes: usize,
    /// Memory that this connection waits for.
    awaited: Option<Awaited>,
    /// Received bytes that are not consumed yet.
    left_over: Vec<u8>,
    /// There is no room for received bytes: the socket is not read.
    is_starved: bool,
    /// Memory for the next read was waited for.
    has_read_memory: bool,
    sent_bytes: u64,
    /// Shares of the memory for answers, until this many bytes are sent.
    unsent_answers: VecDeque<(u64, Arc<OwnedSemaphorePermit>)>,
    unsent_answer_bytes: usize,
    /// Since when no byte has moved, while the host owes data or must take answers, or others wait for what this
    /// connection has.
    stalled_since: Option<Instant>,
    is_closing: bool,
}

type Awaited = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

thread_local! {
    /// What a socket is read into. What stays in memory is counted.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Serve a connection until one of its sides ends it, or the drain starts.
pub(crate) async fn run(node: Arc<Node>, stream: TcpStream, mut hold: Hold, permit: OwnedSemaphorePermit) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::warn!(%error, "cannot set TCP_NODELAY");
    }
    let (done, mut finished) = unbounded_channel();
    let (control, mut controls) = unbounded_channel();
    let memory = Arc::new(Lease::new(&node.commands, permit));
    let mut session = Session {
        node,
        connection: Connection::new(Instant::now(), LIMITS),
        connected: None,
        done,
        control,
        applies: None,
        memory,
        lent_bytes: 0,
        awaited: None,
        left_over: Vec::new(),
        is_starved: false,
        has_read_memory: false,
        sent_bytes: 0,
        unsent_answers: VecDeque::new(),
        unsent_answer_bytes: 0,
        stalled_since: None,
        is_closing: false,
    };
    tokio::select! {
        () = hold.draining() => (),
        result = session.serve(&stream, &mut finished, &mut controls) => if let Err(error) = result {
            tracing::debug!(%error, "a connection ended");
        },
    }
    if let Some(connected) = &session.connected {
        session.node.release(connected, &session.control);
    }
}

impl Session {
    async fn serve(
        &mut self,
        stream: &TcpStream,
        finished: &mut UnboundedReceiver<Done>,
        controls: &mut UnboundedReceiver<Control>,
    ) -> io::Result<()> {
        loop {
            self.consume_left_over();
            // It may ask the host for data.
            self.balance_memory();
            self.send(stream)?;
            let has_unsent = self.connection.unsent_bytes() > 0;
            if self.is_closing && !has_unsent {
                return Ok(());
            }
            // Answers wait in memory that they have permits for, until what was answered before is sent.
            let takes_answers = self.connection.unsent_bytes() <= LIMITS.unsent_bytes_max;
            let reads = self.left_over.is_empty() && !self.is_closing && !self.is_starved;
            let interest = match (reads, has_unsent) {
                (true, true) => Interest::READABLE | Interest::WRITABLE,
                (false, true) => Interest::WRITABLE,
                (true | false, false) => Interest::READABLE,
            };
            let stalls_at = self.stalls_at(has_unsent);
            let setup_ends_at = self.connection.deadline();
            tokio::select! {
                ready = stream.ready(interest), if reads || has_unsent => if ready?.is_readable() && reads {
                    self.read(stream)?;
                },
                Some(done) = finished.recv(), if takes_answers => self.finish(done),
                Some(control) = controls.recv() => match control {
                    Control::Answer { cid, answer } => self.connection.answer(cid, answer),
                    Control::Close => return Ok(()),
                },
                taken = wait_for(&mut self.awaited) => {
                    self.awaited = None;
                    if let Some(taken) = taken {
                        self.memory.keep(taken);
                    }
                    self.has_read_memory = std::mem::take(&mut self.is_starved);
                },
                () = sleep_until(setup_ends_at) => self.connection.expire(Instant::now()),
                () = sleep_until(stalls_at) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    /// Bytes that are received and not counted elsewhere, and small answers.
    fn used_bytes(&self) -> usize {
        let small_answers = self.connection.unsent_bytes().saturating_sub(self.unsent_answer_bytes);
        self.connection.capsule_bytes() + self.left_over.len() + small_answers
    }

    /// Memory that is taken and not used.
    fn free_bytes(&self) -> usize {
        let beyond_own = self.used_bytes().saturating_sub(OWN_BYTES);
        self.memory.bytes().saturating_sub(self.lent_bytes + beyond_own)
    }

    /// Lend what the connection wants, or wait for it, and give back the rest. While it waits, a connection has only the
    /// memory of its commands.
    fn balance_memory(&mut self) {
        self.lent_bytes -= self.connection.take_back();
        let wanted = loop {
            let wanted = self.connection.wanted_bytes();
            let missing = wanted.saturating_sub(self.free_bytes());
            if wanted == 0 || (missing > 0 && !self.memory.try_take(missing)) {
                break wanted;
            }
            self.connection.lend(wanted);
            self.lent_bytes += wanted;
        };
        self.is_starved &= self.room() == 0;
        if self.awaited.is_none() && (wanted > 0 || self.is_starved) {
            let bytes = wanted + if self.is_starved { READ_BYTES } else { 0 };
            let memory = Arc::clone(self.memory.memory());
            self.awaited = Some(Box::pin(memory.acquire_many_owned(bytes as u32)));
        }
        if !self.has_read_memory {
            self.memory.give_back(self.free_bytes());
        }
    }

    /// How many bytes may be received.
    fn room(&self) -> usize {
        (OWN_BYTES + self.memory.bytes()).saturating_sub(self.lent_bytes + self.used_bytes())
    }

    /// When no byte has moved for too long: the host owes data, takes no answers, or has sent apply commands that wait for
    /// one before them. Such connections have memory while they wait for more, so they may wait for each other.
    fn stalls_at(&mut self, has_unsent: bool) -> Option<Instant> {
        let owes_data = self.connection.awaits_data() && !self.is_starved;
        let may_be_cyclic = self.connection.holds_back() && self.awaited.is_some() && self.memory.bytes() > 0;
        let is_stalled = has_unsent || owes_data || may_be_cyclic;
        self.stalled_since = is_stalled.then(|| self.stalled_since.unwrap_or_else(Instant::now));
        self.stalled_since.map(|since| since + self.node.stall_time)
    }

    fn read(&mut self, stream: &TcpStream) -> io::Result<()> {
        self.has_read_memory = false;
        let missing = READ_BYTES.saturating_sub(self.room());
        if missing > 0 {
            self.memory.try_take(missing);
        }
        let bytes_max = self.room().min(READ_BYTES);
        if bytes_max == 0 {
            self.is_starved = true;
            return Ok(());
        }
        READ_BUFFER.with_borrow_mut(|buffer| match stream.try_read(&mut buffer[..bytes_max]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                self.stalled_since = None;
                let consumed = self.consume(&buffer[..bytes]);
                self.left_over.extend_from_slice(&buffer[consumed..bytes]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        })
    }

    fn consume_left_over(&mut self) {
        let mut bytes = std::mem::take(&mut self.left_over);
        let consumed = self.consume(&bytes);
        if consumed < bytes.len() {
            bytes.drain(..consumed);
            self.left_over = bytes;
        }
    }

    /// Returns how many bytes are consumed.
    fn consume(&mut self, bytes: &[u8]) -> usize {
        let consumed = self.connection.receive(bytes);
        while let Some(event) = self.connection.poll() {
            match event {
                ConnectionEvent::Command(request) => self.execute(request),
                ConnectionEvent::Closed(closed) => {
                    tracing::debug!(?closed, "a connection ends");
                    self.is_closing = true;
                }
            }
        }
        consumed
    }

    fn execute(&mut self, request: Request) {
        let cid = request.command.cid.get();
        let Some(connected) = &self.connected else {
            match self.node.connect(&request, &self.control) {
                Ok(connected) => {
                    self.connection.accept(cid, &connected);
                    self.connected = Some(connected);
                }
                Err(refusal) => self.connection.answer(cid, refusal.into()),
            }
            return;
        };
        let opcode = request.command.opcode;
        match connected.queue {
            // Answers with data take their memory first.
            0 if request.answer_bytes == 0 => {
                if let Some(answer) = self.node.admin(connected, &request) {
                    self.connection.answer(cid, answer);
                }
            }
            1.. if opcode == io_opcode::STAGE => {
                let answer = self.node.stage(connected, &request);
                self.connection.answer(cid, answer);
            }
            1.. if opcode == io_opcode::APPLY => {
                let applies = self.applies.get_or_insert_with(|| {
                    let (sender, receiver) = unbounded_channel();
                    let (node, connected) = (Arc::clone(&self.node), connected.clone());
                    tokio::spawn(apply_in_order(node, connected, receiver, self.done.clone()));
                    sender
                });
                // Its receiver lives as long as this sender.
                let _ = applies.send((request, Arc::clone(&self.memory)));
            }
            _ => {
                let (node, connected, done) = (Arc::clone(&self.node), connected.clone(), self.done.clone());
                let memory = Arc::clone(&self.memory);
                tokio::spawn(async move {
                    execute(node, connected, request, done).await;
                    drop(memory);
                });
            }
        }
    }

    fn finish(&mut self, done: Done) {
        let Done { cid, result, places, permit } = done;
        if let Some(connected) = &self.connected
            && (result.is_err() || !places.is_empty())
        {
            self.node.log_failure(connected, cid, result.as_ref().err().copied(), &places);
        }
        let answer = result.unwrap_or_else(Answer::from);
        let before = self.connection.unsent_bytes();
        self.connection.answer(cid, Answer { has_more: !places.is_empty(), ..answer });
        let unsent = self.connection.unsent_bytes();
        self.unsent_answer_bytes += unsent - before;
        self.unsent_answers.push_back((self.sent_bytes + unsent as u64, permit));
    }

    /// Send as much as the socket takes.
    fn send(&mut self, stream: &TcpStream) -> io::Result<()> {
        while self.connection.unsent_bytes() > 0 {
            let parts: Vec<IoSlice<'_>> =
                self.connection.unsent().take(PARTS_MAX).map(IoSlice::new).collect();
            match stream.try_write_vectored(&parts) {
                Ok(bytes) => {
                    self.connection.sent(bytes);
                    self.sent_bytes += bytes as u64;
                    self.stalled_since = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        while self.unsent_answers.front().is_some_and(|(until, _)| *until <= self.sent_bytes) {
            self.unsent_answers.pop_front();
        }
        // Small answers between them count as theirs, until all are sent.
        self.unsent_answer_bytes = match self.unsent_answers.back() {
            Some((until, _)) => self.unsent_answer_bytes.min((until - self.sent_bytes) as usize),
            None => 0,
        };
        Ok(())
    }
}

/// Take memory for the answer of a command, and execute it.
async fn execute(node: Arc<Node>, connected: Connected, request: Request, done: UnboundedSender<Done>) {
    let cid = request.command.cid.get();
    let permits = request.answer_bytes.div_ceil(PERMIT_BYTES) as u32;
    let Ok(permit) = Arc::clone(&node.answers).acquire_many_owned(permits).await else { return };
    let reply = Reply { cid, done, permit: Arc::new(permit) };
    if connected.queue == 0 {
        if let Some(answer) = node.admin(&connected, &request) {
            reply.finish(Ok(answer), Vec::new());
        }
        return;
    }
    if request.command.opcode == io_opcode::FETCH {
        node.fetch(&connected, &request, reply);
        return;
    }
    let executor = Arc::clone(&node);
    let Ok(_disk) = node.disk.acquire().await else { return };
    let result = tokio::task::spawn_blocking(move || executor.io(&connected, &request)).await;
    // A command that panicked is answered, too.
    match result.unwrap_or_else(|_| Err(Status::INTERNAL_ERROR.into())) {
        Ok(answer) => reply.finish(Ok(answer), Vec::new()),
        Err(Fault { status, place }) => reply.finish(Err(status), place.into_iter().collect()),
    }
}

/// Execute the apply commands of a queue one after the other. After the end of its session no further one begins.
async fn apply_in_order(
    node: Arc<Node>,
    connected: Connected,
    mut requests: UnboundedReceiver<(Request, Arc<Lease>)>,
    done: UnboundedSender<Done>,
) {
    while let Some((request, memory)) = requests.recv().await {
        if done.is_closed() {
            return;
        }
        execute(Arc::clone(&node), connected.clone(), request, done.clone()).await;
        drop(memory);
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// The memory that a connection waits for, if it waits for any.
async fn wait_for(awaited: &mut Option<Awaited>) -> Option<OwnedSemaphorePermit> {
    match awaited {
        Some(awaited) => awaited.await.ok(),
        None => std::future::pending().await,
    }
}
