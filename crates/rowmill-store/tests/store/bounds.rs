//! Bounds on retries, queues and waits; each error names its bound.
//!
//! What could break: a reader retries forever, a queue grows without limit, a wait never ends.

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::*;
use rowmill_io::{Device, DeviceError, FileWriter, ReadResult, Span, VolumeLock};
use rowmill_store::*;

/// Longer than any deadline of these tests.
const LATE: Duration = Duration::from_secs(20);

/// Called when a log is opened: returns its device, or an error.
type OpenLog = Box<dyn Fn(Arc<dyn Device>) -> Result<Arc<dyn Device>, DeviceError> + Send + Sync>;

/// A volume in memory that intercepts the opening of its logs.
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
fn a_reader_gives_up_if_checkpoints_are_made_too_fast() {
    /// A writer that makes more checkpoints than this shows that the reader never stops retrying.
    const CHECKPOINTS_MAX: u64 = 500;
    let volume = MemoryVolume::new();
    let writer = open(&volume, &options(None));
    let table = writer.table("t", &bound(0)).unwrap();
    put_four(&table, &[1]);
    writer.checkpoint(&[]).unwrap();
    let tries = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&tries);
    // Whenever the reader opens the log, the writer makes another checkpoint, and the reader's files are
    // removed.
    let open_log: OpenLog = Box::new(move |device| {
        if counted.fetch_add(1, Relaxed) >= CHECKPOINTS_MAX {
            return Ok(device);
        }
        // In another thread, because the reader's thread holds locks of the reader.
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

fn ticket(store: &Arc<Store>) -> Arc<Ticket> {
    Arc::new(store.ticket().unwrap())
}

#[test]
fn more_queued_gets_than_the_limit_are_refused() {
    const FAR_TOO_MANY: usize = 100_000;
    // With this much memory, the limit on the number of gets applies, not the limit on their bytes.
    let options = StoreOptions { wait_deadline: LATE, memory: 128 << 20, ..options(None) };
    let store = open(&MemoryVolume::new(), &options);
    let table = store.table("t", &bound(0)).unwrap();
    put_four(&table, &[1]);
    let (holder, waiter) = (ticket(&store), ticket(&store));
    table.get_or_init(&[1], &mut [0.0; 4], Some(&holder)).unwrap();
    let mut gets = Vec::new();
    let error = loop {
        match table.get_later(&[1], &waiter) {
            Ok(get) => gets.push(get),
            Err(error) => break error,
        }
        assert!(gets.len() < FAR_TOO_MANY, "the queue has no end");
    };
    assert!(matches!(error, StoreError::QueueFull { .. }), "{error}");
    assert!(error.to_string().contains(&format!("limits are {} gets", gets.len())), "{error}");
    // Dropping queued gets makes room.
    gets.truncate(gets.len() / 2);
    gets.push(table.get_later(&[1], &waiter).unwrap());
}

#[test]
fn queued_gets_of_more_rows_than_the_limit_are_refused() {
    let store = open(&MemoryVolume::new(), &StoreOptions { wait_deadline: LATE, ..options(None) });
    let table = store.table("t", &spec(128, SGD)).unwrap();
    let ticket = ticket(&store);
    let memory = store.stats().memory_budget;
    let (mut gets, mut bytes) = (Vec::new(), 0);
    let error = loop {
        let first = gets.len() as u64 * 500;
        let ids: Vec<u64> = (first..first + 500).collect();
        match table.get_later(&ids, &ticket) {
            Ok(get) => gets.push(get),
            Err(error) => break error,
        }
        // Rows that are not collected stay in memory.
        bytes += 500 * 512;
        assert!(bytes < memory, "{bytes} bytes of rows wait to be collected");
    };
    assert!(matches!(error, StoreError::QueueFull { .. }) && bytes <= memory / 8, "{bytes}: {error}");
    assert!(error.to_string().contains("\"t\"") && error.to_string().contains("500"), "{error}");
    let first = gets.remove(0);
    assert_eq!(first.wait().unwrap().len(), 500 * 128);
    gets.push(table.get_later(&[1], &ticket).unwrap());
}

/// A device whose reads wait for the test.
#[derive(Debug)]
struct Stuck {
    device: Arc<dyn Device>,
    gate: Arc<Mutex<()>>,
}

impl Device for Stuck {
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>)) {
        let gate = self.gate.lock();
        self.device.read(spans, deliver);
        drop(gate);
    }
    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError> {
        self.device.write(offset, blocks)
    }
    fn sync(&self) -> Result<(), DeviceError> {
        self.device.sync()
    }
    fn discard(&self, span: Span) -> Result<(), DeviceError> {
        self.device.discard(span)
    }
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }
}

#[test]
fn waiting_for_a_queued_get_ends_at_the_stores_deadline() {
    const DEADLINE: Duration = Duration::from_millis(100);
    let gate = Arc::new(Mutex::new(()));
    let of_logs = Arc::clone(&gate);
    let open_log: OpenLog =
        Box::new(move |device| Ok(Arc::new(Stuck { device, gate: Arc::clone(&of_logs) })));
    let options = StoreOptions { wait_deadline: DEADLINE, ..options(Some(1 << 20)) };
    let volume = Meddling { volume: MemoryVolume::new(), open_log };
    let store = Store::open_volume(Arc::new(volume), options).unwrap();
    let table = store.table("t", &spec(128, SGD)).unwrap();
    put_numbered(&table, 0, 20_000);
    let closed = gate.lock().unwrap();
    let ticket = ticket(&store);
    // The queue's thread reads a cold row, and the device does not answer.
    let first = table.get_later(&[1], &ticket).unwrap();
    let behind = table.get_later(&[2], &ticket).unwrap();
    for get in [first, behind] {
        let (answer, answered) = mpsc::channel();
        std::thread::spawn(move || answer.send(get.wait().map(|_| ())));
        let error = answered.recv_timeout(LATE).expect("the wait never ends").unwrap_err();
        assert!(matches!(error, StoreError::QueueTimeout { .. }), "{error}");
        assert!(error.to_string().contains("\"t\""), "{error}");
    }
    drop(closed);
}
