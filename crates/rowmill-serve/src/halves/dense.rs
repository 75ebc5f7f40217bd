//! The dense halves of a process: programs behind one listener.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use rowmill_server::Drain;

use super::signature::values_of;
use super::{Program, Signature, Task};
use crate::{Answers, Arena, Failure, Incoming, Limits, Listener, Reservation, Serving, Status, serve};

/// Connections of CPU halves at once.
const CONNECTIONS_MAX: usize = 1024;
/// Requests of one connection that wait for a reply.
const IN_FLIGHT_MAX: usize = 1024;
const NO_DENSE_HALF: &str = "the model of this program has no dense half";

/// A dense half that other processes ask.
#[derive(Clone, Debug)]
pub(crate) struct DenseHalf {
    /// Its signature.
    pub(crate) signature: Arc<Signature>,
    /// Where its requests wait.
    pub(crate) program: Program,
}

/// Answer requests to `halves`, by the numbers of their programs, until `drain` starts. A request has at most
/// `request_bytes_max` bytes.
pub(crate) async fn serve_dense(
    listener: Listener,
    arena: Arena,
    request_bytes_max: u64,
    drain: Drain,
    halves: HashMap<u64, DenseHalf>,
) {
    let serving = Serving {
        programs: halves.keys().copied().collect(),
        arena,
        limits: Limits { payload_bytes_max: request_bytes_max, ..Limits::default() },
        connections_max: CONNECTIONS_MAX,
        in_flight_max: IN_FLIGHT_MAX,
    };
    serve(listener, serving, drain, DenseHalves(halves)).await;
}

/// Dense halves by the numbers of their programs.
struct DenseHalves(HashMap<u64, DenseHalf>);

impl Answers for DenseHalves {
    type Place = Reservation<Task>;

    fn reserve(&self, program: u64, rows: u32, deadline: Instant) -> Result<Self::Place, Failure> {
        let half = self.0.get(&program).ok_or_else(|| Failure::new(Status::UnknownProgram, NO_DENSE_HALF))?;
        half.program.reserve(rows, deadline)
    }

    fn answer(&self, incoming: Incoming, place: Option<Self::Place>) {
        let Incoming { mut request, deadline, replier } = incoming;
        let half = self.0.get(&request.program);
        let Some((half, about)) = half.and_then(|half| Some((half, half.signature.half("dense")?))) else {
            return replier.fail(Status::UnknownProgram, NO_DENSE_HALF);
        };
        let checked = values_of(&about.inputs, request.tensors.clone())
            .and_then(|values| half.signature.check_crossing(&values));
        if let Err(failure) = checked {
            return replier.fail(failure.status, &failure.text);
        }
        request.tensors.sort_by_key(|tensor| match tensor.name {
            crate::TensorName::Number(number) => number,
            crate::TensorName::Text(_) => u16::MAX,
        });
        half.program.submit_of_peer(request.tensors, deadline, replier, place);
    }
}
