//! Changed requests over HTTP.

use rowmill_testkit::Rng64;
use serde_json::{Value, json};

use crate::common::dense::GENEROUS;
use crate::common::door::{Door, Reply, door_with, request};
use crate::{Meaning, Output, REQUESTS, nothing_is_left, seed};

const THREADS: usize = 4;

/// A request as it is sent.
#[derive(Clone, Debug)]
struct Sent {
    json: Vec<u8>,
    binary: Vec<u8>,
    /// Headers, where they differ from the true sizes.
    content_length: Option<String>,
    json_length: Option<String>,
    /// What a refusal must name.
    about: Option<&'static str>,
}

impl Sent {
    fn of(json: &Value, binary: &[u8]) -> Self {
        let json = json.to_string().into_bytes();
        Self { json, binary: binary.into(), content_length: None, json_length: None, about: None }
    }

    fn bytes(&self) -> Vec<u8> {
        [&self.json[..], &self.binary].concat()
    }

    fn lengths(&self) -> (String, String) {
        let number =
            |given: &Option<String>, found: usize| given.clone().unwrap_or_else(|| found.to_string());
        let all = self.json.len() + self.binary.len();
        (number(&self.content_length, all), number(&self.json_length, self.json.len()))
    }

    fn is_whole(&self) -> bool {
        self.lengths().0.parse() == Ok(self.bytes().len())
    }

    fn send(&self, door: &Door) -> Option<Reply> {
        let (all, json) = self.lengths();
        let head = format!(
            "POST /v2/models/sums/infer HTTP/1.1\r\ncontent-length: {all}\r\ninference-header-content-length: {json}"
        );
        door.exchange(&head, &self.bytes(), !self.is_whole())
    }
}

/// Requests whose every field is changed.
fn bases() -> Vec<(Value, Vec<u8>)> {
    let mut all = request(&json!([1.5, 2, 3, 4]), 10);
    all["parameters"] = json!({ "timeout": 30_000_000, "binary_data_output": false });
    all["outputs"] = json!([{ "name": "sum", "parameters": { "binary_data": false } }, { "name": "count" }]);
    let binary = json!({ "inputs": [
        { "name": "offset", "datatype": "INT64", "shape": [], "parameters": { "binary_data_size": 8 } },
        { "name": "values", "datatype": "FP32", "shape": [2, 2], "parameters": { "binary_data_size": 16 } },
    ], "parameters": { "binary_data_output": true } });
    let tail = [&10_i64.to_le_bytes()[..], &[1.5_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat()].concat();
    vec![(request(&json!([[1.5, 2], [3, 4]]), -7), vec![]), (all, vec![]), (binary, tail)]
}

/// Paths of every value inside `value`.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    found.push(path.into());
    match value {
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(at, value)| paths(value, &format!("{path}/{at}"), found));
        }
        Value::Object(values) => {
            values.iter().for_each(|(key, value)| paths(value, &format!("{path}/{key}"), found));
        }
        _ => {}
    }
}

const CHANGES: u64 = 24;

/// Change the value at `path`.
fn change(json: &mut Value, path: &str, change: u64) {
    let (parent, key) = path.rsplit_once('/').unwrap_or(("", ""));
    if change < 3 && !path.is_empty() {
        match json.pointer_mut(parent) {
            Some(Value::Object(values)) => {
                let value = values.remove(key).unwrap_or_default();
                match change {
                    0 => {}
                    1 => drop(values.insert(format!("{key}s"), value)),
                    _ => drop(values.insert(key.to_uppercase(), value)),
                }
            }
            Some(Value::Array(values)) => {
                let at: usize = key.parse().unwrap();
                match change {
                    0 => drop(values.remove(at)),
                    1 => values.push(values[at].clone()),
                    _ => values.insert(0, values[at].clone()),
                }
            }
            _ => {}
        }
        return;
    }
    let Some(value) = json.pointer_mut(path) else { return };
    let old = value.take();
    *value = match change {
        3 => Value::Null,
        4 => json!(true),
        5 => json!(-1),
        6 => json!(0),
        7 => json!(1),
        8 => json!(3),
        9 => json!(i64::MIN),
        10 => json!(u64::MAX),
        11 => json!(1e300),
        12 => json!(0.5),
        13 => json!("NaN"),
        14 => json!(""),
        15 => json!("values"),
        16 => json!("x".repeat(5000)),
        17 => json!([]),
        18 => json!({}),
        19 => json!([old]),
        20 => json!([old.clone(), old]),
        21 => json!({ "name": old }),
        22 => json!(old.to_string()),
        _ => json!(vec![0; 300]),
    };
}

/// Each field changed in each way, then changes of the sizes and of bytes at random.
fn changed() -> Vec<Sent> {
    let mut sent = Vec::new();
    for (json, binary) in bases() {
        let mut found = Vec::new();
        paths(&json, "", &mut found);
        for path in &found {
            for number in 0..CHANGES {
                let mut changed = json.clone();
                change(&mut changed, path, number);
                let about = path.starts_with("/inputs/").then_some("input");
                sent.push(Sent { about, ..Sent::of(&changed, &binary) });
            }
        }
        let (good, all) = (Sent::of(&json, &binary), json.to_string().len() + binary.len());
        for length in
            ["", "x", "-1", "0", "1", "18446744073709551615", "99999999999999999999", "1e3", "2000000"]
        {
            sent.push(Sent { content_length: Some(length.into()), ..good.clone() });
            sent.push(Sent { json_length: Some(length.into()), ..good.clone() });
        }
        for by in 1..20 {
            for length in [all - by, all + by] {
                sent.push(Sent { content_length: Some(length.to_string()), ..good.clone() });
                sent.push(Sent { json_length: Some(length.to_string()), ..good.clone() });
            }
            let longer = [&binary[..], &vec![7; by]].concat();
            sent.push(Sent { binary: longer, ..good.clone() });
            sent.push(Sent { binary: binary[..binary.len().saturating_sub(by)].into(), ..good.clone() });
        }
        for special in [f32::NAN, f32::INFINITY, f32::MAX, -0.0, f32::MIN_POSITIVE / 2.0] {
            let mut binary = binary.clone();
            if let Some(place) = binary.get_mut(8..12) {
                place.copy_from_slice(&special.to_le_bytes());
            }
            sent.push(Sent { binary, ..good.clone() });
        }
    }
    let (mut rng, bases) = (Rng64::new(seed()), bases());
    while sent.len() < REQUESTS {
        let (json, binary) = &bases[rng.below(3) as usize];
        let mut json = json.clone();
        if rng.below(2) == 0 {
            for _ in 0..2 {
                let mut found = Vec::new();
                paths(&json, "", &mut found);
                let path = &found[rng.below(found.len() as u64) as usize];
                change(&mut json, path, rng.below(CHANGES));
            }
            sent.push(Sent::of(&json, binary));
            continue;
        }
        let mut one = Sent::of(&json, binary);
        for _ in 0..=rng.below(3) {
            let part =
                if !one.binary.is_empty() && rng.below(3) == 0 { &mut one.binary } else { &mut one.json };
            let at = rng.below(part.len().max(1) as u64) as usize;
            match rng.below(4) {
                _ if part.is_empty() => part.push(b'{'),
                0 => part[at] = b"0123456789[]{}\",:-e"[rng.below(19) as usize],
                1 => drop(part.remove(at)),
                2 => part.insert(at, rng.next_u64() as u8),
                _ => part[at] = rng.next_u64() as u8,
            }
        }
        sent.push(one);
    }
    sent
}

/// What a request means, read without the server's code; `None` for nothing.
fn meaning(sent: &Sent) -> Option<Meaning> {
    let (all, json_bytes) = sent.lengths();
    let bytes = sent.bytes();
    let body = bytes.get(..all.parse().ok()?)?;
    let (head, mut tail) = body.split_at_checked(json_bytes.parse().ok()?)?;
    let json: Value = serde_json::from_slice(head).ok()?;
    let (mut values, mut offset) = (None, None);
    for input in json.get("inputs")?.as_array()? {
        let shape: Vec<u64> =
            input.get("shape")?.as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
        let size = input.get("parameters").and_then(|parameters| parameters.get("binary_data_size"));
        let mut numbers = Vec::new();
        let mut raw: Option<&[u8]> = None;
        match size.filter(|size| !size.is_null()) {
            Some(size) => {
                let (mine, rest) = tail.split_at_checked(size.as_u64()? as usize)?;
                (raw, tail) = (Some(mine), rest);
            }
            None => leaves(input.get("data")?, &mut numbers),
        }
        match (input.get("name")?.as_str()?, input.get("datatype")?.as_str()?) {
            ("values", "FP32") => {
                let [rows, 2] = shape[..] else { return None };
                let floats: Vec<f32> = match raw {
                    Some(raw) => {
                        raw.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
                    }
                    None => {
                        numbers.iter().map(|value| Some(value.as_f64()? as f32)).collect::<Option<_>>()?
                    }
                };
                if floats.len() as u64 != rows.checked_mul(2)? || values.replace(floats).is_some() {
                    return None;
                }
            }
            ("offset", "INT64") => {
                let number = match raw {
                    Some(raw) => i64::from_le_bytes(raw.try_into().ok()?),
                    None => numbers.first()?.as_i64()?,
                };
                if !shape.is_empty() || offset.replace(number).is_some() {
                    return None;
                }
            }
            _ => return None,
        }
    }
    let name = |output: &Value| Some(output.get("name")?.as_str()?.to_owned());
    let outputs = match json.get("outputs") {
        None | Some(Value::Null) => None,
        Some(outputs) => Some(outputs.as_array()?.iter().map(name).collect::<Option<_>>()?),
    };
    let id = match json.get("id") {
        None | Some(Value::Null) => None,
        Some(id) => Some(id.as_str()?.to_owned()),
    };
    tail.is_empty().then_some(Meaning { id, values: values?, offset: offset?, outputs })
}

fn leaves<'v>(value: &'v Value, found: &mut Vec<&'v Value>) {
    match value.as_array() {
        Some(values) => values.iter().for_each(|value| leaves(value, found)),
        None => found.push(value),
    }
}

/// The outputs of a reply and its id.
fn read(reply: &Reply) -> (Option<String>, Vec<Output>) {
    let binary_from = reply.1.lines().find_map(|line| line.strip_prefix("inference-header-content-length: "));
    let json_bytes = binary_from.map_or(reply.2.len(), |bytes| bytes.parse().unwrap());
    let (head, mut tail) = reply.2.split_at(json_bytes);
    let json: Value = serde_json::from_slice(head).unwrap();
    let output = |output: &Value| {
        let name = output["name"].as_str().unwrap().to_owned();
        let elements = if let Some(size) = output["parameters"]["binary_data_size"].as_u64() {
            let (mine, rest) = tail.split_at(size as usize);
            tail = rest;
            match &*name {
                "sum" => mine.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect(),
                _ => mine.iter().map(|&byte| byte.into()).collect(),
            }
        } else {
            let data = output["data"].as_array().unwrap();
            data.iter().map(|value| value.as_f64().unwrap_or(f64::NAN)).collect()
        };
        let shape = output["shape"].as_array().unwrap().iter().map(|size| size.as_i64().unwrap()).collect();
        Output { name, shape, elements }
    };
    let outputs = json["outputs"].as_array().unwrap().iter().map(output).collect();
    (json["id"].as_str().map(Into::into), outputs)
}

/// Send one request; whether it was answered.
fn check(door: &Door, sent: &Sent) -> bool {
    let is_whole = sent.is_whole();
    let Some(reply) = sent.send(door) else {
        assert!(!is_whole, "no response to {}", String::from_utf8_lossy(&sent.bytes()));
        return false;
    };
    let shown = || format!("{} to {:?}", reply.0, String::from_utf8_lossy(&sent.bytes()));
    if reply.0 == 200 {
        let meaning = meaning(sent).unwrap_or_else(|| panic!("{} without a meaning", shown()));
        let (id, outputs) = read(&reply);
        assert_eq!(id, meaning.id, "{}", shown());
        let binary = reply.1.contains("inference-header-content-length");
        meaning.check(&outputs, !binary).unwrap_or_else(|wrong| panic!("{}: {wrong}", shown()));
        return true;
    }
    // hyper itself refuses lengths that are no numbers, without a body.
    if is_whole {
        assert!([400, 404, 413, 429, 504].contains(&reply.0), "{}", shown());
        let text = reply.error();
        assert!(text.contains(sent.about.unwrap_or_default()) && !text.is_empty(), "{}: {text:?}", shown());
    } else {
        assert!([400, 408, 411, 413, 431].contains(&reply.0), "{}", shown());
    }
    false
}

#[test]
fn requests_over_http_are_answered_by_their_meaning_or_refused() {
    let door = door_with(GENEROUS);
    let sent = changed();
    assert!((REQUESTS..REQUESTS * 2).contains(&sent.len()), "{}", sent.len());
    let answered: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = sent
            .chunks(sent.len().div_ceil(THREADS))
            .map(|part| scope.spawn(|| part.iter().filter(|one| check(&door, one)).count()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(
        (sent.len() / 50..sent.len() / 2).contains(&answered),
        "changes of every kind: {answered} answered"
    );
    nothing_is_left(&door);
    let (json, binary) = &bases()[2];
    assert!(check(&door, &Sent::of(json, binary)));
}
