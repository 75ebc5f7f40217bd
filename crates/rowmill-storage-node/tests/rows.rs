//! Rows pooled by a node.
//!
//! What could break: vectors that differ from those of the store itself, results that come under another handle or before
//! their stage, requests that a wrong host or a careless program sends, damage on disk that becomes data, staged memory
//! without a bound. Expected values come from `Store::evaluate` on the same store.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rowmill_io::{BLOCK_BYTES, MemoryVolume};
use rowmill_nvme::*;
use rowmill_storage_node::{Export, ExportContent, NAMESPACE, RowsLimits};
use rowmill_store::{Dtype, IdBag, IdRange, Store, Table};
use rowmill_testkit::Rng64;

use self::common::tables::{self, DENSE_ROWS, spec};
use self::common::{Queue, Served, connect, connect_as, host};

const DIGESTS: Digests = Digests { header: true, data: true };
const LIMITS: RowsLimits =
    RowsLimits { staged_bytes_max: 4 << 20, lookups_per_second: None, staged_time: Duration::from_mins(1) };

/// Names in the order of the tables' numbers. The first two are one group.
const TABLES: [&str; 4] = ["users", "items", "words", "split"];

fn store(folder: &Path) -> Arc<Store> {
    let dense = IdRange::Dense { rows: DENSE_ROWS };
    let specs = [
        spec(9, Dtype::F32, IdRange::Sparse),
        spec(9, Dtype::F32, dense),
        spec(24, Dtype::Bf16, dense),
        spec(5, Dtype::SplitBf16, IdRange::Sparse),
    ];
    let tables: Vec<_> = TABLES.into_iter().zip(specs).collect();
    tables::store(folder, &tables)
}

fn serve(store: &Arc<Store>, limits: RowsLimits, hosts: Hosts) -> Served {
    let content = ExportContent::Store(Arc::clone(store), limits);
    common::serve(&MemoryVolume::new(), content, hosts)
}

fn serve_all(store: &Arc<Store>) -> Served {
    serve(store, LIMITS, Hosts::Any(Role::Write))
}

/// A feature of a random request.
struct Random {
    table: u32,
    pooling: Pooling,
    offsets: Vec<u32>,
    ids: Vec<u64>,
    weights: Option<Vec<f32>>,
}

impl Random {
    fn new(rng: &mut Rng64, table: u32) -> Random {
        let ids: Vec<u64> = (0..rng.below(40)).map(|_| rng.below(DENSE_ROWS)).collect();
        let mut offsets: Vec<u32> =
            (0..rng.below(9)).map(|_| rng.below(ids.len() as u64 + 1) as u32).collect();
        offsets.sort_unstable();
        if let Some(first) = offsets.first_mut() {
            *first = 0;
        }
        let ids = if offsets.is_empty() { Vec::new() } else { ids };
        let pooling = if rng.one_in(3) { Pooling::Mean } else { Pooling::Sum };
        let has_weights = pooling == Pooling::Sum && rng.one_in(2);
        let weights = has_weights.then(|| ids.iter().map(|_| rng.below(100) as f32 / 7.0).collect());
        Random { table, pooling, offsets, ids, weights }
    }

    /// What `Store::evaluate` says.
    fn expected(&self, store: &Arc<Store>, form: Form, dtype: RowDtype) -> Vec<u8> {
        let table = store.open_table(TABLES[self.table as usize]).unwrap();
        let ends: Vec<i64> = match form {
            Form::Rows => (0..=self.ids.len() as i64).collect(),
            Form::Pooled => {
                self.offsets.iter().map(|&offset| i64::from(offset)).chain([self.ids.len() as i64]).collect()
            }
        };
        let is_rows = form == Form::Rows;
        let pooling = match self.pooling {
            Pooling::Mean if !is_rows => rowmill_store::Pooling::Mean,
            _ => rowmill_store::Pooling::Sum,
        };
        let weights = self.weights.as_deref().filter(|_| !is_rows);
        let bag = IdBag { ids: &self.ids, offsets: &ends, weights, padding: None, pooling };
        let (dim, bags) = (table.spec().dim as usize, ends.len() - 1);
        evaluate(store, &table, bag, dim, bags, dtype)
    }
}

fn evaluate(
    store: &Store,
    table: &Table,
    bag: IdBag<'_>,
    dim: usize,
    bags: usize,
    dtype: RowDtype,
) -> Vec<u8> {
    if dtype == RowDtype::Fp32 {
        let mut out = vec![0_f32; bags * dim];
        store.evaluate(&[(table, bag)], &mut out, dim, None).unwrap();
        out.iter().flat_map(|value| value.to_le_bytes()).collect()
    } else {
        let mut out = vec![0_u16; bags * dim];
        store.evaluate(&[(table, bag)], &mut out, dim, None).unwrap();
        out.iter().flat_map(|value| value.to_le_bytes()).collect()
    }
}

/// Send a stage command.
fn submit_stage(io: &mut Queue, handle: u64, form: Form, dtype: RowDtype, features: &[FeatureRequest<'_>]) {
    let (command, mut data) = encode_stage(NAMESPACE, handle, form, dtype, features);
    data.resize(data.len().next_multiple_of(4), 0);
    io.host.submit(command, Exchange::Send(data)).unwrap();
}

fn stage(io: &mut Queue, handle: u64, features: &[FeatureRequest<'_>]) -> Status {
    submit_stage(io, handle, Form::Pooled, RowDtype::Fp32, features);
    io.completed().0.status()
}

fn fetch(io: &mut Queue, handle: u64, bytes: usize) -> Result<Vec<u8>, Status> {
    let fetch = Fetch { handle, offset: 0, is_kept: false, takes_damaged: false };
    let (damaged, part) = try_fetch(io, fetch, bytes)?;
    assert_eq!(damaged, 0);
    Ok(part)
}

/// How many vectors are damaged, and all vectors.
fn try_fetch(io: &mut Queue, fetch: Fetch, bytes: usize) -> Result<(u16, Vec<u8>), Status> {
    let wanted = (bytes + 32).next_multiple_of(4);
    let (status, data) = io.call(fetch.to_command(NAMESPACE), Exchange::Receive(wanted));
    if status != Status::SUCCESS {
        return Err(status);
    }
    let (header, part) = FetchHeader::parse(&data).unwrap();
    assert_eq!(header.total_bytes.get(), part.len() as u64);
    Ok((header.damaged.get(), part.to_vec()))
}

/// One bag of these ids.
fn bag(table: u32, ids: &[u64]) -> FeatureRequest<'_> {
    FeatureRequest { table, pooling: Pooling::Sum, offsets: &[0], ids: IdsRequest::Eight(ids), weights: None }
}

#[test]
fn pooled_vectors_have_the_bits_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let served = serve_all(&store);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (store, served) = (&store, &served);
            scope.spawn(move || {
                let (_admin, mut io) = connect(served, DIGESTS);
                let mut rng = Rng64::new(seed);
                for round in 0..30 {
                    // Several requests at a time: they share calls of the store.
                    let requests: Vec<_> = (0..6)
                        .map(|number| {
                            let group = [&[0, 1][..], &[2], &[3]][rng.below(3) as usize];
                            let features: Vec<Random> = (0..=rng.below(4))
                                .map(|_| {
                                    let table = group[rng.below(group.len() as u64) as usize];
                                    Random::new(&mut rng, table)
                                })
                                .collect();
                            let form = if rng.one_in(3) { Form::Rows } else { Form::Pooled };
                            let dtype = if rng.one_in(2) { RowDtype::Fp32 } else { RowDtype::Bf16 };
                            (round * 6 + number, features, form, dtype, rng.one_in(2))
                        })
                        .collect();
                    for (handle, features, form, dtype, is_short) in &requests {
                        let short: Vec<Vec<u32>> = features
                            .iter()
                            .map(|feature| feature.ids.iter().map(|&id| id as u32).collect())
                            .collect();
                        let is_rows = *form == Form::Rows;
                        let asked: Vec<_> = features
                            .iter()
                            .zip(&short)
                            .map(|(feature, short)| FeatureRequest {
                                table: feature.table,
                                pooling: if is_rows { Pooling::Sum } else { feature.pooling },
                                offsets: if is_rows { &[] } else { &feature.offsets },
                                ids: if *is_short {
                                    IdsRequest::Four(short)
                                } else {
                                    IdsRequest::Eight(&feature.ids)
                                },
                                weights: feature.weights.as_deref().filter(|_| !is_rows),
                            })
                            .collect();
                        submit_stage(&mut io, *handle, *form, *dtype, &asked);
                        // The fetch is sent before the stage is answered.
                        let bytes: usize =
                            features.iter().map(|feature| feature.expected(store, *form, *dtype).len()).sum();
                        let fetch =
                            Fetch { handle: *handle, offset: 0, is_kept: false, takes_damaged: false };
                        let wanted = (bytes + 32).next_multiple_of(4);
                        io.host.submit(fetch.to_command(NAMESPACE), Exchange::Receive(wanted)).unwrap();
                    }
                    let mut results = Vec::new();
                    for _ in 0..requests.len() * 2 {
                        let (completion, data) = io.completed();
                        assert_eq!(completion.status(), Status::SUCCESS);
                        if !data.is_empty() {
                            results.push(FetchHeader::parse(&data).unwrap().1.to_vec());
                        }
                    }
                    let mut expected: Vec<Vec<u8>> = requests
                        .iter()
                        .map(|(_, features, form, dtype, _)| {
                            features
                                .iter()
                                .flat_map(|feature| feature.expected(store, *form, *dtype))
                                .collect()
                        })
                        .collect();
                    // Answers come in any order.
                    results.sort();
                    expected.sort();
                    assert!(results == expected, "seed {seed}, round {round}");
                }
            });
        }
    });
    served.end();
}

#[test]
fn dense_tables_are_read_as_blocks_where_the_map_says() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let served = serve_all(&store);
    let (mut admin, mut io) = connect(&served, DIGESTS);
    let bytes = 16 + TABLES.len() * 296;
    let command = commands::log_page(page::TABLES, NAMESPACE, 0, bytes as u32, true);
    let (status, page) = admin.call(command, Exchange::Receive(bytes));
    assert_eq!(status, Status::SUCCESS);
    let (_, tables) = parse_tables(&page).unwrap();
    assert_eq!(tables.iter().map(|table| table.name.as_str()).collect::<Vec<_>>(), TABLES);
    assert_eq!(tables[0].group, tables[1].group);
    assert_ne!(tables[1].group, tables[2].group);
    assert_eq!((tables[0].index, tables[3].index), (TableIndex::Hash, TableIndex::Hash));
    let mut end = 0;
    for entry in &tables[1..3] {
        let TableIndex::Dense { rows, block, stride } = entry.index else { panic!("{entry:?}") };
        assert_eq!((rows, block), (DENSE_ROWS, end));
        let blocks = (rows * u64::from(stride)).div_ceil(BLOCK_BYTES as u64);
        end = block + blocks;
        // In pieces that begin and end within rows.
        let mut content = Vec::new();
        for first in block..end {
            content.extend(io.read(first, 1).1);
        }
        assert_eq!(io.read(block, blocks), (Status::SUCCESS, content.clone()));
        let table = store.open_table(&entry.name).unwrap();
        let ids: Vec<u64> = (0..DENSE_ROWS).collect();
        let ends: Vec<i64> = (0..=DENSE_ROWS as i64).collect();
        let pooling = rowmill_store::Pooling::Sum;
        let bag = IdBag { ids: &ids, offsets: &ends, weights: None, padding: None, pooling };
        let expected = evaluate(&store, &table, bag, entry.dim as usize, ids.len(), entry.dtype);
        assert!(content[..expected.len()] == expected, "{}", entry.name);
        assert!(content[expected.len()..].iter().all(|&byte| byte == 0));
    }
    assert_eq!(io.read(end, 1).0, Status::BLOCK_OUT_OF_RANGE);
    assert_eq!(io.write(0, vec![0; BLOCK_BYTES], false), Status::WRITE_PROTECTED);
    served.end();
}

#[test]
fn careless_requests_get_statuses_and_the_queue_serves_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let served = serve_all(&store);
    let (_admin, mut io, ready) = connect_as(&served, host(), DIGESTS).unwrap();
    assert_eq!(ready.area.unwrap().staged_bytes_max.get(), LIMITS.staged_bytes_max);
    let weighted_mean = FeatureRequest { pooling: Pooling::Mean, weights: Some(&[1.0]), ..bag(0, &[1]) };
    for (features, status) in [
        (&[bag(4, &[1])][..], Status::UNKNOWN_TABLE),
        (&[bag(0, &[1]), bag(2, &[1])], Status::MIXED_GROUPS),
        (&[bag(1, &[DENSE_ROWS])], Status::ID_OUT_OF_RANGE),
        (&[FeatureRequest { offsets: &[0, 2], ..bag(0, &[1]) }], Status::INVALID_OFFSETS),
        (&[FeatureRequest { offsets: &[1], ..bag(0, &[1]) }], Status::INVALID_OFFSETS),
        (&[weighted_mean], Status::MALFORMED),
        (&[bag(0, &[1, u64::MAX])], Status::SUCCESS),
        (&[bag(0, &[2])], Status::HANDLE_IN_USE),
    ] {
        assert_eq!(stage(&mut io, 5, features), status);
    }
    assert_eq!(fetch(&mut io, 6, 36), Err(Status::UNKNOWN_HANDLE));
    fetch(&mut io, 5, 36).unwrap();
    assert_eq!(fetch(&mut io, 5, 36), Err(Status::UNKNOWN_HANDLE), "it was freed");
    // More bytes than the host may stage.
    let ids: Vec<u64> = (0..60_000).collect();
    let mut staged = 0;
    while stage(&mut io, 100 + staged, &[bag(0, &ids)]) == Status::SUCCESS {
        staged += 1;
        assert!(staged < 100);
    }
    assert_eq!(stage(&mut io, 99, &[bag(0, &ids)]), Status::OVER_QUOTA);
    for handle in 0..staged {
        fetch(&mut io, 100 + handle, 36).unwrap();
    }
    assert_eq!(stage(&mut io, 99, &[bag(0, &ids)]), Status::SUCCESS);
    served.end();
}

#[test]
fn a_host_that_leaves_frees_what_it_staged() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let served = serve_all(&store);
    let ids: Vec<u64> = (0..60_000).collect();
    for _ in 0..3 {
        let (admin, mut io) = connect(&served, DIGESTS);
        let mut handle = 0;
        while stage(&mut io, handle, &[bag(0, &ids)]) == Status::SUCCESS {
            handle += 1;
        }
        assert!(handle > 5, "{handle}");
        drop((admin, io));
        // The node notices the end of the connection a moment later.
        let start = std::time::Instant::now();
        let (_admin, mut io) = connect(&served, DIGESTS);
        while stage(&mut io, 1, &[bag(0, &ids)]) != Status::SUCCESS {
            assert!(start.elapsed() < common::PATIENCE);
        }
    }
    served.end();
}

#[test]
fn lookups_are_limited_per_second() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let limits = RowsLimits { lookups_per_second: Some(100), ..LIMITS };
    let served = serve(&store, limits, Hosts::Any(Role::Read));
    let (_admin, mut io) = connect(&served, DIGESTS);
    let ids: Vec<u64> = (0..10_000).collect();
    assert_eq!(stage(&mut io, 1, &[bag(0, &ids)]), Status::SUCCESS);
    assert_eq!(stage(&mut io, 2, &[bag(0, &[1])]), Status::RATE_EXCEEDED);
    served.end();
}

#[test]
fn hosts_need_their_name_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let key = |first: char| {
        // The checksums are those of nvme-cli.
        let text = match first {
            'A' => "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
            _ => "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        };
        Some(text.parse::<Key>().unwrap())
    };
    let listed = vec![Host { name: host().name, role: Role::Read, key: key('A') }];
    let served = serve(&store, LIMITS, Hosts::Listed(listed));
    let with_key = |key| HostIdentity { key, ..host() };
    let (_admin, mut io, _) = connect_as(&served, with_key(key('A')), DIGESTS).unwrap();
    assert_eq!(stage(&mut io, 1, &[bag(0, &[1])]), Status::SUCCESS);
    fetch(&mut io, 1, 36).unwrap();
    // It may read only.
    let (command, data) = encode_frame(NAMESPACE, 1, 0, b"frame");
    assert_eq!(io.call(command, Exchange::Send(data)).0, Status::ACCESS_DENIED);
    // The same secret for another hash is another key.
    assert!(connect_as(&served, with_key(key('B')), DIGESTS).is_err());
    assert!(matches!(connect_as(&served, host(), DIGESTS), Err(Some(SetupError::NoKey))));
    let stranger = HostIdentity { name: Nqn::from_uuid([8; 16]), ..with_key(key('A')) };
    let refused = connect_as(&served, stranger, DIGESTS).err().unwrap();
    assert!(
        matches!(refused, Some(SetupError::Failed { status: Status::CONNECT_INVALID_HOST, .. })),
        "{refused:?}"
    );
    served.end();
}

fn pdus(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut pdus = Vec::new();
    while !bytes.is_empty() {
        let (pdu, rest) = bytes.split_at(u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize);
        pdus.push(pdu);
        bytes = rest;
    }
    pdus
}

#[test]
fn a_recorded_connection_does_not_authenticate_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let key: Key = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:".parse().unwrap();
    let listed = vec![Host { name: host().name, role: Role::Read, key: Some(key.clone()) }];
    let served = serve(&store, LIMITS, Hosts::Listed(listed));
    let (mut admin, _io, _) =
        connect_as(&served, HostIdentity { key: Some(key), ..host() }, DIGESTS).unwrap();
    assert_eq!(admin.call(commands::keep_alive(), Exchange::None).0, Status::SUCCESS);
    let recorded = pdus(&admin.sent);
    let mut replay = TcpStream::connect(served.address).unwrap();
    replay.set_read_timeout(Some(common::PATIENCE)).unwrap();
    let mut buffer = [0; 8192];
    // Each is answered, until the node ends the connection.
    let taken = recorded.iter().take_while(|pdu| {
        replay.write_all(pdu).is_ok() && replay.read(&mut buffer).is_ok_and(|bytes| bytes > 0)
    });
    // ICReq, Connect, the negotiation, the challenge, and the reply to a challenge of another connection.
    let (taken, sent) = (taken.count(), recorded.len());
    assert!((4..8).contains(&taken) && sent > taken + 4, "{taken} of {sent} PDUs were answered");
    let ended = replay.read(&mut buffer).map_err(|error| error.kind());
    assert!(matches!(ended, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)), "{ended:?}");
    served.end();
}

#[test]
fn a_node_proves_its_key_to_hosts_that_ask_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    // The second one is the first, with each byte of the secret one higher.
    let [host_key, node_key] = [
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
    ]
    .map(|text| text.parse::<Key>().unwrap());
    let serve = |key| {
        let hosts =
            Hosts::Listed(vec![Host { name: host().name, role: Role::Read, key: Some(host_key.clone()) }]);
        let content = ExportContent::Store(Arc::clone(&store), LIMITS);
        let export = Export { volume: &MemoryVolume::new(), content, hosts, key };
        common::serve_with(export, common::WIRE_MEMORY, Duration::from_secs(30))
    };
    let asking =
        |key: &Key| HostIdentity { key: Some(host_key.clone()), controller_key: Some(key.clone()), ..host() };
    let served = serve(Some(node_key.clone()));
    let (_admin, mut io, _) = connect_as(&served, asking(&node_key), DIGESTS).unwrap();
    assert_eq!(stage(&mut io, 1, &[bag(0, &[1])]), Status::SUCCESS);
    fetch(&mut io, 1, 36).unwrap();
    // A host need not ask.
    let identity = HostIdentity { key: Some(host_key.clone()), ..host() };
    connect_as(&served, identity, DIGESTS).unwrap();
    let failed = connect_as(&served, asking(&host_key), DIGESTS).err().unwrap();
    assert_eq!(failed, Some(SetupError::Auth(AuthError::ControllerFailed)), "it has another key");
    served.end();
    let served = serve(None);
    let failed = connect_as(&served, asking(&node_key), DIGESTS).err().unwrap();
    assert!(matches!(failed, Some(SetupError::Auth(_))), "it has none: {failed:?}");
    served.end();
}

#[test]
fn results_that_are_not_fetched_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    // Little memory, so that everything is pooled before it is dropped, also on a busy machine.
    let limits = RowsLimits { staged_bytes_max: 256 << 10, staged_time: Duration::from_secs(1), ..LIMITS };
    let served = serve(&store, limits, Hosts::Any(Role::Read));
    let (_admin, mut io, ready) = connect_as(&served, host(), DIGESTS).unwrap();
    assert_eq!(ready.area.unwrap().staged_seconds_max.get(), 1);
    let ids: Vec<u64> = (0..4000).collect();
    let mut handle = 0;
    while stage(&mut io, handle, &[bag(0, &ids)]) == Status::SUCCESS {
        handle += 1;
    }
    assert!(handle > 5);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(fetch(&mut io, 0, 36), Err(Status::UNKNOWN_HANDLE));
    // All their memory is free again.
    for handle in 0..handle {
        assert_eq!(stage(&mut io, handle, &[bag(0, &ids)]), Status::SUCCESS);
    }
    fetch(&mut io, 0, 36).unwrap();
    served.end();
}

#[test]
fn a_host_that_overruns_its_queue_is_terminated() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    let served = serve_all(&store);
    let (mut admin, mut io) = connect(&served, Digests { header: false, data: false });
    // The queue has 32 entries. These commands wait for data, which never comes.
    let (command, data) = encode_frame(NAMESPACE, 1, 0, &vec![0; 100_000]);
    for _ in 0..32 {
        io.host.submit(command, Exchange::Send(data.clone())).unwrap();
    }
    let mut bytes: Vec<u8> = io.host.unsent().flatten().copied().collect();
    // A capsule without data has 72 bytes on the wire. The identifier of the next one is not in use.
    let mut next = bytes[bytes.len() - 72..].to_vec();
    next[10..12].copy_from_slice(&u16::MAX.to_le_bytes());
    bytes.extend(next);
    io.stream.write_all(&bytes).unwrap();
    // Whatever was asked for before, the last PDU is a termination request for this reason.
    let mut received = Vec::new();
    io.stream.read_to_end(&mut received).unwrap();
    let mut at = 0;
    let mut kinds = Vec::new();
    while at < received.len() {
        kinds.push((received[at], received[at + 8]));
        at += u32::from_le_bytes(received[at + 4..at + 8].try_into().unwrap()) as usize;
    }
    assert_eq!(kinds.last(), Some(&(Kind::ControllerTerminate as u8, FatalReason::LimitExceeded as u8)));
    // Other queues are served, of this host and of others.
    assert_eq!(admin.call(commands::keep_alive(), Exchange::None).0, Status::SUCCESS);
    let (_admin, mut io) = connect(&served, DIGESTS);
    assert_eq!(stage(&mut io, 1, &[bag(0, &[1])]), Status::SUCCESS);
    served.end();
}

#[test]
fn damage_on_disk_is_a_status_whose_log_entry_names_table_and_block() {
    let folder = tempfile::tempdir().unwrap();
    // `words` is a group of its own. None of its rows is in memory yet.
    let (store, damaged) = tables::damage(store(folder.path()), folder.path(), "words", 500);
    let words = store.open_table("words").unwrap();
    let bad = damaged[0];
    let intact = (0..DENSE_ROWS).step_by(2).find(|id| !damaged.contains(id)).unwrap();

    let served = serve_all(&store);
    let (mut admin, mut io) = connect(&served, DIGESTS);
    let expected = {
        let mut row = vec![0.0; 24];
        words.get(&[intact], &mut row).unwrap();
        row.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()
    };
    // Both wait at once, so they may share a call of the store.
    let with_damage = [intact, bad, intact];
    for handle in 0..8 {
        let ids = if handle % 2 == 0 { &with_damage[..] } else { &[intact] };
        assert_eq!(stage(&mut io, handle, &[bag(2, ids)]), Status::SUCCESS);
    }
    for handle in 0..8 {
        let result = fetch(&mut io, handle, 96);
        let wanted = if handle % 2 == 0 { Err(Status::UNRECOVERED_READ_ERROR) } else { Ok(expected.clone()) };
        assert_eq!(result, wanted, "handle {handle}");
    }
    let command = commands::log_page(page::ERRORS, u32::MAX, 0, 64, true);
    let (_, entry) = admin.call(command, Exchange::Receive(64));
    let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
    let items_blocks = (DENSE_ROWS * 36).div_ceil(BLOCK_BYTES as u64);
    assert_eq!(word(32), 3, "table 2, plus one");
    assert_eq!(word(16), items_blocks + bad * 48 / BLOCK_BYTES as u64);
    assert_eq!(entry[24], 1, "namespace");
    // As blocks, too.
    assert_eq!(io.read(word(16), 1).0, Status::UNRECOVERED_READ_ERROR);
    // Other bags of the command are answered, to a fetch that takes damaged vectors.
    let ids = [intact, intact, bad, intact, bad, intact];
    let features = [
        FeatureRequest { offsets: &[0, 2, 3, 3, 5], ..bag(2, &ids) },
        bag(2, &ids[..1]),
        FeatureRequest { weights: Some(&[2.0, 0.5]), offsets: &[0, 1], ..bag(2, &ids[1..3]) },
    ];
    assert_eq!(stage(&mut io, 20, &features), Status::SUCCESS);
    let kept = Fetch { handle: 20, offset: 0, is_kept: true, takes_damaged: false };
    let bytes = 8 * 96;
    assert_eq!(try_fetch(&mut io, kept, bytes), Err(Status::UNRECOVERED_READ_ERROR), "it takes none");
    let (count, vectors) = try_fetch(&mut io, Fetch { takes_damaged: true, ..kept }, bytes).unwrap();
    let value = |factor: f32| -> Vec<u8> {
        let row = expected.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()) * factor);
        row.flat_map(f32::to_le_bytes).collect()
    };
    let broken = vec![DAMAGED_BYTE; 96];
    let wanted =
        [value(2.0), broken.clone(), vec![0; 96], broken.clone(), value(1.0), value(1.0), value(2.0), broken];
    assert_eq!(count, 3);
    for (at, (vector, wanted)) in vectors.chunks(96).zip(&wanted).enumerate() {
        assert!(vector == wanted, "vector {at}");
    }
    // So many are not looked for.
    let many = vec![bad; 100];
    let offsets: Vec<u32> = (0..100).collect();
    assert_eq!(stage(&mut io, 21, &[FeatureRequest { offsets: &offsets, ..bag(2, &many) }]), Status::SUCCESS);
    let fetch = Fetch { handle: 21, takes_damaged: true, ..kept };
    assert_eq!(try_fetch(&mut io, fetch, 100 * 96), Err(Status::UNRECOVERED_READ_ERROR));
    served.end();
}
