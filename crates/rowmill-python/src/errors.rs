//! Maps errors of the store to exceptions of `rowmill.errors`.

use pyo3::prelude::*;
use pyo3::types::{PyModule, PyType};
use rowmill_host::HostError;
use rowmill_io::DeviceError;
use rowmill_remote::RemoteError;
use rowmill_rows::SpecError;
use rowmill_store::StoreError;

/// An exception of `rowmill.errors`. The module is looked up each time: a cell that is filled at the first error would never
/// be full in a child that was forked while another thread filled it.
pub(crate) fn exception(py: Python<'_>, class: &str, message: impl Into<String>) -> PyErr {
    let raise = || -> PyResult<PyErr> {
        let class = PyModule::import(py, "rowmill.errors")?.getattr(class)?.cast_into::<PyType>()?;
        Ok(PyErr::from_type(class, (message.into(),)))
    };
    raise().unwrap_or_else(|error| error)
}

/// `InvalidInput`: an argument is not valid.
pub(crate) fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    exception(py, "InvalidInput", message)
}

/// `StoreForked`: an iterator is used in a forked child, where the thread that fills it does not run.
pub(crate) fn forked_iterator(py: Python<'_>) -> PyErr {
    let message = "this iterator was made before the process forked, and the thread that fills it runs only in the \
                   parent: make a new iterator here, from a store opened with read_only=True";
    exception(py, "StoreForked", message)
}

/// The exception for a store error.
pub(crate) fn raised(py: Python<'_>, error: &StoreError) -> PyErr {
    exception(py, class_of(error), message_of(error))
}

/// The text of a store error, with the Python arguments that it refers to.
fn message_of(error: &StoreError) -> String {
    match error {
        StoreError::Missing { .. } => format!("{error} (create=True)"),
        StoreError::ReadOnly { .. } => format!("{error} (read_only=True)"),
        StoreError::Forked { location } => format!("{error}: rowmill.open({location:?}, read_only=True)"),
        StoreError::NoEventTime { .. } => {
            format!("{error}: store.step(event_time=...) or store.ticket(event_time=...)")
        }
        StoreError::SpecMismatch { field: "ids", .. }
        | StoreError::Spec { source: SpecError::DenseRows(_), .. } => format!("{error} (num_rows)"),
        _ => error.to_string(),
    }
}

/// The exception for an error of remote checkpoints.
pub(crate) fn remote_raised(py: Python<'_>, error: &RemoteError) -> PyErr {
    let class = match error {
        RemoteError::Url { .. } | RemoteError::Option { .. } | RemoteError::Occupied { .. } => "InvalidInput",
        RemoteError::Conflict { .. } | RemoteError::Foreign { .. } => "RemoteConflict",
        RemoteError::NoCheckpoint { .. } => "CheckpointMissing",
        RemoteError::Newer { .. } => "StoreNewer",
        RemoteError::Corrupt { .. } => "StoreCorrupt",
        RemoteError::Store(error) => class_of(error),
        _ => "RemoteError",
    };
    exception(py, class, error.to_string())
}

/// The exception for an error of a storage node's host.
pub(crate) fn host_raised(py: Python<'_>, error: &HostError) -> PyErr {
    let class = match error {
        error if error.is_argument() => "InvalidInput",
        HostError::UnknownTable { .. } => "TableMissing",
        HostError::Forked { .. } => "StoreForked",
        _ => "StorageError",
    };
    exception(py, class, error.to_string())
}

fn class_of(error: &StoreError) -> &'static str {
    match error {
        StoreError::NoCheckpoint { .. } | StoreError::NotAt { .. } => "CheckpointMissing",
        StoreError::InDoubt { .. } => "CheckpointInDoubt",
        StoreError::Missing { .. }
        | StoreError::Restoring { .. }
        | StoreError::Device(DeviceError::Missing { .. }) => "StoreMissing",
        StoreError::Newer { .. } => "StoreNewer",
        StoreError::Corrupt { .. } => "StoreCorrupt",
        StoreError::Full { .. } | StoreError::Device(DeviceError::Full { .. }) => "StoreFull",
        StoreError::Device(DeviceError::Io { .. }) => "StoreIoError",
        StoreError::Device(DeviceError::Locked { .. }) => "StoreLocked",
        StoreError::Poisoned { .. } => "StorePoisoned",
        StoreError::NoPlaces { .. } => "RowPlacesExhausted",
        StoreError::ReadOnly { .. } => "StoreReadOnly",
        StoreError::Closed => "StoreClosed",
        StoreError::Forked { .. } => "StoreForked",
        StoreError::ChangesGone { .. } => "ChangesGone",
        StoreError::NoFeed { .. } => "FeedMissing",
        StoreError::FeedGap { .. } => "FeedGap",
        StoreError::FeedFailed { .. } => "FeedFailed",
        StoreError::Superseded | StoreError::Outrun { .. } => "StoreSuperseded",
        StoreError::MemoryTooSmall { .. } => "MemoryTooSmall",
        StoreError::SpecMismatch { .. } => "SpecMismatch",
        StoreError::UnknownTable { .. } => "TableMissing",
        StoreError::StalenessTimeout { .. } | StoreError::QueueTimeout { .. } => "StalenessTimeout",
        StoreError::StepConflict { .. } | StoreError::StepOver { .. } => "StepConflict",
        StoreError::TooManySteps { .. } => "TooManySteps",
        StoreError::Spec { .. }
        | StoreError::IdRange { .. }
        | StoreError::Length { .. }
        | StoreError::Bag { .. }
        | StoreError::MixedGroups { .. }
        | StoreError::MixedPadding { .. }
        | StoreError::MixedRates { .. }
        | StoreError::OtherStore { .. }
        | StoreError::TooManyRows { .. }
        | StoreError::NotFinite { .. }
        | StoreError::NoEventTime { .. }
        | StoreError::Option { .. } => "InvalidInput",
        _ => "RowmillError",
    }
}
