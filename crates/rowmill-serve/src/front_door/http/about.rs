//! Metadata of the server and of its models, as JSON.

use serde_json::{Map, Value, json};

use super::super::model::{Model, TensorSpec};
use super::super::statistics::{Counted, counted};
use super::super::{EXTENSIONS, PLATFORM, SERVER, datatype};

pub(super) fn server() -> Value {
    json!({ "name": SERVER, "version": env!("CARGO_PKG_VERSION"), "extensions": EXTENSIONS })
}

pub(super) fn metadata(model: &Model) -> Value {
    let tensor = |spec: &TensorSpec| json!({ "name": spec.name, "datatype": datatype::name(spec.dtype), "shape": spec.sizes() });
    json!({
        "name": model.name,
        "versions": [model.version],
        "platform": PLATFORM,
        "inputs": model.inputs.iter().map(tensor).collect::<Vec<_>>(),
        "outputs": model.outputs.iter().map(tensor).collect::<Vec<_>>(),
    })
}

pub(super) fn config(model: &Model) -> Value {
    let tensor = |spec: &TensorSpec| {
        let datatype = format!("TYPE_{}", datatype::name(spec.dtype));
        json!({ "name": spec.name, "data_type": datatype, "dims": spec.sizes() })
    };
    let texts = model.parameters().into_iter();
    let parameters = texts.map(|(name, text)| (name, json!({ "string_value": text })));
    json!({
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": 0,
        "input": model.inputs.iter().map(tensor).collect::<Vec<_>>(),
        "output": model.outputs.iter().map(tensor).collect::<Vec<_>>(),
        "parameters": parameters.collect::<Map<_, _>>(),
    })
}

pub(super) fn statistics(model: &Model) -> Value {
    let (answered, failed) = counted(&model.metrics);
    let json = |counted: &Counted| json!({ "count": counted.count, "ns": counted.ns });
    json!({
        "name": model.name,
        "version": model.version,
        "inference_count": answered.count,
        "inference_stats": { "success": json(&answered), "fail": json(&failed) },
    })
}

pub(super) fn state(model: &Model) -> Value {
    let (state, reason) = model.state();
    json!({ "name": model.name, "version": model.version, "state": state, "reason": reason })
}
