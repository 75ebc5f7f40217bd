//! Follows a feed: reads the available frames, without waiting for more.

use std::fmt::{self, Debug, Formatter};
use std::io::{ErrorKind, Read};
use std::sync::Arc;

use rowmill_io::{DeviceError, Volume};

use super::frame::{self, FeedChange, FeedEvent};
use super::segment;
use crate::error::StoreError;
use crate::files::{FRAME_HEADER_BYTES, FrameHeader};

/// Reads a feed from a sequence number on, also while it is being written.
pub struct FeedReader {
    volume: Arc<dyn Volume>,
    position: u64,
    open: OpenSegment,
}

/// A segment being read.
struct OpenSegment {
    first: u64,
    next: u64,
    /// Where the file is, for errors.
    path: String,
    file: Box<dyn Read + Send>,
    /// The bytes read so far of the next frame.
    bytes: Vec<u8>,
}

/// The next item of a segment.
enum Step {
    Event(FeedEvent),
    /// Nothing, or an incomplete frame.
    End,
    Damaged(String),
}

impl FeedReader {
    /// Follow the feed in a volume after frame `since`, the last frame that was applied.
    ///
    /// # Errors
    /// [`StoreError::NoFeed`], or [`StoreError::FeedGap`] when the next frame does not exist.
    pub fn open(volume: &Arc<dyn Volume>, since: u64) -> Result<Self, StoreError> {
        let firsts = segment::list(&**volume)?;
        if firsts.is_empty() {
            return Err(StoreError::NoFeed { location: volume.location() });
        }
        for &first in firsts.iter().rev() {
            let Some((segment, file)) = segment::open(&**volume, first)? else { continue };
            let open = OpenSegment::new(&**volume, first, file);
            let mut reader = Self { volume: Arc::clone(volume), position: segment.follows, open };
            if segment.follows == since {
                return Ok(reader);
            }
            if first > since {
                continue;
            }
            while let Step::Event(event) = reader.open.step()? {
                reader.position = event.sequence;
                if event.sequence == since {
                    return Ok(reader);
                }
            }
            break;
        }
        Err(gap(&firsts, since))
    }

    /// Follow the feed from its last position at which followers have the rows of checkpoint `epoch`.
    ///
    /// # Errors
    /// [`StoreError::NoFeed`], or [`StoreError::FeedGap`] when there is no such position.
    pub fn at_checkpoint(volume: &Arc<dyn Volume>, epoch: u64) -> Result<Self, StoreError> {
        let firsts = segment::list(&**volume)?;
        if firsts.is_empty() {
            return Err(StoreError::NoFeed { location: volume.location() });
        }
        for &first in firsts.iter().rev() {
            let Some((_, file)) = segment::open(&**volume, first)? else { continue };
            let mut open = OpenSegment::new(&**volume, first, file);
            let mut found = None;
            while let Step::Event(event) = open.step()? {
                if (FeedChange::Checkpoint { epoch }) == event.change {
                    found = Some(event.sequence);
                }
            }
            if let Some(sequence) = found {
                return Self::open(volume, sequence);
            }
        }
        Err(StoreError::FeedGap { what: format!("checkpoint {epoch} is not in the feed") })
    }

    /// Sequence number of the last frame that was returned.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next change; `None` if no more are published yet.
    ///
    /// # Errors
    /// [`StoreError::FeedGap`] when the next frame was removed or the feed started a new chain.
    /// [`StoreError::Corrupt`] for a damaged frame; later frames are not returned.
    pub fn poll(&mut self) -> Result<Option<FeedEvent>, StoreError> {
        let mut superseded = false;
        loop {
            let stop = match self.open.step()? {
                Step::Event(event) => {
                    self.position = event.sequence;
                    return Ok(Some(event));
                }
                stop => stop,
            };
            let firsts = segment::list(&*self.volume)?;
            let mut later = false;
            let mut found = None;
            for &first in firsts.iter().rev().take_while(|&&first| first > self.open.first) {
                let Some((segment, file)) = segment::open(&*self.volume, first)? else { continue };
                later = true;
                if segment.follows == self.position {
                    found = Some(OpenSegment::new(&*self.volume, first, file));
                    break;
                }
            }
            match (found, stop) {
                (Some(next), _) => self.open = next,
                // The segment may have been completed after its end was read: check once more.
                (None, _) if later && !superseded => superseded = true,
                (None, _) if later => return Err(gap(&firsts, self.position)),
                (None, Step::Damaged(what)) => return Err(StoreError::Corrupt { what }),
                // All segments were removed, and the feed started again with lower numbers.
                (None, _) if !firsts.is_empty() && !firsts.contains(&self.open.first) => {
                    return Err(gap(&firsts, self.position));
                }
                (None, _) => return Ok(None),
            }
        }
    }
}

impl OpenSegment {
    fn new(volume: &dyn Volume, first: u64, file: Box<dyn Read + Send>) -> Self {
        let path = volume.path(&segment::name(first));
        Self { first, next: first, path, file, bytes: Vec::new() }
    }

    fn step(&mut self) -> Result<Step, StoreError> {
        if !self.fill(FRAME_HEADER_BYTES)? {
            return Ok(Step::End);
        }
        let header = FrameHeader::parse(self.bytes[..FRAME_HEADER_BYTES].try_into().expect("8 bytes"));
        let length = header.length;
        // File systems may leave zeros where a write was lost.
        if length == 0 {
            return Ok(Step::End);
        }
        let (first, next) = (self.first, self.next);
        let damaged =
            |what: &str| Ok(Step::Damaged(format!("{}, frame {next}: {what}", segment::name(first))));
        if length as usize > frame::PAYLOAD_BYTES_MAX {
            return damaged(&format!("it has an invalid length of {length} bytes"));
        }
        if !self.fill(FRAME_HEADER_BYTES + length as usize)? {
            return Ok(Step::End);
        }
        let payload = &self.bytes[FRAME_HEADER_BYTES..];
        if !header.fits(self.next, payload) {
            return damaged("it does not match its checksum");
        }
        let Some(event) = frame::decode(self.next, payload) else {
            return damaged("its payload does not have the announced structure");
        };
        self.bytes.clear();
        self.next += 1;
        Ok(Step::Event(event))
    }

    /// Read until there are `wanted` bytes of the frame. Returns false if the file ends before.
    fn fill(&mut self, wanted: usize) -> Result<bool, StoreError> {
        while self.bytes.len() < wanted {
            let have = self.bytes.len();
            self.bytes.resize(wanted, 0);
            let read = self.file.read(&mut self.bytes[have..]);
            self.bytes.truncate(have + read.as_ref().copied().unwrap_or(0));
            match read {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(DeviceError::from_io("read", self.path.as_str(), 0, wanted, error).into());
                }
            }
        }
        Ok(true)
    }
}

fn gap(firsts: &[u64], since: u64) -> StoreError {
    let (oldest, newest) = (firsts.first().unwrap_or(&0), firsts.last().unwrap_or(&0));
    StoreError::FeedGap {
        what: format!(
            "the frame after frame {since} is not in the feed (its oldest segment begins with {oldest}, the newest \
             with {newest})"
        ),
    }
}

impl Debug for FeedReader {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "FeedReader(position {}, of {})", self.position, self.volume.location())
    }
}
