//! The server end: accepts connections and passes on their requests.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_server::{Drain, Exposure, ListenError, bind_tcp, bind_unix};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use super::incoming::failure_text;
use super::outbox::{Lent, Outbox, write_items};
use super::socket::{Reader, Socket};
use super::{Address, Answers, Incoming, Replier};
use crate::Failure;
use crate::arena::{Arena, Mapping};
use crate::messages::{
    Intake, Kind, Limits, Message, PeerMemory, Received, SpoiledCause, Status, StreamError, read_after,
    read_header,
};

/// How long a new connection may take to introduce itself.
const HELLO_WAIT: Duration = Duration::from_secs(5);
/// Pause after the system refused a connection, for example because too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Why a request is refused while the process drains.
const ENDING: &str = "the dense half is about to end: send the request to another one";

/// A socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// Of `tcp://`.
    Tcp(TcpListener),
    /// Of `shm://`, with the path of the socket.
    Shm(UnixListener, PathBuf),
}

impl Listener {
    /// Listen at `address`.
    ///
    /// # Errors
    /// When the address is in use, or more exposed than `exposure` allows.
    pub async fn bind(address: &Address, exposure: Exposure) -> Result<Self, ListenError> {
        match address {
            Address::Tcp(address) => bind_tcp(address, exposure).map(Self::Tcp),
            Address::Shm(path) => Ok(Self::Shm(bind_unix(path).await?, path.clone())),
        }
    }

    /// The address to connect to; a port 0 has become the port that the system chose.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Self::Shm(_, path) => Ok(Address::Shm(path.clone())),
        }
    }

    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => listener.accept().await.and_then(|(stream, _)| Socket::tcp(stream)),
            Self::Shm(listener, _) => listener.accept().await.map(|(stream, _)| Socket::Shm(stream)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Shm(_, path) = self {
            // A socket that stays behind is replaced by the next listener.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What a dense half serves, and its bounds.
#[derive(Clone, Debug)]
pub struct Serving {
    /// The programs; a connection is for one of them.
    pub programs: Vec<u64>,
    /// Where requests go, and where replies should come from.
    pub arena: Arena,
    /// How large requests may be.
    pub limits: Limits,
    /// Connections at once; more wait in the listener.
    pub connections_max: usize,
    /// Requests of one connection that wait for a reply; with more its socket is not read.
    pub in_flight_max: usize,
}

/// Accept connections and let `handler` answer each request, until `drain` starts. Connections stay open after that:
/// they send the replies of open requests, and refuse new ones.
pub async fn serve(listener: Listener, serving: Serving, drain: Drain, handler: impl Answers) {
    let handler = Arc::new(handler);
    let connections = Arc::new(Semaphore::new(serving.connections_max));
    let mut accepting = drain.hold();
    let accept = async {
        loop {
            let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
            match listener.accept().await {
                Ok(socket) => {
                    let (serving, drain, handler) = (serving.clone(), drain.clone(), Arc::clone(&handler));
                    tokio::spawn(async move {
                        if let Err(error) = serve_connection(socket, &serving, &drain, &*handler).await {
                            tracing::warn!(%error, "a connection ended");
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = accepting.draining() => {}
    }
}

async fn serve_connection(
    mut socket: Socket,
    serving: &Serving,
    drain: &Drain,
    handler: &impl Answers,
) -> Result<(), StreamError> {
    let (outbox, mut items) = Outbox::new();
    let lent = Lent::default();
    let shared = socket.shares_memory().then_some(&serving.arena);
    let hello = tokio::time::timeout(HELLO_WAIT, socket.receive_first()).await;
    let (hello, memory) = hello.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    if hello.kind != Kind::Hello {
        return Err(unexpected("first message", hello.kind));
    }
    if !serving.programs.contains(&hello.program) {
        let text = format!(
            "the CPU half has program {:016x}, this dense half has {:016x?}: start both with one bundle",
            hello.program, serving.programs
        );
        outbox.put(failure(hello.id, Status::UnknownProgram, &text), None);
        drop(outbox);
        let (_, mut writer) = socket.split();
        return Ok(write_items(&mut items, &mut writer, None, &lent).await?);
    }
    socket.send_hello(hello.program, &serving.arena).await?;
    let (mut reader, mut writer) = socket.split();
    // Either half ends the connection. Memory lent to the peer returns when `lent` is dropped.
    tokio::select! {
        result = receive(&mut reader, serving, (hello.program, memory), &outbox, &lent, drain, handler) => result,
        result = write_items(&mut items, &mut writer, shared, &lent) => Ok(result?),
    }
}

async fn receive<A: Answers>(
    reader: &mut Reader,
    serving: &Serving,
    (expected, memory): (u64, Option<Arc<Mapping>>),
    outbox: &Outbox,
    lent: &Lent,
    drain: &Drain,
    handler: &A,
) -> Result<(), StreamError> {
    let mut intake = Intake::new(serving.arena.clone(), serving.limits);
    intake.peer = memory.map(|memory| PeerMemory { memory, lender: Arc::new(outbox.clone()) });
    let in_flight = Arc::new(Semaphore::new(serving.in_flight_max));
    let mut places: HashMap<u64, A::Place> = HashMap::new();
    loop {
        // Not reading is what slows a sender down that has too many requests in flight.
        let Ok(permit) = Arc::clone(&in_flight).acquire_owned().await else { return Ok(()) };
        let Some(header) = read_header(reader, &intake.limits).await? else { return Ok(()) };
        // The time that its sender waits runs while the rest is read.
        let begun = Instant::now();
        match read_after(header, reader, &intake).await? {
            Received::Message(request) if request.kind == Kind::Request => {
                let (id, trace, program) = (request.id, request.trace, request.program);
                let hold = Some(Box::new((drain.hold(), permit)) as _);
                let replier = Replier { id, trace, program, outbox: outbox.clone(), hold };
                let deadline = begun + request.time_left;
                let place = places.remove(&id);
                if drain.has_started() {
                    replier.fail(Status::Draining, ENDING);
                } else if program == expected {
                    handler.answer(Incoming { request, deadline, replier }, place);
                } else {
                    replier.fail(
                        Status::UnknownProgram,
                        "the request is for another program than its connection",
                    );
                }
            }
            Received::Message(request) if request.kind == Kind::Reserve => {
                let deadline = begun + request.time_left;
                let admitted = if drain.has_started() {
                    Err(Failure::new(Status::Draining, ENDING))
                } else if places.len() >= serving.in_flight_max {
                    let text = format!("{} places are reserved: send requests or release some", places.len());
                    Err(Failure::new(Status::Full, text))
                } else {
                    handler.reserve(expected, rows_of(&request), deadline)
                };
                let answer = match admitted {
                    Ok(place) => {
                        places.insert(request.id, place);
                        Message::bare(Kind::Reply, request.id)
                    }
                    Err(refused) => failure(request.id, refused.status, &refused.text),
                };
                outbox.put(answer, None);
            }
            Received::Message(message) if message.kind == Kind::Release => {
                places.remove(&message.id);
                lent.give_back(message.id);
            }
            Received::Message(message) => return Err(unexpected("message", message.kind)),
            Received::Spoiled { header, cause } if header.kind == Kind::Request => {
                let status = match cause {
                    SpoiledCause::Message(_) => Status::Invalid,
                    SpoiledCause::Arena(_) => Status::Full,
                };
                places.remove(&header.id);
                outbox.put(failure(header.id, status, &cause.to_string()), None);
            }
            Received::Spoiled { header, .. } => return Err(unexpected("message", header.kind)),
            Received::End => return Ok(()),
        }
    }
}

/// Rows that a reservation is for: its one tensor has as many, all of them empty.
fn rows_of(reservation: &Message) -> u32 {
    let rows = reservation.tensors.first().and_then(|tensor| tensor.shape.first()).copied().unwrap_or(1);
    u32::try_from(rows).unwrap_or(u32::MAX)
}

fn failure(id: u64, status: Status, text: &str) -> Message {
    Message { status, tensors: vec![failure_text(text)], ..Message::bare(Kind::Failure, id) }
}

fn unexpected(what: &str, kind: Kind) -> StreamError {
    io::Error::new(io::ErrorKind::InvalidData, format!("the peer's {what} is a {kind:?}")).into()
}
