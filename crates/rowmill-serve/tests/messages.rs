//! Messages byte by byte: vectors made by hand from docs/reference/serving-messages.md, and messages of every shape.
//! If a vector fails, the format has changed: raise the version.

mod common;

use std::time::Duration;

use common::{arena, heap, poll_now};
use proptest::prelude::*;
use rowmill_serve::*;

fn golden(name: &str) -> Vec<u8> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    std::fs::read(folder.join(format!("{name}-2.bin"))).unwrap()
}

fn message(kind: Kind, id: u64, program: u64, tensors: Vec<Tensor>) -> Message {
    let (trace, time_left, status) = ([0; 16], Duration::ZERO, Status::Ok);
    Message { kind, id, trace, program, time_left, status, tensors }
}

fn tensor(name: impl Into<Name>, dtype: DType, shape: &[u64], bytes: &[u8]) -> Tensor {
    Tensor::new(name.into().0, dtype, shape, heap(bytes))
}

struct Name(TensorName);

impl From<u16> for Name {
    fn from(number: u16) -> Self {
        Self(TensorName::Number(number))
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self(TensorName::Text(text.into()))
    }
}

fn messages() -> [(&'static str, Message); 6] {
    let trace = std::array::from_fn(|at| at as u8);
    let offsets: Vec<u8> = [0_i64, 2, 5].iter().flat_map(|offset| offset.to_le_bytes()).collect();
    let scores: Vec<u8> = [1_f32, -0.5].iter().flat_map(|score| score.to_le_bytes()).collect();
    let large: Vec<u8> = (0..5000_u32).map(|at| (at % 251) as u8).collect();
    let request = Message {
        trace,
        time_left: Duration::from_millis(250),
        ..message(
            Kind::Request,
            0x0102_0304_0506_0708,
            0x1122_3344_5566_7788,
            vec![
                tensor("ids.offsets", DType::Int64, &[3], &offsets),
                tensor(7, DType::Float32, &[2, 1], &scores),
                tensor(1, DType::UInt8, &[5000], &large),
                tensor("W\u{f6}rter", DType::Float32, &[0, 4], &[]),
                tensor(2, DType::Bool, &[], &[1]),
            ],
        )
    };
    let halves = [0x80, 0x3f, 0x80, 0xbf, 0, 0x40, 0, 0];
    let reply = message(Kind::Reply, 9, 5, vec![tensor(0, DType::BFloat16, &[2, 2], &halves)]);
    let reason = b"its deadline is in 3ms";
    let text = tensor(0, DType::UInt8, &[reason.len() as u64], reason);
    let reserve = message(Kind::Reserve, 9, 5, vec![tensor(0, DType::UInt8, &[64, 0], &[])]);
    [
        ("hello", message(Kind::Hello, 0, 0x1122_3344_5566_7788, vec![])),
        ("request", request),
        ("reply", Message { trace, ..reply }),
        ("failure", Message { trace, status: Status::Late, ..message(Kind::Failure, 9, 5, vec![text]) }),
        ("release", message(Kind::Release, 77, 0, vec![])),
        ("reserve", Message { trace, time_left: Duration::from_millis(250), ..reserve }),
    ]
}

fn assert_equal(found: &Message, expected: &Message) {
    let fields = |message: &Message| {
        let Message { kind, id, trace, program, time_left, status, .. } = *message;
        (kind, id, trace, program, time_left, status, message.tensors.len())
    };
    assert_eq!(fields(found), fields(expected));
    for (found, expected) in found.tensors.iter().zip(&expected.tensors) {
        assert_eq!(
            (&found.name, found.dtype, &found.shape),
            (&expected.name, expected.dtype, &expected.shape)
        );
        assert_eq!(found.data[..], expected.data[..]);
        assert!(
            found.data.is_empty() || found.data.as_ptr().addr().is_multiple_of(64),
            "tensors are aligned"
        );
    }
}

fn read_all(mut bytes: &[u8]) -> Message {
    let Received::Message(message) =
        poll_now(read(&mut bytes, &Intake::new(arena(), Limits::default()))).unwrap()
    else {
        panic!("no message")
    };
    assert!(bytes.is_empty(), "a message ends where the next begins");
    message
}

#[test]
fn version_2_is_written() {
    for (name, message) in messages() {
        assert_eq!(encode(&message), golden(name), "{name}");
    }
}

#[test]
fn version_2_is_read() {
    for (name, message) in messages() {
        assert_equal(&read_all(&golden(name)), &message);
    }
}

#[test]
fn damage_of_any_bit_is_seen() {
    let bytes = golden("request");
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let read = poll_now(read(&mut &damaged[..], &Intake::new(arena(), Limits::default())));
        assert!(!matches!(read, Ok(Received::Message(_) | Received::End)), "bit {bit}");
    }
}

#[test]
fn a_message_that_is_cut_is_an_error_and_no_bytes_are_the_end() {
    let bytes = golden("request");
    let intake = Intake::new(arena(), Limits::default());
    for end in 1..bytes.len() {
        assert!(
            matches!(poll_now(read(&mut &bytes[..end], &intake)), Err(StreamError::Connection(_))),
            "{end}"
        );
    }
    assert!(matches!(poll_now(read(&mut &[][..], &intake)), Ok(Received::End)));
}

#[test]
fn a_damaged_payload_spoils_its_message_alone() {
    let mut bytes = golden("request");
    let end = bytes.len();
    bytes[end - 1] ^= 1;
    bytes.extend(golden("reply"));
    let mut stream = &bytes[..];
    let intake = Intake::new(arena(), Limits::default());
    let Received::Spoiled { header, cause } = poll_now(read(&mut stream, &intake)).unwrap() else { panic!() };
    assert_eq!(header.id, 0x0102_0304_0506_0708);
    assert!(cause.to_string().starts_with("tensor Number(1) is damaged: CRC32C"), "{cause}");
    assert!(
        matches!(poll_now(read(&mut stream, &intake)).unwrap(), Received::Message(reply) if reply.id == 9)
    );
    assert!(stream.is_empty());
}

#[test]
fn payloads_beyond_the_limit_spoil_their_message_alone() {
    let mut bytes = golden("request");
    bytes.extend(golden("reply"));
    let mut stream = &bytes[..];
    let limits = Limits { payload_bytes_max: 5000, ..Limits::default() };
    let intake = Intake::new(arena(), limits);
    let Received::Spoiled { header, cause } = poll_now(read(&mut stream, &intake)).unwrap() else { panic!() };
    assert_eq!((header.kind, header.id), (Kind::Request, 0x0102_0304_0506_0708));
    let text = cause.to_string();
    assert!(text.contains("5033 bytes") && text.contains("request_max is 5000"), "{text}");
    assert_eq!(intake.arena.held_bytes(), 0);
    assert!(
        matches!(poll_now(read(&mut stream, &intake)).unwrap(), Received::Message(reply) if reply.id == 9)
    );
    assert!(stream.is_empty());
}

#[test]
fn errors_name_what_is_wrong() {
    let other_version = {
        let mut bytes = golden("hello");
        bytes[4] = 1;
        bytes
    };
    let one = Limits { tensors_max: 4, ..Limits::default() };
    for (bytes, limits, text) in [
        (
            b"GET /metrics HTTP/1.1\r\n".repeat(4),
            Limits::default(),
            "not a rowmill message: it begins with 0x20544547",
        ),
        (
            other_version,
            Limits::default(),
            "the peer sends messages of version 1, this build reads version 2",
        ),
        (golden("request"), one, "the message has 5 tensors, the limit is 4"),
    ] {
        let error = poll_now(read(&mut &bytes[..], &Intake::new(arena(), limits))).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

fn any_tensor() -> impl Strategy<Value = (Option<u16>, String, u8, Vec<u64>)> {
    let size = prop_oneof![8 => 0_u64..6, 1 => Just(40)];
    (prop::option::of(0_u16..1000), "[a-z.\u{e4}]{1,40}", 0_u8..10, prop::collection::vec(size, 0..5))
}

proptest! {
    #[test]
    fn any_message_is_read_as_it_was_written(
        id in any::<u64>(),
        program in any::<u64>(),
        trace in any::<[u8; 16]>(),
        micros in any::<u32>(),
        parts in prop::collection::vec(any_tensor(), 0..12),
        fill in any::<u8>(),
    ) {
        use DType::*;
        let dtypes = [Float32, Float64, Float16, BFloat16, Int8, Int16, Int32, Int64, UInt8, Bool];
        let mut tensors = Vec::new();
        for (at, (number, text, dtype, shape)) in (0_u16..).zip(parts) {
            let dtype = dtypes[usize::from(dtype)];
            let elements: u64 = shape.iter().product();
            let bytes = vec![fill.wrapping_add(at as u8); elements as usize * dtype.bytes()];
            // Numbers and names are made distinct.
            let name = match number {
                Some(number) => TensorName::Number(number * 20 + at),
                None => TensorName::Text(format!("{text}{at}").into()),
            };
            if bytes.len() < 200_000 {
                tensors.push(Tensor::new(name, dtype, &shape, heap(&bytes)));
            }
        }
        let time_left = Duration::from_micros(micros.into());
        let written = Message { trace, time_left, ..message(Kind::Request, id, program, tensors) };
        assert_equal(&read_all(&encode(&written)), &written);
    }
}
