//! Converts a message and its raw tensors to the inputs of a model.

use std::fmt::Display;
use std::time::Duration;

use prost::Message;

use super::super::call::timeout;
use super::super::inputs::{Inputs, Slot, check_parameters, list};
use super::super::model::{Given, Model};
use super::super::outputs::Outputs;
use super::super::problem::Problem;
use super::messages::ModelInferRequest;
use super::messages::model_infer_request::InferInputTensor;
use super::split::Split;
use super::{contents, parameter};
use crate::{Buffer, Elements};

/// A message and its raw tensors.
pub(super) struct Request {
    pub(super) message: ModelInferRequest,
    raw: Vec<Buffer>,
}

/// A request that fits the signature.
pub(super) struct Fitting<'m> {
    pub(super) given: Given,
    pub(super) timeout: Option<Duration>,
    pub(super) id: String,
    /// What there is.
    pub(super) outputs: Outputs<'m>,
    /// The requested outputs, by number.
    pub(super) wanted: Vec<usize>,
}

impl Request {
    /// Decode a message whose raw tensors lie in `memory`.
    pub(super) fn decode(split: &Split, memory: &Buffer) -> Result<Self, Problem> {
        let spoiled =
            |why: &dyn Display| Problem::invalid(format!("the message is not a ModelInferRequest: {why}"));
        if !split.is_whole() {
            return Err(spoiled(&"it ends inside of a field"));
        }
        let message = ModelInferRequest::decode(&split.rest[..]).map_err(|error| spoiled(&error))?;
        let raw = split.raw.iter().map(|place| memory.slice(place.clone())).collect();
        Ok(Self { message, raw })
    }

    /// The request as its model takes it.
    pub(super) fn fit(self, model: &Model) -> Result<Fitting<'_>, Problem> {
        let Self { message, raw } = self;
        if !raw.is_empty() && raw.len() != message.inputs.len() {
            return Err(Problem::invalid(format!(
                "there are {} raw_input_contents, must be none or one for each of the {} inputs",
                raw.len(),
                message.inputs.len()
            )));
        }
        let mut raw = raw.into_iter();
        let mut inputs = Inputs::of(model);
        for input in &message.inputs {
            let slot = inputs.find(&input.name)?;
            let (elements, shape, data) = fit_input(slot, input, raw.next())?;
            inputs.insert(slot, elements, &shape, data)?;
        }
        let parameter = |name: &str| parameter::value(&message.parameters, name);
        let outputs = Outputs::of(model, &parameter("top_k"), &parameter("top_k_output"))?;
        let wanted = message.outputs.iter().map(|output| {
            let has = |name: &str| output.parameters.contains_key(name);
            check_parameters(format_args!("output {:?}", output.name), has)?;
            outputs.find(&output.name)
        });
        let wanted: Vec<usize> = wanted.collect::<Result<_, _>>()?;
        outputs.check_distinct(wanted.iter().copied())?;
        Ok(Fitting {
            given: inputs.finish()?,
            timeout: timeout(&parameter("timeout"))?,
            id: message.id,
            wanted: if wanted.is_empty() { (0..outputs.specs.len()).collect() } else { wanted },
            outputs,
        })
    }
}

/// The elements of an input or column, its shape and its data.
fn fit_input(
    slot: Slot<'_>,
    input: &InferInputTensor,
    raw: Option<Buffer>,
) -> Result<(Elements, Vec<u64>, Buffer), Problem> {
    check_parameters(slot, |name| input.parameters.contains_key(name))?;
    let elements = slot.elements(&input.datatype)?;
    let shape: Option<Vec<u64>> = input.shape.iter().map(|&size| u64::try_from(size).ok()).collect();
    let shape = shape.ok_or_else(|| slot.wrong("shape", list(&input.shape), list(&slot.sizes())))?;
    let bytes = slot.bytes(elements, &shape)?;
    let Some(raw) = raw else {
        let (data, count) = contents::bytes(slot, elements, input.contents.as_ref())?;
        let expected: u64 = shape.iter().product();
        if count as u64 != expected {
            return Err(slot.wrong("the number of values", count, expected));
        }
        return Ok((elements, shape, Buffer::from(&data[..])));
    };
    if input.contents.is_some() {
        return Err(slot.wrong("contents", "given beside raw_input_contents", "given alone"));
    }
    if let Some(bytes) = bytes.filter(|&bytes| bytes != raw.len()) {
        return Err(slot.wrong("the number of raw bytes", raw.len(), format_args!("{bytes} for its shape")));
    }
    Ok((elements, shape, raw))
}
