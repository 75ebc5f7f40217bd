//! A served model: its signature, and the function that runs it.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::datatype;
use crate::{Column, ColumnSpec, DType, Failure, ModelMetrics, Per, Tensor, TopK};

/// Answers a request with the model's outputs, or the best candidates, named by their numbers. Where its sender gives up, the
/// future is dropped.
pub type Infer = dyn Fn(Ask) -> BoxFuture<'static, Result<Vec<Tensor>, Failure>> + Send + Sync;

/// Refuses a request by its deadline and its trace id, as far as that is possible without its inputs.
pub type CheckTime = dyn Fn(Instant, [u8; 16]) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync;

/// A model with its inputs and outputs.
#[derive(Clone)]
pub struct Model {
    /// Its name in URLs.
    pub name: String,
    /// Its version in URLs.
    pub version: String,
    /// Its inputs, all of them required.
    pub inputs: Vec<TensorSpec>,
    /// Raw columns that a request may give in place of all inputs.
    pub columns: Vec<ColumnSpec>,
    /// Its outputs.
    pub outputs: Vec<TensorSpec>,
    /// Answers a request.
    pub infer: Arc<Infer>,
    /// Whether a request of this deadline and trace id that arrived now would be answered in time.
    pub check_time: Arc<CheckTime>,
    /// Whether it takes requests. Clones share it.
    pub loaded: Arc<AtomicBool>,
    /// How its halves run, by half. Clones share it.
    pub halves: Arc<Mutex<BTreeMap<String, String>>>,
    /// Counters of its requests.
    pub metrics: Arc<ModelMetrics>,
}

impl Model {
    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.load(Relaxed)
    }

    pub(super) fn set_loaded(&self, loaded: bool) {
        self.loaded.store(loaded, Relaxed);
    }

    /// What a configuration says beyond the protocol: inputs that a ranking request gives once, and raw columns, as JSON;
    /// and how halves run.
    pub(super) fn parameters(&self) -> Vec<(String, String)> {
        let once = self.inputs.iter().filter(|spec| spec.per == Per::User).map(|spec| &spec.name);
        let column = |spec: &ColumnSpec| {
            let datatypes: Vec<_> = spec.accepted().iter().map(|&elements| datatype::of(elements)).collect();
            json!({ "name": spec.name, "kind": spec.kind, "datatypes": datatypes, "per": spec.per })
        };
        let columns = self.columns.iter().map(column);
        let text = |values: Vec<Value>| Value::from(values).to_string();
        let mut parameters = vec![
            ("user_inputs".to_owned(), text(once.map(|name| json!(name)).collect())),
            ("raw_columns".to_owned(), text(columns.collect())),
        ];
        parameters.extend(self.halves.lock().clone());
        parameters
    }

    /// Its state as the repository's index has it, and the reason.
    pub(super) fn state(&self) -> (&'static str, &'static str) {
        if self.is_loaded() { ("READY", "") } else { ("UNAVAILABLE", "unloaded") }
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
    /// How often a request gives it.
    pub per: Per,
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

/// What a request gives.
#[derive(Debug)]
pub enum Given {
    /// Inputs in the order of the signature, named by their numbers.
    Tensors(Vec<Tensor>),
    /// All raw columns, in the order of the model's columns.
    Columns(Vec<Column>),
}

/// A request to a model.
#[derive(Debug)]
pub struct Ask {
    /// Its inputs or raw columns.
    pub given: Given,
    /// The best candidates that it wants in place of the outputs: their scores [k] and positions [k] int64.
    pub top: Option<TopK>,
    /// Trace id as in W3C Trace Context, zeros where there is none.
    pub trace: [u8; 16],
    /// When its sender stops waiting.
    pub deadline: Instant,
}
