use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use rowmill_io::Volume;
use rowmill_nvme::{
    Answer, Connected, Content, Endpoint, Hosts, IoCommand, Namespace, Nqn, Outcome, Page, Port, PortEvent,
    Refusal, Request, Status, Subsystem,
};
use rowmill_server::Drain;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;

use crate::counters::Counters;
use crate::session;
use crate::{BLOCK_SHIFT, Blocks, Identity, IdentityError};

/// The number of the namespace of blocks.
pub const NAMESPACE: u32 = 1;
/// The device of the blocks, in the folder of the node.
const DEVICE: &str = "blocks";
/// How often silent hosts are looked for: the unit of keep-alive times.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);
/// Most commands at a time that wait for the disk.
const DISK_COMMANDS_MAX: usize = 32;
/// One permit of the memory for answers.
pub(crate) const PERMIT_BYTES: usize = 4096;

/// What a node serves, and its limits.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Size of the namespace, in blocks of 4 KiB.
    pub blocks: u64,
    /// The hosts that may connect.
    pub hosts: Hosts,
    /// Most connections at a time. Each queue of a host is one, and may hold 4 MiB of commands and unsent answers.
    pub connections_max: usize,
    /// Bytes of answers that may be in memory, of all connections: at least 512 KiB.
    pub answer_bytes_max: usize,
}

/// Why a connection must end, or what must be answered on it.
#[derive(Debug)]
pub(crate) enum Control {
    Answer { cid: u16, answer: Answer },
    Close,
}

/// A storage node with one namespace of blocks.
#[derive(Debug)]
pub struct Node {
    port: Mutex<Port>,
    subsystem: Subsystem,
    blocks: Blocks,
    /// Sessions by controller and queue.
    sessions: Mutex<HashMap<(u16, u16), UnboundedSender<Control>>>,
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) answers: Arc<Semaphore>,
    pub(crate) disk: Semaphore,
    random: SystemRandom,
    counters: Counters,
}

impl Node {
    /// A node over a folder. Discovery tells hosts that it listens at `address`.
    ///
    /// # Errors
    ///
    /// When the folder cannot be opened or its identity is damaged.
    ///
    /// # Panics
    ///
    /// If `answer_bytes_max` has no room for one answer.
    pub fn open(
        volume: &dyn Volume,
        address: SocketAddr,
        settings: NodeSettings,
    ) -> Result<Node, IdentityError> {
        let permits = settings.answer_bytes_max / PERMIT_BYTES;
        assert!(
            permits * PERMIT_BYTES >= rowmill_nvme::TRANSFER_BYTES_MAX,
            "answer_bytes_max must allow an answer"
        );
        let identity = Identity::load(volume)?;
        let subsystem = Subsystem {
            name: Nqn::from_uuid(identity.subsystem),
            serial: identity.subsystem.map(|byte| format!("{byte:02x}"))[..10].concat(),
            firmware: env!("CARGO_PKG_VERSION").into(),
            namespaces: vec![Namespace {
                number: NAMESPACE,
                content: Content::Blocks,
                guid: identity.namespace,
                blocks: settings.blocks,
                block_shift: BLOCK_SHIFT,
                is_write_protected: false,
                is_zero_after_deallocate: true,
            }],
            hosts: settings.hosts,
            key: None,
            area: None,
            io_queues_max: 128,
            io_queue_entries_max: 128,
        };
        let endpoint = Endpoint { address: address.ip(), port: address.port() };
        Ok(Node {
            port: Mutex::new(Port::new(endpoint, vec![subsystem.clone()], settings.connections_max)),
            subsystem,
            blocks: Blocks::new(volume.device(DEVICE, true)?),
            sessions: Mutex::default(),
            connections: Arc::new(Semaphore::new(settings.connections_max)),
            answers: Arc::new(Semaphore::new(permits)),
            disk: Semaphore::new(DISK_COMMANDS_MAX),
            random: SystemRandom::new(),
            counters: Counters::new(Instant::now()),
        })
    }

    /// The name of the subsystem, which hosts connect to.
    pub fn name(&self) -> &Nqn {
        &self.subsystem.name
    }

    /// Serve hosts until the drain starts. Then connections are closed.
    pub async fn serve(self: Arc<Node>, listener: TcpListener, drain: Drain) {
        let mut hold = drain.hold();
        let mut expire = tokio::time::interval(EXPIRE_EVERY);
        loop {
            tokio::select! {
                () = hold.draining() => return,
                _ = expire.tick() => {
                    self.port.lock().expire(Instant::now());
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

    /// Execute a command of an admin queue; `None`, if it is answered later.
    pub(crate) fn admin(&self, controller: u16, request: &Request) -> Option<Answer> {
        let outcome = self.port.lock().admin(Instant::now(), controller, request);
        self.deliver();
        match outcome {
            Outcome::Answer(answer) => Some(answer),
            Outcome::Held => None,
            Outcome::Page(wanted) => Some(match wanted.page {
                Page::Health => wanted.answer(&self.counters.health(Instant::now()).to_bytes()),
                Page::Tables { .. } => Status::INVALID_NAMESPACE.into(),
            }),
        }
    }

    /// Execute a command of an I/O queue. It may wait for the disk.
    pub(crate) fn io(&self, connected: &Connected, request: &Request) -> Answer {
        let command = match IoCommand::parse(request, &self.subsystem, connected.role) {
            Ok(command) => command,
            Err(status) => return status.into(),
        };
        let result = match command {
            IoCommand::Read { blocks, .. } => {
                self.counters.read(request.answer_bytes as u64);
                self.blocks.read(blocks).map(Answer::data)
            }
            IoCommand::Write { blocks, data, is_durable, .. } => {
                self.counters.wrote(data.len() as u64);
                self.blocks.write(blocks.first, data, is_durable).map(|()| Answer::success())
            }
            IoCommand::Flush { .. } => self.blocks.flush().map(|()| Answer::success()),
            IoCommand::Deallocate { ranges, .. } => {
                self.blocks.deallocate(&ranges).map(|()| Answer::success())
            }
            IoCommand::Hint => Ok(Answer::success()),
            // The subsystem has no rows, so these are not parsed.
            IoCommand::Stage { .. } | IoCommand::Fetch { .. } | IoCommand::Apply { .. } => {
                Err(Status::INVALID_OPCODE)
            }
        };
        result.unwrap_or_else(Answer::from)
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
            for ((controller, queue), session) in self.sessions.lock().iter() {
                if *controller == of && *queue >= from_queue {
                    let _ = session.send(Control::Close);
                }
            }
        }
    }
}
