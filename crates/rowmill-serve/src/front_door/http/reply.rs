//! Converts the outputs of a model to a response.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::problem::Problem;
use super::super::{Model, datatype};
use super::body::JSON_BYTES;
use super::elements;
use super::request::ReplyOptions;
use crate::Tensor;

pub(super) fn encode(
    model: &Model,
    options: &ReplyOptions<'_>,
    outputs: &[Tensor],
) -> Result<Response, Problem> {
    let (mut entries, mut binary) = (Vec::new(), Vec::new());
    for &(number, is_binary) in &options.wanted {
        let spec = &options.outputs.specs[number];
        let output = options.outputs.tensor(number, outputs)?;
        let mut entry =
            json!({ "name": spec.name, "datatype": datatype::name(spec.dtype), "shape": output.shape });
        if is_binary {
            entry["parameters"] = json!({ "binary_data_size": output.data.len() });
            binary.extend_from_slice(&output.data);
        } else {
            entry["data"] = elements::values(spec.dtype, &output.data).ok_or_else(|| {
                let (name, datatype) = (&spec.name, datatype::name(spec.dtype));
                Problem::invalid(format!(
                    "output {name:?} has datatype {datatype}: ask for it as binary data"
                ))
            })?;
        }
        entries.push(entry);
    }
    let mut json =
        json!({ "model_name": model.name, "model_version": model.version, "outputs": Value::from(entries) });
    if let Some(id) = &options.id {
        json["id"] = json!(id);
    }
    if binary.is_empty() {
        return Ok(super::answer_json(StatusCode::OK, &json));
    }
    let mut body = json.to_string().into_bytes();
    let json_bytes = body.len().to_string();
    body.append(&mut binary);
    Ok(([("content-type", "application/octet-stream"), (JSON_BYTES, &json_bytes)], body).into_response())
}
