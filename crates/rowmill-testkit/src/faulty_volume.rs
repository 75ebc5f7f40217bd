//! A volume with injected faults.

use std::fmt::{self, Debug, Formatter};
use std::io::{self, Read, Write};
use std::sync::Arc;

use rowmill_io::{Crash, Device, DeviceError, FileWriter, MemoryVolume, SECTOR_BYTES, Volume, VolumeLock};

use crate::fault_schedule::{FaultSchedule, Hit};
use crate::faulty_device::FaultyDevice;
use crate::{Fault, When};

/// Any volume, with faults injected by rules. Clones share the volume, its rules and its counts, so that a
/// test can use one clone while a store uses another.
#[derive(Clone)]
pub struct FaultyVolume {
    inner: Arc<dyn Volume>,
    schedule: Arc<FaultSchedule>,
}

impl FaultyVolume {
    /// Wrap `inner`, without faults so far.
    pub fn new(inner: Arc<dyn Volume>, seed: u64) -> Self {
        Self { inner, schedule: Arc::new(FaultSchedule::new(seed, None)) }
    }

    /// Wrap a [`MemoryVolume::crashable`] volume, without faults so far.
    pub fn over_memory(memory: MemoryVolume, seed: u64) -> Self {
        let schedule = Arc::new(FaultSchedule::new(seed, Some(memory.clone())));
        Self { inner: Arc::new(memory), schedule }
    }

    /// Inject a fault into operations of every device and file from now on.
    pub fn inject(&self, fault: Fault, when: When) {
        self.inject_on("", fault, when);
    }

    /// Inject a fault into operations of devices and files with this name prefix from now on. A sync of the
    /// volume has the name `.`, and a rename the name of its source.
    pub fn inject_on(&self, prefix: &str, fault: Fault, when: When) {
        self.schedule.inject(prefix, fault, when);
    }

    /// Stop all injections, and cancel a planned power loss. Damage done so far and counts stay.
    pub fn heal(&self) {
        self.schedule.heal();
    }

    /// Number of times that a fault has hit.
    pub fn fired(&self, fault: Fault) -> u64 {
        self.schedule.fired(fault)
    }

    /// Set a function that runs during slow operations, instead of sleeping. Its arguments are the operation
    /// ("read", "write" or "sync") and the name of the device or file ("." for the volume). It runs in the
    /// operation's thread, under all locks held there, and may use the volume.
    pub fn meanwhile(&self, work: impl Fn(&'static str, &str) + Send + Sync + 'static) {
        self.schedule.meanwhile(Arc::new(work));
    }

    /// Lose the power during the change with this number, counted from 1. Changes are creations, writes,
    /// syncs, discards, renames and removals. That change fails; it may be made or not.
    pub fn lose_power_in(&self, changes: u64) {
        self.schedule.lose_power_in(changes);
    }

    /// Whether the power is lost; [`FaultyVolume::crash`] gives the remaining content.
    pub fn has_crashed(&self) -> bool {
        self.schedule.has_crashed()
    }

    /// Lose the power now, if it is not lost already; the volume's seed determines the losses, see
    /// [`MemoryVolume::crash`]. The volume after the crash has the same rules and continues the counts.
    ///
    /// # Panics
    /// When the volume was not made by [`FaultyVolume::over_memory`], or this was called before.
    pub fn crash(&self) -> Crash<Self> {
        let (crash, schedule) = self.schedule.crash();
        crash.map(|memory| Self { inner: Arc::new(memory), schedule: Arc::new(schedule) })
    }
}

impl Debug for FaultyVolume {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyVolume({:?})", self.inner)
    }
}

impl Volume for FaultyVolume {
    fn device(&self, name: &str, writable: bool) -> Result<Arc<dyn Device>, DeviceError> {
        let inner = self.inner.device(name, writable)?;
        Ok(Arc::new(FaultyDevice::new(inner, name, Arc::clone(&self.schedule))))
    }

    fn create(&self, name: &str) -> Result<Box<dyn FileWriter>, DeviceError> {
        self.schedule.forget(name);
        let inner = change(&self.schedule, "create", name, || self.inner.create(name))?;
        Ok(Box::new(FaultyWriter { inner, name: name.to_owned(), schedule: Arc::clone(&self.schedule) }))
    }

    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>, DeviceError> {
        let inner = self.inner.open(name)?;
        Ok(Box::new(FaultyReader { inner, name: name.to_owned(), schedule: Arc::clone(&self.schedule) }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        if self.schedule.hit(from, |_, fault| fault == Fault::RenameError).is_some() {
            return Err(DeviceError::from_io("rename", from, 0, 0, io_error()));
        }
        self.schedule.forget(from);
        self.schedule.forget(to);
        change(&self.schedule, "rename", from, || self.inner.rename(from, to))
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        self.schedule.forget(name);
        change(&self.schedule, "remove", name, || self.inner.remove(name))
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        self.inner.list()
    }

    fn sync(&self) -> Result<(), DeviceError> {
        sync(&self.schedule, ".", || self.inner.sync())
    }

    fn lock(&self) -> Result<Box<dyn VolumeLock>, DeviceError> {
        self.inner.lock()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    fn describe(&self) -> String {
        format!("{}, with injected faults", self.inner.describe())
    }
}

struct FaultyWriter {
    inner: Box<dyn FileWriter>,
    name: String,
    schedule: Arc<FaultSchedule>,
}

impl Write for FaultyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let inner = &mut self.inner;
        let Some(Hit { fault, random }) = self.schedule.hit(&self.name, |_, fault| is_write_fault(fault))
        else {
            return self.schedule.change(|| inner.write(bytes)).unwrap_or_else(|| Err(power_lost()));
        };
        if fault == Fault::TornWrite {
            let mut torn = bytes.to_vec();
            for sector in torn_sectors(bytes.len(), random) {
                torn[sector].fill(0);
            }
            inner.write_all(&torn)?;
            return Ok(bytes.len());
        }
        inner.write_all(&bytes[..(random % bytes.len() as u64) as usize])?;
        Err(write_error(fault))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl FileWriter for FaultyWriter {
    fn sync(&mut self) -> Result<(), DeviceError> {
        sync(&self.schedule, &self.name, || self.inner.sync())
    }
}

struct FaultyReader {
    inner: Box<dyn Read + Send>,
    name: String,
    schedule: Arc<FaultSchedule>,
}

impl Read for FaultyReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        let possible = |fault| matches!(fault, Fault::ReadError | Fault::BitFlip);
        if count > 0
            && let Some(Hit { fault, random }) = self.schedule.hit(&self.name, |_, fault| possible(fault))
        {
            if fault == Fault::ReadError {
                return Err(io_error());
            }
            flip_bit(&mut into[..count], random);
        }
        Ok(count)
    }
}

pub(crate) fn io_error() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

pub(crate) fn is_write_fault(fault: Fault) -> bool {
    matches!(fault, Fault::WriteError | Fault::Full | Fault::TornWrite)
}

pub(crate) fn write_error(fault: Fault) -> io::Error {
    match fault {
        Fault::Full => io::Error::from_raw_os_error(libc::ENOSPC),
        _ => io_error(),
    }
}

fn power_lost() -> io::Error {
    io::Error::other("the simulated machine has lost its power")
}

/// Make a change of the device or file `name`; the power may fail during it.
pub(crate) fn change<T>(
    schedule: &FaultSchedule,
    operation: &'static str,
    name: &str,
    make: impl FnOnce() -> Result<T, DeviceError>,
) -> Result<T, DeviceError> {
    schedule.change(make).unwrap_or_else(|| Err(DeviceError::from_io(operation, name, 0, 0, power_lost())))
}

/// Sync `name`, with the fault that hits the sync.
pub(crate) fn sync(
    schedule: &FaultSchedule,
    name: &str,
    inner: impl FnOnce() -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    if schedule.slow(name).is_some() {
        schedule.pass_time("sync", name);
    }
    match schedule.hit(name, |_, fault| matches!(fault, Fault::SyncError | Fault::LostSync)) {
        None => change(schedule, "sync", name, inner),
        Some(Hit { fault: Fault::SyncError, .. }) => {
            Err(DeviceError::from_io("sync", name, 0, 0, io_error()))
        }
        Some(_) => Ok(()),
    }
}

pub(crate) fn flip_bit(bytes: &mut [u8], random: u64) {
    let bit = random % (bytes.len() as u64 * 8);
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
}

/// The sectors (at least one) of a write of `bytes` bytes that do not reach the device.
pub(crate) fn torn_sectors(bytes: usize, random: u64) -> impl Iterator<Item = std::ops::Range<usize>> {
    let sectors = bytes.div_ceil(SECTOR_BYTES);
    let lost = (random >> 8) as usize % sectors;
    // Either all sectors from one on, or every n-th: a write that was cut off, or one that was reordered.
    let step = if random & 1 == 0 { 1 } else { 2 + (random >> 1) as usize % 4 };
    (lost..sectors).step_by(step).map(move |sector| {
        let start = sector * SECTOR_BYTES;
        start..(start + SECTOR_BYTES).min(bytes)
    })
}
