//! The HTTP protocol as a plain client sees it: requests as text and bytes over a socket.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::arena;
use common::dense::{GENEROUS, until};
use parking_lot::Mutex;
use rowmill_serve::*;
use rowmill_server::{Exposure, Server, bind_tcp};
use rowmill_testkit::Rng64;
use serde_json::{Value, json};

type Seen = Option<([u8; 16], Duration)>;

/// A server of one model, `sums`: the sums of the rows of `values`, plus `offset`.
struct Door {
    server: Server,
    address: SocketAddr,
    arena: Arena,
    /// Trace id and time left of the last request.
    seen: Arc<Mutex<Seen>>,
}

fn spec(name: &str, dtype: DType, shape: &[Option<u64>]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, shape: shape.into(), per: Per::Item }
}

/// The bytes of all columns, each as one sum.
fn bytes_of(columns: &[Column]) -> Tensor {
    let bytes: Vec<u8> = columns.iter().flat_map(|column| column.data.to_vec()).collect();
    let sums: Vec<u8> = bytes.iter().flat_map(|&byte| f32::from(byte).to_le_bytes()).collect();
    let shape = [bytes.len() as u64];
    Tensor::new(TensorName::Number(0), DType::Float32, &shape, Buffer::from(&sums[..]))
}

fn door() -> Door {
    door_with(GENEROUS)
}

fn door_with(slo: Duration) -> Door {
    let (server, arena) = (Server::start(2).unwrap(), arena());
    let seen = Arc::new(Mutex::new(None));
    let last = Arc::clone(&seen);
    let infer = move |ask: Ask| {
        *last.lock() = Some((ask.trace, ask.deadline.saturating_duration_since(Instant::now())));
        let floats = |tensor: &Tensor| -> Vec<f32> {
            tensor.data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        let tensors = match ask.given {
            Given::Tensors(tensors) => tensors,
            Given::Columns(columns) => return ask.answer.reply(vec![bytes_of(&columns)]),
        };
        assert!(
            tensors.iter().all(|tensor| tensor.data.as_ptr().addr().is_multiple_of(tensor.dtype.bytes()))
        );
        let values = floats(&tensors[0]);
        let offset = i64::from_le_bytes(tensors[1].data[..].try_into().unwrap());
        match offset {
            -1 => ask.answer.fail(Status::Late, "its deadline is in 3ms".into()),
            -2 => drop(ask.answer),
            -3 => drop(std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(200));
                ask.answer.reply(Vec::new());
            })),
            _ => {
                let sums: Vec<u8> = values
                    .chunks(2)
                    .flat_map(|row| (row.iter().sum::<f32>() + offset as f32).to_le_bytes())
                    .collect();
                let rows = (sums.len() / 4) as u64;
                let sums =
                    Tensor::new(TensorName::Number(0), DType::Float32, &[rows], Buffer::from(&sums[..]));
                let count = Buffer::from(&[rows as u8][..]);
                let count = Tensor::new(TensorName::Number(1), DType::UInt8, &[], count);
                ask.answer.reply(vec![sums, count]);
            }
        }
    };
    let model = Model {
        name: "sums".into(),
        version: "3".into(),
        inputs: vec![spec("values", DType::Float32, &[None, Some(2)]), spec("offset", DType::Int64, &[])],
        columns: vec![
            ColumnSpec { name: "price".into(), kind: ColumnKind::Number, per: Per::Item },
            ColumnSpec { name: "shop".into(), kind: ColumnKind::Id, per: Per::User },
        ],
        outputs: vec![spec("sum", DType::Float32, &[None]), spec("count", DType::UInt8, &[])],
        infer: Arc::new(infer),
        loaded: Arc::new(true.into()),
        halves: Arc::default(),
    };
    let front_door = FrontDoor {
        arena: arena.clone(),
        models: vec![model],
        request_bytes_max: 1 << 20,
        json_bytes_max: 64 << 10,
        slo,
        is_ready: Arc::new(true.into()),
        statistics: Statistics::default(),
    };
    let listener = {
        let _inside = server.handle().enter();
        bind_tcp("127.0.0.1:0", Exposure::Loopback).unwrap()
    };
    let address = listener.local_addr().unwrap();
    server.serve_http(listener, front_door.http_routes(server.drain()));
    Door { server, address, arena, seen }
}

/// A response: status, headers as text, body.
struct Reply(u16, String, Vec<u8>);

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.2).unwrap()
    }

    fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }
}

impl Door {
    fn send(&self, head: &str, body: &[u8]) -> Reply {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(GENEROUS)).unwrap();
        stream
            .write_all(format!("{head}\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes())
            .unwrap();
        // The server may answer before it has read the body.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a response has a head");
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        Reply(head[9..12].parse().unwrap(), head, answer[end + 4..].to_vec())
    }

    fn get(&self, path: &str) -> Reply {
        self.send(&format!("GET {path} HTTP/1.1"), &[])
    }

    fn infer(&self, json: &Value, binary: &[u8]) -> Reply {
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
}

fn request(data: &Value, offset: i64) -> Value {
    json!({ "id": "r1", "inputs": [
        { "name": "values", "datatype": "FP32", "shape": [2, 2], "data": data },
        { "name": "offset", "datatype": "INT64", "shape": [], "data": [offset] },
    ]})
}

#[test]
fn health_and_metadata_are_those_of_the_protocol() {
    let door = door();
    for path in
        ["/v2/health/live", "/v2/health/ready", "/v2/models/sums/ready", "/v2/models/sums/versions/3/ready"]
    {
        assert_eq!(door.get(path).0, 200, "{path}");
    }
    assert_eq!(
        door.get("/v2").json()["extensions"],
        json!(["binary_tensor_data", "model_configuration", "model_repository", "statistics"])
    );
    let metadata = door.get("/v2/models/sums").json();
    assert_eq!(metadata["inputs"][0], json!({ "name": "values", "datatype": "FP32", "shape": [-1, 2] }));
    assert_eq!(metadata["outputs"][1], json!({ "name": "count", "datatype": "UINT8", "shape": [] }));
    let missing = door.get("/v2/models/other");
    assert_eq!((missing.0, missing.error()), (404, "no model \"other\", this server has [\"sums\"]".into()));
    assert_eq!(door.get("/v2/models/sums/versions/4").0, 404);
    door.server.drain().start();
    assert_eq!(door.get("/v2/health/live").0, 200);
    assert_eq!(door.get("/v2/health/ready").0, 503);
    let refused = door.infer(&request(&json!([1, 2, 3, 4]), 0), &[]);
    assert_eq!(refused.0, 503);
}

#[test]
fn json_and_binary_tensors_give_equal_answers() {
    let door = door();
    for data in [json!([1.5, 2, 3, 4]), json!([[1.5, 2], [3, 4]])] {
        let reply = door.infer(&request(&data, 10), &[]);
        let expected = json!({ "id": "r1", "model_name": "sums", "model_version": "3", "outputs": [
            { "name": "sum", "datatype": "FP32", "shape": [2], "data": [13.5, 17.0] },
            { "name": "count", "datatype": "UINT8", "shape": [], "data": [2] },
        ]});
        assert_eq!((reply.0, reply.json()), (200, expected));
    }
    let (trace, left) = door.seen.lock().unwrap();
    assert_eq!(trace, std::array::from_fn(|at| at as u8 + 1));
    assert!(left > GENEROUS / 2);

    // The JSON part has every length modulo 64, so that inputs begin everywhere.
    for padding in 0..64 {
        let json = json!({ "id": "x".repeat(padding), "inputs": [
            { "name": "offset", "datatype": "INT64", "shape": [], "parameters": { "binary_data_size": 8 } },
            { "name": "values", "datatype": "FP32", "shape": [1, 2], "parameters": { "binary_data_size": 8 } },
        ], "outputs": [{ "name": "sum", "parameters": { "binary_data": true } }],
            "parameters": { "timeout": 30_000_000 } });
        let binary = [10_i64.to_le_bytes(), [0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]].concat();
        let reply = door.infer(&json, &binary);
        assert_eq!(reply.0, 200);
        let (head, scores) = reply.2.split_at(reply.2.len() - 4);
        assert!(reply.1.contains(&format!("inference-header-content-length: {}", head.len())), "{}", reply.1);
        assert_eq!(scores, 13_f32.to_le_bytes());
        let head: Value = serde_json::from_slice(head).unwrap();
        assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], 4);
        assert_eq!(head["outputs"].as_array().unwrap().len(), 1);
        assert!(door.seen.lock().unwrap().1 <= Duration::from_secs(30));
    }
    until("memory returns", || door.arena.held_bytes() == 0);
}

#[test]
fn refusals_failures_and_late_answers_have_their_status() {
    let door = door();
    let late = door.infer(&request(&json!([1, 2, 3, 4]), -1), &[]);
    assert_eq!((late.0, late.error()), (429, "its deadline is in 3ms".into()));
    let dropped = door.infer(&request(&json!([1, 2, 3, 4]), -2), &[]);
    assert_eq!((dropped.0, dropped.error()), (500, "the model dropped the request without an answer".into()));
    let mut slow = request(&json!([1, 2, 3, 4]), -3);
    slow["parameters"] = json!({ "timeout": "20000" });
    let slow = door.infer(&slow, &[]);
    assert_eq!(slow.0, 504);
    assert!(slow.error().starts_with("no answer of model \"sums\" within"), "{}", slow.error());
}

#[test]
fn a_body_that_does_not_arrive_ends_with_the_deadline() {
    let door = door_with(Duration::from_millis(30));
    let reply = door.send("POST /v2/models/sums/infer HTTP/1.1\r\ncontent-length: 100", b"{");
    assert_eq!((reply.0, reply.error()), (408, "the body did not arrive within 30ms".into()));
    until("memory returns", || door.arena.held_bytes() == 0);
}

#[test]
fn errors_name_the_input_the_value_and_the_limit() {
    let door = door();
    let good = request(&json!([1, 2, 3, 4]), 0);
    let with = |path: &str, value: Value| {
        let mut json = good.clone();
        *json.pointer_mut(path).unwrap() = value;
        json
    };
    for (json, binary, text) in [
        (with("/inputs", json!(5)), 0, "inputs must be a list"),
        (
            with("/inputs/0/name", json!("vals")),
            0,
            "no input \"vals\", its inputs are [\"values\", \"offset\"]",
        ),
        (with("/inputs/1/name", json!("values")), 0, "input \"values\": datatype is \"INT64\", must be FP32"),
        (with("/inputs/0/shape", json!([2, 3])), 0, "input \"values\": shape is [2,3], must be [-1,2]"),
        (with("/inputs/0/shape", json!([-2, 2])), 0, "shape is [-2,2]"),
        (with("/inputs/0/shape", json!([u64::MAX, 2])), 0, "of a size that fits into memory"),
        (with("/inputs/0/data", json!([1, 2, 3])), 0, "the number of values is 3, must be 4"),
        (with("/inputs/0/data", json!([1, 2, 3, "four"])), 0, "a value of data is \"four\", must be FP32"),
        (with("/inputs/1/data", json!([1.5])), 0, "input \"offset\": a value of data is 1.5, must be INT64"),
        (with("/inputs", json!([good["inputs"][0]])), 0, "input \"offset\" is missing"),
        (with("/inputs/1", good["inputs"][0].clone()), 0, "input \"values\" occurs twice"),
        (good.clone(), 3, "3 bytes of binary data belong to no input"),
    ] {
        let reply = door.infer(&json, &vec![0; binary]);
        assert_eq!(reply.0, 400, "{text}");
        assert!(reply.error().contains(text), "{:?} lacks {text:?}", reply.error());
    }
    let head = "POST /v2/models/sums/infer HTTP/1.1";
    for (head, status, text) in [
        (head.to_owned(), 411, "content-length"),
        (
            format!("{head}\r\ncontent-length: 2000000"),
            413,
            "the body has 2000000 bytes, the limit is 1048576",
        ),
        (
            format!("{head}\r\ncontent-length: 70000"),
            413,
            "the JSON part has 70000 bytes, the limit is 65536",
        ),
        (
            format!("{head}\r\ncontent-length: 5\r\ninference-header-content-length: 6"),
            400,
            "the body has 5 bytes",
        ),
        (
            format!("{head}\r\ncontent-length: 5\r\ninference-header-content-length: x"),
            400,
            "must be a number",
        ),
    ] {
        let reply = door.send(&head, b"");
        assert_eq!(reply.0, status, "{text}");
        assert!(reply.error().contains(text), "{:?} lacks {text:?}", reply.error());
    }
}

#[test]
fn malformed_requests_get_answers_and_leak_nothing() {
    let door = door();
    let mut rng = Rng64::new(7);
    let good = request(&json!([1, 2, 3, 4]), 0).to_string().into_bytes();
    let mut accepted = 0;
    for _ in 0..1000 {
        let mut body = good.clone();
        for _ in 0..=rng.below(2) {
            let at = rng.below(body.len() as u64) as usize;
            match rng.below(3) {
                0 => body[at] = b"0123456789[]{}\",:-e"[rng.below(19) as usize],
                1 => drop(body.remove(at)),
                _ => body[at] = rng.next_u64() as u8,
            }
        }
        let head = format!("POST /v2/models/sums/infer HTTP/1.1\r\ncontent-length: {}", body.len());
        let status = door.send(&head, &body).0;
        assert!([200, 400, 429, 500].contains(&status), "{status} {}", String::from_utf8_lossy(&body));
        accepted += usize::from(status == 200);
    }
    assert!((10..900).contains(&accepted), "changes of every kind: {accepted} accepted");
    until("memory returns", || door.arena.held_bytes() == 0);
}

#[test]
fn raw_columns_come_as_json_and_as_binary_data() {
    let door = door();
    let sums = json!([{"name": "sum"}]);
    let listed = json!({
        "inputs": [
            {"name": "shop", "datatype": "BYTES", "shape": [2, 1], "data": ["ab", null]},
            {"name": "price", "datatype": "FP32", "shape": [2], "data": [null, 1.0]},
        ],
        "outputs": sums,
    });
    let expected: Vec<u8> =
        [&f32::NAN.to_le_bytes()[..], &1_f32.to_le_bytes(), &[2, 0, 0, 0, b'a', b'b', 0, 0, 0, 0]].concat();
    let found = door.infer(&listed, &[]).json();
    let as_floats: Vec<f64> = expected.iter().map(|&byte| byte.into()).collect();
    assert_eq!(found["outputs"][0]["data"], json!(as_floats));
    let sized = |bytes: usize| json!({"binary_data_size": bytes});
    let binary = json!({
        "inputs": [
            {"name": "price", "datatype": "FP32", "shape": [2], "parameters": sized(8)},
            {"name": "shop", "datatype": "BYTES", "shape": [2], "parameters": sized(10)},
        ],
        "outputs": sums,
    });
    assert_eq!(door.infer(&binary, &expected).json()["outputs"][0]["data"], json!(as_floats));
}

#[test]
fn wrong_columns_are_refused_with_the_reason() {
    let door = door();
    let price = json!({"name": "price", "datatype": "FP32", "shape": [1], "data": [1.0]});
    let shop = json!({"name": "shop", "datatype": "INT64", "shape": [1], "data": [1]});
    let offset = json!({"name": "offset", "datatype": "INT64", "shape": [], "data": [1]});
    let with = |key: &str, value: Value| {
        let mut changed = price.clone();
        changed[key] = value;
        json!([changed, shop])
    };
    for (inputs, expected) in [
        (json!([price]), "column \"shop\" is missing"),
        (json!([price, price, shop]), "column \"price\" occurs twice"),
        (
            json!([price, shop, offset]),
            "the request has input \"offset\" and raw column \"price\": send either all inputs or all columns",
        ),
        (
            json!([{"name": "x"}]),
            "its inputs are [\"values\", \"offset\"], its raw columns [\"price\", \"shop\"]",
        ),
        (
            with("datatype", json!("BYTES")),
            "column \"price\": datatype is \"BYTES\", must be FP32 or FP64 or INT64 or INT32",
        ),
        (with("shape", json!([1, 2])), "column \"price\": shape is [1,2], must be [-1]"),
        (with("shape", json!([3])), "column \"price\": the number of values is 1, must be 3"),
        (with("data", json!(["x"])), "column \"price\": a value of data is \"x\", must be FP32"),
        (
            with("parameters", json!({"binary_data_size": 3})),
            "column \"price\": binary_data_size is 3, must be 4 for its shape and at most 0",
        ),
    ] {
        let reply = door.infer(&json!({ "inputs": inputs }), &[]);
        assert_eq!(reply.0, 400);
        assert!(reply.error().contains(expected), "{}", reply.error());
    }
}

#[test]
fn top_k_takes_a_count_and_the_name_of_an_output() {
    let door = door();
    let inputs = json!([{"name": "values", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},
        {"name": "offset", "datatype": "INT64", "shape": [], "data": [1]}]);
    for (parameters, expected) in [
        (json!({"top_k": 0, "top_k_output": "sum"}), "top_k is 0, must be a whole number from 1 on"),
        (json!({"top_k": 1.5, "top_k_output": "sum"}), "top_k is 1.5"),
        (json!({"top_k": 2}), "top_k_output is null, must name one of the outputs [\"sum\", \"count\"]"),
        (json!({"top_k": 2, "top_k_output": "x"}), "has no output \"x\""),
        (json!({"top_k_output": "sum"}), "top_k_output is \"sum\", but top_k is not given"),
    ] {
        let reply = door.infer(&json!({ "inputs": inputs, "parameters": parameters }), &[]);
        assert_eq!(reply.0, 400);
        assert!(reply.error().contains(expected), "{}", reply.error());
    }
}

#[test]
fn the_configuration_lists_raw_columns() {
    let config = door().get("/v2/models/sums/config").json();
    let columns = config["parameters"]["raw_columns"]["string_value"].as_str().unwrap();
    let columns: Value = serde_json::from_str(columns).unwrap();
    assert_eq!(
        columns[1],
        json!({"name": "shop", "kind": "id", "datatypes": ["INT64", "BYTES"], "per": "user"})
    );
    assert_eq!(config["parameters"]["user_inputs"]["string_value"], "[]");
}
