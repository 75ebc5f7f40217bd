//! Reads the body of a request into the arena.

use std::time::Instant;

use axum::body::Body;
use axum::http::HeaderMap;
use futures_util::StreamExt;

use super::super::FrontDoor;
use super::super::problem::{Kind, Problem};
use crate::Buffer;

/// Header that gives the size of the JSON part, where binary data follow.
pub(super) const JSON_BYTES: &str = "inference-header-content-length";
/// Alignment of the first byte of binary data.
const ALIGNMENT: usize = 64;

/// The two parts of a body.
pub(super) struct Parts {
    pub(super) json: Buffer,
    pub(super) binary: Buffer,
}

/// Read a body whose size its headers give. The memory for it waits for room until `room_by`.
pub(super) async fn read(
    front_door: &FrontDoor,
    headers: &HeaderMap,
    body: Body,
    room_by: Instant,
) -> Result<Parts, Problem> {
    let bytes = number(headers, "content-length")?
        .ok_or_else(|| Problem::new(Kind::NoLength, "the request has no content-length header".into()))?;
    let json_bytes = number(headers, JSON_BYTES)?.unwrap_or(bytes);
    if json_bytes > bytes {
        return Err(Problem::invalid(format!("{JSON_BYTES} is {json_bytes}, the body has {bytes} bytes")));
    }
    for (part, found, limit) in [
        ("body", bytes, front_door.request_bytes_max),
        ("JSON part", json_bytes, front_door.parsed_bytes_max),
    ] {
        if found > limit {
            let text = format!(
                "the {part} has {found} bytes, the limit is {limit}: send large tensors as binary data, or send less"
            );
            return Err(Problem::new(Kind::TooLarge, text));
        }
    }
    let before = json_bytes.next_multiple_of(ALIGNMENT) - json_bytes;
    let mut lease = front_door.arena.lease_by(before + bytes, room_by).await?;
    let mut rest = &mut lease[before..];
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| Problem::invalid(format!("the body broke off: {error}")))?;
        let Some((target, behind)) = rest.split_at_mut_checked(piece.len()) else {
            return Err(Problem::invalid(format!("the body has more than {bytes} bytes")));
        };
        target.copy_from_slice(&piece);
        rest = behind;
    }
    if !rest.is_empty() {
        return Err(Problem::invalid(format!("the body ends {} bytes early", rest.len())));
    }
    let body = lease.share();
    let end = before + json_bytes;
    Ok(Parts { json: body.slice(before..end), binary: body.slice(end..before + bytes) })
}

fn number(headers: &HeaderMap, name: &str) -> Result<Option<usize>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number
        .map(Some)
        .ok_or_else(|| Problem::invalid(format!("{name} is {value:?}, must be a number of bytes")))
}
