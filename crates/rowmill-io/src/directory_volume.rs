//! A volume that is a directory of a real file system.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;

use crate::file_device::FileDevice;
use crate::fork::OwnFile;
use crate::{
    AlignedBuffer, BLOCK_BYTES, Device, DeviceError, FileWriter, ProcessLocal, Volume, VolumeLock,
    thread_ring,
};

/// The lock file of a volume. It holds the pid of its last holder and is not part of the volume's content.
const LOCK_NAME: &str = "LOCK";

/// System call used for device reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// `io_uring` where the kernel allows it, `pread` otherwise.
    #[default]
    Auto,
    /// Always `pread`.
    Pread,
}

/// A directory of a file system. Devices bypass the page cache (`O_DIRECT`) where the file system allows it.
/// Elsewhere, their pages are dropped from the cache after use, so that the page cache does not extend the
/// store's memory budget.
#[derive(Debug)]
pub struct DirectoryVolume {
    path: PathBuf,
    choice: IoChoice,
    /// Why `O_DIRECT` is not used; set once the file system has refused it.
    direct_refused: OnceLock<String>,
}

impl DirectoryVolume {
    /// Open an existing directory.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] when it does not exist.
    pub fn open(path: &Path, choice: IoChoice) -> Result<Self, DeviceError> {
        let metadata = fs::metadata(path).map_err(|error| path_error("open", path, error))?;
        if !metadata.is_dir() {
            return Err(path_error("open", path, io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let volume = Self { path: path.to_owned(), choice, direct_refused: OnceLock::new() };
        if let Err(refused) = probe_direct(path) {
            // The cell is new, so it cannot be set yet.
            let _ = volume.direct_refused.set(refused);
        }
        Ok(volume)
    }

    /// Open a directory; create it and its parents if missing.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn create(path: &Path, choice: IoChoice) -> Result<Self, DeviceError> {
        if !path.is_dir() {
            fs::create_dir_all(path).map_err(|error| path_error("create", path, error))?;
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            sync_directory(parent.unwrap_or(Path::new(".")))?;
        }
        Self::open(path, choice)
    }

    fn file_path(&self, name: &str) -> Result<PathBuf, DeviceError> {
        let plain = !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
        if plain && name != LOCK_NAME {
            return Ok(self.path.join(name));
        }
        let reason =
            io::Error::new(io::ErrorKind::InvalidInput, "the name must be a plain file name other than LOCK");
        Err(path_error("open", &self.path.join(name), reason))
    }

    /// Open and lock the lock file.
    fn open_locked(&self) -> Result<File, DeviceError> {
        let path = self.path.join(LOCK_NAME);
        let failed = |error| path_error("lock", &path, error);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        if let Err(refused) = file.try_lock() {
            if let TryLockError::Error(error) = refused {
                return Err(failed(error));
            }
            let mut holder = String::new();
            // The holder may not have written its pid yet; 0 then means "unknown".
            let _ = file.read_to_string(&mut holder);
            return Err(DeviceError::Locked {
                name: self.location(),
                holder: holder.trim().parse().unwrap_or(0),
            });
        }
        // Overwrite the old note instead of truncating the file first: on a full disk, a truncated file may
        // not get its block back. The lock holds even if the note cannot be written.
        let note = format!("{}\n", std::process::id());
        let _ = file.write_all(note.as_bytes()).and_then(|()| file.set_len(note.len() as u64));
        Ok(file)
    }
}

impl Volume for DirectoryVolume {
    fn device(&self, name: &str, writable: bool) -> Result<Arc<dyn Device>, DeviceError> {
        let direct = self.direct_refused.get().is_none();
        let device = FileDevice::open(&self.file_path(name)?, writable, direct, self.choice)?;
        if direct && !device.is_direct() {
            // Another thread may have set the reason at the same time.
            let _ = self.direct_refused.set("the file system refuses O_DIRECT".to_owned());
        }
        Ok(Arc::new(device))
    }

    fn create(&self, name: &str) -> Result<Box<dyn FileWriter>, DeviceError> {
        let path = self.file_path(name)?;
        let file = File::create(&path).map_err(|error| path_error("create", &path, error))?;
        let writer = ProcessLocal::new(BufWriter::with_capacity(WRITER_BYTES, file));
        Ok(Box::new(DirectoryFileWriter { writer, path }))
    }

    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>, DeviceError> {
        let path = self.file_path(name)?;
        let file = File::open(&path).map_err(|error| path_error("open", &path, error))?;
        Ok(Box::new(BufReader::with_capacity(WRITER_BYTES, file)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        let from = self.file_path(from)?;
        fs::rename(&from, self.file_path(to)?).map_err(|error| path_error("rename", &from, error))
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        let path = self.file_path(name)?;
        fs::remove_file(&path).map_err(|error| path_error("remove", &path, error))
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        let failed = |error| path_error("list", &self.path, error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().into_string()
                && name != LOCK_NAME
                && entry.file_type().map_err(failed)?.is_file()
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        sync_directory(&self.path)
    }

    fn lock(&self) -> Result<Box<dyn VolumeLock>, DeviceError> {
        Ok(Box::new(DirectoryLock { _file: OwnFile::open(|| self.open_locked())? }))
    }

    fn location(&self) -> String {
        self.path.display().to_string()
    }

    fn describe(&self) -> String {
        if let Some(refused) = self.direct_refused.get() {
            return format!("pread through the page cache, whose pages are dropped after use ({refused})");
        }
        match (self.choice, thread_ring::support()) {
            (IoChoice::Pread, _) => "pread (as requested), O_DIRECT".to_owned(),
            (IoChoice::Auto, Ok(ring)) => format!("{ring}, O_DIRECT"),
            (IoChoice::Auto, Err(refused)) => format!("pread ({refused}), O_DIRECT"),
        }
    }
}

/// Buffer for writing a file, or for reading it from its beginning; in bytes.
const WRITER_BYTES: usize = 64 * 1024;

struct DirectoryFileWriter {
    writer: ProcessLocal<BufWriter<File>>,
    path: PathBuf,
}

impl Write for DirectoryFileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl FileWriter for DirectoryFileWriter {
    fn sync(&mut self) -> Result<(), DeviceError> {
        self.writer.flush().map_err(|error| path_error("write", &self.path, error))?;
        self.writer.get_ref().sync_data().map_err(|error| path_error("sync", &self.path, error))
    }
}

/// The lock belongs to the open file and ends with it, also when the process dies. Forked children close
/// their copy: otherwise a child that outlives its parent would keep the folder locked.
#[derive(Debug)]
struct DirectoryLock {
    _file: OwnFile,
}

impl VolumeLock for DirectoryLock {}

fn path_error(operation: &'static str, path: &Path, error: io::Error) -> DeviceError {
    DeviceError::from_io(operation, path.display().to_string(), 0, 0, error)
}

fn sync_directory(path: &Path) -> Result<(), DeviceError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| path_error("sync", path, error))
}

/// Write and read one block of an unnamed temporary file with `O_DIRECT`. Only EINVAL counts as a refusal. If
/// the folder is not writable or has no unnamed files, the first device that is opened decides.
fn probe_direct(path: &Path) -> Result<(), String> {
    let nameless = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE | libc::O_DIRECT)
        .open(path)
        .and_then(|file| {
            let mut block = AlignedBuffer::new(BLOCK_BYTES);
            file.write_all_at(&block, 0)?;
            file.read_exact_at(&mut block, 0)
        });
    match nameless {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(format!("the file system refuses O_DIRECT: {error}"))
        }
        _ => Ok(()),
    }
}
