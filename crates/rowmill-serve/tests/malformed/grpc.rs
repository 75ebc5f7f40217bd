//! Changed requests over gRPC.

use axum::body::Body;
use futures_util::StreamExt;
use prost::Message;
use rowmill_testkit::Rng64;
use tonic::Code;

use crate::common::dense::GENEROUS;
use crate::common::door::{Door, GrpcReply, door_with, frame, timeout};
use crate::common::inference::infer_parameter::ParameterChoice;
use crate::common::inference::model_infer_request::InferRequestedOutputTensor;
use crate::common::inference::*;
use crate::{Meaning, Output, REQUESTS, nothing_is_left, seed};

/// Requests at once.
const OPEN: usize = 16;
const VALUES: [f32; 4] = [1.5, 2.0, 3.0, 4.0];

/// A request as it is sent.
#[derive(Clone, Debug, Default)]
struct Sent {
    body: Vec<u8>,
    /// A header in addition, or in place of another.
    header: Option<(&'static str, &'static str)>,
    /// What a refusal must name.
    about: Option<&'static str>,
}

impl Sent {
    fn of(request: &ModelInferRequest) -> Self {
        Self { body: frame(&request.encode_to_vec()), ..Self::default() }
    }
}

fn bases() -> [ModelInferRequest; 2] {
    let mut all = raw_request(&VALUES, 10);
    all.parameters.extend([timeout(30_000_000)]);
    let output = |name: &str| InferRequestedOutputTensor { name: name.into(), ..Default::default() };
    all.outputs = vec![output("count"), output("sum")];
    [all, typed_request(&VALUES, -7)]
}

fn parameters() -> Vec<InferParameter> {
    use ParameterChoice::{BoolParam, DoubleParam, Int64Param, StringParam, Uint64Param};
    let choices = [
        None,
        Some(BoolParam(true)),
        Some(Int64Param(i64::MIN)),
        Some(Int64Param(-1)),
        Some(Int64Param(0)),
        Some(Int64Param(1)),
        Some(Int64Param(i64::MAX)),
        Some(Uint64Param(u64::MAX)),
        Some(StringParam("soon".into())),
        Some(StringParam("30000000".into())),
        Some(DoubleParam(f64::NAN)),
    ];
    choices.into_iter().map(|parameter_choice| InferParameter { parameter_choice }).collect()
}

fn texts() -> [String; 9] {
    let texts = ["", "x", "sums", "values", "offset", "sum", "FP32", "INT64", "naïve\u{0}"];
    texts.map(|text| if text == "x" { text.repeat(5000) } else { text.into() })
}

/// A request with each field of its input `at` changed in each way.
fn changed_inputs(base: &ModelInferRequest, at: usize) -> Vec<ModelInferRequest> {
    let mut changed = Vec::new();
    let mut with = |change: &dyn Fn(&mut ModelInferRequest)| {
        let mut request = base.clone();
        change(&mut request);
        changed.push(request);
    };
    for text in texts() {
        with(&|request| request.inputs[at].name.clone_from(&text));
        with(&|request| request.inputs[at].datatype.clone_from(&text));
    }
    let shapes: [&[i64]; 12] = [
        &[],
        &[0],
        &[1],
        &[4],
        &[2, 2],
        &[4, 1],
        &[0, 2],
        &[-1, 2],
        &[i64::MIN, 2],
        &[i64::MAX, 2],
        &[1 << 62, 4],
        &[2, 2, 1],
    ];
    for shape in shapes {
        with(&|request| request.inputs[at].shape = shape.into());
    }
    with(&|request| request.inputs[at].shape = vec![1; 5000]);
    with(&|request| request.inputs[at].shape = vec![i64::MAX; 64]);
    for parameter in parameters() {
        for name in ["shared_memory_region", "binary_data_size", ""] {
            let parameter = (name.to_owned(), parameter.clone());
            with(&|request| request.inputs[at].parameters.extend([parameter.clone()]));
        }
    }
    let contents = [
        InferTensorContents::default(),
        InferTensorContents { bool_contents: vec![true; 4], ..Default::default() },
        InferTensorContents { int_contents: vec![-1; 4], ..Default::default() },
        InferTensorContents { int64_contents: vec![i64::MIN], ..Default::default() },
        InferTensorContents { int64_contents: vec![1; 5], ..Default::default() },
        InferTensorContents { uint_contents: vec![u32::MAX; 4], ..Default::default() },
        InferTensorContents { uint64_contents: vec![u64::MAX], ..Default::default() },
        InferTensorContents { fp32_contents: vec![f32::NAN; 4], ..Default::default() },
        InferTensorContents {
            fp32_contents: vec![f32::MAX, f32::MAX, -0.0, f32::INFINITY],
            ..Default::default()
        },
        InferTensorContents { fp32_contents: vec![1.0; 3], int64_contents: vec![1], ..Default::default() },
        InferTensorContents { fp64_contents: vec![1.0; 4], ..Default::default() },
        InferTensorContents { bytes_contents: vec![vec![1; 4]; 4], ..Default::default() },
    ];
    for contents in contents {
        with(&|request| request.inputs[at].contents = Some(contents.clone()));
    }
    with(&|request| request.inputs[at].contents = None);
    with(&|request| drop(request.inputs.remove(at)));
    with(&|request| request.inputs.push(request.inputs[at].clone()));
    with(&|request| request.inputs.swap(0, 1));
    with(&|request| request.inputs.reverse());
    let raws: [&[u8]; 6] = [&[], &[0; 4], &[0; 8], &[255; 8], &[255; 16], &[127; 17]];
    for raw in raws {
        with(&|request| request.raw_input_contents.insert(0, raw.into()));
        with(&|request| match request.raw_input_contents.get_mut(at) {
            Some(old) => *old = raw.into(),
            None => request.raw_input_contents = vec![raw.to_vec(); 2],
        });
    }
    with(&|request| drop(request.raw_input_contents.pop()));
    with(&|request| request.raw_input_contents.clear());
    with(&|request| request.raw_input_contents.reverse());
    with(&|request| request.raw_input_contents = vec![vec![]; 70_000]);
    changed
}

/// A request with each other field changed in each way.
fn changed_fields(base: &ModelInferRequest) -> Vec<ModelInferRequest> {
    let mut changed = Vec::new();
    let mut with = |change: &dyn Fn(&mut ModelInferRequest)| {
        let mut request = base.clone();
        change(&mut request);
        changed.push(request);
    };
    for text in texts() {
        with(&|request| request.model_name.clone_from(&text));
        with(&|request| request.model_version.clone_from(&text));
        with(&|request| request.id.clone_from(&text));
        let output = InferRequestedOutputTensor { name: text.clone(), ..Default::default() };
        with(&|request| request.outputs.push(output.clone()));
        with(&|request| request.outputs = vec![output.clone()]);
    }
    with(&|request| request.model_version = "3".into());
    with(&|request| request.inputs.clear());
    for parameter in parameters() {
        for name in ["timeout", "priority", "sequence_id", ""] {
            let parameter = (name.to_owned(), parameter.clone());
            with(&|request| request.parameters.extend([parameter.clone()]));
        }
        for name in ["classification", "shared_memory_region", "binary_data"] {
            let parameters = [(name.to_owned(), parameter.clone())].into();
            let output = InferRequestedOutputTensor { name: "sum".into(), parameters };
            with(&|request| request.outputs = vec![output.clone()]);
        }
    }
    changed
}

/// Each field changed in each way, then frames, headers, and bytes of messages at random.
fn changed() -> Vec<Sent> {
    let mut sent = Vec::new();
    for base in bases() {
        sent.extend(changed_fields(&base).iter().map(Sent::of));
        for at in 0..2 {
            let named = |request| Sent { about: Some("input"), ..Sent::of(&request) };
            sent.extend(changed_inputs(&base, at).into_iter().map(named));
        }
        let good = Sent::of(&base);
        let bytes = good.body.len();
        for end in 0..bytes {
            sent.push(Sent { body: good.body[..end].into(), ..good.clone() });
        }
        for flag in [1, 2, 255] {
            let mut body = good.body.clone();
            body[0] = flag;
            sent.push(Sent { body, ..good.clone() });
        }
        for length in [0, 1, bytes - 6, bytes - 4, bytes, 1 << 20, (1 << 20) + 1, u32::MAX as usize] {
            let mut body = good.body.clone();
            body[1..5].copy_from_slice(&(length as u32).to_be_bytes());
            sent.push(Sent { body, ..good.clone() });
        }
        sent.push(Sent { body: good.body.repeat(2), ..good.clone() });
        for value in ["", "1", "1x", "123456789m", "-1m", "0n", "1u", "9H", "99999999H", "5 S", "½S"] {
            sent.push(Sent { header: Some(("grpc-timeout", value)), ..good.clone() });
        }
        for value in ["text/plain", "application/grpc+proto", "application/json"] {
            sent.push(Sent { header: Some(("content-type", value)), ..good.clone() });
        }
        sent.push(Sent { header: Some(("traceparent", "00-x-y")), ..good.clone() });
    }
    let (mut rng, bases) = (Rng64::new(seed()), bases());
    while sent.len() < REQUESTS {
        let mut message = bases[rng.below(2) as usize].encode_to_vec();
        for _ in 0..=rng.below(3) {
            let at = rng.below(message.len() as u64) as usize;
            match rng.below(5) {
                0 => message[at] ^= 1 << rng.below(8),
                1 => drop(message.remove(at)),
                2 => message.insert(at, rng.next_u64() as u8),
                3 => message.extend_from_within(at..),
                _ => message[at] = rng.next_u64() as u8,
            }
        }
        sent.push(Sent { body: frame(&message), ..Sent::default() });
    }
    sent
}

/// What a request means, read without the server's code; `None` for nothing.
fn meaning(sent: &Sent) -> Option<Meaning> {
    let (&[0, a, b, c, d], message) = sent.body.split_first_chunk::<5>()? else { return None };
    let whole = u32::from_be_bytes([a, b, c, d]) as usize == message.len();
    let request = ModelInferRequest::decode(message).ok().filter(|_| whole)?;
    if request.model_name != "sums" || !["", "3"].contains(&&*request.model_version) {
        return None;
    }
    let (mut values, mut offset) = (None, None);
    for (at, input) in request.inputs.iter().enumerate() {
        let raw = request.raw_input_contents.get(at);
        let contents = input.contents.clone().unwrap_or_default();
        match (&*input.name, &*input.datatype, &input.shape[..]) {
            ("values", "FP32", [rows, 2]) => {
                let floats: Vec<f32> = match raw {
                    Some(raw) => raw
                        .chunks(4)
                        .map(|bytes| Some(f32::from_le_bytes(bytes.try_into().ok()?)))
                        .collect::<Option<_>>()?,
                    None => contents.fp32_contents,
                };
                if floats.len() as i64 != rows.checked_mul(2)? || values.replace(floats).is_some() {
                    return None;
                }
            }
            ("offset", "INT64", []) => {
                let number = match (raw, &contents.int64_contents[..]) {
                    (Some(raw), _) => i64::from_le_bytes(raw[..].try_into().ok()?),
                    (None, [number]) => *number,
                    _ => return None,
                };
                if offset.replace(number).is_some() {
                    return None;
                }
            }
            _ => return None,
        }
    }
    let extra =
        !request.raw_input_contents.is_empty() && request.raw_input_contents.len() != request.inputs.len();
    let outputs: Vec<String> = request.outputs.iter().map(|output| output.name.clone()).collect();
    let outputs = (!outputs.is_empty()).then_some(outputs);
    (!extra).then_some(Meaning { id: Some(request.id), values: values?, offset: offset?, outputs })
}

fn read(reply: &GrpcReply) -> (Option<String>, Vec<Output>) {
    let message: ModelInferResponse = reply.message();
    let outputs = message.outputs.into_iter().zip(&message.raw_output_contents).map(|(output, raw)| {
        let elements = match &*output.datatype {
            "FP32" => {
                raw.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()).into()).collect()
            }
            _ => raw.iter().map(|&byte| byte.into()).collect(),
        };
        Output { name: output.name, shape: output.shape, elements }
    });
    (Some(message.id), outputs.collect())
}

/// Send one request; whether it was answered.
async fn check(door: &Door, sent: &Sent) -> bool {
    let headers: Vec<(&str, &str)> = sent.header.into_iter().collect();
    let reply = door.call("ModelInfer", &headers, Body::from(sent.body.clone())).await;
    let shown = || format!("{:?} {:?} to {sent:?}", reply.0, reply.1);
    if reply.0 == Code::Ok {
        let meaning = meaning(sent).unwrap_or_else(|| panic!("{} without a meaning", shown()));
        let (id, outputs) = read(&reply);
        assert_eq!(id, meaning.id, "{}", shown());
        meaning.check(&outputs, false).unwrap_or_else(|wrong| panic!("{}: {wrong}", shown()));
        return true;
    }
    if sent.header.is_some_and(|(name, _)| name == "content-type") {
        assert_eq!((reply.0, &*reply.1), (Code::Unknown, "HTTP status 415 Unsupported Media Type"));
        return false;
    }
    let refusals = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::ResourceExhausted,
        Code::DeadlineExceeded,
        Code::Unimplemented,
    ];
    assert!(refusals.contains(&reply.0) && !reply.1.is_empty(), "{}", shown());
    assert!(reply.1.contains(sent.about.unwrap_or_default()), "{}", shown());
    false
}

#[test]
fn requests_over_grpc_are_answered_by_their_meaning_or_refused() {
    let door = door_with(GENEROUS);
    let sent = changed();
    assert!((REQUESTS..REQUESTS * 2).contains(&sent.len()), "{}", sent.len());
    let answered = door.server.handle().block_on(async {
        let checks = futures_util::stream::iter(&sent).map(|one| check(&door, one)).buffer_unordered(OPEN);
        checks.filter(|answered| std::future::ready(*answered)).count().await
    });
    assert!(
        (sent.len() / 50..sent.len() / 2).contains(&answered),
        "changes of every kind: {answered} answered"
    );
    nothing_is_left(&door);
    assert!(door.server.handle().block_on(check(&door, &Sent::of(&bases()[0]))));
}
