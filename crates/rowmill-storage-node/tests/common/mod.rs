//! A node on loopback, and a host on blocking sockets: the machine of `rowmill-nvme`.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses a part")]

pub mod killing_proxy;
pub mod tables;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_io::{BLOCK_BYTES, Volume};
use rowmill_nvme::*;
use rowmill_server::{Exposure, Server, bind_tcp};
use rowmill_storage_node::{Export, ExportContent, NAMESPACE, Node};

/// No test waits longer for a byte.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Room for 768 connections.
pub const WIRE_MEMORY: u64 = 96 << 20;

/// A node on a free port of loopback.
pub struct Served {
    pub node: Arc<Node>,
    pub address: SocketAddr,
    pub server: Option<Server>,
}

pub fn serve(volume: &dyn Volume, content: ExportContent, hosts: Hosts) -> Served {
    let export = Export { volume, content, hosts, key: None };
    serve_with(export, WIRE_MEMORY, Duration::from_secs(30))
}

pub fn serve_with(export: Export<'_>, wire_memory: u64, stall_time: Duration) -> Served {
    let server = Server::start(2).unwrap();
    let listener = {
        let _inside = server.handle().enter();
        bind_tcp("127.0.0.1:0", Exposure::Loopback).unwrap()
    };
    let address = listener.local_addr().unwrap();
    let node = Node::open(vec![export], address, wire_memory, 2).unwrap().with_stall_time(stall_time);
    let node = Arc::new(node);
    server.handle().spawn(Arc::clone(&node).serve(listener, server.drain().clone()));
    Served { node, address, server: Some(server) }
}

impl Served {
    pub fn name(&self) -> &Nqn {
        self.node.names().next().unwrap()
    }

    /// End the node as SIGTERM does.
    pub fn end(mut self) {
        let server = self.server.take().unwrap();
        server.drain().start();
        server.run(PATIENCE).unwrap();
    }
}

/// One queue of a host, on a blocking socket.
pub struct Queue {
    pub stream: TcpStream,
    pub host: HostConnection,
    /// All that was sent.
    pub sent: Vec<u8>,
}

impl Queue {
    pub fn try_open(address: SocketAddr, digests: Digests) -> Option<Queue> {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let limits = HostLimits {
            digests,
            commands_max: 32,
            capsule_data_bytes: CAPSULE_DATA_BYTES,
            setup_time: PATIENCE,
        };
        let mut queue = Queue { stream, host: HostConnection::new(Instant::now(), limits), sent: Vec::new() };
        assert_eq!(queue.try_event()?, HostEvent::Initialized);
        Some(queue)
    }

    /// The next event. Panics if the node closes the connection.
    pub fn event(&mut self) -> HostEvent {
        self.try_event().expect("the connection is open")
    }

    pub fn try_event(&mut self) -> Option<HostEvent> {
        let mut buffer = vec![0; 100_000];
        loop {
            let unsent = self.take_unsent();
            self.stream.write_all(&unsent).ok()?;
            self.sent.extend(unsent);
            if let Some(event) = self.host.poll() {
                return Some(event);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(bytes) => self.host.receive(&buffer[..bytes]),
            }
        }
    }

    /// The bytes to send next, which count as sent.
    pub fn take_unsent(&mut self) -> Vec<u8> {
        let unsent: Vec<u8> = self.host.unsent().flatten().copied().collect();
        self.host.sent(unsent.len());
        unsent
    }

    /// Send one command of a set-up. `None`, if the node ends the connection.
    fn send(
        &mut self,
        command: Command,
        exchange: Exchange,
    ) -> Result<(Completion, Vec<u8>), Option<SetupError>> {
        self.host.submit(command, exchange).unwrap();
        match self.try_event() {
            Some(HostEvent::Completed { completion, data, .. }) => Ok((completion, data)),
            _ => Err(None),
        }
    }

    /// Make the controller of this admin queue ready.
    fn make_ready(&mut self, setup: &mut Setup) -> Result<Box<Ready>, Option<SetupError>> {
        let mut step = setup.start();
        loop {
            match step {
                SetupStep::Send { command, exchange, .. } => {
                    let (completion, data) = self.send(command, exchange)?;
                    step = setup.next(Instant::now(), &completion, &data, true)?;
                }
                SetupStep::Ready(ready) => return Ok(ready),
            }
        }
    }

    /// Connect this I/O queue.
    fn connect_io(&mut self, setup: &Setup, ready: &Ready, queue: u16) -> Result<(), Option<SetupError>> {
        let SetupStep::Send { command, exchange, .. } = setup.connect_io(ready, queue, 32) else { panic!() };
        let (completion, _) = self.send(command, exchange)?;
        assert_eq!(completion.status(), Status::SUCCESS);
        let Some(mut auth) = setup.authenticate(&completion, [1; 32])? else { return Ok(()) };
        let mut next = Some(auth.start());
        while let Some((command, exchange)) = next {
            let (_, data) = self.send(command, exchange)?;
            next = auth.next(&data).map_err(SetupError::from)?;
        }
        Ok(())
    }

    pub fn completed(&mut self) -> (Completion, Vec<u8>) {
        match self.event() {
            HostEvent::Completed { completion, data, is_intact: true } => (completion, data),
            other => panic!("{other:?}"),
        }
    }

    pub fn call(&mut self, command: Command, exchange: Exchange) -> (Status, Vec<u8>) {
        self.host.submit(command, exchange).unwrap();
        let (completion, data) = self.completed();
        (completion.status(), data)
    }

    pub fn write(&mut self, first: u64, content: Vec<u8>, is_durable: bool) -> Status {
        let count = (content.len() / BLOCK_BYTES) as u64;
        let command = commands::write(NAMESPACE, BlockRange { first, count }, is_durable);
        self.call(command, Exchange::Send(content)).0
    }

    pub fn read(&mut self, first: u64, count: u64) -> (Status, Vec<u8>) {
        let command = commands::read(NAMESPACE, BlockRange { first, count });
        self.call(command, Exchange::Receive(count as usize * BLOCK_BYTES))
    }
}

/// A host without keys.
pub fn host() -> HostIdentity {
    HostIdentity { name: Nqn::from_uuid([7; 16]), id: [7; 16], key: None, controller_key: None }
}

/// An admin queue and one I/O queue.
pub fn connect(served: &Served, digests: Digests) -> (Queue, Queue) {
    let (admin, io, _) = connect_as(served, host(), digests).expect("the node accepts the connections");
    (admin, io)
}

/// As [`connect`], for a host of any kind.
///
/// # Errors
///
/// Why the node refuses the host; none, if it ends a connection.
pub fn connect_as(
    served: &Served,
    host: HostIdentity,
    digests: Digests,
) -> Result<(Queue, Queue, Box<Ready>), Option<SetupError>> {
    let mut setup = Setup::new(host, served.name().clone(), 60_000, 1, [0; 32]);
    let mut admin = Queue::try_open(served.address, digests).ok_or(None)?;
    let ready = admin.make_ready(&mut setup)?;
    assert_eq!(ready.namespaces, [NAMESPACE]);
    let mut io = Queue::try_open(served.address, digests).ok_or(None)?;
    io.connect_io(&setup, &ready, 1)?;
    Ok((admin, io, ready))
}

/// The admin queue of a host without keys, and its I/O queues.
pub fn connect_queues(
    address: SocketAddr,
    name: &Nqn,
    host: u8,
    queues: u16,
    digests: Digests,
) -> Vec<Queue> {
    let identity = HostIdentity { name: Nqn::from_uuid([host; 16]), id: [host; 16], ..self::host() };
    let mut setup = Setup::new(identity, name.clone(), 600_000, queues, [0; 32]);
    let mut all = vec![Queue::try_open(address, digests).expect("the node accepts the admin queue")];
    let ready = all[0].make_ready(&mut setup).expect("the controller is ready");
    assert_eq!(ready.io_queues, queues);
    for queue in 1..=queues {
        let mut io = Queue::try_open(address, digests).expect("the node accepts the queue");
        io.connect_io(&setup, &ready, queue).expect("the queue is connected");
        all.push(io);
    }
    all
}

/// The node of a process that can be killed: this test program, which runs its test `be_a_node`.
pub struct NodeProcess {
    process: Child,
    pub url: String,
}

/// The folder of the node that a process of this program is.
const NODE_FOLDER: &str = "ROWMILL_TEST_NODE_FOLDER";
/// Where that process writes its URL.
const NODE_URL: &str = "url";

/// The body of the test `be_a_node`. In the tests' own process it does nothing.
pub fn be_a_node(serve: impl FnOnce(&Path) -> Served) {
    let Some(folder) = std::env::var_os(NODE_FOLDER) else { return };
    let served = serve(Path::new(&folder));
    let file = Path::new(&folder).join(NODE_URL);
    let new = file.with_extension("new");
    std::fs::write(&new, format!("nvme+tcp://{}/{}", served.address, served.name())).unwrap();
    std::fs::rename(new, file).unwrap();
    loop {
        std::thread::park();
    }
}

impl NodeProcess {
    pub fn start(folder: &Path) -> NodeProcess {
        let file = folder.join(NODE_URL);
        let _ = std::fs::remove_file(&file);
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "be_a_node"]).env(NODE_FOLDER, folder).stdout(Stdio::null());
        let process = command.spawn().unwrap();
        let start = Instant::now();
        let url = loop {
            if let Ok(text) = std::fs::read_to_string(&file) {
                break text;
            }
            assert!(start.elapsed() < PATIENCE, "the node does not start");
            std::thread::sleep(Duration::from_millis(5));
        };
        NodeProcess { process, url }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.end();
    }
}
