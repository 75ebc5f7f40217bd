//! The inputs of a request, checked against the signature of its model.

use std::fmt::Display;
use std::time::Instant;

use super::datatype;
use super::model::{Model, TensorSpec};
use super::problem::Problem;
use crate::messages::bytes_of;
use crate::{Arena, Buffer, Tensor, TensorName};

/// Inputs as a protocol finds them, in any order.
pub(super) struct Inputs<'m> {
    model: &'m Model,
    /// By their numbers in the signature.
    found: Vec<Option<Tensor>>,
}

impl<'m> Inputs<'m> {
    pub(super) fn of(model: &'m Model) -> Self {
        Self { model, found: vec![None; model.inputs.len()] }
    }

    /// The number of an input, and what it must be.
    pub(super) fn find(&self, name: &str) -> Result<(usize, &'m TensorSpec), Problem> {
        let specs = &self.model.inputs;
        let number = specs.iter().position(|spec| is_name_of(spec, name)).ok_or_else(|| {
            let names: Vec<_> = specs.iter().map(|spec| &spec.name).collect();
            let model = &self.model.name;
            Problem::invalid(format!("model {model:?} has no input {name:?}, its inputs are {names:?}"))
        })?;
        Ok((number, &specs[number]))
    }

    /// Take the data of an input, which have the type of the signature and [`TensorSpec::bytes`] bytes.
    pub(super) fn insert(&mut self, number: usize, shape: &[u64], data: Buffer) -> Result<(), Problem> {
        let spec = &self.model.inputs[number];
        let tensor = Tensor::new(TensorName::Number(number as u16), spec.dtype, shape, data);
        match self.found[number].replace(tensor) {
            Some(_) => Err(Problem::invalid(format!("input {:?} occurs twice", spec.name))),
            None => Ok(()),
        }
    }

    /// All inputs in the order of the signature.
    pub(super) fn finish(self) -> Result<Vec<Tensor>, Problem> {
        let missing = |spec: &TensorSpec| Problem::invalid(format!("input {:?} is missing", spec.name));
        self.found
            .into_iter()
            .zip(&self.model.inputs)
            .map(|(found, spec)| found.ok_or_else(|| missing(spec)))
            .collect()
    }
}

impl TensorSpec {
    /// A field of an input that is not what it must be.
    pub(super) fn wrong(&self, field: &str, found: impl Display, expected: impl Display) -> Problem {
        Problem::invalid(format!("input {:?}: {field} is {found}, must be {expected}", self.name))
    }

    /// Bytes of an input of this shape.
    pub(super) fn bytes(&self, shape: &[u64]) -> Result<usize, Problem> {
        if !self.fits(shape) {
            return Err(self.wrong("shape", list(shape), list(&self.sizes())));
        }
        let bytes = bytes_of(self.dtype, shape).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.ok_or_else(|| self.wrong("shape", list(shape), "of a size that fits into memory"))
    }

    pub(super) fn check_datatype(&self, found: &str) -> Result<(), Problem> {
        let expected = datatype::name(self.dtype);
        if found == expected {
            Ok(())
        } else {
            Err(self.wrong("datatype", format_args!("{found:?}"), expected))
        }
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
