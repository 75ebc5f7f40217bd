//! The protocol over gRPC, as `proto/inference.proto` has it.
//!
//! A request to a model is read straight into the arena, so that it counts against the memory for requests before its
//! first byte is read; a server of tonic would collect it on the heap. Each raw tensor is copied once, from the buffers of
//! the connection to where the model uses it. tonic gives the statuses.

mod about;
mod contents;
mod frame;
mod infer;
pub(crate) mod messages;
mod parameter;
mod request;
mod split;
mod status;
mod timeout;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use prost::Message;

use super::call::Door;
use super::model::Model;
use super::problem::{Kind, Problem};
use messages::{
    ModelConfigRequest, ModelConfigResponse, ModelMetadataRequest, ModelReadyRequest, ModelReadyResponse,
    ModelStatisticsRequest, ModelStatisticsResponse, RepositoryIndexRequest, RepositoryIndexResponse,
    RepositoryModelLoadRequest, RepositoryModelLoadResponse, RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse, ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest,
    ServerReadyRequest, ServerReadyResponse,
};

/// Bytes of a message that holds names alone.
const SMALL_BYTES_MAX: usize = 64 << 10;

type Front = State<Arc<Door>>;
type Answered<R> = Result<R, Problem>;

pub(super) fn routes(door: Door) -> Router {
    let calls = Router::new()
        .route("/ServerLive", call(|_, _: &ServerLiveRequest| Ok(ServerLiveResponse { live: true })))
        .route(
            "/ServerReady",
            call(|door, _: &ServerReadyRequest| Ok(ServerReadyResponse { ready: door.is_ready() })),
        )
        .route("/ModelReady", call(model_ready))
        .route("/ServerMetadata", call(|_, _: &ServerMetadataRequest| Ok(about::server())))
        .route(
            "/ModelMetadata",
            call(|door, asked: &ModelMetadataRequest| {
                model(door, &asked.name, &asked.version).map(about::metadata)
            }),
        )
        .route("/ModelConfig", call(config))
        .route("/ModelInfer", post(infer))
        .route("/ModelStatistics", call(statistics))
        .route("/RepositoryIndex", call(|door, asked| Ok(index(door, asked))))
        .route("/RepositoryModelLoad", call(load))
        .route("/RepositoryModelUnload", call(unload));
    Router::new()
        .nest("/inference.GRPCInferenceService", calls)
        .fallback(unsupported)
        .with_state(Arc::new(door))
}

/// A call that is answered at once.
fn call<Q, R>(answer: fn(&Door, &Q) -> Answered<R>) -> MethodRouter<Arc<Door>>
where
    Q: Message + Default + 'static,
    R: Message + 'static,
{
    post(async move |State(door): Front, headers: HeaderMap, body: Body| {
        let within = door.front_door.slo;
        let read = tokio::time::timeout(within, frame::small(body, SMALL_BYTES_MAX));
        let message = read.await.unwrap_or_else(|_| Err(Problem::slow(within)));
        let answered = message.and_then(|message| {
            let asked = Q::decode(&message[..])
                .map_err(|error| Problem::invalid(format!("the message cannot be read: {error}")))?;
            frame::reply(&answer(&door, &asked)?)
        });
        respond(&headers, answered)
    })
}

async fn infer(State(door): Front, headers: HeaderMap, body: Body) -> Response {
    let answered = infer::answer(&door, &headers, body).await;
    respond(&headers, answered.and_then(|reply| frame::reply(&reply)))
}

async fn unsupported(uri: Uri) -> Response {
    let text = format!("unsupported: this server does not answer {}", uri.path());
    status::response(Problem::new(Kind::Unsupported, text))
}

fn respond(headers: &HeaderMap, answered: Answered<Response>) -> Response {
    let is_grpc =
        headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if is_grpc {
        answered.unwrap_or_else(status::response)
    } else {
        StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response()
    }
}

/// A model; an empty version is any version.
fn model<'d>(door: &'d Door, name: &str, version: &str) -> Answered<&'d Model> {
    door.model(name, version_of(version))
}

fn version_of(version: &str) -> Option<&str> {
    Some(version).filter(|version| !version.is_empty())
}

fn model_ready(door: &Door, asked: &ModelReadyRequest) -> Answered<ModelReadyResponse> {
    let is_loaded = model(door, &asked.name, &asked.version)?.is_loaded();
    Ok(ModelReadyResponse { ready: is_loaded && door.is_ready() })
}

fn config(door: &Door, asked: &ModelConfigRequest) -> Answered<ModelConfigResponse> {
    let config = about::config(model(door, &asked.name, &asked.version)?);
    Ok(ModelConfigResponse { config: Some(config) })
}

fn statistics(door: &Door, asked: &ModelStatisticsRequest) -> Answered<ModelStatisticsResponse> {
    let model_stats = match &*asked.name {
        "" => door.front_door.models.iter().map(about::statistics).collect(),
        name => vec![about::statistics(model(door, name, &asked.version)?)],
    };
    Ok(ModelStatisticsResponse { model_stats })
}

fn index(door: &Door, asked: &RepositoryIndexRequest) -> RepositoryIndexResponse {
    let models = door.front_door.models.iter().filter(|model| !asked.ready || model.is_loaded());
    RepositoryIndexResponse { models: models.map(about::state).collect() }
}

fn load(door: &Door, asked: &RepositoryModelLoadRequest) -> Answered<RepositoryModelLoadResponse> {
    if let Some(name) = asked.parameters.keys().next() {
        let text = format!("unsupported: loading model {:?} with the parameter {name:?}", asked.model_name);
        return Err(Problem::new(Kind::Unsupported, text));
    }
    model(door, &asked.model_name, "")?.set_loaded(true);
    Ok(RepositoryModelLoadResponse {})
}

fn unload(door: &Door, asked: &RepositoryModelUnloadRequest) -> Answered<RepositoryModelUnloadResponse> {
    model(door, &asked.model_name, "")?.set_loaded(false);
    Ok(RepositoryModelUnloadResponse {})
}
