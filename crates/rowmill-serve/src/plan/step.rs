//! The steps of a plan as its JSON has them; `python/rowmill/partition/plan/format.py` says what each means.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};

use crate::{DType, Failure, Per};

#[derive(Debug, Deserialize)]
pub(super) struct PlanText {
    pub(super) inputs: Vec<Input>,
    pub(super) steps: Vec<Step>,
    pub(super) outputs: Vec<Output>,
}

/// An input: its shape gives names to sizes.
#[derive(Debug, Deserialize)]
pub(crate) struct Input {
    pub(crate) name: String,
    #[serde(deserialize_with = "dtype")]
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<Size>,
    /// How often a request gives it.
    #[serde(default)]
    pub(crate) per: Per,
}

#[derive(Debug, Deserialize)]
pub(super) struct Output {
    pub(super) name: String,
    pub(super) value: String,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(super) enum Step {
    Lookup(LookupStep),
    View {
        out: String,
        r#in: String,
        shape: Vec<Size>,
    },
    Permute {
        out: String,
        r#in: String,
        dims: Vec<usize>,
    },
    Broadcast {
        out: String,
        r#in: String,
        shape: Vec<Size>,
    },
    Cat {
        out: String,
        ins: Vec<String>,
        dim: usize,
    },
    Slice {
        out: String,
        r#in: String,
        dim: usize,
        start: Size,
        stop: Size,
        step: usize,
    },
    Gather {
        out: String,
        r#in: String,
        dim: usize,
        index: String,
    },
    Cast {
        out: String,
        r#in: String,
        #[serde(deserialize_with = "dtype")]
        dtype: DType,
    },
    Compare {
        out: String,
        how: Comparison,
        a: Operand,
        b: Operand,
    },
    Where {
        out: String,
        r#if: String,
        a: Operand,
        b: Operand,
    },
    Clamp {
        out: String,
        r#in: String,
        min: Option<Number>,
        max: Option<Number>,
    },
    Arithmetic {
        out: String,
        how: Arithmetic,
        a: Operand,
        b: Operand,
    },
    Log1p {
        out: String,
        r#in: String,
    },
    Sigmoid {
        out: String,
        r#in: String,
    },
    Softmax {
        out: String,
        r#in: String,
        dim: usize,
    },
    Sum {
        out: String,
        r#in: String,
        dims: Vec<usize>,
        keep: bool,
    },
    Mean {
        out: String,
        r#in: String,
        dims: Vec<usize>,
        keep: bool,
    },
    Topk {
        out: [String; 2],
        r#in: String,
        k: Size,
        dim: usize,
        largest: bool,
    },
    Sort {
        out: [String; 2],
        r#in: String,
        dim: usize,
        descending: bool,
    },
    Range {
        out: String,
        start: Size,
        stop: Size,
        step: Size,
        #[serde(deserialize_with = "dtype")]
        dtype: DType,
    },
    Full {
        out: String,
        shape: Vec<Size>,
        value: Fill,
        #[serde(deserialize_with = "dtype")]
        dtype: DType,
    },
    Weight {
        out: String,
        name: String,
    },
}

#[derive(Debug, Deserialize)]
pub(super) struct LookupStep {
    pub(super) out: String,
    pub(super) ids: String,
    pub(super) offsets: String,
    pub(super) weights: Option<String>,
    pub(super) tables: Vec<String>,
    pub(super) features: Vec<usize>,
    pub(super) means: Vec<bool>,
    pub(super) paddings: Vec<Option<i64>>,
    pub(super) bags: Size,
    #[serde(deserialize_with = "dtype")]
    pub(super) dtype: DType,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Comparison {
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    Neg,
    And,
    Or,
    Not,
}

/// A number of Python.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub(super) enum Number {
    Bool(bool),
    Int(i64),
    Float(f64),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Operand {
    Value(String),
    Number { number: Option<Number> },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Fill {
    Number(Number),
    Size { size: Size },
}

/// A size: a number, the name of a size of an input, or `["+", a, b]`, `["*", a, b]`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Size {
    Number(i64),
    Name(String),
    Expression(String, Box<Size>, Box<Size>),
}

/// The sizes of one request by name.
pub(crate) type Sizes = HashMap<String, i64>;

impl Size {
    /// The number that it stands for.
    pub(crate) fn evaluate(&self, sizes: &Sizes) -> Result<i64, Failure> {
        let unknown = || Failure::invalid(format!("the size {self:?} is not known from the inputs"));
        match self {
            Self::Number(number) => Ok(*number),
            Self::Name(name) => sizes.get(name).copied().ok_or_else(unknown),
            Self::Expression(how, a, b) => {
                let (a, b) = (a.evaluate(sizes)?, b.evaluate(sizes)?);
                let result = if how == "+" { a.checked_add(b) } else { a.checked_mul(b) };
                result.ok_or_else(unknown)
            }
        }
    }

    /// The name in it and the number that the name stands for, if the size is `actual`; none if it has several names.
    pub(crate) fn solve(&self, actual: i64) -> Option<(&str, i64)> {
        match self {
            Self::Number(_) => None,
            Self::Name(name) => (actual >= 0).then_some((name, actual)),
            Self::Expression(how, a, b) => {
                let ((&Self::Number(number), rest) | (rest, &Self::Number(number))) = (&**a, &**b) else {
                    return None;
                };
                let inner = match how.as_str() {
                    "+" => actual.checked_sub(number),
                    _ => actual.checked_div(number).filter(|inner| inner * number == actual),
                };
                rest.solve(inner?)
            }
        }
    }

    /// The same for a size of a tensor.
    pub(crate) fn of_tensor(&self, sizes: &Sizes) -> Result<usize, Failure> {
        let size = self.evaluate(sizes)?;
        usize::try_from(size).map_err(|_| Failure::invalid(format!("a tensor would have a size of {size}")))
    }
}

pub(crate) fn dtype<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
    let name = String::deserialize(deserializer)?;
    DType::from_name(&name).ok_or_else(|| {
        serde::de::Error::custom(format!("dtype {name:?} is not served: use float32 or int64"))
    })
}
