//! Bounds of retries, queues and waits, each with an error that names it.
//!
//! What could break: a reader that retries for good, a queue that grows without end, a wait that nothing ends.

mod common;

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use common::*;
use rowmill_io::{Device, DeviceError, FileWriter, VolumeLock};
use rowmill_store::*;

/// What happens when a log is opened: its device, or why there is none.
type OpenLog = Box<dyn Fn(Arc<dyn Device>) -> Result<Arc<dyn Device>, DeviceError> + Send + Sync>;

/// A volume in memory that meddles with its logs.
struct Meddling {
    volume: MemoryVolume,
    open_log: OpenLog,
}

impl std::fmt::Debug for Meddling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.volume.fmt(f)
    }
}

impl Volume for Meddling {
    fn device(&self, name: &str, writable: bool) -> Result<Arc<dyn Device>, DeviceError> {
        let device = self.volume.device(name, writable)?;
        if name.starts_with("group-") { (self.open_log)(device) } else { Ok(device) }
    }
    fn create(&self, name: &str) -> Result<Box<dyn FileWriter>, DeviceError> {
        self.volume.create(name)
    }
    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>, DeviceError> {
        self.volume.open(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.volume.rename(from, to)
    }
    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        self.volume.remove(name)
    }
    fn list(&self) -> Result<Vec<String>, DeviceError> {
        self.volume.list()
    }
    fn sync(&self) -> Result<(), DeviceError> {
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

#[test]
fn a_reader_that_checkpoints_outrun_stops_trying() {
    /// A writer that goes on beyond this number of checkpoints is not outrun by the test.
    const CHECKPOINTS_MAX: u64 = 500;
    let volume = MemoryVolume::new();
    let writer = open(&volume, &options(None));
    let table = writer.table("t", &bound(0)).unwrap();
    put_four(&table, &[1]);
    writer.checkpoint(&[]).unwrap();
    let tries = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&tries);
    // Whenever the reader opens the log, the writer has made another checkpoint and the reader's files are gone.
    let open_log: OpenLog = Box::new(move |device| {
        if counted.fetch_add(1, Relaxed) >= CHECKPOINTS_MAX {
            return Ok(device);
        }
        // A thread of the writer's: the reader's holds locks of the reader.
        std::thread::scope(|scope| scope.spawn(|| writer.checkpoint(&[]).unwrap()).join().unwrap());
        Err(DeviceError::Missing { name: "delta".into() })
    });
    let options = StoreOptions { read_only: true, ..options(None) };
    let opened = Store::open_volume(Arc::new(Meddling { volume, open_log }), options);
    let tries = tries.load(Relaxed);
    let error = opened.expect_err("it tried until the writer stopped").to_string();
    assert!(tries > 3 && tries < CHECKPOINTS_MAX, "{tries}");
    for part in [&*format!("{tries} times"), "read-only", "open it again"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

fn put_four(table: &Table, ids: &[u64]) {
    table.put(ids, &vec![0.5; ids.len() * 4], None).unwrap();
}
