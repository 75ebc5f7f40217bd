//! Parameters of a request, as the JSON values that they have over HTTP.

use std::collections::HashMap;

use serde_json::{Number, Value};

use super::messages::InferParameter;
use super::messages::infer_parameter::ParameterChoice::{
    BoolParam, DoubleParam, Int64Param, StringParam, Uint64Param,
};

/// The value of a parameter; null where it is not given.
pub(super) fn value(parameters: &HashMap<String, InferParameter>, name: &str) -> Value {
    let Some(parameter) = parameters.get(name) else { return Value::Null };
    match &parameter.parameter_choice {
        Some(BoolParam(value)) => Value::from(*value),
        Some(Int64Param(value)) => Value::from(*value),
        Some(Uint64Param(value)) => Value::from(*value),
        Some(StringParam(value)) => Value::from(value.as_str()),
        // NaN and infinities have no number in JSON.
        Some(DoubleParam(value)) => {
            Number::from_f64(*value).map_or_else(|| Value::from(value.to_string()), Value::from)
        }
        // Given without a value, which is no value of any parameter.
        None => Value::from(""),
    }
}
