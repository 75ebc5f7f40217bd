//! Requests and replies over gRPC, with raw tensors.

use std::collections::HashMap;

use axum::body::Bytes;
use axum::http::Response;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use prost::Message;
use tonic::{Code, Status};

use super::connection::{Encoded, REPLY_BYTES_MAX};
use super::examples::Example;
use super::reply::{Reply, Verdict};
use crate::Buffer;
use crate::front_door::datatype;
use crate::front_door::grpc::messages::infer_parameter::ParameterChoice;
use crate::front_door::grpc::messages::model_infer_request::InferInputTensor;
use crate::front_door::grpc::messages::{InferParameter, ModelInferRequest, ModelInferResponse};
use crate::plan::Array;

/// Bytes before a message: whether it is compressed, and its length in big-endian order.
const PREFIX_BYTES: usize = 5;

/// Encode a request that must be answered within `timeout_us`.
pub(super) fn encode(example: &Example, model: &str, timeout_us: u64) -> Encoded {
    let timeout =
        InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(timeout_us.cast_signed())) };
    let inputs = example.inputs.iter().map(|input| InferInputTensor {
        name: input.name.clone(),
        datatype: datatype::name(input.dtype).into(),
        shape: input.shape.iter().map(|&size| size as i64).collect(),
        ..InferInputTensor::default()
    });
    let request = ModelInferRequest {
        model_name: model.into(),
        parameters: HashMap::from([("timeout".into(), timeout)]),
        inputs: inputs.collect(),
        raw_input_contents: example.inputs.iter().map(|input| input.data.to_vec()).collect(),
        ..ModelInferRequest::default()
    };
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let body = [&[0][..], &length.to_be_bytes(), &message].concat();
    let headers = vec![("content-type", "application/grpc".into()), ("te", "trailers".into())];
    Encoded { path: "/inference.GRPCInferenceService/ModelInfer".into(), headers, body: body.into() }
}

/// Read a reply, and its outputs where the run compares them.
pub(super) async fn read(response: Response<Incoming>, reads_outputs: bool) -> Result<Reply, String> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, REPLY_BYTES_MAX).collect().await.map_err(|error| error.to_string())?;
    // A reply without a message has its status in the header.
    let status =
        body.trailers().and_then(Status::from_header_map).or_else(|| Status::from_header_map(&head.headers));
    let status =
        status.ok_or_else(|| format!("a reply with HTTP status {} has no status of gRPC", head.status))?;
    let body = body.to_bytes();
    let verdict = match status.code() {
        Code::Ok => Verdict::Answered,
        Code::ResourceExhausted => Verdict::Refused,
        Code::DeadlineExceeded => Verdict::Expired,
        _ => Verdict::Failed,
    };
    let mut reply = Reply::new(verdict, &name(status.code()), body.len());
    if verdict != Verdict::Answered {
        reply.explain(status.message());
    } else if reads_outputs {
        reply.outputs = Some(decode(&body).ok_or_else(|| "the answer does not follow the protocol".into()));
    }
    Ok(reply)
}

/// The name of a status as the specification of gRPC has it, such as `RESOURCE_EXHAUSTED`.
fn name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// The outputs of a reply in their order; `None` where it does not follow the protocol.
fn decode(body: &Bytes) -> Option<Vec<Array>> {
    let reply = ModelInferResponse::decode(body.get(PREFIX_BYTES..)?).ok()?;
    if reply.outputs.len() != reply.raw_output_contents.len() {
        return None;
    }
    let outputs = reply.outputs.iter().zip(&reply.raw_output_contents).map(|(output, data)| {
        let dtype = datatype::named(&output.datatype)?;
        let shape: Vec<usize> =
            output.shape.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<_>>()?;
        let bytes = shape.iter().try_fold(dtype.bytes(), |bytes, &size| bytes.checked_mul(size))?;
        (data.len() == bytes).then(|| Array { dtype, shape, data: Buffer::from(&data[..]) })
    });
    outputs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front_door::grpc::messages::model_infer_response::InferOutputTensor;

    #[test]
    fn outputs_are_read_from_raw_contents() {
        let output = |datatype: &str, shape: &[i64]| InferOutputTensor {
            datatype: datatype.into(),
            shape: shape.into(),
            ..InferOutputTensor::default()
        };
        let read = |outputs: Vec<InferOutputTensor>, raw: &[&'static [u8]]| {
            let raw_output_contents = raw.iter().map(|&bytes| Bytes::from_static(bytes)).collect();
            let reply = ModelInferResponse { outputs, raw_output_contents, ..ModelInferResponse::default() };
            decode(&[&[0; PREFIX_BYTES][..], &reply.encode_to_vec()].concat().into())
        };
        let outputs = read(vec![output("INT8", &[1, 2]), output("BOOL", &[])], &[&[3, 252], &[1]]).unwrap();
        let numbers: Vec<Vec<f64>> = outputs.iter().map(Array::to_f64).collect();
        assert_eq!(numbers, [vec![3.0, -4.0], vec![1.0]]);
        assert!(read(vec![output("INT8", &[3])], &[&[3, 252]]).is_none(), "too short");
        assert!(read(vec![output("INT8", &[-1])], &[&[3]]).is_none());
        assert!(read(vec![output("INT8", &[1])], &[]).is_none(), "no contents");
        assert!(decode(&Bytes::from_static(&[0, 0])).is_none());
    }

    #[test]
    fn statuses_have_the_names_of_the_specification() {
        assert_eq!(name(Code::ResourceExhausted), "RESOURCE_EXHAUSTED");
        assert_eq!(name(Code::Ok), "OK");
    }
}
