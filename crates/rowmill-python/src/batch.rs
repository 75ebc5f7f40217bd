//! The batch of a fused lookup.

use pyo3::prelude::*;
use rowmill_rows::{FeatureBags, IdBag, Ragged};

use crate::buffers::{Buffer, floats, ids as id_buffer};
use crate::errors::invalid;

/// Ids of many features, and the feature, padding id and pooling of each table.
pub(crate) struct Batch {
    ids: Buffer<i64>,
    offsets: Buffer<i64>,
    weights: Option<Buffer<f32>>,
    features: Vec<usize>,
    bags: usize,
    paddings: Vec<Option<i64>>,
    means: Vec<bool>,
}

impl Batch {
    /// Check the arguments of a lookup in this many tables.
    #[allow(clippy::too_many_arguments, reason = "one argument per part of a batch")]
    pub(crate) fn read(
        py: Python<'_>,
        tables: usize,
        ids: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        features: Vec<usize>,
        bags: usize,
        paddings: Vec<Option<i64>>,
        means: Vec<bool>,
    ) -> PyResult<Batch> {
        let lengths = [features.len(), paddings.len(), means.len()];
        if lengths.iter().any(|&length| length != tables) {
            let reason = format!(
                "features, paddings and means must have one entry per table ({tables}), got {lengths:?}"
            );
            return Err(invalid(py, reason));
        }
        Ok(Batch {
            ids: id_buffer(ids)?,
            offsets: Buffer::read(offsets, "offsets", "int64")?,
            weights: weights.map(|weights| floats(weights, "weights")).transpose()?,
            features,
            bags,
            paddings,
            means,
        })
    }

    /// The ids of each table.
    pub(crate) fn features(&self, py: Python<'_>) -> PyResult<Vec<FeatureBags<'_>>> {
        let weights = self.weights.as_ref().map(Buffer::values);
        Ragged::new(self.ids.ids(), self.offsets.positions(), weights, self.bags)
            .and_then(|ragged| self.features.iter().map(|&feature| ragged.feature(feature)).collect())
            .map_err(|reason| invalid(py, reason))
    }

    /// What to pool of each table.
    pub(crate) fn bags<'a>(&'a self, features: &'a [FeatureBags<'_>]) -> impl Iterator<Item = IdBag<'a>> {
        let settings = self.paddings.iter().zip(&self.means);
        features.iter().zip(settings).map(|(feature, (padding, &is_mean))| feature.bag(*padding, is_mean))
    }
}
