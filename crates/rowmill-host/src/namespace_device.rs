//! A namespace of blocks as a device of `rowmill-io`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_io::{BLOCK_BYTES, Device, DeviceError, ReadResult, Span};
use rowmill_nvme::{BlockRange, Exchange, Status, commands};
use rowmill_sync::unranked::Mutex;

use crate::{Client, Completed, HostError, NvmeUrl, Pending, Request};

/// The time that a command on blocks has, reconnects included.
const COMMAND_TIME: Duration = Duration::from_secs(30);
/// Most commands of one call at a time.
const COMMANDS_MAX: usize = 32;
/// Most ranges of one deallocate command.
const RANGES_MAX: usize = 256;
/// Of Identify Namespace: what deallocated blocks read as.
const READS_ZEROS: u8 = 1;
/// Zeros are written in parts of this size.
const ZEROS_BYTES: usize = 1 << 20;
/// Blocks of a namespace may be smaller than those of a device, not larger.
const BLOCK_SHIFTS: std::ops::RangeInclusive<u8> = 9..=12;

/// A namespace of blocks as a device of fixed length.
///
/// Writes are durable after a sync. A node that restarts between a write and its flush may have lost the write, and no later
/// flush says so. Hence a flush fails if the connection was lost since the first write before it; so do all writes and
/// flushes after that, until the namespace is opened again.
#[derive(Debug)]
pub struct NamespaceDevice {
    client: Arc<Client>,
    namespace: u32,
    name: String,
    /// Blocks of the namespace per block of a device, as a shift.
    shift: u8,
    bytes: u64,
    guid: [u8; 16],
    /// Deallocated blocks read as zeros.
    is_zero_after_deallocate: bool,
    transfer_bytes: usize,
    writes: Mutex<Writes>,
}

#[derive(Debug, Default)]
struct Writes {
    /// The connection of the writes since the last flush.
    unflushed: Option<u64>,
    /// Why nothing is written any more.
    failure: Option<String>,
}

/// The positions of spans that were merged, and the commands that read them.
type Sent = (Vec<usize>, Vec<Result<Pending, HostError>>);

impl NamespaceDevice {
    /// The namespace of blocks that a URL names. If it names none, the subsystem must have exactly one namespace.
    ///
    /// # Errors
    ///
    /// [`HostError::Namespace`], and errors of identifying it.
    pub fn open(client: Arc<Client>, url: &NvmeUrl) -> Result<NamespaceDevice, HostError> {
        let wrong = |reason: String| HostError::Namespace { url: url.to_string(), reason };
        let ready = client.ready();
        let namespace = match (url.namespace, &ready.namespaces[..]) {
            (Some(number), namespaces) if namespaces.contains(&number) => number,
            (Some(number), namespaces) => {
                return Err(wrong(format!("does not exist: the subsystem has {namespaces:?}, not {number}")));
            }
            (None, [number]) => *number,
            (None, namespaces) => {
                return Err(wrong(format!("has namespaces {namespaces:?}: name one, as in ?namespace=1")));
            }
        };
        let identified = client.identify_namespace(namespace)?;
        let shift = identified.block_shift;
        if !BLOCK_SHIFTS.contains(&shift) || identified.metadata_bytes.get() > 0 {
            let metadata = identified.metadata_bytes.get();
            return Err(wrong(format!(
                "has blocks of 2^{shift} bytes with {metadata} bytes of metadata; blocks of 512 to 4,096 bytes without \
                 metadata are needed: format it so"
            )));
        }
        if identified.attributes & 1 == 1 {
            return Err(wrong("is write protected".into()));
        }
        let blocks = identified.blocks.get() << shift >> BLOCK_BYTES.trailing_zeros();
        Ok(NamespaceDevice {
            namespace,
            name: NvmeUrl { namespace: Some(namespace), ..url.clone() }.to_string(),
            shift: BLOCK_BYTES.trailing_zeros() as u8 - shift,
            bytes: blocks * BLOCK_BYTES as u64,
            guid: identified.guid,
            is_zero_after_deallocate: identified.deallocated & 7 == READS_ZEROS,
            transfer_bytes: ready.transfer_bytes_max / BLOCK_BYTES * BLOCK_BYTES,
            writes: Mutex::default(),
            client,
        })
    }

    /// The namespace's globally unique identifier; zeros if it has none.
    pub fn guid(&self) -> [u8; 16] {
        self.guid
    }

    /// The URL with the number of the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn blocks(&self, span: Span) -> BlockRange {
        let block = BLOCK_BYTES as u64;
        BlockRange {
            first: (span.offset / block) << self.shift,
            count: (span.bytes as u64 / block) << self.shift,
        }
    }

    fn error(&self, operation: &'static str, span: Span, error: HostError) -> DeviceError {
        let kind = match &error {
            HostError::TimedOut { .. } => io::ErrorKind::TimedOut,
            HostError::Lost { .. } => io::ErrorKind::ConnectionReset,
            HostError::Failed { status: Status::CAPACITY_EXCEEDED, .. } => io::ErrorKind::StorageFull,
            _ => io::ErrorKind::Other,
        };
        DeviceError::from_io(
            operation,
            self.name.as_str(),
            span.offset,
            span.bytes,
            io::Error::new(kind, error),
        )
    }

    fn beyond(&self, operation: &'static str, span: Span) -> DeviceError {
        let reason =
            io::Error::new(io::ErrorKind::UnexpectedEof, format!("the namespace has {} bytes", self.bytes));
        DeviceError::from_io(operation, self.name.as_str(), span.offset, span.bytes, reason)
    }

    fn check_failure(&self, operation: &'static str, span: Span) -> Result<(), DeviceError> {
        match &self.writes.lock().failure {
            None => Ok(()),
            Some(reason) => {
                let reason = io::Error::other(format!("nothing is written any more: {reason}"));
                Err(DeviceError::from_io(operation, self.name.as_str(), span.offset, span.bytes, reason))
            }
        }
    }

    /// After a failure, writes since the last flush may be lost.
    fn fail(&self, error: &DeviceError) {
        self.writes.lock().failure.get_or_insert_with(|| error.to_string());
    }

    fn read_request(&self, span: Span) -> Request {
        Request {
            name: "read",
            command: commands::read(self.namespace, self.blocks(span)),
            exchange: Exchange::Receive(span.bytes),
            is_repeatable: true,
        }
    }

    fn written(&self, pending: Pending, span: Span) -> Result<(), DeviceError> {
        let completed = pending.wait().map_err(|error| self.error("write", span, error))?;
        let mut writes = self.writes.lock();
        let first = *writes.unflushed.get_or_insert(completed.connection);
        if first == completed.connection {
            return Ok(());
        }
        drop(writes);
        Err(self.lost_sync(span))
    }

    fn lost_sync(&self, span: Span) -> DeviceError {
        let reason = io::Error::new(
            io::ErrorKind::ConnectionReset,
            "the connection was lost before written blocks were flushed, so the node may have lost them",
        );
        DeviceError::from_io("sync", self.name.as_str(), span.offset, span.bytes, reason)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let whole = Span { offset: 0, bytes: 0 };
        self.check_failure("sync", whole)?;
        // Writes that end from here on are for the next flush.
        let unflushed = self.writes.lock().unflushed.take();
        let request = Request {
            name: "flush",
            command: commands::flush(self.namespace),
            exchange: Exchange::None,
            is_repeatable: false,
        };
        let deadline = Instant::now() + COMMAND_TIME;
        let completed = self.client.submit(request, deadline).and_then(Pending::wait);
        let Completed { connection, .. } = completed.map_err(|error| self.error("sync", whole, error))?;
        match unflushed {
            Some(of_writes) if of_writes != connection => Err(self.lost_sync(whole)),
            _ => Ok(()),
        }
    }

    fn write_all(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError> {
        let deadline = Instant::now() + COMMAND_TIME;
        let mut sent: VecDeque<(Span, Pending)> = VecDeque::new();
        for (number, part) in blocks.chunks(self.transfer_bytes).enumerate() {
            if sent.len() >= COMMANDS_MAX
                && let Some((span, pending)) = sent.pop_front()
            {
                self.written(pending, span)?;
            }
            let span = Span { offset: offset + (number * self.transfer_bytes) as u64, bytes: part.len() };
            let request = Request {
                name: "write",
                command: commands::write(self.namespace, self.blocks(span), false),
                exchange: Exchange::Send(part.to_vec()),
                is_repeatable: false,
            };
            let pending =
                self.client.submit(request, deadline).map_err(|error| self.error("write", span, error))?;
            sent.push_back((span, pending));
        }
        sent.into_iter().try_for_each(|(span, pending)| self.written(pending, span))
    }

    /// Spans that follow each other, up to one transfer, as one command each: its span, and the positions it is for.
    fn merge(&self, spans: &[Span]) -> Vec<(Span, Vec<usize>)> {
        let mut order: Vec<usize> = (0..spans.len()).collect();
        order.sort_by_key(|&position| spans[position].offset);
        let mut merged: Vec<(Span, Vec<usize>)> = Vec::new();
        for position in order {
            let span = spans[position];
            if let Some((last, positions)) = merged.last_mut()
                && last.end() == span.offset
                && last.bytes + span.bytes <= self.transfer_bytes
            {
                last.bytes += span.bytes;
                positions.push(position);
            } else {
                merged.push((span, vec![position]));
            }
        }
        merged
    }

    /// A span in parts of one transfer, all read at a time.
    fn submit_read(&self, span: Span, deadline: Instant) -> Vec<Result<Pending, HostError>> {
        let parts = span.bytes.div_ceil(self.transfer_bytes);
        (0..parts)
            .map(|part| {
                let offset = span.offset + (part * self.transfer_bytes) as u64;
                let bytes = self.transfer_bytes.min((span.end() - offset) as usize);
                self.client.submit(self.read_request(Span { offset, bytes }), deadline)
            })
            .collect()
    }
}

impl Device for NamespaceDevice {
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>)) {
        let deadline = Instant::now() + COMMAND_TIME;
        let mut sent: VecDeque<Sent> = VecDeque::new();
        let mut finish = |(positions, pending): Sent| {
            let mut content = Vec::new();
            let mut failure = None;
            for part in pending {
                match part.and_then(Pending::wait) {
                    // The one part of most reads needs no copy.
                    Ok(completed) if content.is_empty() => content = completed.data,
                    Ok(completed) => content.extend(completed.data),
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            let mut start = 0;
            for position in positions {
                let span = spans[position];
                match (&failure, content.get(start..start + span.bytes)) {
                    (None, Some(part)) => deliver(position, Ok(part)),
                    (Some(error), _) => {
                        let source = io::Error::other(error.to_string());
                        deliver(
                            position,
                            Err(DeviceError::from_io(
                                "read",
                                self.name.as_str(),
                                span.offset,
                                span.bytes,
                                source,
                            )),
                        );
                    }
                    (None, None) => deliver(position, Err(self.beyond("read", span))),
                }
                start += span.bytes;
            }
        };
        let (within, beyond): (Vec<usize>, Vec<usize>) =
            (0..spans.len()).partition(|&position| spans[position].end() <= self.bytes);
        let inside: Vec<Span> = within.iter().map(|&position| spans[position]).collect();
        for (span, positions) in self.merge(&inside) {
            if sent.len() >= COMMANDS_MAX
                && let Some(first) = sent.pop_front()
            {
                finish(first);
            }
            let positions = positions.into_iter().map(|at| within[at]).collect();
            sent.push_back((positions, self.submit_read(span, deadline)));
        }
        sent.into_iter().for_each(&mut finish);
        for position in beyond {
            deliver(position, Err(self.beyond("read", spans[position])));
        }
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError> {
        let span = Span { offset, bytes: blocks.len() };
        if blocks.is_empty() {
            return Ok(());
        }
        self.check_failure("write", span)?;
        if span.end() > self.bytes {
            return Err(DeviceError::Full { name: self.name.clone(), offset, bytes: blocks.len() });
        }
        self.write_all(offset, blocks).inspect_err(|error| {
            // A full disk has written nothing; after other errors, a block may be written late.
            if !matches!(error, DeviceError::Full { .. }) {
                self.fail(error);
            }
        })
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.flush().inspect_err(|error| self.fail(error))
    }

    fn discard(&self, span: Span) -> Result<(), DeviceError> {
        self.check_failure("discard", span)?;
        if span.end() > self.bytes {
            return Err(self.beyond("discard", span));
        }
        let blocks = self.blocks(span);
        // One range has at most 2^32 - 1 blocks.
        let step = u64::from(u32::MAX) >> self.shift << self.shift;
        let ranges: Vec<BlockRange> = (0..blocks.count.div_ceil(step))
            .map(|part| BlockRange {
                first: blocks.first + part * step,
                count: step.min(blocks.count - part * step),
            })
            .collect();
        for some in ranges.chunks(RANGES_MAX) {
            let (command, data) = commands::deallocate(self.namespace, some);
            let request =
                Request { name: "deallocate", command, exchange: Exchange::Send(data), is_repeatable: false };
            let deadline = Instant::now() + COMMAND_TIME;
            let discarded = self.client.submit(request, deadline).and_then(Pending::wait);
            discarded.map_err(|error| self.error("discard", span, error))?;
        }
        if self.is_zero_after_deallocate {
            return Ok(());
        }
        let zeros = vec![0; ZEROS_BYTES.min(span.bytes)];
        for start in (0..span.bytes).step_by(ZEROS_BYTES) {
            let bytes = ZEROS_BYTES.min(span.bytes - start);
            self.write(span.offset + start as u64, &zeros[..bytes])?;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
