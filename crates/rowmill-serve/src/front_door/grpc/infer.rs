//! The call `ModelInfer`: from the request message to the reply.

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use tokio::time::timeout_at;

use super::super::call::{Door, trace};
use super::super::datatype;
use super::super::outputs::Outputs;
use super::super::problem::Problem;
use super::frame::Incoming;
use super::messages::ModelInferResponse;
use super::messages::model_infer_response::InferOutputTensor;
use super::request::{Fitting, Request};
use super::split::Split;
use super::{Answered, timeout, version_of};
use crate::Tensor;

pub(super) async fn answer(door: &Door, headers: &HeaderMap, body: Body) -> Answered<ModelInferResponse> {
    let admitted = door.admit()?;
    let front_door = &door.front_door;
    let allowed = timeout::of_headers(headers)?;
    // Memory is leased before the request is read: no sender may hold it for longer than `slo`.
    let read_by = admitted.begin + allowed.map_or(front_door.slo, |time| time.min(front_door.slo));
    let read = async {
        let incoming = Incoming::of(body, front_door.request_bytes_max).await?;
        let tensors = front_door.models.iter().map(|model| model.inputs.len().max(model.columns.len()));
        let tensors_max = tensors.max().unwrap_or(0);
        let mut split = Split::new(front_door.parsed_bytes_max, tensors_max);
        let mut lease = front_door.arena.lease_by(split.target_bytes(incoming.bytes), read_by).await?;
        incoming.read(|piece| split.push(piece, &mut lease)).await?;
        Request::decode(&split, &lease.share())
    };
    let request = timeout_at(read_by.into(), read).await;
    let request = request.unwrap_or_else(|_| Err(Problem::slow(admitted.begin.elapsed())))?;
    let call = admitted.call(&request.message.model_name, version_of(&request.message.model_version))?;
    let answered = async {
        call.check_loaded()?;
        let Fitting { given, timeout, id, outputs, wanted } = request.fit(call.model)?;
        let timeout = timeout.into_iter().chain(allowed).min();
        let tensors = call.ask(given, outputs.top, timeout, trace(headers)).await?;
        let mut reply = call.encode(|| reply(&outputs, &wanted, &tensors))?;
        reply.model_name.clone_from(&call.model.name);
        reply.model_version.clone_from(&call.model.version);
        reply.id = id;
        Ok(reply)
    };
    let answered = answered.await;
    call.end(&answered);
    answered
}

/// The outputs of these numbers, raw.
fn reply(outputs: &Outputs<'_>, wanted: &[usize], tensors: &[Tensor]) -> Answered<ModelInferResponse> {
    let mut response = ModelInferResponse::default();
    for &number in wanted {
        let spec = &outputs.specs[number];
        let output = outputs.tensor(number, tensors)?;
        response.outputs.push(InferOutputTensor {
            name: spec.name.clone(),
            datatype: datatype::name(spec.dtype).into(),
            shape: output.shape.iter().map(|&size| size as i64).collect(),
        });
        // Copied once, into the frame.
        response.raw_output_contents.push(Bytes::from_owner(output.data.clone()));
    }
    Ok(response)
}
