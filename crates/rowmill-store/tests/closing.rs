//! Closing a store frees its memory. Measured by the kernel's account of this process, so it is the only test
//! here.

mod common;

use std::sync::Arc;

use common::*;
use rowmill_store::*;
use rowmill_testkit::{Rng64, resident_bytes};

fn wide(store: &Arc<Store>) -> Table {
    store.table("t", &TableSpec { staleness: StalenessBound::Infinite, ..spec(128, SGD) }).unwrap()
}

#[test]
fn closing_a_store_frees_its_memory_while_references_exist() {
    const ROWS: u64 = 60_000;
    let volume = MemoryVolume::new();
    let options = StoreOptions { memory: 128 << 20, ..options(None) };
    let store = open(&volume, &options);
    let dense =
        TableSpec { ids: IdRange::Dense { rows: ROWS }, staleness: StalenessBound::Infinite, ..spec(1, SGD) };
    let (rows, index) = (wide(&store), store.table("dense", &dense).unwrap());
    put_numbered(&rows, 0, ROWS);
    index.put(&(0..ROWS).collect::<Vec<u64>>(), &vec![1.0; ROWS as usize], None).unwrap();
    store.checkpoint(&[]).unwrap();
    let full = store.stats();
    assert!(full.row_bytes >= ROWS * 512 && full.index_bytes >= ROWS * 16, "{full:?}");
    let before = resident_bytes();
    store.close();
    let stats = store.stats();
    assert_eq!((stats.row_bytes, stats.rows_resident), (0, 0));
    assert!(stats.index_bytes < full.index_bytes / 4, "{} of {}", stats.index_bytes, full.index_bytes);
    match before.zip(resident_bytes()) {
        Some((before, after)) => {
            let given = before.saturating_sub(after);
            assert!(given >= ROWS * 512 * 9 / 10, "{} KiB were freed", given >> 10);
        }
        None => eprintln!("skipped in part: this kernel does not report resident memory"),
    }
    assert!(matches!(rows.get(&[1], &mut [0.0; 128]), Err(StoreError::Closed)));
    assert!(matches!(rows.put(&[1], &[0.0; 128], None), Err(StoreError::Closed)));
    store.close();

    // With other calls running, no call sees a row that no longer exists.
    let store = open(&volume, &options);
    let rows = wide(&store);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3_u64)
            .map(|reader| {
                let rows = &rows;
                scope.spawn(move || {
                    let mut rng = Rng64::new(reader);
                    let mut out = vec![0.0; 100 * 128];
                    for calls in 0.. {
                        let ids: Vec<u64> = (0..100).map(|_| rng.below(ROWS)).collect();
                        match rows.get(&ids, &mut out) {
                            Ok(()) => {
                                assert!(
                                    ids.iter().zip(out.chunks(128)).all(|(&id, row)| row == [id as f32; 128])
                                );
                            }
                            Err(StoreError::Closed) => return calls,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    unreachable!()
                })
            })
            .collect();
        while store.stats().calls < 300 {
            std::thread::yield_now();
        }
        store.close();
        let calls: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(calls >= 100, "{calls}");
    });
}
