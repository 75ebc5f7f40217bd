//! The framing of gRPC over HTTP/2: a call sends one message behind a prefix of 5 bytes, and gets one back.

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use futures_util::StreamExt;
use http_body_util::{BodyExt, Full};
use prost::Message;

use super::super::problem::{Kind, Problem};

/// A flag, whether the message is compressed, and its length in big-endian order.
const PREFIX_BYTES: usize = 5;

/// A message whose length is known and whose bytes are still to come.
pub(super) struct Incoming {
    pub(super) bytes: usize,
    /// What came with the prefix.
    begun: Bytes,
    rest: BodyDataStream,
}

impl Incoming {
    /// Read the prefix of a message, which may have `bytes_max` bytes.
    pub(super) async fn of(body: Body, bytes_max: usize) -> Result<Self, Problem> {
        let mut rest = body.into_data_stream();
        let (mut prefix, mut have) = ([0; PREFIX_BYTES], 0);
        let begun = loop {
            let mut piece = next(&mut rest).await?.ok_or_else(|| {
                Problem::invalid(format!("the request ends after {have} bytes, before its message begins"))
            })?;
            let taken = piece.len().min(PREFIX_BYTES - have);
            prefix[have..have + taken].copy_from_slice(&piece.split_to(taken));
            have += taken;
            if have == PREFIX_BYTES {
                break piece;
            }
        };
        let [flag, length @ ..] = prefix;
        match flag {
            0 => {}
            1 => {
                let text = "compressed messages are unsupported: send them uncompressed";
                return Err(Problem::new(Kind::Unsupported, text.into()));
            }
            _ => return Err(Problem::invalid(format!("the flag of the message is {flag}, must be 0"))),
        }
        let bytes = u32::from_be_bytes(length) as usize;
        if bytes > bytes_max {
            let text = format!("the message has {bytes} bytes, the limit is {bytes_max}: send less");
            return Err(Problem::new(Kind::TooLarge, text));
        }
        Ok(Self { bytes, begun, rest })
    }

    /// Give the bytes of the message to `take`, until the request ends.
    pub(super) async fn read(
        self,
        mut take: impl FnMut(&[u8]) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let Self { bytes, begun, mut rest } = self;
        let (mut piece, mut left) = (begun, bytes);
        loop {
            left = left.checked_sub(piece.len()).ok_or_else(|| {
                Problem::invalid(format!("the request has more than one message of {bytes} bytes"))
            })?;
            take(&piece)?;
            match next(&mut rest).await? {
                Some(more) => piece = more,
                None if left == 0 => return Ok(()),
                None => return Err(Problem::invalid(format!("the message ends {left} bytes early"))),
            }
        }
    }
}

/// A message of at most `bytes_max` bytes, on the heap.
pub(super) async fn small(body: Body, bytes_max: usize) -> Result<Vec<u8>, Problem> {
    let incoming = Incoming::of(body, bytes_max).await?;
    let mut message = Vec::with_capacity(incoming.bytes);
    let take = |piece: &[u8]| {
        message.extend_from_slice(piece);
        Ok(())
    };
    incoming.read(take).await?;
    Ok(message)
}

async fn next(body: &mut BodyDataStream) -> Result<Option<Bytes>, Problem> {
    let piece = body.next().await.transpose();
    piece.map_err(|error| Problem::invalid(format!("the request broke off: {error}")))
}

/// The response of a call that succeeded.
pub(super) fn reply(message: &impl Message) -> Result<Response, Problem> {
    let bytes = message.encoded_len();
    let length = u32::try_from(bytes).map_err(|_| {
        Problem::new(Kind::Failed, format!("the reply has {bytes} bytes, gRPC sends at most {}", u32::MAX))
    })?;
    let mut frame = Vec::with_capacity(PREFIX_BYTES + bytes);
    frame.push(0);
    frame.extend(length.to_be_bytes());
    message.encode(&mut frame).map_err(|error| Problem::new(Kind::Failed, error.to_string()))?;
    let status = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    let trailers = HeaderMap::from_iter([status]);
    let body = Full::new(Bytes::from(frame)).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}
