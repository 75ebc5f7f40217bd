//! A served model: its signature, and the function that runs it.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use tokio::sync::oneshot;

use super::problem::{Kind, Problem};
use crate::{DType, Status, Tensor, TensorName};

/// A model and what it takes and gives.
#[derive(Clone)]
pub struct Model {
    /// Its name in URLs.
    pub name: String,
    /// Its version in URLs.
    pub version: String,
    /// Its inputs, all of them required.
    pub inputs: Vec<TensorSpec>,
    /// Its outputs.
    pub outputs: Vec<TensorSpec>,
    /// Runs a request, in this thread or another, and answers it. It must not wait.
    pub infer: Arc<dyn Fn(Ask) + Send + Sync>,
    /// Whether it takes requests. Clones share it.
    pub loaded: Arc<AtomicBool>,
}

impl Model {
    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.load(Relaxed)
    }

    pub(super) fn set_loaded(&self, loaded: bool) {
        self.loaded.store(loaded, Relaxed);
    }

    /// Its state as the repository's index has it, and the reason.
    pub(super) fn state(&self) -> (&'static str, &'static str) {
        if self.is_loaded() { ("READY", "") } else { ("UNAVAILABLE", "unloaded") }
    }

    /// The number of an output.
    pub(super) fn find_output(&self, name: &str) -> Result<usize, Problem> {
        let number = self.outputs.iter().position(|spec| spec.name == name);
        number.ok_or_else(|| {
            let names: Vec<_> = self.outputs.iter().map(|spec| &spec.name).collect();
            let model = &self.name;
            Problem::invalid(format!("model {model:?} has no output {name:?}, its outputs are {names:?}"))
        })
    }

    /// An output among those that the function gave, which must be as the signature says.
    pub(super) fn output<'o>(&self, number: usize, given: &'o [Tensor]) -> Result<&'o Tensor, Problem> {
        let spec = &self.outputs[number];
        given
            .iter()
            .find(|output| output.name == TensorName::Number(number as u16))
            .filter(|output| output.dtype == spec.dtype && spec.fits(&output.shape))
            .ok_or_else(|| {
                let text = format!("model {:?} gave no output {:?} of its signature", self.name, spec.name);
                Problem::new(Kind::Failed, text)
            })
    }
}

impl Debug for Model {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// An input or output of a model.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Its dimensions; `None` for one that differs between requests.
    pub shape: Vec<Option<u64>>,
}

impl TensorSpec {
    /// The shape as the protocol has it: -1 for dimensions that differ.
    pub(super) fn sizes(&self) -> Vec<i64> {
        self.shape.iter().map(|size| size.map_or(-1, |size| size as i64)).collect()
    }

    pub(super) fn fits(&self, shape: &[u64]) -> bool {
        shape.len() == self.shape.len()
            && self.shape.iter().zip(shape).all(|(spec, size)| spec.is_none_or(|spec| spec == *size))
    }
}

/// A request to a model.
#[derive(Debug)]
pub struct Ask {
    /// Its inputs in the order of the signature, named by their numbers.
    pub tensors: Vec<Tensor>,
    /// Trace id as in W3C Trace Context, zeros where there is none.
    pub trace: [u8; 16],
    /// When its sender stops waiting.
    pub deadline: Instant,
    /// Where its answer goes.
    pub answer: Answer,
}

/// Takes the answer to a request. Dropped without one, the request fails.
#[derive(Debug)]
pub struct Answer(pub(super) oneshot::Sender<Result<Vec<Tensor>, Problem>>);

impl Answer {
    /// Answer with the model's outputs, named by their numbers in the signature.
    pub fn reply(self, outputs: Vec<Tensor>) {
        // The sender of the request may have gone away.
        let _ = self.0.send(Ok(outputs));
    }

    /// Refuse the request, or report that it failed.
    pub fn fail(self, status: Status, text: String) {
        // As above.
        let _ = self.0.send(Err(Problem::of_status(status, text)));
    }
}
