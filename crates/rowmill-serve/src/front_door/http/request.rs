//! Converts a request body to the inputs of a model.

use std::fmt::Display;
use std::time::Duration;

use serde_json::Value;

use super::super::call;
use super::super::datatype;
use super::super::inputs::{Inputs, Slot, check_parameters, list};
use super::super::model::{Given, Model};
use super::super::outputs::Outputs;
use super::super::problem::Problem;
use super::elements;
use crate::{Buffer, Elements};

/// A request that fits the signature.
pub(super) struct Request<'m> {
    pub(super) given: Given,
    pub(super) options: ReplyOptions<'m>,
}

/// The requested outputs.
pub(super) struct ReplyOptions<'m> {
    pub(super) id: Option<String>,
    /// What there is.
    pub(super) outputs: Outputs<'m>,
    /// Outputs by number, and whether each comes as binary data.
    pub(super) wanted: Vec<(usize, bool)>,
}

/// The JSON part of a body.
pub(super) fn json(part: &[u8]) -> Result<Value, Problem> {
    serde_json::from_slice(part)
        .map_err(|error| Problem::invalid(format!("the request is not JSON: {error}")))
}

/// The time that the request allows for its answer.
pub(super) fn timeout(json: &Value) -> Result<Option<Duration>, Problem> {
    call::timeout(&object(&json["parameters"], "parameters")?["timeout"])
}

/// What the JSON part says, with the binary data behind it.
pub(super) fn parse<'m>(model: &'m Model, json: &Value, mut binary: Buffer) -> Result<Request<'m>, Problem> {
    let listed = json["inputs"].as_array().ok_or_else(|| Problem::invalid("inputs must be a list".into()))?;
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
    Ok(Request { given: inputs.finish()?, options: parse_options(model, json)? })
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
    let parameters = object(&input["parameters"], format_args!("parameters of {slot}"))?;
    check_parameters(slot, |name| !parameters[name].is_null())?;
    let size = &parameters["binary_data_size"];
    if !size.is_null() {
        if !input["data"].is_null() {
            return Err(slot.wrong("data", "given beside binary_data_size", "given alone"));
        }
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
    let is_raw = matches!(slot, Slot::Column(..));
    flatten(slot, &input["data"], &shape, true, &mut |value| {
        count += 1;
        let pushed = elements::push(&mut data, elements, value, is_raw);
        pushed.ok_or_else(|| slot.wrong("a value of data", value, datatype::of(elements)))
    })?;
    let expected: u64 = shape.iter().product();
    if count != expected {
        return Err(slot.wrong("the number of values", count, expected));
    }
    Ok((elements, shape, Buffer::from(&data[..])))
}

/// Pass the elements of one list, or of lists in lists as the shape has them, to `push`.
fn flatten(
    slot: Slot<'_>,
    list: &Value,
    shape: &[u64],
    is_whole: bool,
    push: &mut impl FnMut(&Value) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let values = list.as_array().ok_or_else(|| slot.wrong("data", list, "a list, or lists in lists"))?;
    let is_nested = shape.len() > 1 && values.iter().any(Value::is_array);
    let (&size, inner) = shape.split_first().unwrap_or((&1, &[]));
    if (is_nested || !is_whole) && values.len() as u64 != size {
        return Err(slot.wrong("a list of data", list, format_args!("of {size} values")));
    }
    values.iter().try_for_each(
        |value| {
            if is_nested { flatten(slot, value, inner, false, push) } else { push(value) }
        },
    )
}

fn parse_options<'m>(model: &'m Model, json: &Value) -> Result<ReplyOptions<'m>, Problem> {
    let parameters = &json["parameters"];
    let outputs = Outputs::of(model, &parameters["top_k"], &parameters["top_k_output"])?;
    let all_binary = flag(&parameters["binary_data_output"], "binary_data_output")?.unwrap_or(false);
    let id = match &json["id"] {
        Value::Null => None,
        Value::String(id) => Some(id.clone()),
        id => return Err(Problem::invalid(format!("id is {id}, must be text"))),
    };
    let wanted: Vec<(usize, bool)> = match &json["outputs"] {
        Value::Null => (0..outputs.specs.len()).map(|number| (number, all_binary)).collect(),
        Value::Array(wanted) => {
            let output = |wanted: &Value| {
                let name = wanted["name"].as_str();
                let name = name.ok_or_else(|| {
                    Problem::invalid(format!("the name of an output is {}, must be text", wanted["name"]))
                })?;
                let output = format!("output {name:?}");
                let parameters = object(&wanted["parameters"], format_args!("parameters of {output}"))?;
                check_parameters(output, |name| !parameters[name].is_null())?;
                let is_binary = flag(&parameters["binary_data"], "binary_data")?.unwrap_or(all_binary);
                Ok((outputs.find(name)?, is_binary))
            };
            wanted.iter().map(output).collect::<Result<_, Problem>>()?
        }
        other => return Err(Problem::invalid(format!("outputs is {other}, must be a list"))),
    };
    outputs.check_distinct(wanted.iter().map(|&(number, _)| number))?;
    Ok(ReplyOptions { id, outputs, wanted })
}

/// An object, or null in its place.
fn object(value: &Value, name: impl Display) -> Result<&Value, Problem> {
    match value {
        Value::Object(_) | Value::Null => Ok(value),
        other => Err(Problem::invalid(format!("{name} is {other}, must be an object"))),
    }
}

fn flag(value: &Value, name: &str) -> Result<Option<bool>, Problem> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(flag) => Ok(Some(*flag)),
        other => Err(Problem::invalid(format!("{name} is {other}, must be true or false"))),
    }
}
