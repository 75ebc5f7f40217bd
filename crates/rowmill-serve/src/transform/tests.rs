//! Transforms beside their definition in Python, whose results `python/tests/serve/transform_cases.py` has recorded.

use serde_json::{Value, json};

use super::*;
use crate::{Buffer, Status};

const GOLDEN: &str = include_str!("../../tests/golden/transforms.json");

fn arena() -> Arena {
    Arena::new(1 << 20).unwrap()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap().as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn elements(datatype: &str) -> Elements {
    match datatype {
        "FP32" => Elements::Numbers(DType::Float32),
        "FP64" => Elements::Numbers(DType::Float64),
        "INT64" => Elements::Numbers(DType::Int64),
        "INT32" => Elements::Numbers(DType::Int32),
        "INT8" => Elements::Numbers(DType::Int8),
        _ => Elements::Texts,
    }
}

fn golden() -> Vec<Value> {
    serde_json::from_str(GOLDEN).unwrap()
}

fn columns(case: &Value) -> Vec<Column> {
    let column = |column: &Value| Column {
        elements: elements(column["datatype"].as_str().unwrap()),
        count: column["count"].as_u64().unwrap() as usize,
        data: Buffer::from(&bytes(&column["data"])[..]),
    };
    case["columns"].as_array().unwrap().iter().map(column).collect()
}

#[test]
fn inputs_have_the_bits_of_the_definition() {
    let (cases, arena) = (golden(), arena());
    assert!(cases.len() > 50);
    for case in &cases {
        let transform = Transform::parse(&case["transform"].to_string()).unwrap();
        let names: Vec<String> = transform.columns().into_iter().map(|column| column.name).collect();
        let sent = case["columns"].as_array().unwrap();
        assert!(names.iter().eq(sent.iter().map(|column| column["name"].as_str().unwrap())), "{names:?}");
        let found = transform.apply(&arena, &columns(case)).unwrap();
        let expected = case["outputs"].as_object().unwrap();
        assert_eq!(found.len(), expected.len());
        for (name, expected) in expected {
            let found = &found[name];
            assert_eq!(found.dtype.name(), expected["dtype"]);
            assert_eq!(json!(found.shape), expected["shape"]);
            assert_eq!(found.data[..], bytes(&expected["data"])[..], "{name} of {}", case["transform"]);
        }
    }
    assert_eq!(arena.held_bytes(), 0);
}

/// Columns `price` (per item), `user` and the history `before` (per user), `item` (per item).
fn transform(id_base: u32) -> Transform {
    let json = json!({
        "inputs": {"dense": "dense", "ids": "ids", "lengths": "lengths"},
        "dense": [{"name": "price", "per": "item"}],
        "ids": [{"name": "user", "per": "user", "table": "user"}, {"name": "item", "per": "item", "table": "item"}],
        "histories": [
            {"name": "before", "per": "user", "of": "item", "places": 2},
            {"name": "shops", "per": "user", "of": "user", "places": 2},
        ],
        "id_base": id_base,
        "missing": i64::MIN,
        "way": {"kind": "full"},
    });
    Transform::parse(&json.to_string()).unwrap()
}

fn floats(values: &[f64]) -> Column {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Column { elements: Elements::Numbers(DType::Float64), count: values.len(), data: Buffer::from(&data[..]) }
}

fn ids(values: &[i64]) -> Column {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Column { elements: Elements::Numbers(DType::Int64), count: values.len(), data: Buffer::from(&data[..]) }
}

fn texts(values: &[&str]) -> Column {
    let data: Vec<u8> = values
        .iter()
        .flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat())
        .collect();
    Column { elements: Elements::Texts, count: values.len(), data: Buffer::from(&data[..]) }
}

/// A request of two candidates that is right.
fn request() -> [Column; 7] {
    [
        floats(&[1.0, 2.0]),
        ids(&[5]),
        texts(&["a", ""]),
        ids(&[1, 2, 3]),
        ids(&[0, 3]),
        ids(&[4, 5, 6]),
        ids(&[0, 3]),
    ]
}

#[test]
fn what_is_given_once_counts_for_every_candidate() {
    let found = transform(16).apply(&arena(), &request()).unwrap();
    assert_eq!(found["ids"].shape, [2, 6]);
    assert_eq!(found["ids"].to_i64(), [5, 10, 2, 3, 5, 6, 5, i64::MIN, 2, 3, 5, 6]);
    assert_eq!(found["lengths"].to_i64(), [2, 2]);
    assert_eq!(found["dense"].to_f32(), [1_f64.ln_1p() as f32, 2_f64.ln_1p() as f32]);
}

#[test]
fn wrong_values_are_named_with_their_column_and_row() {
    let request_with = |number: usize, column: Column| {
        let mut columns = request();
        columns[number] = column;
        columns
    };
    let cut = Column { data: texts(&["a", "b"]).data.slice(0..9), ..texts(&["a", "b"]) };
    let longer = Column { count: 2, ..texts(&["a", "b", "c"]) };
    let short = Column { count: 2, ..ids(&[1]) };
    for (base, columns, expected) in [
        (16, request_with(0, floats(&[1.0, f64::INFINITY])), "column \"price\", row 1: inf is infinite"),
        (16, request_with(0, floats(&[1e39, 0.0])), "column \"price\", row 0: inf is infinite"),
        (16, request_with(0, floats(&[1.0])), "column \"item\" has 2 rows, must have 1"),
        (16, request_with(0, floats(&[])), "column \"price\" has 0 rows, must have 1 at least"),
        (16, request_with(1, ids(&[1, 2, 3])), "column \"user\" has 3 rows, must have 1 or 2"),
        (16, request_with(2, texts(&["a", "xyz"])), "column \"item\", row 1: \"xyz\" is no id"),
        (
            10,
            request_with(2, texts(&["a", "1"])),
            "row 0: \"a\" is no id: it must be a 64-bit integer in base 10",
        ),
        (16, request_with(2, texts(&["8000000000000000", ""])), "is reserved for missing values"),
        (16, request_with(2, cut), "column \"item\", row 1: 4 bytes are left"),
        (16, request_with(2, longer), "column \"item\" has 5 bytes behind its 2 texts"),
        (16, request_with(1, short), "column \"user\" has 8 bytes, must have 8 for 2 numbers"),
        (16, request_with(3, texts(&["a", "", "b"])), "column \"before.values\", row 0: value 1 is missing"),
        (16, request_with(3, ids(&[1, i64::MIN, 3])), "column \"before.values\", row 0: value 1 is missing"),
        (16, request_with(4, ids(&[])), "column \"before.offsets\" is empty"),
        (16, request_with(4, ids(&[0])), "column \"before.offsets\" runs from 0 to 0, must run from 0 to 3"),
        (16, request_with(4, ids(&[1, 3])), "column \"before.offsets\" runs from 1 to 3"),
        (16, request_with(4, ids(&[0, 4, 3])), "column \"before.offsets\", row 1: 3 follows 4"),
        (16, request_with(4, ids(&[0, 1, 2, 3])), "column \"before\" has 3 rows, must have 1 or 2"),
        (16, request_with(6, ids(&[0, 1, 3])), "\"shops\", row 0: it has 1 ids, but \"before\" has 3"),
    ] {
        let error = transform(base).apply(&arena(), &columns).unwrap_err();
        assert_eq!(error.status, Status::Invalid);
        assert!(error.text.contains(expected), "{error}, not {expected}");
    }
}

#[test]
fn inputs_beyond_the_arena_are_refused() {
    let rows = 1 << 16;
    let columns = [
        floats(&vec![0.0; rows]),
        ids(&[1]),
        ids(&vec![1; rows]),
        ids(&[]),
        ids(&[0, 0]),
        ids(&[]),
        ids(&[0, 0]),
    ];
    let error = transform(16).apply(&arena(), &columns).unwrap_err();
    assert!(error.text.contains("raise wire_memory"), "{error}");
}

#[test]
fn files_that_are_no_transforms_are_refused_with_the_key() {
    let (right, ways) = (golden()[0]["transform"].clone(), golden());
    let vocabulary = |case: &&Value| case["transform"]["way"]["kind"] == "vocabulary";
    let with_words = ways.iter().find(vocabulary).unwrap()["transform"].clone();
    let with_lists =
        ways.iter().find(|case| case["transform"]["histories"][1].is_object()).unwrap()["transform"].clone();
    for (from, pointer, value, expected) in [
        (&right, "/id_base", json!(8), "id_base must be 10 or 16, got 8"),
        (&right, "/missing", json!("x"), "invalid type"),
        (&right, "/dense/0/per", json!("shop"), "unknown variant `shop`"),
        (&right, "/way/kind", json!("bag"), "way is \"bag\""),
        (&right, "/way", json!({"kind": "hash", "buckets": 0}), "buckets from 1 to 2^63 - 1, got Some(0)"),
        (&right, "/way", json!({"kind": "hash"}), "got None"),
        (
            &right,
            "/way",
            json!({"kind": "numbered_hash", "buckets": 9}),
            "needs numbers of 3 columns of ids, got 0",
        ),
        (&right, "/way", json!({"kind": "vocabulary"}), "needs values of 3 columns of ids, got those of 0"),
        (&with_words, "/way/values/0/1", with_words["way"]["values"][0][0].clone(), "of \"user\" twice"),
        (&with_lists, "/histories/1/places", json!(9), "history \"visited\" has 9 places"),
        (&with_lists, "/histories/0/places", json!(0), "history \"bought\" has 0 places"),
        (
            &with_lists,
            "/histories/0/of",
            json!("age"),
            "history \"bought\" is of \"age\", which is none of ids",
        ),
        (&with_lists, "/inputs/lengths", json!(null), "inputs must name lengths"),
    ] {
        let mut file = from.clone();
        *file.pointer_mut(pointer).unwrap() = value;
        let error = Transform::parse(&file.to_string()).unwrap_err();
        assert!(error.text.contains(expected), "{error}, not {expected}");
    }
}
