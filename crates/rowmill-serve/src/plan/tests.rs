//! Plans beside their definition in torch, whose results `python/tests/serve/plan_cases.py` has recorded.

use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::{Buffer, DType};

const GOLDEN: &str = include_str!("../../tests/golden/plans.json");

fn arena() -> Arena {
    Arena::new(1 << 20).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

fn array(json: &Value) -> Array {
    let hex = json["data"].as_str().unwrap().as_bytes();
    let data: Vec<u8> = hex
        .chunks(2)
        .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect();
    Array {
        dtype: DType::from_name(json["dtype"].as_str().unwrap()).unwrap(),
        shape: serde_json::from_value(json["shape"].clone()).unwrap(),
        data: Buffer::from(&data[..]),
    }
}

fn arrays(json: &Value) -> Values {
    json.as_object().unwrap().iter().map(|(name, value)| (name.clone(), array(value))).collect()
}

/// A file of weights with one tensor `w`, int64 [2].
fn weights() -> (tempfile::NamedTempFile, Weights) {
    let header = br#"{"w":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend([5_i64.to_le_bytes(), (-6_i64).to_le_bytes()].concat());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let weights = Weights::open(file.path()).unwrap();
    (file, weights)
}

fn load(plan: &Value) -> Result<Plan, Failure> {
    Plan::load(&plan.to_string(), &weights().1, None)
}

/// Whether results agree but for the last bits of floats.
fn is_near(a: &Array, b: &Array) -> bool {
    (a.dtype, &a.shape) == (b.dtype, &b.shape)
        && a.to_f64()
            .iter()
            .zip(b.to_f64())
            .all(|(&a, b)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 4e-7 * (1.0 + a.abs()))
}

/// Equal bits, except that one NaN is as good as another.
fn is_equal(a: &Array, b: &Array) -> bool {
    (a.dtype, &a.shape) == (b.dtype, &b.shape)
        && a.data
            .chunks(a.dtype.bytes())
            .zip(b.data.chunks(b.dtype.bytes()))
            .zip(a.to_f64().iter().zip(b.to_f64()))
            .all(|((one, other), (x, y))| one == other || (x.is_nan() && y.is_nan()))
}

#[test]
fn results_are_those_of_the_definition() {
    let cases: Vec<Value> = serde_json::from_str(GOLDEN).unwrap();
    assert!(cases.len() > 500);
    let arena = arena();
    let mut wrong = Vec::new();
    for case in &cases {
        let found = load(&case["plan"]).and_then(|plan| plan.run(&arena, &arrays(&case["inputs"]), soon()));
        let agrees = if case["exact"] == true { is_equal } else { is_near };
        match found {
            Ok(found) => {
                for (name, expected) in arrays(&case["outputs"]) {
                    if !agrees(&found[&name], &expected) {
                        let (found, expected) = (found[&name].to_f64(), expected.to_f64());
                        wrong.push(format!(
                            "{}: {name} is {found:?}, not {expected:?}",
                            case["plan"]["steps"]
                        ));
                    }
                }
            }
            Err(error) => wrong.push(format!("{}: {error}", case["plan"]["steps"])),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert_eq!(arena.held_bytes(), 0);
}

#[test]
fn weights_are_read_by_name() {
    let plan = serde_json::json!({
        "inputs": [],
        "steps": [{"op": "weight", "out": "v", "name": "w"}],
        "outputs": [{"name": "v", "value": "v"}],
    });
    let found = load(&plan).unwrap().run(&arena(), &Values::new(), soon()).unwrap();
    assert_eq!(found["v"].to_i64(), [5, -6]);
    let text = plan.to_string().replace("\"w\"", "\"x\"");
    let error = Plan::load(&text, &weights().1, None).unwrap_err().to_string();
    assert!(error.contains("\"x\"") && error.contains("no such tensor"), "{error}");
    let no_file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(no_file.path(), [255; 30]).unwrap();
    assert!(Weights::open(no_file.path()).unwrap_err().to_string().contains("header"));
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let plan = load(&serde_json::json!({
        "inputs": [
            {"name": "x", "dtype": "float32", "shape": ["b", 2]},
            {"name": "i", "dtype": "int64", "shape": [["+", "b", 1]]},
        ],
        "steps": [{"op": "gather", "out": "g", "in": "x", "dim": 0, "index": "i"}],
        "outputs": [{"name": "g", "value": "g"}],
    }))
    .unwrap();
    let floats = |rows: usize, columns: usize| Array {
        dtype: DType::Float32,
        shape: vec![rows, columns],
        data: Buffer::from(&vec![0; rows * columns * 4][..]),
    };
    let ids = |ids: &[i64]| Array {
        dtype: DType::Int64,
        shape: vec![ids.len()],
        data: Buffer::from(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()[..]),
    };
    let run = |x: Option<Array>, i: Array| {
        let mut values = Values::from([("i".to_owned(), i)]);
        values.extend(x.map(|x| ("x".to_owned(), x)));
        plan.run(&arena(), &values, soon()).map(|values| values["g"].shape.clone()).map_err(|error| {
            assert_eq!(error.status, Status::Invalid);
            error.text
        })
    };
    assert_eq!(run(Some(floats(2, 2)), ids(&[0, 1, -1])), Ok(vec![3, 2]));
    for (x, i, expected) in [
        (None, ids(&[0, 0]), "input \"x\" is missing"),
        (Some(floats(2, 3)), ids(&[0, 0, 0]), "input \"x\" has 3 items in dimension 1, must have 2"),
        (Some(floats(2, 2)), ids(&[0]), "input \"i\" has 1 items in dimension 0, must have 3"),
        (Some(ids(&[1])), ids(&[0]), "input \"x\" is int64 with 1 dimensions, must be float32 with 2"),
        (Some(floats(2, 2)), ids(&[0, 2, 0]), "position 2 is outside of dimension 0 of 2 items"),
        (Some(floats(2, 2)), ids(&[0, i64::MIN, 0]), "is outside of dimension 0"),
    ] {
        let error = run(x, i).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn results_beyond_the_arena_are_refused() {
    let plan = load(&serde_json::json!({
        "inputs": [{"name": "n", "dtype": "float32", "shape": ["b"]}],
        "steps": [{"op": "full", "out": "f", "shape": ["b", ["*", "b", 4096]], "value": 0, "dtype": "int64"}],
        "outputs": [{"name": "f", "value": "f"}],
    }))
    .unwrap();
    let input = |count: usize| {
        let data = Buffer::from(&vec![0; count * 4][..]);
        Values::from([("n".to_owned(), Array { dtype: DType::Float32, shape: vec![count], data })])
    };
    assert!(plan.run(&arena(), &input(2), soon()).is_ok());
    let error = plan.run(&arena(), &input(9), soon()).unwrap_err();
    assert!(error.text.contains("raise wire_memory"), "{error}");
}

/// A loop over a million million rows without elements would take hours.
#[test]
fn many_rows_without_elements_take_no_time() {
    let rows = 1 << 40;
    let empty = Array { dtype: DType::Float32, shape: vec![rows, 0], data: Buffer::from(&[][..]) };
    let arena = arena();
    let joined = layout::cat(&arena, &[&empty, &empty], 1).unwrap();
    assert_eq!(joined.shape, [rows, 0]);
    assert_eq!(layout::slice(&arena, &empty, 0, (1, i64::MAX, 1)).unwrap().shape, [rows - 1, 0]);
    assert_eq!(layout::slice(&arena, &empty, 1, (1, 3, 1)).unwrap().shape, [rows, 0]);
    assert_eq!(layout::slice(&arena, &empty, 1, (0, 1, 2)).unwrap().shape, [rows, 0]);
    for array in reduce::order(&arena, &empty, 1, true, None).unwrap() {
        assert_eq!(array.shape, [rows, 0]);
    }
    assert_eq!(reduce::softmax(&arena, &empty, 1).unwrap().shape, [rows, 0]);
}
