//! Compares adapters with the store: equal updates must give equal rows, otherwise a comparison of speeds is
//! meaningless.

use std::collections::BTreeSet;
use std::sync::Arc;

use rowmill_peers::{Engine, Exchange, MemoryLimit, PeerError, PeerKind, ReadAhead, serve_rows};
use rowmill_store::Table;

use crate::peer::open;
use crate::peer::rounds::{load, rmw, train};
use crate::settings::Settings;
use crate::stores;
use crate::training::{Batches, key};

fn settings(folder: &std::path::Path, optimizer: &str) -> Settings {
    let line = format!(
        "test --rows 5000 --row-bytes 64 --memory 536870912 --optimizer {optimizer} --tables 3 --batch 700 \
         --steps 4 --zipf 1.05 --folder {}",
        folder.display()
    );
    Settings::parse(line.split_whitespace().map(str::to_owned)).unwrap()
}

/// The weights of the rows of `keys`.
fn rows(engine: &dyn Engine, settings: &Settings, keys: &[u64]) -> Vec<f32> {
    let mut rows = vec![0.0; keys.len() * 16];
    engine.get(keys, &mut rows).unwrap();
    rows.chunks(16).flat_map(|row| row[..settings.dim()].to_vec()).collect()
}

fn weights(table: &Table, ids: &[u64]) -> Vec<f32> {
    let mut rows = vec![0.0; ids.len() * table.spec().dim as usize];
    table.get(ids, &mut rows).unwrap();
    rows
}

fn near(one: &[f32], other: &[f32]) {
    assert_eq!(one.len(), other.len());
    let far = one.iter().zip(other).position(|(a, b)| (a - b).abs() > 1e-5 * a.abs().max(1.0));
    assert_eq!(far, None);
}

/// The engines of this build; LMDB only if a control group can limit it.
fn kinds() -> impl Iterator<Item = PeerKind> {
    PeerKind::ALL.into_iter().filter(|kind| kind.is_built()).filter(|kind| {
        *kind != PeerKind::Lmdb
            || MemoryLimit::new(1 << 30).inspect_err(|error| eprintln!("skipped LMDB: {error}")).is_ok()
    })
}

#[test]
fn engines_give_the_results_of_the_store() {
    for kind in kinds() {
        updates_leave_the_rows_of_the_store(kind);
        training_changes_the_rows_it_names(kind);
        rows_are_served_over_a_file(kind);
    }
}

fn updates_leave_the_rows_of_the_store(kind: PeerKind) {
    for optimizer in ["sgd", "rowwise-adagrad"] {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), optimizer);
        let (_store, table) = stores::create(&settings, &settings.folder.join("store")).unwrap();
        stores::load(&table, settings.rows).unwrap();
        let engine = open(kind, &settings, 1, true).unwrap();
        load(&*engine, &settings, 1).unwrap();
        for batch in 0..3_u64 {
            // Some ids repeat. Gradients are large because the learning rate is small.
            let ids: Vec<u64> = (0..3000).map(|number| (number * number + batch) % 4999).collect();
            let gradients: Vec<f32> =
                (0..ids.len() * settings.dim()).map(|n| ((n % 23) as f32 - 11.0) * 1e5).collect();
            rmw(&*engine, &settings, &ids, &gradients).unwrap();
            table.rmw(&ids, &gradients, None, None).unwrap();
        }
        engine.settle().unwrap();
        let ids: Vec<u64> = (0..settings.rows).rev().collect();
        near(&rows(&*engine, &settings, &ids), &weights(&table, &ids));
        assert!(engine.get(&[settings.rows], &mut [0.0; 16]).is_err(), "reading a missing row must fail");
    }
}

fn training_changes_the_rows_it_names(kind: PeerKind) {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(folder.path(), "rowwise-adagrad");
    let engine: Arc<dyn Engine> = open(kind, &settings, settings.tables, true).unwrap().into();
    load(&*engine, &settings, settings.tables).unwrap();
    let mut batches = Batches::new(&settings);
    let ahead = ReadAhead::start(&engine, 2, 4000);
    assert_eq!(train(&*engine, &ahead, &settings, &mut batches, 2).unwrap(), 4 * 3 * 700);
    ahead.wait().unwrap();
    let named: BTreeSet<u64> = (0..settings.steps).flat_map(|step| batches.step(step).0.to_vec()).collect();
    let keys: Vec<u64> =
        (0..settings.tables).flat_map(|table| (0..settings.rows).map(move |id| key(table, id))).collect();
    let mut rows = vec![0.0; keys.len() * 16];
    engine.get(&keys, &mut rows).unwrap();
    // The sum of squares shows gradients that are too small to change the weights.
    let untouched = 0.1;
    let changed = keys.iter().zip(rows.chunks(16)).filter(|(_, row)| row[15] > untouched);
    assert_eq!(changed.map(|(key, _)| *key).collect::<BTreeSet<_>>(), named);
}

fn rows_are_served_over_a_file(kind: PeerKind) {
    let folder = tempfile::tempdir().unwrap();
    let exchange = folder.path().join("exchange");
    let line = format!(
        "test --row-bytes 8 --memory 536870912 --batch 6 --peer-threads 4 --folder {} --exchange {}",
        folder.path().display(),
        exchange.display()
    );
    let settings = Settings::parse(line.split_whitespace().map(str::to_owned)).unwrap();
    let engine: Arc<dyn Engine> = open(kind, &settings, 1, true).unwrap().into();
    let file = || Exchange::open(&settings.exchange, settings.batch, settings.row_bytes).unwrap();
    let ask = |keys: &[u64], rows: &[f32], requests: &str| {
        let mut bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        bytes.resize(6 * 8, 0);
        bytes.extend(rows.iter().flat_map(|value| value.to_le_bytes()));
        std::fs::write(&exchange, bytes).unwrap();
        let mut answers = Vec::new();
        serve_rows(&engine, &file(), 4, 4, requests.as_bytes(), &mut answers)?;
        let floats = std::fs::read(&exchange).unwrap()[6 * 8..].as_chunks().0.to_vec();
        let rows: Vec<f32> = floats.into_iter().map(f32::from_le_bytes).collect();
        Ok::<_, PeerError>((String::from_utf8(answers).unwrap(), rows))
    };
    let rows: Vec<f32> = (0..12_u8).map(f32::from).collect();
    ask(&[1, 2, 5, 6, 7, 9], &rows, "append 6\nsettle 0\n").unwrap();
    ask(&[2, 7], &[20.0, 21.0, 70.0, 71.0], "put 2\n").unwrap();
    let requests = "announce 5 1\nannounce 5 2\nget 5\nsettle 0\n";
    let (answers, found) = ask(&[1, 2, 6, 7, 9], &[0.0; 10], requests).unwrap();
    assert_eq!(answers, "ready\n".to_owned() + &"done\n".repeat(4));
    assert_eq!(found, [0.0, 1.0, 20.0, 21.0, 6.0, 7.0, 70.0, 71.0, 10.0, 11.0]);
    for (request, said) in
        [("get 7\n", "7 keys"), ("got 1\n", "\"got 1\""), ("get\n", "COMMAND"), ("announce 1\n", "STEPS")]
    {
        let error = ask(&[1], &[0.0; 2], request).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    assert!(ask(&[3], &[0.0; 2], "get 1\n").is_err(), "reading a missing row must fail");
}
