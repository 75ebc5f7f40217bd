//! Valid connections between a host and a node: every command, and every way in which one can fail.

use std::time::Instant;

use rowmill_nvme::*;

use crate::common::*;

/// One connection, PDU by PDU.
pub(crate) struct Recording {
    /// What the host sent on the connections that it opened before.
    pub(crate) before: Vec<Vec<Vec<u8>>>,
    pub(crate) digests: Digests,
    pub(crate) host: Vec<Vec<u8>>,
    pub(crate) controller: Vec<Vec<u8>>,
    pub(crate) submitted: Vec<(Command, Exchange)>,
    pub(crate) now: Instant,
}

/// Bytes of the PDU at the front.
pub(crate) fn pdu_bytes(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize
}

fn pdus(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut pdus = Vec::new();
    while !bytes.is_empty() {
        let (pdu, rest) = bytes.split_at(pdu_bytes(bytes));
        pdus.push(pdu.to_vec());
        bytes = rest;
    }
    pdus
}

/// A host, and the node it talks to.
struct Tape {
    node: Node,
    now: Instant,
    digests: Digests,
    before: Vec<Vec<Vec<u8>>>,
}

impl Tape {
    fn new(now: Instant, digests: Digests) -> Tape {
        Tape { node: Node::new(), now, digests, before: Vec::new() }
    }

    fn end(self, link: Link) -> Recording {
        assert!(self.node.closed.is_empty(), "{:?}", self.node.closed);
        Recording {
            before: self.before,
            digests: self.digests,
            host: pdus(&link.sent),
            controller: pdus(&link.received),
            submitted: link.submitted,
            now: self.now,
        }
    }

    fn admin(&mut self, subsystem: &Nqn) -> (Link, Setup, Ready) {
        connect_admin(&mut self.node, self.now, self.digests, 1 << 20, subsystem).unwrap()
    }

    fn io(&mut self, subsystem: &Nqn) -> Link {
        let (admin, setup, ready) = self.admin(subsystem);
        self.before.push(pdus(&admin.sent));
        connect_io(&mut self.node, self.now, self.digests, 1 << 20, &setup, &ready, 1)
    }

    fn expect(&mut self, link: &mut Link, command: Command, exchange: Exchange, status: Status) {
        assert_eq!(link.status(&mut self.node, self.now, command, exchange), status, "{command:?}");
    }
}

pub(crate) fn recordings() -> Vec<Recording> {
    let now = Instant::now();
    let mut all = Vec::new();
    for bits in 0..4 {
        let digests = Digests { header: bits & 1 == 1, data: bits & 2 == 2 };
        let tape = || Tape::new(now, digests);
        all.extend([
            admin(tape()),
            discovery(tape()),
            with_keys(tape()),
            blocks_only(tape()),
            rows(tape()),
            read_only(tape()),
        ]);
        all.extend(refused(&tape));
    }
    all
}

fn admin(mut tape: Tape) -> Recording {
    let (mut link, ..) = tape.admin(&nqn(1));
    let page = |bytes: u32| Exchange::Receive(bytes as usize);
    let mut expect = |command, exchange, status| tape.expect(&mut link, command, exchange, status);
    for (number, bytes) in [(0, 1024), (1, 4096), (3, 512), (4, 4096), (5, 4096)] {
        expect(commands::log_page(number, 0, 0, bytes, false), page(bytes), Status::SUCCESS);
    }
    expect(commands::log_page(2, u32::MAX, 0, 512, true), page(512), Status::SUCCESS);
    expect(commands::log_page(0xc0, ROWS, 16, 288, true), page(288), Status::SUCCESS);
    expect(commands::log_page(0xc1, 0, 0, 16, true), page(16), Status::INVALID_LOG_PAGE);
    expect(commands::log_page(5, 0, 8192, 16, true), page(16), Status::INVALID_FIELD);
    for cns in [cns::NAMESPACE, cns::DESCRIPTORS, cns::CONTROLLER_OF_COMMAND_SET] {
        expect(commands::identify(cns, BLOCKS), page(4096), Status::SUCCESS);
    }
    expect(commands::identify(0, 99), page(4096), Status::INVALID_NAMESPACE);
    expect(commands::identify(1, 0), page(100), Status::DATA_LENGTH_INVALID);
    for feature in [1, 2, 4, 5, 6, 7, 0x0a, 0x0b, 0x0f] {
        expect(commands::get_feature(feature), Exchange::None, Status::SUCCESS);
    }
    expect(commands::get_feature(0x81).with(11, 1), page(16), Status::SUCCESS);
    let saved = commands::set_feature(1, 0).with(10, 1 | 1 << 31);
    expect(saved, Exchange::None, Status::FEATURE_NOT_SAVEABLE);
    expect(commands::set_feature(6, 0), Exchange::None, Status::FEATURE_NOT_CHANGEABLE);
    expect(commands::set_feature(0x81, 0), Exchange::None, Status::SEQUENCE_ERROR);
    expect(commands::keep_alive(), Exchange::None, Status::SUCCESS);
    expect(Command::new(0x1c, 0), Exchange::None, Status::INVALID_OPCODE);
    let held =
        [(); 4].map(|()| link.submit(&mut tape.node, tape.now, commands::async_event(), Exchange::None));
    tape.expect(&mut link, commands::async_event(), Exchange::None, Status::ASYNC_LIMIT_EXCEEDED);
    link.submit(&mut tape.node, tape.now, commands::abort(0, held[3]), Exchange::None);
    let statuses = [link.completed().0.status(), link.completed().0.status()];
    assert_eq!(statuses, [Status::SUCCESS, Status::ABORTED]);
    tape.expect(&mut link, commands::abort(1, 7), Exchange::None, Status::SUCCESS);
    let shutdown = configuration::ENABLE | configuration::ENTRY_SIZES | configuration::SHUTDOWN_NORMAL;
    let shutdown = Property::Configuration.set(shutdown.into());
    tape.expect(&mut link, shutdown, Exchange::None, Status::SUCCESS);
    tape.end(link)
}

fn discovery(mut tape: Tape) -> Recording {
    let (mut link, ..) = tape.admin(&DISCOVERY_NQN.parse().unwrap());
    let log = commands::log_page(page::DISCOVERY, 0, 0, 4096, false);
    tape.expect(&mut link, log, Exchange::Receive(4096), Status::SUCCESS);
    tape.expect(&mut link, commands::set_async_events(1 << 31), Exchange::None, Status::SUCCESS);
    tape.end(link)
}

fn with_keys(mut tape: Tape) -> Recording {
    let (key, controller_key) = (Some(key(HOST_KEY)), Some(key(CONTROLLER_KEY)));
    let host = HostIdentity { key, controller_key, ..identity(WITH_KEY) };
    let mut link = Link::open(&mut tape.node, tape.now, tape.digests, 1 << 20, 1);
    link.pump(&mut tape.node, tape.now);
    link.events.clear();
    let setup = Setup::new(host, nqn(3), 5000, 2, [4; 32]);
    let SetupStep::Send { command, exchange, .. } = setup.start() else { unreachable!() };
    let (connected, _) = link.call(&mut tape.node, tape.now, command, exchange);
    tape.expect(&mut link, commands::keep_alive(), Exchange::None, Status::AUTHENTICATION_REQUIRED);
    let mut auth = setup.authenticate(&connected, [4; 32]).unwrap().unwrap();
    let mut next = Some(auth.start());
    while let Some((command, exchange)) = next {
        next = auth.next(&link.call(&mut tape.node, tape.now, command, exchange).1).unwrap();
    }
    tape.expect(&mut link, Property::Version.get(), Exchange::None, Status::SUCCESS);
    tape.end(link)
}

fn blocks_only(mut tape: Tape) -> Recording {
    let mut link = tape.io(&nqn(1));
    let mut expect = |command, exchange, status| tape.expect(&mut link, command, exchange, status);
    let data = |count: usize| Exchange::Send(vec![7; count << 9]);
    let read = |first, count: u64| {
        (commands::read(BLOCKS, blocks(first, count)), Exchange::Receive((count as usize) << 9))
    };
    for (first, count) in [(20, 1), (100, 2), (200, 64)] {
        expect(commands::write(BLOCKS, blocks(first, count), true), data(count as usize), Status::SUCCESS);
        let (command, exchange) = read(first, count);
        expect(command, exchange, Status::SUCCESS);
    }
    // Three data PDUs.
    expect(commands::write(BLOCKS, blocks(300, 160), false), data(160), Status::SUCCESS);
    for (first, status) in
        [(BLOCK_WRITE_FAULT, Status::WRITE_FAULT), (BLOCK_DISK_FULL, Status::CAPACITY_EXCEEDED)]
    {
        expect(commands::write(BLOCKS, blocks(first, 1), false), data(1), status);
    }
    let unreadable =
        [(BLOCK_UNREADABLE, Status::UNRECOVERED_READ_ERROR), (BLOCK_INTERNAL, Status::INTERNAL_ERROR)];
    for (first, status) in unreadable.into_iter().chain([(4096, Status::BLOCK_OUT_OF_RANGE)]) {
        let (command, exchange) = read(first, 1);
        expect(command, exchange, status);
    }
    expect(commands::write(PROTECTED, blocks(0, 1), false), data(1), Status::WRITE_PROTECTED);
    expect(commands::flush(BLOCKS), Exchange::None, Status::SUCCESS);
    expect(commands::flush(u32::MAX), Exchange::None, Status::SUCCESS);
    let (command, ranges) = commands::deallocate(BLOCKS, &[blocks(30, 4), blocks(40, 1)]);
    expect(command, Exchange::Send(ranges.clone()), Status::SUCCESS);
    expect(command.with(11, 0), Exchange::Send(ranges), Status::SUCCESS);
    tape.end(link)
}

fn rows(mut tape: Tape) -> Recording {
    let mut link = tape.io(&nqn(1));
    let mut expect = |(command, exchange), status| tape.expect(&mut link, command, exchange, status);
    let plain = |table| feature(table, IdsRequest::Four(&[1, 2, 3]));
    expect(stage(1, &[plain(0), plain(1)]), Status::SUCCESS);
    expect(stage(1, &[plain(0)]), Status::HANDLE_IN_USE);
    expect(stage(2, &[plain(0), plain(2)]), Status::MIXED_GROUPS);
    expect(stage(2, &[plain(3)]), Status::UNKNOWN_TABLE);
    for (id, status) in [
        (IDS_END, Status::ID_OUT_OF_RANGE),
        (ID_UNREADABLE, Status::UNRECOVERED_READ_ERROR),
        (ID_RATE, Status::RATE_EXCEEDED),
    ] {
        let ids = [id, 1];
        expect(stage(2, &[feature(0, IdsRequest::Eight(&ids))]), status);
    }
    expect(stage(2, &[feature(0, IdsRequest::Eight(&[]))]), Status::INVALID_OFFSETS);
    expect(stage(2, &[]), Status::MALFORMED);
    // More than a capsule holds.
    let many: Vec<u64> = (100..900).chain(100..900).collect();
    expect(stage(2, &[feature(1, IdsRequest::Eight(&many))]), Status::SUCCESS);
    for handle in [3, 4] {
        expect(stage(handle, &[plain(0)]), Status::SUCCESS);
    }
    expect(stage(5, &[plain(0)]), Status::OVER_QUOTA);
    let fetch = |handle, is_kept| {
        let fetch = Fetch { handle, offset: 0, is_kept, takes_damaged: !is_kept };
        (fetch.to_command(ROWS), Exchange::Receive(48))
    };
    expect(fetch(1, true), Status::SUCCESS);
    expect(fetch(1, false), Status::SUCCESS);
    expect(fetch(1, false), Status::UNKNOWN_HANDLE);
    let send = |(command, data)| (command, Exchange::Send(data));
    let tables = [TableSpec { name: "users", spec: "{}" }];
    expect(send(encode_frame(ROWS, 0, 0, b"rows")), Status::FEED_GAP);
    expect(send(encode_begin(ROWS, 42, &tables)), Status::SUCCESS);
    expect(send(encode_begin(ROWS, 42, &tables)), Status::FILL_CONFLICT);
    expect(send(encode_frame(ROWS, 0, 0, b"rows")), Status::SUCCESS);
    expect((Apply::end(ROWS, 7), Exchange::None), Status::SUCCESS);
    tape.end(link)
}

fn read_only(mut tape: Tape) -> Recording {
    let mut link = tape.io(&nqn(2));
    let write = commands::write(BLOCKS, blocks(0, 1), false);
    tape.expect(&mut link, write, Exchange::Send(vec![0; 512]), Status::ACCESS_DENIED);
    tape.expect(&mut link, Apply::end(ROWS, 7), Exchange::None, Status::ACCESS_DENIED);
    tape.end(link)
}

fn stage(handle: u64, features: &[FeatureRequest<'_>]) -> (Command, Exchange) {
    let (command, data) = encode_stage(ROWS, handle, Form::Pooled, RowDtype::Fp32, features);
    (command, Exchange::Send(data))
}

fn feature(table: u32, ids: IdsRequest<'_>) -> FeatureRequest<'_> {
    FeatureRequest { table, pooling: Pooling::Sum, offsets: &[0, 1], ids, weights: None }
}

/// Connections whose Connect is refused.
fn refused(tape: &dyn Fn() -> Tape) -> Vec<Recording> {
    let admin = Connect { format: 0, queue: 0, queue_size: 31, is_flow_control_off: false, keep_alive_ms: 0 };
    let io = Connect { queue: 1, ..admin };
    let invalid = Status::CONNECT_INVALID_PARAMETERS;
    let cases = [
        (Connect { format: 1, ..admin }, u16::MAX, nqn(1), nqn(100), Status::CONNECT_INCOMPATIBLE_FORMAT),
        (Connect { queue_size: 0, ..admin }, u16::MAX, nqn(1), nqn(100), invalid),
        (Connect { queue_size: 128, ..admin }, u16::MAX, nqn(1), nqn(100), invalid),
        (admin, 1, nqn(1), nqn(100), invalid),
        (admin, u16::MAX, nqn(77), nqn(100), invalid),
        (admin, u16::MAX, nqn(3), nqn(101), Status::CONNECT_INVALID_HOST),
        (io, 1, nqn(1), nqn(100), invalid),
        (io, u16::MAX, DISCOVERY_NQN.parse().unwrap(), nqn(100), invalid),
    ];
    let mut all: Vec<_> = cases
        .into_iter()
        .map(|(connect, controller, subsystem, host, status)| {
            connect_once(tape(), connect, &ConnectData::new(HOST_ID, controller, &subsystem, &host), status)
        })
        .collect();
    let mut busy = tape();
    for _ in 0..CONTROLLERS_MAX {
        let (link, ..) = busy.admin(&nqn(1));
        busy.before.push(pdus(&link.sent));
    }
    let data = ConnectData::new(HOST_ID, u16::MAX, &nqn(1), &nqn(100));
    all.push(connect_once(busy, admin, &data, Status::CONNECT_CONTROLLER_BUSY));
    all
}

fn connect_once(mut tape: Tape, connect: Connect, data: &ConnectData, status: Status) -> Recording {
    let mut link = Link::open(&mut tape.node, tape.now, tape.digests, 1 << 20, 1);
    link.pump(&mut tape.node, tape.now);
    link.events.clear();
    let data = Exchange::Send(zerocopy::IntoBytes::as_bytes(data).to_vec());
    tape.expect(&mut link, connect.to_command(), data, status);
    tape.end(link)
}
