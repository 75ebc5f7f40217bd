//! Calls that overtake a slow operation.
//!
//! While a read or a sync of the device is slow, other calls use the store: they read, change rows that the
//! slow call does not touch, and do background work, so that rows and segments move meanwhile. Their effects
//! are applied to the model when the slow call has ended.

use std::collections::HashSet;
use std::sync::Arc;

use rowmill_store::*;
use rowmill_sync::unranked::Mutex;
use rowmill_testkit::Rng64;

use crate::common::gradients;

/// One call that overtook.
#[derive(Debug)]
pub(crate) struct Overtaking {
    pub(crate) table: usize,
    pub(crate) ids: Vec<u64>,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Get(Result<Vec<f32>, StoreError>),
    Rmw { gradients: Vec<f32>, result: Result<(), StoreError> },
    Delete(Result<usize, StoreError>),
}

impl What {
    fn failed(&self) -> bool {
        match self {
            Self::Get(result) => result.is_err(),
            Self::Rmw { result, .. } => result.is_err(),
            Self::Delete(result) => result.is_err(),
        }
    }
}

/// The store for overtaking calls.
#[derive(Debug, Default)]
struct State {
    store: Option<Arc<Store>>,
    tables: Vec<Table>,
    /// Rows that the running call touches.
    busy: HashSet<(usize, u64)>,
    /// Whether rows may be changed at all.
    may_change: bool,
    /// Whether the running call is a checkpoint.
    checkpoint: bool,
    /// Ids of each table to choose from.
    ids: Vec<Vec<u64>>,
    rng: Option<Rng64>,
    done: Vec<Overtaking>,
    /// Number of changes and cleanings in between.
    moved: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Aside(Arc<Mutex<State>>);

impl Aside {
    /// Overtaking calls use this store from now on.
    pub(crate) fn open(&self, store: &Arc<Store>, tables: &[Table], ids: Vec<Vec<u64>>) {
        let mut state = self.0.lock();
        state.store = Some(Arc::clone(store));
        state.tables = tables.to_vec();
        state.ids = ids;
    }

    /// Overtaking calls have no store from now on.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.store = None;
        state.tables.clear();
        state.rng = None;
    }

    /// A call begins that touches these rows; `None`: all rows.
    pub(crate) fn begin(&self, seed: u64, busy: Option<HashSet<(usize, u64)>>) {
        let mut state = self.0.lock();
        state.checkpoint = false;
        state.may_change = busy.is_some();
        state.busy = busy.unwrap_or_default();
        state.rng = Some(Rng64::new(seed));
    }

    /// The call that has begun is a checkpoint. Calls overtake it after its cut only, since the model is saved as of its
    /// begin.
    pub(crate) fn at_checkpoint(&self) {
        self.0.lock().checkpoint = true;
    }

    /// The call has ended. Returns the calls that overtook it, and how often rows or segments moved.
    pub(crate) fn end(&self) -> (Vec<Overtaking>, u64) {
        let mut state = self.0.lock();
        state.rng = None;
        (std::mem::take(&mut state.done), std::mem::take(&mut state.moved))
    }

    /// An operation on the device or file `name` is slow.
    pub(crate) fn overtake(&self, operation: &str, name: &str) {
        // A write runs under the locks of the rows for which it makes room, and a file's sync before the cut.
        if operation == "write" || !name.starts_with("group-") {
            return;
        }
        // Overtaking calls are not overtaken: the generator is taken out meanwhile.
        let (store, tables, mut rng) = {
            let mut state = self.0.lock();
            // Cleaning before the cut reads segments; logs are synced after it.
            if state.checkpoint && operation != "sync" {
                return;
            }
            let Some(store) = state.store.clone() else { return };
            let Some(rng) = state.rng.take() else { return };
            (store, state.tables.clone(), rng)
        };
        for _ in 0..=rng.below(3) {
            let work = rng.below(8);
            if work < 3 {
                let work = [Work::Write, Work::Clean, Work::LookAhead][work as usize];
                if store.turn(work).unwrap_or(false) && work == Work::Clean {
                    self.0.lock().moved += 1;
                }
                continue;
            }
            let table = rng.below(tables.len() as u64) as usize;
            let (ids, may_change) = self.free_ids(table, &mut rng);
            if ids.is_empty() {
                continue;
            }
            let handle = &tables[table];
            let width = ids.len() * handle.spec().dim as usize;
            let what = match work {
                3 | 4 => {
                    let mut out = vec![0.0; width];
                    What::Get(handle.get(&ids, &mut out).map(|()| out))
                }
                _ if !may_change => continue,
                5 => What::Delete(handle.delete(&ids)),
                _ => {
                    let gradients = gradients(&mut rng, width);
                    let result = handle.rmw(&ids, &gradients, None, None);
                    What::Rmw { gradients, result }
                }
            };
            let failed = what.failed();
            let mut state = self.0.lock();
            state.moved += u64::from(!matches!(what, What::Get(_)));
            state.done.push(Overtaking { table, ids, what });
            if failed {
                // Its rows are in doubt until the slow call has ended.
                return;
            }
        }
        self.0.lock().rng = Some(rng);
    }

    /// A few distinct ids that the running call does not touch, and whether they may be changed.
    fn free_ids(&self, table: usize, rng: &mut Rng64) -> (Vec<u64>, bool) {
        let state = self.0.lock();
        let choice = &state.ids[table];
        let mut ids: Vec<u64> = (0..=rng.below(6))
            .map(|_| choice[rng.below(choice.len() as u64) as usize])
            .filter(|&id| !state.busy.contains(&(table, id)))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        (ids, state.may_change)
    }
}
