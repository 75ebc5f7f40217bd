//! Crash tests. A checkpoint is written on a simulated volume that stops working after n steps, for every n,
//! and then loses power. Unsynced bytes and names survive or not, independently and by seed. Afterwards the
//! volume must hold the old checkpoint or the new one, with every file it names.

use std::fmt::{self, Debug, Formatter};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rowmill_io::{Device, DeviceError, FileWriter, VolumeLock};

use super::*;

/// A volume whose steps all fail after a number of steps.
#[derive(Clone)]
struct Stopping {
    volume: MemoryVolume,
    steps_left: Arc<AtomicUsize>,
}

impl Stopping {
    fn new(volume: &MemoryVolume, steps: usize) -> Self {
        Self { volume: volume.clone(), steps_left: Arc::new(AtomicUsize::new(steps)) }
    }

    fn step(&self) -> io::Result<()> {
        let left = self.steps_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| io::Error::other("the volume has stopped"))
    }

    fn device_step(&self, name: &str) -> Result<(), DeviceError> {
        self.step().map_err(|error| DeviceError::from_io("use", name, 0, 0, error))
    }
}

impl Debug for Stopping {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Stopping({} steps left)", self.steps_left.load(Relaxed))
    }
}

struct StoppingWriter {
    file: Box<dyn FileWriter>,
    volume: Stopping,
}

impl Write for StoppingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.volume.step()?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl FileWriter for StoppingWriter {
    fn sync(&mut self) -> Result<(), DeviceError> {
        self.volume.device_step("file")?;
        self.file.sync()
    }
}

impl Volume for Stopping {
    fn device(&self, name: &str, writable: bool) -> Result<Arc<dyn Device>, DeviceError> {
        self.volume.device(name, writable)
    }

    fn create(&self, name: &str) -> Result<Box<dyn FileWriter>, DeviceError> {
        self.device_step(name)?;
        Ok(Box::new(StoppingWriter { file: self.volume.create(name)?, volume: self.clone() }))
    }

    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>, DeviceError> {
        self.volume.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.device_step(from)?;
        self.volume.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        self.device_step(name)?;
        self.volume.remove(name)
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        self.volume.list()
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.device_step("folder")?;
        self.volume.sync()
    }

    fn lock(&self) -> Result<Box<dyn VolumeLock>, DeviceError> {
        self.volume.lock()
    }

    fn location(&self) -> String {
        self.volume.location()
    }

    fn describe(&self) -> String {
        self.volume.describe()
    }
}

fn content(epoch: u64) -> (Vec<Change>, Vec<Entry>, Vec<u8>) {
    let rows = 0..10 + epoch as u32;
    let changes = rows.clone().map(|row| (key(0, u64::from(row)), Some(row))).collect();
    (changes, rows.map(|row| (1, epoch, row)).collect(), epoch.to_le_bytes().repeat(200))
}

fn checkpoint(volume: &dyn Volume, epoch: u64) -> Result<(), FileError> {
    let (changes, entries, bytes) = content(epoch);
    let mut written = manifest(epoch);
    let mut delta = DeltaWriter::create(volume, epoch)?;
    for (key, row) in changes {
        delta.record(key, row)?;
    }
    written.deltas = vec![delta.finish()?];
    let mut snapshot = SnapshotWriter::create(volume, epoch)?;
    for (category, id, row) in entries {
        snapshot.push(Category(category), id, row)?;
    }
    written.snapshot = Some(snapshot.finish()?);
    written.attachments = vec![save_attachment(volume, epoch, "dense", &bytes)?];
    written.save(volume)?;
    collect_garbage(volume, &written, &|_| false).map(|_| ())
}

/// The epoch of the checkpoint found, after reading all of its files.
fn read_all(volume: &dyn Volume) -> u64 {
    let found = Manifest::load(volume).unwrap();
    let (changes, entries, bytes) = content(found.epoch);
    let (read, result) = read_delta(volume, &found.deltas[0]);
    result.unwrap();
    assert_eq!(read, changes);
    let (read, result) = read_snapshot(volume, found.snapshot.as_ref().unwrap());
    result.unwrap();
    assert_eq!(read, entries);
    assert_eq!(load_attachment(volume, &found.attachments[0]).unwrap(), bytes);
    found.epoch
}

#[test]
fn a_crash_leaves_the_old_checkpoint_or_the_new_one() {
    let (mut old, mut new, mut names_lost) = (0, 0, 0);
    for steps in 0.. {
        let mut finished = false;
        for seed in 0..60 {
            let volume = MemoryVolume::crashable();
            checkpoint(&volume, 1).unwrap();
            finished = checkpoint(&Stopping::new(&volume, steps), 2).is_ok();
            let crash = volume.crash(seed);
            names_lost += crash.names_lost;
            match read_all(&crash.volume) {
                1 if !finished => old += 1,
                2 => new += 1,
                epoch => panic!("steps {steps}, seed {seed}: found checkpoint {epoch}, finished {finished}"),
            }
            // Whatever the crash left, the next checkpoint succeeds and cleans up.
            checkpoint(&crash.volume, 2).unwrap();
            assert_eq!(read_all(&crash.volume), 2);
            assert_eq!(crash.volume.list().unwrap().len(), 4);
        }
        if finished {
            break;
        }
    }
    assert!(old > 0 && new > 0 && names_lost > 0, "{old} old, {new} new, {names_lost} names lost");
}

/// A write that fails in the middle of a file makes the whole file fail, even if later writes would succeed.
#[test]
fn a_failed_write_is_remembered() {
    let volume = volume();
    // Only the header can be written.
    let stopping = Stopping::new(&volume, 2);
    let mut writer = DeltaWriter::create(&stopping, 1).unwrap();
    let mut failed = (0..5000).filter(|&id| writer.record(key(0, id), None).is_err());
    assert_eq!(failed.next(), Some(4095), "the first frame holds 4096 changes");
    stopping.steps_left.store(1000, Relaxed);
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("an earlier write of this file failed"), "{error}");
}
