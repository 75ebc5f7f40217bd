//! A volume for a store on a namespace of blocks, which it divides into slices for its devices.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ring::rand::{SecureRandom, SystemRandom};
use rowmill_io::{BLOCK_BYTES, Device, DeviceError, FileWriter, Span, Volume, VolumeLock};
use rowmill_sync::unranked::Mutex;

use crate::slice_table::{FILE, FILE_NEW, SliceTable};
use crate::sliced_device::{SlicedDevice, SlicedFile};
use crate::slices::{Slice, Slices};

/// The smallest slice. A device has at most [`SLICES_MAX`] slices, so that the table stays below 1 MiB.
const SLICE_BYTES_MIN: u64 = 1 << 20;
const SLICES_MAX: u64 = 1 << 16;
/// The label is in the first block of slice 0, which holds nothing else.
const LABEL: Span = Span { offset: 0, bytes: BLOCK_BYTES };

/// A volume whose devices are on one large device, such as a namespace of a storage node, cut into slices. The table of
/// slices and all small files are in a local folder, and one is of no use without the other.
///
/// Invariants:
///
/// - The table that is durable names only slices that were not given to another device since.
/// - It covers only blocks that were flushed before it was written.
/// - Blocks that a device has not written read as zeros, whatever the slice held before.
///
/// One process at a time uses the folder, also to read.
#[derive(Debug)]
pub struct SlicedVolume {
    pub(crate) shared: Arc<Shared>,
    is_locked: Arc<AtomicBool>,
    _lock: Box<dyn VolumeLock>,
}

/// State that the volume and its devices share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) local: Arc<dyn Volume>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) slices: Arc<Slices>,
    pub(crate) slice_bytes: u64,
    id: String,
    files: Mutex<BTreeMap<String, Arc<SlicedFile>>>,
    /// Grows with every change of the table.
    pub(crate) version: AtomicU64,
    /// The version that is durable. Its lock admits one save at a time.
    saved: Mutex<u64>,
    /// Slice 0.
    _label: Slice,
}

impl SlicedVolume {
    /// Open the volume of a folder and a device, or make one. A new one needs a device whose first block is zeros.
    ///
    /// # Errors
    ///
    /// When another process uses the folder, when the table is damaged, or when the device belongs to another folder.
    pub fn open(local: Arc<dyn Volume>, device: Arc<dyn Device>) -> Result<SlicedVolume, DeviceError> {
        let lock = local.lock()?;
        let table = match SliceTable::load(&*local)? {
            Some(table) => table,
            None => new_table(&*local, &*device)?,
        };
        check_label(&table, &*local, &*device)?;
        let slices = Slices::new((device.bytes() / table.slice_bytes).min(u64::from(u32::MAX)) as u32);
        let damaged = |name: &str| {
            let reason =
                format!("slices of {name} are used twice or lie beyond the device: restore the folder");
            local_error(&*local, "read", io::Error::new(io::ErrorKind::InvalidData, reason))
        };
        let label = slices.claim(0).ok_or_else(|| damaged("the label"))?;
        let mut files = BTreeMap::new();
        for (name, saved) in &table.devices {
            let file = SlicedFile::load(saved, &slices, table.slice_bytes).ok_or_else(|| damaged(name))?;
            files.insert(name.clone(), Arc::new(file));
        }
        let shared = Shared {
            local,
            device,
            slices,
            slice_bytes: table.slice_bytes,
            id: table.id,
            files: Mutex::new(files),
            version: AtomicU64::new(0),
            saved: Mutex::new(0),
            _label: label,
        };
        Ok(SlicedVolume { shared: Arc::new(shared), is_locked: Arc::default(), _lock: lock })
    }

    fn check_name(&self, name: &str) -> Result<(), DeviceError> {
        let is_plain = !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
        if is_plain && ![FILE, FILE_NEW, "LOCK"].contains(&name) {
            return Ok(());
        }
        let reason = "the name must be a plain file name other than LOCK, SLICES and SLICES.new";
        Err(DeviceError::from_io(
            "open",
            self.path(name),
            0,
            0,
            io::Error::new(io::ErrorKind::InvalidInput, reason),
        ))
    }
}

impl Shared {
    /// Flush the device, then make a table durable that names its content.
    pub(crate) fn save(&self) -> Result<(), DeviceError> {
        let mut saved = self.saved.lock();
        // In this order: a slice that is freed later may still be in the table, and what is written later may be missing.
        let version = self.version.load(Ordering::Acquire);
        let freed = self.slices.freed();
        let files = self.files.lock().clone();
        let devices = files.into_iter().map(|(name, file)| (name, file.save(self.slice_bytes))).collect();
        self.device.sync()?;
        if version == *saved && freed.is_empty() {
            return Ok(());
        }
        SliceTable { id: self.id.clone(), slice_bytes: self.slice_bytes, devices }.save(&*self.local)?;
        *saved = version;
        for &number in &freed {
            let bytes = self.slice_bytes as usize;
            let span = Span { offset: u64::from(number) * self.slice_bytes, bytes };
            if let Err(error) = self.device.discard(span) {
                tracing::warn!(%error, "the space of a free slice stays allocated");
            }
        }
        self.slices.reuse(&freed);
        Ok(())
    }

    pub(crate) fn change(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl Volume for SlicedVolume {
    fn device(&self, name: &str, writable: bool) -> Result<Arc<dyn Device>, DeviceError> {
        self.check_name(name)?;
        let mut files = self.shared.files.lock();
        let file = match files.get(name) {
            Some(file) => Arc::clone(file),
            None if writable => {
                let file = Arc::new(SlicedFile::default());
                files.insert(name.to_owned(), Arc::clone(&file));
                self.shared.change();
                file
            }
            None => return Err(DeviceError::Missing { name: self.path(name) }),
        };
        Ok(Arc::new(SlicedDevice::new(Arc::clone(&self.shared), file, self.path(name), writable)))
    }

    fn create(&self, name: &str) -> Result<Box<dyn FileWriter>, DeviceError> {
        self.check_name(name)?;
        self.shared.local.create(name)
    }

    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>, DeviceError> {
        self.check_name(name)?;
        self.shared.local.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.check_name(from)?;
        self.check_name(to)?;
        let mut files = self.shared.files.lock();
        if files.contains_key(from) || files.contains_key(to) {
            let has_file = self.shared.local.list()?.iter().any(|name| name == from || name == to);
            let file = if has_file { None } else { files.remove(from) };
            let Some(file) = file else {
                let reason = io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a device and a file do not replace each other",
                );
                return Err(DeviceError::from_io("rename", self.path(from), 0, 0, reason));
            };
            files.insert(to.to_owned(), file);
            self.shared.change();
            return Ok(());
        }
        drop(files);
        self.shared.local.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        self.check_name(name)?;
        if self.shared.files.lock().remove(name).is_some() {
            self.shared.change();
            return Ok(());
        }
        self.shared.local.remove(name)
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        let mut names = self.shared.local.list()?;
        names.retain(|name| name != FILE && name != FILE_NEW);
        names.extend(self.shared.files.lock().keys().cloned());
        names.sort_unstable();
        Ok(names)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.shared.save()?;
        self.shared.local.sync()
    }

    fn lock(&self) -> Result<Box<dyn VolumeLock>, DeviceError> {
        if self.is_locked.swap(true, Ordering::AcqRel) {
            return Err(DeviceError::Locked { name: self.location(), holder: std::process::id() });
        }
        Ok(Box::new(SlicedLock(Arc::clone(&self.is_locked))))
    }

    fn location(&self) -> String {
        self.shared.local.location()
    }

    fn describe(&self) -> String {
        format!("slices of a namespace; small files: {}", self.shared.local.describe())
    }
}

/// The lock within this process; the folder is locked for as long as it is open.
#[derive(Debug)]
struct SlicedLock(Arc<AtomicBool>);

impl VolumeLock for SlicedLock {}

impl Drop for SlicedLock {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn new_table(local: &dyn Volume, device: &dyn Device) -> Result<SliceTable, DeviceError> {
    if !read_label(device)?.iter().all(|&byte| byte == 0) {
        let reason = "the namespace is in use, and this folder does not know it: open it with its own folder, or, if nothing of \
                      it is needed, deallocate its first block";
        return Err(local_error(local, "open", io::Error::new(io::ErrorKind::AlreadyExists, reason)));
    }
    let mut random = [0; 16];
    let filled = SystemRandom::new().fill(&mut random);
    filled.map_err(|_| local_error(local, "open", io::Error::other("the system gives no random numbers")))?;
    let id = random.map(|byte| format!("{byte:02x}")).concat();
    let slice_bytes = (device.bytes() / SLICES_MAX).next_power_of_two().max(SLICE_BYTES_MIN);
    let table = SliceTable { id, slice_bytes, devices: BTreeMap::new() };
    // The label comes afterwards. A table without devices and a label of zeros are a volume that was being made.
    table.save(local)?;
    Ok(table)
}

/// Check that the device is that of the table. That of a new table gets its label.
fn check_label(table: &SliceTable, local: &dyn Volume, device: &dyn Device) -> Result<(), DeviceError> {
    let mut label = format!("rowmill-slices {}\n", table.id).into_bytes();
    label.resize(LABEL.bytes, 0);
    let found = read_label(device)?;
    if found == label {
        return Ok(());
    }
    if table.devices.is_empty() && found.iter().all(|&byte| byte == 0) {
        device.write(LABEL.offset, &label)?;
        return device.sync();
    }
    let reason =
        format!("the namespace is not the one of this folder, whose id is {}: check the URL", table.id);
    Err(local_error(local, "open", io::Error::new(io::ErrorKind::InvalidData, reason)))
}

fn read_label(device: &dyn Device) -> Result<Vec<u8>, DeviceError> {
    let mut label = Ok(Vec::new());
    device.read(&[LABEL], &mut |_, result| label = result.map(<[u8]>::to_vec));
    label
}

fn local_error(local: &dyn Volume, operation: &'static str, error: io::Error) -> DeviceError {
    DeviceError::from_io(operation, local.path(FILE), 0, 0, error)
}
