//! A received request, and the path of its reply.

use std::any::Any;
use std::time::Instant;

use super::outbox::Outbox;
use crate::Failure;
use crate::arena::Buffer;
use crate::messages::{DType, Kind, Message, SMALL_BYTES, Status, Tensor, TensorName};

/// A request to answer.
#[derive(Debug)]
pub struct Incoming {
    /// Its program, trace id and tensors.
    pub request: Message,
    /// When its sender stops waiting.
    pub deadline: Instant,
    /// Where its reply goes.
    pub replier: Replier,
}

/// Answers the requests of connections.
///
/// A place is what [`Self::reserve`] holds for a request that is still to come; it is dropped when the request is not sent, or
/// the connection ends.
pub trait Answers: Send + Sync + 'static {
    /// What a reservation holds.
    type Place: Send;

    /// Admit a request of `rows` to `program`.
    ///
    /// # Errors
    /// When it would be refused.
    fn reserve(&self, program: u64, rows: u32, deadline: Instant) -> Result<Self::Place, Failure>;

    /// Answer a request, which may have a place.
    fn answer(&self, incoming: Incoming, place: Option<Self::Place>);
}

/// A function of the request, which admits all.
impl<F: Fn(Incoming) + Send + Sync + 'static> Answers for F {
    type Place = ();

    fn reserve(&self, _program: u64, _rows: u32, _deadline: Instant) -> Result<(), Failure> {
        Ok(())
    }

    fn answer(&self, incoming: Incoming, _place: Option<()>) {
        self(incoming);
    }
}

/// Sends one reply. Dropped without one, it reports a failure, so that no request is left without an answer.
pub struct Replier {
    pub(super) id: u64,
    pub(super) trace: [u8; 16],
    pub(super) program: u64,
    pub(super) outbox: Outbox,
    /// Counts the request as open until its reply is written.
    pub(super) hold: Option<Box<dyn Any + Send>>,
}

impl Replier {
    /// Answer with `tensors`. Drop the request's tensors first: their release then travels with the reply.
    pub fn reply(mut self, tensors: Vec<Tensor>) {
        self.send(Kind::Reply, Status::Ok, tensors);
    }

    /// Answer that the request failed. A text beyond 4 KiB is cut.
    pub fn fail(mut self, status: Status, text: &str) {
        self.send_failure(status, text);
    }

    fn send_failure(&mut self, status: Status, text: &str) {
        self.send(Kind::Failure, status, vec![failure_text(text)]);
    }

    fn send(&mut self, kind: Kind, status: Status, tensors: Vec<Tensor>) {
        let Self { id, trace, program, .. } = *self;
        let time_left = std::time::Duration::ZERO;
        let message = Message { kind, id, trace, program, time_left, status, tensors };
        // Without a hold the request has been answered.
        if let Some(hold) = self.hold.take() {
            self.outbox.put(message, Some(hold));
        }
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        if self.hold.is_some() {
            self.send_failure(Status::Failed, "the request was dropped without a reply");
        }
    }
}

impl std::fmt::Debug for Replier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replier").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The tensor of a failure: its reason.
pub(super) fn failure_text(text: &str) -> Tensor {
    let end = (0..=text.len().min(SMALL_BYTES)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let data = Buffer::from(&text.as_bytes()[..end]);
    Tensor::new(TensorName::Number(0), DType::UInt8, &[data.len() as u64], data)
}

/// The reason of a failure.
pub(super) fn failure_reason(message: &Message) -> String {
    message
        .tensors
        .first()
        .map_or_else(String::new, |tensor| String::from_utf8_lossy(&tensor.data).into_owned())
}
