//! A storage node in memory: a port, its connections, and an executor of commands that fails where a test wants it.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use rowmill_nvme::*;
use rowmill_testkit::Rng64;

pub(crate) const BLOCKS: u32 = 1;
pub(crate) const ROWS: u32 = 2;
/// A number between those of active namespaces.
pub(crate) const INACTIVE: u32 = 3;
pub(crate) const PROTECTED: u32 = 4;
pub(crate) const HOST_ID: [u8; 16] = [9; 16];
/// In place of random numbers.
pub(crate) const SEED: [u8; 32] = [3; 32];
/// The host that must prove its key to subsystem 3.
pub(crate) const WITH_KEY: u8 = 102;
pub(crate) const HOST_KEY: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
pub(crate) const CONTROLLER_KEY: &str =
    "DHHC-1:00:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOEhYaHiImKi4yNjo+QkZKTvGwQfg==:";
pub(crate) const CONTROLLERS_MAX: usize = 2;
pub(crate) const IO_QUEUES_MAX: u16 = 3;
pub(crate) const ENTRIES_MAX: u16 = 16;
/// Larger data comes in several PDUs.
pub(crate) const DATA_PDU_BYTES_MAX: usize = 32 << 10;
pub(crate) const HELD_BYTES_MAX: usize = 1 << 20;
pub(crate) const UNSENT_BYTES_MAX: usize = 1 << 20;

/// Blocks at which the executor fails.
pub(crate) const BLOCK_WRITE_FAULT: u64 = 7;
pub(crate) const BLOCK_DISK_FULL: u64 = 8;
pub(crate) const BLOCK_UNREADABLE: u64 = 9;
pub(crate) const BLOCK_INTERNAL: u64 = 10;
/// Ids at which the executor fails.
pub(crate) const ID_UNREADABLE: u64 = 13;
pub(crate) const ID_RATE: u64 = 17;
pub(crate) const IDS_END: u64 = 1000;

pub(crate) fn nqn(number: u8) -> Nqn {
    Nqn::from_uuid([number; 16])
}

pub(crate) fn key(text: &str) -> Key {
    text.parse().unwrap()
}

pub(crate) fn identity(number: u8) -> HostIdentity {
    HostIdentity { name: nqn(number), id: HOST_ID, key: None, controller_key: None }
}

pub(crate) fn namespace(number: u32, content: Content) -> Namespace {
    Namespace {
        number,
        content,
        guid: [number as u8; 16],
        blocks: 4096,
        block_shift: 9,
        is_write_protected: number != BLOCKS,
        is_zero_after_deallocate: true,
    }
}

pub(crate) fn subsystem(number: u8) -> Subsystem {
    Subsystem {
        name: nqn(number),
        serial: format!("serial-{number}"),
        firmware: "0.1.0".into(),
        namespaces: vec![
            namespace(BLOCKS, Content::Blocks),
            namespace(ROWS, Content::Rows),
            namespace(PROTECTED, Content::Blocks),
        ],
        hosts: Hosts::Any(Role::Write),
        key: None,
        area: Some(VendorArea::new(64, 4, 1 << 20, 60)),
        io_queues_max: IO_QUEUES_MAX,
        io_queue_entries_max: ENTRIES_MAX,
    }
}

/// Subsystem 1 lets every host write, 2 lets every host read, 3 lets two hosts in.
fn port() -> Port {
    let mut subsystems: Vec<_> = (1..=3).map(subsystem).collect();
    subsystems[1].hosts = Hosts::Any(Role::Read);
    let host = |number, key| Host { name: nqn(number), role: Role::Write, key };
    subsystems[2].hosts = Hosts::Listed(vec![host(100, None), host(WITH_KEY, Some(key(HOST_KEY)))]);
    subsystems[2].key = Some(key(CONTROLLER_KEY));
    let endpoint = Endpoint { address: [127, 0, 0, 1].into(), port: 4420 };
    Port::new(endpoint, subsystems, CONTROLLERS_MAX)
}

pub(crate) struct NodeConnection {
    pub(crate) connection: Connection,
    pub(crate) connected: Option<Connected>,
}

pub(crate) struct Node {
    pub(crate) port: Port,
    pub(crate) connections: Vec<NodeConnection>,
    pub(crate) content: Vec<u8>,
    staged: HashMap<u16, StagedResults<(usize, u16)>>,
    next_frame: Option<u64>,
    pub(crate) digests: Digests,
    pub(crate) closed: Vec<(usize, Closed)>,
}

impl Node {
    pub(crate) fn new() -> Node {
        Node {
            port: port(),
            connections: Vec::new(),
            content: vec![0; 4096 << 9],
            staged: HashMap::new(),
            next_frame: None,
            digests: Digests { header: true, data: true },
            closed: Vec::new(),
        }
    }

    /// The same node without connections and controllers. Its blocks stay.
    pub(crate) fn restart(&mut self) {
        self.port = port();
        self.connections.clear();
        self.staged.clear();
        self.next_frame = None;
        self.closed.clear();
    }

    pub(crate) fn open(&mut self, now: Instant) -> usize {
        let limits = ConnectionLimits {
            digests: self.digests,
            data_pdu_bytes_max: DATA_PDU_BYTES_MAX,
            held_bytes_max: HELD_BYTES_MAX,
            unsent_bytes_max: UNSENT_BYTES_MAX,
            setup_time: Duration::from_secs(10),
        };
        let mut connection = Connection::new(now, limits);
        connection.lend(HELD_BYTES_MAX);
        self.connections.push(NodeConnection { connection, connected: None });
        self.connections.len() - 1
    }

    /// Execute what a connection has received.
    pub(crate) fn work(&mut self, now: Instant, index: usize) {
        while let Some(event) = self.connections[index].connection.poll() {
            match event {
                ConnectionEvent::Command(request) => self.execute(now, index, &request),
                ConnectionEvent::Closed(closed) => {
                    self.closed.push((index, closed));
                    if let Some(connected) = self.connections[index].connected.take() {
                        self.port.release(connected.controller, connected.queue);
                    }
                }
            }
            self.port_events();
        }
    }

    pub(crate) fn port_events(&mut self) {
        while let Some(event) = self.port.poll() {
            if let PortEvent::Answer { controller, cid, answer } = event {
                let admin = self.connections.iter_mut().find(|connection| {
                    let connected = connection.connected.as_ref();
                    connected
                        .is_some_and(|connected| connected.controller == controller && connected.queue == 0)
                });
                if let Some(admin) = admin {
                    admin.connection.answer(cid, answer);
                }
            }
        }
    }

    fn execute(&mut self, now: Instant, index: usize, request: &Request) {
        let cid = request.command.cid.get();
        let Some(connected) = self.connections[index].connected.clone() else {
            match self.port.connect(now, request, SEED) {
                Ok(connected) => {
                    self.connections[index].connection.accept(cid, &connected);
                    self.connections[index].connected = Some(connected);
                }
                Err(refusal) => self.connections[index].connection.answer(cid, refusal.into()),
            }
            return;
        };
        let answer = if connected.queue == 0 {
            match self.port.admin(now, connected.controller, request) {
                Outcome::Answer(answer) => Some(answer),
                Outcome::Held => None,
                Outcome::Page(wanted) => Some(match wanted.page {
                    Page::Health => wanted.answer(zerocopy::IntoBytes::as_bytes(&Health::new())),
                    Page::Tables { .. } => wanted.answer(&encode_tables(&tables(), 1)),
                }),
            }
        } else {
            let subsystem = connected.subsystem.expect("discovery has no I/O queues");
            let parsed = IoCommand::parse(request, &self.port.subsystems()[subsystem], connected.role);
            match parsed {
                Ok(command) => self.execute_io(now, index, &connected, cid, command),
                Err(status) => Some(status.into()),
            }
        };
        if let Some(mut answer) = answer {
            if answer.status == Status::UNRECOVERED_READ_ERROR {
                let place = ErrorPlace { namespace: request.command.nsid.get(), block: 9, table: None };
                self.port.record_error(connected.controller, connected.queue, cid, answer.status, place);
                answer.has_more = true;
            }
            self.connections[index].connection.answer(cid, answer);
        }
    }

    fn bytes(&mut self, blocks: BlockRange) -> &mut [u8] {
        let start = (blocks.first as usize) << 9;
        &mut self.content[start..start + ((blocks.count as usize) << 9)]
    }

    fn execute_io(
        &mut self,
        now: Instant,
        index: usize,
        connected: &Connected,
        cid: u16,
        command: IoCommand<'_>,
    ) -> Option<Answer> {
        let limits = StagedLimits {
            results_max: 4,
            bytes_max: 1 << 20,
            waiting_max: 4,
            lifetime: Duration::from_mins(1),
        };
        let staged = self.staged.entry(connected.controller).or_insert_with(|| StagedResults::new(limits));
        Some(match command {
            IoCommand::Read { blocks, .. } => match blocks.first {
                BLOCK_UNREADABLE => Status::UNRECOVERED_READ_ERROR.into(),
                BLOCK_INTERNAL => Status::INTERNAL_ERROR.into(),
                _ => Answer::data(self.bytes(blocks).to_vec()),
            },
            IoCommand::Write { blocks, data, .. } => match blocks.first {
                BLOCK_WRITE_FAULT => Status::WRITE_FAULT.into(),
                BLOCK_DISK_FULL => Status::CAPACITY_EXCEEDED.into(),
                _ => {
                    self.bytes(blocks).copy_from_slice(data);
                    Answer::success()
                }
            },
            IoCommand::Deallocate { ranges, .. } => {
                // The model of the test holds few blocks at a time.
                for range in ranges.into_iter().filter(|range| range.count <= 64) {
                    self.bytes(range).fill(0);
                }
                Answer::success()
            }
            IoCommand::Flush { .. } | IoCommand::Hint => Answer::success(),
            IoCommand::Stage { stage, .. } => {
                let result = pool(&stage);
                let begun = result.and_then(|result| {
                    staged.begin(now, stage.handle, result.len() as u64)?;
                    // A later frame of the feed is not applied.
                    let as_of = AsOf { sequence: 77, generation: 1 };
                    staged.finish(now, stage.handle, Ok(StagedResult { bytes: result, damaged: 0 }), as_of);
                    Ok(())
                });
                begun.map_or_else(Answer::from, |()| Answer::success())
            }
            IoCommand::Fetch { fetch, bytes, .. } => match staged.fetch(now, (index, cid), fetch, bytes) {
                FetchOutcome::Data(data) => Answer::data(data),
                FetchOutcome::Waits => return None,
                FetchOutcome::Failed(status) => status.into(),
            },
            IoCommand::Apply { apply, .. } => {
                self.apply(&apply).map_or_else(Answer::from, |()| Answer::success())
            }
        })
    }

    fn apply(&mut self, apply: &Apply<'_>) -> Result<(), Status> {
        match (apply, self.next_frame) {
            (Apply::Begin(_), None) => self.next_frame = Some(0),
            (Apply::Frame { sequence, .. }, Some(next)) if *sequence == next => {
                self.next_frame = Some(next + 1);
            }
            (Apply::End { .. }, Some(_)) => self.next_frame = None,
            (Apply::Frame { .. }, _) => return Err(Status::FEED_GAP),
            _ => return Err(Status::FILL_CONFLICT),
        }
        Ok(())
    }
}

pub(crate) fn tables() -> Vec<TableEntry> {
    (0..3)
        .map(|table| TableEntry {
            table,
            name: format!("table-{table}"),
            dim: 1,
            dtype: RowDtype::Fp32,
            index: TableIndex::Dense { rows: IDS_END, block: 0, stride: 8 },
            group: table / 2,
        })
        .collect()
}

/// One number per bag: the sum of its ids. Tables 0 and 1 are one group, table 2 is another.
pub(crate) fn pool(stage: &Stage<'_>) -> Result<Vec<u8>, Status> {
    let first = stage.features[0].table;
    let mut result = Vec::new();
    for feature in &stage.features {
        if feature.table > 2 {
            return Err(Status::UNKNOWN_TABLE);
        }
        if (feature.table == 2) != (first == 2) {
            return Err(Status::MIXED_GROUPS);
        }
        let ids = feature.ids.to_vec();
        for &id in &ids {
            match id {
                ID_UNREADABLE => return Err(Status::UNRECOVERED_READ_ERROR),
                ID_RATE => return Err(Status::RATE_EXCEEDED),
                IDS_END.. => return Err(Status::ID_OUT_OF_RANGE),
                _ => (),
            }
        }
        for (bag, start) in feature.offsets.iter().enumerate() {
            let end = feature.offsets.get(bag + 1).map_or(ids.len(), |end| end.get() as usize);
            let sum: u64 = ids[start.get() as usize..end].iter().sum();
            result.extend((sum as f32).to_le_bytes());
        }
    }
    Ok(result)
}

/// A host's end of a connection, and how its bytes travel.
pub(crate) struct Link {
    pub(crate) host: HostConnection,
    pub(crate) index: usize,
    /// All bytes that the host has sent, and all that it has received.
    pub(crate) sent: Vec<u8>,
    pub(crate) received: Vec<u8>,
    /// All commands that the host has submitted.
    pub(crate) submitted: Vec<(Command, Exchange)>,
    pub(crate) events: VecDeque<HostEvent>,
    piece_max: usize,
    rng: Rng64,
}

impl Link {
    /// A connection whose bytes travel in pieces of 1 to `piece_max` bytes.
    pub(crate) fn open(node: &mut Node, now: Instant, digests: Digests, piece_max: usize, seed: u64) -> Link {
        let limits = HostLimits {
            digests,
            commands_max: 16,
            capsule_data_bytes: CAPSULE_DATA_BYTES,
            setup_time: Duration::from_secs(10),
        };
        Link {
            host: HostConnection::new(now, limits),
            index: node.open(now),
            sent: Vec::new(),
            received: Vec::new(),
            submitted: Vec::new(),
            events: VecDeque::new(),
            piece_max,
            rng: Rng64::new(seed),
        }
    }

    /// Move bytes both ways until there are none.
    pub(crate) fn pump(&mut self, node: &mut Node, now: Instant) {
        while self.host.unsent_bytes() + node.connections[self.index].connection.unsent_bytes() > 0 {
            let most = 1 + self.rng.below(self.piece_max as u64) as usize;
            let bytes = piece(self.host.unsent(), most);
            let consumed = node.connections[self.index].connection.receive(&bytes);
            self.host.sent(consumed);
            self.sent.extend(&bytes[..consumed]);
            node.work(now, self.index);
            let bytes = piece(node.connections[self.index].connection.unsent(), most);
            self.host.receive(&bytes);
            node.connections[self.index].connection.sent(bytes.len());
            self.received.extend(&bytes);
            while let Some(event) = self.host.poll() {
                self.events.push_back(event);
            }
        }
    }

    /// Send one command and return its completion and data.
    pub(crate) fn call(
        &mut self,
        node: &mut Node,
        now: Instant,
        command: Command,
        exchange: Exchange,
    ) -> (Completion, Vec<u8>) {
        self.submit(node, now, command, exchange);
        self.completed()
    }

    pub(crate) fn submit(
        &mut self,
        node: &mut Node,
        now: Instant,
        command: Command,
        exchange: Exchange,
    ) -> u16 {
        self.submitted.push((command, exchange.clone()));
        let cid = self.host.submit(command, exchange).expect("the connection is open");
        self.pump(node, now);
        cid
    }

    pub(crate) fn completed(&mut self) -> (Completion, Vec<u8>) {
        match self.events.pop_front() {
            Some(HostEvent::Completed { completion, data, is_intact: true }) => (completion, data),
            other => panic!("a completion is missing: {other:?}"),
        }
    }

    /// The status of one command.
    pub(crate) fn status(
        &mut self,
        node: &mut Node,
        now: Instant,
        command: Command,
        exchange: Exchange,
    ) -> Status {
        self.call(node, now, command, exchange).0.status()
    }
}

/// The first bytes, at most `most`.
fn piece<'a>(unsent: impl Iterator<Item = &'a [u8]>, most: usize) -> Vec<u8> {
    let mut piece = Vec::new();
    for part in unsent {
        piece.extend(&part[..part.len().min(most - piece.len())]);
        if piece.len() == most {
            break;
        }
    }
    piece
}

/// Set a controller up: its admin connection and what is ready.
pub(crate) fn connect_admin(
    node: &mut Node,
    now: Instant,
    digests: Digests,
    piece_max: usize,
    subsystem: &Nqn,
) -> Result<(Link, Setup, Ready), SetupError> {
    let setup = Setup::new(identity(100), subsystem.clone(), 5000, 2, [4; 32]);
    connect_with(node, now, digests, piece_max, setup)
}

pub(crate) fn connect_with(
    node: &mut Node,
    now: Instant,
    digests: Digests,
    piece_max: usize,
    mut setup: Setup,
) -> Result<(Link, Setup, Ready), SetupError> {
    let mut link = Link::open(node, now, digests, piece_max, 5);
    link.pump(node, now);
    assert_eq!(link.events.pop_front(), Some(HostEvent::Initialized));
    let mut step = setup.start();
    loop {
        match step {
            SetupStep::Send { command, exchange, .. } => {
                let (completion, data) = link.call(node, now, command, exchange);
                step = setup.next(now, &completion, &data, true)?;
            }
            SetupStep::Ready(ready) => return Ok((link, setup, *ready)),
        }
    }
}

/// Connect an I/O queue.
pub(crate) fn connect_io(
    node: &mut Node,
    now: Instant,
    digests: Digests,
    piece_max: usize,
    setup: &Setup,
    ready: &Ready,
    queue: u16,
) -> Link {
    let mut link = Link::open(node, now, digests, piece_max, u64::from(queue));
    link.pump(node, now);
    assert_eq!(link.events.pop_front(), Some(HostEvent::Initialized));
    let SetupStep::Send { command, exchange, .. } = setup.connect_io(ready, queue, ENTRIES_MAX) else {
        panic!()
    };
    assert_eq!(link.status(node, now, command, exchange), Status::SUCCESS);
    link
}

pub(crate) fn blocks(first: u64, count: u64) -> BlockRange {
    BlockRange { first, count }
}
