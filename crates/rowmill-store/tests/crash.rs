//! Losing the power, or the process, at any instant.
//!
//! What could break: a checkpoint that was acknowledged and is not there, or only partly; one that was
//! never finished and is taken for one; rows of the run that died found in the next. The simulated machine
//! loses unsynced writes whole or in part, in any order; a store opened on what is left must hold exactly
//! what its last acknowledged checkpoint held, or, if one was being made, exactly that one. Last, a child
//! process is killed for real while it works on a real folder.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::*;
use rowmill_io::{Fault, FaultyVolume, When};
use rowmill_store::*;
use rowmill_testkit::Rng64;

/// All of a table to the bit: weights and state by id, and the steps.
type Content = (BTreeMap<u64, Vec<u32>>, u64);

fn content(table: &Table) -> Result<Content, StoreError> {
    let mut ids = Vec::new();
    table.scan(64, |some, _| {
        ids.extend_from_slice(some);
        true
    })?;
    let (dim, state) = (table.spec().dim as usize, table.state_floats());
    let (mut weights, mut states) = (vec![0.0; ids.len() * dim], vec![0.0; ids.len() * state]);
    table.get(&ids, &mut weights)?;
    table.get_state(&ids, &mut states)?;
    let rows = weights.chunks(dim).zip(states.chunks(state));
    let rows =
        rows.map(|(weights, state)| weights.iter().chain(state).map(|value| value.to_bits()).collect());
    Ok((ids.into_iter().zip(rows).collect(), table.steps()))
}

/// What a checkpoint should hold: both tables and an attachment.
#[derive(Clone, Debug, Default, PartialEq)]
struct Saved {
    tables: Vec<Content>,
    attached: Vec<u8>,
}

struct Machine {
    volume: FaultyVolume,
    /// Checkpoints by number: all that were acknowledged, and the last that was tried.
    checkpoints: BTreeMap<u64, Saved>,
    acknowledged: u64,
    rng: Rng64,
}

const NAMES: [&str; 2] = ["a", "b"];

fn specs() -> [TableSpec; 2] {
    let first = TableSpec { staleness: StalenessBound::Infinite, ..spec(8, ADAGRAD) };
    [first, TableSpec { dim: 300, ..first }]
}

impl Machine {
    fn open(&self) -> (Arc<Store>, [Table; 2]) {
        let options = StoreOptions { threads: 1, ..options(Some(160 << 10)) };
        let store = open(&self.volume, &options);
        let tables = [0, 1].map(|which| store.table(NAMES[which], &specs()[which]).unwrap());
        (store, tables)
    }

    /// Open what the crash left and compare.
    fn verify(&mut self) {
        let (store, tables) = self.open();
        let epoch = store.checkpoint_epoch();
        assert!(
            epoch == self.acknowledged || epoch == self.acknowledged + 1,
            "stands at checkpoint {epoch}, the last acknowledged one was {}",
            self.acknowledged
        );
        let found = Saved {
            tables: tables.iter().map(|table| content(table).unwrap()).collect(),
            attached: store.attachment("model").unwrap().unwrap_or_default(),
        };
        let expected =
            self.checkpoints.get(&epoch).unwrap_or_else(|| panic!("checkpoint {epoch} was never tried"));
        assert!(found == *expected, "checkpoint {epoch} holds something else");
        for (table, (rows, _)) in tables.iter().zip(&expected.tables) {
            assert_eq!(table.len(), rows.len());
        }
        self.acknowledged = epoch;
        self.checkpoints.retain(|&other, _| other == epoch);
    }

    /// Work until something fails or enough is done.
    fn work(&mut self, calls: u64) -> Result<(), StoreError> {
        let (store, tables) = self.open();
        for _ in 0..calls {
            let which = usize::from(self.rng.one_in(4));
            let (table, count) = (&tables[which], 1 + self.rng.below([120, 12][which]));
            let ids: Vec<u64> = (0..count).map(|_| self.rng.below([900, 90][which])).collect();
            let dim = table.spec().dim as usize;
            match self.rng.below(10) {
                0 => drop(table.delete(&ids)?),
                1 | 2 => table.put(&ids, &gradients(&mut self.rng, ids.len() * dim), None)?,
                3 => table.get(&ids, &mut vec![0.0; ids.len() * dim])?,
                4 | 5 => self.checkpoint(&store, &tables)?,
                _ => table.rmw(&ids, &gradients(&mut self.rng, ids.len() * dim), None, None)?,
            }
        }
        Ok(())
    }

    fn checkpoint(&mut self, store: &Store, tables: &[Table]) -> Result<(), StoreError> {
        let saved = Saved {
            tables: tables.iter().map(content).collect::<Result<_, _>>()?,
            attached: self.rng.next_u64().to_le_bytes().to_vec(),
        };
        let attached = saved.attached.clone();
        self.checkpoints.insert(self.acknowledged + 1, saved);
        let info = store.checkpoint(&[("model", &attached)])?;
        assert_eq!(info.epoch, self.acknowledged + 1);
        self.acknowledged += 1;
        Ok(())
    }

    fn crash(&mut self) {
        let crash = self.volume.crash();
        self.volume = crash.volume;
        self.volume.heal();
    }
}

/// 240 machines, each crashing three times: between calls, after a write or sync that failed, or in the
/// middle of whatever happens when another thread pulls the plug.
#[test]
fn a_crash_leaves_the_last_checkpoint_whole() {
    let (mut failed, mut saved) = (0, 0);
    for seed in 0..240 {
        let mut machine = Machine {
            volume: FaultyVolume::over_memory(MemoryVolume::crashable(), seed),
            checkpoints: BTreeMap::new(),
            acknowledged: 0,
            rng: Rng64::new(seed),
        };
        machine.checkpoints.insert(0, Saved { tables: vec![(BTreeMap::new(), 0); 2], attached: Vec::new() });
        for round in 0..3 {
            let calls = machine.rng.below(25);
            match (seed + round) % 3 {
                0 => machine.work(calls).unwrap(),
                1 => {
                    let kinds = [Fault::WriteError, Fault::SyncError, Fault::Full, Fault::RenameError];
                    let fault = kinds[machine.rng.below(4) as usize];
                    machine.volume.inject(fault, When::Nth(1 + machine.rng.below(12)));
                    // Opening writes too: a store that could not be opened has changed nothing.
                    let opened =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| machine.work(calls)));
                    failed += u64::from(!matches!(opened, Ok(Ok(()))));
                }
                _ => {
                    let plug = machine.volume.clone();
                    let delay = Duration::from_micros(machine.rng.below(8000));
                    let puller = std::thread::spawn(move || {
                        std::thread::sleep(delay);
                        plug.crash().volume
                    });
                    let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| machine.work(100)));
                    failed += u64::from(!matches!(opened, Ok(Ok(()))));
                    machine.volume = puller.join().unwrap();
                    machine.verify();
                    continue;
                }
            }
            saved += machine.acknowledged;
            machine.crash();
            machine.verify();
        }
    }
    assert!(failed > 50 && saved > 200, "{failed} rounds failed, {saved} checkpoints were acknowledged");
}

const CHILD: &str = "ROWMILL_TEST_CRASH_FOLDER";
const STEPS_PER_CHECKPOINT: u64 = 5;
const KILLS: u64 = 10;

fn child_spec() -> TableSpec {
    TableSpec { staleness: StalenessBound::Infinite, ..spec(16, SGD) }
}

fn child_step(step: u64) -> (Vec<u64>, Vec<f32>) {
    let mut rng = Rng64::new(step);
    let ids: Vec<u64> = (0..100).map(|_| rng.below(5000)).collect();
    let values = gradients(&mut rng, 1600);
    (ids, values)
}

/// Not a test by itself: what the child of the next one runs, until it is killed.
#[test]
fn child_works_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let store = Store::open(folder.as_ref(), options(Some(128 << 10))).unwrap();
    let table = store.table("t", &child_spec()).unwrap();
    let mut out = std::io::stdout();
    loop {
        for _ in 0..STEPS_PER_CHECKPOINT {
            let (ids, values) = child_step(table.steps());
            table.rmw(&ids, &values, None, None).unwrap();
        }
        let info = store.checkpoint(&[]).unwrap();
        writeln!(out, "\nsaved {}", info.epoch).unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn a_killed_process_leaves_its_last_acknowledged_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = Model::new(child_spec(), 0);
    let mut rng = Rng64::new(9);
    let mut acknowledged = 0_u64;
    for _ in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_works_until_it_is_killed", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let epoch = |line: String| line.strip_prefix("saved ").and_then(|epoch| epoch.parse::<u64>().ok());
        // Let it acknowledge something, then some time.
        let first = lines.by_ref().map_while(Result::ok).find_map(epoch);
        acknowledged = first.expect("the child works");
        std::thread::sleep(Duration::from_micros(rng.below(150_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged = lines.map_while(Result::ok).filter_map(epoch).last().unwrap_or(acknowledged);

        let store = Store::open(folder.path(), options(Some(128 << 10))).unwrap();
        let table = store.open_table("t").unwrap();
        let found = store.checkpoint_epoch();
        assert!(found == acknowledged || found == acknowledged + 1, "{found} after {acknowledged}");
        assert_eq!(table.steps(), found * STEPS_PER_CHECKPOINT);
        while model.steps < table.steps() {
            let (ids, values) = child_step(model.steps);
            model.rmw(&ids, &values, 0.5);
        }
        model.check(&table);
    }
    assert!(acknowledged >= KILLS);
}
