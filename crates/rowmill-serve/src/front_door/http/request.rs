//! From a body to the tensors of a model.

use std::time::Duration;

use serde_json::Value;

use super::super::inputs::{Inputs, list};
use super::super::model::{Model, TensorSpec};
use super::super::problem::Problem;
use super::super::{TIMEOUT_MAX, datatype};
use super::body::Parts;
use super::elements;
use crate::{Buffer, Tensor};

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
    let listed = json["inputs"].as_array().ok_or_else(|| Problem::invalid("inputs must be a list".into()))?;
    let mut binary = body.binary.clone();
    let mut inputs = Inputs::of(model);
    for input in listed {
        let name = input["name"].as_str().ok_or_else(|| Problem::invalid("an input has no name".into()))?;
        let (number, spec) = inputs.find(name)?;
        let (shape, data) = parse_input(spec, input, &mut binary)?;
        inputs.insert(number, &shape, data)?;
    }
    if !binary.is_empty() {
        return Err(Problem::invalid(format!("{} bytes of binary data belong to no input", binary.len())));
    }
    Ok(Request {
        tensors: inputs.finish()?,
        timeout: parse_timeout(&json["parameters"]["timeout"])?,
        options: parse_options(model, &json)?,
    })
}

/// The shape of an input and its data.
fn parse_input(spec: &TensorSpec, input: &Value, binary: &mut Buffer) -> Result<(Vec<u64>, Buffer), Problem> {
    let expected = datatype::name(spec.dtype);
    let datatype = &input["datatype"];
    spec.check_datatype(datatype.as_str().ok_or_else(|| spec.wrong("datatype", datatype, expected))?)?;
    let sizes = input["shape"].as_array();
    let shape: Option<Vec<u64>> = sizes.and_then(|sizes| sizes.iter().map(Value::as_u64).collect());
    let shape = shape.ok_or_else(|| spec.wrong("shape", &input["shape"], list(&spec.sizes())))?;
    let bytes = spec.bytes(&shape)?;
    let size = &input["parameters"]["binary_data_size"];
    if !size.is_null() {
        if size.as_u64() != Some(bytes as u64) || bytes > binary.len() {
            let expected =
                format!("{bytes} for its shape and at most {}, what is left of the body", binary.len());
            return Err(spec.wrong("binary_data_size", size, expected));
        }
        let data = binary.slice(0..bytes);
        *binary = binary.slice(bytes..binary.len());
        return Ok((shape, data));
    }
    // Each element takes two characters at least, so the list bounds the memory.
    let mut data = Vec::new();
    flatten(&input["data"], spec, &mut data)
        .map_err(|value| spec.wrong("a value of data", value, expected))?;
    if data.len() != bytes {
        let element = spec.dtype.bytes();
        return Err(spec.wrong("the number of values", data.len() / element, bytes / element));
    }
    Ok((shape, Buffer::from(&data[..])))
}

/// Append the elements of nested or flat lists; the value that is no element.
fn flatten<'v>(value: &'v Value, spec: &TensorSpec, data: &mut Vec<u8>) -> Result<(), &'v Value> {
    match value.as_array() {
        Some(values) => values.iter().try_for_each(|value| flatten(value, spec, data)),
        None => elements::push(data, spec.dtype, value).ok_or(value),
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

fn parse_options(model: &Model, json: &Value) -> Result<ReplyOptions, Problem> {
    let all_binary = json["parameters"]["binary_data_output"].as_bool().unwrap_or(false);
    let outputs = match json["outputs"].as_array() {
        None => (0..model.outputs.len()).map(|number| (number, all_binary)).collect(),
        Some(wanted) => {
            let output = |wanted: &Value| {
                let name = wanted["name"].as_str();
                let name = name.ok_or_else(|| {
                    Problem::invalid(format!("the name of an output is {}, must be text", wanted["name"]))
                })?;
                let number = model.find_output(name)?;
                Ok((number, wanted["parameters"]["binary_data"].as_bool().unwrap_or(all_binary)))
            };
            wanted.iter().map(output).collect::<Result<_, Problem>>()?
        }
    };
    Ok(ReplyOptions { id: json["id"].as_str().map(Into::into), outputs })
}
