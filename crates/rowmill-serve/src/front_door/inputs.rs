//! The inputs of a request, checked against the signature of its model; or the raw columns in place of them.

use std::fmt::Display;
use std::time::Instant;

use super::datatype;
use super::model::{Given, Model, TensorSpec};
use super::problem::{Kind, Problem};
use crate::messages::bytes_of;
use crate::{Arena, Buffer, Column, ColumnSpec, Elements, Tensor, TensorName};

/// Inputs or columns as a protocol finds them, in any order.
pub(super) struct Inputs<'m> {
    model: &'m Model,
    /// By their numbers in the signature.
    tensors: Vec<Option<Tensor>>,
    /// By their numbers among the columns.
    columns: Vec<Option<Column>>,
}

/// What a name in a request stands for, with its number.
#[derive(Clone, Copy)]
pub(super) enum Slot<'m> {
    Input(usize, &'m TensorSpec),
    Column(usize, &'m ColumnSpec),
}

impl<'m> Inputs<'m> {
    pub(super) fn of(model: &'m Model) -> Self {
        Self { model, tensors: vec![None; model.inputs.len()], columns: vec![None; model.columns.len()] }
    }

    pub(super) fn find(&self, name: &str) -> Result<Slot<'m>, Problem> {
        let (inputs, columns) = (&self.model.inputs, &self.model.columns);
        if let Some(number) = inputs.iter().position(|spec| is_name_of(spec, name)) {
            return Ok(Slot::Input(number, &inputs[number]));
        }
        if let Some(number) = columns.iter().position(|spec| spec.name == name) {
            return Ok(Slot::Column(number, &columns[number]));
        }
        let model = &self.model.name;
        let names: Vec<_> = inputs.iter().map(|spec| &spec.name).collect();
        let columns: Vec<_> = columns.iter().map(|spec| &spec.name).collect();
        let or_columns =
            if columns.is_empty() { String::new() } else { format!(", its raw columns {columns:?}") };
        Err(Problem::invalid(format!(
            "model {model:?} has no input {name:?}, its inputs are {names:?}{or_columns}"
        )))
    }

    /// Take the data of a slot, which have these elements and as many bytes as [`Slot::bytes`] says.
    pub(super) fn insert(
        &mut self,
        slot: Slot<'m>,
        elements: Elements,
        shape: &[u64],
        data: Buffer,
    ) -> Result<(), Problem> {
        let is_second = match slot {
            Slot::Input(number, spec) => {
                let tensor = Tensor::new(TensorName::Number(number as u16), spec.dtype, shape, data);
                self.tensors[number].replace(tensor).is_some()
            }
            Slot::Column(number, _) => {
                let count = shape.first().map_or(0, |&rows| rows as usize);
                self.columns[number].replace(Column { elements, count, data }).is_some()
            }
        };
        if is_second {
            return Err(Problem::invalid(format!("{slot} occurs twice")));
        }
        Ok(())
    }

    /// All inputs in the order of the signature, or all columns in their order.
    pub(super) fn finish(self) -> Result<Given, Problem> {
        let Self { model, tensors, columns } = self;
        let column = columns.iter().zip(&model.columns).find(|(found, _)| found.is_some());
        let input = tensors.iter().zip(&model.inputs).find(|(found, _)| found.is_some());
        if let (Some((_, column)), Some((_, input))) = (column, input) {
            return Err(Problem::invalid(format!(
                "the request has input {:?} and raw column {:?}: send either all inputs or all columns",
                input.name, column.name
            )));
        }
        if column.is_some() {
            return all(columns, model.columns.iter().map(|spec| &spec.name), "column").map(Given::Columns);
        }
        all(tensors, model.inputs.iter().map(|spec| &spec.name), "input").map(Given::Tensors)
    }
}

fn all<'n, T>(
    found: Vec<Option<T>>,
    names: impl Iterator<Item = &'n String>,
    what: &str,
) -> Result<Vec<T>, Problem> {
    let missing = |name: &str| Problem::invalid(format!("{what} {name:?} is missing"));
    found.into_iter().zip(names).map(|(found, name)| found.ok_or_else(|| missing(name))).collect()
}

impl Slot<'_> {
    /// A field with a wrong value.
    pub(super) fn wrong(&self, field: &str, found: impl Display, expected: impl Display) -> Problem {
        Problem::invalid(format!("{self}: {field} is {found}, must be {expected}"))
    }

    /// The elements that a datatype stands for.
    pub(super) fn elements(&self, datatype: &str) -> Result<Elements, Problem> {
        self.accepted()
            .into_iter()
            .find(|&elements| datatype::of(elements) == datatype)
            .ok_or_else(|| self.wrong("datatype", format_args!("{datatype:?}"), self.datatypes()))
    }

    /// The datatypes that it may have.
    pub(super) fn datatypes(&self) -> String {
        let names: Vec<&str> = self.accepted().into_iter().map(datatype::of).collect();
        names.join(" or ")
    }

    fn accepted(&self) -> Vec<Elements> {
        match self {
            Self::Input(_, spec) => vec![Elements::Numbers(spec.dtype)],
            Self::Column(_, spec) => spec.accepted().to_vec(),
        }
    }

    /// The shape as the protocol has it: -1 for dimensions that differ.
    pub(super) fn sizes(&self) -> Vec<i64> {
        match self {
            Self::Input(_, spec) => spec.sizes(),
            Self::Column(..) => vec![-1],
        }
    }

    /// Bytes of these elements in this shape; `None` for texts, which have any number.
    pub(super) fn bytes(&self, elements: Elements, shape: &[u64]) -> Result<Option<usize>, Problem> {
        let fits = match self {
            Self::Input(_, spec) => spec.fits(shape),
            // Clients that send tables often have one dimension more.
            Self::Column(..) => matches!(shape, [_] | [_, 1]),
        };
        if !fits {
            return Err(self.wrong("shape", list(shape), list(&self.sizes())));
        }
        let Elements::Numbers(dtype) = elements else { return Ok(None) };
        let bytes = bytes_of(dtype, shape).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.map(Some).ok_or_else(|| self.wrong("shape", list(shape), "of a size that fits into memory"))
    }
}

impl Display for Slot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Input(_, spec) => write!(f, "input {:?}", spec.name),
            Self::Column(_, spec) => write!(f, "column {:?}", spec.name),
        }
    }
}

/// Parameters of tensors that extensions of the protocol define, which this server lacks.
const UNSUPPORTED_PARAMETERS: [&str; 2] = ["classification", "shared_memory_region"];

/// Refuse parameters that would change the meaning of a tensor.
pub(super) fn check_parameters(of: impl Display, has: impl Fn(&str) -> bool) -> Result<(), Problem> {
    match UNSUPPORTED_PARAMETERS.iter().find(|name| has(name)) {
        Some(name) => {
            Err(Problem::new(Kind::Unsupported, format!("unsupported: {of} has the parameter {name:?}")))
        }
        None => Ok(()),
    }
}

/// Sizes as JSON has them.
pub(super) fn list<T: Display>(sizes: &[T]) -> String {
    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    format!("[{}]", sizes.join(","))
}

/// Parts of a ragged input `X` are called `X.values`, `X.offsets` and `X.weights`; a signature has `_` in place of the dot.
fn is_name_of(spec: &TensorSpec, name: &str) -> bool {
    spec.name == name
        || name.rsplit_once('.').is_some_and(|(of, part)| {
            matches!(part, "values" | "offsets" | "weights")
                && spec.name.strip_suffix(part).and_then(|rest| rest.strip_suffix('_')) == Some(of)
        })
}

/// Move tensors that do not begin at a multiple of their element size to memory that does.
pub(super) async fn aligned(
    mut tensors: Vec<Tensor>,
    arena: &Arena,
    room_by: Instant,
) -> Result<Vec<Tensor>, Problem> {
    for tensor in &mut tensors {
        if !tensor.data.as_ptr().addr().is_multiple_of(tensor.dtype.bytes()) {
            let mut lease = arena.lease_by(tensor.data.len(), room_by).await?;
            lease.copy_from_slice(&tensor.data);
            tensor.data = lease.share();
        }
    }
    Ok(tensors)
}
