//! Why a request of the front door has no reply.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::{ArenaError, Status};

/// An HTTP status and a text, sent as the protocol's error object.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    text: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, text: String) -> Self {
        Self { status, text }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    /// The request is wrong.
    pub(super) fn invalid(text: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// The model's function gave no answer.
    pub(super) fn dropped() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the model dropped the request without an answer".into())
    }

    /// The model's function refused or failed.
    pub(super) fn of_status(status: Status, text: String) -> Self {
        let status = match status {
            Status::Invalid => StatusCode::BAD_REQUEST,
            Status::Late | Status::Full => StatusCode::TOO_MANY_REQUESTS,
            Status::Draining | Status::UnknownProgram => StatusCode::SERVICE_UNAVAILABLE,
            Status::Ok | Status::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, text)
    }
}

impl From<ArenaError> for Problem {
    fn from(error: ArenaError) -> Self {
        let status = match error {
            ArenaError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::TOO_MANY_REQUESTS,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        super::axum_json(self.status, &json!({ "error": self.text }))
    }
}
