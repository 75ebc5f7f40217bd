//! A dense half in another process: requests, reserves, and refusals.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{Client, Failure, Reserved, Status, Tensor};

/// After a refusal, requests reserve a place at the dense half before their lookups for this long. Without one they are sent
/// at once, which costs one message less.
const CAUTION: Duration = Duration::from_secs(1);

/// A dense half in another process. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    client: Client,
    refused_at: Arc<Mutex<Option<Instant>>>,
}

impl Remote {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, refused_at: Arc::default() }
    }

    /// A place for a request of `rows`, if the dense half has refused one of late.
    ///
    /// # Errors
    /// When it would refuse this one.
    pub(super) async fn reserve(
        &self,
        rows: u32,
        trace: [u8; 16],
        deadline: Instant,
    ) -> Result<Option<Reserved>, Failure> {
        let is_calm = self.refused_at.lock().is_none_or(|at| at.elapsed() > CAUTION);
        if is_calm {
            return Ok(None);
        }
        let reserved = self.client.reserve(rows, trace, deadline).await;
        self.noted(reserved.map_err(Failure::from)).map(Some)
    }

    /// The outputs of a request.
    ///
    /// # Errors
    /// When the dense half refuses or fails, or no reply comes in time.
    pub(super) async fn call(
        &self,
        tensors: Vec<Tensor>,
        trace: [u8; 16],
        deadline: Instant,
        place: Option<Reserved>,
    ) -> Result<Vec<Tensor>, Failure> {
        let reply = self.client.call_in(place, tensors, trace, deadline).await;
        Ok(self.noted(reply.map_err(Failure::from))?.tensors)
    }

    /// Remember a refusal.
    fn noted<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        if result.as_ref().is_err_and(|failure| matches!(failure.status, Status::Late | Status::Full)) {
            *self.refused_at.lock() = Some(Instant::now());
        }
        result
    }
}
