//! Requests and replies over HTTP, with binary tensors.

use axum::body::{Body, to_bytes};
use axum::http::{Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::connection::{Encoded, REPLY_BYTES_MAX};
use super::examples::Example;
use super::reply::{Reply, Verdict};
use crate::Buffer;
use crate::front_door::datatype;
use crate::plan::Array;

/// Header that gives the size of the JSON part, where binary data follow.
const JSON_BYTES: &str = "inference-header-content-length";

/// Encode a request that must be answered within `timeout_us`. All outputs come back as binary data.
pub(super) fn encode(example: &Example, model: &str, timeout_us: u64) -> Encoded {
    let inputs: Vec<Value> = example
        .inputs
        .iter()
        .map(|input| {
            json!({
                "name": input.name,
                "datatype": datatype::name(input.dtype),
                "shape": input.shape,
                "parameters": { "binary_data_size": input.data.len() },
            })
        })
        .collect();
    let json =
        json!({ "inputs": inputs, "parameters": { "binary_data_output": true, "timeout": timeout_us } });
    let mut body = json.to_string().into_bytes();
    let json_bytes = body.len().to_string();
    for input in &example.inputs {
        body.extend_from_slice(&input.data);
    }
    let headers = vec![("content-type", "application/octet-stream".into()), (JSON_BYTES, json_bytes)];
    Encoded { path: format!("/v2/models/{model}/infer"), headers, body: body.into() }
}

/// Read a reply, and its outputs where the run compares them.
pub(super) async fn read(response: Response<Incoming>, reads_outputs: bool) -> Result<Reply, String> {
    let (head, body) = response.into_parts();
    // Its status is 200 even where the call failed.
    if head.headers.get("content-type").is_some_and(|found| found.as_bytes().starts_with(b"application/grpc"))
    {
        return Err("the server answers in gRPC: ask it at grpc://HOST:PORT".into());
    }
    let body = to_bytes(Body::new(body), REPLY_BYTES_MAX).await.map_err(|error| error.to_string())?;
    let verdict = match head.status {
        StatusCode::OK => Verdict::Answered,
        StatusCode::TOO_MANY_REQUESTS => Verdict::Refused,
        StatusCode::GATEWAY_TIMEOUT => Verdict::Expired,
        _ => Verdict::Failed,
    };
    let mut reply = Reply::new(verdict, head.status.as_str(), body.len());
    if verdict != Verdict::Answered {
        let json: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text =
            json["error"].as_str().map_or_else(|| String::from_utf8_lossy(&body).into_owned(), Into::into);
        reply.explain(&text);
    } else if reads_outputs {
        let json_bytes = head.headers.get(JSON_BYTES).and_then(|value| value.to_str().ok()?.parse().ok());
        let outputs = decode(&body, json_bytes.unwrap_or(body.len()));
        reply.outputs = Some(outputs.ok_or_else(|| "the answer does not follow the protocol".into()));
    }
    Ok(reply)
}

/// The outputs of a reply in their order; `None` where it does not follow the protocol.
fn decode(body: &[u8], json_bytes: usize) -> Option<Vec<Array>> {
    let (json, mut binary) = body.split_at_checked(json_bytes)?;
    let json: Value = serde_json::from_slice(json).ok()?;
    let outputs = json["outputs"].as_array()?.iter().map(|output| {
        let dtype = datatype::named(output["datatype"].as_str()?)?;
        let sizes = output["shape"].as_array()?;
        let shape: Vec<usize> =
            sizes.iter().map(|size| usize::try_from(size.as_u64()?).ok()).collect::<Option<_>>()?;
        let bytes = shape.iter().try_fold(dtype.bytes(), |bytes, &size| bytes.checked_mul(size))?;
        if output["parameters"]["binary_data_size"].as_u64() != Some(bytes as u64) {
            return None;
        }
        let (data, rest) = binary.split_at_checked(bytes)?;
        binary = rest;
        Some(Array { dtype, shape, data: Buffer::from(data) })
    });
    outputs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_read_from_binary_data() {
        let json = json!({ "outputs": [
            { "name": "a", "datatype": "FP32", "shape": [2], "parameters": { "binary_data_size": 8 } },
            { "name": "b", "datatype": "INT8", "shape": [1, 2], "parameters": { "binary_data_size": 2 } },
            { "name": "c", "datatype": "BOOL", "shape": [], "parameters": { "binary_data_size": 1 } },
        ]})
        .to_string();
        let values = [&1.5_f32.to_le_bytes()[..], &2_f32.to_le_bytes(), &[3, 252, 1]].concat();
        let body = [json.as_bytes(), &values].concat();
        let outputs = decode(&body, json.len()).unwrap();
        let numbers: Vec<Vec<f64>> = outputs.iter().map(Array::to_f64).collect();
        assert_eq!(numbers, [vec![1.5, 2.0], vec![3.0, -4.0], vec![1.0]]);
        assert_eq!(outputs[1].shape, [1, 2]);
        assert!(decode(&body[..body.len() - 1], json.len()).is_none(), "too short");
        assert!(decode(&body, body.len() + 1).is_none());
        assert!(decode(b"{}", 2).is_none());
        let text = json.replace("\"binary_data_size\":2", "\"binary_data_size\":3");
        assert!(decode(&[text.as_bytes(), &values].concat(), text.len()).is_none());
    }
}
