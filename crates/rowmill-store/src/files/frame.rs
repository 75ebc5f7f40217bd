//! Files of checksummed frames, written and read sequentially.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | what the file holds (`rowmdelt`, `rowmsnap`) |
//! | 4 | format version |
//! | 4 | CRC32C of the 12 bytes before |
//! | then | frames (`frame_codec`), numbered from 0 |
//!
//! The manifest holds length and CRC32C of the whole file. A frame is returned only after its checksum is
//! verified, so readers may use it at once. The end of the file is reported only if the whole file matches
//! the manifest.

use std::fmt::{self, Debug, Formatter};
use std::io::{self, BufReader, ErrorKind, Read};

use rowmill_io::{DeviceError, FileWriter, Volume};
use serde::{Deserialize, Serialize};

use super::FORMAT_VERSION;
use super::error::FileError;
use super::frame_codec::{FRAME_HEADER_BYTES, FrameHeader, seal_frame};

/// Maximum payload. It prevents that a damaged length makes a reader allocate gigabytes.
pub(super) const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Large enough for the file system to read ahead in few calls.
const READ_BUFFER_BYTES: usize = 256 << 10;

/// A file as a manifest lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// File name in the volume.
    pub(crate) name: String,
    /// Length in bytes.
    pub(crate) len: u64,
    /// CRC32C of the whole file.
    pub(crate) crc: u32,
}

/// Writes frames. After a failed write every later call fails, because the file would have a gap.
pub(super) struct FrameWriter {
    file: Box<dyn FileWriter>,
    /// Path of the file, for errors.
    path: String,
    /// Name, length and checksum of the bytes written so far.
    entry: FileEntry,
    /// The frame being filled, after space for its header.
    frame: Vec<u8>,
    frames: u64,
    failed: bool,
}

impl FrameWriter {
    /// Bytes of memory per writer.
    pub(super) const BUFFER_BYTES: usize = FRAME_HEADER_BYTES + PAYLOAD_BYTES_MAX;

    /// Create a file.
    pub(super) fn create(volume: &dyn Volume, name: String, magic: [u8; 8]) -> Result<Self, FileError> {
        let file = volume.create(&name)?;
        let mut frame = Vec::with_capacity(Self::BUFFER_BYTES);
        frame.resize(FRAME_HEADER_BYTES, 0);
        let path = volume.path(&name);
        let entry = FileEntry { name, len: 0, crc: 0 };
        let mut writer = Self { file, path, entry, frame, frames: 0, failed: false };
        writer.write(&file_header(magic))?;
        Ok(writer)
    }

    /// Bytes left in the payload being filled.
    pub(super) fn room(&self) -> usize {
        Self::BUFFER_BYTES - self.frame.len()
    }

    /// Append to the payload; there must be room.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.room());
        self.frame.extend_from_slice(bytes);
    }

    /// Write the frame, if it has a payload.
    pub(super) fn end_frame(&mut self) -> Result<(), FileError> {
        if self.frame.len() == FRAME_HEADER_BYTES {
            return Ok(());
        }
        let mut frame = std::mem::take(&mut self.frame);
        seal_frame(self.frames, &mut frame);
        let written = self.write(&frame);
        frame.truncate(FRAME_HEADER_BYTES);
        self.frame = frame;
        self.frames += 1;
        written
    }

    /// Finish the file and make its content durable. Its name becomes durable with the manifest.
    pub(super) fn finish(mut self) -> Result<FileEntry, FileError> {
        self.end_frame()?;
        if self.failed {
            return Err(self.failed_before());
        }
        self.file.sync()?;
        Ok(self.entry)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        if self.failed {
            return Err(self.failed_before());
        }
        let FileEntry { len, crc, .. } = &mut self.entry;
        if let Err(error) = self.file.write_all(bytes) {
            self.failed = true;
            return Err(DeviceError::from_io("write", self.path.as_str(), *len, bytes.len(), error).into());
        }
        *len += bytes.len() as u64;
        *crc = rowmill_io::crc32c_append(*crc, bytes);
        Ok(())
    }

    fn failed_before(&self) -> FileError {
        let source = io::Error::other("an earlier write of this file failed");
        DeviceError::from_io("write", self.path.as_str(), self.entry.len, 0, source).into()
    }
}

impl Debug for FrameWriter {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "FrameWriter({:?}, {} frames)", self.entry, self.frames)
    }
}

/// Reads and checks frames.
pub(super) struct FrameReader {
    file: BufReader<Box<dyn Read + Send>>,
    /// Path of the file, for errors.
    path: String,
    expected: FileEntry,
    payload: Vec<u8>,
    frames: u64,
    /// Number of bytes read, and their checksum.
    len: u64,
    crc: u32,
}

impl FrameReader {
    /// Open a file that a manifest names.
    pub(super) fn open(volume: &dyn Volume, expected: &FileEntry, magic: [u8; 8]) -> Result<Self, FileError> {
        let file = volume.open(&expected.name).map_err(FileError::opening)?;
        let file = BufReader::with_capacity(READ_BUFFER_BYTES, file);
        let (path, expected) = (volume.path(&expected.name), expected.clone());
        let mut reader = Self { file, path, expected, payload: Vec::new(), frames: 0, len: 0, crc: 0 };
        let mut header = [0; 16];
        reader.read(&mut header)?;
        if header != file_header(magic) {
            return Err(reader.corrupt("its header has another kind or version"));
        }
        Ok(reader)
    }

    /// The next payload; `None` at the verified end of the file.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, FileError> {
        if self.len == self.expected.len {
            return self.check_end().map(|()| None);
        }
        let mut header = [0; FRAME_HEADER_BYTES];
        self.read(&mut header)?;
        let header = FrameHeader::parse(header);
        let length = header.length;
        if length == 0 || length as usize > PAYLOAD_BYTES_MAX {
            return Err(
                self.corrupt(format!("frame {} has an invalid length of {length} bytes", self.frames))
            );
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(length as usize, 0);
        self.read(&mut payload)?;
        self.payload = payload;
        if !header.fits(self.frames, &self.payload) {
            return Err(self.corrupt(format!("frame {} does not match its checksum", self.frames)));
        }
        self.frames += 1;
        Ok(Some(&self.payload))
    }

    /// The error for a payload that is not what was written.
    pub(super) fn corrupt(&self, what: impl Into<String>) -> FileError {
        FileError::corrupt(&self.expected.name, what)
    }

    fn check_end(&mut self) -> Result<(), FileError> {
        if self.crc != self.expected.crc {
            return Err(self.corrupt("the file does not match its checksum in the manifest"));
        }
        match self.file.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.corrupt(format!("it is longer than {} bytes", self.expected.len))),
            Err(error) => Err(self.failed(1, error)),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), FileError> {
        if bytes.len() as u64 > self.expected.len - self.len {
            return Err(
                self.corrupt(format!("a frame extends beyond its end at {} bytes", self.expected.len))
            );
        }
        match self.file.read_exact(bytes) {
            Ok(()) => {
                self.len += bytes.len() as u64;
                self.crc = rowmill_io::crc32c_append(self.crc, bytes);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(self.corrupt(format!("it is shorter than {} bytes", self.expected.len)))
            }
            Err(error) => Err(self.failed(bytes.len(), error)),
        }
    }

    fn failed(&self, bytes: usize, error: io::Error) -> FileError {
        DeviceError::from_io("read", self.path.as_str(), self.len, bytes, error).into()
    }
}

fn file_header(magic: [u8; 8]) -> [u8; 16] {
    let mut header = [0; 16];
    header[..8].copy_from_slice(&magic);
    header[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    let crc = rowmill_io::crc32c(&header[..12]);
    header[12..].copy_from_slice(&crc.to_le_bytes());
    header
}
