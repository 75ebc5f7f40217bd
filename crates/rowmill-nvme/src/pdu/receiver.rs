//! From bytes to PDUs, in pieces of any size. Nothing is allocated: a header gathers in a fixed buffer, and data is
//! handed on as it comes.

use rowmill_io::{crc32c, crc32c_append};
use zerocopy::FromBytes;

use super::digests::DIGEST_BYTES;
use super::layout::{PDU_HEADER_BYTES_MAX, field, flag};
use super::{CommonHeader, Digests, Fatal, FatalReason, Initialize, Kind, Side, Terminate, Transfer};
use crate::command::{Command, Completion};

const COMMON_BYTES: usize = size_of::<CommonHeader>();

/// The header of a PDU.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pdu {
    Initialize(Initialize),
    Terminate(Terminate),
    Command(Command),
    Response(Completion),
    HostData(Transfer),
    ControllerData(Transfer),
    ReadyToTransfer(Transfer),
}

/// One step of reading.
#[derive(Debug)]
pub(crate) enum Received<'a> {
    /// A header; `data_bytes` of data follow.
    Header { pdu: Pdu, flags: u8, data_bytes: usize },
    /// A piece of the data.
    Data(&'a [u8]),
    /// All data has come; its digest is right or there is none.
    DataEnd { is_intact: bool },
}

#[derive(Debug)]
enum Stage {
    /// Before the first byte of a PDU.
    Start,
    Header,
    Padding(usize),
    Data,
    Digest,
}

/// Most bytes of data per kind, which the receiver allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataLimits {
    /// In a command capsule.
    pub(crate) command: usize,
    /// In one H2CData or C2HData.
    pub(crate) transfer: usize,
}

#[derive(Debug)]
pub(crate) struct Receiver {
    side: Side,
    limits: DataLimits,
    digests: Digests,
    is_initialized: bool,
    header: [u8; PDU_HEADER_BYTES_MAX],
    filled: usize,
    stage: Stage,
    /// Bytes of data, or of its digest, that are still to come.
    left: usize,
    has_digest: bool,
    crc: u32,
    digest: [u8; DIGEST_BYTES],
}

impl Receiver {
    /// A receiver of the given side, before the initialization.
    pub(crate) fn new(side: Side, limits: DataLimits) -> Receiver {
        Receiver {
            side,
            limits,
            digests: Digests::default(),
            is_initialized: false,
            header: [0; PDU_HEADER_BYTES_MAX],
            filled: 0,
            stage: Stage::Start,
            left: 0,
            has_digest: false,
            crc: 0,
            digest: [0; DIGEST_BYTES],
        }
    }

    /// The initialization is over: PDUs have these digests from now on.
    pub(crate) fn initialized(&mut self, digests: Digests) {
        self.is_initialized = true;
        self.digests = digests;
    }

    /// The header of the last PDU, as far as it has come, for a termination request.
    pub(crate) fn header(&self) -> &[u8] {
        let header_bytes = Kind::from_byte(self.header[0]).map_or(COMMON_BYTES, Kind::header_bytes);
        &self.header[..self.filled.min(header_bytes)]
    }

    /// Read the next step from the front of `bytes`; `None` if all bytes are consumed and more are needed.
    pub(crate) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Received<'a>>, Fatal> {
        loop {
            match self.stage {
                Stage::Start if bytes.is_empty() => return Ok(None),
                Stage::Start => {
                    self.filled = 0;
                    self.stage = Stage::Header;
                }
                Stage::Header => return self.gather_header(bytes),
                Stage::Padding(left) => {
                    let piece = take(bytes, left);
                    if piece.len() < left {
                        self.stage = Stage::Padding(left - piece.len());
                        return Ok(None);
                    }
                    self.stage = Stage::Data;
                }
                Stage::Data => {
                    let piece = take(bytes, self.left);
                    if !piece.is_empty() {
                        self.left -= piece.len();
                        if self.has_digest {
                            self.crc = crc32c_append(self.crc, piece);
                        }
                        return Ok(Some(Received::Data(piece)));
                    }
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.left = if self.has_digest { DIGEST_BYTES } else { 0 };
                    self.stage = Stage::Digest;
                }
                Stage::Digest => {
                    let piece = take(bytes, self.left);
                    let at = DIGEST_BYTES - self.left;
                    self.digest[at..at + piece.len()].copy_from_slice(piece);
                    self.left -= piece.len();
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.stage = Stage::Start;
                    let is_intact = !self.has_digest || self.crc == u32::from_le_bytes(self.digest);
                    return Ok(Some(Received::DataEnd { is_intact }));
                }
            }
        }
    }

    fn gather_header<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Received<'a>>, Fatal> {
        if !self.fill(bytes, COMMON_BYTES) {
            return Ok(None);
        }
        // Only a checked header says how many bytes belong to it.
        let checked = self.check_common()?;
        let header_bytes = checked.kind.header_bytes();
        if !self.fill(bytes, header_bytes + checked.digests.header_bytes()) {
            return Ok(None);
        }
        if checked.digests.header {
            let digest = u32::from_le_bytes(array(&self.header[header_bytes..]));
            if digest != crc32c(&self.header[..header_bytes]) {
                return Err(Fatal { reason: FatalReason::HeaderDigestError, information: digest });
            }
        }
        let pdu = self.parse(&checked)?;
        let data_bytes = checked.data_bytes;
        if data_bytes > 0 {
            self.has_digest = checked.digests.data;
            self.left = data_bytes;
            self.crc = 0;
            self.stage = Stage::Padding(checked.padding_bytes);
        } else {
            self.stage = Stage::Start;
        }
        Ok(Some(Received::Header { pdu, flags: self.header[1], data_bytes }))
    }

    /// Fill the header up to `until` bytes; false if more bytes are needed.
    fn fill(&mut self, bytes: &mut &[u8], until: usize) -> bool {
        let piece = take(bytes, until.saturating_sub(self.filled));
        self.header[self.filled..self.filled + piece.len()].copy_from_slice(piece);
        self.filled += piece.len();
        self.filled >= until
    }

    fn check_common(&self) -> Result<Checked, Fatal> {
        let common: CommonHeader = read(&self.header);
        let kind = Kind::from_byte(common.kind).ok_or(Fatal::field(field::KIND))?;
        if kind.sender() == self.side || (kind.is_initialize() == self.is_initialized && !kind.is_terminate())
        {
            return Err(Fatal::new(FatalReason::SequenceError));
        }
        if common.header_bytes as usize != kind.header_bytes() {
            return Err(Fatal::field(field::HEADER_BYTES));
        }
        let has = |bit| common.flags & bit != 0;
        let mut digests = if kind.may_have_digests() { self.digests } else { Digests::default() };
        let pdu_bytes = common.pdu_bytes.get() as usize;
        let bare_bytes = kind.header_bytes() + digests.header_bytes();
        if pdu_bytes < bare_bytes || (pdu_bytes > bare_bytes && !kind.may_have_data()) {
            return Err(Fatal::field(field::PDU_BYTES));
        }
        digests.data &= pdu_bytes > bare_bytes;
        let has_wrong_data_digest = has(flag::DATA_DIGEST) != digests.data && kind.may_have_data();
        if has(flag::HEADER_DIGEST) != digests.header || has_wrong_data_digest {
            return Err(Fatal::field(field::FLAGS));
        }
        let mut checked = Checked { kind, digests, padding_bytes: 0, data_bytes: 0 };
        if pdu_bytes > bare_bytes {
            // The header of the offending PDU follows a termination request without padding.
            let start = if kind.is_terminate() { bare_bytes } else { common.data_offset as usize };
            if start < bare_bytes || start % 4 != 0 {
                return Err(Fatal::field(field::DATA_OFFSET));
            }
            checked.padding_bytes = start - bare_bytes;
            checked.data_bytes = pdu_bytes
                .checked_sub(start + digests.data_bytes())
                .filter(|&bytes| bytes > 0)
                .ok_or(Fatal::field(field::PDU_BYTES))?;
        }
        self.check_data_bytes(&checked)?;
        Ok(checked)
    }

    fn check_data_bytes(&self, checked: &Checked) -> Result<(), Fatal> {
        let is_within = |limit: usize, error| if checked.data_bytes > limit { Err(error) } else { Ok(()) };
        match checked.kind {
            Kind::Command => is_within(self.limits.command, Fatal::field(field::PDU_BYTES)),
            Kind::HostData => is_within(self.limits.transfer, Fatal::new(FatalReason::LimitExceeded)),
            Kind::ControllerData => is_within(self.limits.transfer, Fatal::new(FatalReason::DataOutOfRange)),
            _ => is_within(PDU_HEADER_BYTES_MAX, Fatal::field(field::PDU_BYTES)),
        }
    }

    fn parse(&self, checked: &Checked) -> Result<Pdu, Fatal> {
        let body = &self.header[COMMON_BYTES..];
        let data = |transfer: Transfer| {
            let is_whole = checked.data_bytes > 0 && transfer.bytes.get() as usize == checked.data_bytes;
            if is_whole { Ok(transfer) } else { Err(Fatal::field(field::BYTES)) }
        };
        Ok(match checked.kind {
            Kind::InitializeRequest | Kind::InitializeResponse => Pdu::Initialize(read(body)),
            Kind::HostTerminate | Kind::ControllerTerminate => Pdu::Terminate(read(body)),
            Kind::Command => Pdu::Command(read(body)),
            Kind::Response => Pdu::Response(read(body)),
            Kind::HostData => Pdu::HostData(data(read(body))?),
            Kind::ControllerData => Pdu::ControllerData(data(read(body))?),
            Kind::ReadyToTransfer => Pdu::ReadyToTransfer(read(body)),
        })
    }
}

/// The checked fields of the common header.
struct Checked {
    kind: Kind,
    /// The digests that this PDU has.
    digests: Digests,
    padding_bytes: usize,
    data_bytes: usize,
}

fn read<T: FromBytes>(bytes: &[u8]) -> T {
    T::read_from_prefix(bytes).expect("the buffer holds the largest header").0
}

fn array(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    bytes[..DIGEST_BYTES].try_into().expect("it has this length")
}

/// The first `most` bytes, or as many as there are.
fn take<'a>(bytes: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (piece, rest) = bytes.split_at(most.min(bytes.len()));
    *bytes = rest;
    piece
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use crate::pdu::{Outbox, Payload};

    const LIMITS: DataLimits = DataLimits { command: 64, transfer: 100 };

    fn receiver(digests: Digests) -> Receiver {
        let mut receiver = Receiver::new(Side::Controller, LIMITS);
        receiver.initialized(digests);
        receiver
    }

    fn bytes_of(outbox: &Outbox) -> Vec<u8> {
        outbox.unsent().flatten().copied().collect()
    }

    fn capsule(digests: Digests, data: &[u8]) -> Vec<u8> {
        let mut outbox = Outbox::new(digests, 4);
        let payload = (!data.is_empty()).then(|| Payload::from(data.to_vec()));
        outbox.pdu(Kind::Command, 0, &Command::new_zeroed(), payload);
        bytes_of(&outbox)
    }

    fn read_all(
        receiver: &mut Receiver,
        mut bytes: &[u8],
        piece: usize,
    ) -> Result<(Vec<u8>, Vec<bool>), Fatal> {
        let (mut data, mut ends) = (Vec::new(), Vec::new());
        while !bytes.is_empty() {
            let mut part = take(&mut bytes, piece);
            while let Some(received) = receiver.next(&mut part)? {
                match received {
                    Received::Header { .. } => (),
                    Received::Data(piece) => data.extend_from_slice(piece),
                    Received::DataEnd { is_intact } => ends.push(is_intact),
                }
            }
            assert!(part.is_empty());
        }
        Ok((data, ends))
    }

    #[test]
    fn data_comes_whole_in_pieces_of_any_size() {
        for digests in [0, 1, 2, 3].map(Digests::from_bits) {
            let mut bytes = capsule(digests, b"some data");
            bytes.extend(capsule(digests, b""));
            bytes.extend(capsule(digests, b"more"));
            for piece in 1..=bytes.len() {
                let read = read_all(&mut receiver(digests), &bytes, piece).unwrap();
                assert_eq!(read, (b"some datamore".to_vec(), vec![true, true]));
            }
        }
    }

    #[test]
    fn digests_detect_every_flipped_bit() {
        let digests = Digests { header: true, data: true };
        let bytes = capsule(digests, b"data");
        // The fields of the common header are checked before the digest can be.
        for bit in 64..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match read_all(&mut receiver(digests), &flipped, 1000) {
                Err(fatal) => assert_eq!(fatal.reason, FatalReason::HeaderDigestError),
                Ok((_, ends)) => assert!(bit >= 76 * 8 && ends == [false], "bit {bit}"),
            }
        }
    }

    #[test]
    fn each_invalid_field_is_named() {
        let invalid = |at: usize, value: u8| {
            let mut bytes = capsule(Digests::default(), b"data");
            bytes[at] = value;
            read_all(&mut receiver(Digests::default()), &bytes, 1000).unwrap_err()
        };
        assert_eq!(invalid(0, 8), Fatal::field(0));
        assert_eq!(invalid(0, 0), Fatal::new(FatalReason::SequenceError), "initialized twice");
        assert_eq!(invalid(0, 5), Fatal::new(FatalReason::SequenceError), "of the other side");
        assert_eq!(invalid(1, 1), Fatal::field(1));
        assert_eq!(invalid(1, 2), Fatal::field(1));
        assert_eq!(invalid(2, 71), Fatal::field(2));
        assert_eq!(invalid(3, 70), Fatal::field(3));
        assert_eq!(invalid(3, 73), Fatal::field(3));
        assert_eq!(invalid(3, 76), Fatal::field(4), "no data left");
        assert_eq!(invalid(4, 71), Fatal::field(4));
        assert_eq!(invalid(4, 72 + 65), Fatal::field(4), "more data than a capsule may hold");
    }

    #[test]
    fn a_header_that_failed_is_kept() {
        let mut receiver = receiver(Digests::default());
        let mut bytes = capsule(Digests::default(), b"data");
        bytes[2] = 71;
        assert!(receiver.next(&mut &bytes[..]).is_err());
        assert_eq!(receiver.header(), &bytes[..8]);
    }
}
