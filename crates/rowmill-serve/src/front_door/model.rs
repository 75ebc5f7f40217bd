//! A served model: its signature, and the function that runs it.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::datatype;
use super::problem::Problem;
use crate::{DType, Status, Tensor};

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
    pub(super) fn metadata(&self) -> Value {
        json!({ "name": self.name, "datatype": datatype::name(self.dtype), "shape": self.shape_json() })
    }

    /// The same as a configuration has it.
    pub(super) fn config(&self) -> Value {
        let datatype = format!("TYPE_{}", datatype::name(self.dtype));
        json!({ "name": self.name, "data_type": datatype, "dims": self.shape_json() })
    }

    /// The shape with -1 for dimensions that differ.
    pub(super) fn shape_json(&self) -> Value {
        self.shape.iter().map(|size| size.map_or(json!(-1), |size| json!(size))).collect()
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
