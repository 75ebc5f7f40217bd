//! A store on slices of a node's namespace, which is killed and opened again.
//!
//! What could break: a checkpoint that was acknowledged is not there after the process was killed, because the table of
//! slices is older than what was checkpointed, or names blocks that were not flushed. A child process works with known
//! steps; the node is in the parent. Rows are compared with those of a store in memory.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{serve, serve_at, settings};
use rowmill_host::{Client, NamespaceDevice, NvmeUrl, SlicedVolume};
use rowmill_io::{DirectoryVolume, IoChoice, MemoryVolume};
use rowmill_nvme::{Hosts, Role};
use rowmill_store::{
    Dtype, IdRange, Initializer, OptimizerSpec, StalenessBound, Store, StoreOptions, Table, TableSpec,
};
use rowmill_testkit::Rng64;

const FOLDER: &str = "ROWMILL_TEST_SLICES_FOLDER";
const URL: &str = "ROWMILL_TEST_SLICES_URL";
const IDS: u64 = 5000;
const KILLS: u64 = 6;
/// 64 MiB in blocks of 4 KiB.
const BLOCKS: u64 = 64 * 256;

fn options() -> StoreOptions {
    StoreOptions {
        memory: 32 << 20,
        row_memory: Some(288 << 10),
        threads: 2,
        seed: 7,
        ..StoreOptions::default()
    }
}

fn spec() -> TableSpec {
    TableSpec {
        dim: 16,
        dtype: Dtype::F32,
        optimizer: OptimizerSpec::Sgd { lr: 0.5 },
        initializer: Initializer::Uniform { low: -0.5, high: 0.5 },
        staleness: StalenessBound::Infinite,
        ids: IdRange::Sparse,
        eviction: None,
        admission: None,
    }
}

fn open(folder: &Path, url: &NvmeUrl) -> (Arc<Store>, Table) {
    let client = Arc::new(Client::connect(url, &settings()).unwrap());
    let device = NamespaceDevice::open(client, url).unwrap();
    let local = DirectoryVolume::open(folder, IoChoice::Auto).unwrap();
    let volume = SlicedVolume::open(Arc::new(local), Arc::new(device)).unwrap();
    let store = Store::open_volume(Arc::new(volume), options()).unwrap();
    let table = store.table("t", &spec()).unwrap();
    (store, table)
}

/// A step that depends on its number only. Every third one needs more rows than memory holds.
fn step(table: &Table) {
    let mut rng = Rng64::new(table.steps());
    let count = if table.steps() % 3 == 2 { 3000 } else { 200 };
    let ids: Vec<u64> = (0..count).map(|_| rng.below(IDS)).collect();
    let gradients: Vec<f32> = (0..count * 16).map(|_| rng.below(32) as f32 / 8.0 - 2.0).collect();
    table.rmw(&ids, &gradients, None, None).unwrap();
}

fn rows(table: &Table) -> Vec<f32> {
    let ids: Vec<u64> = (0..IDS).collect();
    let mut out = vec![0.0; ids.len() * 16];
    table.get(&ids, &mut out).unwrap();
    out
}

/// Not a test: the program of the child of the next test, which runs until it is killed.
#[test]
fn child_works_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let url = std::env::var(URL).unwrap().parse().unwrap();
    let (store, table) = open(folder.as_ref(), &url);
    let mut out = std::io::stdout();
    loop {
        for _ in 0..4 {
            step(&table);
        }
        let info = store.checkpoint(&[]).unwrap();
        writeln!(out, "\nsaved {}", info.epoch).unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn a_killed_store_has_its_last_acknowledged_checkpoint() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), MemoryVolume::new());
    let served = serve(&disk, BLOCKS);
    let memory = Store::open_volume(Arc::new(MemoryVolume::new()), options()).unwrap();
    let model = memory.table("t", &spec()).unwrap();
    let mut rng = Rng64::new(3);
    for _ in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_works_until_it_is_killed", "--nocapture"])
            .env(FOLDER, folder.path())
            .env(URL, served.url().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = |line: String| line.strip_prefix("saved ").and_then(|rest| rest.parse::<u64>().ok());
        let mut saved = 0;
        for _ in 0..=rng.below(3) {
            saved = lines.by_ref().find_map(said).expect("the child works");
        }
        std::thread::sleep(Duration::from_micros(rng.below(60_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        saved = lines.filter_map(said).last().unwrap_or(saved);
        let (store, table) = open(folder.path(), &served.url());
        // A checkpoint that was begun may have completed.
        assert!([saved, saved + 1].contains(&store.checkpoint_epoch()), "{saved}");
        assert_eq!(table.steps(), store.checkpoint_epoch() * 4);
        while model.steps() < table.steps() {
            step(&model);
        }
        assert!(rows(&table) == rows(&model));
    }
    served.end();
}

#[test]
fn a_store_whose_node_was_restarted_goes_on_from_its_checkpoint() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), MemoryVolume::new());
    let mut served = serve(&disk, BLOCKS);
    let url = served.url();
    let (store, table) = open(folder.path(), &url);
    for _ in 0..6 {
        step(&table);
    }
    store.checkpoint(&[]).unwrap();
    let expected = rows(&table);
    let address = served.end();
    served = serve_at(&disk, &address.to_string(), BLOCKS, Hosts::Any(Role::Write));
    // Reads wait for the reconnect.
    assert!(rows(&table) == expected);
    for _ in 0..3 {
        step(&table);
    }
    let address = served.end();
    served = serve_at(&disk, &address.to_string(), BLOCKS, Hosts::Any(Role::Write));
    // Written blocks were not flushed before the connection was lost. Whether the store wrote any since its checkpoint
    // depends on its memory, so both ends are right, but never a checkpoint without them.
    let checkpoint = store.checkpoint(&[]);
    let steps = if checkpoint.is_ok() { 9 } else { 6 };
    store.close();
    drop((table, store));
    let (_store, table) = open(folder.path(), &url);
    assert_eq!(table.steps(), steps);
    let memory = Store::open_volume(Arc::new(MemoryVolume::new()), options()).unwrap();
    let model = memory.table("t", &spec()).unwrap();
    for _ in 0..steps {
        step(&model);
    }
    assert!(rows(&table) == rows(&model));
    served.end();
}
