//! Allocations of a training step.
//!
//! What could break: a lookup copies rows before it pools them. Results would be equal, but slower, and the
//! copies would use memory outside of any budget. So the allocations of a step over resident rows are
//! counted: they must be far smaller than the rows.

mod common;

use common::*;
use rowmill_store::*;
use rowmill_testkit::{CountingAllocator, Rng64};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn allocated(work: impl FnOnce()) -> u64 {
    let before = CountingAllocator::total();
    work();
    CountingAllocator::total() - before
}

#[test]
fn a_training_lookup_copies_no_rows() {
    const BAGS: usize = 1024;
    const LENGTH: usize = 20;
    const DIM: usize = 128;
    let store = open(&MemoryVolume::new(), &StoreOptions { memory: 64 << 20, ..options(None) });
    let table =
        store.table("t", &TableSpec { initializer: Initializer::Zeros, ..spec(DIM as u32, SGD) }).unwrap();
    let mut rng = Rng64::new(1);
    let ids: Vec<u64> = (0..BAGS * LENGTH).map(|_| rng.below(20_000)).collect();
    let offsets: Vec<i64> = (0..=BAGS).map(|bag| (bag * LENGTH) as i64).collect();
    let bag = IdBag { ids: &ids, offsets: &offsets, weights: None, padding: None, pooling: Pooling::Sum };
    let mut out = vec![0.0; BAGS * DIM];
    let gradients = vec![-2.0; BAGS * DIM];
    let mut rows = 0;
    // The first round loads all rows into memory. Afterwards no row is cold.
    for round in 0..3 {
        let cold = store.stats().cold_reads;
        let ticket = store.ticket().unwrap();
        let mut lookup = None;
        let forward = allocated(|| {
            lookup = Some(store.lookup(&[(&table, bag)], &mut out, DIM, Some(&ticket)).unwrap());
        });
        let lookup = lookup.unwrap();
        rows = lookup.rows() as u64;
        let bytes = rows * DIM as u64 * 4;
        let backward = allocated(|| store.apply(&lookup, &gradients, DIM, &[0.5], Some(&ticket)).unwrap());
        if round > 0 {
            assert_eq!(store.stats().cold_reads, cold);
            assert!(forward * 4 < bytes, "a lookup over {bytes} bytes of rows allocated {forward} bytes");
            // An update needs one sum of gradients per row, but no copy of the rows.
            assert!(
                backward * 2 < bytes * 3,
                "an update of {bytes} bytes of rows allocated {backward} bytes"
            );
        }
    }
    assert!(rows > 10_000, "{rows} rows are in memory");
    let mut expected = vec![0.0; 20_000];
    for &id in &ids {
        expected[id as usize] += 3.0;
    }
    let mut row = [0.0; DIM];
    for id in (0..20_000).step_by(101) {
        table.get(&[id], &mut row).unwrap();
        assert_eq!(row, [expected[id as usize]; DIM]);
    }
}
