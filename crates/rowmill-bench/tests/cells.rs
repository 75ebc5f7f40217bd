//! Runs every cell with few rows, from its command line to its last output line. Benchmarks run rarely, so
//! without this test they could break unnoticed. The test checks which engines report, not how fast they are.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

/// The output lines of a cell.
fn lines(options: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let small = "--rows 20000 --row-bytes 64 --batch 512 --seconds 0.05 --rounds 2 --threads 2";
    let done = Command::new(env!("CARGO_BIN_EXE_rowmill-bench"))
        .args(options.split_whitespace().take(1))
        .args(small.split_whitespace())
        .args(options.split_whitespace().skip(1))
        .arg("--folder")
        .arg(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{options}: {said}");
    String::from_utf8(done.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The engines of these lines, which must all have processed rows.
fn engines(lines: &[Value]) -> BTreeSet<String> {
    let engines = lines.iter().filter(|line| line["engine"].is_string());
    engines
        .map(|line| {
            assert!(line["rows"].as_u64().unwrap() > 0, "{line}");
            format!("{} {}", line["engine"].as_str().unwrap(), line["round"])
        })
        .collect()
}

fn two_rounds(names: &[&str]) -> BTreeSet<String> {
    names.iter().flat_map(|name| [format!("{name} 0"), format!("{name} 1")]).collect()
}

#[test]
fn memory_cells_run_beside_the_probe() {
    for cell in ["memory-get", "memory-rmw --optimizer rowwise-adagrad"] {
        let lines = lines(&format!("{cell} --memory 100000000"));
        assert_eq!(engines(&lines), two_rounds(&["probe", "rowmill"]));
    }
}

#[test]
fn cold_cells_report_hit_rates() {
    for cell in ["cold-get", "cold-rmw", "cold-get --zipf 0.99 --warm-up 3 --drift-every 5000"] {
        let lines = lines(&format!("{cell} --rows 400000 --memory 20000000"));
        assert_eq!(engines(&lines), two_rounds(&["probe", "rowmill"]));
        let rates: Vec<f64> = lines.iter().filter_map(|line| line["hit_rate"].as_f64()).collect();
        assert!(rates.len() == 2 && rates.iter().all(|rate| (0.0..1.0).contains(rate)), "{cell}: {rates:?}");
    }
}

#[test]
fn clock_cells_run_with_and_without_clocks() {
    let lines = lines("clocks --memory 100000000 --threads 1");
    assert_eq!(engines(&lines), two_rounds(&["clocks_off", "clocks_on"]));
}

#[test]
fn space_is_watched_until_rows_are_rewritten_and_gets_are_timed() {
    let lines = lines("space --rows 400000 --memory 20000000 --rewrites 0.25");
    let last = lines.iter().rfind(|line| line["rewritten"].is_number()).unwrap();
    assert!(last["rewritten"].as_f64().unwrap() >= 0.25);
    assert!(lines.iter().filter(|line| line["checkpoint"] == true).count() >= 2);
    let timed: Vec<&str> = lines.iter().filter_map(|line| line["beside"].as_str()).collect();
    assert_eq!(timed, ["probe", "nothing", "updates"].repeat(2), "two rounds");
}

#[test]
fn a_checkpoint_is_taken_in_every_round() {
    let lines = lines("checkpoint --rows 400000 --memory 20000000 --zipf 1.05");
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line["changed_bytes"].as_u64().unwrap() > 0), "{lines:?}");
}

#[test]
fn a_store_opens_with_its_files_cached_or_not() {
    let cached: Vec<_> = lines("open --memory 50000000").iter().map(|line| line["cached"].clone()).collect();
    assert_eq!(cached, [false, true, false, true]);
}

#[test]
fn training_runs_with_lookahead_without_and_in_memory() {
    let lines =
        lines("training --tables 3 --rows 100000 --steps 3 --zipf 1.05 --memory 20000000 --warm-up 1");
    let names = ["probe", "rowmill", "rowmill_in_memory", "rowmill_no_lookahead"];
    assert_eq!(engines(&lines), two_rounds(&names));
}

#[test]
fn the_device_is_probed_through_the_log_of_an_existing_store() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("group-0.log"), vec![1; 1 << 20]).unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_rowmill-bench"))
        .args(["device", "--seconds", "0.05", "--rounds", "2", "--folder"])
        .arg(folder.path())
        .output()
        .unwrap();
    let lines: Vec<Value> = String::from_utf8(done.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(engines(&lines), two_rounds(&["probe"]));
}

#[test]
fn cells_that_cannot_run_are_errors() {
    for (options, said) in [
        (&["fast"][..], "cell \"fast\" does not exist"),
        (&["clocks", "--rows", "-1"], "--rows \"-1\""),
        (&["peer"], "peer needs an engine"),
    ] {
        let done = Command::new(env!("CARGO_BIN_EXE_rowmill-bench")).args(options).output().unwrap();
        assert!(!done.status.success());
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(error.contains(said), "{error}");
    }
}
