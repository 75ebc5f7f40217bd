//! The lookup step: pooled vectors of a read-only store or a storage node, written straight into the buffer that is sent.

use std::time::Instant;

use rowmill_host::Number;
use rowmill_rows::{FeatureBags, Ragged};
use rowmill_store::{IdBag, Pooled};

use super::array::{Array, count_of};
use super::step::LookupStep;
use crate::arena::{words, words_mut};
use crate::row_source::{GroupTables, RowSource};
use crate::{Arena, DType, Failure};

/// A lookup with its tables open.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) step: LookupStep,
    tables: GroupTables,
}

impl Lookup {
    /// Open the tables of a step.
    ///
    /// # Errors
    /// When the rows have no such table, or the step contradicts itself.
    pub(super) fn open(step: LookupStep, rows: Option<&RowSource>) -> Result<Self, Failure> {
        let rows =
            rows.ok_or_else(|| Failure::invalid("the plan has a lookup, and the bundle has no rows"))?;
        let tables = rows.open(&step.tables)?;
        let counts = [step.features.len(), step.means.len(), step.paddings.len()];
        if step.tables.is_empty() || counts.iter().any(|&count| count != step.tables.len()) {
            return Err(Failure::invalid("a lookup needs a table, a mean and a padding for each feature"));
        }
        if !matches!(step.dtype, DType::Float32 | DType::BFloat16) {
            return Err(Failure::invalid(format!("a lookup gives no {}", step.dtype.name())));
        }
        Ok(Self { step, tables })
    }

    pub(super) fn run(
        &self,
        arena: &Arena,
        ids: &Array,
        offsets: &Array,
        factors: Option<&Array>,
        bags: usize,
        deadline: Instant,
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
        let bag_of = features
            .iter()
            .zip(settings)
            .map(|(feature, (&is_mean, padding))| feature.bag(*padding, is_mean))
            .collect();
        let shape = [bags, self.step.tables.len() * self.tables.dim()];
        if self.step.dtype == DType::Float32 {
            self.pool::<f32>(arena, &shape, bag_of, deadline)
        } else {
            self.pool::<u16>(arena, &shape, bag_of, deadline)
        }
    }

    fn pool<T: crate::arena::Word + Pooled + Number>(
        &self,
        arena: &Arena,
        shape: &[usize; 2],
        bags: Vec<IdBag<'_>>,
        deadline: Instant,
    ) -> Result<Array, Failure> {
        let mut lease = arena.lease(count_of(shape)? * self.step.dtype.bytes())?;
        self.tables.pool::<T>(bags, words_mut(&mut lease), shape[1], deadline)?;
        Ok(Array { dtype: self.step.dtype, shape: shape.to_vec(), data: lease.share() })
    }
}
