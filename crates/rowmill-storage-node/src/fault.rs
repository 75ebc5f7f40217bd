use rowmill_nvme::{Answer, ErrorPlace, Status};
use rowmill_store::StoreError;

/// Why a command failed: its status, and where, if the error log shall say so.
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
            StoreError::Corrupt { .. } | StoreError::Device(_) => {
                Fault { status: Status::UNRECOVERED_READ_ERROR, place: Some(place) }
            }
            StoreError::IdRange { .. } => Status::ID_OUT_OF_RANGE.into(),
            StoreError::Full { .. } | StoreError::MemoryTooSmall { .. } => Status::CAPACITY_EXCEEDED.into(),
            StoreError::Poisoned { .. } => Status::WRITE_FAULT.into(),
            _ => Status::INTERNAL_ERROR.into(),
        }
    }

    pub(crate) fn answer(self) -> Answer {
        Answer { has_more: self.place.is_some(), ..self.status.into() }
    }
}
