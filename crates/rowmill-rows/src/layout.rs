//! Byte layout of rows.

use serde::{Deserialize, Serialize};

use crate::{OptimizerSpec, SpecError};

/// Bytes of a cache line. Rows are aligned to it where that needs little padding.
pub const LINE_BYTES: usize = 64;

/// Type of the stored weights. Reads return 32-bit floats, and updates compute in 32-bit floats. Optimizer
/// state is always 32-bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32-bit IEEE float.
    F32,
    /// bfloat16: the upper 16 bits of an [`Dtype::F32`].
    Bf16,
    /// 32-bit IEEE float in two planes: the upper 16 bits of all weights, then the lower 16 bits. Lookups
    /// read only the upper plane, as [`Dtype::Bf16`]. All other operations read and write 32 bits.
    SplitBf16,
}

impl Dtype {
    /// All types.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::SplitBf16];

    /// Bytes per element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::SplitBf16 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Name for users, such as in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "fp32",
            Self::Bf16 => "bf16",
            Self::SplitBf16 => "split-bf16",
        }
    }

    /// The type with that name.
    ///
    /// # Errors
    /// [`SpecError::Dtype`], which lists the names.
    pub fn from_name(name: &str) -> Result<Self, SpecError> {
        let named = Self::ALL.into_iter().find(|dtype| dtype.name() == name);
        named.ok_or_else(|| SpecError::Dtype(name.to_owned()))
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Size of a stamp in bytes.
const STAMP_BYTES: usize = 8;

/// Byte layout of every row of a group, in memory and on the device. In order: `dim` weights, padding to 4
/// bytes, optimizer state, a stamp for tables whose eviction rule reads one, and padding up to `stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// Weights per row.
    pub dim: usize,
    /// Type of the weights.
    pub dtype: Dtype,
    /// 32-bit floats of optimizer state per row.
    pub state_floats: usize,
    /// Whether an 8-byte stamp follows the state.
    pub stamped: bool,
    /// Bytes from the start of one row to the next.
    pub stride: usize,
}

impl RowLayout {
    /// The layout of rows of `dim` weights under `optimizer`, with or without a stamp.
    ///
    /// The stride is rounded up to whole cache lines where that wastes at most an eighth of the row, and to
    /// 16 bytes otherwise: a row of 17 floats would nearly double.
    pub fn new(dim: usize, dtype: Dtype, optimizer: &OptimizerSpec, stamped: bool) -> Self {
        let state_floats = optimizer.state_floats(dim);
        let used = weight_bytes(dim, dtype) + 4 * state_floats;
        let used = used + if stamped { STAMP_BYTES } else { 0 };
        let lines = used.next_multiple_of(LINE_BYTES);
        let stride = if (lines - used) * 8 <= used { lines } else { used.next_multiple_of(16) };
        Self { dim, dtype, state_floats, stamped, stride }
    }

    /// Offset of the optimizer state: bytes of the weights, with padding.
    pub fn state_offset(&self) -> usize {
        weight_bytes(self.dim, self.dtype)
    }

    /// Offset of the stamp, for rows that carry one.
    pub fn stamp_offset(&self) -> Option<usize> {
        self.stamped.then(|| self.state_offset() + 4 * self.state_floats)
    }
}

/// Bytes of `dim` weights, padded to 4 bytes.
fn weight_bytes(dim: usize, dtype: Dtype) -> usize {
    (dim * dtype.bytes()).next_multiple_of(4)
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

    #[test]
    fn weights_of_two_bytes_take_half_and_state_stays_whole_floats() {
        let (sgd, lr, eps) = (OptimizerSpec::Sgd { lr: 0.1 }, 0.1, 0.0);
        let layout = |dim, optimizer| RowLayout::new(dim, Dtype::Bf16, &optimizer, false);
        assert_eq!(layout(64, sgd).stride, 128, "half of 256");
        let adagrad = OptimizerSpec::Adagrad { lr, eps, initial_accumulator: 0.0 };
        assert_eq!(layout(16, adagrad).state_offset(), 32);
        assert_eq!(layout(16, adagrad).stride, 96, "32 of weights, 64 of state");
        let odd = layout(7, OptimizerSpec::RowwiseAdagrad { lr, eps, initial_accumulator: 0.0 });
        assert_eq!((odd.state_offset(), odd.stride), (16, 32), "14 bytes of weights, 2 of padding");
    }

    #[test]
    fn split_weights_take_the_bytes_of_floats() {
        for dim in [1, 7, 64] {
            let adam = OptimizerSpec::Adam { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 0.0 };
            let [split, whole] =
                [Dtype::SplitBf16, Dtype::F32].map(|dtype| RowLayout::new(dim, dtype, &adam, true));
            assert_eq!(RowLayout { dtype: Dtype::F32, ..split }, whole);
        }
    }

    #[test]
    fn a_dtype_has_one_name() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_name(dtype.name()), Ok(dtype));
        }
        assert_eq!(
            Dtype::from_name("fp16").unwrap_err().to_string(),
            "dtype must be \"fp32\", \"bf16\" or \"split-bf16\", got \"fp16\""
        );
    }
}
