//! Fills and followers.
//!
//! What could break: rows that differ from the trainer's, also those that were never written; a half-written fill that is
//! served; frames that are lost or applied twice after a crash of the node, the trainer or the follower; a gap that goes
//! unnoticed. The node of the kills is a process of its own: this test program, which runs one of its tests.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rowmill_host::{HostError, HostSettings, NvmeUrl, Rows};
use rowmill_io::{DirectoryVolume, IoChoice, Volume};
use rowmill_nvme::*;
use rowmill_storage_node::{ExportContent, FilledOptions, Follower, RowsLimits, SendError, fill};
use rowmill_store::{Dtype, FeedChange, FeedEvent, FeedOptions, IdRange, Store, StoreOptions, Table};
use rowmill_testkit::Rng64;

use self::common::killing_proxy::{Kill, KillingProxy, Moment};
use self::common::{NodeProcess, Served, host};

const LIMITS: RowsLimits =
    RowsLimits { staged_bytes_max: 4 << 20, lookups_per_second: None, staged_time: Duration::from_mins(1) };
const DIM: usize = 6;
/// Ids of tests are below this; about half of them have rows.
const IDS: u64 = 2000;

fn spec(dtype: Dtype, ids: IdRange) -> rowmill_store::TableSpec {
    common::tables::spec(DIM as u32, dtype, ids)
}

const TABLES: [&str; 3] = ["users", "items", "words"];

fn specs() -> [rowmill_store::TableSpec; 3] {
    let dense = IdRange::Dense { rows: IDS };
    [spec(Dtype::F32, IdRange::Sparse), spec(Dtype::F32, dense), spec(Dtype::SplitBf16, IdRange::Sparse)]
}

/// A trainer's store, with its tables.
fn trainer(folder: &Path) -> (Arc<Store>, Vec<Table>) {
    let feed = FeedOptions { interval: Duration::from_millis(10), ..FeedOptions::default() };
    let options =
        StoreOptions { memory: 32 << 20, threads: 2, seed: 7, feed: Some(feed), ..StoreOptions::default() };
    let store = Store::open(folder, options).unwrap();
    let tables = TABLES.iter().zip(specs()).map(|(name, spec)| store.table(name, &spec).unwrap()).collect();
    (store, tables)
}

/// One step: new values for some ids.
fn train(tables: &[Table], rng: &mut Rng64) {
    for table in tables {
        let ids: Vec<u64> = (0..50).map(|_| rng.below(IDS)).collect();
        let values: Vec<f32> = (0..ids.len() * DIM).map(|_| rng.below(4000) as f32 / 777.0 - 2.0).collect();
        table.put(&ids, &values, None).unwrap();
    }
    tables[0].delete(&[rng.below(IDS)]).unwrap();
}

fn serve(folder: &Path) -> Served {
    serve_to(folder, Role::Write)
}

fn serve_to(folder: &Path, role: Role) -> Served {
    let volume = DirectoryVolume::create(folder, IoChoice::Auto).unwrap();
    // A checkpoint at each opportunity, so that kills hit some.
    let save_every = Duration::ZERO;
    let options = FilledOptions {
        folder: folder.to_owned(),
        memory: 32 << 20,
        fill_memory: 16 << 20,
        threads: 2,
        save_every,
    };
    common::serve(&volume, ExportContent::Filled(options, LIMITS), Hosts::Any(role))
}

fn url(served: &Served) -> NvmeUrl {
    format!("nvme+tcp://{}/{}", served.address, served.name()).parse().unwrap()
}

fn settings() -> HostSettings {
    HostSettings::new(host())
}

fn volume(folder: &Path) -> Arc<dyn Volume> {
    Arc::new(DirectoryVolume::open(folder, IoChoice::Pread).unwrap())
}

fn rows(served: &Served) -> Rows {
    rows_at(&url(served))
}

fn rows_at(url: &NvmeUrl) -> Rows {
    Rows::open(Arc::new(rowmill_host::Client::connect(url, &settings()).unwrap()), url).unwrap()
}

/// Compare all ids with the trainer's evaluation, to the bit.
fn assert_equal(served: &Served, tables: &[Table]) {
    assert_equal_at(&url(served), tables);
}

fn assert_equal_at(url: &NvmeUrl, tables: &[Table]) {
    let rows = rows_at(url);
    let ids: Vec<u64> = (0..IDS).collect();
    for table in tables {
        let mut expected = vec![0.0_f32; ids.len() * DIM];
        let asked = rowmill_store::AskedRows { table, ids: &ids, times: &vec![1; ids.len()] };
        table.store().evaluate_rows(&[asked], &mut expected, None).unwrap();
        let mut found = vec![0.0_f32; expected.len()];
        rows.get(&[(table.name(), &ids)], &mut found, Instant::now() + common::PATIENCE).unwrap();
        let differs = (0..ids.len()).find(|at| found[at * DIM..][..DIM] != expected[at * DIM..][..DIM]);
        assert_eq!(differs, None, "id of table {}", table.name());
    }
}

/// Follow until the node has everything that the trainer has published.
fn follow(follower: &mut Follower, store: &Arc<Store>) {
    let published = store.publish().unwrap();
    let start = Instant::now();
    while follower.run(Duration::from_millis(20)).unwrap().sequence != published {
        assert!(start.elapsed() < common::PATIENCE, "the follower does not reach frame {published}");
    }
}

#[test]
fn a_fill_has_all_rows_and_those_that_were_never_written() {
    let (run, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, tables) = trainer(run.path());
    let mut rng = Rng64::new(1);
    (0..20).for_each(|_| train(&tables, &mut rng));
    store.checkpoint(&[]).unwrap();
    let served = serve(data.path());
    let before = rows(&served);
    assert!(before.tables().unwrap().entries().is_empty());
    let report = fill(&[(volume(run.path()), None)], &[], &url(&served), &settings(), None).unwrap();
    assert_eq!((report.tables, report.rows > 1000), (3, true), "{report:?}");
    assert_equal(&served, &tables);
    // A connected host gets an event about the new tables.
    let start = Instant::now();
    while before.tables().unwrap().entries().len() != 3 {
        assert!(start.elapsed() < common::PATIENCE);
    }
    served.end();
    let served = serve(data.path());
    assert_equal(&served, &tables);
    // Rows in bf16 are rounded to nearest.
    fill(&[(volume(run.path()), None)], &[], &url(&served), &settings(), Some(Dtype::Bf16)).unwrap();
    let mut expected = [0.0_f32; DIM];
    tables[0].get(&[5], &mut expected).unwrap();
    let mut found = [0.0_f32; DIM];
    rows(&served).get(&[("users", &[5])], &mut found, Instant::now() + common::PATIENCE).unwrap();
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= expected.abs() / 256.0 && found.to_bits().trailing_zeros() >= 16);
    }
    served.end();
}

#[test]
fn an_unfinished_fill_changes_nothing_and_the_next_one_starts_over() {
    let (run, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, tables) = trainer(run.path());
    train(&tables, &mut Rng64::new(1));
    store.checkpoint(&[]).unwrap();
    let served = serve(data.path());
    fill(&[(volume(run.path()), None)], &[], &url(&served), &settings(), None).unwrap();
    let half = rows(&served);
    let text = serde_json::to_string(&specs()[0]).unwrap();
    half.begin_fill(1, &[TableSpec { name: "other", spec: &text }], soon()).unwrap();
    let status = |result: Result<_, HostError>| result.map(drop).unwrap_err().status().unwrap();
    let frame = |sequence| half.send_frame(sequence, 0, b"no frame", soon()).unwrap().wait();
    assert_eq!(status(frame(1)), Status::FILL_CONFLICT, "frame 0 comes first");
    assert_eq!(status(frame(0)), Status::MALFORMED);
    assert_equal(&served, &tables);
    // A follower goes on meanwhile.
    let mut follower = Follower::connect(volume(run.path()), &url(&served), &settings(), None).unwrap();
    train(&tables, &mut Rng64::new(2));
    follow(&mut follower, &store);
    assert_eq!(follower.run(Duration::from_millis(1)).unwrap().fills, 0);
    assert_equal(&served, &tables);
    // The node ends within the fill.
    served.end();
    assert!(data.path().join("rows-2").exists());
    let served = serve(data.path());
    assert!(!data.path().join("rows-2").exists(), "left-overs are removed");
    assert_equal(&served, &tables);
    let rows = rows(&served);
    assert_eq!(status(rows.end_fill(1, soon()).map(|()| unreachable!("no fill"))), Status::FILL_CONFLICT);
    let gap = rows.send_frame(1 << 40, 0, b"no frame", soon()).unwrap().wait();
    assert_eq!(status(gap), Status::FEED_GAP);
    let malformed = rows.begin_fill(1, &[TableSpec { name: "other", spec: "{}" }], soon());
    assert_eq!(status(malformed.map(|()| unreachable!())), Status::MALFORMED);
    store.checkpoint(&[]).unwrap();
    fill(&[(volume(run.path()), None)], &[], &url(&served), &settings(), None).unwrap();
    assert_equal(&served, &tables);
    served.end();
}

#[test]
fn a_follower_has_every_change_and_goes_on_after_each_side_ended() {
    let (run, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut store, mut tables) = trainer(run.path());
    let mut rng = Rng64::new(2);
    train(&tables, &mut rng);
    store.checkpoint(&[]).unwrap();
    let mut served = serve(data.path());
    let connect =
        |served: &Served| Follower::connect(volume(run.path()), &url(served), &settings(), None).unwrap();
    let mut follower = connect(&served);
    for round in 0..12 {
        (0..5).for_each(|_| train(&tables, &mut rng));
        follow(&mut follower, &store);
        assert_equal(&served, &tables);
        match round % 4 {
            // The follower ends, and another one goes on.
            0 => follower = connect(&served),
            // The node ends, with a checkpoint, and starts again at another port.
            1 => {
                drop(follower);
                served.end();
                served = serve(data.path());
                follower = connect(&served);
            }
            // The trainer crashes: it goes back to its last checkpoint, and tells so in the feed.
            2 => {
                drop((store, tables));
                (store, tables) = trainer(run.path());
                follow(&mut follower, &store);
                assert_equal(&served, &tables);
            }
            _ => {
                store.checkpoint(&[]).unwrap();
            }
        }
    }
    let followed = follower.run(Duration::from_millis(1)).unwrap();
    assert_eq!(followed.fills, 0, "the first follower filled, and no gap came: {followed:?}");
    served.end();
}

#[test]
fn lookups_during_fills_have_rows_of_one_fill() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let ids: Vec<u64> = (0..IDS).collect();
    for (folder, value) in folders.iter().zip([1.0, 2.0]) {
        let (store, tables) = trainer(folder.path());
        for table in &tables {
            table.put(&ids, &vec![value; ids.len() * DIM], None).unwrap();
        }
        store.checkpoint(&[]).unwrap();
    }
    let data = tempfile::tempdir().unwrap();
    let served = serve(data.path());
    let fill = |number: usize| {
        fill(&[(volume(folders[number].path()), None)], &[], &url(&served), &settings(), None).unwrap();
    };
    fill(0);
    let (is_done, lookups) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let rows = rows(&served);
                // Several commands per lookup.
                let many: Vec<u64> = (0..60_000).map(|at| at % IDS).collect();
                let mut found = vec![0.0_f32; many.len() * DIM];
                while !is_done.load(Ordering::Relaxed) {
                    rows.get(&[("users", &many)], &mut found, Instant::now() + common::PATIENCE).unwrap();
                    assert!(found[0] == 1.0 || found[0] == 2.0, "{}", found[0]);
                    assert!(found.iter().all(|&value| value == found[0]), "rows of two fills");
                    lookups.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 1..9 {
            let before = lookups.load(Ordering::Relaxed);
            fill(round % 2);
            let start = Instant::now();
            while lookups.load(Ordering::Relaxed) < before + 2 {
                assert!(start.elapsed() < common::PATIENCE);
                std::thread::yield_now();
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(lookups.load(Ordering::Relaxed) > 10);
    served.end();
}

#[test]
fn stores_of_many_ranks_are_merged_by_a_fill() {
    let runs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let data = tempfile::tempdir().unwrap();
    let ranks: Vec<_> = runs.iter().map(|run| trainer(run.path())).collect();
    // Each rank owns every other id, and has written half of its own.
    for ((store, tables), rank) in ranks.iter().zip(0_u64..) {
        let ids: Vec<u64> = (rank..IDS).step_by(4).collect();
        for table in tables {
            let values: Vec<f32> = (0..ids.len() * DIM).map(|at| at as f32 + 0.25).collect();
            table.put(&ids, &values, None).unwrap();
        }
        store.checkpoint(&[]).unwrap();
    }
    let served = serve(data.path());
    let sources: Vec<_> = runs.iter().map(|run| (volume(run.path()), None)).collect();
    let report = fill(&sources, &[], &url(&served), &settings(), None).unwrap();
    assert_eq!(report.rows, 3 * IDS / 2);
    let rows = rows(&served);
    let ids: Vec<u64> = (0..IDS).collect();
    for (at, name) in TABLES.into_iter().enumerate() {
        let mut found = vec![0.0_f32; ids.len() * DIM];
        rows.get(&[(name, &ids)], &mut found, Instant::now() + common::PATIENCE).unwrap();
        for ((store, tables), rank) in ranks.iter().zip(0..) {
            let own: Vec<u64> = (rank..IDS).step_by(2).collect();
            let mut expected = vec![0.0_f32; own.len() * DIM];
            let asked =
                rowmill_store::AskedRows { table: &tables[at], ids: &own, times: &vec![1; own.len()] };
            store.evaluate_rows(&[asked], &mut expected, None).unwrap();
            for (id, expected) in own.iter().zip(expected.chunks(DIM)) {
                assert_eq!(&found[*id as usize * DIM..][..DIM], expected, "id {id} of {name}");
            }
        }
    }
    served.end();
}

/// As a restored checkpoint: the log of a group without rows does not exist.
#[test]
fn a_group_without_rows_and_log_is_filled() {
    let (run, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, tables) = trainer(run.path());
    tables[0].put(&[1, 2], &[0.5; 2 * DIM], None).unwrap();
    store.checkpoint(&[]).unwrap();
    let group = tables[2].group_number();
    assert_ne!(group, tables[0].group_number());
    store.close();
    drop((store, tables));
    std::fs::remove_file(run.path().join(format!("group-{group}.log"))).unwrap();
    let served = serve(data.path());
    let report = fill(&[(volume(run.path()), None)], &[], &url(&served), &settings(), None).unwrap();
    assert_eq!((report.tables, report.rows), (3, 2));
    let (_store, tables) = trainer(run.path());
    assert_equal(&served, &tables);
    served.end();
}

fn soon() -> Instant {
    Instant::now() + common::PATIENCE
}

fn rows_on_one_queue(served: &Served) -> Rows {
    let node_url = url(served);
    let one_queue = HostSettings { io_queues: 1, ..settings() };
    let client = Arc::new(rowmill_host::Client::connect(&node_url, &one_queue).unwrap());
    Rows::open(client, &node_url).unwrap()
}

/// The payload of a frame that sets all weights of the ids below `count`.
fn frame_of_users(sequence: u64, dim: usize, count: u64, weight: f32) -> Vec<u8> {
    let ids: Vec<u64> = (0..count).collect();
    let weights = vec![weight; ids.len() * dim];
    let change = FeedChange::Rows { table: "users".into(), step: 0, dim, ids, weights };
    FeedEvent { sequence, published_ns: 0, change }.payload()
}

#[test]
fn frames_behind_a_refused_one_of_a_fill_do_not_reach_served_rows() {
    let data = tempfile::tempdir().unwrap();
    let served = serve(data.path());
    let rows = rows_on_one_queue(&served);
    let spec = serde_json::to_string(&specs()[0]).unwrap();
    let begin = || rows.begin_fill(7, &[TableSpec { name: "users", spec: &spec }], soon()).unwrap();
    let send = |sequence, dim, weight| {
        rows.send_frame(sequence, 0, &frame_of_users(sequence, dim, 10, weight), soon()).unwrap()
    };
    begin();
    send(0, DIM, 1.0).wait().unwrap();
    rows.end_fill(0, soon()).unwrap();
    begin();
    // The first one has rows of another length. The number of the next one follows that of the served rows.
    let sent = [send(0, DIM + 1, 2.0), send(1, DIM, 2.0), send(2, DIM, 2.0)];
    let statuses = sent.map(|frame| frame.wait().map(drop).unwrap_err().status());
    assert_eq!(statuses, [Status::MALFORMED, Status::FILL_CONFLICT, Status::FILL_CONFLICT].map(Some));
    let mut row = [0.0; DIM];
    let sequence = rows.get(&[("users", &[5])], &mut row, soon()).unwrap();
    assert_eq!((sequence, row), (0, [1.0; DIM]));
    served.end();
}

#[test]
fn frames_of_one_queue_are_applied_in_their_order() {
    let (run, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, tables) = trainer(run.path());
    train(&tables, &mut Rng64::new(1));
    store.checkpoint(&[]).unwrap();
    let served = serve(data.path());
    let filled = fill(&[(volume(run.path()), None)], &[], &url(&served), &settings(), None).unwrap().sequence;
    let rows = rows_on_one_queue(&served);
    let send = |sequence: u64, skipped, count| {
        let payload = frame_of_users(sequence, DIM, count, sequence as f32);
        rows.send_frame(sequence, skipped, &payload, soon()).unwrap()
    };
    // Every third frame is small enough for its capsule, so its data comes before that of the frame before it.
    let sent: Vec<_> = (1..=40).map(|at| send(filled + at, 0, if at % 3 == 0 { 10 } else { 6000 })).collect();
    for frame in sent {
        frame.wait().unwrap();
    }
    let mut row = [0.0; DIM];
    let sequence = rows.get(&[("users", &[5])], &mut row, soon()).unwrap();
    assert_eq!((sequence, row), (filled + 40, [(filled + 40) as f32; DIM]));
    // One is missing: none of those behind it is applied.
    let sent = [send(filled + 42, 0, 10), send(filled + 43, 0, 6000), send(filled + 44, 0, 10)];
    for frame in sent {
        assert_eq!(frame.wait().map(drop).unwrap_err().status(), Some(Status::FEED_GAP));
    }
    send(filled + 42, 1, 10).wait().unwrap();
    rows.get(&[("users", &[5])], &mut row, soon()).unwrap();
    assert_eq!(row, [(filled + 42) as f32; DIM]);
    served.end();
}

/// What the process of a node runs. In the tests' own process it does nothing.
#[test]
fn be_a_node() {
    common::be_a_node(serve);
}

/// A host that gives up soon.
fn short() -> HostSettings {
    HostSettings { command_time: Duration::from_secs(1), ..settings() }
}

#[test]
fn killed_at_any_moment_a_node_goes_on_and_gets_equal_to_the_trainer() {
    let kills = if std::env::var_os("ROWMILL_TEST_LONG").is_some() { 50 } else { 10 };
    let (run, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, tables) = trainer(run.path());
    let mut rng = Rng64::new(3);
    train(&tables, &mut rng);
    store.checkpoint(&[]).unwrap();
    let mut fills = 0;
    for round in 0..kills {
        let node = NodeProcess::start(data.path());
        let node_url: NvmeUrl = node.url.parse().unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Every third round fills all the time, the others follow. Both fail when the node is gone.
                while !is_done.load(Ordering::Relaxed) {
                    if round % 3 == 2 {
                        let _ = fill(&[(volume(run.path()), None)], &[], &node_url, &short(), None);
                    } else if let Ok(mut follower) =
                        Follower::connect(volume(run.path()), &node_url, &short(), None)
                    {
                        while !is_done.load(Ordering::Relaxed) {
                            if follower.run(Duration::from_millis(5)).is_err() {
                                break;
                            }
                        }
                    }
                }
            });
            scope.spawn(|| {
                // Batches run all the time.
                let Ok(client) = rowmill_host::Client::connect(&node_url, &short()) else { return };
                let Ok(rows) = Rows::open(Arc::new(client), &node_url) else { return };
                let ids: Vec<u64> = (0..IDS).collect();
                let mut found = vec![0.0_f32; ids.len() * DIM];
                while !is_done.load(Ordering::Relaxed) {
                    let deadline = Instant::now() + Duration::from_millis(500);
                    // Before the first fill there are no tables, and later no node.
                    if rows.get(&[(TABLES[0], &ids)], &mut found, deadline).is_err() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
            // Some rounds are long enough for checkpoints of the node, which come each second.
            let end = Instant::now() + Duration::from_millis(rng.below(1500));
            while Instant::now() < end {
                train(&tables, &mut rng);
                if rng.one_in(40) {
                    store.checkpoint(&[]).unwrap();
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            node.kill();
            is_done.store(true, Ordering::Relaxed);
        });
        let served = serve(data.path());
        let mut follower = Follower::connect(volume(run.path()), &url(&served), &settings(), None).unwrap();
        follow(&mut follower, &store);
        assert_equal(&served, &tables);
        fills += follower.run(Duration::from_millis(1)).unwrap().fills;
        served.end();
    }
    // Only a node that was killed before its first fill is empty.
    assert!(fills <= 1, "{fills} of {kills} kills were followed by a fill");
}

/// Followed through the proxy: the node is killed once, then is equal to the trainer. Returns how many fills were whole.
fn follow_a_killed_node(
    proxy: &KillingProxy,
    kill: Kill,
    follower: &mut Follower,
    store: &Arc<Store>,
    tables: &[Table],
) -> u64 {
    proxy.kill_at(kill);
    follow(follower, store);
    assert!(proxy.has_killed(), "no command was {kill:?}");
    // Of frames whose answer was lost, the node may have executed some after its last checkpoint.
    follow(follower, store);
    assert_equal_at(&proxy.url.parse().unwrap(), tables);
    follower.run(Duration::from_millis(1)).unwrap().fills
}

#[test]
fn a_follower_goes_on_after_the_node_was_killed_at_each_of_its_commands() {
    let run = tempfile::tempdir().unwrap();
    let (store, tables) = trainer(run.path());
    let mut rng = Rng64::new(5);
    (0..10).for_each(|_| train(&tables, &mut rng));
    store.checkpoint(&[]).unwrap();
    let connect = |proxy: &KillingProxy| {
        Follower::connect(volume(run.path()), &proxy.url.parse().unwrap(), &settings(), None).unwrap()
    };
    for when in [Kill::Before, Kill::After] {
        for moment in [Moment::BeginFill, Moment::Frame, Moment::EndFill, Moment::ReadTables] {
            let data = tempfile::tempdir().unwrap();
            let proxy = KillingProxy::start(data.path());
            let mut follower = connect(&proxy);
            let fills = follow_a_killed_node(&proxy, when(moment), &mut follower, &store, &tables);
            // A fill whose end was not answered may be whole.
            assert!(fills == 1 || moment == Moment::EndFill && fills == 0, "{fills} fills after {moment:?}");
        }
        let data = tempfile::tempdir().unwrap();
        let proxy = KillingProxy::start(data.path());
        fill(&[(volume(run.path()), None)], &[], &proxy.url.parse().unwrap(), &settings(), None).unwrap();
        for moment in [Moment::Stage, Moment::Fetch, Moment::Frame] {
            let mut follower = connect(&proxy);
            train(&tables, &mut rng);
            let fills = follow_a_killed_node(&proxy, when(moment), &mut follower, &store, &tables);
            assert_eq!(fills, 0, "the feed had no gap, {moment:?}");
        }
        // The node goes back to its last checkpoint, where this follower began.
        let mut follower = connect(&proxy);
        train(&tables, &mut rng);
        follow(&mut follower, &store);
        proxy.kill();
        train(&tables, &mut rng);
        follow(&mut follower, &store);
        assert_equal_at(&proxy.url.parse().unwrap(), &tables);
        assert_eq!(follower.run(Duration::from_millis(1)).unwrap().fills, 0, "the feed had no gap");
    }
}

#[test]
fn a_gap_and_a_new_table_in_the_feed_are_filled() {
    let (run, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, mut tables) = trainer(run.path());
    let mut rng = Rng64::new(4);
    train(&tables, &mut rng);
    store.checkpoint(&[]).unwrap();
    let served = serve(data.path());
    let mut follower = Follower::connect(volume(run.path()), &url(&served), &settings(), None).unwrap();
    follow(&mut follower, &store);
    assert_eq!(follower.run(Duration::from_millis(1)).unwrap().fills, 1, "an empty node is filled");
    // A table that the node does not know. The fill needs a checkpoint that has it.
    tables.push(store.table("tags", &spec(Dtype::F32, IdRange::Sparse)).unwrap());
    store.checkpoint(&[]).unwrap();
    train(&tables, &mut rng);
    follow(&mut follower, &store);
    assert_eq!(follower.run(Duration::from_millis(1)).unwrap().fills, 2);
    assert_equal(&served, &tables);
    // The trainer loses its feed, so the next one follows nothing.
    store.close();
    drop((store, tables));
    for entry in std::fs::read_dir(run.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("feed-") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let (store, mut tables) = trainer(run.path());
    tables.push(store.open_table("tags").unwrap());
    store.checkpoint(&[]).unwrap();
    train(&tables, &mut rng);
    follow(&mut follower, &store);
    assert_eq!(follower.run(Duration::from_millis(1)).unwrap().fills, 3);
    assert_equal(&served, &tables);
    served.end();
}

#[test]
fn a_store_without_a_feed_cannot_be_followed_and_readers_cannot_write() {
    let (run, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = StoreOptions { memory: 32 << 20, ..StoreOptions::default() };
    let store = Store::open(run.path(), options).unwrap();
    store.table("users", &specs()[0]).unwrap().put(&[1], &[1.0; DIM], None).unwrap();
    store.checkpoint(&[]).unwrap();
    let served = serve(data.path());
    let mut follower = Follower::connect(volume(run.path()), &url(&served), &settings(), None).unwrap();
    let error = follower.run(Duration::from_secs(5)).unwrap_err();
    assert!(matches!(error, SendError::Store(rowmill_store::StoreError::NoFeed { .. })), "{error}");
    served.end();
    let served = serve_to(data.path(), Role::Read);
    let error = fill(&[(volume(run.path()), None)], &[], &url(&served), &settings(), None).unwrap_err();
    assert!(error.to_string().contains("role \"write\""), "{error}");
    served.end();
}
