//! Compares the content of a newly opened store with the model.

use std::sync::Arc;

use rowmill_store::*;
use rowmill_testkit::Fault;

use crate::model::{Model, Row};
use crate::world::{Saved, World};

impl World<'_> {
    /// The store must open at the last acknowledged checkpoint, or at a later one whose call failed.
    pub(crate) fn compare(&mut self, store: &Store) {
        let epoch = store.checkpoint_epoch();
        assert!(
            epoch == self.acknowledged || epoch == self.acknowledged + 1 || self.silent.lost,
            "the store stands at checkpoint {epoch}, the last acknowledged one was {}",
            self.acknowledged
        );
        let mut wrong = Vec::new();
        let mut found = None;
        for saved in self.history.clone().into_iter().rev().filter(|saved| saved.epoch == epoch) {
            match self.matches(store, &saved) {
                Ok(models) => {
                    found = Some(Saved { models, ..saved });
                    break;
                }
                Err(what) => wrong.push(what),
            }
        }
        let Some(found) = found else {
            panic!("checkpoint {epoch} holds something else (acknowledged {}): {wrong:?}", self.acknowledged)
        };
        if epoch < self.acknowledged {
            self.seen.changed_by(Fault::LostSync);
        }
        self.seen.unacknowledged += u64::from(epoch > self.acknowledged);
        self.note(|| format!("stands at checkpoint {epoch}, {} was acknowledged", self.acknowledged));
        self.acknowledged = epoch;
        self.models.clone_from(&found.models);
        if self.silent.lost {
            self.history.push(found);
        } else {
            self.history = vec![found];
        }
        self.compare_versions(epoch);
        let stats = store.stats();
        assert_eq!((stats.tickets, stats.lookahead_errors), (0, 0));
        self.check_clocks(store);
    }

    /// Compare every version of the checkpoint with the content that was saved. Silent faults may have damaged it.
    fn compare_versions(&mut self, epoch: u64) {
        if epoch == 0 || self.silent.any() || self.versions.is_empty() {
            return;
        }
        let volume: Arc<dyn Volume> = Arc::new(self.volume.clone());
        let found = versions(&volume).unwrap();
        for version in &found {
            assert!(version.epoch <= epoch, "version {} is of a later checkpoint", version.name);
            let options =
                StoreOptions { read_only: true, version: Some(version.name.clone()), ..self.options() };
            let store = Store::open_volume(Arc::clone(&volume), options).unwrap();
            let tables = std::mem::take(&mut self.tables);
            self.tables =
                ["a", "b", "c"][..tables.len()].iter().map(|name| store.open_table(name).unwrap()).collect();
            let saved = self.versions.iter().find(|(name, _)| *name == version.name).unwrap().1.clone();
            self.matches(&store, &saved).unwrap_or_else(|what| panic!("version {}: {what}", version.name));
            self.tables = tables;
            self.seen.versions += 1;
        }
        self.versions.retain(|(name, _)| found.iter().any(|version| version.name == *name));
    }

    /// Whether the open store holds the saved content. Returns the models with all doubts settled.
    fn matches(&mut self, store: &Store, saved: &Saved) -> Result<Vec<Model>, String> {
        let mut models = saved.models.clone();
        match store.attachment("bytes") {
            Ok(found) => {
                if found.unwrap_or_default() != saved.attached {
                    return Err("another attachment".into());
                }
            }
            Err(error) => self.expect_damage(&error),
        }
        for (which, model) in models.iter_mut().enumerate() {
            let table = self.tables[which].clone();
            if table.steps() != model.steps {
                return Err(format!("{} steps of {which} instead of {}", table.steps(), model.steps));
            }
            if model.unsure.is_empty() && table.len() != model.rows.len() {
                return Err(format!("{} rows in {which} instead of {}", table.len(), model.rows.len()));
            }
            let ids: Vec<u64> = model.rows.keys().chain(model.unsure.keys()).copied().collect();
            let exist = table.contains(&ids).unwrap();
            let mut found = 0;
            for (ids, exist) in ids.chunks(256).zip(exist.chunks(256)) {
                for (&id, row) in ids.iter().zip(self.read_rows(&table, ids)) {
                    let exists = exist[found % 256];
                    found += 1;
                    let Some(row) = row else { continue };
                    let row = exists.then_some(row);
                    if !model.allows(id, row.as_deref()) {
                        return Err(format!("row {id} of {which}"));
                    }
                    if model.unsure.contains_key(&id) {
                        model.settle(id, row)?;
                    }
                }
            }
            if model.unsure.is_empty() && table.len() != model.rows.len() {
                return Err(format!("{} rows in {which} instead of {}", table.len(), model.rows.len()));
            }
        }
        Ok(models)
    }

    /// Weights and state of rows; `None` for a row that is damaged, as the faults allow.
    fn read_rows(&mut self, table: &Table, ids: &[u64]) -> Vec<Option<Row>> {
        let (dim, state) = (table.spec().dim as usize, table.state_floats());
        let (mut weights, mut states) = (vec![0.0; ids.len() * dim], vec![0.0; ids.len() * state]);
        let read = table.get(ids, &mut weights).and_then(|()| table.get_state(ids, &mut states));
        match read {
            Ok(()) => (0..ids.len())
                .map(|at| Some([&weights[at * dim..][..dim], &states[at * state..][..state]].concat().into()))
                .collect(),
            Err(error) => {
                self.expect_damage(&error);
                if ids.len() == 1 {
                    return vec![None];
                }
                ids.iter().flat_map(|&id| self.read_rows(table, &[id])).collect()
            }
        }
    }

    pub(crate) fn expect_damage(&mut self, error: &StoreError) {
        let corrupt = matches!(error, StoreError::Corrupt { .. });
        assert!(corrupt && self.silent.any(), "nothing is damaged, but: {error:?}");
        self.blame_silent();
    }

    /// Check that no row is held by a step of an earlier opening.
    fn check_clocks(&self, store: &Store) {
        let ids: Vec<u64> = self.models[0].rows.keys().copied().take(32).collect();
        let ticket = store.ticket().unwrap();
        let mut out = vec![0.0; ids.len() * self.models[0].dim()];
        match self.tables[0].get_or_init(&ids, &mut out, Some(&ticket)) {
            Ok(()) => assert_eq!(ticket.rows_held(), ids.len()),
            Err(StoreError::Corrupt { .. }) if self.silent.any() => {}
            Err(error) => panic!("a clock is not zero: {error}"),
        }
    }
}
