//! Bytes that a connection is about to send. Headers and small parts gather in buffers; data is queued without a copy.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use rowmill_io::crc32c;
use zerocopy::{Immutable, IntoBytes};

use super::layout::flag;
use super::{CommonHeader, Digests, Kind};

/// A buffer of headers is not extended beyond this.
const GATHERED_BYTES: usize = 4096;

/// Data of a PDU: a range of a shared buffer.
#[derive(Clone, Debug)]
pub(crate) struct Payload {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Payload {
    pub(crate) fn slice(bytes: &Arc<Vec<u8>>, range: Range<usize>) -> Payload {
        Payload { bytes: Arc::clone(bytes), range }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        let range = 0..bytes.len();
        Payload { bytes: Arc::new(bytes), range }
    }
}

#[derive(Debug)]
enum Chunk {
    Gathered(Vec<u8>),
    Data(Payload),
}

impl Chunk {
    fn as_slice(&self) -> &[u8] {
        match self {
            Chunk::Gathered(bytes) => bytes,
            Chunk::Data(payload) => payload.as_slice(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Outbox {
    digests: Digests,
    /// Data starts at multiples of this.
    alignment: usize,
    chunks: VecDeque<Chunk>,
    /// Bytes of the first chunk that are sent.
    sent: usize,
    unsent_bytes: usize,
    /// Bytes ever sent.
    total_sent: u64,
}

impl Outbox {
    /// `alignment` is a multiple of 4, at most 128.
    pub(crate) fn new(digests: Digests, alignment: usize) -> Outbox {
        Outbox { digests, alignment, chunks: VecDeque::new(), sent: 0, unsent_bytes: 0, total_sent: 0 }
    }

    /// PDUs have these digests, and data this alignment, from now on.
    pub(crate) fn initialized(&mut self, digests: Digests, alignment: usize) {
        self.digests = digests;
        self.alignment = alignment;
    }

    /// Queue a PDU: `body` follows the common header. Data, if any, is not empty.
    pub(crate) fn pdu(
        &mut self,
        kind: Kind,
        flags: u8,
        body: &(impl IntoBytes + Immutable),
        data: Option<Payload>,
    ) {
        let mut digests = if kind.may_have_digests() { self.digests } else { Digests::default() };
        digests.data &= data.is_some();
        let header_bytes = kind.header_bytes();
        let bare_bytes = header_bytes + digests.header_bytes();
        let data_bytes = data.as_ref().map_or(0, |payload| payload.range.len());
        // Nothing is aligned in a termination request.
        let alignment = if kind.is_terminate() { 1 } else { self.alignment };
        let start = if data.is_some() { bare_bytes.next_multiple_of(alignment) } else { bare_bytes };
        let common = CommonHeader {
            kind: kind as u8,
            flags: flags
                | if digests.header { flag::HEADER_DIGEST } else { 0 }
                | if digests.data { flag::DATA_DIGEST } else { 0 },
            header_bytes: header_bytes as u8,
            data_offset: if data.is_some() && !kind.is_terminate() { start as u8 } else { 0 },
            pdu_bytes: ((start + data_bytes + digests.data_bytes()) as u32).into(),
        };
        let mut header = [0; super::PDU_HEADER_BYTES_MAX];
        let (head, rest) = header.split_at_mut(size_of::<CommonHeader>());
        head.copy_from_slice(common.as_bytes());
        rest[..header_bytes - head.len()].copy_from_slice(body.as_bytes());
        let header = &header[..header_bytes];
        self.gather(header);
        if digests.header {
            self.gather(&crc32c(header).to_le_bytes());
        }
        self.gather(&[0; 128][..start - bare_bytes]);
        if let Some(payload) = data {
            let digest = digests.data.then(|| crc32c(payload.as_slice()).to_le_bytes());
            self.unsent_bytes += data_bytes;
            self.chunks.push_back(Chunk::Data(payload));
            self.gather(&digest.unwrap_or_default()[..digests.data_bytes()]);
        }
    }

    fn gather(&mut self, bytes: &[u8]) {
        self.unsent_bytes += bytes.len();
        match self.chunks.back_mut() {
            Some(Chunk::Gathered(buffer)) if buffer.len() + bytes.len() <= GATHERED_BYTES => {
                buffer.extend_from_slice(bytes);
            }
            _ if bytes.is_empty() => (),
            _ => self.chunks.push_back(Chunk::Gathered(bytes.to_vec())),
        }
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    pub(crate) fn total_sent(&self) -> u64 {
        self.total_sent
    }

    /// All unsent bytes, in order, for a vectored write.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().enumerate().map(|(number, chunk)| {
            let bytes = chunk.as_slice();
            if number == 0 { &bytes[self.sent..] } else { bytes }
        })
    }

    /// The first `bytes` bytes are sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        assert!(bytes <= self.unsent_bytes, "{bytes} bytes sent of {}", self.unsent_bytes);
        self.unsent_bytes -= bytes;
        self.total_sent += bytes as u64;
        self.sent += bytes;
        while let Some(first) = self.chunks.front() {
            let length = first.as_slice().len();
            if self.sent < length {
                break;
            }
            self.sent -= length;
            self.chunks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use crate::pdu::Transfer;

    #[test]
    fn data_is_aligned_and_bytes_are_sent_in_parts() {
        let mut outbox = Outbox::new(Digests { header: true, data: true }, 64);
        outbox.pdu(Kind::ControllerData, flag::LAST, &Transfer::new_zeroed(), Some(vec![7; 10].into()));
        outbox.pdu(Kind::ReadyToTransfer, 0, &Transfer::new_zeroed(), None);
        let bytes: Vec<u8> = outbox.unsent().flatten().copied().collect();
        assert_eq!(bytes.len(), 64 + 10 + 4 + 28);
        assert_eq!((bytes[1], bytes[2], bytes[3], bytes[4]), (0b111, 24, 64, 78));
        assert_eq!(bytes[64..74], [7; 10]);
        assert_eq!(bytes[74..78], crc32c(&[7; 10]).to_le_bytes());
        for at in 0..bytes.len() {
            assert_eq!(outbox.unsent_bytes(), bytes.len() - at);
            assert!(outbox.unsent().flatten().eq(&bytes[at..]));
            outbox.sent(1);
        }
        assert_eq!(outbox.unsent().count(), 0);
    }
}
