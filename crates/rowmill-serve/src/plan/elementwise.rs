//! Steps that compute element by element, in the types that torch computes in.
//!
//! 16-bit floats are computed in 32 bits and rounded. Integers wrap around. `log1p` and `sigmoid` are computed in 64
//! bits and rounded once, so they differ from torch by a unit in the last place at most.

use super::array::{Array, store_f32, store_f64, store_i64};
use super::layout::broadcast;
use super::step::{Arithmetic, Comparison, Number};
use crate::{Arena, DType, Failure};

/// One side of an operation.
#[derive(Clone, Debug)]
pub(super) enum Side {
    Array(Array),
    Number(Number),
}

/// In which numbers elements of a type are computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Domain {
    F32,
    F64,
    I64,
}

fn domain(dtype: DType) -> Domain {
    match dtype {
        DType::Float64 => Domain::F64,
        DType::Float32 | DType::Float16 | DType::BFloat16 => Domain::F32,
        _ => Domain::I64,
    }
}

/// 0 for bool, 1 for integers, 2 for floats: a higher category wins.
fn category(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 0,
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 | DType::UInt8 => 1,
        _ => 2,
    }
}

/// The type that two arrays have in common.
pub(super) fn promote(a: DType, b: DType) -> DType {
    let (a, b) = if (category(a), a.bytes()) < (category(b), b.bytes()) { (b, a) } else { (a, b) };
    match (a, b) {
        (DType::UInt8, DType::Int8) | (DType::Int8, DType::UInt8) => DType::Int16,
        (DType::Float16, DType::BFloat16) | (DType::BFloat16, DType::Float16) => DType::Float32,
        _ => a,
    }
}

/// The type of a result: arrays with dimensions decide, then those without, then numbers, as long as each is of a
/// higher category.
fn result_type(sides: &[&Side]) -> DType {
    let mut levels = [None; 3];
    for side in sides {
        let (level, dtype) = match side {
            Side::Array(array) => (usize::from(array.shape.is_empty()), array.dtype),
            Side::Number(Number::Bool(_)) => (2, DType::Bool),
            Side::Number(Number::Int(_)) => (2, DType::Int64),
            Side::Number(Number::Float(_)) => (2, DType::Float32),
        };
        levels[level] = Some(levels[level].map_or(dtype, |found| promote(found, dtype)));
    }
    let wins = |found: DType, next: DType| if category(next) > category(found) { next } else { found };
    levels.into_iter().flatten().reduce(wins).unwrap_or(DType::Float32)
}

/// The shape that all sides are repeated to.
fn common_shape(sides: &[&Side]) -> Result<Vec<usize>, Failure> {
    let mut shape: Vec<usize> = Vec::new();
    for side in sides {
        let Side::Array(array) = side else { continue };
        let added = array.shape.len().saturating_sub(shape.len());
        shape.splice(0..0, std::iter::repeat_n(1, added));
        let from = shape.len() - array.shape.len();
        for (have, &size) in shape[from..].iter_mut().zip(&array.shape) {
            if *have == 1 {
                *have = size;
            } else if size != 1 && size != *have {
                return Err(Failure::invalid(format!(
                    "tensors with {size} and {have} items along one dimension cannot be combined"
                )));
            }
        }
    }
    Ok(shape)
}

impl Side {
    fn repeated(&self, arena: &Arena, shape: &[usize]) -> Result<Self, Failure> {
        Ok(match self {
            Self::Array(array) => Self::Array(broadcast(arena, array, shape)?),
            Self::Number(number) => Self::Number(*number),
        })
    }
}

/// Elements of a side, converted to `dtype` first as torch does; a number stands for every element.
macro_rules! elements {
    ($side:expr, $dtype:expr, $to:ident, $number:ty, $count:expr) => {
        match $side {
            Side::Array(array) => round_to(array, $dtype).$to(),
            Side::Number(Number::Bool(value)) => vec![u8::from(*value) as $number; $count],
            Side::Number(Number::Int(value)) => vec![*value as $number; $count],
            Side::Number(Number::Float(value)) => vec![*value as $number; $count],
        }
    };
}

/// An array in a type of 16 bits where that is what an operation rounds its sides to.
fn round_to(array: &Array, dtype: DType) -> std::borrow::Cow<'_, Array> {
    if dtype == array.dtype || !matches!(dtype, DType::Float16 | DType::BFloat16) {
        return std::borrow::Cow::Borrowed(array);
    }
    let mut bytes = vec![0; array.count() * dtype.bytes()];
    store_f32(&mut bytes, dtype, array.to_f32().into_iter());
    std::borrow::Cow::Owned(Array {
        dtype,
        shape: array.shape.clone(),
        data: crate::Buffer::from(&bytes[..]),
    })
}

/// The same elements in another type.
pub(super) fn cast(arena: &Arena, array: &Array, dtype: DType) -> Result<Array, Failure> {
    if array.dtype == dtype {
        return Ok(array.clone());
    }
    Array::make(arena, dtype, &array.shape, |out| {
        match domain(array.dtype) {
            Domain::I64 => store_i64(out, dtype, array.to_i64().into_iter()),
            Domain::F32 => store_f32(out, dtype, array.to_f32().into_iter()),
            Domain::F64 => store_f64(out, dtype, array.to_f64().into_iter()),
        }
        Ok(())
    })
}

pub(super) fn compare(arena: &Arena, how: Comparison, a: &Side, b: &Side) -> Result<Array, Failure> {
    fn holds<T: PartialOrd>(how: Comparison, a: &T, b: &T) -> bool {
        match how {
            Comparison::Lt => a < b,
            Comparison::Le => a <= b,
            Comparison::Gt => a > b,
            Comparison::Ge => a >= b,
            Comparison::Eq => a == b,
            Comparison::Ne => a != b,
        }
    }
    let (dtype, shape) = (result_type(&[a, b]), common_shape(&[a, b])?);
    let (a, b) = (a.repeated(arena, &shape)?, b.repeated(arena, &shape)?);
    Array::make(arena, DType::Bool, &shape, |out| {
        let count = out.len();
        macro_rules! fill {
            ($to:ident, $number:ty) => {
                for ((out, a), b) in out
                    .iter_mut()
                    .zip(elements!(&a, dtype, $to, $number, count))
                    .zip(elements!(&b, dtype, $to, $number, count))
                {
                    *out = u8::from(holds(how, &a, &b));
                }
            };
        }
        match domain(dtype) {
            Domain::F32 => fill!(to_f32, f32),
            Domain::F64 => fill!(to_f64, f64),
            Domain::I64 => fill!(to_i64, i64),
        }
        Ok(())
    })
}

/// Elements of `a` where the condition holds, else of `b`.
pub(super) fn select(arena: &Arena, condition: &Array, a: &Side, b: &Side) -> Result<Array, Failure> {
    let dtype = result_type(&[a, b]);
    let condition = Side::Array(condition.clone());
    let shape = common_shape(&[&condition, a, b])?;
    let array = |side: &Side| match side {
        Side::Array(array) => cast(arena, &broadcast(arena, array, &shape)?, dtype),
        Side::Number(number) => fill(arena, &shape, *number, dtype),
    };
    let (condition, a, b) = (array_of(&condition.repeated(arena, &shape)?), array(a)?, array(b)?);
    let width = dtype.bytes();
    Array::make(arena, dtype, &shape, |out| {
        for (at, (out, holds)) in out.chunks_exact_mut(width).zip(condition.to_i64()).enumerate() {
            let from = if holds != 0 { &a } else { &b };
            out.copy_from_slice(&from.data[at * width..][..width]);
        }
        Ok(())
    })
}

fn array_of(side: &Side) -> Array {
    match side {
        Side::Array(array) => array.clone(),
        Side::Number(_) => unreachable!("a condition is an array"),
    }
}

/// An array of one number.
pub(super) fn fill(arena: &Arena, shape: &[usize], number: Number, dtype: DType) -> Result<Array, Failure> {
    Array::make(arena, dtype, shape, |out| {
        let count = out.len() / dtype.bytes();
        match number {
            Number::Bool(value) => store_i64(out, dtype, std::iter::repeat_n(value.into(), count)),
            Number::Int(value) => store_i64(out, dtype, std::iter::repeat_n(value, count)),
            Number::Float(value) => store_f64(out, dtype, std::iter::repeat_n(value, count)),
        }
        Ok(())
    })
}

pub(super) fn clamp(
    arena: &Arena,
    array: &Array,
    min: Option<Number>,
    max: Option<Number>,
) -> Result<Array, Failure> {
    let side = Side::Array(array.clone());
    let limits = [min, max].map(|limit| limit.map(Side::Number));
    let sides: Vec<&Side> = std::iter::once(&side).chain(limits.iter().flatten()).collect();
    let dtype = result_type(&sides);
    Array::make(arena, dtype, &array.shape, |out| {
        macro_rules! fill {
            ($to:ident, $number:ty, $store:ident) => {{
                let limit = |side: &Option<Side>| -> Option<$number> {
                    side.as_ref().and_then(|side| elements!(side, dtype, $to, $number, 1).pop())
                };
                let (min, max) = (limit(&limits[0]), limit(&limits[1]));
                let within = |value: $number| {
                    let value = min.filter(|&min| value < min).unwrap_or(value);
                    max.filter(|&max| value > max).unwrap_or(value)
                };
                $store(out, dtype, elements!(&side, dtype, $to, $number, 1).into_iter().map(within));
            }};
        }
        match domain(dtype) {
            Domain::F32 => fill!(to_f32, f32, store_f32),
            Domain::F64 => fill!(to_f64, f64, store_f64),
            Domain::I64 => fill!(to_i64, i64, store_i64),
        }
        Ok(())
    })
}

pub(super) fn arithmetic(
    arena: &Arena,
    how: Arithmetic,
    a: &Side,
    b: Option<&Side>,
) -> Result<Array, Failure> {
    use Arithmetic::{Add, And, Div, Mul, Neg, Not, Or, Sub};
    let b = if matches!(how, Neg | Not) { a } else { b.ok_or_else(|| no_second(how))? };
    let mut dtype = result_type(&[a, b]);
    if matches!(how, Div) && category(dtype) < 2 {
        dtype = DType::Float32;
    }
    let refused = match how {
        And | Or | Not => category(dtype) == 2,
        Sub | Neg => dtype == DType::Bool,
        _ => false,
    };
    if refused {
        return Err(Failure::invalid(format!("{how:?} is not defined for {}", dtype.name())));
    }
    let shape = common_shape(&[a, b])?;
    let (a, b) = (a.repeated(arena, &shape)?, b.repeated(arena, &shape)?);
    Array::make(arena, dtype, &shape, |out| {
        let count = out.len() / dtype.bytes();
        macro_rules! floats {
            ($to:ident, $number:ty, $store:ident) => {{
                let pairs = elements!(&a, dtype, $to, $number, count)
                    .into_iter()
                    .zip(elements!(&b, dtype, $to, $number, count));
                $store(
                    out,
                    dtype,
                    pairs.map(|(a, b)| match how {
                        Add => a + b,
                        Sub => a - b,
                        Mul => a * b,
                        Div => a / b,
                        _ => -a,
                    }),
                );
            }};
        }
        match domain(dtype) {
            Domain::F32 => floats!(to_f32, f32, store_f32),
            Domain::F64 => floats!(to_f64, f64, store_f64),
            Domain::I64 => {
                let pairs = elements!(&a, dtype, to_i64, i64, count)
                    .into_iter()
                    .zip(elements!(&b, dtype, to_i64, i64, count));
                let of = |(a, b): (i64, i64)| match how {
                    Add => a.wrapping_add(b),
                    Sub => a.wrapping_sub(b),
                    Mul => a.wrapping_mul(b),
                    And => a & b,
                    Or => a | b,
                    Not if dtype == DType::Bool => i64::from(a == 0),
                    Not => !a,
                    _ => a.wrapping_neg(),
                };
                store_i64(out, dtype, pairs.map(of));
            }
        }
        Ok(())
    })
}

fn no_second(how: Arithmetic) -> Failure {
    Failure::invalid(format!("{how:?} has no second operand"))
}

/// A function of each element, of integers as 32-bit floats.
pub(super) fn map(arena: &Arena, array: &Array, of: fn(f64) -> f64) -> Result<Array, Failure> {
    let dtype = if category(array.dtype) < 2 { DType::Float32 } else { array.dtype };
    Array::make(arena, dtype, &array.shape, |out| {
        match domain(dtype) {
            Domain::F64 => store_f64(out, dtype, array.to_f64().into_iter().map(of)),
            _ => store_f32(out, dtype, array.to_f32().into_iter().map(|value| of(value.into()) as f32)),
        }
        Ok(())
    })
}

/// `start`, `start + step`, ... below `stop`.
pub(super) fn range(
    arena: &Arena,
    (start, stop, step): (i64, i64, i64),
    dtype: DType,
) -> Result<Array, Failure> {
    let distance = i128::from(stop) - i128::from(start);
    if step == 0 || (distance != 0 && (distance > 0) != (step > 0)) {
        return Err(Failure::invalid(format!("no steps of {step} lead from {start} to {stop}")));
    }
    let step_size = i128::from(step);
    let count = (distance + step_size - step_size.signum()) / step_size;
    Array::make(arena, dtype, &[count as usize], |out| {
        // Every value lies between the bounds, so it is exact even where the product wraps around.
        let value = |at: i64| start.wrapping_add(at.wrapping_mul(step));
        store_i64(out, dtype, (0..count as i64).map(value));
        Ok(())
    })
}
