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

pub(super) fn name(dtype: DType) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == dtype).map_or("", |(_, name)| name)
}

/// The name of elements; `BYTES` for texts.
pub(super) fn of(elements: Elements) -> &'static str {
    match elements {
        Elements::Numbers(dtype) => name(dtype),
        Elements::Texts => "BYTES",
    }
}
