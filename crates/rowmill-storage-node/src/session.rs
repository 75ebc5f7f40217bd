//! One connection of a host on its socket. It waits for bytes, for answers and for room to send, and never for the disk:
//! commands of I/O queues run on threads that may block.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Instant;

use rowmill_nvme::{
    Answer, Connected, Connection, ConnectionEvent, ErrorPlace, Request, Status, io as io_opcode,
};
use rowmill_server::Hold;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::Node;
use crate::fault::{Fault, Fetched};
use crate::node::{Control, PERMIT_BYTES};
use crate::wire_memory::{LIMITS, READ_BYTES};

/// Most parts of one vectored write.
const PARTS_MAX: usize = 64;

/// The result of a command that ran on another thread, with its share of the memory for answers.
struct Done {
    cid: u16,
    result: Result<Answer, Status>,
    /// Where rows or blocks could not be read.
    places: Vec<ErrorPlace>,
    _permit: Arc<OwnedSemaphorePermit>,
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
        let _ = self.done.send(Done { cid: self.cid, result, places, _permit: self.permit });
    }
}

struct Session {
    node: Arc<Node>,
    connection: Connection,
    connected: Option<Connected>,
    done: UnboundedSender<Done>,
    control: UnboundedSender<Control>,
    /// Bytes from the socket; those from `start` to `end` are not consumed yet.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    is_closing: bool,
}

/// Serve a connection until one of its sides ends it, or the drain starts.
pub(crate) async fn run(node: Arc<Node>, stream: TcpStream, mut hold: Hold, _permit: OwnedSemaphorePermit) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::warn!(%error, "cannot set TCP_NODELAY");
    }
    let (done, mut finished) = unbounded_channel();
    let (control, mut controls) = unbounded_channel();
    let mut session = Session {
        node,
        connection: Connection::new(Instant::now(), LIMITS),
        connected: None,
        done,
        control,
        buffer: vec![0; READ_BYTES],
        start: 0,
        end: 0,
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
            self.consume();
            self.send(stream)?;
            let has_unsent = self.connection.unsent_bytes() > 0;
            if self.is_closing && !has_unsent {
                return Ok(());
            }
            // Answers wait in memory that they have permits for, until what was answered before is sent.
            let takes_answers = self.connection.unsent_bytes() <= LIMITS.unsent_bytes_max;
            let reads = self.start == self.end && !self.is_closing;
            let interest = match (reads, has_unsent) {
                (true, true) => Interest::READABLE | Interest::WRITABLE,
                (false, true) => Interest::WRITABLE,
                (true | false, false) => Interest::READABLE,
            };
            let deadline = self.connection.deadline();
            tokio::select! {
                ready = stream.ready(interest), if reads || has_unsent => if ready?.is_readable() && reads {
                    self.read(stream)?;
                },
                Some(done) = finished.recv(), if takes_answers => self.finish(done),
                Some(control) = controls.recv() => match control {
                    Control::Answer { cid, answer } => self.connection.answer(cid, answer),
                    Control::Close => return Ok(()),
                },
                () = sleep_until(deadline), if deadline.is_some() => self.connection.expire(Instant::now()),
            }
        }
    }

    fn read(&mut self, stream: &TcpStream) -> io::Result<()> {
        match stream.try_read(&mut self.buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                (self.start, self.end) = (0, bytes);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn consume(&mut self) {
        self.start += self.connection.receive(&self.buffer[self.start..self.end]);
        while let Some(event) = self.connection.poll() {
            match event {
                ConnectionEvent::Command(request) => self.execute(request),
                ConnectionEvent::Closed(closed) => {
                    tracing::debug!(?closed, "a connection ends");
                    self.is_closing = true;
                }
            }
        }
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
        if connected.queue == 0 {
            if let Some(answer) = self.node.admin(connected, &request) {
                self.connection.answer(cid, answer);
            }
            return;
        }
        let opcode = request.command.opcode;
        if opcode == io_opcode::STAGE {
            let answer = self.node.stage(connected, &request);
            self.connection.answer(cid, answer);
            return;
        }
        let (node, connected, done) = (Arc::clone(&self.node), connected.clone(), self.done.clone());
        tokio::spawn(async move {
            let permits = request.answer_bytes.div_ceil(PERMIT_BYTES) as u32;
            let Ok(permit) = Arc::clone(&node.answers).acquire_many_owned(permits).await else { return };
            let reply = Reply { cid, done, permit: Arc::new(permit) };
            if opcode == io_opcode::FETCH {
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
        });
    }

    fn finish(&mut self, done: Done) {
        let Done { cid, result, places, .. } = done;
        if let Some(connected) = &self.connected
            && (result.is_err() || !places.is_empty())
        {
            self.node.log_failure(connected, cid, result.as_ref().err().copied(), &places);
        }
        let answer = result.unwrap_or_else(Answer::from);
        self.connection.answer(cid, Answer { has_more: !places.is_empty(), ..answer });
    }

    /// Send as much as the socket takes.
    fn send(&mut self, stream: &TcpStream) -> io::Result<()> {
        while self.connection.unsent_bytes() > 0 {
            let parts: Vec<IoSlice<'_>> =
                self.connection.unsent().take(PARTS_MAX).map(IoSlice::new).collect();
            match stream.try_write_vectored(&parts) {
                Ok(bytes) => self.connection.sent(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        tokio::time::sleep_until(deadline.into()).await;
    }
}
