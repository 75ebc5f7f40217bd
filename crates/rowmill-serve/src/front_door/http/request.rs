//! From a body to the tensors of a model.

use std::time::Duration;

use serde_json::Value;

use super::super::inputs::{Inputs, Slot, list};
use super::super::model::{Given, Model};
use super::super::outputs::Outputs;
use super::super::problem::Problem;
use super::super::{TIMEOUT_MAX, datatype};
use super::body::Parts;
use super::elements;
use crate::{Buffer, Elements};

/// A request that fits the signature.
pub(super) struct Request<'m> {
    pub(super) given: Given,
    pub(super) timeout: Option<Duration>,
    pub(super) options: ReplyOptions<'m>,
}

/// What the sender wants back.
pub(super) struct ReplyOptions<'m> {
    pub(super) id: Option<String>,
    /// What there is.
    pub(super) outputs: Outputs<'m>,
    /// Outputs by number, and whether each comes as binary data.
    pub(super) wanted: Vec<(usize, bool)>,
}

pub(super) fn parse<'m>(model: &'m Model, body: &Parts) -> Result<Request<'m>, Problem> {
    let json: Value = serde_json::from_slice(&body.json)
        .map_err(|error| Problem::invalid(format!("the request is not JSON: {error}")))?;
    let listed = json["inputs"].as_array().ok_or_else(|| Problem::invalid("inputs must be a list".into()))?;
    let mut binary = body.binary.clone();
    let mut inputs = Inputs::of(model);
    for input in listed {
        let name = input["name"].as_str().ok_or_else(|| Problem::invalid("an input has no name".into()))?;
        let slot = inputs.find(name)?;
        let (elements, shape, data) = parse_input(slot, input, &mut binary)?;
        inputs.insert(slot, elements, &shape, data)?;
    }
    if !binary.is_empty() {
        return Err(Problem::invalid(format!("{} bytes of binary data belong to no input", binary.len())));
    }
    Ok(Request {
        given: inputs.finish()?,
        timeout: parse_timeout(&json["parameters"]["timeout"])?,
        options: parse_options(model, &json)?,
    })
}

/// The elements of an input or column, its shape and its data.
fn parse_input(
    slot: Slot<'_>,
    input: &Value,
    binary: &mut Buffer,
) -> Result<(Elements, Vec<u64>, Buffer), Problem> {
    let datatype = &input["datatype"];
    let elements =
        slot.elements(datatype.as_str().ok_or_else(|| slot.wrong("datatype", datatype, slot.datatypes()))?)?;
    let sizes = input["shape"].as_array();
    let shape: Option<Vec<u64>> = sizes.and_then(|sizes| sizes.iter().map(Value::as_u64).collect());
    let shape = shape.ok_or_else(|| slot.wrong("shape", &input["shape"], list(&slot.sizes())))?;
    let bytes = slot.bytes(elements, &shape)?;
    let size = &input["parameters"]["binary_data_size"];
    if !size.is_null() {
        let given = size.as_u64().filter(|&given| bytes.is_none_or(|bytes| bytes as u64 == given));
        let Some(given) = given.map(|given| given as usize).filter(|&given| given <= binary.len()) else {
            let of_shape = bytes.map_or(String::new(), |bytes| format!("{bytes} for its shape and "));
            let expected = format!("{of_shape}at most {}, what is left of the body", binary.len());
            return Err(slot.wrong("binary_data_size", size, expected));
        };
        let data = binary.slice(0..given);
        *binary = binary.slice(given..binary.len());
        return Ok((elements, shape, data));
    }
    // Each element takes two characters at least, so the list bounds the memory.
    let (mut data, mut count) = (Vec::new(), 0);
    flatten(&input["data"], &mut |value| {
        count += 1;
        elements::push(&mut data, elements, value, matches!(slot, Slot::Column(..)))
    })
    .map_err(|value| slot.wrong("a value of data", value, datatype::of(elements)))?;
    let expected: u64 = shape.iter().product();
    if count != expected {
        return Err(slot.wrong("the number of values", count, expected));
    }
    Ok((elements, shape, Buffer::from(&data[..])))
}

/// Pass the elements of nested or flat lists to `push`; returns the first that it refuses.
fn flatten<'v>(value: &'v Value, push: &mut impl FnMut(&'v Value) -> Option<()>) -> Result<(), &'v Value> {
    match value.as_array() {
        Some(values) => values.iter().try_for_each(|value| flatten(value, push)),
        None => push(value).ok_or(value),
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

fn parse_options<'m>(model: &'m Model, json: &Value) -> Result<ReplyOptions<'m>, Problem> {
    let parameters = &json["parameters"];
    let outputs = Outputs::of(model, &parameters["top_k"], &parameters["top_k_output"])?;
    let all_binary = parameters["binary_data_output"].as_bool().unwrap_or(false);
    let wanted = match json["outputs"].as_array() {
        None => (0..outputs.specs.len()).map(|number| (number, all_binary)).collect(),
        Some(wanted) => {
            let output = |wanted: &Value| {
                let name = wanted["name"].as_str();
                let name = name.ok_or_else(|| {
                    Problem::invalid(format!("the name of an output is {}, must be text", wanted["name"]))
                })?;
                let is_binary = wanted["parameters"]["binary_data"].as_bool().unwrap_or(all_binary);
                Ok((outputs.find(name)?, is_binary))
            };
            wanted.iter().map(output).collect::<Result<_, Problem>>()?
        }
    };
    Ok(ReplyOptions { id: json["id"].as_str().map(Into::into), outputs, wanted })
}
