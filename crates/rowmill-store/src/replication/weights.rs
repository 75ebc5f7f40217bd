//! A copy of weights: all rows of the last checkpoint of a store, or of the stores of many ranks, without optimizer state.

use std::sync::Arc;

use rowmill_io::Volume;
use rowmill_rows::{Dtype, OptimizerSpec, TableSpec};

use super::changes::{ChangedRows, Changes};
use crate::error::StoreError;

/// How often a copy starts over when the trainer replaces the checkpoint that is being read.
const TRIES: u32 = 5;

/// Takes a copy of weights, piece by piece.
pub trait WeightsTarget {
    /// What it fails with.
    type Error: From<StoreError>;

    /// A copy begins, also over again: what came before does not count. Missing rows have the values that `seed` and
    /// the order of `tables` determine.
    ///
    /// # Errors
    /// Failures of the target, which end the copy.
    fn begin(&mut self, seed: u64, tables: &[(String, TableSpec)]) -> Result<(), Self::Error>;

    /// Some rows of a table: `dim` weights for each id.
    ///
    /// # Errors
    /// As [`WeightsTarget::begin`].
    fn rows(&mut self, table: &str, dim: usize, ids: &[u64], weights: &[f32]) -> Result<(), Self::Error>;
}

/// Where rows come from: the volume of a store, and the number of its checkpoint (`None`: the last).
pub type WeightsSource = (Arc<dyn Volume>, Option<u64>);

/// Copy the weights of a store, or of the stores of all ranks, to `target`. Tables keep their order, and with it the
/// values of missing rows. Every rank has all rows of the tables in `replicated`: they are copied from the first store.
/// `dtype` is that of the copy; `None` keeps the one of each table.
///
/// Returns the sequence number in the feed that the copy has; 0 without a feed.
///
/// # Errors
/// [`StoreError::Superseded`] when a trainer replaces checkpoints faster than they can be copied, damaged files, and
/// failures of the target.
pub fn copy_weights<T: WeightsTarget>(
    sources: &[WeightsSource],
    replicated: &[String],
    dtype: Option<Dtype>,
    target: &mut T,
) -> Result<u64, T::Error> {
    let mut tries = 1;
    loop {
        match try_copy(sources, replicated, dtype, target) {
            Ok(Err(StoreError::Superseded)) if tries < TRIES => tries += 1,
            Ok(copied) => return Ok(copied?),
            Err(error) => return Err(error),
        }
    }
}

/// The inner result is that of the sources.
fn try_copy<T: WeightsTarget>(
    sources: &[WeightsSource],
    replicated: &[String],
    dtype: Option<Dtype>,
    target: &mut T,
) -> Result<Result<u64, StoreError>, T::Error> {
    let opened = sources.iter().map(|(volume, at)| Changes::open_at(volume, 0, *at)).collect();
    let parts: Vec<Changes> = match opened {
        Ok(parts) => parts,
        Err(error) => return Ok(Err(error)),
    };
    let Some(first) = parts.first() else { return Ok(Ok(0)) };
    let tables: Vec<(String, TableSpec)> = first
        .tables()
        .into_iter()
        .map(|table| {
            let spec = TableSpec {
                dtype: dtype.unwrap_or(table.spec.dtype),
                // Rows without state.
                optimizer: OptimizerSpec::Sgd { lr: 0.0 },
                eviction: None,
                admission: None,
                ..table.spec
            };
            (table.name, spec)
        })
        .collect();
    target.begin(first.manifest.seed, &tables)?;
    for (number, part) in parts.iter().enumerate() {
        let mut failure = None;
        let mut weights = Vec::new();
        let read = part.for_each(usize::MAX, |ChangedRows { table, ids, rows, dim, row_floats, .. }| {
            if number > 0 && replicated.iter().any(|name| name == table) {
                return true;
            }
            weights.clear();
            weights.extend(rows.chunks_exact(row_floats).flat_map(|row| &row[..dim]));
            failure = target.rows(table, dim, ids, &weights).err();
            failure.is_none()
        });
        match (failure, read) {
            (Some(error), _) => return Err(error),
            (None, Err(error)) => return Ok(Err(error)),
            (None, Ok(())) => (),
        }
    }
    Ok(Ok(first.manifest.feed))
}
