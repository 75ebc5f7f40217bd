//! The lookup step: pooled vectors of a read-only store, written straight into the buffer that is sent.

use std::sync::Arc;

use rowmill_rows::{FeatureBags, Ragged};
use rowmill_store::{IdBag, Pooling, Store, StoreError, Table};

use super::array::{Array, count_of};
use super::step::LookupStep;
use crate::arena::{words, words_mut};
use crate::{Arena, DType, Failure, Status};

/// A lookup with its tables open.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) step: LookupStep,
    store: Arc<Store>,
    /// One per feature.
    tables: Vec<Table>,
    dim: usize,
}

impl Lookup {
    /// Open the tables of a step.
    ///
    /// # Errors
    /// When the store has no such table, or the step contradicts itself.
    pub(super) fn open(step: LookupStep, store: Option<&Arc<Store>>) -> Result<Self, Failure> {
        let store =
            store.ok_or_else(|| Failure::invalid("the plan has a lookup, and the bundle has no rows"))?;
        let tables: Vec<Table> = step
            .tables
            .iter()
            .map(|name| store.open_table(name))
            .collect::<Result<_, _>>()
            .map_err(|error| failure(&error))?;
        let counts = [step.features.len(), step.means.len(), step.paddings.len()];
        let Some(first) = tables.first().filter(|_| counts.iter().all(|&count| count == tables.len())) else {
            return Err(Failure::invalid("a lookup needs a table, a mean and a padding for each feature"));
        };
        if tables.iter().any(|table| table.group_number() != first.group_number()) {
            return Err(Failure::invalid(format!("the tables {:?} are of several groups", step.tables)));
        }
        if !matches!(step.dtype, DType::Float32 | DType::BFloat16) {
            return Err(Failure::invalid(format!("a lookup gives no {}", step.dtype.name())));
        }
        let dim = first.spec().dim as usize;
        Ok(Self { step, store: Arc::clone(store), tables, dim })
    }

    pub(super) fn run(
        &self,
        arena: &Arena,
        ids: &Array,
        offsets: &Array,
        factors: Option<&Array>,
        bags: usize,
    ) -> Result<Array, Failure> {
        let typed = |array: &Array, dtype: DType, what: &str| {
            if array.dtype == dtype {
                return Ok(());
            }
            Err(Failure::invalid(format!(
                "{what} of a lookup are {}, must be {}",
                array.dtype.name(),
                dtype.name()
            )))
        };
        typed(ids, DType::Int64, "ids")?;
        typed(offsets, DType::Int64, "offsets")?;
        factors.map_or(Ok(()), |factors| typed(factors, DType::Float32, "weights"))?;
        let (ids, offsets) = (words(&ids.data), words(&offsets.data));
        let factors = factors.map(|factors| words(&factors.data));
        let ragged = Ragged::new(&ids, &offsets, factors.as_deref(), bags).map_err(Failure::invalid)?;
        let features: Vec<FeatureBags<'_>> = self
            .step
            .features
            .iter()
            .map(|&feature| ragged.feature(feature))
            .collect::<Result<_, _>>()
            .map_err(Failure::invalid)?;
        let settings = self.step.means.iter().zip(&self.step.paddings);
        let bag_of: Vec<(&Table, IdBag<'_>)> = self
            .tables
            .iter()
            .zip(&features)
            .zip(settings)
            .map(|((table, feature), (&is_mean, padding))| {
                let bag = IdBag {
                    ids: feature.ids,
                    offsets: &feature.offsets,
                    weights: feature.weights,
                    padding: padding.map(|id| id as u64),
                    pooling: if is_mean { Pooling::Mean } else { Pooling::Sum },
                };
                (table, bag)
            })
            .collect();
        let shape = [bags, self.tables.len() * self.dim];
        let row = shape[1];
        if self.step.dtype == DType::Float32 {
            self.pool::<f32>(arena, &shape, |out| self.store.evaluate(&bag_of, out, row, None))
        } else {
            self.pool::<u16>(arena, &shape, |out| self.store.evaluate(&bag_of, out, row, None))
        }
    }

    fn pool<T: crate::arena::Word>(
        &self,
        arena: &Arena,
        shape: &[usize],
        evaluate: impl FnOnce(&mut [T]) -> Result<(), StoreError>,
    ) -> Result<Array, Failure> {
        let mut lease = arena.lease(count_of(shape)? * self.step.dtype.bytes())?;
        evaluate(words_mut(&mut lease)).map_err(|error| failure(&error))?;
        Ok(Array { dtype: self.step.dtype, shape: shape.to_vec(), data: lease.share() })
    }
}

fn failure(error: &StoreError) -> Failure {
    let status = match error {
        StoreError::IdRange { .. } | StoreError::Length { .. } | StoreError::Bag { .. } => Status::Invalid,
        _ => Status::Failed,
    };
    Failure::new(status, error.to_string())
}
