//! Tables of split-bf16 weights besides tables of 32-bit weights. Random calls on them are in `model`,
//! `changes`, `feed` and `crash`.
//!
//! What could break: a lookup reads all bits; a change or a copy loses the lower halves; a row uses more
//! bytes than a row of 32-bit floats.

use std::sync::Arc;

use crate::common::*;
use rowmill_store::*;
use rowmill_testkit::Rng64;

const DIM: usize = 16;
const ROWS: u64 = 3000;

fn rows(table: &Table) -> Vec<u32> {
    let ids: Vec<u64> = (0..ROWS).collect();
    let mut rows = vec![0.0; ids.len() * DIM];
    table.get(&ids, &mut rows).unwrap();
    rows.iter().map(|value| value.to_bits()).collect()
}

fn state(table: &Table) -> Vec<f32> {
    let ids: Vec<u64> = (0..ROWS).collect();
    let mut state = vec![0.0; ids.len() * table.state_floats()];
    table.get_state(&ids, &mut state).unwrap();
    state
}

/// Multiples of 1/65,536 truncated to bf16, as a bf16 model would return.
fn bf16_gradients(rng: &mut Rng64, count: usize) -> Vec<f32> {
    let gradient = |rng: &mut Rng64| (rng.below(1 << 16) as f32 / 65_536.0 - 0.5) / 100.0;
    (0..count).map(|_| f32::from_bits(gradient(rng).to_bits() & 0xffff_0000)).collect()
}

fn pooled(store: &Arc<Store>, table: &Table, id: u64) -> Vec<f32> {
    let mut out = vec![0.0; DIM];
    let bag = IdBag { ids: &[id], offsets: &[0, 1], weights: None, padding: None, pooling: Pooling::Sum };
    store.evaluate(&[(table, bag)], &mut out, DIM, None).unwrap();
    out
}

/// Training with equal gradients gives bit-identical weights and state as 32-bit rows and uses as many bytes.
/// Memory holds a part of the rows, and the store is reopened at a checkpoint.
#[test]
fn training_is_bit_identical_to_32_bit_rows() {
    for optimizer in [SGD, ROWWISE_ADAGRAD, ADAGRAD] {
        let folders = [MemoryVolume::new(), MemoryVolume::new()];
        let specs = [spec(DIM as u32, optimizer), split_bf16(spec(DIM as u32, optimizer))];
        let results: Vec<_> = folders
            .iter()
            .zip(specs)
            .map(|(folder, spec)| {
                let mut rng = Rng64::new(5);
                let mut bytes = 0;
                for _ in 0..2 {
                    let store = open(folder, &options(Some(96 << 10)));
                    let table = store.table("t", &spec).unwrap();
                    for _ in 0..10 {
                        let ids: Vec<u64> = (0..400).map(|_| rng.below(ROWS)).collect();
                        let gradients = bf16_gradients(&mut rng, ids.len() * DIM);
                        table.rmw(&ids, &gradients, Some(0.01), None).unwrap();
                    }
                    store.checkpoint(&[]).unwrap();
                    assert!(store.stats().evictions > 0, "rows leave memory");
                    bytes = table.row_bytes();
                    store.close();
                }
                let store = open(folder, &options(Some(96 << 10)));
                let table = store.table("t", &spec).unwrap();
                (rows(&table), state(&table), bytes)
            })
            .collect();
        assert!(results[0] == results[1], "{optimizer:?}: equal to the last bit");
    }
}

#[test]
fn a_lookup_returns_upper_halves_and_a_get_all_bits() {
    let store = open(&MemoryVolume::new(), &options(None));
    let table = store.table("t", &split_bf16(spec(DIM as u32, SGD))).unwrap();
    let values: Vec<f32> = (0..DIM).map(|column| 1.0 + column as f32 / 1000.0).collect();
    table.put(&[7], &values, None).unwrap();
    let cut = |values: &[f32]| -> Vec<f32> {
        values.iter().map(|value| f32::from_bits(value.to_bits() & 0xffff_0000)).collect()
    };
    let mut read = vec![0.0; DIM];
    table.get(&[7], &mut read).unwrap();
    assert_eq!(read, values);
    assert_eq!(pooled(&store, &table, 7), cut(&values));
    assert_ne!(cut(&values), values, "otherwise this test would show nothing");
    let mut born = vec![0.0; DIM];
    table.get(&[8], &mut born).unwrap();
    assert_eq!(pooled(&store, &table, 8), cut(&born), "missing rows, too");
    table.get_or_init(&[8], &mut read, None).unwrap();
    assert_eq!(read, born);
}

/// For training reads and evaluations, with more cold rows than one call may hold in memory at once.
#[test]
fn bags_pooled_as_bfloat16_are_rounded_32_bit_bags() {
    let rounded = |values: &[f32]| {
        let mut halves = vec![0; values.len()];
        rowmill_kernels::narrow(values, &mut halves);
        halves
    };
    let dim = 64;
    let store = open(&MemoryVolume::new(), &options(Some(256 << 10)));
    let mut rng = Rng64::new(7);
    let table = store.table("t", &spec(dim as u32, SGD)).unwrap();
    let ids: Vec<u64> = (0..ROWS).collect();
    let values: Vec<f32> = (0..ids.len() * dim).map(|_| rng.below(1 << 16) as f32 / 65_536.0 - 0.5).collect();
    for (ids, values) in ids.chunks(100).zip(values.chunks(100 * dim)) {
        table.put(ids, values, None).unwrap();
    }
    assert!(store.stats().evictions > 0, "rows leave memory");
    let asked: Vec<u64> = (0..1000).map(|_| rng.below(ROWS)).collect();
    let mut offsets = vec![0];
    while offsets[offsets.len() - 1] < 1000 {
        offsets.push((offsets[offsets.len() - 1] + rng.below(5) as i64).min(1000));
    }
    let bag =
        IdBag { ids: &asked, offsets: &offsets, weights: None, padding: Some(3), pooling: Pooling::Mean };
    let floats = (offsets.len() - 1) * dim;
    let (mut wide, mut narrow) = (vec![0.0; floats], vec![0_u16; floats]);
    store.evaluate(&[(&table, bag)], &mut wide, dim, None).unwrap();
    store.evaluate(&[(&table, bag)], &mut narrow, dim, None).unwrap();
    assert_eq!(narrow, rounded(&wide));
    let ticket = store.ticket().unwrap();
    store.lookup(&[(&table, bag)], &mut narrow, dim, Some(&ticket)).unwrap();
    assert_eq!(narrow, rounded(&wide));
}

#[test]
fn an_existing_table_keeps_its_dtype() {
    let store = open(&MemoryVolume::new(), &options(None));
    store.table("t", &split_bf16(spec(4, SGD))).unwrap();
    let error = store.table("t", &bf16(spec(4, SGD))).unwrap_err().to_string();
    assert!(error.contains("split-bf16"), "{error}");
}
