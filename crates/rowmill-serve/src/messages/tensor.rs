//! A tensor of a message.

use crate::arena::Buffer;

/// How many dimensions a tensor may have.
pub(crate) const RANK_MAX: usize = 8;

/// What a tensor is called: by its number in the program's signature, or by a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TensorName {
    /// Number in the signature, below 65,535.
    Number(u16),
    /// A name of 1 to 255 bytes.
    Text(Box<str>),
}

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of PyTorch")]
pub enum DType {
    Float32 = 1,
    Float64 = 2,
    Float16 = 3,
    BFloat16 = 4,
    Int8 = 5,
    Int16 = 6,
    Int32 = 7,
    Int64 = 8,
    UInt8 = 9,
    Bool = 10,
}

impl DType {
    pub(super) fn of(number: u8) -> Option<Self> {
        use DType::{BFloat16, Bool, Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8};
        [Float32, Float64, Float16, BFloat16, Int8, Int16, Int32, Int64, UInt8, Bool]
            .into_iter()
            .find(|&dtype| dtype as u8 == number)
    }

    /// The type that `PyTorch` calls `name`, such as "float32".
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(dtype, _)| *dtype)
    }

    /// Its name in `PyTorch`.
    ///
    /// # Panics
    /// Never: every type has a name.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(known, _)| *known == self).expect("every type has a name").1
    }

    /// The type that a file of safetensors calls `dtype`; `None` for a type that is not served.
    pub(crate) fn of_safetensors(dtype: safetensors::Dtype) -> Option<Self> {
        use safetensors::Dtype;
        Some(match dtype {
            Dtype::F32 => Self::Float32,
            Dtype::F64 => Self::Float64,
            Dtype::F16 => Self::Float16,
            Dtype::BF16 => Self::BFloat16,
            Dtype::I8 => Self::Int8,
            Dtype::I16 => Self::Int16,
            Dtype::I32 => Self::Int32,
            Dtype::I64 => Self::Int64,
            Dtype::U8 => Self::UInt8,
            Dtype::BOOL => Self::Bool,
            _ => return None,
        })
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Float64 | Self::Int64 => 8,
            Self::Float32 | Self::Int32 => 4,
            Self::Float16 | Self::BFloat16 | Self::Int16 => 2,
            Self::Int8 | Self::UInt8 | Self::Bool => 1,
        }
    }
}

/// Types by their names in `PyTorch`.
const NAMES: [(DType, &str); 10] = [
    (DType::Float32, "float32"),
    (DType::Float64, "float64"),
    (DType::Float16, "float16"),
    (DType::BFloat16, "bfloat16"),
    (DType::Int8, "int8"),
    (DType::Int16, "int16"),
    (DType::Int32, "int32"),
    (DType::Int64, "int64"),
    (DType::UInt8, "uint8"),
    (DType::Bool, "bool"),
];

/// A named array, row by row in memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name in the program.
    pub name: TensorName,
    /// Type of its elements.
    pub dtype: DType,
    /// Its dimensions, at most 8.
    pub shape: Box<[u64]>,
    /// Its elements, little-endian.
    pub data: Buffer,
}

impl Tensor {
    /// A tensor over `data`.
    ///
    /// # Panics
    /// When the data have another size than the shape, or name or shape are beyond the limits of a message. These are
    /// properties of the program's signature, so a caller that checks its inputs never sees this.
    pub fn new(name: TensorName, dtype: DType, shape: &[u64], data: Buffer) -> Self {
        assert!(
            shape.len() <= RANK_MAX,
            "{name:?} has {} dimensions, at most {RANK_MAX} are possible",
            shape.len()
        );
        assert!(
            match &name {
                TensorName::Number(number) => *number < u16::MAX,
                TensorName::Text(text) => (1..256).contains(&text.len()),
            },
            "{name:?} is no name of a tensor"
        );
        assert_eq!(bytes_of(dtype, shape), Some(data.len() as u64), "bytes of {name:?} with shape {shape:?}");
        Self { name, dtype, shape: shape.into(), data }
    }
}

/// Bytes of a tensor, if they are a number.
pub(crate) fn bytes_of(dtype: DType, shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(dtype.bytes() as u64, |bytes, &size| bytes.checked_mul(size))
}
