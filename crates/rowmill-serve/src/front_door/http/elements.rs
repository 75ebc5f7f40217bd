//! Elements of tensors as JSON numbers and texts.

use serde_json::Value;

use crate::{DType, Elements};

/// Append one element; `None` when the JSON value is not of the type, or the type has no JSON form. Null stands for what is
/// missing from a raw column: NaN, or an empty text.
pub(super) fn push(bytes: &mut Vec<u8>, elements: Elements, value: &Value, is_raw: bool) -> Option<()> {
    let is_missing = is_raw && value.is_null();
    match elements {
        Elements::Texts => {
            let text = if is_missing { "" } else { value.as_str()? };
            bytes.extend(u32::try_from(text.len()).ok()?.to_le_bytes());
            bytes.extend(text.as_bytes());
            Some(())
        }
        Elements::Numbers(DType::Float32) if is_missing => {
            bytes.extend(f32::NAN.to_le_bytes());
            Some(())
        }
        Elements::Numbers(DType::Float64) if is_missing => {
            bytes.extend(f64::NAN.to_le_bytes());
            Some(())
        }
        Elements::Numbers(dtype) => push_number(bytes, dtype, value),
    }
}

fn push_number(bytes: &mut Vec<u8>, dtype: DType, value: &Value) -> Option<()> {
    let integer = || value.as_i64();
    match dtype {
        DType::Float32 => {
            // A number of JSON is finite.
            let narrowed = Some(value.as_f64()? as f32).filter(|value| value.is_finite())?;
            bytes.extend(narrowed.to_le_bytes());
        }
        DType::Float64 => bytes.extend(value.as_f64()?.to_le_bytes()),
        DType::Int8 => bytes.extend(i8::try_from(integer()?).ok()?.to_le_bytes()),
        DType::Int16 => bytes.extend(i16::try_from(integer()?).ok()?.to_le_bytes()),
        DType::Int32 => bytes.extend(i32::try_from(integer()?).ok()?.to_le_bytes()),
        DType::Int64 => bytes.extend(integer()?.to_le_bytes()),
        DType::UInt8 => bytes.push(u8::try_from(integer()?).ok()?),
        DType::Bool => bytes.push(u8::from(value.as_bool()?)),
        DType::Float16 | DType::BFloat16 => return None,
    }
    Some(())
}

/// The elements as JSON numbers, NaN and infinities as null; `None` for a type without a JSON form.
pub(super) fn values(dtype: DType, bytes: &[u8]) -> Option<Value> {
    macro_rules! numbers {
        ($type:ty) => {
            bytes.as_chunks().0.iter().map(|bytes| Value::from(<$type>::from_le_bytes(*bytes))).collect()
        };
    }
    Some(match dtype {
        DType::Float32 => numbers!(f32),
        DType::Float64 => numbers!(f64),
        DType::Int8 => numbers!(i8),
        DType::Int16 => numbers!(i16),
        DType::Int32 => numbers!(i32),
        DType::Int64 => numbers!(i64),
        DType::UInt8 => numbers!(u8),
        DType::Bool => bytes.iter().map(|&byte| Value::from(byte != 0)).collect(),
        DType::Float16 | DType::BFloat16 => return None,
    })
}
