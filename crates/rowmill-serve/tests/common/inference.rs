//! Messages of the protocol, and requests of them.
#![allow(unreachable_pub, clippy::pedantic, clippy::enum_variant_names, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/inference.rs"));

use model_infer_request::InferInputTensor;

fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.into(),
        datatype: datatype.into(),
        shape: shape.into(),
        ..Default::default()
    }
}

/// A request with raw tensors.
pub(crate) fn raw_request(values: &[f32], offset: i64) -> ModelInferRequest {
    let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    ModelInferRequest {
        model_name: "sums".into(),
        id: "r1".into(),
        inputs: vec![input("values", "FP32", &[values.len() as i64 / 8, 2]), input("offset", "INT64", &[])],
        raw_input_contents: vec![values, offset.to_le_bytes().to_vec()],
        ..Default::default()
    }
}

/// The same with typed contents.
pub(crate) fn typed_request(values: &[f32], offset: i64) -> ModelInferRequest {
    let mut request = raw_request(values, offset);
    request.raw_input_contents.clear();
    request.inputs[0].contents =
        Some(InferTensorContents { fp32_contents: values.into(), ..Default::default() });
    request.inputs[1].contents =
        Some(InferTensorContents { int64_contents: vec![offset], ..Default::default() });
    request
}
