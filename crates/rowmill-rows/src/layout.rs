//! Where the parts of a row lie.

use serde::{Deserialize, Serialize};

use crate::OptimizerSpec;

/// Bytes of a cache line; rows whose padding stays small start on one.
pub const LINE_BYTES: usize = 64;

/// Element type of the stored weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32-bit IEEE float.
    F32,
}

impl Dtype {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
        }
    }
}

/// Bytes of a stamp.
const STAMP_BYTES: usize = 8;

/// Byte layout of every row of a group: `dim` weights, then the optimizer state, then the stamp of tables
/// that evict by one, then padding up to `stride`. In memory and on the device a row looks the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// Weights per row.
    pub dim: usize,
    /// Element type of the weights.
    pub dtype: Dtype,
    /// f32 values of optimizer state per row.
    pub state_floats: usize,
    /// Whether 8 bytes of stamp follow the state.
    pub stamped: bool,
    /// Bytes from one row to the next.
    pub stride: usize,
}

impl RowLayout {
    /// The layout for rows of `dim` weights under `optimizer`, with or without a stamp.
    ///
    /// The stride is rounded up to whole cache lines where that wastes at most an eighth of the row,
    /// and to 16 bytes otherwise (a row of 17 floats would nearly double).
    pub fn new(dim: usize, dtype: Dtype, optimizer: &OptimizerSpec, stamped: bool) -> Self {
        let state_floats = optimizer.state_floats(dim);
        let used = (dim * dtype.bytes()).next_multiple_of(4) + 4 * state_floats;
        let used = used + if stamped { STAMP_BYTES } else { 0 };
        let lines = used.next_multiple_of(LINE_BYTES);
        let stride = if (lines - used) * 8 <= used { lines } else { used.next_multiple_of(16) };
        Self { dim, dtype, state_floats, stamped, stride }
    }

    /// Bytes of the weights, where the optimizer state begins.
    pub fn state_offset(&self) -> usize {
        (self.dim * self.dtype.bytes()).next_multiple_of(4)
    }

    /// Bytes before the stamp, in a row that carries one.
    pub fn stamp_offset(&self) -> Option<usize> {
        self.stamped.then(|| self.state_offset() + 4 * self.state_floats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stride(dim: usize, optimizer: OptimizerSpec) -> usize {
        RowLayout::new(dim, Dtype::F32, &optimizer, false).stride
    }

    #[test]
    fn rows_start_on_lines_only_where_padding_is_cheap() {
        let rowwise = OptimizerSpec::RowwiseAdagrad { lr: 0.1, eps: 1e-8, initial_accumulator: 0.0 };
        assert_eq!(stride(16, OptimizerSpec::Sgd { lr: 0.1 }), 64);
        assert_eq!(stride(15, rowwise), 64);
        assert_eq!(stride(16, rowwise), 80, "68 bytes would waste 60 of 128");
        assert_eq!(stride(128, rowwise), 576, "516 bytes waste 60: under an eighth");
        assert_eq!(stride(3, OptimizerSpec::Sgd { lr: 0.1 }), 16);
    }

    #[test]
    fn state_follows_the_weights() {
        let layout = RowLayout::new(
            16,
            Dtype::F32,
            &OptimizerSpec::Adagrad { lr: 0.1, eps: 0.0, initial_accumulator: 0.0 },
            true,
        );
        assert_eq!((layout.state_offset(), layout.stamp_offset(), layout.stride), (64, Some(128), 144));
    }
}
