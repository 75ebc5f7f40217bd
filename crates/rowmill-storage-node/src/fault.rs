//! Errors of commands on rows, as statuses and entries of the error log.

use rowmill_nvme::{ErrorPlace, Status};
use rowmill_store::StoreError;

/// What a fetch is answered with, and where rows could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) data: Result<Vec<u8>, Status>,
    pub(crate) places: Vec<ErrorPlace>,
}

impl From<Status> for Fetched {
    fn from(status: Status) -> Fetched {
        Fetched { data: Err(status), places: Vec::new() }
    }
}

/// The failure of a command: its status, and the position for the error log, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) status: Status,
    pub(crate) place: Option<ErrorPlace>,
}

impl From<Status> for Fault {
    fn from(status: Status) -> Fault {
        Fault { status, place: None }
    }
}

impl Fault {
    /// The fault of a call of the store; rows that cannot be read are at `place`.
    pub(crate) fn of_store(error: &StoreError, place: ErrorPlace) -> Fault {
        tracing::error!(%error, table = place.table, "a command on rows failed");
        match error {
            _ if is_damage(error) => Fault { status: Status::UNRECOVERED_READ_ERROR, place: Some(place) },
            StoreError::IdRange { .. } => Status::ID_OUT_OF_RANGE.into(),
            StoreError::Full { .. } | StoreError::MemoryTooSmall { .. } => Status::CAPACITY_EXCEEDED.into(),
            StoreError::Poisoned { .. } => Status::WRITE_FAULT.into(),
            _ => Status::INTERNAL_ERROR.into(),
        }
    }
}

/// Whether some rows cannot be read, so that others may be.
pub(crate) fn is_damage(error: &StoreError) -> bool {
    matches!(error, StoreError::Corrupt { .. } | StoreError::Device(_))
}
