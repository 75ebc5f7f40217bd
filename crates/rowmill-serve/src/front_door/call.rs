//! A request on its way through the front door: admitted, given to a model, and counted.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use futures_util::FutureExt;
use rowmill_server::{Drain, Hold};
use serde_json::Value;

use super::inputs::aligned;
use super::model::{Ask, Given, Model};
use super::problem::{Kind, Problem};
use super::statistics::Open;
use super::{FrontDoor, statistics};
use crate::{Failure, Status, Tensor, TopK};

/// Longer timeouts are as good as this one.
pub(super) const TIMEOUT_MAX: Duration = Duration::from_hours(1);
const PANICKED: &str = "the model failed: see the worker's log";

/// A front door and the end of its process.
pub(super) struct Door {
    pub(super) front_door: FrontDoor,
    pub(super) drain: Drain,
}

/// A request that the drain waits for.
pub(super) struct Admitted<'d> {
    door: &'d Door,
    pub(super) begin: Instant,
    _hold: Hold,
}

/// A request to a model. Dropped without an end, it counts as given up by its sender.
pub(super) struct Call<'d> {
    admitted: Admitted<'d>,
    pub(super) model: &'d Model,
    open: Open,
}

impl Door {
    /// Whether the server takes requests.
    pub(super) fn is_ready(&self) -> bool {
        self.front_door.is_ready.load(std::sync::atomic::Ordering::Relaxed) && !self.drain.has_started()
    }

    /// A model, of a version where one is given.
    pub(super) fn model(&self, name: &str, version: Option<&str>) -> Result<&Model, Problem> {
        let models = &self.front_door.models;
        let model = models.iter().find(|model| model.name == name).ok_or_else(|| {
            let names: Vec<_> = models.iter().map(|model| &model.name).collect();
            Problem::new(Kind::NotFound, format!("no model {name:?}, this server has {names:?}"))
        })?;
        match version {
            Some(version) if version != model.version => Err(Problem::new(
                Kind::NotFound,
                format!("model {name:?} has version {:?}, not {version:?}", model.version),
            )),
            _ => Ok(model),
        }
    }

    /// Take a request unless the process ends.
    pub(super) fn admit(&self) -> Result<Admitted<'_>, Problem> {
        // Before the look at the drain: a request is either refused or waited for.
        let hold = self.drain.hold();
        if self.drain.has_started() {
            return Err(Problem::new(
                Kind::Unavailable,
                "the server is about to end: send the request to another one".into(),
            ));
        }
        Ok(Admitted { door: self, begin: Instant::now(), _hold: hold })
    }
}

impl<'d> Admitted<'d> {
    /// Count the request for its model.
    pub(super) fn call(self, name: &str, version: Option<&str>) -> Result<Call<'d>, Problem> {
        let model = self.door.model(name, version)?;
        let open = Open::new(&model.metrics, self.begin);
        Ok(Call { admitted: self, model, open })
    }
}

impl Call<'_> {
    /// When the request must have arrived.
    pub(super) fn read_by(&self) -> Instant {
        self.admitted.begin + self.admitted.door.front_door.slo
    }

    /// Refuse the request where the model is unloaded.
    pub(super) fn check_loaded(&self) -> Result<(), Problem> {
        if self.model.is_loaded() {
            return Ok(());
        }
        let text = format!("model {:?} is unloaded: load it through the repository", self.model.name);
        Err(Problem::new(Kind::Unavailable, text))
    }

    /// Refuse the request where an answer within `timeout` since it began cannot be expected, before it is read.
    pub(super) async fn check_time(&self, timeout: Option<Duration>, trace: [u8; 16]) -> Result<(), Problem> {
        let checked = (self.model.check_time)(self.deadline(timeout), trace).await;
        checked.map_err(|failure| Problem::of_status(failure.status, failure.text))
    }

    fn deadline(&self, timeout: Option<Duration>) -> Instant {
        let Admitted { door, begin, .. } = &self.admitted;
        *begin + timeout.unwrap_or(door.front_door.slo)
    }

    /// The outputs of the model, or the best candidates by one of them, within `timeout` since the request began.
    pub(super) async fn ask(
        &self,
        given: Given,
        top: Option<TopK>,
        timeout: Option<Duration>,
        trace: [u8; 16],
    ) -> Result<Vec<Tensor>, Problem> {
        let Admitted { door: Door { front_door, .. }, begin, .. } = &self.admitted;
        let deadline = self.deadline(timeout);
        let given = match given {
            Given::Tensors(tensors) => Given::Tensors(aligned(tensors, &front_door.arena, deadline).await?),
            columns @ Given::Columns(_) => columns,
        };
        // A panic leaves nothing half done but its request.
        let answer = async { (self.model.infer)(Ask { given, top, trace, deadline }).await };
        let answer = AssertUnwindSafe(answer).catch_unwind();
        let outputs = tokio::time::timeout_at(deadline.into(), answer).await.map_err(|_| {
            let (name, taken) = (&self.model.name, begin.elapsed());
            Problem::new(Kind::Late, format!("no answer of model {name:?} within {taken:?}: allow more time"))
        })?;
        let outputs = outputs.unwrap_or_else(|_| Err(Failure::new(Status::Failed, PANICKED)));
        match outputs.map_err(|failure| Problem::of_status(failure.status, failure.text)) {
            // The dense half of another process may have begun with it.
            Err(problem) if problem.kind == Kind::Refused && Instant::now() >= deadline => {
                Err(Problem::new(Kind::Late, problem.text))
            }
            outputs => outputs,
        }
    }

    /// Turn outputs into a response, on the clock.
    pub(super) fn encode<R>(&self, encode: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        let encoded = encode();
        self.model.metrics.encode.observe(begin.elapsed());
        encoded
    }

    /// Count the request by its outcome.
    pub(super) fn end<R>(self, answered: &Result<R, Problem>) {
        let status =
            answered.as_ref().map_or_else(|problem| problem.kind.http_status(), |_| statistics::ANSWERED);
        self.open.end(status);
    }
}

/// The time that the parameter `timeout` of a request leaves, in microseconds.
pub(super) fn timeout(value: &Value) -> Result<Option<Duration>, Problem> {
    // Some clients send it as text. 0 means that there is none.
    let micros = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    match micros {
        Some(0) => Ok(None),
        Some(micros) => Ok(Some(Duration::from_micros(micros).min(TIMEOUT_MAX))),
        None if value.is_null() => Ok(None),
        None => Err(Problem::invalid(format!("timeout is {value}, must be a number of microseconds"))),
    }
}

/// The trace id of a `traceparent` header (W3C Trace Context), zeros where there is none.
pub(super) fn trace(headers: &HeaderMap) -> [u8; 16] {
    let id = headers.get("traceparent").and_then(|value| value.to_str().ok()?.split('-').nth(1));
    let number = id.filter(|id| id.len() == 32).and_then(|id| u128::from_str_radix(id, 16).ok());
    number.unwrap_or(0).to_be_bytes()
}
