//! The dense halves of a process: programs behind one listener.

use std::collections::HashMap;
use std::sync::Arc;

use rowmill_server::Drain;

use super::signature::values_of;
use super::{Program, Signature};
use crate::{Arena, Incoming, Limits, Listener, Serving, Status, serve};

/// Connections of CPU halves at once.
const CONNECTIONS_MAX: usize = 1024;
/// Requests of one connection that wait for a reply.
const IN_FLIGHT_MAX: usize = 1024;

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
    serve(listener, serving, drain, move |incoming| submit(&halves, incoming)).await;
}

fn submit(halves: &HashMap<u64, DenseHalf>, incoming: Incoming) {
    let Incoming { mut request, deadline, replier } = incoming;
    let half = halves.get(&request.program);
    let Some((half, about)) = half.and_then(|half| Some((half, half.signature.half("dense")?))) else {
        return replier.fail(Status::UnknownProgram, "the model of this program has no dense half");
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
    half.program.submit_of_peer(request.tensors, deadline, replier);
}
