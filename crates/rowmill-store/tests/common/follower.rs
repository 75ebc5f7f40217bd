//! A copy of a store's weights, kept by following its feed.

use std::collections::HashMap;
use std::sync::Arc;

use rowmill_store::*;

#[derive(Default)]
pub(crate) struct Follower {
    pub(crate) rows: HashMap<(String, u64), Vec<f32>>,
    pub(crate) position: u64,
    pub(crate) rollbacks: u64,
    pub(crate) deletes: u64,
    pub(crate) checkpoint: u64,
}

impl Follower {
    /// A copy of the last checkpoint, and a reader of the later changes.
    pub(crate) fn of_checkpoint(store: &Arc<Store>, volume: &Arc<dyn Volume>) -> (Self, FeedReader) {
        let changes = store.changes(0).unwrap();
        let reader = FeedReader::at_checkpoint(volume, changes.until()).unwrap();
        let position = reader.position();
        let mut follower = Self { position, checkpoint: changes.until(), ..Self::default() };
        changes
            .for_each(1000, |changed| {
                follower.write(changed.table, changed.ids, changed.rows, changed.row_floats, changed.dim);
                true
            })
            .unwrap();
        (follower, reader)
    }

    pub(crate) fn read_all(&mut self, reader: &mut FeedReader) {
        while let Some(event) = reader.poll().unwrap() {
            self.apply(event);
        }
    }

    pub(crate) fn apply(&mut self, event: FeedEvent) {
        assert!(event.sequence > self.position, "frames are in order");
        self.position = event.sequence;
        match event.change {
            FeedChange::Rows { table, dim, ids, weights, .. } => self.write(&table, &ids, &weights, dim, dim),
            FeedChange::Deleted { table, ids, .. } => {
                self.deletes += ids.len() as u64;
                for id in ids {
                    self.rows.remove(&(table.clone(), id));
                }
            }
            FeedChange::Checkpoint { epoch } => self.checkpoint = epoch,
            FeedChange::Rollback { to, epoch } => {
                assert!(to < event.sequence && epoch <= self.checkpoint, "a rollback goes back, not ahead");
                self.rollbacks += 1;
            }
            change => panic!("unknown: {change:?}"),
        }
    }

    fn write(&mut self, table: &str, ids: &[u64], rows: &[f32], row_floats: usize, dim: usize) {
        for (id, row) in ids.iter().zip(rows.chunks_exact(row_floats)) {
            self.rows.insert((table.to_owned(), *id), row[..dim].to_vec());
        }
    }
}
