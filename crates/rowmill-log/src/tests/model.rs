//! Random histories compared with a map. Rows are changed in memory, spilled into the log, overwritten,
//! deleted and cleaned; checkpoints are cut, finished or abandoned; power fails.
//!
//! After every step a second log on the same device must be able to read the last durable checkpoint in full,
//! whatever was appended and reused since. After a crash the model continues from that checkpoint.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const IDS: u64 = 300;

#[derive(Clone, Debug)]
enum Step {
    /// Change rows `first..first + count` in memory.
    Put {
        first: u64,
        count: u64,
    },
    /// Move changed rows into the log.
    Evict {
        first: u64,
        count: u64,
    },
    Delete {
        first: u64,
        count: u64,
    },
    Read {
        first: u64,
        count: u64,
    },
    Flush,
    /// Begin a checkpoint: freeze the rows changed in memory.
    Cut,
    /// Write the frozen rows and make the checkpoint durable. Does nothing without a cut.
    Finish,
    Clean,
    Discard,
    Crash {
        seed: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..IDS, 1..120u64);
    let step = prop_oneof![
        6 => range().prop_map(|(first, count)| Step::Put { first, count }),
        6 => range().prop_map(|(first, count)| Step::Evict { first, count }),
        1 => range().prop_map(|(first, count)| Step::Delete { first, count }),
        3 => range().prop_map(|(first, count)| Step::Read { first, count }),
        1 => Just(Step::Flush),
        2 => Just(Step::Cut),
        3 => Just(Step::Finish),
        3 => Just(Step::Clean),
        1 => Just(Step::Discard),
        1 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Row numbers and versions of a checkpoint.
type Rows = BTreeMap<u64, (u32, u64)>;

struct Model {
    stride: usize,
    volume: MemoryVolume,
    log: Log,
    version: u64,
    incarnation: u64,
    /// Versions in memory that the log does not have.
    changed: BTreeMap<u64, u64>,
    evicted: Rows,
    /// The cut, the rows that were in the log at the cut, and the frozen versions not yet appended.
    cut: Option<(u64, Rows, BTreeMap<u64, u64>)>,
    durable: (LogState, Rows),
}

impl Model {
    fn new(stride: usize) -> Self {
        let volume = MemoryVolume::crashable();
        let device = volume.device("group-7.log", true).unwrap();
        volume.sync().unwrap();
        let log = Log::open(device, config(stride), &LogState::default()).unwrap();
        let durable = (LogState::default(), Rows::new());
        Self {
            stride,
            volume,
            log,
            version: 0,
            incarnation: 1,
            changed: BTreeMap::new(),
            evicted: Rows::new(),
            cut: None,
            durable,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Put { first, count } => {
                for id in first..first + count {
                    self.version += 1;
                    if self.changed.insert(id, self.version).is_none()
                        && let Some((number, _)) = self.evicted.remove(&id)
                    {
                        self.log.release(number);
                    }
                }
            }
            Step::Evict { first, count } => {
                for id in first..first + count {
                    self.freeze(id);
                    if let Some(version) = self.changed.remove(&id) {
                        let number = self.log.append(key(id), &row(self.stride, id, version)).unwrap();
                        self.evicted.insert(id, (number, version));
                    }
                }
            }
            Step::Delete { first, count } => {
                for id in first..first + count {
                    self.freeze(id);
                    self.changed.remove(&id);
                    if let Some((number, _)) = self.evicted.remove(&id) {
                        self.log.release(number);
                    }
                }
            }
            Step::Read { first, count } => {
                let rows = self.evicted.range(first..first + count).map(|(id, row)| (*id, *row)).collect();
                check(&self.log, self.stride, &rows);
            }
            Step::Flush => self.log.flush().unwrap(),
            Step::Cut => self.cut = Some((self.log.cut(), self.evicted.clone(), self.changed.clone())),
            Step::Finish => self.finish(),
            Step::Clean => self.clean(),
            Step::Discard => drop(self.log.discard_free(0)),
            Step::Crash { seed } => self.crash(seed),
        }
    }

    /// Append the frozen version of a row for the checkpoint. Unless the row has changed since, this is also
    /// its current location in the log.
    fn freeze(&mut self, id: u64) {
        let Some((_, rows, frozen)) = &mut self.cut else { return };
        let Some(version) = frozen.remove(&id) else { return };
        let number = self.log.append(key(id), &row(self.stride, id, version)).unwrap();
        rows.insert(id, (number, version));
        if self.changed.get(&id) == Some(&version) {
            self.changed.remove(&id);
            self.evicted.insert(id, (number, version));
        } else {
            self.log.release(number);
        }
    }

    fn finish(&mut self) {
        let Some((_, _, frozen)) = &self.cut else { return };
        for id in frozen.keys().copied().collect::<Vec<_>>() {
            self.freeze(id);
        }
        let (cut, rows, _) = self.cut.take().expect("checked above");
        self.log.flush().unwrap();
        self.log.sync().unwrap();
        self.durable = (self.log.state(cut), rows);
        self.log.checkpoint_durable(cut);
    }

    fn clean(&mut self) {
        let Some(victim) = self.log.victim() else { return };
        let Self { log, evicted, stride, .. } = self;
        let mut moved = 0;
        log.segment_rows(victim.place, &mut |number, owner, bytes| {
            if let Some((current, version)) = evicted.get_mut(&owner.id)
                && *current == number
            {
                assert_eq!(bytes, row(*stride, owner.id, *version));
                *current = log.append_moved(owner, bytes).unwrap();
                log.release(number);
                moved += 1;
            }
        })
        .unwrap();
        assert_eq!(moved, victim.live_rows);
    }

    fn crash(&mut self, seed: u64) {
        self.volume = self.volume.crash(seed).volume;
        self.incarnation += 1;
        self.log = self.open(3);
        let (state, rows) = &self.durable;
        let mut retaining = self.log.retaining();
        assert!(rows.values().all(|(number, _)| retaining.row(*number)));
        retaining.finish();
        self.log.loaded();
        assert_eq!(self.log.state(state.cut).segments.len(), self.log.space().places(&self.log));
        self.evicted.clone_from(rows);
        self.changed.clear();
        self.cut = None;
        check(&self.log, self.stride, rows);
    }

    fn open(&self, tail_buffers: usize) -> Log {
        let device = self.volume.device("group-7.log", tail_buffers > 0).unwrap();
        let config = LogConfig { tail_buffers, incarnation: self.incarnation, ..config(self.stride) };
        Log::open(device, config, &self.durable.0).unwrap()
    }

    fn check(&self) {
        assert_eq!(self.log.space().live, (self.evicted.len() * self.stride) as u64);
        check(&self.open(0), self.stride, &self.durable.1);
    }
}

impl super::super::LogSpace {
    fn places(&self, log: &Log) -> usize {
        ((self.used + self.pinned) / log.geometry().place_bytes() as u64) as usize
    }
}

fn check(log: &Log, stride: usize, rows: &Rows) {
    let wanted: Vec<_> = rows.iter().map(|(id, (number, _))| (*number, key(*id))).collect();
    for ((id, (_, version)), result) in rows.iter().zip(read(log, &wanted)) {
        assert_eq!(result.unwrap(), row(stride, *id, *version), "row {id}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_log_equals_a_map_and_its_last_checkpoint_survives(
        steps in steps(), stride in prop_oneof![Just(16), Just(64), Just(80), Just(512), Just(4096), Just(5000)],
    ) {
        let mut model = Model::new(stride);
        for step in &steps {
            model.step(step);
            model.check();
        }
        model.crash(7);
        model.check();
    }
}
