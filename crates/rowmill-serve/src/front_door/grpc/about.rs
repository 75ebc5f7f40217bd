//! Metadata of the server and of its models, as messages.

use super::super::model::{Model, TensorSpec};
use super::super::statistics::{Counted, counted};
use super::super::{EXTENSIONS, PLATFORM, SERVER, datatype};
use super::messages::model_metadata_response::TensorMetadata;
use super::messages::repository_index_response::ModelIndex;
use super::messages::{
    DataType, InferStatistics, ModelConfig, ModelInput, ModelMetadataResponse, ModelOutput, ModelParameter,
    ModelStatistics, ServerMetadataResponse, StatisticDuration,
};
use crate::DType;

pub(super) fn server() -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: SERVER.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        extensions: EXTENSIONS.map(Into::into).into(),
    }
}

pub(super) fn metadata(model: &Model) -> ModelMetadataResponse {
    let tensor = |spec: &TensorSpec| TensorMetadata {
        name: spec.name.clone(),
        datatype: datatype::name(spec.dtype).into(),
        shape: spec.sizes(),
    };
    ModelMetadataResponse {
        name: model.name.clone(),
        versions: vec![model.version.clone()],
        platform: PLATFORM.into(),
        inputs: model.inputs.iter().map(tensor).collect(),
        outputs: model.outputs.iter().map(tensor).collect(),
    }
}

pub(super) fn config(model: &Model) -> ModelConfig {
    let input = |spec: &TensorSpec| ModelInput {
        name: spec.name.clone(),
        data_type: data_type(spec.dtype).into(),
        dims: spec.sizes(),
    };
    let output = |spec: &TensorSpec| ModelOutput {
        name: spec.name.clone(),
        data_type: data_type(spec.dtype).into(),
        dims: spec.sizes(),
    };
    let parameter = |(name, text): (String, String)| (name, ModelParameter { string_value: text });
    ModelConfig {
        name: model.name.clone(),
        platform: PLATFORM.into(),
        backend: PLATFORM.into(),
        max_batch_size: 0,
        input: model.inputs.iter().map(input).collect(),
        output: model.outputs.iter().map(output).collect(),
        parameters: model.parameters().into_iter().map(parameter).collect(),
    }
}

/// The number of the type whose name in a configuration is `TYPE_` and the protocol's name.
fn data_type(dtype: DType) -> DataType {
    DataType::from_str_name(&format!("TYPE_{}", datatype::name(dtype))).unwrap_or(DataType::TypeInvalid)
}

pub(super) fn statistics(model: &Model) -> ModelStatistics {
    let (answered, failed) = counted(&model.metrics);
    let duration = |counted: &Counted| Some(StatisticDuration { count: counted.count, ns: counted.ns });
    ModelStatistics {
        name: model.name.clone(),
        version: model.version.clone(),
        inference_count: answered.count,
        inference_stats: Some(InferStatistics { success: duration(&answered), fail: duration(&failed) }),
    }
}

pub(super) fn state(model: &Model) -> ModelIndex {
    let (state, reason) = model.state();
    ModelIndex {
        name: model.name.clone(),
        version: model.version.clone(),
        state: state.into(),
        reason: reason.into(),
    }
}
