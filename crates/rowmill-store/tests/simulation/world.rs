//! One run: a store on a machine that fails by the schedule, and the expected content.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rowmill_store::*;
use rowmill_testkit::{Fault, FaultyVolume, Rng64, When};

use crate::aside::{Aside, Overtaking, What};
use crate::common::{SEED, as_version, gradients, thread_counts};
use crate::model::{Model, Row, same_bits};
use crate::schedule::{Call, Schedule, Step, id_of};
use crate::seen::Seen;

/// Versions that a store keeps.
const VERSIONS: usize = 2;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Faults that a write, a sync or a rename reports.
const WRITE_FAULTS: [Fault; 4] = [Fault::WriteError, Fault::Full, Fault::SyncError, Fault::RenameError];
/// Faults with which a read delivers wrong data.
const LIES: [Fault; 3] = [Fault::BitFlip, Fault::StaleRead, Fault::MisdirectedRead];

/// How often every kind of fault has hit so far.
type Fired = [u64; Fault::ALL.len()];

/// The expected content of a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    pub(crate) epoch: u64,
    pub(crate) models: Vec<Model>,
    pub(crate) attached: Vec<u8>,
}

/// Silent faults so far, which may have caused damage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silent {
    torn: bool,
    pub(crate) lost: bool,
}

impl Silent {
    pub(crate) fn any(self) -> bool {
        self.torn || self.lost
    }
}

/// The outcome of a call.
enum End<T> {
    Done(T),
    /// It failed and may have changed some of its rows.
    Failed,
    /// It was refused and has changed nothing.
    Refused,
    /// Power is lost.
    Dead,
}

#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub(crate) struct World<'a> {
    pub(crate) schedule: &'a Schedule,
    /// Whether the store has its own threads.
    threads: bool,
    pub(crate) volume: FaultyVolume,
    store: Option<Arc<Store>>,
    pub(crate) tables: Vec<Table>,
    pub(crate) models: Vec<Model>,
    /// Checkpoints at which the store may open.
    pub(crate) history: Vec<Saved>,
    pub(crate) acknowledged: u64,
    /// Versions of acknowledged checkpoints by name, and those of checkpoints whose call failed.
    pub(crate) versions: Vec<(String, Saved)>,
    openings: u64,
    /// Whether the store has reported a failed write.
    poisoned: bool,
    /// Whether it had done so when the running call began.
    poisoned_before: bool,
    /// Faults that had hit when the store was opened.
    at_open: Fired,
    pub(crate) silent: Silent,
    held: Vec<(Ticket, usize, Vec<u64>)>,
    aside: Aside,
    pub(crate) seen: Seen,
    /// Prints every step.
    trace: bool,
}

impl<'a> World<'a> {
    /// Run a schedule, with the store's own threads or without. Returns the counts, and a checksum of all
    /// files at the end.
    pub(crate) fn run(schedule: &'a Schedule, threads: bool, trace: bool) -> (Seen, u32) {
        let mut world = Self::new(schedule, threads, trace);
        if world.open() {
            for (number, step) in schedule.steps.iter().enumerate() {
                if trace {
                    println!("{number:>4} {:?} of table {}", step.call, step.table);
                }
                if !world.step(step) {
                    break;
                }
            }
        }
        world.finish()
    }

    fn new(schedule: &'a Schedule, threads: bool, trace: bool) -> Self {
        let volume = FaultyVolume::over_memory(MemoryVolume::crashable(), schedule.seed);
        let aside = Aside::default();
        if !threads {
            let others = aside.clone();
            volume.meanwhile(move |operation, name| {
                rowmill_sync::as_another_thread(|| others.overtake(operation, name));
            });
        }
        let specs = schedule.specs().into_iter().enumerate();
        let models: Vec<Model> = specs.map(|(category, spec)| Model::new(spec, category as u32)).collect();
        let empty = Saved { epoch: 0, models: models.clone(), attached: Vec::new() };
        Self {
            schedule,
            threads,
            volume,
            store: None,
            tables: Vec::new(),
            models,
            history: vec![empty],
            acknowledged: 0,
            versions: Vec::new(),
            openings: 0,
            poisoned: false,
            poisoned_before: false,
            at_open: [0; Fault::ALL.len()],
            silent: Silent::default(),
            held: Vec::new(),
            aside,
            seen: Seen { schedules: 1, ..Seen::default() },
            trace,
        }
    }

    fn finish(mut self) -> (Seen, u32) {
        self.close();
        for fault in Fault::ALL {
            if self.volume.fired(fault) > 0 {
                self.seen.hit.insert(fault, 1);
            }
        }
        self.volume.heal();
        // A machine without power has no files until it restarts.
        let volume = if self.volume.has_crashed() { self.volume.crash().volume } else { self.volume.clone() };
        let mut checksum = 0;
        for name in volume.list().unwrap() {
            let mut bytes = name.clone().into_bytes();
            std::io::Read::read_to_end(&mut volume.open(&name).unwrap(), &mut bytes).unwrap();
            checksum ^= rowmill_io::checksum(&bytes, self.openings);
        }
        (self.seen, checksum)
    }

    // ------------------------------------------------------------------ opening and closing

    pub(crate) fn options(&self) -> StoreOptions {
        StoreOptions {
            memory: if self.threads { 48 << 20 } else { 16 << 20 },
            row_memory: Some(self.schedule.shape.row_memory),
            threads: if self.threads {
                thread_counts()[self.schedule.seed as usize % thread_counts().len()]
            } else {
                1
            },
            spread_rows_min: 1,
            seed: SEED,
            wait_deadline: Duration::from_millis(500),
            background: if self.threads {
                Background::Threads
            } else {
                Background::Turns { incarnation: self.openings * 1_000_003 }
            },
            ..StoreOptions::default()
        }
    }

    fn close(&mut self) {
        self.aside.close();
        self.held.clear();
        self.tables.clear();
        if let Some(store) = self.store.take() {
            self.seen.add_stats(&store.stats());
            store.close();
        }
        self.seen.snapshots = self.seen.snapshots.max(u64::from(
            self.volume.list().is_ok_and(|names| names.iter().any(|name| name.ends_with(".snapshot"))),
        ));
    }

    /// Open the store and compare it with its checkpoint. Returns false when it is too damaged to open, as
    /// the faults allow.
    fn open(&mut self) -> bool {
        let mut at = None;
        loop {
            self.openings += 1;
            let before = self.fired();
            // Faults that hit an earlier opening no longer count.
            self.at_open = before;
            let options = StoreOptions { at: at.take(), ..self.options() };
            match Store::open_volume(Arc::new(self.volume.clone()), options) {
                // Both checkpoints are intact, so either may be chosen.
                Err(StoreError::InDoubt { committed, prepared, .. }) => {
                    at = Some(if self.openings.is_multiple_of(2) { committed } else { prepared });
                    self.seen.in_doubt += 1;
                    self.note(|| format!("checkpoint {prepared} is in doubt, opening at {at:?}"));
                }
                Ok(store) => {
                    self.volume.heal();
                    self.store = Some(store);
                    if !self.volume.has_crashed() {
                        break;
                    }
                    self.recover_machine();
                }
                Err(_) if self.volume.has_crashed() => self.recover_machine(),
                Err(error) => {
                    self.note(|| format!("opening failed: {error}"));
                    match self.fault_of(&error, &before) {
                        // The machine is healthy from now on, and the store as before.
                        Some(fault) => {
                            self.seen.changed_by(fault);
                            self.volume.heal();
                        }
                        None if self.silent.any() && matches!(error, StoreError::Corrupt { .. }) => {
                            self.blame_silent();
                            self.seen.refused += 1;
                            return false;
                        }
                        None => panic!("opening failed: {error:?}"),
                    }
                }
            }
        }
        self.note_silent();
        self.poisoned = false;
        let store = Arc::clone(self.store.as_ref().unwrap());
        self.tables = (NAMES.iter().zip(self.schedule.specs()))
            .map(|(name, spec)| store.table(name, &spec).unwrap())
            .collect();
        self.compare(&store);
        let ids = |table| (0..self.schedule.shape.universe).map(|number| id_of(table, number)).collect();
        self.aside.open(&store, &self.tables, (0..self.tables.len()).map(ids).collect());
        true
    }

    // ------------------------------------------------------------------ faults

    fn fired(&self) -> Fired {
        Fault::ALL.map(|fault| self.volume.fired(fault))
    }

    fn fired_since(&self, fault: Fault, before: &Fired) -> bool {
        let at = Fault::ALL.iter().position(|other| *other == fault).expect("every kind is listed");
        self.volume.fired(fault) > before[at]
    }

    fn note_silent(&mut self) {
        self.silent.torn |= self.volume.fired(Fault::TornWrite) > 0;
        self.silent.lost |= self.volume.fired(Fault::LostSync) > 0;
    }

    pub(crate) fn blame_silent(&mut self) {
        let fault = if self.silent.torn { Fault::TornWrite } else { Fault::LostSync };
        self.seen.changed_by(fault);
    }

    /// The fault that explains an error of an operation that began with the counts `before`.
    fn fault_of(&self, error: &StoreError, before: &Fired) -> Option<Fault> {
        let hit = |faults: &[Fault], before: &Fired| {
            faults.iter().copied().find(|&fault| self.fired_since(fault, before))
        };
        // With threads, a fault may have hit one of them before the call.
        let before = if self.threads { &self.at_open } else { before };
        match error {
            StoreError::Corrupt { .. } => hit(&LIES, before),
            StoreError::Device(_) => {
                hit(&[Fault::ReadError], before).or_else(|| hit(&WRITE_FAULTS, &self.at_open))
            }
            StoreError::Full { .. } | StoreError::Poisoned { .. } => hit(&WRITE_FAULTS, &self.at_open),
            _ => None,
        }
    }

    /// Whether a writing call of these rows changes anything, or is refused like one that does: a store that refuses
    /// writes refuses those of no rows, too.
    fn is_change(&self, ids: &[u64]) -> bool {
        !ids.is_empty() || self.poisoned
    }

    /// Judge the result of a call. `change` says whether the call changes anything.
    fn judge<T>(&mut self, result: Result<T, StoreError>, before: &Fired, change: bool) -> End<T> {
        self.note_silent();
        let error = match result {
            Ok(value) => {
                assert!(!(change && self.poisoned), "a store that refuses writes accepted one");
                return End::Done(value);
            }
            Err(_) if self.volume.has_crashed() => return End::Dead,
            Err(error) => error,
        };
        self.note(|| format!("failed: {error}"));
        if self.poisoned && change {
            assert!(matches!(error, StoreError::Poisoned { .. }), "reported once more: {error:?}");
            return End::Refused;
        }
        let poisons = matches!(error, StoreError::Full { .. } | StoreError::Poisoned { .. });
        assert!(change || !poisons, "a read was refused for a failed write: {error:?}");
        match self.fault_of(&error, before) {
            Some(fault) => self.seen.changed_by(fault),
            None => self.expect_damage(&error),
        }
        self.poisoned |= poisons;
        End::Failed
    }

    pub(crate) fn note(&self, text: impl Fn() -> String) {
        if self.trace {
            println!("     {}", text());
        }
    }

    // ------------------------------------------------------------------ steps

    /// Do one step. Returns false when the run is over.
    fn step(&mut self, step: &Step) -> bool {
        self.seen.calls += 1;
        let mut rng = Rng64::new(step.seed);
        match step.call {
            Call::Inject { fault, prefix, when } => self.inject(fault, prefix, when),
            Call::Heal => self.volume.heal(),
            Call::PowerFailure { changes } => self.volume.lose_power_in(changes),
            Call::Crash => return self.crash(),
            Call::Reopen => {
                self.close();
                return self.open();
            }
            Call::Checkpoint => self.checkpoint(step.seed),
            call => {
                let which = step.table % self.models.len();
                self.call(call, which, &mut rng);
            }
        }
        if self.volume.has_crashed() { self.crash() } else { true }
    }

    fn inject(&mut self, fault: Fault, prefix: &'static str, when: When) {
        // Writing the marker of the first checkpoint may fail silently: it guards against a rare case.
        let unmarked = self.acknowledged == 0 && (prefix.is_empty() || prefix == ".");
        let prefix = if unmarked && WRITE_FAULTS.contains(&fault) { "group-" } else { prefix };
        self.volume.inject_on(prefix, fault, when);
    }

    fn crash(&mut self) -> bool {
        let before: Vec<Model> = self.models.clone();
        self.recover_machine();
        let opened = self.open();
        let lost =
            |(one, other): (&Model, &Model)| one.steps != other.steps || one.rows.len() != other.rows.len();
        self.seen.crashes_that_lost += u64::from(opened && before.iter().zip(&self.models).any(lost));
        opened
    }

    /// Lose power, unless it is already lost, and restart the machine.
    fn recover_machine(&mut self) {
        self.seen.crashes += 1;
        self.seen.power_failures += u64::from(self.volume.has_crashed());
        let crash = self.volume.crash();
        self.close();
        self.note(|| {
            format!(
                "crash: {} changes kept, {} lost, {} torn, {} names lost",
                crash.changes_kept, crash.changes_lost, crash.changes_torn, crash.names_lost
            )
        });
        self.volume = crash.volume;
        self.volume.heal();
    }

    fn checkpoint(&mut self, seed: u64) {
        let before = self.fired();
        let late = WRITE_FAULTS.iter().copied().find(|&fault| self.fired_since(fault, &self.at_open));
        let attached = seed.to_le_bytes().to_vec();
        let epoch = self.acknowledged + 1;
        let saved = Saved { epoch, models: self.models.clone(), attached: attached.clone() };
        let store = Arc::clone(self.store.as_ref().unwrap());
        self.begin(seed, Some(HashSet::new()));
        self.aside.at_checkpoint();
        let attachments: [(&str, &[u8]); 1] = [("bytes", &attached)];
        // Some schedules make versions, of most of their checkpoints.
        let versioned = self.schedule.seed.is_multiple_of(3) && !seed.is_multiple_of(5);
        let version = versioned.then(|| as_version(&format!("v{epoch}"), VERSIONS));
        let result = if seed.is_multiple_of(2) {
            store.checkpoint_as(&attachments, version.as_ref())
        } else {
            store.prepare_as(&attachments, version.as_ref()).and_then(|_| store.commit())
        };
        let overtaken = self.aside.end();
        let tried = !self.poisoned;
        let end = self.judge(result, &before, true);
        if tried {
            if let Some(version) = version {
                self.versions.retain(|(name, _)| *name != version.name);
                self.versions.push((version.name, saved.clone()));
            }
            self.history.push(saved);
        }
        match end {
            End::Done(info) => {
                assert_eq!(info.epoch, epoch);
                assert!(late.is_none(), "a checkpoint was made although {late:?} had hit a write before");
                self.acknowledged = epoch;
                if !self.silent.lost {
                    self.history.retain(|saved| saved.epoch == epoch);
                }
            }
            End::Failed => self.poisoned = true,
            End::Refused | End::Dead => {}
        }
        self.tell(overtaken, &before);
    }

    fn call(&mut self, call: Call, which: usize, rng: &mut Rng64) {
        let before = self.fired();
        let table = self.tables[which].clone();
        let store = Arc::clone(self.store.as_ref().unwrap());
        let mut ids = self.schedule.ids(which, rng);
        if !matches!(call, Call::Get | Call::Contains) {
            // No call uses a row that is in doubt.
            ids.retain(|id| !self.models[which].unsure.contains_key(id));
        }
        let busy = ids.iter().map(|&id| (which, id)).collect();
        self.begin(rng.next_u64(), (!matches!(call, Call::Scan)).then_some(busy));
        let width = ids.len() * self.models[which].dim();
        match call {
            Call::Get => {
                let mut out = vec![0.0; width];
                let result = table.get(&ids, &mut out);
                if let End::Done(()) = self.judge(result, &before, false) {
                    self.check_weights(which, &ids, &out);
                }
            }
            Call::GetOrInit { hold } => self.get_or_init(&store, which, &ids, hold, &before),
            Call::Put | Call::PutState => {
                let start = if matches!(call, Call::Put) { 0 } else { self.models[which].dim() };
                let width = if start == 0 { width } else { ids.len() * table.state_floats() };
                // Positive values, because optimizers take square roots of the state.
                let values: Vec<f32> = gradients(rng, width).iter().map(|value| value.abs() + 0.5).collect();
                let changed = self.models[which].put(&ids, &values, start);
                let result =
                    if start == 0 { table.put(&ids, &values, None) } else { table.put_state(&ids, &values) };
                let end = self.judge(result, &before, self.is_change(&ids));
                self.changed(which, &end, changed);
            }
            Call::Rmw => {
                let values = gradients(rng, width);
                let changed = self.models[which].step(&ids, &values, 0.25);
                let result = table.rmw(&ids, &values, Some(0.25), None);
                let end = self.judge(result, &before, self.is_change(&ids));
                self.stepped(which, &end, changed);
            }
            Call::Train => self.train(&store, which, &ids, rng, &before),
            Call::Delete => {
                let changed: BTreeMap<u64, Option<Row>> = ids.iter().map(|&id| (id, None)).collect();
                let end = self.judge(table.delete(&ids), &before, self.is_change(&ids));
                if let End::Done(deleted) = &end {
                    let rows = &self.models[which].rows;
                    assert_eq!(*deleted, changed.keys().filter(|id| rows.contains_key(id)).count());
                }
                self.changed(which, &end, changed);
            }
            Call::Contains => {
                let found = table.contains(&ids).unwrap();
                let model = &self.models[which];
                for (id, found) in ids.iter().zip(found) {
                    let exists = model.rows.contains_key(id);
                    assert!(found == exists || model.unsure.contains_key(id), "row {id} of {which}");
                }
            }
            Call::Scan => self.scan(&table, which, &before),
            Call::Announce(destination) => drop(table.lookahead(&ids, destination).unwrap()),
            Call::Turn(work) => drop(store.turn(work).unwrap()),
            other => unreachable!("{other:?} is not a call"),
        }
        let overtaken = self.aside.end();
        self.tell(overtaken, &before);
        if !self.volume.has_crashed() {
            self.settle_doubts(which);
        }
        self.check_lengths();
    }

    fn check_lengths(&self) {
        for (table, model) in self.tables.iter().zip(&self.models) {
            if model.unsure.is_empty() && !self.volume.has_crashed() {
                assert_eq!(table.len(), model.rows.len(), "rows of table {}", table.name());
                assert_eq!(table.steps(), model.steps, "steps of table {}", table.name());
            }
        }
    }

    /// A call begins that touches the rows `busy`, or all. Overtaking calls avoid rows in doubt, too.
    fn begin(&mut self, seed: u64, mut busy: Option<HashSet<(usize, u64)>>) {
        self.poisoned_before = self.poisoned;
        if let Some(busy) = &mut busy {
            for (which, model) in self.models.iter().enumerate() {
                busy.extend(model.unsure.keys().map(|&id| (which, id)));
            }
        }
        self.aside.begin(seed, busy);
    }

    fn get_or_init(&mut self, store: &Arc<Store>, which: usize, ids: &[u64], hold: bool, before: &Fired) {
        let held: HashSet<u64> = self.held_ids(which);
        let ids: Vec<u64> = ids.iter().copied().filter(|id| !held.contains(id)).collect();
        let End::Done(ticket) = self.judge(store.ticket(), before, true) else { return };
        let mut out = vec![0.0; ids.len() * self.models[which].dim()];
        let births = self.models[which].births(&ids);
        let result = self.tables[which].get_or_init(&ids, &mut out, Some(&ticket));
        let end = self.judge(result, before, !ids.is_empty());
        let done = matches!(end, End::Done(()));
        self.changed(which, &end, births);
        if done {
            self.check_weights(which, &ids, &out);
            if hold {
                self.held.push((ticket, which, ids));
            }
        }
        if self.held.len() > 3 {
            self.held.remove(0);
        }
    }

    fn held_ids(&self, which: usize) -> HashSet<u64> {
        let of_table = self.held.iter().filter(|(_, table, _)| *table == which);
        of_table.flat_map(|(_, _, ids)| ids.iter().copied()).collect()
    }

    /// One bag per id, so that every pooled vector is a row, and every gradient belongs to one row.
    fn train(&mut self, store: &Arc<Store>, which: usize, ids: &[u64], rng: &mut Rng64, before: &Fired) {
        let held = self.held_ids(which);
        let mut ids: Vec<u64> = ids.iter().copied().filter(|id| !held.contains(id)).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return;
        }
        let End::Done(ticket) = self.judge(store.ticket(), before, true) else { return };
        let dim = self.models[which].dim();
        let offsets: Vec<i64> = (0..=ids.len() as i64).collect();
        let bag = IdBag { ids: &ids, offsets: &offsets, weights: None, padding: None, pooling: Pooling::Sum };
        let mut out = vec![0.0; ids.len() * dim];
        let births = self.models[which].births(&ids);
        let result = store.lookup(&[(&self.tables[which], bag)], &mut out, dim, Some(&ticket));
        let (lookup, end) = match self.judge(result, before, true) {
            End::Done(lookup) => (Some(lookup), End::Done(())),
            End::Failed => (None, End::Failed),
            End::Refused => (None, End::Refused),
            End::Dead => (None, End::Dead),
        };
        self.changed(which, &end, births);
        // Calls that overtook the reads took their steps before the backward takes its step.
        let overtaken = self.aside.end();
        self.tell(overtaken, before);
        let Some(lookup) = lookup else { return };
        self.check_weights(which, &ids, &out);
        self.begin(rng.next_u64(), Some(ids.iter().map(|&id| (which, id)).collect()));
        if rng.one_in(4) {
            return;
        }
        let before = self.fired();
        let values = gradients(rng, ids.len() * dim);
        let changed = self.models[which].step(&ids, &values, 0.5);
        let result = store.apply(&lookup, &values, dim, &[0.5], Some(&ticket));
        let end = self.judge(result, &before, true);
        self.stepped(which, &end, changed);
        assert!(matches!(end, End::Dead) || ticket.rows_held() == 0, "the backward releases every clock");
    }

    fn scan(&mut self, table: &Table, which: usize, before: &Fired) {
        let dim = self.models[which].dim();
        let mut found: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        let result = table.scan(7, |ids, weights| {
            for (id, weights) in ids.iter().zip(weights.chunks(dim)) {
                assert!(found.insert(*id, weights.to_vec()).is_none(), "row {id} is visited twice");
            }
            true
        });
        if let End::Done(()) = self.judge(result, before, false) {
            let model = &self.models[which];
            for id in model.rows.keys() {
                assert!(found.contains_key(id), "row {id} of {which} is not scanned");
            }
            let (ids, weights): (Vec<u64>, Vec<Vec<f32>>) = found.into_iter().unzip();
            for id in &ids {
                let known = model.rows.contains_key(id) || model.unsure.contains_key(id);
                assert!(known, "row {id} of {which} does not exist");
            }
            self.check_weights(which, &ids, &weights.concat());
        }
    }

    // ------------------------------------------------------------------ the model

    /// Check that weights that were read equal the weights of the model.
    fn check_weights(&self, which: usize, ids: &[u64], found: &[f32]) {
        let model = &self.models[which];
        let dim = model.dim();
        for (id, found) in ids.iter().zip(found.chunks(dim)) {
            let right = |row: &Row| same_bits(&row[..dim], found);
            let matches = match model.unsure.get(id) {
                Some(candidates) => candidates
                    .iter()
                    .any(|row| row.as_ref().map_or_else(|| right(&model.initial(*id)), &right)),
                None => right(&model.read(*id)),
            };
            assert!(matches, "row {id} of table {which}: {found:?} instead of {:?}", model.read(*id));
        }
    }

    /// A call ended that makes these changes.
    fn changed<T>(&mut self, which: usize, end: &End<T>, changed: BTreeMap<u64, Option<Row>>) {
        match end {
            End::Done(_) => self.models[which].apply(changed),
            End::Failed => self.models[which].doubt(changed),
            End::Refused | End::Dead => {}
        }
    }

    /// As [`World::changed`], for an optimizer step: it counts as taken once it has begun.
    fn stepped(&mut self, which: usize, end: &End<()>, changed: BTreeMap<u64, Option<Row>>) {
        if matches!(end, End::Done(()) | End::Failed) && !changed.is_empty() {
            self.models[which].steps += 1;
        }
        self.changed(which, end, changed);
    }

    /// Apply the calls that overtook to the model.
    fn tell(&mut self, (overtaken, moved): (Vec<Overtaking>, u64), before: &Fired) {
        if moved > 0 {
            self.seen.changed_by(Fault::Slow);
        }
        let poisoned = std::mem::replace(&mut self.poisoned, self.poisoned_before);
        for Overtaking { table, ids, what } in overtaken {
            self.note(|| {
                format!("overtaken by {:.60} of {} rows of table {table}", format!("{what:?}"), ids.len())
            });
            match what {
                What::Get(result) => {
                    if let End::Done(out) = self.judge(result, before, false) {
                        self.check_weights(table, &ids, &out);
                    }
                }
                What::Rmw { gradients, result } => {
                    let rate = self.models[table].spec.optimizer.lr();
                    let changed = self.models[table].step(&ids, &gradients, rate);
                    let end = self.judge(result, before, true);
                    self.stepped(table, &end, changed);
                }
                What::Delete(result) => {
                    let end = self.judge(result, before, true);
                    self.changed(table, &end, ids.into_iter().map(|id| (id, None)).collect());
                }
            }
        }
        self.poisoned |= poisoned;
    }

    /// Read the rows that a failed call may have changed.
    fn settle_doubts(&mut self, which: usize) {
        if self.models[which].unsure.is_empty() {
            return;
        }
        let ids: Vec<u64> = self.models[which].unsure.keys().copied().collect();
        let table = self.tables[which].clone();
        let exist = table.contains(&ids).unwrap();
        let (dim, state) = (self.models[which].dim(), self.models[which].state_floats());
        for (&id, exists) in ids.iter().zip(exist) {
            let (mut row, mut rest) = (vec![0.0; dim], vec![0.0; state]);
            let before = self.fired();
            let read = table.get(&[id], &mut row).and_then(|()| table.get_state(&[id], &mut rest));
            if let End::Done(()) = self.judge(read, &before, false) {
                row.extend(rest);
                self.models[which].settle(id, exists.then(|| row.into())).unwrap();
            }
        }
    }
}
