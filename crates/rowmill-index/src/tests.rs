//! Compares every index with a `HashMap` under random operations, and tests cases that break hash tables: ids 0 and
//! `u64::MAX` in zeroed memory, ids equal in their low bits, endless replacement, copying one index into another in
//! its own order, growth under a memory limit, and threads that touch one bucket. `measure_lookups` (ignored)
//! prints the rate of lookups.

use std::collections::HashMap;

use proptest::prelude::*;
use rowmill_rows::IdRange;

use super::flags::FREQUENCY_MAX;
use super::hash_index::HashIndex;
use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Insert the id, or move it if it exists.
    Set(u64, Location),
    Remove(u64),
    Touch(u64),
    Frequency(u64, u8),
    Clock(u64, u8),
    /// Take a clock at this bound.
    Take(u64, u8),
    /// Release it.
    Give(u64),
    /// Insert or move this many ids, beginning with `first`, `stride` apart.
    Fill(u64, u64, u32),
    /// Remove the same number.
    Clear(u64, u64, u32),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Entry {
    location: Option<Location>,
    frequency: u8,
    clock: u8,
}

fn location(word: u32) -> Location {
    if word & 1 == 0 { Location::resident(word >> 2) } else { Location::device(word >> 1) }
}

/// Few enough ids that operations meet the same ones, from every part of the id space.
fn sparse_id() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        0..200_u64,
        (0..200_u64).prop_map(|high| high << 48 | 0xabcd),
        (0..200_u64).prop_map(|i| u64::MAX - i),
    ]
}

fn steps(id: impl Strategy<Value = u64> + Clone, fill: u32) -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        6 => (id.clone(), any::<u32>()).prop_map(|(id, word)| Step::Set(id, location(word))),
        4 => id.clone().prop_map(Step::Remove),
        4 => id.clone().prop_map(Step::Touch),
        2 => (id.clone(), 0..=FREQUENCY_MAX).prop_map(|(id, frequency)| Step::Frequency(id, frequency)),
        4 => (id.clone(), 0..=CLOCK_OVERFLOW).prop_map(|(id, clock)| Step::Clock(id, clock)),
        4 => (id.clone(), 0..=20_u8).prop_map(|(id, bound)| Step::Take(id, bound)),
        4 => id.clone().prop_map(Step::Give),
        1 => (id.clone(), prop_oneof![Just(1), Just(1 << 32)], 1..fill).prop_map(|(f, s, n)| Step::Fill(f, s, n)),
        1 => (id, prop_oneof![Just(1), Just(1 << 32)], 1..fill).prop_map(|(f, s, n)| Step::Clear(f, s, n)),
    ];
    prop::collection::vec(one, 1..60)
}

struct Pair {
    index: TableIndex,
    model: HashMap<u64, Entry>,
    accepts: Box<dyn Fn(u64) -> bool>,
}

impl Pair {
    fn set(&mut self, id: u64, location: Location) {
        if !(self.accepts)(id) {
            assert_eq!(self.index.find(id), None);
            return;
        }
        if let Some(entry) = self.index.find(id) {
            self.index.set_location(entry, location);
        } else {
            let entry = self.index.insert(id, location);
            assert_eq!(self.index.find(id), Some(entry));
        }
        self.model.entry(id).or_default().location = Some(location);
    }

    fn remove(&mut self, id: u64) {
        let expected = self.model.remove(&id).and_then(|entry| entry.location);
        assert_eq!(self.index.remove(id), expected);
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Set(id, location) => self.set(id, location),
            Step::Remove(id) => self.remove(id),
            Step::Fill(first, stride, count) => {
                for i in 0..u64::from(count) {
                    self.set(first.wrapping_add(i * stride), location(i as u32 * 3));
                }
            }
            Step::Clear(first, stride, count) => {
                (0..u64::from(count)).for_each(|i| self.remove(first.wrapping_add(i * stride)));
            }
            Step::Touch(id)
            | Step::Frequency(id, _)
            | Step::Clock(id, _)
            | Step::Take(id, _)
            | Step::Give(id) => {
                let Some(entry) = self.index.find(id) else { return };
                let expected = self.model.get_mut(&id).expect("an id the model lacks");
                match *step {
                    Step::Frequency(_, frequency) => {
                        self.index.set_frequency(entry, frequency);
                        expected.frequency = frequency;
                    }
                    Step::Clock(_, clock) => {
                        self.index.set_clock(entry, clock);
                        expected.clock = clock;
                    }
                    Step::Take(_, bound) => {
                        let may = expected.clock <= bound && expected.clock < CLOCK_OVERFLOW - 1;
                        assert_eq!(self.index.take_clock(entry, bound), may.then_some(expected.clock));
                        expected.clock += u8::from(may);
                    }
                    Step::Give(_) => {
                        assert_eq!(self.index.give_clock(entry), expected.clock);
                        expected.clock -= u8::from(expected.clock > 0 && expected.clock < CLOCK_OVERFLOW);
                    }
                    _ => {
                        self.index.touch(entry);
                        expected.frequency = (expected.frequency + 1).min(FREQUENCY_MAX);
                    }
                }
            }
        }
    }

    fn entry(&self, entry: EntryRef) -> Entry {
        Entry {
            location: Some(self.index.location(entry)),
            frequency: self.index.frequency(entry),
            clock: self.index.clock(entry),
        }
    }

    /// The index and the map agree on every id, present or not, found by its id or by visiting all.
    fn compare(&self, absent: &[u64]) {
        assert_eq!(self.index.len(), self.model.len());
        if let Some(first) = self.index.array() {
            let mut in_order: Vec<_> = self.model.iter().map(|(&id, entry)| (id, entry.location)).collect();
            in_order.sort_unstable_by_key(|&(id, _)| id);
            let slots = in_order.into_iter().map(|(_, location)| location?.slot());
            assert!(slots.eq((first..).take(self.model.len()).map(Some)));
        }
        let mut visited = HashMap::new();
        self.index.for_each(|id, location| assert_eq!(visited.insert(id, location), None));
        assert_eq!(visited.len(), self.model.len());
        let ids: Vec<u64> = self.model.keys().chain(absent).copied().collect();
        for id in ids {
            self.index.prefetch(id, hash(id));
            let entry = self.index.find(id);
            assert_eq!(entry.map(|entry| self.entry(entry)), self.model.get(&id).copied());
            assert_eq!(visited.get(&id).copied(), self.model.get(&id).and_then(|entry| entry.location));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn hash_index_equals_a_map(steps in steps(sparse_id(), 3000), absent in prop::collection::vec(sparse_id(), 50)) {
        let mut pair = Pair {
            index: TableIndex::new(IdRange::Sparse, 0, 1),
            model: HashMap::new(),
            accepts: Box::new(|_| true),
        };
        for step in &steps {
            pair.run(step);
        }
        pair.compare(&absent);
    }

    #[test]
    fn direct_index_equals_a_map(
        rows in 1..5000_u64,
        shard_bits in 0..4_u32,
        shard in 0..8_u64,
        steps in steps(0..700_u64, 300),
        absent in prop::collection::vec(any::<u64>(), 50),
    ) {
        let shards = 1_u64 << shard_bits;
        let shard = shard % shards;
        let of_shard = |id: u64| id << shard_bits | shard;
        let mut pair = Pair {
            index: TableIndex::new(IdRange::Dense { rows }, shard as usize, shards as usize),
            model: HashMap::new(),
            accepts: Box::new(move |id| id < rows && id % shards == shard),
        };
        for step in steps {
            pair.run(&match step {
                Step::Set(id, location) => Step::Set(of_shard(id), location),
                Step::Remove(id) => Step::Remove(of_shard(id)),
                Step::Touch(id) => Step::Touch(of_shard(id)),
                Step::Frequency(id, frequency) => Step::Frequency(of_shard(id), frequency),
                Step::Clock(id, clock) => Step::Clock(of_shard(id), clock),
                Step::Take(id, bound) => Step::Take(of_shard(id), bound),
                Step::Give(id) => Step::Give(of_shard(id)),
                Step::Fill(first, _, count) => Step::Fill(of_shard(first), shards, count),
                Step::Clear(first, _, count) => Step::Clear(of_shard(first), shards, count),
            });
        }
        let absent: Vec<u64> = absent.into_iter().map(of_shard).collect();
        pair.compare(&absent);
    }
}

#[test]
fn a_dense_table_has_one_entry_per_id() {
    for (rows, shards) in [(1_u64, 4_usize), (10, 4), (11, 8), (4096, 1)] {
        let ids = IdRange::Dense { rows };
        let mut indexes: Vec<TableIndex> =
            (0..shards).map(|shard| TableIndex::new(ids, shard, shards)).collect();
        for id in 0..rows {
            indexes[dense_shard_of(id, shards)].insert(id, Location::device(id as u32));
        }
        assert_eq!(indexes.iter().map(|index| index.len() as u64).sum::<u64>(), rows);
        for id in rows..rows + 2 * shards as u64 {
            assert_eq!(indexes[dense_shard_of(id, shards)].find(id), None);
        }
        let bytes: usize = indexes.iter().map(TableIndex::bytes).sum();
        assert!(bytes < 5 * rows as usize + shards * 2 * 4096);
    }
}

#[test]
fn a_dense_range_is_an_array_while_all_its_rows_are_in_memory_in_order() {
    const SHARDS: usize = 4;
    let mut index = TableIndex::new(IdRange::Dense { rows: 20 }, 1, SHARDS);
    let id = |position: u64| position * SHARDS as u64 + 1;
    let fill = |index: &mut TableIndex, first: u32| {
        for position in 0..5 {
            assert_eq!(index.array(), None, "{position} of 5 rows");
            index.insert(id(position), Location::resident(first + position as u32));
        }
        assert_eq!(index.array(), Some(first));
    };
    fill(&mut index, 7);
    let entry = index.find(id(2)).unwrap();
    for (location, array) in [
        (Location::device(9), None),
        (Location::resident(12), None),
        (Location::device(9), None),
        (Location::resident(9), Some(7)),
    ] {
        index.set_location(entry, location);
        assert_eq!(index.array(), array, "{location:?}");
    }
    (0..5).for_each(|position| _ = index.remove(id(position)));
    fill(&mut index, 100);
    assert_eq!(TableIndex::new(IdRange::Sparse, 0, 1).array(), None);
}

#[test]
fn memory_stays_between_16_and_24_bytes_per_row() {
    let mut index = HashIndex::new();
    assert_eq!(index.bytes(), 0);
    for id in 0..300_000_u64 {
        let grown = index.grow_bytes_if_inserting(1);
        let before = index.bytes();
        index.insert(id << 20, Location::resident(id as u32));
        assert_eq!(index.bytes(), before + grown);
        if index.len() > 20_000 {
            let per_row = index.bytes() as f64 / index.len() as f64;
            assert!((16.0..24.5).contains(&per_row), "{per_row} bytes per row at {}", index.len());
        }
    }
    let mut reserved = HashIndex::new();
    reserved.reserve(300_000);
    assert_eq!(reserved.grow_bytes_if_inserting(0), 0);
    assert!(reserved.bytes() < 16 * 300_000 + 4096);
    let bytes = index.bytes_to_fit(0);
    assert!(bytes < index.bytes() && bytes < 16 * 300_000 + 4096);
    index.fit(0);
    assert_eq!((index.bytes(), index.len()), (bytes, 300_000));
    for id in 0..300_000_u64 {
        assert_eq!(
            index.find(id << 20).map(|entry| index.location(entry)),
            Some(Location::resident(id as u32))
        );
    }
}

#[test]
fn inserts_after_a_reserve_do_not_move_entries() {
    let mut index = HashIndex::new();
    for id in 0..1000 {
        index.insert(id, Location::device(id as u32));
    }
    index.reserve(5000);
    let entries: Vec<_> = (0..1000).map(|id| index.find(id).unwrap()).collect();
    for id in 1000..6000 {
        index.insert(id, Location::device(id as u32));
    }
    for (id, entry) in entries.into_iter().enumerate() {
        assert_eq!(index.location(entry), Location::device(id as u32));
    }
}

/// Replacing rows at a constant number of them must not slow lookups down. Overflow bits that are not needed
/// any more would send every lookup of an absent id through the whole table.
#[test]
fn lookups_of_absent_ids_stay_short_after_many_replacements() {
    const ROWS: u64 = 20_000;
    let mut index = HashIndex::new();
    (0..ROWS).for_each(|id| _ = index.insert(id, Location::device(0)));
    let bytes = index.bytes();
    for id in ROWS..50 * ROWS {
        index.insert(id, Location::device(0));
        index.remove(id - ROWS).unwrap();
    }
    assert_eq!(index.bytes(), bytes);
    let buckets = (0..10_000).map(|i| index.buckets_to_find(u64::MAX - i)).sum::<usize>();
    assert!(buckets < 30_000, "{buckets} buckets read for 10000 absent ids");
}

/// Copying an index in the order of a visit, into one that grows meanwhile, must not form clusters: in bucket
/// order the average insert would probe hundreds of buckets here.
#[test]
fn copying_an_index_in_its_own_order_is_linear() {
    let mut source = HashIndex::new();
    (0..400_000).for_each(|id| _ = source.insert(id, Location::device(id as u32)));
    let (mut copy, mut buckets) = (HashIndex::new(), 0);
    source.for_each(|id, location| {
        buckets += copy.buckets_to_find(id);
        copy.insert(id, location);
    });
    assert_eq!(copy.len(), source.len());
    assert!(buckets < 10 * copy.len(), "{} buckets per insert", buckets as f64 / copy.len() as f64);
}

/// Growing releases the old memory step by step. Peak memory is counted per process, so this test runs in its
/// own process.
#[test]
fn growing_does_not_hold_old_and_new_at_once() {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "index::tests::growth_in_a_process_of_its_own", "--ignored"])
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
#[ignore = "run by growing_does_not_hold_old_and_new_at_once"]
fn growth_in_a_process_of_its_own() {
    const ROWS: usize = 4_000_000;
    let mut index = HashIndex::new();
    index.reserve(ROWS);
    (0..ROWS as u64).for_each(|id| _ = index.insert(id, Location::device(id as u32)));
    let old_bytes = index.bytes();
    let before = peak_resident_bytes();
    let growth = index.grow_bytes_if_inserting(1);
    index.reserve(1);
    assert!(growth > old_bytes / 4);
    let peak = peak_resident_bytes() - before;
    assert!(peak < growth + (8 << 20), "grew by {growth} bytes, taking {peak} on the way");
}

/// Peak resident memory of this process.
fn peak_resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Threads that touch the five entries of one bucket do not change each other's bits or clocks.
#[test]
fn touching_an_entry_does_not_change_its_neighbours() {
    for ids in [IdRange::Sparse, IdRange::Dense { rows: 64 }] {
        for round in 0..200 {
            let mut index = TableIndex::new(ids, 0, 1);
            // 64 ids in a page of 64 buckets, so some buckets have several.
            let entries: Vec<_> = (0..64).map(|id| index.insert(id, Location::device(id as u32))).collect();
            for (id, &entry) in entries.iter().enumerate() {
                index.set_clock(entry, (id + round) as u8 % 16);
            }
            let (index, entries) = (&index, &entries);
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    scope.spawn(move || {
                        for i in 0..entries.len() * 20 {
                            index.touch(entries[(i * (2 * thread + 1)) % entries.len()]);
                        }
                    });
                }
            });
            for (id, &entry) in entries.iter().enumerate() {
                assert_eq!(index.clock(entry), (id + round) as u8 % 16);
                assert_eq!(index.frequency(entry), FREQUENCY_MAX, "40 touches saturate");
                assert_eq!(index.location(entry), Location::device(id as u32));
            }
        }
    }
}

/// `cargo test --release -p rowmill-index measure_lookups -- --ignored --nocapture`
#[test]
#[ignore = "a measurement of a minute, not a check"]
fn measure_lookups() {
    const ROWS: u64 = 32_000_000;
    const BATCH: usize = 16;
    let scrambled = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def0;
    let mut hash = TableIndex::new(IdRange::Sparse, 0, 1);
    report("hash, inserts while growing", ROWS, || {
        (0..ROWS).for_each(|i| _ = hash.insert(scrambled(i), Location::device(i as u32)));
    });
    let mut direct = TableIndex::new(IdRange::Dense { rows: ROWS }, 0, 1);
    report("direct, inserts", ROWS, || {
        (0..ROWS).for_each(|i| _ = direct.insert(i, Location::device(i as u32)));
    });
    println!("hash {} bytes, direct {} bytes", hash.bytes(), direct.bytes());

    let picks: Vec<u64> = (0..4_000_000_u64).map(|i| (scrambled(i) >> 20) % ROWS).collect();
    let present: Vec<u64> = picks.iter().map(|&i| scrambled(i)).collect();
    let absent: Vec<u64> = picks.iter().map(|&i| scrambled(i + ROWS)).collect();
    let count = picks.len() as u64;
    let find_all = |index: &TableIndex, ids: &[u64]| {
        let mut sum = 0;
        for ids in ids.chunks(BATCH) {
            for &id in ids {
                index.prefetch(id, super::hash(id));
            }
            for &id in ids {
                sum += index.find(id).map_or(0, |entry| u64::from(index.location(entry).stored()));
            }
        }
        std::hint::black_box(sum);
    };
    for _ in 0..5 {
        // The limit: one prefetched line of the same memory per id, with the same hash.
        if let TableIndex::Hash(hash) = &hash {
            report("hash, home lines alone", count, || {
                std::hint::black_box(present.chunks(BATCH).map(|ids| hash.read_homes(ids)).sum::<u64>());
            });
        }
        report("hash, finds", count, || find_all(&hash, &present));
        report("hash, finds of absent ids", count, || find_all(&hash, &absent));
        report("direct, finds", count, || find_all(&direct, &picks));
    }
    let mut copy = TableIndex::new(IdRange::Sparse, 0, 1);
    if let TableIndex::Hash(copy) = &mut copy {
        copy.reserve(hash.len());
    }
    report("hash, copy into reserved memory", ROWS, || {
        hash.for_each(|id, location| _ = copy.insert(id, location));
    });
    copy = TableIndex::new(IdRange::Sparse, 0, 1);
    report("hash, copy while growing", ROWS, || {
        hash.for_each(|id, location| _ = copy.insert(id, location));
    });
}

/// Print the rate of `count` operations by the CPU time of this thread, which other work on the machine
/// disturbs less than wall time.
fn report(name: &str, count: u64, work: impl FnOnce()) {
    let started = thread_cpu_seconds();
    work();
    println!("{name}: {:.1} M/s", count as f64 / (thread_cpu_seconds() - started) / 1e6);
}

fn thread_cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and `time` is valid for writes.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
