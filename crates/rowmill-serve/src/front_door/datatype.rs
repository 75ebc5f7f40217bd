//! Types of elements by the protocol's names.

use crate::{DType, Elements};

const NAMES: [(DType, &str); 10] = [
    (DType::Float32, "FP32"),
    (DType::Float64, "FP64"),
    (DType::Float16, "FP16"),
    (DType::BFloat16, "BF16"),
    (DType::Int8, "INT8"),
    (DType::Int16, "INT16"),
    (DType::Int32, "INT32"),
    (DType::Int64, "INT64"),
    (DType::UInt8, "UINT8"),
    (DType::Bool, "BOOL"),
];

/// The name of a type in the protocol.
pub(crate) fn name(dtype: DType) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == dtype).map_or("", |(_, name)| name)
}

/// The type of a name.
pub(crate) fn named(name: &str) -> Option<DType> {
    NAMES.iter().find(|(_, known)| *known == name).map(|(dtype, _)| *dtype)
}

/// The name of elements; `BYTES` for texts.
pub(super) fn of(elements: Elements) -> &'static str {
    match elements {
        Elements::Numbers(dtype) => name(dtype),
        Elements::Texts => "BYTES",
    }
}
