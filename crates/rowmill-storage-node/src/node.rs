//! A storage node: its subsystems, the connections of hosts, and the memory that they share.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use rowmill_nvme::{
    Answer, Connected, Endpoint, ErrorPlace, Nqn, Outcome, Page, Port, PortEvent, Refusal, Request, Status,
    Subsystem,
};
use rowmill_server::Drain;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;

use crate::counters::Count;
use crate::export::{Export, Served};
use crate::fault::Fault;
use crate::rows::{PoolingThreads, Rows};
use crate::session::{self, Reply};
use crate::{NodeError, wire_memory};

/// The number of the namespace of each subsystem.
pub const NAMESPACE: u32 = 1;
/// How often silent hosts and checkpoints that are due are looked for: the unit of keep-alive times.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);
/// Most commands at a time that wait for the disk.
const DISK_COMMANDS_MAX: usize = 32;
/// One permit of the memory for answers.
pub(crate) const PERMIT_BYTES: usize = 4096;

/// Why a connection must end, or what must be answered on it.
#[derive(Debug)]
pub(crate) enum Control {
    Answer { cid: u16, answer: Answer },
    Close,
}

/// A storage node: subsystems with one namespace each.
#[derive(Debug)]
pub struct Node {
    port: Mutex<Port>,
    /// In the order of the port's subsystems.
    served: Vec<Served>,
    /// Sessions by controller and queue.
    sessions: Mutex<HashMap<(u16, u16), UnboundedSender<Control>>>,
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) connections_max: usize,
    /// Memory for data of commands, in bytes.
    pub(crate) commands: Arc<Semaphore>,
    pub(crate) answers: Arc<Semaphore>,
    pub(crate) disk: Semaphore,
    pub(crate) stall_time: Duration,
    random: SystemRandom,
}

impl Node {
    /// A node that serves `exports` within `wire_memory` bytes. Discovery tells hosts that it listens at `address`.
    ///
    /// # Errors
    ///
    /// See [`NodeError`].
    ///
    /// # Panics
    ///
    /// If `wire_memory` is below 32 MiB, or there are no `pooling_threads`.
    pub fn open(
        exports: Vec<Export<'_>>,
        address: SocketAddr,
        wire_memory: u64,
        pooling_threads: usize,
    ) -> Result<Node, NodeError> {
        assert!(wire_memory >= wire_memory::BYTES_MIN, "wire_memory is {wire_memory}");
        assert!(pooling_threads > 0, "rows are pooled by threads");
        let threads = Arc::new(PoolingThreads::start(pooling_threads).map_err(NodeError::Threads)?);
        let open = |export| Served::open(export, &threads);
        let served = exports.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let connections_max = wire_memory::connections_max(wire_memory);
        let endpoint = Endpoint { address: address.ip(), port: address.port() };
        let subsystems = served.iter().map(|served| Subsystem::clone(&served.subsystem())).collect();
        Ok(Node {
            port: Mutex::new(Port::new(endpoint, subsystems, connections_max)),
            served,
            sessions: Mutex::default(),
            connections: Arc::new(Semaphore::new(connections_max)),
            connections_max,
            commands: Arc::new(Semaphore::new(wire_memory::command_bytes_max(wire_memory))),
            answers: Arc::new(Semaphore::new(wire_memory::answer_bytes_max(wire_memory) / PERMIT_BYTES)),
            disk: Semaphore::new(DISK_COMMANDS_MAX),
            stall_time: wire_memory::STALL_TIME,
            random: SystemRandom::new(),
        })
    }

    /// The same node, where a connection ends if its host must send data or take answers, and moves no byte for this time.
    /// By default that is 30 s.
    #[must_use]
    pub fn with_stall_time(self, stall_time: Duration) -> Node {
        Node { stall_time, ..self }
    }

    /// The names of the subsystems, which hosts connect to, in the order of the exports.
    pub fn names(&self) -> impl Iterator<Item = &Nqn> {
        self.served.iter().map(|served| &served.name)
    }

    fn all_rows(&self) -> impl Iterator<Item = &Rows> {
        self.served.iter().filter_map(Served::rows)
    }

    pub(crate) fn served(&self) -> &[Served] {
        &self.served
    }

    /// Serve hosts until the drain starts. Then connections are closed.
    pub async fn serve(self: Arc<Node>, listener: TcpListener, drain: Drain) {
        let mut hold = drain.hold();
        let mut expire = tokio::time::interval(EXPIRE_EVERY);
        loop {
            tokio::select! {
                () = hold.draining() => {
                    Arc::clone(&self).save().await;
                    return;
                }
                _ = expire.tick() => {
                    self.port.lock().expire(Instant::now());
                    self.all_rows().for_each(|rows| rows.expire(Instant::now()));
                    if self.all_rows().any(Rows::is_save_due) {
                        tokio::spawn(Arc::clone(&self).save());
                    }
                    self.deliver();
                }
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() else {
                            tracing::warn!(%peer, "too many connections: this one is closed");
                            continue;
                        };
                        tokio::spawn(session::run(Arc::clone(&self), stream, drain.hold(), permit));
                    }
                    // Such as no free descriptors: other connections may end meanwhile.
                    Err(error) => {
                        tracing::error!(%error, "cannot accept a connection");
                        tokio::time::sleep(EXPIRE_EVERY).await;
                    }
                },
            }
        }
    }

    /// Make checkpoints of all namespaces that have new frames.
    async fn save(self: Arc<Node>) {
        let saving = tokio::task::spawn_blocking(move || self.all_rows().for_each(Rows::save));
        if let Err(error) = saving.await {
            tracing::error!(%error, "the checkpoint of a namespace failed");
        }
    }

    pub(crate) fn connect(
        &self,
        request: &Request,
        control: &UnboundedSender<Control>,
    ) -> Result<Connected, Refusal> {
        let mut seed = [0; 32];
        self.random.fill(&mut seed).map_err(|_| Status::INTERNAL_ERROR)?;
        // An event that concerns the queue comes only after its session is known.
        let mut port = self.port.lock();
        let connected = port.connect(Instant::now(), request, seed)?;
        self.sessions.lock().insert((connected.controller, connected.queue), control.clone());
        Ok(connected)
    }

    /// Execute a command of an admin queue; `None`, if it is answered by [`Control::Answer`].
    pub(crate) fn admin(&self, connected: &Connected, request: &Request) -> Option<Answer> {
        let outcome = self.port.lock().admin(Instant::now(), connected.controller, request);
        self.deliver();
        match outcome {
            Outcome::Answer(answer) => Some(answer),
            Outcome::Held => None,
            Outcome::Page(wanted) => Some(match (wanted.page, self.served_to(connected)) {
                (Page::Health, Some(served)) => {
                    wanted.answer(&served.counters.health(Instant::now()).to_bytes())
                }
                (Page::Tables { .. }, Some(served)) if let Some(rows) = served.rows() => {
                    wanted.answer(&rows.tables().page())
                }
                _ => Status::INVALID_NAMESPACE.into(),
            }),
        }
    }

    /// Execute a command of an I/O queue, other than stage and fetch. It may wait for the disk.
    pub(crate) fn io(&self, connected: &Connected, request: &Request) -> Result<Answer, Fault> {
        // Discovery has no I/O queues.
        let index = connected.subsystem.ok_or(Status::INVALID_OPCODE)?;
        let result = self.served[index].io(connected, request);
        if let Some(namespace) = self.served[index].changed_namespace() {
            self.port.lock().put_namespace(index, namespace);
            self.deliver();
        }
        result
    }

    /// Accept a stage command.
    pub(crate) fn stage(&self, connected: &Connected, request: &Request) -> Answer {
        self.served_to(connected)
            .map_or(Status::INVALID_OPCODE.into(), |served| served.stage(connected, request))
    }

    /// Answer a fetch command, now or when its result is ready.
    pub(crate) fn fetch(&self, connected: &Connected, request: &Request, reply: Reply) {
        match self.served_to(connected) {
            Some(served) => served.fetch(connected, request, reply),
            None => reply.answer(Status::INVALID_OPCODE.into()),
        }
    }

    /// A command has failed, or has an answer with damaged vectors. The error log says where.
    pub(crate) fn log_failure(
        &self,
        connected: &Connected,
        cid: u16,
        status: Option<Status>,
        places: &[ErrorPlace],
    ) {
        let logged = status.unwrap_or(Status::UNRECOVERED_READ_ERROR);
        let mut port = self.port.lock();
        for place in places {
            port.record_error(connected.controller, connected.queue, cid, logged, *place);
        }
        drop(port);
        if let Some(served) = self.served_to(connected) {
            served.counters.add(Count::Errors, 1);
        }
    }

    /// What the subsystem of a queue serves; none for discovery.
    fn served_to(&self, connected: &Connected) -> Option<&Served> {
        connected.subsystem.map(|index| &self.served[index])
    }

    /// The connection of a queue has ended.
    pub(crate) fn release(&self, connected: &Connected, control: &UnboundedSender<Control>) {
        let name = (connected.controller, connected.queue);
        let mut port = self.port.lock();
        let mut sessions = self.sessions.lock();
        // After a reset, a host may have connected the queue again before this connection ended.
        if sessions.get(&name).is_some_and(|session| session.same_channel(control)) {
            sessions.remove(&name);
            port.release(connected.controller, connected.queue);
        }
        drop((port, sessions));
        self.deliver();
    }

    /// Pass events of the port to the sessions that they concern.
    fn deliver(&self) {
        let events: Vec<PortEvent> = {
            let mut port = self.port.lock();
            std::iter::from_fn(|| port.poll()).collect()
        };
        for event in events {
            let (of, from_queue) = match event {
                PortEvent::Answer { controller, cid, answer } => {
                    if let Some(session) = self.sessions.lock().get(&(controller, 0)) {
                        // A session that has ended needs no answer.
                        let _ = session.send(Control::Answer { cid, answer });
                    }
                    continue;
                }
                // Writes become durable at a flush, which hosts send before they leave.
                PortEvent::Shutdown { .. } => continue,
                PortEvent::Reset { controller } => (controller, 1),
                PortEvent::Gone { controller } => (controller, 0),
            };
            self.all_rows().for_each(|rows| rows.remove(of));
            for ((controller, queue), session) in self.sessions.lock().iter() {
                if *controller == of && *queue >= from_queue {
                    let _ = session.send(Control::Close);
                }
            }
        }
    }
}
