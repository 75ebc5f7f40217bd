//! The deadline of a call, in its `grpc-timeout` header.

use std::time::Duration;

use axum::http::HeaderMap;

use super::super::call::TIMEOUT_MAX;
use super::super::problem::Problem;

/// The time that a `grpc-timeout` header leaves: up to 8 digits and a unit.
pub(super) fn of_headers(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let parsed = || {
        let (digits, unit) = value.to_str().ok()?.split_at_checked(value.len().checked_sub(1)?)?;
        if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number = digits.parse().ok()?;
        Some(match unit {
            "H" => Duration::from_hours(number),
            "M" => Duration::from_mins(number),
            "S" => Duration::from_secs(number),
            "m" => Duration::from_millis(number),
            "u" => Duration::from_micros(number),
            "n" => Duration::from_nanos(number),
            _ => return None,
        })
    };
    let timeout = parsed().ok_or_else(|| {
        let text = format!("grpc-timeout is {value:?}, must be up to 8 digits and one of H, M, S, m, u, n");
        Problem::invalid(text)
    })?;
    Ok(Some(timeout.min(TIMEOUT_MAX)))
}
