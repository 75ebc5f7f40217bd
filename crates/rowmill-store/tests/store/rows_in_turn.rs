//! Rows of many tables in one call, as the owner of rows in a distributed run reads them. The result must
//! equal separate calls per table, followed by one step on each.
//!
//! What could break: rows of one table are written in place of another's; a table without ids; gradients
//! reach a neighbouring row; rows that exceed memory; counts of lookups.

use std::sync::Arc;

use rowmill_store::*;

const DIM: usize = 12;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn spec() -> TableSpec {
    TableSpec {
        dim: DIM as u32,
        dtype: Dtype::F32,
        optimizer: OptimizerSpec::Adagrad { lr: 0.5, eps: 1e-10, initial_accumulator: 0.0 },
        initializer: Initializer::Uniform { low: -0.5, high: 0.5 },
        staleness: StalenessBound::Steps(0),
        ids: IdRange::Sparse,
        eviction: None,
        admission: None,
    }
}

fn open(row_memory: Option<u64>) -> (Arc<Store>, Vec<Table>) {
    let options =
        StoreOptions { memory: 16 << 20, row_memory, threads: 2, seed: 7, ..StoreOptions::default() };
    let store = Store::open_volume(Arc::new(MemoryVolume::new()), options).unwrap();
    let tables = NAMES.iter().map(|name| store.table(name, &spec()).unwrap()).collect();
    (store, tables)
}

/// Distinct ids of every table; one table has none.
fn asked(scale: u64) -> Vec<Vec<u64>> {
    let counts = [7 * scale, 0, scale, 3 * scale];
    (0..4)
        .map(|table| (0..counts[table]).map(|i| (i * 37 + table as u64) ^ (u64::MAX << 40)).collect())
        .collect()
}

fn rows<'a>(tables: &'a [Table], ids: &'a [Vec<u64>], times: &'a [Vec<u32>]) -> Vec<AskedRows<'a>> {
    tables.iter().zip(ids).zip(times).map(|((table, ids), times)| AskedRows { table, ids, times }).collect()
}

fn times(ids: &[Vec<u64>]) -> Vec<Vec<u32>> {
    ids.iter().map(|ids| (0..ids.len()).map(|i| i as u32 % 3).collect()).collect()
}

fn ramp(floats: usize) -> Vec<f32> {
    (0..floats).map(|i| (i % 101) as f32 / 50.0 - 1.0).collect()
}

/// Rows of all tables in one call, and a step on them, compared with calls per table.
fn compare(scale: u64, row_memory: Option<u64>) {
    let (store, tables) = open(row_memory);
    let (apart, alone) = open(None);
    let ids = asked(scale);
    let times = times(&ids);
    let floats = ids.iter().map(Vec::len).sum::<usize>() * DIM;
    for step in 0..3 {
        let (mut together, mut one_by_one) = (vec![f32::NAN; floats], Vec::new());
        let ticket = store.ticket().unwrap();
        let lookup = store.lookup_rows(&rows(&tables, &ids, &times), &mut together, Some(&ticket)).unwrap();
        for (table, ids) in alone.iter().zip(&ids) {
            let mut rows = vec![0.0; ids.len() * DIM];
            table.get_or_init(ids, &mut rows, None).unwrap();
            one_by_one.extend(rows);
        }
        assert_eq!(together, one_by_one, "step {step}");
        let gradients = ramp(floats);
        store.apply(&lookup, &gradients, 0, &[0.5; 4], Some(&ticket)).unwrap();
        let mut first = 0;
        for (table, ids) in alone.iter().zip(&ids) {
            table.rmw(ids, &gradients[first..first + ids.len() * DIM], None, None).unwrap();
            first += ids.len() * DIM;
        }
        let mut evaluated = vec![f32::NAN; floats];
        store.evaluate_rows(&rows(&tables, &ids, &times), &mut evaluated, None).unwrap();
        assert_ne!(evaluated, together);
    }
    let stats = store.stats();
    for (((name, table), ids), times) in NAMES.iter().zip(&tables).zip(&ids).zip(&times) {
        let asked: u64 = times.iter().map(|&times| u64::from(times)).sum();
        let of_table = stats.tables.iter().find(|table| table.name == *name).unwrap();
        assert_eq!(of_table.accesses, 6 * asked, "{name}");
        assert_eq!((table.len(), table.steps()), (ids.len(), 3), "{name}");
    }
    drop(apart);
}

#[test]
fn one_call_for_many_tables_equals_calls_per_table_and_one_step() {
    compare(9, None);
    compare(4000, None);
}

#[test]
fn rows_larger_than_memory_are_read_in_pieces() {
    compare(4000, Some(1 << 20));
}

#[test]
fn evaluation_returns_initial_values_and_creates_no_rows() {
    let (store, tables) = open(None);
    let (_, alone) = open(None);
    let ids = asked(5);
    let mut seen = vec![0.0; 55 * DIM];
    store.evaluate_rows(&rows(&tables, &ids, &times(&ids)), &mut seen, None).unwrap();
    let mut born = vec![0.0; 5 * DIM];
    alone[2].get_or_init(&ids[2], &mut born, None).unwrap();
    assert_eq!(seen[35 * DIM..40 * DIM], born);
    assert!(tables.iter().all(Table::is_empty));
}

#[test]
fn gradients_of_distinct_rows_are_applied_unchanged() {
    let (store, tables) = open(None);
    let ids = asked(5);
    let mut out = vec![0.0; 55 * DIM];
    let ticket = store.ticket().unwrap();
    let lookup = store.lookup_rows(&rows(&tables, &ids, &times(&ids)), &mut out, Some(&ticket)).unwrap();
    let gradients = ramp(55 * DIM);
    let mut first = 0;
    for (rows, (name, ids)) in
        store.row_gradients(&lookup, &gradients, 0).unwrap().iter().zip(NAMES.iter().zip(&ids))
    {
        assert_eq!((&rows.table[..], &rows.ids), (*name, ids));
        assert_eq!(rows.values, gradients[first..first + ids.len() * DIM]);
        first += ids.len() * DIM;
    }
}

#[test]
fn errors_name_wrong_lengths_and_gradients() {
    let (store, tables) = open(None);
    let ids = asked(5);
    let (times, mut out) = (times(&ids), vec![0.0; 55 * DIM]);
    let ticket = store.ticket().unwrap();
    let error = store.lookup_rows(&rows(&tables, &ids, &times), &mut out[1..], Some(&ticket)).unwrap_err();
    assert!(error.to_string().contains("55 rows of 12 floats"), "{error}");
    let fewer: Vec<Vec<u32>> = times.iter().map(|times| times[..times.len() / 2].to_vec()).collect();
    let error = store.lookup_rows(&rows(&tables, &ids, &fewer), &mut out, Some(&ticket)).unwrap_err();
    assert!(error.to_string().contains("one number for every id of table \"a\""), "{error}");
    let lookup = store.lookup_rows(&rows(&tables, &ids, &times), &mut out, Some(&ticket)).unwrap();
    let mut gradients = ramp(55 * DIM);
    let error = store.apply(&lookup, &gradients[1..], 0, &[0.5; 4], Some(&ticket)).unwrap_err();
    assert!(error.to_string().contains("55 rows of 12 floats"), "{error}");
    for (row, name) in [(0, "a"), (34, "a"), (35, "c"), (40, "d"), (54, "d")] {
        gradients[row * DIM + 3] = f32::NAN;
        let error = store.apply(&lookup, &gradients, 0, &[0.5; 4], Some(&ticket)).unwrap_err();
        assert!(error.to_string().contains(&format!("table {name:?}")), "{error} of row {row}");
        gradients[row * DIM + 3] = 0.0;
    }
}
