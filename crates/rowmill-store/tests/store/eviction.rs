//! Eviction: rows that a table deletes by its rule.
//!
//! What could break: a row lives too long or too short; the choice depends on which rows are in memory; a
//! stamp is lost on the way to the device, in a checkpoint or in a restart; a row that a step holds is
//! evicted. Random calls on a store too small for its rows are repeated on a plain map, with every rule. The
//! evicted rows must be exactly the rows that the map evicts.

use std::collections::HashMap;

use crate::common::*;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rowmill_store::*;
use rowmill_testkit::Rng64;

const DIM: usize = 8;
/// Ids are below this.
const UNIVERSE: u64 = 3000;
const NONE: [u64; 0] = [];

fn evicting(rule: EvictionRule, every: u64) -> TableSpec {
    TableSpec { eviction: Some(Eviction { rule, every }), ..spec(DIM as u32, SGD) }
}

/// One call. Ids and values are drawn from the seed.
#[derive(Clone, Debug)]
enum Call {
    Rmw,
    Put,
    Delete,
    Score,
    Evict,
    Checkpoint,
    Reopen,
}

fn calls() -> impl Strategy<Value = Vec<(Call, u64)>> {
    let call = prop_oneof![
        8 => Just(Call::Rmw),
        2 => Just(Call::Put),
        1 => Just(Call::Delete),
        2 => Just(Call::Score),
        2 => Just(Call::Evict),
        2 => Just(Call::Checkpoint),
        1 => Just(Call::Reopen),
    ];
    prop::collection::vec((call, any::<u64>()), 20..60)
}

/// A row's stamp, as the map keeps it.
#[derive(Clone, Copy, Debug, Default)]
struct Stamp {
    changed: u64,
    changes: u64,
    score: f32,
}

#[derive(Clone, Debug)]
struct Expected {
    model: Model,
    stamps: HashMap<u64, Stamp>,
    time: u64,
    evicted: u64,
    deletes: u64,
}

impl Expected {
    fn new(spec: TableSpec) -> Self {
        Self { model: Model::new(spec, 0), stamps: HashMap::new(), time: 0, evicted: 0, deletes: 0 }
    }

    /// Update the stamps for a change by a step that was already counted, or for a put.
    fn stamp(&mut self, ids: &[u64]) {
        let by_time = matches!(self.rule(), EvictionRule::TtlSeconds { .. });
        let now = if by_time { self.time } else { self.model.steps };
        let distinct: std::collections::HashSet<u64> = ids.iter().copied().collect();
        for id in distinct {
            let stamp = self.stamps.entry(id).or_default();
            stamp.changed = now;
            stamp.changes += 1;
        }
    }

    fn rule(&self) -> EvictionRule {
        self.model.spec.eviction.unwrap().rule
    }

    fn norm(&self, id: u64) -> f64 {
        let squares = self.model.rows[&id].weights.iter().map(|&w| f64::from(w) * f64::from(w));
        squares.sum::<f64>().sqrt()
    }

    /// The ids to evict now, ascending.
    fn evict(&mut self) -> Vec<u64> {
        let ids = self.model.sorted_ids();
        let older = |now: u64, ttl: u64| move |stamp: &Stamp| now - stamp.changed > ttl;
        let mut gone: Vec<u64> = match self.rule() {
            EvictionRule::TtlSteps { steps } => {
                let old = older(self.model.steps, steps);
                ids.into_iter().filter(|id| old(&self.stamps[id])).collect()
            }
            EvictionRule::TtlSeconds { seconds } => {
                let old = older(self.time, seconds);
                ids.into_iter().filter(|id| old(&self.stamps[id])).collect()
            }
            EvictionRule::NormBelow { norm } => {
                ids.into_iter().filter(|&id| self.norm(id) < f64::from(norm)).collect()
            }
            EvictionRule::LeastFrequent { max_rows } => {
                lowest(ids, max_rows, |id| self.stamps[&id].changes as f64)
            }
            EvictionRule::LowestScore { max_rows } => {
                lowest(ids, max_rows, |id| f64::from(self.stamps[&id].score))
            }
            EvictionRule::LowestNorm { max_rows } => lowest(ids, max_rows, |id| self.norm(id)),
        };
        gone.sort_unstable();
        for id in &gone {
            self.model.rows.remove(id);
            self.stamps.remove(id);
        }
        self.evicted += gone.len() as u64;
        gone
    }
}

/// All but `max_rows` of the ids: the lowest ranks first, and the smaller ids first among equal ranks.
fn lowest(mut ids: Vec<u64>, max_rows: u64, rank: impl Fn(u64) -> f64) -> Vec<u64> {
    ids.sort_by(|&one, &other| rank(one).total_cmp(&rank(other)).then(one.cmp(&other)));
    ids.truncate(ids.len().saturating_sub(max_rows as usize));
    ids
}

/// A store and its expected content.
struct Case {
    small: SmallStore,
    expected: Expected,
    saved: Expected,
    /// Rows evicted while some rows were on the device.
    cold: u64,
}

impl Case {
    fn new(spec: TableSpec) -> Self {
        let expected = Expected::new(spec);
        Self { small: SmallStore::new(&spec, None), saved: expected.clone(), expected, cold: 0 }
    }

    fn run(&mut self, call: &Call, seed: u64) {
        let mut rng = Rng64::new(seed);
        let count = 1 + rng.below(300) as usize;
        let universe = if rng.one_in(2) { UNIVERSE } else { UNIVERSE / 8 };
        let ids: Vec<u64> = (0..count).map(|_| rng.below(universe)).collect();
        match call {
            Call::Rmw => {
                self.expected.time += rng.below(5);
                let ticket = self.small.store.ticket_at(Some(self.expected.time)).unwrap();
                let mut out = vec![0.0; count * DIM];
                self.small.table.get_or_init(&ids, &mut out, Some(&ticket)).unwrap();
                let values = gradients(&mut rng, count * DIM);
                self.small.table.rmw(&ids, &values, Some(0.25), Some(&ticket)).unwrap();
                self.expected.model.rmw(&ids, &values, 0.25);
                self.expected.stamp(&ids);
                let every = self.expected.model.spec.eviction.unwrap().every;
                if every > 0 && self.expected.model.steps.is_multiple_of(every) {
                    self.expected.evict();
                }
            }
            // A put stamps rows with the latest event time of the steps.
            Call::Put if self.expected.time > 0 => {
                let values = gradients(&mut rng, count * DIM);
                self.small.table.put(&ids, &values, None).unwrap();
                self.expected.model.put(&ids, &values);
                self.expected.stamp(&ids);
            }
            Call::Delete => {
                self.small.table.delete(&ids).unwrap();
                for id in &ids {
                    self.expected.deletes += u64::from(self.expected.model.rows.remove(id).is_some());
                    self.expected.stamps.remove(id);
                }
            }
            Call::Score => {
                let scores: Vec<f32> = (0..count).map(|_| rng.below(64) as f32 - 32.0).collect();
                let result = self.small.table.set_scores(&ids, &scores);
                if !matches!(self.expected.rule(), EvictionRule::LowestScore { .. }) {
                    assert!(matches!(result, Err(StoreError::Option { option: "eviction", .. })));
                    return;
                }
                result.unwrap();
                for (&id, &score) in ids.iter().zip(&scores) {
                    self.expected.model.row(id);
                    self.expected.stamps.entry(id).or_default().score = score;
                }
            }
            Call::Evict => {
                let stats = self.small.store.stats();
                let gone = self.small.table.evict().unwrap();
                assert_eq!(gone, self.expected.evict());
                self.cold += if stats.rows_resident < stats.tables[0].rows { gone.len() as u64 } else { 0 };
            }
            Call::Checkpoint => {
                self.small.store.checkpoint(&[]).unwrap();
                self.saved = self.expected.clone();
            }
            Call::Reopen => {
                self.small.reopen();
                self.expected = self.saved.clone();
                let time = self.expected.time;
                assert_eq!(
                    self.small.store.event_time(),
                    (time > 0 || self.expected.model.steps > 0).then_some(time)
                );
            }
            Call::Put => {}
        }
    }

    fn check(&self) {
        self.expected.model.check(&self.small.table);
        let stats = &self.small.store.stats().tables[0];
        assert_eq!((stats.evicted, stats.deletes), (self.expected.evicted, self.expected.deletes));
    }
}

#[test]
fn random_calls_evict_the_rows_that_a_map_evicts() {
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    for (rule, every) in [
        (EvictionRule::TtlSteps { steps: 4 }, 0),
        (EvictionRule::TtlSteps { steps: 9 }, 3),
        (EvictionRule::TtlSeconds { seconds: 10 }, 0),
        (EvictionRule::TtlSeconds { seconds: 20 }, 4),
        (EvictionRule::LeastFrequent { max_rows: 500 }, 0),
        (EvictionRule::LeastFrequent { max_rows: 700 }, 5),
        (EvictionRule::LowestScore { max_rows: 400 }, 0),
        (EvictionRule::LowestNorm { max_rows: 600 }, 4),
        (EvictionRule::LowestNorm { max_rows: 600 }, 0),
        (EvictionRule::NormBelow { norm: 0.9 }, 0),
    ] {
        let (evicted, cold) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        let run = |calls: Vec<(Call, u64)>| {
            // Half of the rules run on bf16 rows, whose stamps have another offset and whose norms use
            // widened weights.
            let spec = evicting(rule, every);
            let mut case = Case::new(if every == 0 { bf16(spec) } else { spec });
            for (call, seed) in &calls {
                case.run(call, *seed);
            }
            case.check();
            evicted.set(evicted.get() + case.expected.evicted);
            cold.set(cold.get() + case.cold);
            Ok(())
        };
        // In one of fifty runs, no case of some rule evicts with cold rows: run more cases then.
        for _ in 0..10 {
            let result = TestRunner::new(config.clone()).run(&calls(), run);
            result.unwrap_or_else(|error| panic!("{rule:?}: {error}"));
            if cold.get() > 0 {
                break;
            }
        }
        assert!(evicted.get() > 0 && cold.get() > 0, "{rule:?}: {evicted:?} rows, {cold:?} with cold rows");
    }
}

#[test]
fn a_row_held_by_a_step_stays_until_its_clock_is_released() {
    let store = open(&MemoryVolume::new(), &options(None));
    let table = store.table("t", &evicting(EvictionRule::LeastFrequent { max_rows: 1 }, 0)).unwrap();
    table.rmw(&[1, 2, 3], &[1.0; 3 * DIM], None, None).unwrap();
    table.rmw(&[3], &[1.0; DIM], None, None).unwrap();
    let ticket = store.ticket().unwrap();
    table.get_or_init(&[1], &mut [0.0; DIM], Some(&ticket)).unwrap();
    // Two rows must be evicted. Row 1 is held, so row 3 is evicted with row 2, although it was used more
    // often.
    assert_eq!(table.evict().unwrap(), [2, 3]);
    table.rmw(&[1], &[1.0; DIM], None, Some(&ticket)).unwrap();
    assert_eq!(table.evict().unwrap(), NONE, "one is left");
    assert_eq!(table.contains(&[1, 2, 3]).unwrap(), [true, false, false]);
}

#[test]
fn an_evicted_row_is_created_again_with_its_initial_value() {
    let store = open(&MemoryVolume::new(), &options(None));
    let table = store.table("t", &evicting(EvictionRule::TtlSteps { steps: 1 }, 0)).unwrap();
    let read = || {
        let mut row = [0.0; DIM];
        table.get(&[7], &mut row).unwrap();
        row
    };
    let first = read();
    table.rmw(&[7], &[1.0; DIM], None, None).unwrap();
    assert_ne!(read(), first);
    for _ in 0..2 {
        table.rmw(&[8], &[1.0; DIM], None, None).unwrap();
    }
    assert_eq!(table.evict().unwrap(), [7]);
    assert_eq!(read(), first);
}

#[test]
fn eviction_by_event_time_needs_an_event_time() {
    let store = open(&MemoryVolume::new(), &options(None));
    let table = store.table("t", &evicting(EvictionRule::TtlSeconds { seconds: 60 }, 0)).unwrap();
    assert_eq!(table.evict().unwrap(), NONE, "there is no row");
    let says = |result: Result<(), StoreError>| {
        let message = result.unwrap_err().to_string();
        assert!(
            message.contains("\"t\" evicts rows by event time") && message.contains("with an event time"),
            "{message}"
        );
    };
    let mut row = [0.0; DIM];
    says(table.put(&[1], &row, None));
    says(table.rmw(&[1], &row, None, None));
    says(table.get_or_init(&[1], &mut row, None));
    let timeless = store.ticket().unwrap();
    says(table.get_or_init(&[1], &mut row, Some(&timeless)));
    assert_eq!(table.len(), 0);
    assert_eq!(table.steps(), 0, "nothing has changed");

    let ticket = store.ticket_at(Some(100)).unwrap();
    table.rmw(&[1], &row, None, Some(&ticket)).unwrap();
    // A late step with an earlier time does not change stamps to older times. New rows get the latest time.
    let late = store.ticket_at(Some(50)).unwrap();
    table.rmw(&[1, 2], &[0.0; 2 * DIM], None, Some(&late)).unwrap();
    drop(store.ticket_at(Some(130)).unwrap());
    assert_eq!(store.event_time(), Some(130));
    assert_eq!(table.evict().unwrap(), NONE, "row 2 was created at 100");
    drop(store.ticket_at(Some(161)).unwrap());
    assert_eq!(table.evict().unwrap(), [1, 2]);
    let error = store.ticket_at(Some(u64::MAX)).unwrap_err().to_string();
    assert!(error.contains("event_time must be between 0 and 2^62 seconds"), "{error}");
}

#[test]
fn errors_of_invalid_calls() {
    let volume = MemoryVolume::new();
    let store = open(&volume, &options(None));
    let plain = store.table("plain", &spec(DIM as u32, SGD)).unwrap();
    let error = plain.evict().unwrap_err().to_string();
    assert!(error.starts_with("eviction must be set when table \"plain\" is created"), "{error}");
    let ttl = evicting(EvictionRule::TtlSteps { steps: 5 }, 0);
    store.table("t", &ttl).unwrap();
    let error = store.table("t", &spec(DIM as u32, SGD)).unwrap_err().to_string();
    assert!(error.contains("\"t\" has eviction") && error.contains("steps: 5"), "{error}");
    let error = store.table("u", &evicting(EvictionRule::TtlSteps { steps: 0 }, 0)).unwrap_err().to_string();
    assert!(error.contains("table \"u\": eviction steps must be between 1 and 2^62, got 0"), "{error}");
    let scored = store.table("s", &evicting(EvictionRule::LowestScore { max_rows: 5 }, 0)).unwrap();
    let error = scored.set_scores(&[1], &[f32::NAN]).unwrap_err().to_string();
    assert!(error.contains("scores"), "{error}");
    assert!(scored.set_scores(&[1, 2], &[1.0]).unwrap_err().to_string().contains("scores"));

    store.checkpoint(&[]).unwrap();
    let reader = open(&volume, &StoreOptions { read_only: true, ..options(None) });
    let table = reader.open_table("t").unwrap();
    assert_eq!(table.spec().eviction, ttl.eviction);
    assert!(matches!(table.evict(), Err(StoreError::ReadOnly { .. })));
}
