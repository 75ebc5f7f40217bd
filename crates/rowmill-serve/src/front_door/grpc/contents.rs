//! Typed contents of an input or column, as the bytes that raw contents have.

use super::super::datatype;
use super::super::inputs::Slot;
use super::super::problem::Problem;
use super::messages::InferTensorContents;
use crate::{DType, Elements};

/// The data of an input and how many elements it has, from the list of its datatype. The other lists must be empty.
pub(super) fn bytes(
    slot: Slot<'_>,
    elements: Elements,
    contents: Option<&InferTensorContents>,
) -> Result<(Vec<u8>, usize), Problem> {
    let Some(contents) = contents else { return Ok((Vec::new(), 0)) };
    let InferTensorContents {
        bool_contents,
        int_contents,
        int64_contents,
        uint_contents,
        uint64_contents,
        fp32_contents,
        fp64_contents,
        bytes_contents,
    } = contents;
    let lists = [
        ("bool_contents", bool_contents.len()),
        ("int_contents", int_contents.len()),
        ("int64_contents", int64_contents.len()),
        ("uint_contents", uint_contents.len()),
        ("uint64_contents", uint64_contents.len()),
        ("fp32_contents", fp32_contents.len()),
        ("fp64_contents", fp64_contents.len()),
        ("bytes_contents", bytes_contents.len()),
    ];
    let Elements::Numbers(dtype) = elements else {
        let count = one_list(slot, &lists, "bytes_contents")?;
        let texts = bytes_contents.iter();
        // A message has less than 4 GiB.
        let data = texts.flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text].concat()).collect();
        return Ok((data, count));
    };
    let list = match dtype {
        DType::Bool => "bool_contents",
        DType::Int8 | DType::Int16 | DType::Int32 => "int_contents",
        DType::Int64 => "int64_contents",
        DType::UInt8 => "uint_contents",
        DType::Float32 => "fp32_contents",
        DType::Float64 => "fp64_contents",
        DType::Float16 | DType::BFloat16 => "raw_input_contents",
    };
    let count = one_list(slot, &lists, list)?;
    let data = match dtype {
        DType::Bool => bool_contents.iter().map(|&value| u8::from(value)).collect(),
        DType::Int8 => {
            narrow(slot, dtype, int_contents, |value| i8::try_from(value).ok().map(i8::to_le_bytes))?
        }
        DType::Int16 => {
            narrow(slot, dtype, int_contents, |value| i16::try_from(value).ok().map(i16::to_le_bytes))?
        }
        DType::Int32 => int_contents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::Int64 => int64_contents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::UInt8 => {
            narrow(slot, dtype, uint_contents, |value| u8::try_from(value).ok().map(u8::to_le_bytes))?
        }
        DType::Float32 => fp32_contents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::Float64 => fp64_contents.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::Float16 | DType::BFloat16 => Vec::new(),
    };
    Ok((data, count))
}

/// How many elements the list has that `name` is; the other lists must be empty.
fn one_list(slot: Slot<'_>, lists: &[(&str, usize)], name: &str) -> Result<usize, Problem> {
    if let Some((other, count)) = lists.iter().find(|(other, count)| *other != name && *count > 0) {
        return Err(slot.wrong(
            "the list of its elements",
            format_args!("{other} with {count} values"),
            name,
        ));
    }
    Ok(lists.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| *count))
}

/// The bytes of values that may be too large for the type.
fn narrow<T: Copy + std::fmt::Display, const N: usize>(
    slot: Slot<'_>,
    dtype: DType,
    values: &[T],
    narrowed: impl Fn(T) -> Option<[u8; N]>,
) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::with_capacity(values.len() * N);
    for &value in values {
        let wrong = || slot.wrong("a value of its contents", value, datatype::name(dtype));
        bytes.extend(narrowed(value).ok_or_else(wrong)?);
    }
    Ok(bytes)
}
