//! The front door: the Open Inference Protocol, version 2, with binary tensors.
//!
//! A protocol ([`http`] or [`grpc`]) reads a request into the arena, finds its model, and gives its tensors to a [`call`].
//! The rest is the same for each protocol: [`inputs`] checks tensors against the model's signature, the call gives them to
//! the model's function, and [`outputs`] checks what it gives. Tensors are addressed by their number in the signature. Of the
//! repository, load and unload say whether a loaded model takes requests; shared memory, traces and settings of logs
//! are unsupported.

mod call;
pub(crate) mod datatype;
pub(crate) mod grpc;
mod http;
mod inputs;
mod model;
mod outputs;
mod problem;
mod statistics;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use axum::Router;
use rowmill_server::Drain;

pub use model::{Ask, CheckTime, Given, Infer, Model, TensorSpec};

use crate::Arena;

/// The name of the server in its metadata.
const SERVER: &str = "rowmill";
/// What runs its models.
const PLATFORM: &str = "rowmill";
/// The extensions of the protocol that it answers.
const EXTENSIONS: [&str; 4] = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"];

/// Models to serve, and the bounds of their requests. Clones serve the same models.
#[derive(Clone, Debug)]
pub struct FrontDoor {
    /// Where requests go.
    pub arena: Arena,
    /// The models, each with its function.
    pub models: Vec<Model>,
    /// Bytes of a request's body.
    pub request_bytes_max: usize,
    /// Bytes of it beside binary tensors: JSON or fields of messages, which take many times their size while they are
    /// read.
    pub parsed_bytes_max: usize,
    /// The deadline of requests that give none.
    pub slo: Duration,
    /// Whether the models are warm.
    pub is_ready: Arc<AtomicBool>,
}

impl FrontDoor {
    /// The protocol over HTTP. Requests hold `drain` until they are answered.
    pub fn http_routes(self, drain: &Drain) -> Router {
        http::routes(call::Door { front_door: self, drain: drain.clone() })
    }

    /// The same over gRPC.
    pub fn grpc_routes(self, drain: &Drain) -> Router {
        grpc::routes(call::Door { front_door: self, drain: drain.clone() })
    }
}
