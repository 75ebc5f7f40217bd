//! The gRPC protocol as a client sees it that sends frames over a channel of tonic.

mod common;

use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use common::dense::until;
use common::door::{Door, GrpcReply, LATE, PANICS, REFUSED, door, door_with, frame, timeout};
use common::inference::model_infer_request::InferRequestedOutputTensor;
use common::inference::*;
use prost::Message;
use tonic::Code;

type Change = fn(&mut ModelInferRequest);

const VALUES: [f32; 4] = [1.5, 2.0, 3.0, 4.0];

fn infer(door: &Door, request: &ModelInferRequest) -> GrpcReply {
    door.ask("ModelInfer", request)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn the_server_tells_about_itself_and_its_models() {
    let door = door();
    assert!(door.ask("ServerLive", &ServerLiveRequest {}).message::<ServerLiveResponse>().live);
    assert!(door.ask("ServerReady", &ServerReadyRequest {}).message::<ServerReadyResponse>().ready);
    let server: ServerMetadataResponse = door.ask("ServerMetadata", &ServerMetadataRequest {}).message();
    assert_eq!((&*server.name, &*server.extensions[3]), ("rowmill", "statistics"));
    let named = |version: &str| ModelReadyRequest { name: "sums".into(), version: version.into() };
    for version in ["", "3"] {
        assert!(door.ask("ModelReady", &named(version)).message::<ModelReadyResponse>().ready);
    }
    let missing = door.ask("ModelReady", &named("4"));
    assert_eq!((missing.0, &*missing.1), (Code::NotFound, "model \"sums\" has version \"3\", not \"4\""));
    let metadata: ModelMetadataResponse = door.ask("ModelMetadata", &named("")).message();
    assert_eq!((&*metadata.inputs[0].datatype, &metadata.inputs[0].shape[..]), ("FP32", &[-1, 2][..]));
    assert_eq!((&*metadata.outputs[1].name, metadata.outputs[1].shape.len()), ("count", 0));
    let config = door.ask("ModelConfig", &named("")).message::<ModelConfigResponse>().config.unwrap();
    assert_eq!(
        (config.input[0].data_type(), config.output[1].data_type()),
        (DataType::TypeFp32, DataType::TypeUint8)
    );
    let streamed = door.ask("ModelStreamInfer", &raw_request(&VALUES, 0));
    assert_eq!(streamed.0, Code::Unimplemented);
    assert!(streamed.1.starts_with("unsupported: "), "{}", streamed.1);
}

#[test]
fn the_repository_loads_and_unloads_and_statistics_count() {
    let door = door();
    let state = |ready| -> Vec<String> {
        let asked = RepositoryIndexRequest { ready, ..Default::default() };
        let index: RepositoryIndexResponse = door.ask("RepositoryIndex", &asked).message();
        index.models.into_iter().map(|model| model.state).collect()
    };
    assert_eq!(infer(&door, &raw_request(&VALUES, 1)).0, Code::Ok);
    let unload = RepositoryModelUnloadRequest { model_name: "sums".into(), ..Default::default() };
    door.ask("RepositoryModelUnload", &unload).message::<RepositoryModelUnloadResponse>();
    assert_eq!((state(false), state(true)), (vec!["UNAVAILABLE".into()], vec![]));
    assert_eq!(infer(&door, &raw_request(&VALUES, 1)).0, Code::Unavailable);
    let mut load = RepositoryModelLoadRequest { model_name: "sums".into(), ..Default::default() };
    load.parameters.insert("config".into(), ModelRepositoryParameter::default());
    assert_eq!(door.ask("RepositoryModelLoad", &load).0, Code::Unimplemented);
    load.parameters.clear();
    door.ask("RepositoryModelLoad", &load).message::<RepositoryModelLoadResponse>();
    assert_eq!(state(true), ["READY"]);
    let statistics: ModelStatisticsResponse =
        door.ask("ModelStatistics", &ModelStatisticsRequest::default()).message();
    let counted = statistics.model_stats[0].inference_stats.unwrap();
    assert_eq!((counted.success.unwrap().count, counted.fail.unwrap().count), (1, 1));
}

#[test]
fn raw_and_typed_tensors_give_equal_answers_wherever_they_begin() {
    let door = door();
    for padding in 0..16 {
        for mut request in [raw_request(&VALUES, 10), typed_request(&VALUES, 10)] {
            request.id = "x".repeat(padding);
            let reply: ModelInferResponse = infer(&door, &request).message();
            assert_eq!((&*reply.model_name, &*reply.model_version, reply.id.len()), ("sums", "3", padding));
            assert_eq!((&*reply.outputs[0].name, &reply.outputs[0].shape[..]), ("sum", &[2][..]));
            assert_eq!(floats(&reply.raw_output_contents[0]), [13.5, 17.0]);
            assert_eq!(reply.raw_output_contents[1][..], [2]);
        }
    }
    let mut one = raw_request(&VALUES, 10);
    one.outputs.push(InferRequestedOutputTensor { name: "count".into(), ..Default::default() });
    let reply: ModelInferResponse = infer(&door, &one).message();
    assert_eq!((reply.outputs.len(), &reply.raw_output_contents[0][..]), (1, &[2][..]));
    until("memory returns", || door.arena.held_bytes() == 0);
}

#[test]
fn the_earlier_of_header_and_parameter_is_the_deadline() {
    let door = door();
    let left = |header: Option<&str>, micros: Option<i64>| {
        let mut request = raw_request(&VALUES, 0);
        request.parameters.extend(micros.map(timeout));
        let body = Body::from(frame(&request.encode_to_vec()));
        let trace = ("traceparent", "00-0102030405060708090a0b0c0d0e0f10-0000000000000001-01");
        let headers: Vec<_> =
            header.map(|value| ("grpc-timeout", value)).into_iter().chain([trace]).collect();
        let reply = door.server.handle().block_on(door.call("ModelInfer", &headers, body));
        assert_eq!(reply.0, Code::Ok, "{}", reply.1);
        let (trace, left) = door.seen.lock().unwrap();
        assert_eq!(trace, std::array::from_fn(|at| at as u8 + 1));
        left
    };
    let between = |left: Duration, seconds: u64| {
        assert!(left <= Duration::from_secs(seconds) && left > Duration::from_secs(seconds) / 2, "{left:?}");
    };
    between(left(None, None), 60);
    between(left(Some("40S"), None), 40);
    between(left(Some("40000m"), Some(20_000_000)), 20);
    between(left(Some("10S"), Some(20_000_000)), 10);
    between(left(Some("500H"), Some(0)), 3600);
    let mut request = raw_request(&VALUES, 0);
    request.parameters.extend([timeout(-5)]);
    let refused = infer(&door, &request);
    assert_eq!(
        (refused.0, refused.1.contains("timeout is -5, must be")),
        (Code::InvalidArgument, true),
        "{}",
        refused.1
    );
}

#[test]
fn refusals_failures_and_late_answers_have_their_status() {
    let door = door();
    let refused = infer(&door, &raw_request(&VALUES, REFUSED));
    assert_eq!((refused.0, &*refused.1), (Code::ResourceExhausted, "its deadline is in 3ms"));
    assert_eq!(infer(&door, &raw_request(&VALUES, PANICS)).0, Code::Internal);
    let mut late = raw_request(&VALUES, LATE);
    late.parameters.extend([timeout(20_000)]);
    let late = infer(&door, &late);
    assert_eq!(late.0, Code::DeadlineExceeded);
    assert!(late.1.starts_with("no answer of model \"sums\" within"), "{}", late.1);
    door.server.drain().start();
    assert!(!door.ask("ServerReady", &ServerReadyRequest {}).message::<ServerReadyResponse>().ready);
    assert_eq!(infer(&door, &raw_request(&VALUES, 0)).0, Code::Unavailable);
}

#[test]
fn errors_name_the_input_the_value_and_the_limit() {
    let door = door();
    let raw: [(Change, &str); 9] = [
        (
            |request| request.inputs[0].name = "vals".into(),
            "no input \"vals\", its inputs are [\"values\", \"offset\"]",
        ),
        (
            |request| request.inputs[0].datatype = "INT8".into(),
            "input \"values\": datatype is \"INT8\", must be FP32",
        ),
        (|request| request.inputs[0].shape = vec![2, 3], "input \"values\": shape is [2,3], must be [-1,2]"),
        (|request| request.inputs[0].shape[0] = -2, "shape is [-2,2]"),
        (|request| request.inputs[0].shape[0] = i64::MAX, "of a size that fits into memory"),
        (
            |request| request.raw_input_contents[1].clear(),
            "input \"offset\": the number of raw bytes is 0, must be 8",
        ),
        (|request| drop(request.raw_input_contents.pop()), "there are 1 raw_input_contents"),
        (
            |request| request.inputs[1].contents = Some(InferTensorContents::default()),
            "contents is given beside",
        ),
        (
            |request| {
                request.inputs[1] = request.inputs[0].clone();
                request.raw_input_contents[1] = request.raw_input_contents[0].clone();
            },
            "input \"values\" occurs twice",
        ),
    ];
    let typed: [(Change, &str); 5] = [
        (
            |request| {
                let output = || InferRequestedOutputTensor { name: "sum".into(), ..Default::default() };
                request.outputs = vec![output(), output()];
            },
            "output \"sum\" occurs twice",
        ),
        (
            |request| request.inputs[1].contents = None,
            "input \"offset\": the number of values is 0, must be 1",
        ),
        (
            |request| request.inputs[1].contents.as_mut().unwrap().int_contents.push(5),
            "int_contents with 1 values, must be int64_contents",
        ),
        (|request| drop(request.inputs.pop()), "input \"offset\" is missing"),
        (|request| request.model_version = "9".into(), ""),
    ];
    for (base, changes) in [(raw_request(&VALUES, 0), &raw[..]), (typed_request(&VALUES, 0), &typed[..])] {
        for (change, text) in changes {
            let mut request = base.clone();
            change(&mut request);
            let reply = infer(&door, &request);
            let code = if request.model_version.is_empty() { Code::InvalidArgument } else { Code::NotFound };
            assert_eq!(reply.0, code, "{}", reply.1);
            assert!(reply.1.contains(text), "{:?} lacks {text:?}", reply.1);
        }
    }
}

#[test]
fn limits_hold_and_memory_that_is_taken_refuses() {
    let door = door_with(Duration::from_millis(300));
    let large = infer(&door, &raw_request(&vec![1.0; 1 << 18], 0));
    assert_eq!(large.0, Code::ResourceExhausted);
    assert!(large.1.contains("the limit is 1048576"), "{}", large.1);
    let parsed = infer(&door, &typed_request(&vec![1.0; 1 << 15], 0));
    assert_eq!(
        (parsed.0, parsed.1.contains("the limit is 65536")),
        (Code::ResourceExhausted, true),
        "{}",
        parsed.1
    );
    assert_eq!(infer(&door, &raw_request(&vec![1.0; 200_000], 0)).0, Code::Ok);
    let all = door.arena.lease(door.arena.bytes()).unwrap();
    let refused = infer(&door, &raw_request(&VALUES, 0));
    assert!([Code::ResourceExhausted, Code::DeadlineExceeded].contains(&refused.0), "{refused:?}");
    drop(all);
    assert_eq!(infer(&door, &raw_request(&VALUES, 0)).0, Code::Ok);
}

#[test]
fn a_message_that_does_not_arrive_holds_memory_for_the_slo_at_most() {
    let door = door_with(Duration::from_millis(300));
    let request = frame(&raw_request(&VALUES, 0).encode_to_vec());
    let half = Bytes::copy_from_slice(&request[..request.len() / 2]);
    let unfinished = futures_util::stream::once(async { Ok::<_, std::io::Error>(half) });
    let body = Body::from_stream(futures_util::StreamExt::chain(unfinished, futures_util::stream::pending()));
    let began = Instant::now();
    let reply = door.server.handle().block_on(door.call("ModelInfer", &[("grpc-timeout", "1H")], body));
    assert_eq!(reply.0, Code::DeadlineExceeded, "{}", reply.1);
    assert!(began.elapsed() < Duration::from_mins(1));
    until("memory returns", || door.arena.held_bytes() == 0);
}

#[test]
fn spoiled_frames_are_refused() {
    let door = door();
    let good = frame(&raw_request(&VALUES, 0).encode_to_vec());
    let longer = [&good[..], &[7]].concat();
    let mut compressed = good.clone();
    compressed[0] = 1;
    for (bytes, code, text) in [
        (&good[..0], Code::InvalidArgument, "ends after 0 bytes"),
        (&good[..3], Code::InvalidArgument, "ends after 3 bytes"),
        (&good[..good.len() - 2], Code::InvalidArgument, "ends 2 bytes early"),
        (&longer, Code::InvalidArgument, "more than one message"),
        (&compressed, Code::Unimplemented, "compressed"),
    ] {
        let body = Body::from(Bytes::copy_from_slice(bytes));
        let reply = door.server.handle().block_on(door.call("ModelInfer", &[], body));
        assert_eq!((reply.0, reply.1.contains(text)), (code, true), "{}", reply.1);
    }
    until("memory returns", || door.arena.held_bytes() == 0);
}

#[test]
fn a_request_that_its_client_cancels_leaves_nothing() {
    let door = door();
    let request = frame(&raw_request(&VALUES, LATE).encode_to_vec());
    let half = Bytes::copy_from_slice(&request[..request.len() / 2]);
    // One waits for its answer, the other for the rest of its message.
    let unfinished = futures_util::stream::once(async { Ok::<_, std::io::Error>(half) });
    let unfinished = futures_util::StreamExt::chain(unfinished, futures_util::stream::pending());
    let open = || door.metric("rowmill_serve_open_requests{model=\"sums\"}");
    let cancel_once = |body: Body, has_come: &dyn Fn() -> bool| {
        let (cancel, cancelled) = tokio::sync::oneshot::channel::<()>();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                door.server.handle().block_on(async {
                    tokio::select! {
                        reply = door.call("ModelInfer", &[], body) => panic!("{reply:?}"),
                        _ = cancelled => (),
                    }
                });
            });
            until("the request has come", has_come);
            cancel.send(()).unwrap();
            call.join().unwrap();
        });
        until("memory returns", || door.arena.held_bytes() == 0);
        until("no request is open", || open().as_deref() == Some("0"));
    };
    cancel_once(Body::from(request.clone()), &|| open().as_deref() == Some("1"));
    cancel_once(Body::from_stream(unfinished), &|| door.arena.held_bytes() > 0);
    let given_up = door.metric("rowmill_serve_requests_total{model=\"sums\",status=\"499\"}");
    assert_eq!(given_up.as_deref(), Some("1"));
    assert_eq!(infer(&door, &raw_request(&VALUES, 0)).0, Code::Ok);
}

#[test]
fn raw_columns_and_top_k_are_those_of_http() {
    let door = door();
    let column = |name: &str, datatype: &str, contents| model_infer_request::InferInputTensor {
        name: name.into(),
        datatype: datatype.into(),
        shape: vec![2],
        contents: Some(contents),
        ..Default::default()
    };
    let texts = InferTensorContents { bytes_contents: vec![b"ab".into(), vec![]], ..Default::default() };
    let prices = InferTensorContents { fp32_contents: vec![f32::NAN, 1.0], ..Default::default() };
    let mut request = ModelInferRequest {
        model_name: "sums".into(),
        inputs: vec![column("shop", "BYTES", texts), column("price", "FP32", prices)],
        outputs: vec![model_infer_request::InferRequestedOutputTensor {
            name: "sum".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let expected: Vec<u8> =
        [&f32::NAN.to_le_bytes()[..], &1_f32.to_le_bytes(), &[2, 0, 0, 0, b'a', b'b', 0, 0, 0, 0]].concat();
    let as_floats: Vec<f32> = expected.iter().map(|&byte| byte.into()).collect();
    let reply: ModelInferResponse = infer(&door, &request).message();
    assert_eq!(floats(&reply.raw_output_contents[0]), as_floats);
    request.inputs.iter_mut().for_each(|input| input.contents = None);
    request.raw_input_contents = vec![expected[8..].into(), expected[..8].into()];
    let reply: ModelInferResponse = infer(&door, &request).message();
    assert_eq!(floats(&reply.raw_output_contents[0]), as_floats);
    request.inputs[0].shape = vec![3];
    request.raw_input_contents.clear();
    let refused = infer(&door, &request);
    assert_eq!(
        (refused.0, &*refused.1),
        (Code::InvalidArgument, "column \"shop\": the number of values is 0, must be 3")
    );

    let mut best = raw_request(&VALUES, 0);
    best.parameters.insert("top_k".into(), timeout(0).1);
    let refused = infer(&door, &best);
    assert_eq!(
        (refused.0, &*refused.1),
        (Code::InvalidArgument, "top_k is 0, must be a whole number from 1 on")
    );
    let config = ModelConfigRequest { name: "sums".into(), ..Default::default() };
    let config = door.ask("ModelConfig", &config).message::<ModelConfigResponse>().config.unwrap();
    assert!(config.parameters["raw_columns"].string_value.contains("\"shop\""));
}
