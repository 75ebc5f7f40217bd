//! The file of weights of a bundle, read tensor by tensor: the dense half has most of them, and a plan few.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::Metadata;

use super::array::Array;
use crate::{Buffer, DType, Failure, Status};

/// A file of weights.
#[derive(Debug)]
pub(crate) struct Weights {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// Where the first tensor begins.
    start: u64,
}

impl Weights {
    /// Open a file of safetensors.
    ///
    /// # Errors
    /// When it cannot be read or is not such a file.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let wrong = |cause: String| {
            Failure::new(Status::Failed, format!("cannot read weights from {}: {cause}", path.display()))
        };
        let open = || -> io::Result<(File, Vec<u8>)> {
            let file = File::open(path)?;
            let mut header = vec![0; 8];
            file.read_exact_at(&mut header, 0)?;
            let bytes = u64::from_le_bytes(header[..].try_into().map_err(io::Error::other)?);
            if bytes > file.metadata()?.len() {
                return Err(io::Error::other("its header is longer than the file"));
            }
            header.resize(8 + bytes as usize, 0);
            file.read_exact_at(&mut header[8..], 8)?;
            Ok((file, header))
        };
        let (file, header) = open().map_err(|error| wrong(error.to_string()))?;
        // It checks that tensors lie one behind the other.
        let metadata: Metadata =
            serde_json::from_slice(&header[8..]).map_err(|error| wrong(error.to_string()))?;
        let (start, bytes) = (header.len() as u64, file.metadata().map_or(0, |about| about.len()));
        if start + metadata.data_len() as u64 != bytes {
            return Err(wrong(format!("its {bytes} bytes are not those of its header")));
        }
        Ok(Self { path: path.into(), file, metadata, start })
    }

    /// One tensor.
    ///
    /// # Errors
    /// When the file has none of that name, or cannot be read.
    pub(super) fn read(&self, name: &str) -> Result<Array, Failure> {
        let wrong = |cause: String| {
            Failure::new(Status::Failed, format!("weight {name:?} of {}: {cause}", self.path.display()))
        };
        let info = self.metadata.info(name).ok_or_else(|| wrong("the file has no such tensor".into()))?;
        let dtype = DType::of_safetensors(info.dtype)
            .ok_or_else(|| wrong(format!("type {:?} is not served", info.dtype)))?;
        let (begin, end) = info.data_offsets;
        let mut data = vec![0; end - begin];
        self.file
            .read_exact_at(&mut data, self.start + begin as u64)
            .map_err(|error| wrong(error.to_string()))?;
        Ok(Array { dtype, shape: info.shape.clone(), data: Buffer::from(&data[..]) })
    }
}
