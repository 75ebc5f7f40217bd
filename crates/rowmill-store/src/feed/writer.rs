//! Appends frames to a feed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rowmill_io::{DeviceError, FileWriter, Volume};

use super::frame::{self, FeedChange};
use super::segment::{self, NOTHING, Segment};
use super::{SEGMENTS_MAX, segment_bytes};
use crate::error::StoreError;
use crate::options::FeedOptions;

/// Writes the frames of one opening of a store. After a failure, call [`FeedWriter::begin_anew`] before
/// appending more.
pub(super) struct FeedWriter {
    volume: Arc<dyn Volume>,
    segment_bytes: u64,
    /// First sequence numbers of the existing segments. The last a segment is being written.
    segments: VecDeque<u64>,
    file: Box<dyn FileWriter>,
    /// Bytes written to the last segment.
    written: u64,
    next: u64,
    frame: Vec<u8>,
}

impl FeedWriter {
    /// Begin a segment with frame `first`, which follows frame `follows`.
    pub(super) fn begin(
        volume: &Arc<dyn Volume>,
        options: &FeedOptions,
        first: u64,
        follows: u64,
    ) -> Result<Self, StoreError> {
        let mut segments: VecDeque<u64> = segment::list(&**volume)?.into();
        segments.retain(|&other| other < first);
        let file = begin_file(&**volume, first, follows)?;
        segments.push_back(first);
        let mut writer = Self {
            volume: Arc::clone(volume),
            segment_bytes: segment_bytes(options),
            segments,
            file,
            written: segment::HEADER_BYTES as u64,
            next: first,
            frame: Vec::new(),
        };
        writer.drop_oldest()?;
        Ok(writer)
    }

    /// Begin a new chain: followers of earlier frames must start again.
    pub(super) fn begin_anew(&mut self) -> Result<(), StoreError> {
        // The frame that failed may have been read nevertheless, so its number is not reused.
        let first = self.next + 1;
        self.file = begin_file(&*self.volume, first, NOTHING)?;
        self.written = segment::HEADER_BYTES as u64;
        self.next = first;
        self.segments.push_back(first);
        self.drop_oldest()
    }

    /// Append a change. Returns its sequence number. Followers see it after [`FeedWriter::flush`].
    pub(super) fn append(&mut self, change: &FeedChange) -> Result<u64, StoreError> {
        let sequence = self.next;
        self.frame.clear();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        frame::encode(&mut self.frame, sequence, now, change);
        if self.written + self.frame.len() as u64 > self.segment_bytes
            && self.written > segment::HEADER_BYTES as u64
        {
            // A follower that sees the next segment must find this one complete.
            self.flush()?;
            self.file = begin_file(&*self.volume, sequence, sequence - 1)?;
            self.written = segment::HEADER_BYTES as u64;
            self.segments.push_back(sequence);
            self.drop_oldest()?;
        }
        let written = self.file.write_all(&self.frame);
        written.map_err(|error| self.failed(error))?;
        self.written += self.frame.len() as u64;
        self.next += 1;
        Ok(sequence)
    }

    /// Make appended frames visible to followers.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        let flushed = self.file.flush();
        flushed.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: std::io::Error) -> StoreError {
        let first = *self.segments.back().expect("a segment is being written");
        failed(&*self.volume, first, self.written, self.frame.len(), error)
    }

    /// The last sequence number used.
    pub(super) fn last(&self) -> u64 {
        self.next - 1
    }

    fn drop_oldest(&mut self) -> Result<(), StoreError> {
        while self.segments.len() as u64 > SEGMENTS_MAX {
            let oldest = self.segments.pop_front().expect("there is more than one segment");
            match self.volume.remove(&segment::name(oldest)) {
                Ok(()) | Err(DeviceError::Missing { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn begin_file(volume: &dyn Volume, first: u64, follows: u64) -> Result<Box<dyn FileWriter>, StoreError> {
    let mut file = volume.create(&segment::name(first))?;
    let header = segment::header(Segment { first, follows });
    let written = file.write_all(&header).and_then(|()| file.flush());
    written.map_err(|error| failed(volume, first, 0, header.len(), error))?;
    Ok(file)
}

fn failed(volume: &dyn Volume, first: u64, offset: u64, bytes: usize, error: std::io::Error) -> StoreError {
    DeviceError::from_io("write", volume.path(&segment::name(first)), offset, bytes, error).into()
}

impl std::fmt::Debug for FeedWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FeedWriter(next {}, {} segments)", self.next, self.segments.len())
    }
}
