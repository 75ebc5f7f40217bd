//! Requests over HTTP, with binary tensors.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::examples::Example;
use super::reply::{Reply, Verdict};
use super::target::Target;
use crate::Buffer;
use crate::front_door::datatype;
use crate::plan::Array;

/// Header that gives the size of the JSON part, where binary data follow.
const JSON_BYTES: &str = "inference-header-content-length";
/// Bytes of a reply at most.
const REPLY_BYTES_MAX: usize = 1 << 30;
/// Characters of an error that the report keeps.
const TEXT_MAX: usize = 300;

/// An encoded request.
#[derive(Clone, Debug)]
pub(super) struct HttpRequest {
    json_bytes: String,
    body: Bytes,
}

impl HttpRequest {
    /// Encode a request that must be answered within `timeout_us`. All outputs come back as binary data.
    pub(super) fn encode(example: &Example, timeout_us: u64) -> Self {
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
        Self { json_bytes, body: body.into() }
    }

    pub(super) fn bytes(&self) -> usize {
        self.body.len()
    }
}

/// A connection, which one request at a time uses. It is opened by the first request, and again after a failure.
#[derive(Debug)]
pub(super) struct HttpConnection {
    target: Arc<Target>,
    sender: Option<SendRequest<Body>>,
}

impl HttpConnection {
    pub(super) fn new(target: Arc<Target>) -> Self {
        Self { target, sender: None }
    }

    /// Send a request and wait for its reply. A call that is dropped closes the connection.
    pub(super) async fn ask(&mut self, request: &HttpRequest, reads_outputs: bool) -> Reply {
        let mut sender = match self.open().await {
            Ok(sender) => sender,
            Err(text) => return Reply::failed("unreachable", text),
        };
        let built = Request::post(format!("/v2/models/{}/infer", self.target.model))
            .header("host", &self.target.authority)
            .header("content-type", "application/octet-stream")
            .header("content-length", request.body.len())
            .header(JSON_BYTES, &request.json_bytes)
            .body(Body::from(request.body.clone()));
        let Ok(built) = built else {
            return Reply::failed("unreachable", "the address does not fit into a header");
        };
        let answered = async {
            let response = sender.send_request(built).await.map_err(|error| error.to_string())?;
            read(response, reads_outputs).await
        };
        match answered.await {
            Ok(reply) => {
                self.sender = Some(sender);
                reply
            }
            Err(text) => Reply::failed(
                "disconnected",
                format!("the connection to {} ended: {text}", self.target.authority),
            ),
        }
    }

    /// The open connection, or a new one. The server may have closed the open one since its last request.
    async fn open(&mut self) -> Result<SendRequest<Body>, String> {
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
        {
            return Ok(sender);
        }
        let authority = &self.target.authority;
        let wrong = |error: &dyn std::fmt::Display| format!("cannot connect to {authority}: {error}");
        let stream = TcpStream::connect(authority).await.map_err(|error| wrong(&error))?;
        stream.set_nodelay(true).map_err(|error| wrong(&error))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| wrong(&error))?;
        // Its errors are those of the request, too.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

async fn read(response: Response<Incoming>, reads_outputs: bool) -> Result<Reply, String> {
    let (head, body) = response.into_parts();
    let body = to_bytes(Body::new(body), REPLY_BYTES_MAX).await.map_err(|error| error.to_string())?;
    let verdict = match head.status {
        StatusCode::OK => Verdict::Answered,
        StatusCode::TOO_MANY_REQUESTS => Verdict::Refused,
        _ => Verdict::Failed,
    };
    let mut reply = Reply {
        verdict,
        status: head.status.as_u16().to_string(),
        text: String::new(),
        bytes: body.len(),
        outputs: None,
    };
    if verdict != Verdict::Answered {
        let json: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text =
            json["error"].as_str().map_or_else(|| String::from_utf8_lossy(&body).into_owned(), Into::into);
        reply.text = text.chars().take(TEXT_MAX).collect();
    } else if reads_outputs {
        let json_bytes = head.headers.get(JSON_BYTES).and_then(|value| value.to_str().ok()?.parse().ok());
        reply.outputs = Some(decode(&body, json_bytes.unwrap_or(body.len())).ok_or_else(|| {
            let text: String = String::from_utf8_lossy(&body).chars().take(TEXT_MAX).collect();
            format!("the answer cannot be read: {text}")
        }));
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
