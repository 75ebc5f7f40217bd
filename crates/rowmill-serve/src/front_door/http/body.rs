//! Reads the body of a request: its JSON part, then the binary data behind it.

use std::time::Instant;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::HeaderMap;
use futures_util::StreamExt;

use super::super::FrontDoor;
use super::super::problem::{Kind, Problem};
use crate::{Arena, Buffer};

/// Header that gives the size of the JSON part, where binary data follow.
pub(super) const JSON_BYTES: &str = "inference-header-content-length";

/// A body that is still to be read. Its headers give the sizes of both parts.
pub(super) struct Incoming<'f> {
    pieces: BodyDataStream,
    /// What the last piece had beyond the part that was read.
    rest: Bytes,
    json_bytes: usize,
    binary_bytes: usize,
    arena: &'f Arena,
    room_by: Instant,
}

impl<'f> Incoming<'f> {
    /// A body whose sizes are within the limits. Memory for it will wait for room until `room_by`.
    pub(super) fn of(
        front_door: &'f FrontDoor,
        headers: &HeaderMap,
        body: Body,
        room_by: Instant,
    ) -> Result<Self, Problem> {
        let bytes = number(headers, "content-length")?
            .ok_or_else(|| Problem::new(Kind::NoLength, "the request has no content-length header".into()))?;
        let json_bytes = number(headers, JSON_BYTES)?.unwrap_or(bytes);
        if json_bytes > bytes {
            return Err(Problem::invalid(format!(
                "{JSON_BYTES} is {json_bytes}, the body has {bytes} bytes"
            )));
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
        let (pieces, rest, binary_bytes) = (body.into_data_stream(), Bytes::new(), bytes - json_bytes);
        Ok(Self { pieces, rest, json_bytes, binary_bytes, arena: &front_door.arena, room_by })
    }

    /// The JSON part, which is read first.
    pub(super) async fn json(&mut self) -> Result<Buffer, Problem> {
        self.read(self.json_bytes).await
    }

    /// The binary data behind the JSON part.
    pub(super) async fn binary(mut self) -> Result<Buffer, Problem> {
        let binary = self.read(self.binary_bytes).await?;
        if !self.rest.is_empty() || self.piece().await?.is_some() {
            let bytes = self.json_bytes + self.binary_bytes;
            return Err(Problem::invalid(format!("the body has more than {bytes} bytes")));
        }
        Ok(binary)
    }

    /// Take what is left from the connection: its next request comes behind it.
    pub(super) async fn discard(mut self) {
        while let Ok(Some(_)) = self.piece().await {}
    }

    /// The next bytes, in the arena.
    async fn read(&mut self, bytes: usize) -> Result<Buffer, Problem> {
        let mut lease = self.arena.lease_by(bytes, self.room_by).await?;
        let mut target = &mut lease[..];
        while !target.is_empty() {
            if self.rest.is_empty() {
                let early = || Problem::invalid(format!("the body ends {} bytes early", target.len()));
                self.rest = self.piece().await?.ok_or_else(early)?;
            }
            let (filled, behind) = target.split_at_mut(self.rest.len().min(target.len()));
            filled.copy_from_slice(&self.rest.split_to(filled.len()));
            target = behind;
        }
        Ok(lease.share())
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Problem> {
        let piece = self.pieces.next().await.transpose();
        piece.map_err(|error| Problem::invalid(format!("the body broke off: {error}")))
    }
}

fn number(headers: &HeaderMap, name: &str) -> Result<Option<usize>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number
        .map(Some)
        .ok_or_else(|| Problem::invalid(format!("{name} is {value:?}, must be a number of bytes")))
}
