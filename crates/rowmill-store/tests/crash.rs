//! Killing the process at any point, on a real folder.
//!
//! What could break: an acknowledged checkpoint is missing or incomplete after the process was killed. A
//! child process works with known seeds and prints what it does. The parent kills it while it saves a
//! checkpoint, writes rows or cleans segments, then opens the folder and compares. Power failures are tested
//! by the simulation (`tests/simulation`).

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::*;
use rowmill_store::*;
use rowmill_testkit::Rng64;

const CHILD: &str = "ROWMILL_TEST_CRASH_FOLDER";
const THREADS: &str = "ROWMILL_TEST_CRASH_THREADS";
const STEPS_PER_CHECKPOINT: u64 = 5;
const KILLS: u64 = 30;
/// Lines that the child prints before it begins an operation. It is killed soon after one of them.
const MARKS: [&str; 3] = ["saving", "writing", "cleaned"];

/// Rows of fp32, and equal rows with bf16 and split-bf16 weights.
const NAMES: [&str; 3] = ["t", "narrow", "split"];

fn child_specs() -> [TableSpec; 3] {
    let spec = TableSpec { staleness: StalenessBound::Infinite, ..spec(16, SGD) };
    [spec, bf16(spec), split_bf16(spec)]
}

fn child_step(step: u64) -> (Vec<u64>, Vec<f32>) {
    let mut rng = Rng64::new(step);
    // From time to time more rows than fit into memory, which drives out all others.
    let count = if step % STEPS_PER_CHECKPOINT == 2 { 2000 } else { 100 };
    let ids: Vec<u64> = (0..count).map(|_| rng.below(5000)).collect();
    let values = gradients(&mut rng, ids.len() * 16);
    (ids, values)
}

/// Not a test: the program of the child of the next test, which runs until it is killed.
#[test]
fn child_works_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let threads = std::env::var(THREADS).unwrap().parse().unwrap();
    let store = Store::open(folder.as_ref(), spread(&options(Some(288 << 10)), threads)).unwrap();
    let specs = child_specs();
    let tables = [0, 1, 2].map(|which| store.table(NAMES[which], &specs[which]).unwrap());
    let table = &tables[0];
    let say = |mark: &str, number: u64| {
        let mut out = std::io::stdout();
        writeln!(out, "\n{mark} {number}").unwrap();
        out.flush().unwrap();
    };
    let mut cleaned = 0;
    loop {
        for _ in 0..STEPS_PER_CHECKPOINT {
            let (ids, values) = child_step(table.steps());
            if ids.len() > 1000 {
                say("writing", table.steps());
            }
            for table in &tables {
                table.rmw(&ids, &values, None, None).unwrap();
            }
            let now = store.stats().compactions;
            if now > cleaned {
                // After one segment was cleaned, cleaning of the next is in progress.
                cleaned = now;
                say("cleaned", cleaned);
            }
        }
        say("saving", store.checkpoint_epoch() + 1);
        let info = store.checkpoint(&[]).unwrap();
        say("saved", info.epoch);
    }
}

#[test]
fn a_killed_process_leaves_its_last_acknowledged_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut models = [0, 1, 2].map(|which| Model::new(child_specs()[which], which as u32));
    let mut rng = Rng64::new(9);
    let (mut while_saving, mut unacknowledged) = (0, 0);
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_works_until_it_is_killed", "--nocapture"])
            .env(CHILD, folder.path())
            .env(THREADS, thread_counts()[(kill / 3) as usize % thread_counts().len()].to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = |line: &str, mark: &str| {
            line.strip_prefix(mark).and_then(|rest| rest.trim_start().parse::<u64>().ok())
        };
        // Let the child acknowledge a checkpoint and continue, then begin the operation in which it is
        // killed.
        let mut acknowledged = lines.by_ref().find_map(|line| said(&line, "saved")).expect("the child works");
        let mut saving = 0;
        let mut take_note = |line: &str| {
            saving = said(line, "saving").unwrap_or(saving);
            acknowledged = said(line, "saved").unwrap_or(acknowledged);
        };
        let mark = MARKS[(kill % 3) as usize];
        for _ in 0..=rng.below(4) {
            lines
                .by_ref()
                .find(|line| {
                    take_note(line);
                    said(line, mark).is_some()
                })
                .expect("the child works");
        }
        std::thread::sleep(Duration::from_micros(rng.below(4000)));
        child.kill().unwrap();
        child.wait().unwrap();
        lines.for_each(|line| take_note(&line));
        while_saving += u64::from(saving > acknowledged);

        let store = Store::open(folder.path(), options(Some(288 << 10))).unwrap();
        let found = store.checkpoint_epoch();
        // A checkpoint that was begun may have completed.
        assert!(found == acknowledged || found == saving, "{found} after {acknowledged}, saving {saving}");
        unacknowledged += u64::from(found > acknowledged);
        for (model, name) in models.iter_mut().zip(NAMES) {
            let table = store.open_table(name).unwrap();
            assert_eq!(table.steps(), found * STEPS_PER_CHECKPOINT);
            while model.steps < table.steps() {
                let (ids, values) = child_step(model.steps);
                model.rmw(&ids, &values, 0.5);
            }
            model.check(&table);
        }
    }
    println!("{KILLS} kills, {while_saving} in a checkpoint, {unacknowledged} of those after it was durable");
    assert!(while_saving >= KILLS / 6, "only {while_saving} of {KILLS} kills came in a checkpoint");
}
