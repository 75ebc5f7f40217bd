//! Maps problems to statuses of gRPC.

use axum::response::Response;
use tonic::{Code, Status};

use super::super::problem::{Kind, Problem};

/// The response of a call that failed.
pub(super) fn response(problem: Problem) -> Response {
    let code = match problem.kind {
        Kind::Invalid | Kind::NoLength => Code::InvalidArgument,
        Kind::NotFound => Code::NotFound,
        Kind::Unsupported => Code::Unimplemented,
        Kind::TooLarge | Kind::Refused => Code::ResourceExhausted,
        Kind::Slow | Kind::Late => Code::DeadlineExceeded,
        Kind::Unavailable => Code::Unavailable,
        Kind::Failed => Code::Internal,
    };
    Status::new(code, problem.text).into_http()
}
