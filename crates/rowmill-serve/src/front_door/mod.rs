//! The front door: the HTTP half of the Open Inference Protocol, version 2, with binary tensors.
//!
//! It reads a request into the arena, checks it against the model's signature, hands its tensors to a function, and
//! writes the reply. Tensors are addressed by their number in the signature from there on. Of the repository, load and
//! unload say whether a loaded model takes requests; shared memory, traces and settings of logs are unsupported.

mod body;
mod datatype;
mod model;
mod problem;
mod reply;
mod request;
mod statistics;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use rowmill_server::Drain;
use serde_json::{Value, json};
use tokio::sync::oneshot;

pub use model::{Answer, Ask, Model, TensorSpec};
use problem::Problem;
pub use statistics::Statistics;

use crate::Arena;

/// Models to serve, and the bounds of their requests.
#[derive(Clone, Debug)]
pub struct FrontDoor {
    /// Where requests go.
    pub arena: Arena,
    /// The models, each with its function.
    pub models: Vec<Model>,
    /// Bytes of a request's body.
    pub request_bytes_max: usize,
    /// Bytes of its JSON part, which takes many times its size while it is read. Large tensors are sent as binary data.
    pub json_bytes_max: usize,
    /// The deadline of requests that give none.
    pub slo: Duration,
    /// Whether the models are warm.
    pub is_ready: Arc<AtomicBool>,
    /// What is counted of requests.
    pub statistics: Statistics,
}

struct Shared {
    front_door: FrontDoor,
    drain: Drain,
}

type Front = State<Arc<Shared>>;
type Answered = Result<Response, Problem>;

impl FrontDoor {
    /// The routes of the protocol. Requests hold `drain` until they are answered.
    pub fn router(self, drain: &Drain) -> Router {
        let model = Router::new()
            .route("/", get(metadata))
            .route("/config", get(config))
            .route("/ready", get(ready))
            .route("/stats", get(statistics))
            .route("/infer", post(infer));
        Router::new()
            .route("/v2", get(server))
            .route("/v2/health/live", get(StatusCode::OK))
            .route("/v2/health/ready", get(server_ready))
            .route("/v2/models/stats", get(all_statistics))
            .route("/v2/repository/index", post(index))
            .route("/v2/repository/models/{model}/load", post(load))
            .route("/v2/repository/models/{model}/unload", post(unload))
            .nest("/v2/models/{model}", model.clone())
            .nest("/v2/models/{model}/versions/{version}", model)
            .fallback(unsupported)
            .with_state(Arc::new(Shared { front_door: self, drain: drain.clone() }))
    }
}

impl Shared {
    fn model(&self, path: &[(String, String)]) -> Result<&Model, Problem> {
        let part = |name: &str| path.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let name = part("model").unwrap_or_default();
        let names = || self.front_door.models.iter().map(|model| model.name.as_str()).collect::<Vec<_>>();
        let model = self.front_door.models.iter().find(|model| model.name == name).ok_or_else(|| {
            Problem::new(StatusCode::NOT_FOUND, format!("no model {name:?}, this server has {:?}", names()))
        })?;
        match part("version") {
            Some(version) if version != model.version => Err(Problem::new(
                StatusCode::NOT_FOUND,
                format!("model {name:?} has version {:?}, not {version:?}", model.version),
            )),
            _ => Ok(model),
        }
    }
}

async fn server() -> Response {
    let answer = json!({
        "name": "rowmill",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": ["binary_tensor_data", "model_configuration", "model_repository", "statistics"],
    });
    axum_json(StatusCode::OK, &answer)
}

async fn server_ready(State(shared): Front) -> StatusCode {
    let is_ready = shared.front_door.is_ready.load(Relaxed) && !shared.drain.has_started();
    if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn ready(State(shared): Front, Path(path): Path<Vec<(String, String)>>) -> Answered {
    let is_loaded = shared.model(&path)?.is_loaded();
    let status = server_ready(State(shared)).await;
    Ok(if is_loaded { status } else { StatusCode::SERVICE_UNAVAILABLE }.into_response())
}

async fn config(State(shared): Front, Path(path): Path<Vec<(String, String)>>) -> Answered {
    let model = shared.model(&path)?;
    let specs = |specs: &[TensorSpec]| specs.iter().map(TensorSpec::config).collect::<Vec<Value>>();
    let answer = json!({
        "name": model.name,
        "platform": "rowmill",
        "backend": "rowmill",
        "max_batch_size": 0,
        "input": specs(&model.inputs),
        "output": specs(&model.outputs),
    });
    Ok(axum_json(StatusCode::OK, &answer))
}

async fn statistics(State(shared): Front, Path(path): Path<Vec<(String, String)>>) -> Answered {
    let model = shared.model(&path)?;
    let answer = shared.front_door.statistics.of(&model.name, &model.version);
    Ok(axum_json(StatusCode::OK, &json!({ "model_stats": [answer] })))
}

async fn all_statistics(State(shared): Front) -> Response {
    let FrontDoor { models, statistics, .. } = &shared.front_door;
    let answers: Vec<Value> = models.iter().map(|model| statistics.of(&model.name, &model.version)).collect();
    axum_json(StatusCode::OK, &json!({ "model_stats": answers }))
}

async fn index(State(shared): Front) -> Response {
    let state = |model: &Model| {
        let (state, reason) = if model.is_loaded() { ("READY", "") } else { ("UNAVAILABLE", "unloaded") };
        json!({ "name": model.name, "version": model.version, "state": state, "reason": reason })
    };
    let models: Vec<Value> = shared.front_door.models.iter().map(state).collect();
    axum_json(StatusCode::OK, &models.into())
}

async fn load(State(shared): Front, Path(path): Path<Vec<(String, String)>>) -> Answered {
    shared.model(&path)?.set_loaded(true);
    Ok(axum_json(StatusCode::OK, &json!({})))
}

async fn unload(State(shared): Front, Path(path): Path<Vec<(String, String)>>) -> Answered {
    shared.model(&path)?.set_loaded(false);
    Ok(axum_json(StatusCode::OK, &json!({})))
}

async fn unsupported(method: axum::http::Method, uri: axum::http::Uri) -> Problem {
    let text = format!("unsupported: this server does not answer {method} {}", uri.path());
    Problem::new(StatusCode::NOT_FOUND, text)
}

async fn metadata(State(shared): Front, Path(path): Path<Vec<(String, String)>>) -> Answered {
    let model = shared.model(&path)?;
    let specs = |specs: &[TensorSpec]| specs.iter().map(TensorSpec::metadata).collect::<Vec<Value>>();
    let answer = json!({
        "name": model.name,
        "versions": [model.version],
        "platform": "rowmill",
        "inputs": specs(&model.inputs),
        "outputs": specs(&model.outputs),
    });
    Ok(axum_json(StatusCode::OK, &answer))
}

async fn infer(
    State(shared): Front,
    Path(path): Path<Vec<(String, String)>>,
    headers: HeaderMap,
    body: Body,
) -> Answered {
    // Before the look at the drain: a request is either refused or waited for.
    let _hold = shared.drain.hold();
    if shared.drain.has_started() {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the server is about to end: ask another one".into(),
        ));
    }
    let (begin, front_door) = (Instant::now(), &shared.front_door);
    let model = shared.model(&path)?;
    let counted = front_door.statistics.open(&model.name);
    let answered = answer(front_door, model, &headers, body, begin).await;
    counted.end(answered.as_ref().map_or_else(|problem| problem.status().as_u16(), |_| 200));
    answered
}

async fn answer(
    front_door: &FrontDoor,
    model: &Model,
    headers: &HeaderMap,
    body: Body,
    begin: Instant,
) -> Answered {
    if !model.is_loaded() {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("model {:?} is unloaded: load it through the repository", model.name),
        ));
    }
    let read_by = begin + front_door.slo;
    let body = tokio::time::timeout_at(read_by.into(), body::read(front_door, headers, body, read_by)).await;
    let body = body.map_err(|_| {
        Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {:?}", front_door.slo),
        )
    })??;
    let request = request::parse(model, &body)?;
    let deadline = begin + request.timeout.unwrap_or(front_door.slo);
    let tensors = request::aligned(request.tensors, &front_door.arena, deadline).await?;
    let (sender, answer) = oneshot::channel();
    (model.infer)(Ask { tensors, trace: trace(headers), deadline, answer: Answer(sender) });
    let outputs = tokio::time::timeout_at(deadline.into(), answer).await.map_err(|_| {
        let text =
            format!("no answer of model {:?} within {:?}: allow more time", model.name, begin.elapsed());
        Problem::new(StatusCode::GATEWAY_TIMEOUT, text)
    })?;
    let outputs = outputs.unwrap_or_else(|_| Err(Problem::dropped()))?;
    reply::encode(model, &request.options, &outputs)
}

/// The trace id of a `traceparent` header (W3C Trace Context), zeros where there is none.
fn trace(headers: &HeaderMap) -> [u8; 16] {
    let id = headers.get("traceparent").and_then(|value| value.to_str().ok()?.split('-').nth(1));
    let number = id.filter(|id| id.len() == 32).and_then(|id| u128::from_str_radix(id, 16).ok());
    number.unwrap_or(0).to_be_bytes()
}

fn axum_json(status: StatusCode, value: &Value) -> Response {
    (status, [("content-type", "application/json")], value.to_string()).into_response()
}
