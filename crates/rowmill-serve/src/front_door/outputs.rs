//! The outputs of a request: those of the model, or the best candidates by one of them.

use std::borrow::Cow;

use serde_json::Value;

use super::model::{Model, TensorSpec};
use super::problem::{Kind, Problem};
use crate::{DType, Per, Tensor, TensorName, TopK};

/// Outputs by their numbers.
pub(super) struct Outputs<'m> {
    model: &'m Model,
    pub(super) specs: Cow<'m, [TensorSpec]>,
    /// The best candidates that the sender wants in place of the model's outputs.
    pub(super) top: Option<TopK>,
}

impl<'m> Outputs<'m> {
    /// The outputs of a request with the parameters `top_k` and `top_k_output`, null where it has none.
    pub(super) fn of(model: &'m Model, top_k: &Value, top_k_output: &Value) -> Result<Self, Problem> {
        let all = Self { model, specs: Cow::Borrowed(&model.outputs), top: None };
        if top_k.is_null() {
            return match top_k_output {
                Value::Null => Ok(all),
                _ => Err(Problem::invalid(format!("top_k_output is {top_k_output}, but top_k is not given"))),
            };
        }
        // Some clients send every parameter as text.
        let count = top_k.as_u64().or_else(|| top_k.as_str()?.parse().ok()).filter(|&count| count > 0);
        let count = count
            .ok_or_else(|| Problem::invalid(format!("top_k is {top_k}, must be a whole number from 1 on")))?;
        let output = match (top_k_output, model.outputs.len()) {
            (Value::Null, 1) => 0,
            (Value::String(name), _) => all.find(name)?,
            _ => {
                let names: Vec<_> = model.outputs.iter().map(|spec| &spec.name).collect();
                return Err(Problem::invalid(format!(
                    "top_k_output is {top_k_output}, must name one of the outputs {names:?}"
                )));
            }
        };
        let spec =
            |name: &str, dtype| TensorSpec { name: name.into(), dtype, shape: vec![None], per: Per::Item };
        let specs = vec![spec("scores", model.outputs[output].dtype), spec("positions", DType::Int64)];
        Ok(Self { model, specs: Cow::Owned(specs), top: Some(TopK { count, output }) })
    }

    /// The number of an output.
    pub(super) fn find(&self, name: &str) -> Result<usize, Problem> {
        let number = self.specs.iter().position(|spec| spec.name == name);
        number.ok_or_else(|| {
            let names: Vec<_> = self.specs.iter().map(|spec| &spec.name).collect();
            let model = &self.model.name;
            Problem::invalid(format!("model {model:?} has no output {name:?}, its outputs are {names:?}"))
        })
    }

    /// Refuse an output that is asked for twice: each time, it would take memory.
    pub(super) fn check_distinct(&self, wanted: impl Iterator<Item = usize>) -> Result<(), Problem> {
        let mut seen = vec![false; self.specs.len()];
        for number in wanted {
            if std::mem::replace(&mut seen[number], true) {
                let name = &self.specs[number].name;
                return Err(Problem::invalid(format!("output {name:?} occurs twice: ask for it once")));
            }
        }
        Ok(())
    }

    /// One of the outputs of the model's function, which must match the signature.
    pub(super) fn tensor<'o>(&self, number: usize, given: &'o [Tensor]) -> Result<&'o Tensor, Problem> {
        let spec = &self.specs[number];
        given
            .iter()
            .find(|output| output.name == TensorName::Number(number as u16))
            .filter(|output| output.dtype == spec.dtype && spec.fits(&output.shape))
            .ok_or_else(|| {
                let text =
                    format!("model {:?} gave no output {:?} of its signature", self.model.name, spec.name);
                Problem::new(Kind::Failed, text)
            })
    }
}
