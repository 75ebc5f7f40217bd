//! A volume in memory, for tests and for simulating power loss.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rowmill_splitmix::SplitMix64;
use rowmill_sync::unranked::{Mutex, RwLock};

use crate::memory_file::{Fates, MemoryFile};
use crate::{Device, DeviceError, FileWriter, ReadResult, Span, Volume, VolumeLock};

/// A volume that lives as long as its last handle. Clones share it, so a store can be closed and reopened
/// within the process.
///
/// A volume made by [`MemoryVolume::crashable`] records unsynced changes and can [`crash`](Self::crash).
#[derive(Clone)]
pub struct MemoryVolume {
    machine: Arc<Machine>,
}

/// The result of a simulated crash.
#[derive(Debug)]
pub struct Crash<V> {
    /// The volume as found after the crash. Every operation on the crashed volume returns an error.
    pub volume: V,
    /// Unsynced content changes that survived completely.
    pub changes_kept: usize,
    /// Unsynced content changes that were lost completely.
    pub changes_lost: usize,
    /// Unsynced content changes of which some sectors may have survived.
    pub changes_torn: usize,
    /// Unsynced creations, renames and removals that did not survive.
    pub names_lost: usize,
}

impl<V> Crash<V> {
    /// The same crash, with its volume wrapped by `wrap`.
    pub fn map<W>(self, wrap: impl FnOnce(V) -> W) -> Crash<W> {
        let Self { volume, changes_kept, changes_lost, changes_torn, names_lost } = self;
        Crash { volume: wrap(volume), changes_kept, changes_lost, changes_torn, names_lost }
    }
}

struct Machine {
    crashable: bool,
    folder: Mutex<Folder>,
    /// Checked under the lock of the folder or file in use, so that nothing changes after the crash copied
    /// it.
    crashed: AtomicBool,
    locked: AtomicBool,
}

type File = Arc<RwLock<MemoryFile>>;

#[derive(Default)]
struct Folder {
    names: BTreeMap<String, File>,
    /// Names at the last sync. Kept only by crashable volumes, as are the changes since.
    names_synced: BTreeMap<String, File>,
    changes: Vec<NameChange>,
}

enum NameChange {
    Create(String, File),
    Rename(String, File),
    Remove(String),
}

impl MemoryVolume {
    /// An empty volume that uses no more memory than its content.
    pub fn new() -> Self {
        Self::with(false, Folder::default())
    }

    /// An empty volume that can lose its power. It keeps unsynced writes twice.
    pub fn crashable() -> Self {
        Self::with(true, Folder::default())
    }

    /// Simulate a power loss: the volume as found after a restart.
    ///
    /// Synced content and names survive. Each unsynced write survives completely, not at all, or by random
    /// 512-byte sectors, independently of other writes and of their order. Names behave the same way, except
    /// that a rename happens completely or not at all. From now on, every handle of the crashed volume
    /// returns errors, and its lock is released.
    ///
    /// # Panics
    /// When the volume was not made by [`MemoryVolume::crashable`].
    pub fn crash(&self, seed: u64) -> Crash<Self> {
        assert!(self.machine.crashable, "make the volume with MemoryVolume::crashable() to crash it");
        let mut seeded = SplitMix64::new(seed);
        let mut folder = self.machine.folder.lock();
        self.machine.crashed.store(true, Ordering::Release);
        let Folder { mut names_synced, changes, .. } = std::mem::take(&mut *folder);
        drop(folder);
        let names_lost = survive_names(&mut names_synced, changes, &mut seeded);
        let mut fates = Fates::default();
        let mut names = BTreeMap::new();
        for (name, file) in names_synced {
            let file = file.write().after_crash(&mut seeded, &mut fates);
            names.insert(name, Arc::new(RwLock::new(file)));
        }
        let found = Folder { names_synced: names.clone(), names, changes: Vec::new() };
        Crash {
            volume: Self::with(true, found),
            changes_kept: fates.kept,
            changes_lost: fates.lost,
            changes_torn: fates.torn,
            names_lost,
        }
    }

    /// Total length of all files in bytes, holes included.
    pub fn bytes(&self) -> u64 {
        self.machine.folder.lock().names.values().map(|file| file.read().bytes()).sum()
    }

    fn with(crashable: bool, folder: Folder) -> Self {
        let machine = Machine {
            crashable,
            folder: Mutex::new(folder),
            crashed: AtomicBool::new(false),
            locked: AtomicBool::new(false),
        };
        Self { machine: Arc::new(machine) }
    }

    /// The file of that name; created if missing and `create` is set.
    fn file(&self, name: &str, create: bool) -> Result<File, DeviceError> {
        let mut folder = self.machine.folder.lock();
        self.machine.check_power("open", name)?;
        if let Some(file) = folder.names.get(name) {
            return Ok(Arc::clone(file));
        }
        if !create {
            return Err(DeviceError::Missing { name: name.to_owned() });
        }
        let file = Arc::new(RwLock::new(MemoryFile::new(self.machine.crashable)));
        folder.names.insert(name.to_owned(), Arc::clone(&file));
        self.machine.note(&mut folder, || NameChange::Create(name.to_owned(), Arc::clone(&file)));
        Ok(file)
    }
}

impl Default for MemoryVolume {
    fn default() -> Self {
        Self::new()
    }
}

impl Debug for MemoryVolume {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryVolume({} bytes)", self.bytes())
    }
}

/// Reads a file that may grow meanwhile.
struct MemoryReader {
    file: File,
    offset: u64,
}

impl Read for MemoryReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let content = self.file.read();
        let left = content.bytes().saturating_sub(self.offset);
        let count = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if count == 0 {
            return Ok(0);
        }
        content.read(self.offset, &mut into[..count])?;
        self.offset += count as u64;
        Ok(count)
    }
}

impl Volume for MemoryVolume {
    fn device(&self, name: &str, writable: bool) -> Result<Arc<dyn Device>, DeviceError> {
        let file = self.file(name, writable)?;
        let machine = Arc::clone(&self.machine);
        Ok(Arc::new(MemoryDevice { name: name.to_owned(), writable, file, machine }))
    }

    fn create(&self, name: &str) -> Result<Box<dyn FileWriter>, DeviceError> {
        let file = self.file(name, true)?;
        {
            let mut content = file.write();
            self.machine.check_power("create", name)?;
            if content.bytes() > 0 {
                content.truncate();
            }
        }
        let machine = Arc::clone(&self.machine);
        Ok(Box::new(MemoryFileWriter { name: name.to_owned(), file, machine, offset: 0 }))
    }

    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>, DeviceError> {
        let file = self.file(name, false)?;
        Ok(Box::new(MemoryReader { file, offset: 0 }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        let mut folder = self.machine.folder.lock();
        self.machine.check_power("rename", from)?;
        let Some(file) = folder.names.remove(from) else {
            return Err(DeviceError::Missing { name: from.to_owned() });
        };
        folder.names.insert(to.to_owned(), Arc::clone(&file));
        self.machine.note(&mut folder, || NameChange::Rename(to.to_owned(), file));
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        let mut folder = self.machine.folder.lock();
        self.machine.check_power("remove", name)?;
        if folder.names.remove(name).is_none() {
            return Err(DeviceError::Missing { name: name.to_owned() });
        }
        self.machine.note(&mut folder, || NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        let folder = self.machine.folder.lock();
        self.machine.check_power("list", "the volume")?;
        Ok(folder.names.keys().cloned().collect())
    }

    fn sync(&self) -> Result<(), DeviceError> {
        let mut folder = self.machine.folder.lock();
        self.machine.check_power("sync", "the volume")?;
        if self.machine.crashable && !folder.changes.is_empty() {
            folder.changes.clear();
            folder.names_synced = folder.names.clone();
        }
        Ok(())
    }

    fn lock(&self) -> Result<Box<dyn VolumeLock>, DeviceError> {
        self.machine.check_power("lock", "the volume")?;
        if self.machine.locked.swap(true, Ordering::Acquire) {
            return Err(DeviceError::Locked { name: self.location(), holder: std::process::id() });
        }
        Ok(Box::new(MemoryLock { machine: Arc::clone(&self.machine) }))
    }

    fn location(&self) -> String {
        "memory".to_owned()
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}

impl Machine {
    fn check_power(&self, operation: &'static str, name: &str) -> Result<(), DeviceError> {
        if self.crashed.load(Ordering::Acquire) {
            let source = io::Error::other("the simulated machine has lost its power");
            return Err(DeviceError::from_io(operation, name, 0, 0, source));
        }
        Ok(())
    }

    fn note(&self, folder: &mut Folder, change: impl FnOnce() -> NameChange) {
        if self.crashable {
            folder.changes.push(change());
        }
    }
}

/// Apply a random subset of `changes` to `names`; returns how many were lost.
fn survive_names(
    names: &mut BTreeMap<String, File>,
    changes: Vec<NameChange>,
    seeded: &mut SplitMix64,
) -> usize {
    // A journal keeps a prefix of the changes; a file system without a journal keeps any subset.
    let journal = seeded.one_in(2);
    let prefix = seeded.below(changes.len() as u64 + 1) as usize;
    let mut lost = 0;
    for (position, change) in changes.into_iter().enumerate() {
        if if journal { position >= prefix } else { seeded.one_in(2) } {
            lost += 1;
            continue;
        }
        match change {
            NameChange::Create(name, file) => drop(names.insert(name, file)),
            NameChange::Rename(to, file) => {
                names.retain(|_, other| !Arc::ptr_eq(other, &file));
                names.insert(to, file);
            }
            NameChange::Remove(name) => drop(names.remove(&name)),
        }
    }
    lost
}

#[derive(Debug)]
struct MemoryDevice {
    name: String,
    writable: bool,
    file: File,
    machine: Arc<Machine>,
}

impl MemoryDevice {
    fn check_writable(&self, operation: &'static str, offset: u64) -> Result<(), DeviceError> {
        if self.writable {
            return Ok(());
        }
        let source = io::Error::new(io::ErrorKind::PermissionDenied, "the device was opened read-only");
        Err(DeviceError::from_io(operation, self.name.as_str(), offset, 0, source))
    }
}

impl Device for MemoryDevice {
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>)) {
        // The bytes are copied first, so that `deliver` may use the device.
        let mut copy = vec![0; spans.iter().map(|span| span.bytes).max().unwrap_or(0)];
        for (position, span) in spans.iter().enumerate() {
            span.assert_whole_blocks();
            let into = &mut copy[..span.bytes];
            let file = self.file.read();
            let result = self.machine.check_power("read", &self.name).and_then(|()| {
                file.read(span.offset, into).map_err(|error| {
                    DeviceError::from_io("read", self.name.as_str(), span.offset, span.bytes, error)
                })
            });
            drop(file);
            deliver(position, result.map(|()| &*into));
        }
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError> {
        if blocks.is_empty() {
            return Ok(());
        }
        Span { offset, bytes: blocks.len() }.assert_whole_blocks();
        self.check_writable("write", offset)?;
        let mut file = self.file.write();
        self.machine.check_power("write", &self.name)?;
        file.write(offset, blocks);
        Ok(())
    }

    fn sync(&self) -> Result<(), DeviceError> {
        let mut file = self.file.write();
        self.machine.check_power("sync", &self.name)?;
        file.sync();
        Ok(())
    }

    fn discard(&self, span: Span) -> Result<(), DeviceError> {
        span.assert_whole_blocks();
        self.check_writable("discard", span.offset)?;
        let mut file = self.file.write();
        self.machine.check_power("discard", &self.name)?;
        file.discard(span.offset, span.bytes as u64);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.file.read().bytes()
    }
}

struct MemoryFileWriter {
    name: String,
    file: File,
    machine: Arc<Machine>,
    offset: u64,
}

impl Write for MemoryFileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self.file.write();
        self.machine.check_power("write", &self.name).map_err(io::Error::other)?;
        file.write(self.offset, bytes);
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl FileWriter for MemoryFileWriter {
    fn sync(&mut self) -> Result<(), DeviceError> {
        let mut file = self.file.write();
        self.machine.check_power("sync", &self.name)?;
        file.sync();
        Ok(())
    }
}

struct MemoryLock {
    machine: Arc<Machine>,
}

impl Debug for MemoryLock {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryLock(held: {})", self.machine.locked.load(Ordering::Relaxed))
    }
}

impl VolumeLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.machine.locked.store(false, Ordering::Release);
    }
}

impl Debug for Machine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Machine(crashable: {})", self.crashable)
    }
}
