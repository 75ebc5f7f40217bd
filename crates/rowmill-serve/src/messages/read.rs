//! Reads messages from a stream of bytes.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_io::{crc32c, crc32c_append};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::table::{Entry, Place, check_bytes, decode_table};
use super::{HEADER_BYTES, Header, Limits, Message, MessageError, Tensor};
use crate::arena::{Arena, ArenaError, Buffer, LentMessage, Mapping, Release};

/// How long a message that is no request waits for room: requests wait as long as their sender does.
const ROOM_WAIT: Duration = Duration::from_secs(5);
/// Payload is summed while it is in the caches, not in a second pass over memory.
const PIECE_BYTES: usize = 256 << 10;
/// Bytes of payload that are thrown away at once.
const SINK_BYTES: usize = 16 << 10;

/// What a stream had to give.
#[derive(Debug)]
pub enum Received {
    /// A message with correct checksums.
    Message(Message),
    /// A message that cannot be used. The next message follows in the stream.
    Spoiled {
        /// The header, whose checksum is correct.
        header: Header,
        /// Why it cannot be used.
        cause: SpoiledCause,
    },
    /// The peer closed the stream between two messages.
    End,
}

/// Why a message cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoiledCause {
    /// A payload is wrong, or the payloads are too large together.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The arena has no room for it.
    #[error(transparent)]
    Arena(#[from] ArenaError),
}

/// Why a stream cannot be read any further.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// Nothing says where the next message begins.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The connection broke, or ended inside a message.
    #[error("the connection broke: {0}")]
    Connection(#[from] io::Error),
}

/// The peer's arena, for messages whose large tensors lie there.
#[derive(Clone, Debug)]
pub(crate) struct PeerMemory {
    pub(crate) memory: Arc<Mapping>,
    pub(crate) lender: Arc<dyn Release>,
}

/// The memory into which a reader puts tensors, and its limits.
#[derive(Clone, Debug)]
pub struct Intake {
    /// Where tensors go.
    pub arena: Arena,
    /// How large messages may be.
    pub limits: Limits,
    pub(crate) peer: Option<PeerMemory>,
}

impl Intake {
    /// Tensors go to `arena`; the peer shares no memory.
    pub fn new(arena: Arena, limits: Limits) -> Self {
        Self { arena, limits, peer: None }
    }
}

/// Read one message.
///
/// # Errors
/// When the bytes are no message or the connection breaks: close it, because the next message cannot be found.
pub async fn read(stream: &mut (impl AsyncRead + Unpin), intake: &Intake) -> Result<Received, StreamError> {
    match read_header(stream, &intake.limits).await? {
        Some(header) => read_after(header, stream, intake).await,
        None => Ok(Received::End),
    }
}

/// Read a header; `None` at the end of the stream.
///
/// # Errors
/// As [`read`].
pub(crate) async fn read_header(
    stream: &mut (impl AsyncRead + Unpin),
    limits: &Limits,
) -> Result<Option<Header>, StreamError> {
    let mut header = [0; HEADER_BYTES];
    // The end of the stream is orderly before the first byte only.
    let begun = stream.read(&mut header).await?;
    if begun == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut header[begun..]).await?;
    Ok(Some(Header::decode(&header, limits)?))
}

/// Read what follows `header`.
///
/// # Errors
/// As [`read`].
pub(crate) async fn read_after(
    header: Header,
    stream: &mut (impl AsyncRead + Unpin),
    intake: &Intake,
) -> Result<Received, StreamError> {
    let time_left = Duration::from_micros(header.time_left_us.into());
    let room_by = Instant::now() + if header.kind.asks() { time_left } else { ROOM_WAIT };
    let mut spoiled: Option<SpoiledCause> = None;
    let mut tensors = Vec::with_capacity(header.tensors.into());
    if header.tensors > 0 {
        let mut table = vec![0; header.table_bytes as usize];
        stream.read_exact(&mut table).await?;
        verify(|| "the table".into(), crc32c(&table), header.table_crc)?;
        let entries = decode_table(&table, &header)?;
        // The table tells where the message ends, so other messages on the connection need not fail with this one.
        let inline = match check_bytes(&entries, &intake.limits) {
            Ok(()) => read_inline(stream, &header, &entries, intake, room_by).await?,
            Err(cause) => {
                skip(stream, header.inline_bytes.into()).await?;
                Err(cause.into())
            }
        };
        let inline = inline.map_err(|cause| spoiled = Some(cause)).unwrap_or_default();
        let lent = intake.peer.as_ref().filter(|_| entries.iter().any(|entry| entry.place == Place::Shared));
        let lent = lent.map(|peer| {
            let (memory, lender) = (Arc::clone(&peer.memory), Arc::clone(&peer.lender));
            Arc::new(LentMessage { memory, message: header.id, lender })
        });
        for entry in entries {
            let data = match entry.place {
                Place::Inline if spoiled.is_some() => continue,
                Place::Inline => {
                    let begin = entry.offset as usize;
                    let data = inline.slice(begin..begin + entry.bytes as usize);
                    verified(data, &entry)
                }
                Place::Shared => lent
                    .as_ref()
                    .and_then(|lent| Buffer::of_peer(lent, entry.offset, entry.bytes))
                    .ok_or_else(|| outside(&entry).into()),
                Place::Stream if spoiled.is_some() => {
                    skip(stream, entry.bytes).await?;
                    continue;
                }
                Place::Stream => read_payload(stream, &entry, intake, room_by).await?,
            };
            match data {
                Ok(data) => {
                    tensors.push(Tensor { name: entry.name, dtype: entry.dtype, shape: entry.shape, data });
                }
                Err(cause) => spoiled = spoiled.or(Some(cause)),
            }
        }
    }
    if let Some(cause) = spoiled {
        return Ok(Received::Spoiled { header, cause });
    }
    let Header { kind, id, trace, program, status, .. } = header;
    Ok(Received::Message(Message { kind, id, trace, program, time_left, status, tensors }))
}

/// The payloads of small tensors, with the bytes between them.
async fn read_inline(
    stream: &mut (impl AsyncRead + Unpin),
    header: &Header,
    entries: &[Entry],
    intake: &Intake,
    room_by: Instant,
) -> Result<Result<Buffer, SpoiledCause>, StreamError> {
    if header.inline_bytes == 0 {
        return Ok(Ok(Buffer::default()));
    }
    let mut lease = match intake.arena.lease_by(header.inline_bytes as usize, room_by).await {
        Ok(lease) => lease,
        Err(cause) => {
            skip(stream, header.inline_bytes.into()).await?;
            return Ok(Err(cause.into()));
        }
    };
    stream.read_exact(&mut lease).await?;
    Ok(check_padding(&lease, entries).map(|()| lease.share()).map_err(Into::into))
}

/// The payload of `entry`, read into the arena without a copy in between.
async fn read_payload(
    stream: &mut (impl AsyncRead + Unpin),
    entry: &Entry,
    intake: &Intake,
    room_by: Instant,
) -> Result<Result<Buffer, SpoiledCause>, StreamError> {
    let mut lease = match intake.arena.lease_by(entry.bytes as usize, room_by).await {
        Ok(lease) => lease,
        Err(cause) => {
            skip(stream, entry.bytes).await?;
            return Ok(Err(cause.into()));
        }
    };
    let mut crc = crc32c(&[]);
    for piece in lease.chunks_mut(PIECE_BYTES) {
        stream.read_exact(piece).await?;
        crc = crc32c_append(crc, piece);
    }
    Ok(verify(|| describe(entry), crc, entry.crc).map(|()| lease.share()).map_err(Into::into))
}

/// Read `bytes` bytes and forget them.
async fn skip(stream: &mut (impl AsyncRead + Unpin), mut bytes: u64) -> io::Result<()> {
    let mut sink = vec![0; SINK_BYTES];
    while bytes > 0 {
        let piece = sink.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
        stream.read_exact(&mut sink[..piece]).await?;
        bytes -= piece as u64;
    }
    Ok(())
}

fn verified(data: Buffer, entry: &Entry) -> Result<Buffer, SpoiledCause> {
    verify(|| describe(entry), crc32c(&data), entry.crc)?;
    Ok(data)
}

fn verify(part: impl FnOnce() -> String, found: u32, expected: u32) -> Result<(), MessageError> {
    if found == expected { Ok(()) } else { Err(MessageError::Checksum { part: part(), found, expected }) }
}

fn describe(entry: &Entry) -> String {
    format!("tensor {:?}", entry.name)
}

fn outside(entry: &Entry) -> MessageError {
    MessageError::Header {
        field: "offset of a shared tensor",
        found: entry.offset,
        expected: "inside the memory that the peer shares",
    }
}

/// Bytes between small tensors are covered by no checksum, so they are zero.
fn check_padding(inline: &[u8], entries: &[Entry]) -> Result<(), MessageError> {
    let mut end = 0;
    for entry in entries.iter().filter(|entry| entry.place == Place::Inline) {
        let begin = entry.offset as usize;
        if inline[end..begin].iter().any(|&byte| byte != 0) {
            return Err(MessageError::Padding);
        }
        end = begin + entry.bytes as usize;
    }
    if inline[end..].iter().any(|&byte| byte != 0) { Err(MessageError::Padding) } else { Ok(()) }
}
