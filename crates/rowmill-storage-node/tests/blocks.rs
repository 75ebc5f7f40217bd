//! Hosts that read and write blocks of a node over TCP.
//!
//! What could break: bytes that a socket takes or gives in parts, answers that come back to another command or
//! connection, data or names that a restart loses, a disk that fails, connections that outlive their controller or are not bounded. The host
//! is the machine of `rowmill-nvme` on a blocking socket; expected content comes from plain memory.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_io::{BLOCK_BYTES, DirectoryVolume, IoChoice, MemoryVolume, Volume};
use rowmill_nvme::*;
use rowmill_server::{Exposure, Server, bind_tcp};
use rowmill_storage_node::{NAMESPACE, Node, NodeSettings};
use rowmill_testkit::{Fault, FaultyVolume, Rng64, When};

const BLOCKS: u64 = 1024;
const CONNECTIONS_MAX: usize = 40;
/// No test waits longer for a byte.
const PATIENCE: Duration = Duration::from_secs(20);

/// A node on a free port of loopback.
struct Served {
    node: Arc<Node>,
    address: SocketAddr,
    server: Option<Server>,
}

fn serve(volume: &dyn Volume) -> Served {
    let server = Server::start(2).unwrap();
    let listener = {
        let _inside = server.handle().enter();
        bind_tcp("127.0.0.1:0", Exposure::Loopback).unwrap()
    };
    let address = listener.local_addr().unwrap();
    let settings = NodeSettings {
        blocks: BLOCKS,
        hosts: Hosts::Any(Role::Write),
        connections_max: CONNECTIONS_MAX,
        answer_bytes_max: 1 << 20,
    };
    let node = Arc::new(Node::open(volume, address, settings).unwrap());
    server.handle().spawn(Arc::clone(&node).serve(listener, server.drain().clone()));
    Served { node, address, server: Some(server) }
}

impl Served {
    /// End the node as SIGTERM does.
    fn end(mut self) {
        let server = self.server.take().unwrap();
        server.drain().start();
        server.run(PATIENCE).unwrap();
    }
}

/// One queue of a host, on a blocking socket.
struct Queue {
    stream: TcpStream,
    host: HostConnection,
}

impl Queue {
    fn open(address: SocketAddr, digests: Digests) -> Queue {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let limits = HostLimits {
            digests,
            commands_max: 16,
            capsule_data_bytes: CAPSULE_DATA_BYTES,
            setup_time: PATIENCE,
        };
        let mut queue = Queue { stream, host: HostConnection::new(Instant::now(), limits) };
        assert_eq!(queue.event(), HostEvent::Initialized);
        queue
    }

    /// The next event. Panics if the node closes the connection.
    fn event(&mut self) -> HostEvent {
        self.try_event().expect("the connection is open")
    }

    fn try_event(&mut self) -> Option<HostEvent> {
        let mut buffer = vec![0; 100_000];
        loop {
            let unsent: Vec<u8> = self.host.unsent().flatten().copied().collect();
            self.host.sent(unsent.len());
            self.stream.write_all(&unsent).ok()?;
            if let Some(event) = self.host.poll() {
                return Some(event);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(bytes) => self.host.receive(&buffer[..bytes]),
            }
        }
    }

    fn completed(&mut self) -> (Completion, Vec<u8>) {
        match self.event() {
            HostEvent::Completed { completion, data, is_intact: true } => (completion, data),
            other => panic!("{other:?}"),
        }
    }

    fn call(&mut self, command: Command, exchange: Exchange) -> (Status, Vec<u8>) {
        self.host.submit(command, exchange).unwrap();
        let (completion, data) = self.completed();
        (completion.status(), data)
    }

    fn write(&mut self, first: u64, content: Vec<u8>, is_durable: bool) -> Status {
        let count = (content.len() / BLOCK_BYTES) as u64;
        let command = commands::write(NAMESPACE, BlockRange { first, count }, is_durable);
        self.call(command, Exchange::Send(content)).0
    }

    fn read(&mut self, first: u64, count: u64) -> (Status, Vec<u8>) {
        let command = commands::read(NAMESPACE, BlockRange { first, count });
        self.call(command, Exchange::Receive(count as usize * BLOCK_BYTES))
    }
}

/// An admin queue and one I/O queue.
fn connect(served: &Served, digests: Digests) -> (Queue, Queue) {
    let host = HostIdentity { name: Nqn::from_uuid([7; 16]), id: [7; 16], key: None, controller_key: None };
    let mut setup = Setup::new(host, served.node.name().clone(), 60_000, 1, [0; 32]);
    let mut admin = Queue::open(served.address, digests);
    let mut step = setup.start();
    let ready = loop {
        match step {
            SetupStep::Send { command, exchange, .. } => {
                admin.host.submit(command, exchange).unwrap();
                let (completion, data) = admin.completed();
                step = setup.next(Instant::now(), &completion, &data, true).unwrap();
            }
            SetupStep::Ready(ready) => break ready,
        }
    };
    assert_eq!(ready.namespaces, [NAMESPACE]);
    let mut io = Queue::open(served.address, digests);
    let SetupStep::Send { command, exchange, .. } = setup.connect_io(&ready, 1, 16) else { panic!() };
    assert_eq!(io.call(command, exchange).0, Status::SUCCESS);
    (admin, io)
}

fn digests(bits: u8) -> Digests {
    Digests { header: bits & 1 == 1, data: bits & 2 == 2 }
}

#[test]
fn blocks_and_names_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::create(folder.path(), IoChoice::Auto).unwrap();
    let content: Vec<u8> = (0..3 * BLOCK_BYTES).map(|at| (at / 7) as u8).collect();
    let served = serve(&volume);
    let (mut admin, mut io) = connect(&served, digests(3));
    assert_eq!(io.read(0, 2), (Status::SUCCESS, vec![0; 2 * BLOCK_BYTES]), "never written");
    assert_eq!(io.write(5, content.clone(), false), Status::SUCCESS);
    assert_eq!(io.call(commands::flush(NAMESPACE), Exchange::None).0, Status::SUCCESS);
    assert_eq!(io.read(5, 3), (Status::SUCCESS, content.clone()));
    // The first block lies beyond what was written last.
    assert_eq!(io.read(7, 3).1, [&content[2 * BLOCK_BYTES..], &[0; 2 * BLOCK_BYTES]].concat());
    let health = commands::log_page(page::HEALTH, u32::MAX, 0, 512, true);
    let (_, health) = admin.call(health, Exchange::Receive(512));
    assert_eq!((health[64], health[80]), (3, 1), "reads and writes");
    let name = served.node.name().clone();
    served.end();
    assert_eq!(io.try_event(), None, "the node closed the connection");

    let served = serve(&volume);
    assert_eq!(served.node.name(), &name);
    let (_admin, mut io) = connect(&served, digests(0));
    assert_eq!(io.read(5, 3), (Status::SUCCESS, content.clone()));
    let (command, ranges) = commands::deallocate(NAMESPACE, &[BlockRange { first: 6, count: 1 }]);
    assert_eq!(io.call(command, Exchange::Send(ranges)).0, Status::SUCCESS);
    let zeros = [&content[..BLOCK_BYTES], &[0; BLOCK_BYTES], &content[2 * BLOCK_BYTES..]].concat();
    assert_eq!(io.read(5, 3), (Status::SUCCESS, zeros));
    served.end();
}

#[test]
fn many_hosts_write_many_blocks_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::create(folder.path(), IoChoice::Auto).unwrap();
    let served = serve(&volume);
    std::thread::scope(|scope| {
        for host in 0..8_u64 {
            let served = &served;
            scope.spawn(move || {
                let (_admin, mut io) = connect(served, digests(host as u8));
                let mut rng = Rng64::new(host);
                // Each host has its own 128 blocks.
                let start = host * 128;
                let mut model = [0_u8; 128];
                for _ in 0..12 {
                    // Eight writes in flight, of up to 64 KiB, that do not overlap.
                    for part in 0..8 {
                        let (first, count, fill) =
                            (part * 16 + rng.below(8), 1 + rng.below(8), rng.next_u64() as u8);
                        model[first as usize..(first + count) as usize].fill(fill);
                        let blocks = BlockRange { first: start + first, count };
                        let content = vec![fill; count as usize * BLOCK_BYTES];
                        let write = commands::write(NAMESPACE, blocks, rng.one_in(8));
                        io.host.submit(write, Exchange::Send(content)).unwrap();
                    }
                    for _ in 0..8 {
                        assert_eq!(io.completed().0.status(), Status::SUCCESS);
                    }
                    let (status, read) = io.read(start, 128);
                    let expected: Vec<u8> = model.iter().flat_map(|&fill| [fill; BLOCK_BYTES]).collect();
                    assert!(status == Status::SUCCESS && read == expected);
                }
            });
        }
    });
    served.end();
}

#[test]
fn a_failing_disk_gives_statuses_and_a_failed_sync_ends_writing() {
    let volume = FaultyVolume::over_memory(MemoryVolume::new(), 1);
    let served = serve(&volume);
    let (_admin, mut io) = connect(&served, digests(0));
    let block = || vec![1; BLOCK_BYTES];
    assert_eq!(io.write(0, block(), false), Status::SUCCESS);
    for (fault, status) in
        [(Fault::Full, Status::CAPACITY_EXCEEDED), (Fault::WriteError, Status::WRITE_FAULT)]
    {
        volume.inject_on("blocks", fault, When::Nth(1));
        assert_eq!(io.write(0, block(), false), status);
        volume.heal();
    }
    volume.inject_on("blocks", Fault::ReadError, When::Nth(1));
    assert_eq!(io.read(0, 1).0, Status::UNRECOVERED_READ_ERROR);
    volume.heal();
    assert_eq!(io.write(0, block(), true), Status::SUCCESS);
    volume.inject_on("blocks", Fault::SyncError, When::Nth(1));
    assert_eq!(io.call(commands::flush(NAMESPACE), Exchange::None).0, Status::WRITE_FAULT);
    volume.heal();
    assert_eq!(io.write(0, block(), false), Status::WRITE_FAULT, "older writes may be lost");
    assert_eq!(io.read(0, 1), (Status::SUCCESS, block()));
    served.end();
}

#[test]
fn connections_end_with_their_controller() {
    let served = serve(&MemoryVolume::new());
    let (admin, mut io) = connect(&served, digests(0));
    drop(admin);
    assert_eq!(io.try_event(), None, "its admin queue is gone");
    served.end();
}

#[test]
fn connections_are_bounded() {
    let served = serve(&MemoryVolume::new());
    let open: Vec<_> = (0..CONNECTIONS_MAX).map(|_| Queue::open(served.address, digests(0))).collect();
    let mut one_more = TcpStream::connect(served.address).unwrap();
    // Less than the node waits for the first bytes of a host.
    one_more.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    match one_more.read(&mut [0; 1]) {
        Ok(bytes) => assert_eq!(bytes, 0),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    drop(open);
    served.end();
}

#[test]
fn what_is_no_nvme_is_told_so_and_closed() {
    let served = serve(&MemoryVolume::new());
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    // A termination request: the kind of the PDU is invalid.
    assert_eq!((answer[0], answer[8], answer[10]), (3, 1, 0));
    served.end();
}
