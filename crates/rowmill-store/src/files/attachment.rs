//! Attachments: bytes that a checkpoint saves besides the rows. They come from the caller (dense weights,
//! data position) or are the sketches of tables.

use std::io::Read;

use rowmill_io::{DeviceError, Volume};
use rowmill_rows::Category;
use serde::{Deserialize, Serialize};

use super::error::FileError;
use super::name;

/// Maximum length of a name: with its epoch it must fit into a file name.
const NAME_BYTES_MAX: usize = 100;

/// An attachment as a manifest lists it. The file holds only its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AttachmentEntry {
    /// Name given by the caller.
    pub(crate) name: String,
    /// File name in the volume.
    pub(crate) file: String,
    /// Length in bytes.
    pub(crate) len: u64,
    /// CRC32C of the whole file.
    pub(crate) crc: u32,
}

/// Write an attachment of checkpoint `epoch` and make its content durable. Its file name becomes durable with
/// the manifest.
///
/// # Errors
/// [`FileError::AttachmentName`], or when writing fails.
pub(crate) fn save_attachment(
    volume: &dyn Volume,
    epoch: u64,
    name: &str,
    bytes: &[u8],
) -> Result<AttachmentEntry, FileError> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(letter) {
        return Err(FileError::AttachmentName { name: name.to_owned() });
    }
    save(volume, name, name::attachment(epoch, name), bytes)
}

/// Write the sketch of a category for checkpoint `epoch`, like an attachment.
///
/// # Errors
/// When writing fails.
pub(crate) fn save_sketch(
    volume: &dyn Volume,
    epoch: u64,
    category: Category,
    bytes: &[u8],
) -> Result<AttachmentEntry, FileError> {
    save(volume, &category.0.to_string(), name::sketch(epoch, category.0), bytes)
}

fn save(volume: &dyn Volume, name: &str, file: String, bytes: &[u8]) -> Result<AttachmentEntry, FileError> {
    let mut writer = volume.create(&file)?;
    writer
        .write_all(bytes)
        .map_err(|error| DeviceError::from_io("write", volume.path(&file), 0, bytes.len(), error))?;
    writer.sync()?;
    let (len, crc) = (bytes.len() as u64, rowmill_io::crc32c(bytes));
    Ok(AttachmentEntry { name: name.to_owned(), file, len, crc })
}

/// Read an attachment.
///
/// # Errors
/// [`FileError::Corrupt`] when its bytes are not the saved ones.
pub(crate) fn load_attachment(volume: &dyn Volume, entry: &AttachmentEntry) -> Result<Vec<u8>, FileError> {
    let AttachmentEntry { file, len, crc, .. } = entry;
    let reader = volume.open(file).map_err(FileError::opening)?;
    let mut bytes = Vec::new();
    reader
        .take(len.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| DeviceError::from_io("read", volume.path(file), 0, bytes.len(), error))?;
    if bytes.len() as u64 != *len {
        return Err(FileError::corrupt(file, format!("it is not {len} bytes long")));
    }
    if rowmill_io::crc32c(&bytes) != *crc {
        return Err(FileError::corrupt(file, "it does not match its checksum in the manifest"));
    }
    Ok(bytes)
}
