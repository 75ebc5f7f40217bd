//! The client end of a connection: calls with deadlines. It connects again after the connection has ended.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::Address;
use super::incoming::failure_reason;
use super::outbox::{Items, Lent, Outbox, write_items};
use super::socket::{Reader, Socket, Writer};
use crate::arena::{Arena, Buffer, Mapping};
use crate::messages::{
    DType, Intake, Kind, Limits, Message, PeerMemory, Received, Status, StreamError, Tensor, TensorName,
    read, read_after,
};

/// How long connecting may take, whatever the deadline of the call.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Pause after the first failure to connect; it doubles with each failure.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Bounds of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// How large replies may be.
    pub limits: Limits,
    /// Requests without a reply, abandoned ones included.
    pub in_flight_max: usize,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { limits: Limits::default(), in_flight_max: 1024 }
    }
}

/// Why a call has no reply.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The dense half refused the request or failed.
    #[error("{address}: {reason}")]
    Failed {
        /// Where the dense half is.
        address: Address,
        /// Why, for programs.
        status: Status,
        /// Why, for people.
        reason: String,
    },
    /// No reply came in time.
    #[error(
        "no reply from {address} within {waited:?}: allow more time, or see whether the dense half is overloaded"
    )]
    Deadline {
        /// Where the dense half is.
        address: Address,
        /// How long the call waited.
        waited: Duration,
    },
    /// The connection ended while the request was under way.
    #[error(
        "the connection to {address} ended before the reply ({cause}): the dense half may have stopped; retry"
    )]
    Disconnected {
        /// Where the dense half is.
        address: Address,
        /// How it ended.
        cause: String,
    },
    /// There is no connection.
    #[error("cannot connect to {address}: {cause}; start the dense half, or wait until it is ready")]
    Unreachable {
        /// Where the dense half is.
        address: Address,
        /// Why.
        cause: String,
    },
    /// Too many requests are under way.
    #[error("{in_flight} requests to {address} wait for replies: send fewer at once")]
    Busy {
        /// Where the dense half is.
        address: Address,
        /// How many.
        in_flight: usize,
    },
    /// The reply cannot be used.
    #[error("the reply of {address} cannot be used: {cause}")]
    Spoiled {
        /// Where the dense half is.
        address: Address,
        /// Why.
        cause: String,
    },
}

/// Calls the dense half at one address. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    address: Address,
    program: u64,
    arena: Arena,
    options: ClientOptions,
    requests: AtomicU64,
    state: Arc<tokio::sync::Mutex<State>>,
    /// Why the last attempt to connect failed; `None` after a success.
    failure: Mutex<Option<String>>,
}

/// The connection, or when to try again.
#[derive(Debug, Default)]
struct State {
    live: Option<Connection>,
    pause: Duration,
    retry_at: Option<Instant>,
}

/// Dropping it ends the connection.
#[derive(Debug)]
struct Connection {
    outbox: Outbox,
    shared: Arc<Shared>,
}

/// What calls and the task of the connection share.
#[derive(Debug)]
struct Shared {
    calls: Mutex<Calls>,
    ending: Notify,
    lent: Lent,
}

#[derive(Debug, Default)]
struct Calls {
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    has_ended: bool,
}

/// What a call gets; an error is the end of the connection or a reply that cannot be used.
type Answer = Result<Message, Lost>;

#[derive(Clone, Debug)]
enum Lost {
    Connection(String),
    Reply(String),
}

impl Client {
    /// Where it connects to.
    pub fn address(&self) -> &Address {
        &self.0.address
    }

    /// A client that connects with its first call. Tensors of `arena` are not copied.
    pub fn new(address: Address, program: u64, arena: Arena, options: ClientOptions) -> Self {
        let (requests, state, failure) = (AtomicU64::new(1), Arc::default(), Mutex::default());
        Self(Arc::new(Inner { address, program, arena, options, requests, state, failure }))
    }

    /// Where the tensors of requests should lie.
    pub fn arena(&self) -> &Arena {
        &self.0.arena
    }

    /// Ask the dense half whether it will admit a request of `rows`, and for a place for it. Call it within a runtime.
    ///
    /// # Errors
    /// When the dense half would refuse the request, or no answer comes in time.
    pub async fn reserve(
        &self,
        rows: u32,
        trace: [u8; 16],
        deadline: Instant,
    ) -> Result<Reserved, CallError> {
        let inner = &self.0;
        let id = inner.requests.fetch_add(1, Relaxed);
        let rows = Tensor::new(TensorName::Number(0), DType::UInt8, &[rows.into(), 0], Buffer::default());
        let message = Message { trace, tensors: vec![rows], ..Message::bare(Kind::Reserve, id) };
        // From here on: a call that is given up may have got its place.
        let mut reserved = Reserved { id, outbox: None };
        match inner.ask(message, deadline, |outbox| reserved.outbox = Some(outbox)).await {
            Ok(_) => Ok(reserved),
            Err(error) => {
                if matches!(error, CallError::Failed { .. }) {
                    reserved.used();
                }
                Err(error)
            }
        }
    }

    /// Send `tensors`, and wait for the reply until `deadline`. Call it within a runtime.
    ///
    /// # Errors
    /// When the dense half refuses or fails, or no reply comes in time. A request that got no answer may have run.
    pub async fn call(
        &self,
        tensors: Vec<Tensor>,
        trace: [u8; 16],
        deadline: Instant,
    ) -> Result<Message, CallError> {
        self.call_in(None, tensors, trace, deadline).await
    }

    /// [`Self::call`] for a request that may have a place.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_in(
        &self,
        place: Option<Reserved>,
        tensors: Vec<Tensor>,
        trace: [u8; 16],
        deadline: Instant,
    ) -> Result<Message, CallError> {
        let inner = &self.0;
        let id = place.as_ref().map_or_else(|| inner.requests.fetch_add(1, Relaxed), |place| place.id);
        let message = Message { trace, tensors, ..Message::bare(Kind::Request, id) };
        inner.ask(message, deadline, |_| place.into_iter().for_each(Reserved::used)).await
    }
}

/// A place at the dense half. Dropped without a call, it lets the place go.
#[derive(Debug)]
pub struct Reserved {
    id: u64,
    outbox: Option<Outbox>,
}

impl Reserved {
    fn used(mut self) {
        self.outbox = None;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(outbox) = &self.outbox {
            outbox.put(Message::bare(Kind::Release, self.id), None);
        }
    }
}

impl Inner {
    /// Send a message, and wait for its answer until `deadline`. `sends` is called before the message is sent, with the outbox
    /// of its connection.
    async fn ask(
        self: &Arc<Self>,
        message: Message,
        deadline: Instant,
        sends: impl FnOnce(Outbox),
    ) -> Result<Message, CallError> {
        let begin = Instant::now();
        let ask = async {
            let (answer, outbox) = self.expect(message.id).await?;
            sends(outbox.clone());
            let time_left = deadline.saturating_duration_since(Instant::now());
            outbox.put(Message { program: self.program, time_left, ..message }, None);
            let answer = answer.await.unwrap_or_else(|_| Err(Lost::Connection("it was closed".into())));
            self.judge(answer)
        };
        let address = || self.address.clone();
        tokio::time::timeout_at(deadline.into(), ask)
            .await
            .unwrap_or_else(|_| Err(CallError::Deadline { address: address(), waited: begin.elapsed() }))
    }

    /// Prepare for the answer to request `id`; where to put the request.
    async fn expect(self: &Arc<Self>, id: u64) -> Result<(oneshot::Receiver<Answer>, Outbox), CallError> {
        let mut state = match (Arc::clone(&self.state).try_lock_owned(), self.failure()) {
            (Ok(state), _) => state,
            // Another call tries to connect, after a failure.
            (Err(_), Some(cause)) => return Err(self.unreachable(cause)),
            (Err(_), None) => Arc::clone(&self.state).lock_owned().await,
        };
        let is_live = |connection: &Connection| !connection.shared.calls.lock().has_ended;
        if !state.live.as_ref().is_some_and(is_live) {
            // In a task: the attempt goes on when the deadline of this call has passed, so that later calls fail at once.
            let inner = Arc::clone(self);
            let connecting = tokio::spawn(async move {
                inner.reconnect(&mut state).await;
                state
            });
            state = connecting.await.map_err(|error| self.unreachable(error.to_string()))?;
        }
        let Some(connection) = &state.live else {
            return Err(self.unreachable(self.failure().unwrap_or_default()));
        };
        let mut calls = connection.shared.calls.lock();
        let in_flight = calls.waiting.len();
        if in_flight >= self.options.in_flight_max {
            // A peer that answers none of them while every caller has given up is not alive.
            if calls.waiting.values().all(oneshot::Sender::is_closed) {
                connection.shared.ending.notify_one();
            }
            return Err(CallError::Busy { address: self.address.clone(), in_flight });
        }
        let (sender, receiver) = oneshot::channel();
        if !calls.has_ended {
            calls.waiting.insert(id, sender);
        }
        Ok((receiver, connection.outbox.clone()))
    }

    /// Connect, unless the last attempt failed just now.
    async fn reconnect(&self, state: &mut State) {
        state.live = None;
        if state.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        let connected = tokio::time::timeout(CONNECT_WAIT, self.connect()).await;
        match connected.unwrap_or_else(|_| Err(format!("no answer within {CONNECT_WAIT:?}"))) {
            Ok(connection) => {
                *state = State { live: Some(connection), ..State::default() };
                *self.failure.lock() = None;
            }
            Err(cause) => {
                state.pause = (state.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                state.retry_at = Some(Instant::now() + state.pause);
                *self.failure.lock() = Some(cause);
            }
        }
    }

    fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    async fn connect(&self) -> Result<Connection, String> {
        let mut socket = Socket::connect(&self.address).await.map_err(|error| error.to_string())?;
        let shares_memory = socket.shares_memory();
        socket.send_hello(self.program, &self.arena).await.map_err(|error| error.to_string())?;
        let (hello, memory) = socket.receive_first().await.map_err(|error| error.to_string())?;
        let (mut reader, writer) = socket.split();
        let intake = Intake::new(self.arena.clone(), self.options.limits);
        match hello.kind {
            Kind::Hello if hello.program == self.program => {}
            Kind::Failure => {
                let refusal =
                    read_after(hello, &mut reader, &intake).await.map_err(|error| error.to_string())?;
                return Err(match refusal {
                    Received::Message(message) => failure_reason(&message),
                    _ => "refused".into(),
                });
            }
            _ => {
                return Err(format!(
                    "the peer begins with a {:?} of program {:016x}",
                    hello.kind, hello.program
                ));
            }
        }
        let (outbox, items) = Outbox::new();
        let shared =
            Arc::new(Shared { calls: Mutex::default(), ending: Notify::new(), lent: Lent::default() });
        let task = Task {
            reader,
            writer,
            items,
            lends: shares_memory.then(|| self.arena.clone()),
            intake: with_peer(intake, memory, &outbox),
            shared: Arc::clone(&shared),
        };
        tokio::spawn(task.run());
        Ok(Connection { outbox, shared })
    }

    fn judge(&self, answer: Answer) -> Result<Message, CallError> {
        let address = || self.address.clone();
        match answer {
            Ok(message) if message.kind == Kind::Failure => {
                let (status, reason) = (message.status, failure_reason(&message));
                Err(CallError::Failed { address: address(), status, reason })
            }
            Ok(message) => Ok(message),
            Err(Lost::Connection(cause)) => Err(CallError::Disconnected { address: address(), cause }),
            Err(Lost::Reply(cause)) => Err(CallError::Spoiled { address: address(), cause }),
        }
    }

    fn unreachable(&self, cause: String) -> CallError {
        CallError::Unreachable { address: self.address.clone(), cause }
    }
}

fn with_peer(mut intake: Intake, memory: Option<Arc<Mapping>>, outbox: &Outbox) -> Intake {
    intake.peer = memory.map(|memory| PeerMemory { memory, lender: Arc::new(outbox.clone()) });
    intake
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.ending.notify_one();
    }
}

/// Reads and writes one connection until it ends.
struct Task {
    reader: Reader,
    writer: Writer,
    items: Items,
    /// The arena that the peer has mapped.
    lends: Option<Arena>,
    intake: Intake,
    shared: Arc<Shared>,
}

impl Task {
    async fn run(mut self) {
        let Shared { calls, ending, lent } = &*self.shared;
        let cause = tokio::select! {
            result = receive(&mut self.reader, &self.intake, &self.shared) => match result {
                Ok(()) => "the peer closed it".into(),
                Err(error) => error.to_string(),
            },
            result = write_items(&mut self.items, &mut self.writer, self.lends.as_ref(), lent) => match result {
                Ok(()) => "it was closed".into(),
                Err(error) => error.to_string(),
            },
            () = ending.notified() => "the peer answers none of many requests, or the client was dropped".into(),
        };
        let waiting = {
            let mut calls = calls.lock();
            calls.has_ended = true;
            std::mem::take(&mut calls.waiting)
        };
        for caller in waiting.into_values() {
            // A caller that has given up is not there any more.
            let _ = caller.send(Err(Lost::Connection(cause.clone())));
        }
        lent.clear();
    }
}

async fn receive(reader: &mut Reader, intake: &Intake, shared: &Shared) -> Result<(), StreamError> {
    let answer = |id: u64, answer: Answer| {
        if let Some(caller) = shared.calls.lock().waiting.remove(&id) {
            // As above.
            let _ = caller.send(answer);
        }
    };
    loop {
        match read(reader, intake).await? {
            Received::Message(message) => match message.kind {
                Kind::Reply | Kind::Failure => answer(message.id, Ok(message)),
                Kind::Release => shared.lent.give_back(message.id),
                kind @ (Kind::Hello | Kind::Request | Kind::Reserve) => {
                    let text = format!("the peer sent a {kind:?}");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text).into());
                }
            },
            Received::Spoiled { header, cause } => answer(header.id, Err(Lost::Reply(cause.to_string()))),
            Received::End => return Ok(()),
        }
    }
}
