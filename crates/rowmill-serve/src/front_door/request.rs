//! From a body to the tensors of a model.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::body::Parts;
use super::datatype;
use super::model::{Model, TensorSpec};
use super::problem::Problem;
use crate::messages::bytes_of;
use crate::{Arena, Buffer, Tensor, TensorName};

/// A request that fits the signature.
pub(super) struct Request {
    pub(super) tensors: Vec<Tensor>,
    pub(super) timeout: Option<Duration>,
    pub(super) options: ReplyOptions,
}

/// What the sender wants back.
pub(super) struct ReplyOptions {
    pub(super) id: Option<String>,
    /// Outputs by number, and whether each comes as binary data.
    pub(super) outputs: Vec<(usize, bool)>,
}

pub(super) fn parse(model: &Model, body: &Parts) -> Result<Request, Problem> {
    let json: Value = serde_json::from_slice(&body.json)
        .map_err(|error| Problem::invalid(format!("the request is not JSON: {error}")))?;
    let inputs = json["inputs"].as_array().ok_or_else(|| Problem::invalid("inputs must be a list".into()))?;
    let mut binary = body.binary.clone();
    let mut found: HashMap<&str, Tensor> = HashMap::new();
    for input in inputs {
        let name = input["name"].as_str().ok_or_else(|| Problem::invalid("an input has no name".into()))?;
        let position = model.inputs.iter().position(|spec| is_name_of(spec, name));
        let number = position.ok_or_else(|| {
            let names: Vec<_> = model.inputs.iter().map(|spec| &spec.name).collect();
            Problem::invalid(format!(
                "model {:?} has no input {name:?}, its inputs are {names:?}",
                model.name
            ))
        })?;
        let tensor = parse_input(&model.inputs[number], number, input, &mut binary)?;
        if found.insert(&model.inputs[number].name, tensor).is_some() {
            return Err(Problem::invalid(format!("input {name:?} occurs twice")));
        }
    }
    if !binary.is_empty() {
        return Err(Problem::invalid(format!("{} bytes of binary data belong to no input", binary.len())));
    }
    let missing = |spec: &TensorSpec| Problem::invalid(format!("input {:?} is missing", spec.name));
    let tensors =
        model.inputs.iter().map(|spec| found.remove(spec.name.as_str()).ok_or_else(|| missing(spec)));
    Ok(Request {
        tensors: tensors.collect::<Result<_, _>>()?,
        timeout: parse_timeout(&json["parameters"]["timeout"])?,
        options: parse_options(model, &json)?,
    })
}

/// Parts of a ragged input `X` are called `X.values`, `X.offsets` and `X.weights`; a signature has `_` in place of the dot.
fn is_name_of(spec: &TensorSpec, name: &str) -> bool {
    spec.name == name
        || name.rsplit_once('.').is_some_and(|(of, part)| {
            matches!(part, "values" | "offsets" | "weights")
                && spec.name.strip_suffix(part).and_then(|rest| rest.strip_suffix('_')) == Some(of)
        })
}

fn parse_input(
    spec: &TensorSpec,
    number: usize,
    input: &Value,
    binary: &mut Buffer,
) -> Result<Tensor, Problem> {
    let wrong = |field: &str, found: &Value, expected: &str| {
        Err(Problem::invalid(format!("input {:?}: {field} is {found}, must be {expected}", spec.name)))
    };
    if input["datatype"] != datatype::name(spec.dtype) {
        return wrong("datatype", &input["datatype"], datatype::name(spec.dtype));
    }
    let shape: Option<Vec<u64>> =
        input["shape"].as_array().and_then(|sizes| sizes.iter().map(Value::as_u64).collect());
    let Some(shape) = shape.filter(|shape| spec.fits(shape)) else {
        return wrong("shape", &input["shape"], &spec.shape_json().to_string());
    };
    let Some(bytes) = bytes_of(spec.dtype, &shape).and_then(|bytes| usize::try_from(bytes).ok()) else {
        return wrong("shape", &input["shape"], "of a size that fits into memory");
    };
    let size = &input["parameters"]["binary_data_size"];
    let data = if size.is_null() {
        // Each element takes two characters at least, so the list bounds the memory.
        let mut data = Vec::new();
        if let Err(value) = flatten(&input["data"], spec, &mut data) {
            return wrong("a value of data", value, datatype::name(spec.dtype));
        }
        if data.len() != bytes {
            let found = Value::from(data.len() / spec.dtype.bytes());
            return wrong("the number of values", &found, &(bytes / spec.dtype.bytes()).to_string());
        }
        Buffer::from(&data[..])
    } else {
        if size.as_u64() != Some(bytes as u64) || bytes > binary.len() {
            let expected =
                format!("{bytes} for its shape and at most {}, what is left of the body", binary.len());
            return wrong("binary_data_size", size, &expected);
        }
        let data = binary.slice(0..bytes);
        *binary = binary.slice(bytes..binary.len());
        data
    };
    Ok(Tensor::new(TensorName::Number(number as u16), spec.dtype, &shape, data))
}

/// Append the elements of nested or flat lists; the value that is no element.
fn flatten<'v>(value: &'v Value, spec: &TensorSpec, data: &mut Vec<u8>) -> Result<(), &'v Value> {
    match value.as_array() {
        Some(values) => values.iter().try_for_each(|value| flatten(value, spec, data)),
        None => datatype::push(data, spec.dtype, value).ok_or(value),
    }
}

fn parse_timeout(value: &Value) -> Result<Option<Duration>, Problem> {
    // Some clients send it as text. 0 means that there is none.
    let micros = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    match micros {
        Some(0) => Ok(None),
        Some(micros) => Ok(Some(Duration::from_micros(micros).min(TIMEOUT_MAX))),
        None if value.is_null() => Ok(None),
        None => Err(Problem::invalid(format!("timeout is {value}, must be a number of microseconds"))),
    }
}

/// Longer timeouts are as good as this one.
const TIMEOUT_MAX: Duration = Duration::from_hours(1);

fn parse_options(model: &Model, json: &Value) -> Result<ReplyOptions, Problem> {
    let all_binary = json["parameters"]["binary_data_output"].as_bool().unwrap_or(false);
    let outputs = match json["outputs"].as_array() {
        None => (0..model.outputs.len()).map(|number| (number, all_binary)).collect(),
        Some(wanted) => {
            let output = |wanted: &Value| {
                let number = model.outputs.iter().position(|spec| wanted["name"] == spec.name.as_str());
                let number = number.ok_or_else(|| {
                    Problem::invalid(format!("model {:?} has no output {}", model.name, wanted["name"]))
                })?;
                Ok((number, wanted["parameters"]["binary_data"].as_bool().unwrap_or(all_binary)))
            };
            wanted.iter().map(output).collect::<Result<_, Problem>>()?
        }
    };
    Ok(ReplyOptions { id: json["id"].as_str().map(Into::into), outputs })
}

/// Move tensors that do not begin at a multiple of their element size to memory that does.
pub(super) async fn aligned(
    mut tensors: Vec<Tensor>,
    arena: &Arena,
    room_by: Instant,
) -> Result<Vec<Tensor>, Problem> {
    for tensor in &mut tensors {
        if !tensor.data.as_ptr().addr().is_multiple_of(tensor.dtype.bytes()) {
            let mut lease = arena.lease_by(tensor.data.len(), room_by).await?;
            lease.copy_from_slice(&tensor.data);
            tensor.data = lease.share();
        }
    }
    Ok(tensors)
}
