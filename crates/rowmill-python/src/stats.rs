//! Figures of a store as dictionaries.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rowmill_remote::{PushInfo, RemoteCheckpoint, RestoreInfo};
use rowmill_store::{CheckpointInfo, GroupStats, Stats, TableStats};

/// Set the named fields of a struct as entries of the same names.
macro_rules! set_fields {
    ($dict:expr, $source:expr, $($field:ident),+ $(,)?) => {
        $($dict.set_item(stringify!($field), &$source.$field)?;)+
    };
}

/// Every figure of a store; `tables` by name, `groups` by number.
pub(crate) fn stats_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    set_fields!(
        out,
        stats,
        memory_budget,
        index_bytes,
        row_bytes,
        row_limit,
        overhead_bytes,
        buffer_bytes,
        rows_resident,
        rows_dirty,
        evictions,
        feed_rows,
        feed_sequence,
        feed_failure,
        feed_waiting_bytes,
        device_live_bytes,
        device_used_bytes,
        device_pinned_bytes,
        device_free_bytes,
        device_bytes_written,
        device_blocks_read,
        corrupt_blocks,
        calls,
        lookups,
        rows_looked_up,
        cold_reads,
        cold_wait_ns,
        updates,
        rows_updated,
        deletes,
        clock_waits,
        clock_wait_ns,
        staleness,
        lookahead_rows,
        lookahead_loaded,
        lookahead_late,
        lookahead_dropped,
        lookahead_errors,
        compactions,
        rows_compacted,
        checkpoints,
        tickets,
        io,
    );
    out.set_item("hit_rate", stats.hit_rate())?;
    let tables = PyDict::new(py);
    for table in &stats.tables {
        tables.set_item(&table.name, table_dict(py, table)?)?;
    }
    out.set_item("tables", tables)?;
    let groups = PyDict::new(py);
    for group in &stats.groups {
        groups.set_item(group.group, group_dict(py, group)?)?;
    }
    out.set_item("groups", groups)?;
    Ok(out)
}

fn group_dict<'py>(py: Python<'py>, group: &GroupStats) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    set_fields!(out, group, row_places_used, row_places);
    out.set_item("row_places_share", group.row_places_share())?;
    Ok(out)
}

fn table_dict<'py>(py: Python<'py>, table: &TableStats) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    set_fields!(out, table, group, rows, row_bytes, accesses, births, deletes, evicted, steps);
    Ok(out)
}

/// What a push did.
pub(crate) fn push_dict<'py>(py: Python<'py>, info: &PushInfo) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    set_fields!(out, info, epoch, parts_uploaded, bytes_uploaded, bytes, objects_removed);
    Ok(out)
}

/// What a restore did.
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

/// What a checkpoint wrote.
pub(crate) fn checkpoint_dict<'py>(py: Python<'py>, info: &CheckpointInfo) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    set_fields!(out, info, epoch, rows_saved, log_bytes, file_bytes);
    out.set_item("stall_s", info.stall.as_secs_f64())?;
    out.set_item("duration_s", info.duration.as_secs_f64())?;
    Ok(out)
}
