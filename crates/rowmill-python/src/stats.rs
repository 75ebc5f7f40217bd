//! Metrics of a store, and results of its long operations, as dictionaries.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rowmill_remote::{PushInfo, RemoteCheckpoint, RestoreInfo};
use rowmill_store::{CheckpointInfo, GroupStats, Metric, MetricValue, Stats, TableStats};

/// Set dictionary entries from the fields of a struct, with the same names.
macro_rules! set_fields {
    ($dict:expr, $source:expr, $($field:ident),+ $(,)?) => {
        $($dict.set_item(stringify!($field), &$source.$field)?;)+
    };
}

/// All metrics of a store, with `tables` by name and `groups` by number.
pub(crate) fn stats_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let out = metrics_dict(py, Stats::METRICS, stats)?;
    let tables = PyDict::new(py);
    for table in &stats.tables {
        let metrics = metrics_dict(py, TableStats::METRICS, table)?;
        set_fields!(metrics, table, group);
        tables.set_item(&table.name, metrics)?;
    }
    out.set_item("tables", tables)?;
    let groups = PyDict::new(py);
    for group in &stats.groups {
        groups.set_item(group.group, metrics_dict(py, GroupStats::METRICS, group)?)?;
    }
    out.set_item("groups", groups)?;
    Ok(out)
}

fn metrics_dict<'py, S>(py: Python<'py>, metrics: &[Metric<S>], stats: &S) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for metric in metrics {
        match (metric.value)(stats) {
            MetricValue::Integer(value) => out.set_item(metric.field, value)?,
            MetricValue::Real(value) => out.set_item(metric.field, value)?,
            MetricValue::Text(value) => out.set_item(metric.field, value)?,
            MetricValue::ByOutstanding(counts) => out.set_item(metric.field, counts)?,
        }
    }
    Ok(out)
}

/// Result of a push.
pub(crate) fn push_dict<'py>(py: Python<'py>, info: &PushInfo) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    set_fields!(out, info, epoch, parts_uploaded, bytes_uploaded, bytes, objects_removed);
    Ok(out)
}

/// Result of a restore.
pub(crate) fn restore_dict<'py>(py: Python<'py>, info: &RestoreInfo) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    set_fields!(out, info, epoch, rows, bytes, bytes_downloaded);
    Ok(out)
}

/// A checkpoint at a URL.
pub(crate) fn remote_checkpoint_dict<'py>(
    py: Python<'py>,
    checkpoint: &RemoteCheckpoint,
) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    set_fields!(out, checkpoint, epoch, rows, bytes, pushed_s);
    Ok(out)
}

/// Result of a checkpoint.
pub(crate) fn checkpoint_dict<'py>(py: Python<'py>, info: &CheckpointInfo) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    set_fields!(out, info, epoch, rows_saved, log_bytes, file_bytes);
    out.set_item("stall_s", info.stall.as_secs_f64())?;
    out.set_item("duration_s", info.duration.as_secs_f64())?;
    Ok(out)
}
