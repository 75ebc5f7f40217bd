//! A frame: a header with length and checksum, then the payload.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | length of the payload |
//! | 4 | CRC32C of the frame's number (8 bytes), the length and the payload |
//! | length | payload |
//!
//! The checksum covers the number of the frame, so swapped frames are detected.

/// Bytes of the header before a payload.
pub(crate) const FRAME_HEADER_BYTES: usize = 8;

/// The header of a frame that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Length of the payload that follows.
    pub(crate) length: u32,
    crc: u32,
}

impl FrameHeader {
    /// Parse a header.
    pub(crate) fn parse(bytes: [u8; FRAME_HEADER_BYTES]) -> Self {
        let [l0, l1, l2, l3, c0, c1, c2, c3] = bytes;
        Self { length: u32::from_le_bytes([l0, l1, l2, l3]), crc: u32::from_le_bytes([c0, c1, c2, c3]) }
    }

    /// Whether `payload` is the payload of frame `number`.
    pub(crate) fn fits(self, number: u64, payload: &[u8]) -> bool {
        self.length as usize == payload.len() && checksum(number, payload) == self.crc
    }
}

/// Write the header of frame `number` into the space before its payload.
pub(crate) fn seal_frame(number: u64, frame: &mut [u8]) {
    let (header, payload) = frame.split_first_chunk_mut::<FRAME_HEADER_BYTES>().expect("room for a header");
    let crc = checksum(number, payload);
    header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[4..].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(number: u64, payload: &[u8]) -> u32 {
    let crc = rowmill_io::crc32c(&number.to_le_bytes());
    let crc = rowmill_io::crc32c_append(crc, &(payload.len() as u32).to_le_bytes());
    rowmill_io::crc32c_append(crc, payload)
}
