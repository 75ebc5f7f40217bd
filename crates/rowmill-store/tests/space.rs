//! What cleaning moves, by how rows fill the blocks of the log.
//!
//! Of rows of 832 bytes a block holds four and leaves a fifth of itself empty. When that counted as dead rows, nearly
//! all that the log may hold beyond its live rows was gone before a row had died, and training moved three rows for each
//! that it changed.

mod common;

use std::sync::Arc;

use common::{SEED, SGD, open, spec};
use rowmill_store::*;
use rowmill_testkit::Rng64;

const ROWS: u64 = 40_000;

/// A store that cleans when it is told to, and a table of `dim` weights a row.
fn cleaned_in_turns(dim: u32, row_memory: u64) -> (Arc<Store>, Table) {
    let options = StoreOptions {
        memory: row_memory + (24 << 20),
        row_memory: Some(row_memory),
        threads: 1,
        seed: SEED,
        background: Background::Turns { incarnation: 0 },
        ..StoreOptions::default()
    };
    let store = open(&MemoryVolume::new(), &options);
    let table = store.table("t", &spec(dim, SGD)).unwrap();
    (store, table)
}

/// Rows moved for each one written anew, of rows of `dim` weights with memory for a few.
fn moved_per_change(dim: u32) -> f64 {
    let (store, table) = cleaned_in_turns(dim, 8 << 20);
    let put = |ids: &[u64]| {
        table.put(ids, &vec![1.0; ids.len() * dim as usize], None).unwrap();
        while store.turn(Work::Clean).unwrap() {}
    };
    let all: Vec<u64> = (0..ROWS).collect();
    all.chunks(400).for_each(put);
    let before = store.stats().rows_compacted;
    let mut random = Rng64::new(1);
    for _ in 0..ROWS / 400 {
        let ids: Vec<u64> = (0..400).map(|_| random.below(ROWS)).collect();
        put(&ids);
        // Else places wait for a checkpoint before they are written again.
        store.checkpoint(&[]).unwrap();
    }
    (store.stats().rows_compacted - before) as f64 / ROWS as f64
}

#[test]
fn ends_of_blocks_that_no_row_fits_into_are_no_reason_to_clean() {
    let (whole, with_ends) = (moved_per_change(256), moved_per_change(208));
    assert!(whole > 0.1, "nothing is cleaned: {whole}");
    assert!(
        with_ends < 1.3 * whole,
        "{with_ends} rows moved per change, {whole} where rows fill their blocks"
    );
}

#[test]
fn rows_that_change_in_memory_are_no_reason_to_clean() {
    let (store, table) = cleaned_in_turns(256, 32 << 20);
    let put = |ids: &[u64]| {
        table.put(ids, &vec![1.0; ids.len() * 256], None).unwrap();
        while store.turn(Work::Clean).unwrap() {}
    };
    let all: Vec<u64> = (0..ROWS).collect();
    all.chunks(400).for_each(put);
    store.checkpoint(&[]).unwrap();
    let before = store.stats();
    // Half of the rows change, and what the log holds of them is dead: it has the room that they will need.
    for _ in 0..3 {
        all[..ROWS as usize / 2].chunks(400).for_each(put);
    }
    let after = store.stats();
    assert!(after.rows_dirty > ROWS * 2 / 5, "{} rows changed in memory", after.rows_dirty);
    assert_eq!(after.rows_compacted, before.rows_compacted);
}
