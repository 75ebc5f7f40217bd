//! Tables of bf16 weights besides tables of 32-bit weights. Random calls on both are in `model`, `changes`,
//! `feed`, `eviction` and `crash`.
//!
//! What could break: rounding undoes small steps; a run that was closed and reopened rounds differently from
//! an uninterrupted one; a row uses as many bytes as with 32-bit weights; a value becomes infinite unnoticed.

use std::sync::Arc;

use crate::common::*;
use rowmill_store::*;
use rowmill_testkit::Rng64;

const DIM: usize = 64;

fn narrow_spec() -> TableSpec {
    bf16(spec(DIM as u32, SGD))
}

fn in_memory() -> Arc<Store> {
    open(&MemoryVolume::new(), &options(None))
}

fn rows(table: &Table, ids: &[u64]) -> Vec<f32> {
    let mut rows = vec![0.0; ids.len() * table.spec().dim as usize];
    table.get(ids, &mut rows).unwrap();
    rows
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn put_values_are_rounded_to_the_nearest() {
    let store = in_memory();
    let table = store.table("t", &bf16(spec(4, SGD))).unwrap();
    // Between 1 and 1 + 2^-7: nearer to the lower, nearer to the upper, and in the middle, twice.
    let gap = 1.0 / 128.0;
    let values = [1.003, 1.005, 1.0 + gap / 2.0, 1.0 + gap * 1.5];
    table.put(&[7], &values, None).unwrap();
    assert_eq!(rows(&table, &[7]), [1.0, 1.0 + gap, 1.0, 1.0 + 2.0 * gap]);
    assert!(
        rows(&table, &[8, 9]).iter().all(|weight| weight.to_bits().trailing_zeros() >= 16),
        "missing rows, too"
    );
    let largest = f32::from_bits(0x7f7f_7fff);
    table.put(&[7], &[largest, -largest, 0.0, -0.0], None).unwrap();
    assert!(rows(&table, &[7]).iter().all(|weight| weight.is_finite()));
    let error = table.put(&[7], &[0.0, 3.4e38, 0.0, 0.0], None).unwrap_err().to_string();
    assert_eq!(error, "values must be below 3.3961775e38 in table \"t\", whose dtype is bf16, got 3.4e38");
}

#[test]
fn rows_take_half_the_bytes_in_memory_and_on_the_device() {
    let ids: Vec<u64> = (0..10_000).collect();
    let [wide, narrow] = [spec(DIM as u32, SGD), narrow_spec()].map(|spec| {
        let store = in_memory();
        let table = store.table("t", &spec).unwrap();
        table.rmw(&ids, &vec![0.5; ids.len() * DIM], None, None).unwrap();
        store.checkpoint(&[]).unwrap();
        (table.row_bytes(), store.stats().row_bytes, store.stats().device_live_bytes)
    });
    assert_eq!((wide.0, narrow.0), (256, 128));
    assert!(narrow.1 * 10 < wide.1 * 6 && narrow.2 * 10 < wide.2 * 6, "{narrow:?} of {wide:?}");
}

#[test]
fn an_existing_table_keeps_its_dtype() {
    let store = in_memory();
    store.table("t", &narrow_spec()).unwrap();
    let error = store.table("t", &spec(DIM as u32, SGD)).unwrap_err().to_string();
    assert!(error.contains("dtype") && error.contains("bf16") && error.contains("fp32"), "{error}");
}

/// Each step is a hundredth of the gap between two bf16 weights. With rounding to nearest, no weight would
/// ever change.
#[test]
fn stochastic_rounding_lets_small_steps_add_up() {
    let store = in_memory();
    let spec = TableSpec { initializer: Initializer::Constant { value: 1.0 }, ..narrow_spec() };
    let table = store.table("t", &spec).unwrap();
    let ids: Vec<u64> = (0..200).collect();
    let gradients = vec![-1.0 / 12_800.0; ids.len() * DIM];
    for _ in 0..200 {
        table.rmw(&ids, &gradients, Some(1.0), None).unwrap();
    }
    let rows = rows(&table, &ids);
    let mean = rows.iter().map(|&weight| f64::from(weight)).sum::<f64>() / rows.len() as f64;
    // 200 steps move a weight up by 2^-7 with probability 0.01 each: standard deviation 1.41 gaps, averaged
    // over all weights.
    let (gap, error) = (1.0 / 128.0, 1.41 / 128.0 / (rows.len() as f64).sqrt());
    assert!((mean - 1.0 - 2.0 * gap).abs() < 4.0 * error, "mean {mean}");
}

/// A run that is reopened at its checkpoint and continued is bit-identical to an uninterrupted run. A run
/// with another seed is not.
#[test]
fn a_reopened_run_rounds_like_an_uninterrupted_one() {
    let folder = MemoryVolume::new();
    let ids: Vec<u64> = (0..1000).collect();
    let steps = |store: &Arc<Store>, from: u64, to: u64| {
        let tables = [narrow_spec(), bf16(spec(7, ADAM))]
            .iter()
            .zip(["a", "b"])
            .map(|(spec, name)| store.table(name, spec).unwrap())
            .collect::<Vec<_>>();
        for step in from..to {
            for table in &tables {
                let count = ids.len() * table.spec().dim as usize;
                let gradients: Vec<f32> =
                    gradients(&mut Rng64::new(step), count).iter().map(|gradient| gradient / 1e3).collect();
                table.rmw(&ids, &gradients, Some(0.01), None).unwrap();
            }
        }
        tables.iter().flat_map(|table| bits(&rows(table, &ids))).collect::<Vec<u32>>()
    };
    let whole = steps(&in_memory(), 0, 20);
    {
        let store = open(&folder, &options(None));
        steps(&store, 0, 9);
        store.checkpoint(&[]).unwrap();
        steps(&store, 9, 13); // lost
    }
    assert!(steps(&open(&folder, &options(None)), 9, 20) == whole, "equal to the last bit");
    let other = open(&MemoryVolume::new(), &StoreOptions { seed: SEED + 1, ..options(None) });
    let spec = TableSpec { initializer: Initializer::Constant { value: 1.0 }, ..narrow_spec() };
    let step = |store: &Arc<Store>, name: &str| {
        let table = store.table(name, &spec).unwrap();
        table.rmw(&ids, &vec![1e-3; ids.len() * DIM], Some(1.0), None).unwrap();
        rows(&table, &ids)
    };
    let store = in_memory();
    let found = [step(&store, "x"), step(&store, "y"), step(&other, "x")];
    assert!(found[0] != found[1] && found[0] != found[2], "the rounding depends on table and seed");
}
