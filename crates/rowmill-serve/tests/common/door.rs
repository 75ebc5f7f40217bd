//! A front door of one model, and plain clients of both protocols.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::Request;
use futures_util::FutureExt;
use futures_util::future::ready;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use prost::Message;
use rowmill_serve::*;
use rowmill_server::{Exposure, Server, bind_tcp};
use serde_json::{Value, json};
use tonic::Code;
use tonic::client::GrpcService;
use tonic::transport::{Channel, Endpoint};

use super::arena;
use super::dense::GENEROUS;
use super::inference::{InferParameter, infer_parameter::ParameterChoice};

/// Offsets for which the model gives no answer.
pub(crate) const REFUSED: i64 = -1001;
pub(crate) const PANICS: i64 = -1002;
/// An offset for which the model answers after 200 ms.
pub(crate) const LATE: i64 = -1003;

/// An offset for which the model refuses at the deadline.
pub(crate) const REFUSED_LATE: i64 = -1004;

type Seen = Option<([u8; 16], Duration)>;

/// A server of one model, `sums`: the sums of the rows of `values`, plus `offset`, and their number.
pub(crate) struct Door {
    pub(crate) server: Server,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: Channel,
    pub(crate) arena: Arena,
    /// Trace id and time left of the last request.
    pub(crate) seen: Arc<Mutex<Seen>>,
    /// Whether the model refuses requests before they are read.
    pub(crate) is_busy: Arc<AtomicBool>,
    metrics: Registry,
}

pub(crate) fn door() -> Door {
    door_with(GENEROUS)
}

fn spec(name: &str, dtype: DType, shape: &[Option<u64>]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, shape: shape.into(), per: Per::Item }
}

pub(crate) fn door_with(slo: Duration) -> Door {
    let (server, arena) = (Server::start(2).unwrap(), arena());
    let seen = Arc::new(Mutex::new(None));
    let last = Arc::clone(&seen);
    let is_busy = Arc::new(AtomicBool::new(false));
    let busy = Arc::clone(&is_busy);
    let model = Model {
        name: "sums".into(),
        version: "3".into(),
        inputs: vec![spec("values", DType::Float32, &[None, Some(2)]), spec("offset", DType::Int64, &[])],
        columns: vec![
            ColumnSpec { name: "price".into(), kind: ColumnKind::Number, per: Per::Item },
            ColumnSpec { name: "shop".into(), kind: ColumnKind::Id, per: Per::User },
        ],
        outputs: vec![spec("sum", DType::Float32, &[None]), spec("count", DType::UInt8, &[])],
        infer: Arc::new(move |ask: Ask| {
            *last.lock() = Some((ask.trace, ask.deadline.saturating_duration_since(Instant::now())));
            sums(ask).boxed()
        }),
        check_time: Arc::new(move |_, _| {
            let refusal = busy.load(Relaxed).then(|| Failure::new(Status::Late, "its deadline is in 5ms"));
            ready(refusal.map_or(Ok(()), Err)).boxed()
        }),
        loaded: Arc::new(true.into()),
        halves: Arc::default(),
        metrics: ModelMetrics::new("sums"),
    };
    let front_door = FrontDoor {
        arena: arena.clone(),
        models: vec![model],
        request_bytes_max: 1 << 20,
        parsed_bytes_max: 64 << 10,
        slo,
        is_ready: Arc::new(true.into()),
    };
    let mut metrics = Registry::default();
    let models = front_door.models.iter().map(|model| Arc::clone(&model.metrics)).collect();
    metrics.register_collector(Box::new(Exposition { models, arena: arena.clone() }));
    let listen = |routes: axum::Router| {
        let listener = {
            let _inside = server.handle().enter();
            bind_tcp("127.0.0.1:0", Exposure::Loopback).unwrap()
        };
        let address = listener.local_addr().unwrap();
        server.serve_http(listener, routes);
        address
    };
    let http = listen(front_door.clone().http_routes(server.drain()));
    let grpc = listen(front_door.grpc_routes(server.drain()));
    let grpc = {
        let _inside = server.handle().enter();
        Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect_lazy()
    };
    Door { server, http, grpc, arena, seen, is_busy, metrics }
}

/// The bytes of all columns, each as one sum.
fn bytes_of(columns: &[Column]) -> Tensor {
    let bytes: Vec<u8> = columns.iter().flat_map(|column| column.data.to_vec()).collect();
    let sums: Vec<u8> = bytes.iter().flat_map(|&byte| f32::from(byte).to_le_bytes()).collect();
    let shape = [bytes.len() as u64];
    Tensor::new(TensorName::Number(0), DType::Float32, &shape, Buffer::from(&sums[..]))
}

async fn sums(ask: Ask) -> Result<Vec<Tensor>, Failure> {
    let tensors = match ask.given {
        Given::Tensors(tensors) => tensors,
        Given::Columns(columns) => return Ok(vec![bytes_of(&columns)]),
    };
    assert!(tensors.iter().all(|tensor| tensor.data.as_ptr().addr().is_multiple_of(tensor.dtype.bytes())));
    let values: Vec<f32> =
        tensors[0].data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let offset = i64::from_le_bytes(tensors[1].data[..].try_into().unwrap());
    match offset {
        REFUSED => Err(Failure::new(Status::Late, "its deadline is in 3ms")),
        PANICS => panic!("a bug"),
        REFUSED_LATE => {
            std::thread::sleep(ask.deadline.saturating_duration_since(Instant::now()));
            Err(Failure::new(Status::Late, "its deadline has passed"))
        }
        LATE => {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(Vec::new())
        }
        _ => {
            let sums: Vec<u8> = sums_of(&values, offset).iter().flat_map(|sum| sum.to_le_bytes()).collect();
            let rows = (sums.len() / 4) as u64;
            let sums = Tensor::new(TensorName::Number(0), DType::Float32, &[rows], Buffer::from(&sums[..]));
            let count = Buffer::from(&[rows as u8][..]);
            let count = Tensor::new(TensorName::Number(1), DType::UInt8, &[], count);
            Ok(vec![sums, count])
        }
    }
}

/// What the model answers.
pub(crate) fn sums_of(values: &[f32], offset: i64) -> Vec<f32> {
    values.chunks(2).map(|row| row.iter().sum::<f32>() + offset as f32).collect()
}

/// A response over HTTP: status, headers as text, body.
pub(crate) struct Reply(pub(crate) u16, pub(crate) String, pub(crate) Vec<u8>);

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.2).unwrap()
    }

    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }
}

/// A response over gRPC: status, its text, and the message.
#[derive(Debug)]
pub(crate) struct GrpcReply(pub(crate) Code, pub(crate) String, pub(crate) Vec<u8>);

impl GrpcReply {
    pub(crate) fn message<M: Message + Default>(&self) -> M {
        assert_eq!(self.0, Code::Ok, "{}", self.1);
        M::decode(&self.2[5..]).unwrap()
    }
}

/// A message behind its prefix.
pub(crate) fn frame(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

impl Door {
    /// Send text and bytes over HTTP.
    pub(crate) fn send(&self, head: &str, body: &[u8]) -> Reply {
        self.exchange(head, body, false).expect("a response has a head")
    }

    /// The same; where it `ends`, nothing more will come. There may be no response to a body that is too short.
    pub(crate) fn exchange(&self, head: &str, body: &[u8], ends: bool) -> Option<Reply> {
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.set_read_timeout(Some(GENEROUS)).unwrap();
        stream
            .write_all(format!("{head}\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes())
            .unwrap();
        // The server may answer before it has read the body.
        let _ = stream.write_all(body);
        if ends {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        Some(Reply(head[9..12].parse().unwrap(), head, answer[end + 4..].to_vec()))
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1"), &[])
    }

    pub(crate) fn infer(&self, json: &Value, binary: &[u8]) -> Reply {
        let json = json.to_string();
        let body = [json.as_bytes(), binary].concat();
        let head = format!(
            "POST /v2/models/sums/infer HTTP/1.1\r\ncontent-length: {}\r\ninference-header-content-length: {}\r\n\
             traceparent: 00-0102030405060708090a0b0c0d0e0f10-0000000000000001-01",
            body.len(),
            json.len(),
        );
        self.send(&head, &body)
    }

    /// Make a call over gRPC with a body of any bytes.
    pub(crate) async fn call(&self, method: &str, headers: &[(&str, &str)], body: Body) -> GrpcReply {
        let mut request = Request::builder()
            .method("POST")
            .uri(format!("/inference.GRPCInferenceService/{method}"))
            .header("te", "trailers");
        if headers.iter().all(|(name, _)| *name != "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(tonic::body::Body::new(body)).unwrap();
        let mut channel = self.grpc.clone();
        std::future::poll_fn(|context| GrpcService::poll_ready(&mut channel, context)).await.unwrap();
        let response = match channel.call(request).await {
            Ok(response) => response,
            // The client keeps `grpc-timeout`, too.
            Err(error) => return GrpcReply(Code::DeadlineExceeded, error.to_string(), Vec::new()),
        };
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or(head.headers);
        let Some(status) = tonic::Status::from_header_map(&trailers) else {
            return GrpcReply(
                Code::Unknown,
                format!("HTTP status {}", head.status),
                body.to_bytes().to_vec(),
            );
        };
        GrpcReply(status.code(), status.message().into(), body.to_bytes().to_vec())
    }

    /// Ask over gRPC and wait for the reply.
    pub(crate) fn ask(&self, method: &str, message: &impl Message) -> GrpcReply {
        let body = Body::from(Bytes::from(frame(&message.encode_to_vec())));
        self.server.handle().block_on(self.call(method, &[], body))
    }

    /// A value of the metrics, as text.
    pub(crate) fn metric(&self, name: &str) -> Option<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).unwrap();
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.rsplit_once(' ').map(|(_, value)| value.into())
    }
}

/// A request as JSON.
pub(crate) fn request(data: &Value, offset: i64) -> Value {
    json!({ "id": "r1", "inputs": [
        { "name": "values", "datatype": "FP32", "shape": [2, 2], "data": data },
        { "name": "offset", "datatype": "INT64", "shape": [], "data": [offset] },
    ]})
}

pub(crate) fn timeout(micros: i64) -> (String, InferParameter) {
    ("timeout".into(), InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(micros)) })
}
