//! The host's machine against the storage node's, over bytes in pieces of any size.
//!
//! What could break: a field at a wrong offset, data that is mixed up between commands, a piece boundary inside of a header
//! or digest, a command that is never answered, a status that hides another. Expected results come from plain memory.

mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::*;
use proptest::prelude::*;
use rowmill_nvme::*;
use zerocopy::FromBytes;

const BOTH: Digests = Digests { header: true, data: true };
const NONE: Digests = Digests { header: false, data: false };

#[test]
fn a_controller_is_set_up_byte_by_byte() {
    for (digests, piece) in [(NONE, 1), (BOTH, 1), (BOTH, 7), (NONE, 100_000)] {
        let (mut node, now) = (Node::new(), Instant::now());
        let (mut admin, setup, ready) = connect_admin(&mut node, now, digests, piece, &nqn(1)).unwrap();
        assert_eq!((ready.controller, ready.io_queues, ready.io_queue_entries_max), (1, 2, ENTRIES_MAX));
        assert_eq!(ready.namespaces, [BLOCKS, ROWS, PROTECTED]);
        assert_eq!(ready.area.unwrap().features_max.get(), 64);
        let mut io = connect_io(&mut node, now, digests, piece, &setup, &ready, 1);
        let data: Vec<u8> = (0..1024).map(|at| at as u8).collect();
        let write = commands::write(BLOCKS, blocks(100, 2), true);
        assert_eq!(io.status(&mut node, now, write, Exchange::Send(data.clone())), Status::SUCCESS);
        let read = commands::read(BLOCKS, blocks(100, 2));
        assert_eq!(io.call(&mut node, now, read, Exchange::Receive(1024)).1, data);
        assert_eq!(admin.status(&mut node, now, commands::keep_alive(), Exchange::None), Status::SUCCESS);
    }
}

#[test]
fn the_largest_transfers_fit_and_larger_ones_are_refused() {
    let (mut node, now) = (Node::new(), Instant::now());
    let (_, setup, ready) = connect_admin(&mut node, now, BOTH, 9000, &nqn(1)).unwrap();
    let mut io = connect_io(&mut node, now, BOTH, 9000, &setup, &ready, 1);
    let data: Vec<u8> = (0..TRANSFER_BYTES_MAX).map(|at| (at / 3) as u8).collect();
    // Four at a time: two wait for room.
    for first in [0, 1024, 2048, 3072] {
        io.host
            .submit(commands::write(BLOCKS, blocks(first, 1024), false), Exchange::Send(data.clone()))
            .unwrap();
    }
    io.pump(&mut node, now);
    for _ in 0..4 {
        assert_eq!(io.completed().0.status(), Status::SUCCESS);
    }
    assert_eq!(node.connections[io.index].connection.held_bytes(), 0);
    for first in [0, 1024, 2048, 3072] {
        let read = commands::read(BLOCKS, blocks(first, 1024));
        assert_eq!(io.call(&mut node, now, read, Exchange::Receive(TRANSFER_BYTES_MAX)).1, data);
    }
    let long = commands::read(BLOCKS, blocks(0, 1025));
    assert_eq!(io.status(&mut node, now, long, Exchange::Receive(512)), Status::INVALID_FIELD);
}

#[test]
fn data_that_a_capsule_may_not_hold_is_asked_for() {
    let (mut node, now) = (Node::new(), Instant::now());
    let (_, setup, ready) = connect_admin(&mut node, now, NONE, 9000, &nqn(1)).unwrap();
    assert_eq!(
        (ready.capsule_data_bytes, ready.transfer_bytes_max),
        (CAPSULE_DATA_BYTES, TRANSFER_BYTES_MAX)
    );
    let mut io = connect_io(&mut node, now, NONE, 9000, &setup, &ready, 1);
    // As at a controller without room in its capsules.
    let limits = HostLimits {
        digests: NONE,
        commands_max: 4,
        capsule_data_bytes: 0,
        setup_time: Duration::from_secs(1),
    };
    let mut host = HostConnection::new(now, limits);
    std::mem::swap(&mut io.host, &mut host);
    io.index = node.open(now);
    io.pump(&mut node, now);
    io.events.clear();
    let SetupStep::Send { command, exchange, .. } = setup.connect_io(&ready, 2, 4) else { panic!() };
    assert_eq!(io.status(&mut node, now, command, exchange), Status::SUCCESS);
    let before = io.received.len();
    let write = commands::write(BLOCKS, blocks(30, 1), false);
    assert_eq!(io.status(&mut node, now, write, Exchange::Send(vec![5; 512])), Status::SUCCESS);
    assert_eq!(io.received[before], 9, "an R2T");
    assert_eq!(node.content[30 << 9..31 << 9], [5; 512]);
}

#[test]
fn data_is_asked_for_when_memory_for_it_is_lent() {
    let (mut node, now) = (Node::new(), Instant::now());
    let (_, setup, ready) = connect_admin(&mut node, now, NONE, 9000, &nqn(1)).unwrap();
    let mut io = connect_io(&mut node, now, NONE, 9000, &setup, &ready, 1);
    let index = io.index;
    assert_eq!(node.connections[index].connection.take_back(), HELD_BYTES_MAX);
    let bytes = 32 << 10;
    let write = |first| commands::write(BLOCKS, blocks(first, 64), false);
    io.submit(&mut node, now, write(0), Exchange::Send(vec![1; bytes]));
    io.submit(&mut node, now, write(64), Exchange::Send(vec![2; bytes]));
    let connection = |node: &mut Node| -> (usize, usize, bool) {
        let connection = &node.connections[index].connection;
        (connection.wanted_bytes(), connection.held_bytes(), connection.awaits_data())
    };
    assert_eq!((connection(&mut node), io.events.len()), ((bytes, 0, false), 0));
    // Data in capsules needs none.
    let small = commands::write(BLOCKS, blocks(200, 1), false);
    assert_eq!(io.status(&mut node, now, small, Exchange::Send(vec![3; 512])), Status::SUCCESS);
    node.connections[index].connection.lend(bytes);
    assert_eq!(connection(&mut node), (bytes, bytes, true), "the first one is asked for");
    assert_eq!(node.connections[index].connection.take_back(), 0, "the first one has it");
    // The answer of the first makes room for the second.
    io.pump(&mut node, now);
    assert_eq!(io.events.len(), 2);
    assert_eq!(connection(&mut node), (0, 0, false));
    assert_eq!(node.connections[index].connection.take_back(), bytes);
    assert_eq!((node.content[0], node.content[bytes], node.content[200 << 9]), (1, 2, 3));
}

#[test]
fn apply_commands_keep_the_order_of_their_capsules() {
    let (mut node, now) = (Node::new(), Instant::now());
    let (_, setup, ready) = connect_admin(&mut node, now, BOTH, 9000, &nqn(1)).unwrap();
    let mut io = connect_io(&mut node, now, BOTH, 9000, &setup, &ready, 1);
    let begin = encode_begin(ROWS, 42, &[TableSpec { name: "users", spec: "{}" }]);
    assert_eq!(io.status(&mut node, now, begin.0, Exchange::Send(begin.1)), Status::SUCCESS);
    // The data of every other frame is asked for; that of the rest comes at once. The end has none.
    for sequence in 0..8 {
        let payload = vec![7; if sequence % 2 == 0 { 20_000 } else { 100 }];
        let (command, data) = encode_frame(ROWS, sequence, 0, &payload);
        io.host.submit(command, Exchange::Send(data)).unwrap();
    }
    io.host.submit(Apply::end(ROWS, 7), Exchange::None).unwrap();
    io.pump(&mut node, now);
    assert_eq!(io.events.len(), 9);
    while !io.events.is_empty() {
        assert_eq!(io.completed().0.status(), Status::SUCCESS);
    }
}

#[test]
fn answers_follow_the_alignment_and_the_queue_of_the_host() {
    let (mut node, now) = (Node::new(), Instant::now());
    let (admin, ..) = connect_admin(&mut node, now, NONE, 9000, &nqn(1)).unwrap();
    let mut sent = admin.sent;
    // Data starts at multiples of 32 words.
    sent[10] = 31;
    let mut node = Node::new();
    let index = node.open(now);
    let (mut data, mut heads) = (0, Vec::new());
    let mut rest = &sent[..];
    while !rest.is_empty() {
        let (pdu, after) = rest.split_at(u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize);
        rest = after;
        node.connections[index].connection.receive(pdu);
        node.work(now, index);
        let connection = &mut node.connections[index].connection;
        let answer: Vec<u8> = connection.unsent().flatten().copied().collect();
        connection.sent(answer.len());
        let mut answers = &answer[..];
        if answers[0] == 7 {
            data += 1;
            assert_eq!(
                (answers[3], u32::from_le_bytes(answers[4..8].try_into().unwrap())),
                (128, 128 + 4096)
            );
            answers = &answers[128 + 4096..];
        }
        if answers[0] == 5 {
            heads.push(u16::from_le_bytes(answers[16..18].try_into().unwrap()));
        }
    }
    assert_eq!(data, 2, "Identify, twice");
    // The head of the submission queue moves by one with every response.
    assert_eq!(heads, (1..=heads.len() as u16).collect::<Vec<_>>());
}

#[test]
fn identify_and_log_pages_say_what_is_there() {
    let (mut node, now) = (Node::new(), Instant::now());
    let (mut admin, ..) = connect_admin(&mut node, now, NONE, 5000, &nqn(1)).unwrap();
    let mut identify = |node: &mut Node, cns, namespace| {
        admin.call(node, now, commands::identify(cns, namespace), Exchange::Receive(IDENTIFY_BYTES))
    };
    let (_, data) = identify(&mut node, cns::CONTROLLER, 0);
    let controller = IdentifyController::read_from_bytes(&data).unwrap();
    assert_eq!((controller.kind, controller.paths, controller.keep_alive_unit.get()), (1, 0, 10));
    assert_eq!((controller.command_capsule.get() * 16, controller.capsule_data_offset.get()), (8256, 0));
    assert_eq!(controller.sgls.get() & 3, 1);
    assert_eq!(&controller.serial, b"serial-1            ");
    let (_, data) = identify(&mut node, cns::NAMESPACE, BLOCKS);
    let namespace = IdentifyNamespace::read_from_bytes(&data).unwrap();
    assert_eq!((namespace.blocks.get(), namespace.block_shift, namespace.attributes), (4096, 9, 0));
    let (_, data) = identify(&mut node, cns::NAMESPACE, INACTIVE);
    assert_eq!(data, [0; 4096]);
    let (_, data) = identify(&mut node, cns::DESCRIPTORS, ROWS);
    assert_eq!(data[..44], [[2, 16, 0, 0].as_slice(), &[2; 16], &[3, 16, 0, 0], &[2; 16], &[0; 4]].concat());
    for (cns, number) in [(cns::NAMESPACE, 0), (cns::NAMESPACE, 5), (cns::DESCRIPTORS, INACTIVE)] {
        assert_eq!(identify(&mut node, cns, number).0.status(), Status::INVALID_NAMESPACE);
    }
    let mut page = |node: &mut Node, page, namespace, offset, bytes: u32| {
        let command = commands::log_page(page, namespace, offset, bytes, false);
        admin.call(node, now, command, Exchange::Receive(bytes as usize))
    };
    let (_, supported) = page(&mut node, page::COMMANDS, 0, 0, 4096);
    let commands = SupportedCommands::read_from_bytes(&supported).unwrap();
    assert_eq!((commands.io[0x81].get(), commands.io[0x83].get()), (1, 0));
    // In two parts, as a host with small transfers asks for them.
    let (_, first) = page(&mut node, page::COMMANDS, 0, 0, 2048);
    let (_, second) = page(&mut node, page::COMMANDS, 0, 2048, 2048);
    assert_eq!([first, second].concat(), supported);
    let (_, health) = page(&mut node, page::HEALTH, u32::MAX, 0, 512);
    assert_eq!(Health::read_from_bytes(&health).unwrap().spare, 100);
    let (_, found) = page(&mut node, page::TABLES, ROWS, 0, 4096);
    assert_eq!(parse_tables(&found).unwrap().1, tables());
    assert_eq!(page(&mut node, page::TABLES, BLOCKS, 0, 64).0.status(), Status::INVALID_NAMESPACE);
    assert_eq!(page(&mut node, page::DISCOVERY, 0, 0, 64).0.status(), Status::INVALID_LOG_PAGE);
}

#[test]
fn discovery_names_the_subsystems_that_a_host_may_use() {
    let (mut node, now) = (Node::new(), Instant::now());
    let discovery: Nqn = DISCOVERY_NQN.parse().unwrap();
    let (mut admin, ..) = connect_admin(&mut node, now, NONE, 5000, &discovery).unwrap();
    let mut names = |node: &mut Node| {
        let command = commands::log_page(page::DISCOVERY, 0, 0, 8192, false);
        let (_, data) = admin.call(node, now, command, Exchange::Receive(8192));
        let (header, rest) = DiscoveryHeader::read_from_prefix(&data).unwrap();
        let (entries, _) =
            <[DiscoveryEntry]>::ref_from_prefix_with_elems(rest, header.entries.get() as usize).unwrap();
        entries.iter().map(|entry| entry.subsystem[36]).collect::<Vec<_>>()
    };
    assert_eq!(names(&mut node).len(), 3);
    admin.call(&mut node, now, commands::set_async_events(1 << 31), Exchange::None);
    admin.submit(&mut node, now, commands::async_event(), Exchange::None);
    let mut fourth = subsystem(4);
    fourth.hosts = Hosts::Listed(Vec::new());
    node.port.add_subsystem(fourth);
    node.port_events();
    admin.pump(&mut node, now);
    assert_eq!(admin.completed().0.result.get(), 0x70_f002);
    let mut names = |node: &mut Node| {
        let command = commands::log_page(page::DISCOVERY, 0, 0, 1024, false);
        let (_, data) = admin.call(node, now, command, Exchange::Receive(1024));
        DiscoveryHeader::read_from_prefix(&data).unwrap().0.entries.get()
    };
    assert_eq!(names(&mut node), 3, "the fourth lets no host in");
}

#[test]
fn rows_are_staged_and_fetched() {
    let (mut node, now) = (Node::new(), Instant::now());
    let (_, setup, ready) = connect_admin(&mut node, now, BOTH, 3000, &nqn(1)).unwrap();
    let mut first = connect_io(&mut node, now, BOTH, 3000, &setup, &ready, 1);
    let mut second = connect_io(&mut node, now, BOTH, 3000, &setup, &ready, 2);
    let feature = FeatureRequest {
        table: 1,
        pooling: Pooling::Sum,
        offsets: &[0, 2],
        ids: IdsRequest::Eight(&[3, 4, 5]),
        weights: None,
    };
    let (stage, data) = encode_stage(ROWS, 42, Form::Pooled, RowDtype::Fp32, &[feature, feature]);
    assert_eq!(first.status(&mut node, now, stage, Exchange::Send(data.clone())), Status::SUCCESS);
    assert_eq!(first.status(&mut node, now, stage, Exchange::Send(data)), Status::HANDLE_IN_USE);
    // A result is valid on every queue of its controller.
    let fetch = Fetch { handle: 42, offset: 0, is_kept: false, takes_damaged: false };
    let (completion, answer) = second.call(&mut node, now, fetch.to_command(ROWS), Exchange::Receive(64));
    assert_eq!((completion.status(), answer.len()), (Status::SUCCESS, 64));
    let (header, result) = FetchHeader::parse(&answer).unwrap();
    let expected: Vec<u8> = [7.0_f32, 5.0, 7.0, 5.0].iter().flat_map(|sum| sum.to_le_bytes()).collect();
    assert_eq!((result, header.sequence.get()), (&expected[..], 77));
    let again = second.status(&mut node, now, fetch.to_command(ROWS), Exchange::Receive(64));
    assert_eq!(again, Status::UNKNOWN_HANDLE);
    let wrong = second.status(&mut node, now, fetch.to_command(BLOCKS), Exchange::Receive(64));
    assert_eq!(wrong, Status::INVALID_NAMESPACE);
}

#[test]
fn a_changed_namespace_is_told_once_until_its_log_is_read() {
    let (mut node, now) = (Node::new(), Instant::now());
    let (mut admin, ..) = connect_admin(&mut node, now, NONE, 5000, &nqn(1)).unwrap();
    admin.submit(&mut node, now, commands::async_event(), Exchange::None);
    let aborted = admin.submit(&mut node, now, commands::async_event(), Exchange::None);
    assert!(admin.events.is_empty());
    let mut grown = namespace(PROTECTED, Content::Blocks);
    grown.blocks = 8192;
    node.port.put_namespace(0, grown);
    node.port_events();
    admin.pump(&mut node, now);
    assert_eq!(admin.completed().0.result.get(), 0x04_0002);
    let changed = commands::log_page(page::CHANGED_NAMESPACES, 0, 0, 4096, false);
    let (_, data) = admin.call(&mut node, now, changed, Exchange::Receive(4096));
    assert_eq!(data[..8], [4, 0, 0, 0, 0, 0, 0, 0]);
    let (_, data) = admin.call(&mut node, now, changed, Exchange::Receive(4096));
    assert_eq!(data, [0; 4096], "it is read");
    let abort = commands::abort(0, aborted);
    assert_eq!(admin.submit(&mut node, now, abort, Exchange::None), aborted.wrapping_add(3));
    let (both, results): (Vec<_>, Vec<_>) = (0..2)
        .map(|_| admin.completed().0)
        .map(|completion| (completion.status(), completion.result.get()))
        .unzip();
    assert!(both.contains(&Status::ABORTED) && both.contains(&Status::SUCCESS), "{both:?}");
    assert_eq!(results, [0, 0]);
}

#[test]
fn a_silent_host_loses_its_controller() {
    let (mut node, now) = (Node::new(), Instant::now());
    let (mut admin, setup, ready) = connect_admin(&mut node, now, NONE, 5000, &nqn(1)).unwrap();
    let second = Duration::from_secs(1);
    assert_eq!(node.port.deadline(), Some(now + 5 * second));
    let later = now + 4 * second;
    admin.call(&mut node, later, commands::keep_alive(), Exchange::None);
    node.port.expire(now + 5 * second);
    assert_eq!(node.port.poll(), None);
    node.port.expire(later + 5 * second);
    assert_eq!(node.port.poll(), Some(PortEvent::Gone { controller: 1 }));
    assert_eq!((node.port.poll(), node.port.deadline()), (None, None));
    // Its number is gone, too.
    let mut io = Link::open(&mut node, later, NONE, 5000, 1);
    io.pump(&mut node, later);
    let SetupStep::Send { command, exchange, .. } = setup.connect_io(&ready, 1, 4) else { panic!() };
    io.events.clear();
    let (completion, _) = io.call(&mut node, later, command, exchange);
    assert_eq!(completion.status(), Status::CONNECT_INVALID_PARAMETERS);
    assert_eq!(completion.result.get(), 1 << 16 | 16);
}

#[test]
fn a_connection_that_is_not_set_up_ends() {
    let (mut node, now) = (Node::new(), Instant::now());
    let index = node.open(now);
    let deadline = node.connections[index].connection.deadline().unwrap();
    node.connections[index].connection.expire(now);
    assert!(!node.connections[index].connection.is_closed());
    node.connections[index].connection.expire(deadline);
    node.work(deadline, index);
    assert_eq!(node.closed, [(index, Closed::TimedOut)]);
    let limits = HostLimits {
        digests: NONE,
        commands_max: 1,
        capsule_data_bytes: CAPSULE_DATA_BYTES,
        setup_time: Duration::from_secs(1),
    };
    let mut host = HostConnection::new(now, limits);
    host.expire(now + limits.setup_time);
    assert_eq!(host.poll(), Some(HostEvent::Closed(HostClosed::TimedOut)));
}

#[test]
fn a_host_that_sends_too_many_commands_is_terminated() {
    let (mut node, now) = (Node::new(), Instant::now());
    let (mut admin, ..) = connect_admin(&mut node, now, NONE, 50_000, &nqn(1)).unwrap();
    let index = admin.index;
    // Held requests are commands of the queue, which has 32.
    for _ in 0..4 {
        admin.submit(&mut node, now, commands::async_event(), Exchange::None);
    }
    let status = admin.status(&mut node, now, commands::async_event(), Exchange::None);
    assert_eq!(status, Status::ASYNC_LIMIT_EXCEEDED);
    let mut bytes = vec![4, 0, 72, 0, 72, 0, 0, 0];
    let command = Command { cid: 0.into(), ..commands::write(BLOCKS, blocks(0, 100), false) };
    let command = Command { sgl: Sgl::transfer(51_200), ..command };
    bytes.extend(zerocopy::IntoBytes::as_bytes(&command));
    for cid in 100..128_u16 {
        assert!(!node.connections[index].connection.is_closed());
        bytes[10..12].copy_from_slice(&cid.to_le_bytes());
        node.connections[index].connection.receive(&bytes);
    }
    bytes[10] += 1;
    node.connections[index].connection.receive(&bytes);
    node.work(now, index);
    let Closed::Fatal(fatal) = node.closed[0].1 else { panic!("{:?}", node.closed) };
    assert_eq!(fatal.reason, FatalReason::LimitExceeded);
    let unsent: Vec<u8> = node.connections[index].connection.unsent().flatten().copied().collect();
    // The request for termination, with the header of the command that was one too many.
    assert_eq!(unsent[unsent.len() - 96..][..10], [3, 0, 24, 0, 96, 0, 0, 0, 5, 0]);
    assert!(unsent.ends_with(&bytes));
}

#[test]
fn a_reset_closes_queues_and_answers_held_requests() {
    let (mut node, now) = (Node::new(), Instant::now());
    let (mut admin, setup, ready) = connect_admin(&mut node, now, NONE, 5000, &nqn(1)).unwrap();
    connect_io(&mut node, now, NONE, 5000, &setup, &ready, 1);
    let queues = commands::set_io_queues(2);
    assert_eq!(admin.status(&mut node, now, queues, Exchange::None), Status::SEQUENCE_ERROR);
    admin.submit(&mut node, now, commands::async_event(), Exchange::None);
    let reset = Property::Configuration.set(0);
    admin.submit(&mut node, now, reset, Exchange::None);
    let statuses = [admin.completed().0.status(), admin.completed().0.status()];
    assert_eq!(statuses, [Status::SUCCESS, Status::ABORTED]);
    let status = admin.status(&mut node, now, commands::keep_alive(), Exchange::None);
    assert_eq!(status, Status::SEQUENCE_ERROR, "not ready");
}

/// One command of a mix, and what the model says of it.
#[derive(Clone, Debug)]
enum Act {
    Write { first: u64, count: u64, fill: u8 },
    Read { first: u64, count: u64 },
    Deallocate { first: u64, count: u64 },
    Flush,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let range = || (20_u64..200, 1_u64..40);
    prop::collection::vec(
        prop_oneof![
            (range(), any::<u8>()).prop_map(|((first, count), fill)| Act::Write { first, count, fill }),
            range().prop_map(|(first, count)| Act::Read { first, count }),
            range().prop_map(|(first, count)| Act::Deallocate { first, count }),
            Just(Act::Flush),
        ],
        1..40,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn commands_in_flight_equal_a_model_in_memory(
        acts in acts(), piece_max in 1_usize..20_000, bits in 0_u8..4, in_flight in 1_usize..12,
    ) {
        let digests = Digests { header: bits & 1 == 1, data: bits & 2 == 2 };
        let (mut node, now) = (Node::new(), Instant::now());
        let (_, setup, ready) = connect_admin(&mut node, now, digests, piece_max, &nqn(1)).unwrap();
        let mut io = connect_io(&mut node, now, digests, piece_max, &setup, &ready, 1);
        let mut model = vec![0_u8; 4096];
        // Reads in flight beside writes have no order: a batch is of one kind.
        for batch in acts.chunk_by(|a, b| std::mem::discriminant(a) == std::mem::discriminant(b)) {
            for part in batch.chunks(in_flight) {
                let mut expected = HashMap::new();
                for act in part {
                    let (command, exchange, read) = match *act {
                        Act::Write { first, count, fill } => {
                            model[first as usize..(first + count) as usize].fill(fill);
                            let data = vec![fill; (count as usize) << 9];
                            (commands::write(BLOCKS, blocks(first, count), false), Exchange::Send(data), None)
                        }
                        Act::Read { first, count } => {
                            let command = commands::read(BLOCKS, blocks(first, count));
                            let range = first as usize..(first + count) as usize;
                            (command, Exchange::Receive((count as usize) << 9), Some(range))
                        }
                        Act::Deallocate { first, count } => {
                            model[first as usize..(first + count) as usize].fill(0);
                            let (command, data) = commands::deallocate(BLOCKS, &[blocks(first, count)]);
                            (command, Exchange::Send(data), None)
                        }
                        Act::Flush => (commands::flush(BLOCKS), Exchange::None, None),
                    };
                    let cid = io.host.submit(command, exchange).unwrap();
                    // Writes that overlap go one after the other.
                    if !matches!(act, Act::Read { .. }) {
                        io.pump(&mut node, now);
                    }
                    expected.insert(cid, read);
                }
                io.pump(&mut node, now);
                for _ in part {
                    let (completion, data) = io.completed();
                    prop_assert_eq!(completion.status(), Status::SUCCESS);
                    let read = expected.remove(&completion.cid.get()).expect("one completion per command");
                    let wanted: Vec<u8> =
                        read.into_iter().flatten().flat_map(|block| [model[block]; 512]).collect();
                    prop_assert_eq!(data, wanted);
                }
            }
        }
        prop_assert!(io.events.is_empty());
        prop_assert_eq!(io.host.in_flight(), 0);
    }
}
