//! Table specs as dictionaries, such as `{"kind": "adagrad", "lr": 0.1, ...}`.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rowmill_rows::{Dtype, RowLayout};
use rowmill_store::{
    Admission, Eviction, EvictionRule, IdRange, Initializer, OptimizerSpec, StalenessBound, TableChange,
    TableSpec,
};

use crate::errors::invalid;

/// Bytes per row of `dim` weights of a dtype with an optimizer's state, in memory and on the device.
#[pyfunction]
pub(crate) fn row_stride(dim: usize, dtype: &str, optimizer: &Bound<'_, PyDict>) -> PyResult<usize> {
    let dtype = read_dtype(optimizer.py(), dtype)?;
    Ok(RowLayout::new(dim, dtype, &read_optimizer(optimizer)?, false).stride)
}

fn read_dtype(py: Python<'_>, name: &str) -> PyResult<Dtype> {
    Dtype::from_name(name).map_err(|error| invalid(py, error.to_string()))
}

/// Convert the arguments of `Store.table` to a spec.
#[allow(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
pub(crate) fn read_spec(
    dim: i64,
    dtype: &str,
    optimizer: &Bound<'_, PyDict>,
    initializer: &Bound<'_, PyDict>,
    staleness_bound: Option<i64>,
    dense_rows: Option<i64>,
    eviction: Option<&Bound<'_, PyDict>>,
    admission: Option<&Bound<'_, PyDict>>,
) -> PyResult<TableSpec> {
    let py = optimizer.py();
    let staleness = match staleness_bound {
        None => StalenessBound::Infinite,
        Some(bound) => StalenessBound::Steps(u8::try_from(bound).map_err(|_| {
            invalid(
                py,
                format!("staleness_bound must be between 0 and 255, or None for no bound, got {bound}"),
            )
        })?),
    };
    Ok(TableSpec {
        dim: u32::try_from(dim)
            .map_err(|_| invalid(py, format!("dim must be a positive number, got {dim}")))?,
        dtype: read_dtype(py, dtype)?,
        optimizer: read_optimizer(optimizer)?,
        initializer: read_initializer(initializer)?,
        staleness,
        ids: read_ids(py, dense_rows)?,
        eviction: eviction.map(read_eviction).transpose()?,
        admission: admission.map(read_admission).transpose()?,
    })
}

/// Number of ids, eviction and admission of one table, as `Store.open` gets them.
pub(crate) type NewRules<'py> = (String, Option<i64>, Option<Bound<'py, PyDict>>, Option<Bound<'py, PyDict>>);

/// Convert the argument `alter` of `Store.open`.
pub(crate) fn read_changes(
    py: Python<'_>,
    rules: Vec<NewRules<'_>>,
) -> PyResult<BTreeMap<String, TableChange>> {
    let change = |(name, rows, eviction, admission): NewRules<'_>| {
        let change = TableChange {
            ids: read_ids(py, rows)?,
            eviction: eviction.as_ref().map(read_eviction).transpose()?,
            admission: admission.as_ref().map(read_admission).transpose()?,
        };
        Ok((name, change))
    };
    rules.into_iter().map(change).collect()
}

fn read_ids(py: Python<'_>, dense_rows: Option<i64>) -> PyResult<IdRange> {
    let Some(rows) = dense_rows else { return Ok(IdRange::Sparse) };
    let rows =
        u64::try_from(rows).map_err(|_| invalid(py, format!("num_rows must be positive, got {rows}")))?;
    Ok(IdRange::Dense { rows })
}

fn read_eviction(spec: &Bound<'_, PyDict>) -> PyResult<Eviction> {
    let count = |name: &str| -> PyResult<u64> { spec.as_any().get_item(name)?.extract() };
    let rule = match kind(spec)?.as_str() {
        "ttl_steps" => EvictionRule::TtlSteps { steps: count("steps")? },
        "ttl_seconds" => EvictionRule::TtlSeconds { seconds: count("seconds")? },
        "least_frequent" => EvictionRule::LeastFrequent { max_rows: count("max_rows")? },
        "lowest_score" => EvictionRule::LowestScore { max_rows: count("max_rows")? },
        "lowest_norm" => EvictionRule::LowestNorm { max_rows: count("max_rows")? },
        "norm_below" => EvictionRule::NormBelow { norm: number(spec, "eviction", "below")? },
        other => return Err(invalid(spec.py(), format!("unknown eviction {other:?}"))),
    };
    Ok(Eviction { rule, every: count("every")? })
}

fn read_admission(spec: &Bound<'_, PyDict>) -> PyResult<Admission> {
    let min_count = spec.as_any().get_item("min_count")?.extract()?;
    Ok(Admission { min_count, bytes: spec.as_any().get_item("bytes")?.extract()? })
}

/// Convert an eviction to a dictionary.
pub(crate) fn eviction_dict<'py>(py: Python<'py>, eviction: &Eviction) -> PyResult<Bound<'py, PyDict>> {
    let spec = match eviction.rule {
        EvictionRule::TtlSteps { steps } => counted(py, "ttl_steps", "steps", steps)?,
        EvictionRule::TtlSeconds { seconds } => counted(py, "ttl_seconds", "seconds", seconds)?,
        EvictionRule::LeastFrequent { max_rows } => counted(py, "least_frequent", "max_rows", max_rows)?,
        EvictionRule::LowestScore { max_rows } => counted(py, "lowest_score", "max_rows", max_rows)?,
        EvictionRule::LowestNorm { max_rows } => counted(py, "lowest_norm", "max_rows", max_rows)?,
        EvictionRule::NormBelow { norm } => dict(py, "norm_below", &[("below", norm)])?,
    };
    spec.set_item("every", eviction.every)?;
    Ok(spec)
}

/// Convert an admission to a dictionary.
pub(crate) fn admission_dict<'py>(py: Python<'py>, admission: &Admission) -> PyResult<Bound<'py, PyDict>> {
    let spec = PyDict::new(py);
    spec.set_item("min_count", admission.min_count)?;
    spec.set_item("bytes", admission.bytes)?;
    Ok(spec)
}

fn counted<'py>(py: Python<'py>, kind: &str, name: &str, value: u64) -> PyResult<Bound<'py, PyDict>> {
    let spec = PyDict::new(py);
    spec.set_item("kind", kind)?;
    spec.set_item(name, value)?;
    Ok(spec)
}

fn read_optimizer(spec: &Bound<'_, PyDict>) -> PyResult<OptimizerSpec> {
    let value = |name| number(spec, "optimizer", name);
    let (lr, initial) = (value("lr"), "initial_accumulator");
    Ok(match kind(spec)?.as_str() {
        "sgd" => OptimizerSpec::Sgd { lr: lr? },
        "momentum_sgd" => OptimizerSpec::MomentumSgd {
            lr: lr?,
            momentum: value("momentum")?,
            nesterov: switch(spec, "nesterov")?,
        },
        "adagrad" => {
            OptimizerSpec::Adagrad { lr: lr?, eps: value("eps")?, initial_accumulator: value(initial)? }
        }
        "rowwise_adagrad" => OptimizerSpec::RowwiseAdagrad {
            lr: lr?,
            eps: value("eps")?,
            initial_accumulator: value(initial)?,
        },
        "adam" => OptimizerSpec::Adam {
            lr: lr?,
            beta1: value("beta1")?,
            beta2: value("beta2")?,
            eps: value("eps")?,
        },
        "rowwise_adam" => OptimizerSpec::RowwiseAdam {
            lr: lr?,
            beta1: value("beta1")?,
            beta2: value("beta2")?,
            eps: value("eps")?,
        },
        "ftrl" => OptimizerSpec::Ftrl {
            lr: lr?,
            beta: value("beta")?,
            l1: value("l1")?,
            l2: value("l2")?,
            initial_accumulator: value(initial)?,
        },
        other => return Err(invalid(spec.py(), format!("unknown optimizer {other:?}"))),
    })
}

fn read_initializer(spec: &Bound<'_, PyDict>) -> PyResult<Initializer> {
    let value = |name| number(spec, "initializer", name);
    Ok(match kind(spec)?.as_str() {
        "zeros" => Initializer::Zeros,
        "constant" => Initializer::Constant { value: value("value")? },
        "uniform" => Initializer::Uniform { low: value("low")?, high: value("high")? },
        "normal" => Initializer::Normal { mean: value("mean")?, std: value("std")? },
        "truncated_normal" => Initializer::TruncatedNormal {
            mean: value("mean")?,
            std: value("std")?,
            low: value("low")?,
            high: value("high")?,
        },
        other => return Err(invalid(spec.py(), format!("unknown initializer {other:?}"))),
    })
}

/// Convert an optimizer to a dictionary.
pub(crate) fn optimizer_dict<'py>(
    py: Python<'py>,
    optimizer: &OptimizerSpec,
) -> PyResult<Bound<'py, PyDict>> {
    match *optimizer {
        OptimizerSpec::Sgd { lr } => dict(py, "sgd", &[("lr", lr)]),
        OptimizerSpec::MomentumSgd { lr, momentum, nesterov } => {
            let spec = dict(py, "momentum_sgd", &[("lr", lr), ("momentum", momentum)])?;
            spec.set_item("nesterov", nesterov)?;
            Ok(spec)
        }
        OptimizerSpec::Adagrad { lr, eps, initial_accumulator } => {
            dict(py, "adagrad", &[("lr", lr), ("eps", eps), ("initial_accumulator", initial_accumulator)])
        }
        OptimizerSpec::RowwiseAdagrad { lr, eps, initial_accumulator } => dict(
            py,
            "rowwise_adagrad",
            &[("lr", lr), ("eps", eps), ("initial_accumulator", initial_accumulator)],
        ),
        OptimizerSpec::Adam { lr, beta1, beta2, eps } => {
            dict(py, "adam", &[("lr", lr), ("beta1", beta1), ("beta2", beta2), ("eps", eps)])
        }
        OptimizerSpec::RowwiseAdam { lr, beta1, beta2, eps } => {
            dict(py, "rowwise_adam", &[("lr", lr), ("beta1", beta1), ("beta2", beta2), ("eps", eps)])
        }
        OptimizerSpec::Ftrl { lr, beta, l1, l2, initial_accumulator } => dict(
            py,
            "ftrl",
            &[
                ("lr", lr),
                ("beta", beta),
                ("l1", l1),
                ("l2", l2),
                ("initial_accumulator", initial_accumulator),
            ],
        ),
    }
}

/// Convert an initializer to a dictionary.
pub(crate) fn initializer_dict<'py>(
    py: Python<'py>,
    initializer: &Initializer,
) -> PyResult<Bound<'py, PyDict>> {
    match *initializer {
        Initializer::Zeros => dict(py, "zeros", &[]),
        Initializer::Constant { value } => dict(py, "constant", &[("value", value)]),
        Initializer::Uniform { low, high } => dict(py, "uniform", &[("low", low), ("high", high)]),
        Initializer::Normal { mean, std } => dict(py, "normal", &[("mean", mean), ("std", std)]),
        Initializer::TruncatedNormal { mean, std, low, high } => {
            dict(py, "truncated_normal", &[("mean", mean), ("std", std), ("low", low), ("high", high)])
        }
    }
}

fn kind(spec: &Bound<'_, PyDict>) -> PyResult<String> {
    spec.as_any().get_item("kind")?.extract()
}

fn number(spec: &Bound<'_, PyDict>, what: &str, name: &str) -> PyResult<f32> {
    let value = spec.as_any().get_item(name)?;
    let wrong = |_| invalid(spec.py(), format!("{what} {name} must be a number, got {value:?}"));
    value.extract().map_err(wrong)
}

fn switch(spec: &Bound<'_, PyDict>, name: &str) -> PyResult<bool> {
    let value = spec.as_any().get_item(name)?;
    let wrong = |_| invalid(spec.py(), format!("optimizer {name} must be True or False, got {value:?}"));
    value.extract().map_err(wrong)
}

fn dict<'py>(py: Python<'py>, kind: &str, fields: &[(&str, f32)]) -> PyResult<Bound<'py, PyDict>> {
    let spec = PyDict::new(py);
    spec.set_item("kind", kind)?;
    for (name, value) in fields {
        // The shortest decimal of the f32: a user who wrote 0.1 reads 0.1, not 0.10000000149.
        let shortest: f64 = value.to_string().parse().expect("a float prints as a number");
        spec.set_item(name, shortest)?;
    }
    Ok(spec)
}
