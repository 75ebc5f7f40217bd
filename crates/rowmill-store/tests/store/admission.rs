//! Admission: ids that get a row only after they were asked for often enough.
//!
//! What could break: an id is admitted too early or too late; a gradient of a refused read is applied; a
//! clock is taken or released for a row that did not exist; a checkpoint loses counts or counts twice. Random
//! calls are repeated on a plain map with exact counts. The sketch is so large that it counts exactly, too.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::common::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rowmill_store::*;
use rowmill_testkit::Rng64;

const DIM: usize = 8;
const UNIVERSE: u64 = 4000;

fn counting(min_count: u8) -> TableSpec {
    TableSpec { admission: Some(Admission { min_count, bytes: 1 << 20 }), ..spec(DIM as u32, SGD) }
}

#[derive(Clone, Debug)]
enum Call {
    /// A lookup of bags and its backward.
    Train,
    GetThenRmw,
    Rmw,
    Put,
    Delete,
    Get,
    Checkpoint,
    Reopen,
}

fn calls() -> impl Strategy<Value = Vec<(Call, u64)>> {
    let call = prop_oneof![
        6 => Just(Call::Train),
        4 => Just(Call::GetThenRmw),
        2 => Just(Call::Rmw),
        1 => Just(Call::Put),
        1 => Just(Call::Delete),
        2 => Just(Call::Get),
        2 => Just(Call::Checkpoint),
        1 => Just(Call::Reopen),
    ];
    prop::collection::vec((call, any::<u64>()), 20..60)
}

#[derive(Clone, Debug)]
struct Expected {
    model: Model,
    counts: HashMap<u64, u8>,
}

impl Expected {
    /// A training read. Returns the ids that have a row afterwards.
    fn read(&mut self, ids: &[u64]) -> HashSet<u64> {
        let min_count = self.model.spec.admission.unwrap().min_count;
        let distinct: HashSet<u64> = ids.iter().copied().collect();
        for &id in &distinct {
            let count = self.counts.entry(id).or_default();
            *count = (*count + 1).min(min_count);
            if *count == min_count {
                self.model.row(id);
            }
        }
        self.known(&distinct)
    }

    fn known(&self, ids: &HashSet<u64>) -> HashSet<u64> {
        ids.iter().copied().filter(|id| self.model.rows.contains_key(id)).collect()
    }

    /// An optimizer step on the rows that existed or are admitted by now.
    fn rmw(&mut self, ids: &[u64], values: &[f32], known: &HashSet<u64>) {
        let of_known = ids.iter().copied().zip(values.chunks(DIM).map(<[f32]>::to_vec));
        self.model.step(0.25, of_known.filter(|(id, _)| known.contains(id)));
    }
}

struct Case {
    small: SmallStore,
    expected: Expected,
    saved: Expected,
    refused: usize,
}

impl Case {
    fn new(spec: TableSpec) -> Self {
        let expected = Expected { model: Model::new(spec, 0), counts: HashMap::new() };
        Self { small: SmallStore::new(&spec, None), saved: expected.clone(), expected, refused: 0 }
    }

    fn compare(&self, ids: &[u64], found: &[f32]) {
        for (id, found) in ids.iter().zip(found.chunks(DIM)) {
            near(found, &self.expected.model.read(*id).weights, 0.0, || format!("row {id}"));
        }
    }

    fn run(&mut self, call: &Call, seed: u64) {
        let mut rng = Rng64::new(seed);
        let count = 1 + rng.below(300) as usize;
        let universe = if rng.one_in(2) { UNIVERSE } else { UNIVERSE / 8 };
        let ids: Vec<u64> = (0..count).map(|_| rng.below(universe) << 40).collect();
        let distinct: HashSet<u64> = ids.iter().copied().collect();
        let values = gradients(&mut rng, count * DIM);
        let mut out = vec![0.0; count * DIM];
        match call {
            Call::Train => {
                let ticket = self.small.store.ticket().unwrap();
                let offsets: Vec<i64> = (0..=count as i64).collect();
                let bag = IdBag {
                    ids: &ids,
                    offsets: &offsets,
                    weights: None,
                    padding: None,
                    pooling: Pooling::Sum,
                };
                let lookup = self
                    .small
                    .store
                    .lookup(&[(&self.small.table, bag)], &mut out, DIM, Some(&ticket))
                    .unwrap();
                let known = self.expected.read(&ids);
                self.compare(&ids, &out);
                assert_eq!((lookup.rows(), ticket.rows_held()), (known.len(), known.len()));
                self.refused += distinct.len() - known.len();
                // Rows created between a read and its backward: the gradient of the refused read must not be
                // applied.
                if rng.one_in(3) {
                    let more = &ids[..count / 2];
                    self.small.table.get_or_init(more, &mut vec![0.0; more.len() * DIM], None).unwrap();
                    self.expected.read(more);
                }
                self.small.store.apply(&lookup, &values, DIM, &[0.25], Some(&ticket)).unwrap();
                self.expected.rmw(&ids, &values, &known);
                assert_eq!(ticket.rows_held(), 0);
            }
            Call::GetThenRmw => {
                let ticket = self.small.store.ticket().unwrap();
                if rng.one_in(2) {
                    self.small.table.get_or_init(&ids, &mut out, Some(&ticket)).unwrap();
                } else {
                    let ticket = Arc::new(self.small.store.ticket().unwrap());
                    out = self.small.table.get_later(&ids, &ticket).unwrap().wait().unwrap();
                }
                let known = self.expected.read(&ids);
                self.compare(&ids, &out);
                self.small.table.rmw(&ids, &values, Some(0.25), Some(&ticket)).unwrap();
                self.expected.rmw(&ids, &values, &known);
                assert_eq!(ticket.rows_held(), 0);
            }
            Call::Rmw => {
                self.small.table.rmw(&ids, &values, Some(0.25), None).unwrap();
                let min_count = self.expected.model.spec.admission.unwrap().min_count;
                let admitted =
                    |id: &u64| self.expected.counts.get(id).is_some_and(|&count| count == min_count);
                let mut known: HashSet<u64> = distinct.iter().copied().filter(admitted).collect();
                known.extend(self.expected.known(&distinct));
                self.expected.rmw(&ids, &values, &known);
            }
            Call::Put => {
                self.small.table.put(&ids, &values, None).unwrap();
                self.expected.model.put(&ids, &values);
            }
            Call::Delete => {
                self.small.table.delete(&ids).unwrap();
                for id in &ids {
                    self.expected.model.rows.remove(id);
                }
            }
            Call::Get => {
                self.small.table.get(&ids, &mut out).unwrap();
                self.compare(&ids, &out);
            }
            Call::Checkpoint => {
                self.small.store.checkpoint(&[]).unwrap();
                self.saved = self.expected.clone();
            }
            Call::Reopen => {
                self.small.reopen();
                self.expected = self.saved.clone();
            }
        }
    }
}

#[test]
fn random_calls_admit_the_ids_that_exact_counts_admit() {
    let config = ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() };
    for min_count in [2, 5] {
        let (refused, cold) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let result = TestRunner::new(config.clone()).run(&calls(), |calls| {
            let mut case = Case::new(counting(min_count));
            for (call, seed) in &calls {
                case.run(call, *seed);
            }
            case.expected.model.check(&case.small.table);
            prop_assert_eq!(case.small.store.stats().tickets, 0);
            refused.set(refused.get() + case.refused);
            cold.set(cold.get() + case.small.store.stats().cold_reads);
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{min_count}: {error}"));
        assert!(refused.get() > 0 && cold.get() > 0, "{refused:?} ids refused, {cold:?} cold reads");
    }
}

/// A refused id has no row, so its read holds no clock. The clock that another step took meanwhile must not
/// be released.
#[test]
fn a_refused_read_releases_no_clock_of_another_step() {
    let store = open(&MemoryVolume::new(), &options(None));
    let table = store.table("t", &counting(2)).unwrap();
    let (mut row, gradient) = ([0.0; DIM], [1.0; DIM]);
    let first = store.ticket().unwrap();
    table.get_or_init(&[7], &mut row, Some(&first)).unwrap();
    assert_eq!((first.rows_held(), table.len()), (0, 0));
    let second = store.ticket().unwrap();
    table.get_or_init(&[7], &mut row, Some(&second)).unwrap();
    assert_eq!((second.rows_held(), table.len()), (1, 1));
    table.rmw(&[7], &gradient, None, Some(&first)).unwrap();
    drop(first);
    let third = Arc::new(store.ticket().unwrap());
    let waiting = table.get_later(&[7], &third).unwrap();
    assert!(!waiting.is_ready(), "the second step still holds the row");
    drop(second);
    waiting.wait().unwrap();
}

#[test]
fn a_damaged_sketch_is_named_and_a_repair_restarts_counting() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), options(None)).unwrap();
    let table = store.table("t", &counting(2)).unwrap();
    table.get_or_init(&[1, 2], &mut [0.0; 2 * DIM], None).unwrap();
    table.get_or_init(&[1], &mut [0.0; DIM], None).unwrap();
    store.checkpoint(&[]).unwrap();
    store.checkpoint(&[]).unwrap();
    store.close();
    drop((table, store));
    assert!(!folder.path().join("sketch-1-0").exists(), "sketches of earlier checkpoints are removed");
    let sketch = folder.path().join("sketch-2-0");
    let mut bytes = std::fs::read(&sketch).unwrap();
    bytes[77] ^= 1;
    std::fs::write(&sketch, bytes).unwrap();
    let error = Store::open(folder.path(), options(None)).unwrap_err();
    assert!(
        matches!(error, StoreError::Corrupt { .. }) && error.to_string().contains("sketch-2-0"),
        "{error}"
    );

    let volume: Arc<dyn Volume> = Arc::new(DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap());
    let report = fsck(&volume, true).unwrap();
    assert!(report.problems[0].contains("sketch-2-0"), "{report:?}");
    assert_eq!(report.unnamed, ["the counts of ids without a row (sketch) of category 0"]);
    assert!(fsck(&volume, false).unwrap().is_clean());
    drop(volume);
    let store = Store::open(folder.path(), options(None)).unwrap();
    let table = store.table("t", &counting(2)).unwrap();
    table.get_or_init(&[1, 2], &mut [0.0; 2 * DIM], None).unwrap();
    assert_eq!(table.contains(&[1, 2]).unwrap(), [true, false], "the count of id 2 starts again");
}

#[test]
fn invalid_admission_options_are_named() {
    let store = open(&MemoryVolume::new(), &options(None));
    let with =
        |min_count, bytes| TableSpec { admission: Some(Admission { min_count, bytes }), ..counting(2) };
    let says = |spec: &TableSpec| store.table("t", spec).unwrap_err().to_string();
    assert!(says(&with(1, 1 << 20)).contains("table \"t\": admission min_count must be between 2 and 255"));
    assert!(says(&with(2, 3000)).contains("admission bytes must be a power of two from 1 KiB to 1 GiB"));
    let error = says(&with(2, 1 << 28));
    assert!(error.contains("the sketch of table \"t\" needs at least"), "{error}");
    let before = store.stats().row_limit;
    store.table("t", &counting(2)).unwrap();
    let taken = before - store.stats().row_limit;
    assert!(taken >= 1 << 20, "the budget is charged {taken} bytes");
    assert!(says(&counting(3)).contains("\"t\" has admission"));
}
