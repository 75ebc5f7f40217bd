//! Writes a message: the buffers of one vectored write.

use std::io::IoSlice;

use rowmill_io::crc32c;

use super::table::{Entry, Place, encode_entry};
use super::{ALIGNMENT, HEADER_BYTES, Header, Message, SMALL_BYTES};
use crate::arena::{Arena, Buffer};

/// A message ready to be written: the first write and the large payloads behind it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Header, table and small tensors.
    first: Vec<u8>,
    /// Large tensors, which are written from where they lie.
    stream: Vec<Buffer>,
    /// Large tensors that the receiver reads where they lie: kept until it releases them.
    pub(crate) lent: Vec<Buffer>,
}

impl Outgoing {
    /// Prepare `message` for a peer that has mapped `shared`, or nothing.
    pub(crate) fn new(message: &Message, shared: Option<&Arena>) -> Self {
        let (mut table, mut inline) = (Vec::new(), Vec::new());
        let (mut stream, mut lent) = (Vec::new(), Vec::new());
        let mut stream_bytes = 0;
        for tensor in &message.tensors {
            let bytes = tensor.data.len() as u64;
            let lent_at = shared.and_then(|arena| tensor.data.offset_in(arena));
            let (place, offset) = match lent_at {
                _ if tensor.data.len() <= SMALL_BYTES => {
                    let offset = inline.len() as u64;
                    inline.extend_from_slice(&tensor.data);
                    inline.resize(inline.len().next_multiple_of(ALIGNMENT), 0);
                    (Place::Inline, offset)
                }
                Some(offset) => {
                    lent.push(tensor.data.clone());
                    (Place::Shared, offset)
                }
                None => {
                    stream.push(tensor.data.clone());
                    stream_bytes += bytes;
                    (Place::Stream, stream_bytes - bytes)
                }
            };
            // Lent bytes are not sent, and reading all of them costs the receiver a third of its CPU time outside of the model.
            let crc = if place == Place::Shared { 0 } else { crc32c(&tensor.data) };
            let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
            encode_entry(&mut table, &Entry { name, dtype: tensor.dtype, shape, place, offset, bytes, crc });
        }
        table.resize(table.len().next_multiple_of(ALIGNMENT), 0);
        let header = Header {
            kind: message.kind,
            id: message.id,
            trace: message.trace,
            program: message.program,
            time_left_us: u32::try_from(message.time_left.as_micros()).unwrap_or(u32::MAX),
            status: message.status,
            tensors: message.tensors.len() as u16,
            table_bytes: table.len() as u32,
            inline_bytes: inline.len() as u32,
            table_crc: crc32c(&table),
        };
        let mut first = Vec::with_capacity(HEADER_BYTES + table.len() + inline.len());
        first.extend_from_slice(&header.encode());
        first.append(&mut table);
        first.append(&mut inline);
        Self { first, stream, lent }
    }

    /// Everything to write, in order.
    pub(crate) fn slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        std::iter::once(&self.first[..]).chain(self.stream.iter().map(|data| &data[..])).map(IoSlice::new)
    }
}

/// The bytes of a message to a peer without shared memory, in one piece.
pub fn encode(message: &Message) -> Vec<u8> {
    Outgoing::new(message, None).slices().flat_map(|slice| slice.to_vec()).collect()
}
