//! The HTTP protocol as a plain client sees it: requests as text and bytes over a socket.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use common::dense::{GENEROUS, until};
use common::door::{LATE, PANICS, REFUSED, REFUSED_LATE, door, door_with, request};
use serde_json::{Value, json};

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
    let late = door.infer(&request(&json!([1, 2, 3, 4]), REFUSED), &[]);
    assert_eq!((late.0, late.error()), (429, "its deadline is in 3ms".into()));
    let failed = door.infer(&request(&json!([1, 2, 3, 4]), PANICS), &[]);
    assert_eq!((failed.0, failed.error()), (500, "the model failed: see the worker's log".into()));
    let mut slow = request(&json!([1, 2, 3, 4]), LATE);
    slow["parameters"] = json!({ "timeout": "20000" });
    let slow = door.infer(&slow, &[]);
    assert_eq!(slow.0, 504);
    assert!(slow.error().starts_with("no answer of model \"sums\" within"), "{}", slow.error());
    // A refusal at the deadline may come from a dense half that has begun: the request may not be sent again.
    let mut late = request(&json!([1, 2, 3, 4]), REFUSED_LATE);
    late["parameters"] = json!({ "timeout": "5000" });
    let statuses: Vec<u16> = (0..20).map(|_| door.infer(&late, &[]).0).collect();
    assert_eq!(statuses, [504; 20]);
}

/// Requests with binary data on one connection.
#[test]
fn a_connection_goes_on_after_a_request_whose_data_were_not_read() {
    let door = door();
    let right = json!({ "inputs": [
        { "name": "values", "datatype": "FP32", "shape": [100_000, 2], "parameters": { "binary_data_size": 800_000 } },
        { "name": "offset", "datatype": "INT64", "shape": [], "parameters": { "binary_data_size": 8 } },
    ]});
    let mut stream = TcpStream::connect(door.http).unwrap();
    stream.set_read_timeout(Some(GENEROUS)).unwrap();
    let mut ask = |json: &str| {
        let head = format!(
            "POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\
             inference-header-content-length: {}\r\n\r\n",
            json.len() + 800_008,
            json.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(json.as_bytes()).unwrap();
        stream.write_all(&vec![0; 800_008]).unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).unwrap();
        let mut byte = [0];
        while !answer.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        let head = String::from_utf8(answer).unwrap().to_lowercase();
        let bytes = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
        let mut body = vec![0; bytes.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        (head[9..12].to_owned(), String::from_utf8_lossy(&body).into_owned())
    };
    door.is_busy.store(true, Relaxed);
    let late = json!({ "error": "its deadline is in 5ms" }).to_string();
    assert_eq!(ask(&right.to_string()), ("429".into(), late));
    door.is_busy.store(false, Relaxed);
    let mut wrong = right.clone();
    wrong["parameters"] = json!({ "timeout": "soon" });
    for json in [&wrong.to_string(), "{"] {
        assert_eq!(ask(json).0, "400", "{json}");
    }
    assert!(door.seen.lock().is_none());
    assert_eq!(ask(&right.to_string()).0, "200");
    assert!(door.seen.lock().is_some());
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
    let asking = |outputs: Value| {
        let mut json = good.clone();
        json["outputs"] = outputs;
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
        (with("/inputs/0/data", json!([1, 2, 3, 1e39])), 0, "a value of data is 1e+39, must be FP32"),
        (with("/inputs/0/data", json!([[1], [2, 3, 4]])), 0, "a list of data is [1], must be of 2 values"),
        (with("/inputs/0/data", json!(1)), 0, "input \"values\": data is 1, must be a list"),
        (with("/id", json!(5)), 0, "id is 5, must be text"),
        (with("/inputs/1/data", json!([1.5])), 0, "input \"offset\": a value of data is 1.5, must be INT64"),
        (with("/inputs", json!([good["inputs"][0]])), 0, "input \"offset\" is missing"),
        (with("/inputs/1", good["inputs"][0].clone()), 0, "input \"values\" occurs twice"),
        (good.clone(), 3, "3 bytes of binary data belong to no input"),
        (asking(json!([{ "name": "sum" }, { "name": "sum" }])), 0, "output \"sum\" occurs twice"),
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
            with("parameters", json!({"binary_data_size": 4})),
            "column \"price\": data is given beside binary_data_size, must be given alone",
        ),
        (
            json!([{"name": "price", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 3}}]),
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
