//! Appends to a feed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rowmill_io::{DeviceError, FileWriter, Volume};

use super::frame::{self, FeedChange};
use super::segment::{self, Segment};
use super::{FeedOptions, SEGMENTS_MAX};
use crate::StoreError;

/// Writes the frames of one opening of a store. After a failure nothing more may be written.
pub(super) struct FeedWriter {
    volume: Arc<dyn Volume>,
    segment_bytes: u64,
    /// First sequence numbers of the segments that are there, the last of which is being written.
    segments: VecDeque<u64>,
    file: Box<dyn FileWriter>,
    /// Bytes of the last segment.
    written: u64,
    next: u64,
    frame: Vec<u8>,
}

impl FeedWriter {
    /// Begin a segment with frame `first` that follows `follows`.
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
            segment_bytes: options.segment_bytes(),
            segments,
            file,
            written: segment::HEADER_BYTES as u64,
            next: first,
            frame: Vec::new(),
        };
        writer.drop_oldest()?;
        Ok(writer)
    }

    /// Append a change; its sequence number. Others see it after [`FeedWriter::flush`].
    pub(super) fn append(&mut self, change: &FeedChange) -> Result<u64, StoreError> {
        let sequence = self.next;
        self.frame.clear();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        frame::encode(&mut self.frame, sequence, now, change);
        if self.written + self.frame.len() as u64 > self.segment_bytes
            && self.written > segment::HEADER_BYTES as u64
        {
            // Whoever sees the next segment must find this one whole.
            self.flush()?;
            self.file = begin_file(&*self.volume, sequence, sequence - 1)?;
            self.written = segment::HEADER_BYTES as u64;
            self.segments.push_back(sequence);
            self.drop_oldest()?;
        }
        self.file.write_all(&self.frame).map_err(|error| failed(sequence, error))?;
        self.written += self.frame.len() as u64;
        self.next += 1;
        Ok(sequence)
    }

    /// Let others see what was appended.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        self.file.flush().map_err(|error| failed(self.next, error))
    }

    /// The last sequence number given out.
    pub(super) fn last(&self) -> u64 {
        self.next - 1
    }

    fn drop_oldest(&mut self) -> Result<(), StoreError> {
        while self.segments.len() as u64 > SEGMENTS_MAX {
            let oldest = self.segments.pop_front().expect("more than one");
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
    file.write_all(&header).and_then(|()| file.flush()).map_err(|error| failed(first, error))?;
    Ok(file)
}

fn failed(sequence: u64, error: std::io::Error) -> StoreError {
    DeviceError::from_io("write", format!("frame {sequence} of the feed"), 0, 0, error).into()
}

impl std::fmt::Debug for FeedWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FeedWriter(next {}, {} segments)", self.next, self.segments.len())
    }
}
