//! The protocol over HTTP: JSON, with binary tensors behind it.

mod about;
mod body;
mod elements;
mod reply;
mod request;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::time::timeout_at;

use super::call::{Call, Door, trace};
use super::problem::{Kind, Problem};
use super::{FrontDoor, Model};

type Front = State<Arc<Door>>;
type PathOf = Path<Vec<(String, String)>>;
type Answered = Result<Response, Problem>;

pub(super) fn routes(door: Door) -> Router {
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
        .with_state(Arc::new(door))
}

/// The model and the version of a path.
fn named(path: &[(String, String)]) -> (&str, Option<&str>) {
    let part = |name: &str| path.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    (part("model").unwrap_or_default(), part("version"))
}

impl Door {
    fn model_of(&self, path: &[(String, String)]) -> Result<&Model, Problem> {
        let (name, version) = named(path);
        self.model(name, version)
    }
}

async fn server() -> Response {
    answer_json(StatusCode::OK, &about::server())
}

fn readiness(is_ready: bool) -> StatusCode {
    if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn server_ready(State(door): Front) -> StatusCode {
    readiness(door.is_ready())
}

async fn ready(State(door): Front, Path(path): PathOf) -> Answered {
    let is_loaded = door.model_of(&path)?.is_loaded();
    Ok(readiness(is_loaded && door.is_ready()).into_response())
}

async fn metadata(State(door): Front, Path(path): PathOf) -> Answered {
    Ok(answer_json(StatusCode::OK, &about::metadata(door.model_of(&path)?)))
}

async fn config(State(door): Front, Path(path): PathOf) -> Answered {
    Ok(answer_json(StatusCode::OK, &about::config(door.model_of(&path)?)))
}

async fn statistics(State(door): Front, Path(path): PathOf) -> Answered {
    let model = door.model_of(&path)?;
    Ok(answer_json(StatusCode::OK, &json!({ "model_stats": [about::statistics(model)] })))
}

async fn all_statistics(State(door): Front) -> Response {
    let answers: Vec<Value> = door.front_door.models.iter().map(about::statistics).collect();
    answer_json(StatusCode::OK, &json!({ "model_stats": answers }))
}

async fn index(State(door): Front) -> Response {
    let models: Vec<Value> = door.front_door.models.iter().map(about::state).collect();
    answer_json(StatusCode::OK, &models.into())
}

async fn load(State(door): Front, Path(path): PathOf) -> Answered {
    door.model_of(&path)?.set_loaded(true);
    Ok(answer_json(StatusCode::OK, &json!({})))
}

async fn unload(State(door): Front, Path(path): PathOf) -> Answered {
    door.model_of(&path)?.set_loaded(false);
    Ok(answer_json(StatusCode::OK, &json!({})))
}

async fn unsupported(method: Method, uri: Uri) -> Problem {
    let text = format!("unsupported: this server does not answer {method} {}", uri.path());
    Problem::new(Kind::Unsupported, text)
}

async fn infer(State(door): Front, Path(path): PathOf, headers: HeaderMap, body: Body) -> Answered {
    let (name, version) = named(&path);
    let call = door.admit()?.call(name, version)?;
    let answered = answer(&door.front_door, &call, &headers, body).await;
    call.end(&answered);
    answered
}

async fn answer(front_door: &FrontDoor, call: &Call<'_>, headers: &HeaderMap, body: Body) -> Answered {
    call.check_loaded()?;
    let read_by = call.read_by();
    let mut body = body::Incoming::of(front_door, headers, body, read_by)?;
    let slow = |_| Err(Problem::slow(front_door.slo));
    let part = timeout_at(read_by.into(), body.json()).await.unwrap_or_else(slow)?;
    let (json, timeout) = match check(call, &part, trace(headers)).await {
        Ok(checked) => checked,
        Err(problem) => {
            // A client that still sends would not see the answer if the connection was closed.
            let _ = timeout_at(read_by.into(), body.discard()).await;
            return Err(problem);
        }
    };
    let binary = timeout_at(read_by.into(), body.binary()).await.unwrap_or_else(slow)?;
    let request::Request { given, options } = request::parse(call.model, &json, binary)?;
    // Lists of numbers take many times their tensors' memory, which is not held while the model runs.
    drop((part, json));
    let outputs = call.ask(given, options.outputs.top, timeout, trace(headers)).await?;
    call.encode(|| reply::encode(call.model, &options, &outputs))
}

/// The JSON part and the timeout of a request that can be answered in time.
async fn check(call: &Call<'_>, part: &[u8], trace: [u8; 16]) -> Result<(Value, Option<Duration>), Problem> {
    let json = request::json(part)?;
    let timeout = request::timeout(&json)?;
    call.check_time(timeout, trace).await?;
    Ok((json, timeout))
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        answer_json(status, &json!({ "error": self.text }))
    }
}

fn answer_json(status: StatusCode, value: &Value) -> Response {
    (status, [("content-type", "application/json")], value.to_string()).into_response()
}
