//! Batched reads through `io_uring`. Each thread makes one ring at its first read.
//!
//! Invariants:
//! - No read is in flight between calls, so a ring and its arena can be dropped together. If `deliver`
//!   panics, unwinding waits until the last read has completed.
//! - A ring is used only by the thread and the process that made it.
//! - If the kernel stops serving a ring, its arena is leaked, because a read may still write to it. The
//!   remaining spans are read through `pread`.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use io_uring::{Builder, IoUring, opcode, squeue, types};

use crate::arena::{Arena, BLOCKS_STEP, Region};
use crate::read_plan::{MERGED_BYTES_MAX, ReadPlan, Run};
use crate::registered_files::{Presence, RegisteredFiles};
use crate::{AlignedBuffer, BLOCK_BYTES, Process, ReadResult, Span, pread};

/// Most reads that a ring has in flight. On a virtio disk with two busy processors, 128 gave 49 k random 4 KiB reads/s
/// and 256 gave 61 k. On idle processors, either saturates the device.
pub(crate) const DEPTH_MAX: usize = 256;

/// Reads that the smallest ring has in flight, which suffice for a small batch.
pub(crate) const DEPTH_MIN: usize = BLOCKS_STEP;

/// Number of rings that are reading now. Together they keep at most [`DEPTH_MAX`] reads in flight. The
/// queue of a device holds a limited number of requests (256 by default). A thread that submits one more sleeps
/// inside the submission until there is room, which cost two threads 1.7 us of CPU per read.
static READING: AtomicUsize = AtomicUsize::new(0);

/// Least number of reads that a ring may keep in flight, however many rings are reading.
const SHARE_MIN: usize = 32;

/// Most completions to wait for at once. Each wake-up costs a few microseconds, but waiting for the whole
/// queue would leave the device idle while the batch is processed.
const WAIT_COMPLETIONS: usize = 128;

/// Most retries of a submission that is interrupted or finds the kernel short of memory. After that, the ring
/// is given up.
const ENTER_TRIES: usize = 1000;

/// Memory of both queues, in bytes: 256 entries of 64 bytes, 512 of 16 bytes, and the queue heads.
const QUEUES_BYTES: usize = 32 * 1024;

/// Most memory of one ring, in bytes.
pub(crate) const BYTES_PER_RING: usize = DEPTH_MAX * BLOCK_BYTES + QUEUES_BYTES + ReadPlan::BYTES_MAX;

/// The file to read from.
pub(crate) struct Source<'a> {
    pub(crate) file: &'a File,
    pub(crate) presence: &'a Presence,
    pub(crate) name: &'a str,
}

/// Callback for every span of a batch.
pub(crate) type Deliver<'a> = &'a mut dyn FnMut(usize, ReadResult<'_>);

pub(crate) struct Ring {
    queues: IoUring,
    arena: ManuallyDrop<Arena>,
    flags: &'static str,
    buffers_registered: bool,
    files: Option<RegisteredFiles>,
    plan: ReadPlan,
    in_flight: InFlight,
    process: Process,
}

/// Reads in flight, indexed by the number that identifies each to the kernel.
struct InFlight {
    reads: Box<[(Run, Region)]>,
    free: Vec<u16>,
}

/// Counts a ring in [`READING`] while it reads.
struct Reading;

impl Reading {
    fn begin() -> Self {
        READING.fetch_add(1, Relaxed);
        Self
    }

    /// Most reads that each ring may have in flight.
    fn share() -> usize {
        (DEPTH_MAX / READING.load(Relaxed).max(1)).max(SHARE_MIN)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READING.fetch_sub(1, Relaxed);
    }
}

/// In a forked child: no thread of its parent reads here.
pub(crate) fn forget_reads_of_parent() {
    READING.store(0, Relaxed);
}

/// One call's spans and file.
struct Batch<'a> {
    source: &'a Source<'a>,
    spans: &'a [Span],
    descriptor: RawFd,
    /// The file's slot in the table of registered files.
    slot: Option<u32>,
}

/// Waits, when dropped, for the reads still in flight.
struct Drain<'a>(&'a mut Ring);

impl Ring {
    /// A ring with at most `depth` reads in flight, whose arena holds as many single blocks.
    pub(crate) fn new(depth: usize) -> io::Result<Self> {
        let (queues, flags) = build(depth)?;
        let arena = ManuallyDrop::new(Arena::new(depth));
        // A limit on locked memory (ENOMEM) must not disable the ring: reads work without registered buffers.
        // SAFETY: the arena lives as long as the ring, or is leaked.
        let buffers_registered = unsafe { queues.submitter().register_buffers(&[arena.as_iovec()]) }.is_ok();
        let files = RegisteredFiles::register(&queues.submitter());
        Ok(Self {
            queues,
            arena,
            flags,
            buffers_registered,
            files,
            plan: ReadPlan::default(),
            in_flight: InFlight::new(depth),
            process: Process::current(),
        })
    }

    /// Most reads in flight.
    pub(crate) fn depth(&self) -> usize {
        self.in_flight.reads.len()
    }

    /// Whether the ring can take a batch. A forked child must not use its parent's queues, and a failed ring
    /// still has reads in flight.
    pub(crate) fn is_usable(&self) -> bool {
        self.process.is_current() && self.in_flight.count() == 0
    }

    /// How the ring is set up, as text for users.
    pub(crate) fn describe(&self) -> String {
        let registered = match (self.buffers_registered, self.files.is_some()) {
            (true, true) => "registered buffers and files",
            (true, false) => "registered buffers",
            (false, true) => "registered files",
            (false, false) => "nothing registered",
        };
        format!("io_uring ({}, {registered}, {} reads in flight)", self.flags, self.depth())
    }

    /// [`crate::Device::read`] for a file. After an error, the ring is no longer usable, but every span was
    /// delivered.
    pub(crate) fn read(
        &mut self,
        source: &Source<'_>,
        spans: &[Span],
        deliver: Deliver<'_>,
    ) -> io::Result<()> {
        assert_eq!(self.in_flight.count(), 0, "the ring was left with reads in flight");
        let descriptor = source.file.as_raw_fd();
        let submitter = self.queues.submitter();
        let slot = self.files.as_mut().and_then(|files| files.slot(&submitter, source.presence, descriptor));
        let batch = Batch { source, spans, descriptor, slot };
        self.plan.start(spans);
        let _reading = Reading::begin();
        let drain = Drain(self);
        let ring = &mut *drain.0;
        let mut waiting = ring.plan.next_run(spans);
        loop {
            ring.fill(&batch, &mut waiting, deliver);
            let in_flight = ring.in_flight.count();
            if in_flight == 0 {
                debug_assert!(waiting.is_none(), "an empty arena takes every run");
                return Ok(());
            }
            if let Err(error) = ring.enter(in_flight.min(WAIT_COMPLETIONS)) {
                ring.finish_by_pread(&batch, waiting, deliver);
                return Err(error);
            }
            ring.complete(&batch, deliver);
        }
    }

    /// Queue reads until the queue or the arena is full.
    fn fill(&mut self, batch: &Batch<'_>, waiting: &mut Option<Run>, deliver: Deliver<'_>) {
        let mut queue = self.queues.submission();
        let share = Reading::share();
        while let Some(run) = *waiting {
            if run.bytes > MERGED_BYTES_MAX {
                let (source, position) = (batch.source, self.plan.wide_position(run));
                pread::read_wide(source.file, source.name, batch.spans[position], &mut |result| {
                    deliver(position, result);
                });
            } else {
                if self.in_flight.count() >= share {
                    return;
                }
                let Some(number) = self.in_flight.free.last().copied() else { return };
                let Some(region) = self.arena.take(run.bytes) else { return };
                self.in_flight.free.pop();
                self.in_flight.reads[usize::from(number)] = (run, region);
                let into = (self.arena.start_of(region), region.bytes() as u32);
                let entry = batch.entry(run.offset, into, self.buffers_registered);
                // SAFETY: the buffer lies in the arena, which outlives the read, and its region is not reused
                // before the read has completed. The file stays open while `batch` lives, and `Drain` waits
                // for all reads before that ends.
                let pushed = unsafe { queue.push(&entry.user_data(u64::from(number))) };
                pushed.expect("the queue has an entry for every read in flight");
            }
            *waiting = self.plan.next_run(batch.spans);
        }
    }

    /// Submit the queued reads and wait until `completions` of them have completed.
    fn enter(&mut self, completions: usize) -> io::Result<()> {
        for _ in 0..ENTER_TRIES {
            match self.queues.submit_and_wait(completions) {
                Ok(_) => return Ok(()),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    // The kernel is short of memory for requests; completed reads release some.
                    ErrorKind::WouldBlock | ErrorKind::ResourceBusy => std::thread::yield_now(),
                    _ => return Err(error),
                },
            }
        }
        Err(io::Error::other("the kernel accepts no more reads"))
    }

    /// Deliver the spans of completed reads.
    fn complete(&mut self, batch: &Batch<'_>, deliver: Deliver<'_>) {
        for completion in self.queues.completion() {
            let number = completion.user_data() as u16;
            let (run, region) = self.in_flight.reads[usize::from(number)];
            // Marked as free before `deliver` is called: if `deliver` panics, `Drain` must not wait for this
            // read again.
            self.in_flight.free.push(number);
            let landed = usize::try_from(completion.result()) == Ok(run.bytes);
            // SAFETY: the region was allocated for this read, which has completed.
            let blocks = unsafe { self.arena.bytes_mut(region) };
            batch.deliver(self.plan.positions(run), run, blocks, landed, deliver);
            self.arena.give_back(region);
        }
    }

    /// Read the remaining spans through `pread`: those in flight and those not queued yet. The reads in
    /// flight may still write to the arena, so the arena is not used again.
    fn finish_by_pread(&mut self, batch: &Batch<'_>, waiting: Option<Run>, deliver: Deliver<'_>) {
        let mut buffer = AlignedBuffer::new(MERGED_BYTES_MAX);
        let mut owed: Vec<Run> = waiting.into_iter().collect();
        let numbers = (0..self.depth() as u16).filter(|number| !self.in_flight.free.contains(number));
        owed.extend(numbers.map(|number| self.in_flight.reads[usize::from(number)].0));
        while let Some(run) = owed.pop().or_else(|| self.plan.next_run(batch.spans)) {
            for position in self.plan.positions(run) {
                let (source, span) = (batch.source, batch.spans[position]);
                let mut deliver = |result: ReadResult<'_>| deliver(position, result);
                if span.bytes > buffer.len() {
                    pread::read_wide(source.file, source.name, span, &mut deliver);
                } else {
                    pread::read_span(source.file, source.name, span, &mut buffer, &mut deliver);
                }
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.in_flight.count() == 0 {
            // SAFETY: no read is in flight, so the kernel cannot write to the arena, and it is not used after
            // this.
            unsafe { ManuallyDrop::drop(&mut self.arena) }
        }
    }
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        let ring = &mut *self.0;
        while ring.in_flight.count() > 0 {
            if ring.enter(ring.in_flight.count()).is_err() {
                return;
            }
            for completion in ring.queues.completion() {
                ring.in_flight.free.push(completion.user_data() as u16);
            }
        }
        ring.arena.clear();
    }
}

impl InFlight {
    fn new(depth: usize) -> Self {
        Self {
            reads: vec![(Run::default(), Region::default()); depth].into_boxed_slice(),
            free: (0..depth as u16).rev().collect(),
        }
    }

    fn count(&self) -> usize {
        self.reads.len() - self.free.len()
    }
}

impl Batch<'_> {
    fn entry(&self, offset: u64, into: (*mut u8, u32), buffers_registered: bool) -> squeue::Entry {
        let (start, bytes) = into;
        let file = types::Fd(self.descriptor);
        match (buffers_registered, self.slot.map(types::Fixed)) {
            (true, Some(slot)) => opcode::ReadFixed::new(slot, start, bytes, 0).offset(offset).build(),
            (true, None) => opcode::ReadFixed::new(file, start, bytes, 0).offset(offset).build(),
            (false, Some(slot)) => opcode::Read::new(slot, start, bytes).offset(offset).build(),
            (false, None) => opcode::Read::new(file, start, bytes).offset(offset).build(),
        }
    }

    /// Deliver the spans of a run from `blocks` if it was read completely. Otherwise, read each span alone,
    /// so that an error of one span does not fail its neighbours.
    fn deliver(
        &self,
        positions: impl Iterator<Item = usize>,
        run: Run,
        blocks: &mut [u8],
        landed: bool,
        deliver: Deliver<'_>,
    ) {
        for position in positions {
            let span = self.spans[position];
            if landed {
                let start = (span.offset - run.offset) as usize;
                deliver(position, Ok(&blocks[start..start + span.bytes]));
            } else {
                pread::read_span(self.source.file, self.source.name, span, blocks, &mut |result| {
                    deliver(position, result);
                });
            }
        }
    }
}

/// Create the best ring that the kernel supports.
fn build(depth: usize) -> io::Result<(IoUring, &'static str)> {
    type Setup = fn(&mut Builder) -> &mut Builder;
    // Best first. With `DEFER_TASKRUN` (Linux 6.1), completions are processed only when this thread asks for
    // them. With `COOP_TASKRUN` (5.19), they do not interrupt it. Older kernels refuse unknown flags.
    let setups: [(Setup, &'static str); 3] = [
        (
            |ring| ring.setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun(),
            "SINGLE_ISSUER, COOP_TASKRUN, DEFER_TASKRUN",
        ),
        (|ring| ring.setup_coop_taskrun(), "COOP_TASKRUN"),
        (|ring| ring, "no flags"),
    ];
    let mut refused = io::Error::from(ErrorKind::Unsupported);
    for (setup, flags) in setups {
        match setup(&mut IoUring::builder()).build(depth as u32) {
            Ok(ring) => return Ok((ring, flags)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};

    use super::*;
    use crate::BLOCK_BYTES;

    const BLOCKS: usize = 2_000;

    /// A file in which every block starts with its number, opened for direct reads if possible.
    fn numbered_file() -> (tempfile::NamedTempFile, File) {
        let named = tempfile::NamedTempFile::new().unwrap();
        let mut content = vec![0; BLOCKS * BLOCK_BYTES];
        for (number, block) in content.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            block[..8].copy_from_slice(&(number as u64).to_le_bytes());
        }
        named.as_file().write_all_at(&content, 0).unwrap();
        let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(named.path());
        let file = direct.unwrap_or_else(|_| named.reopen().unwrap());
        (named, file)
    }

    /// Read every second block, blocks beyond the end, and a wide span; check that each is delivered once and
    /// correctly.
    fn read_everything(ring: &mut Ring, file: &File) -> io::Result<()> {
        let span = |block: usize, blocks: usize| Span {
            offset: (block * BLOCK_BYTES) as u64,
            bytes: blocks * BLOCK_BYTES,
        };
        let mut spans: Vec<Span> = (0..BLOCKS / 2 + 3).rev().map(|i| span(2 * i, 1)).collect();
        spans.push(span(7, 100));
        let source = Source { file, presence: &Presence::new(), name: "numbered" };
        let mut delivered = vec![0; spans.len()];
        let result = ring.read(&source, &spans, &mut |position, result| {
            delivered[position] += 1;
            let span = spans[position];
            match result {
                Ok(blocks) => {
                    assert_eq!(blocks.len(), span.bytes);
                    assert_eq!(blocks[..8], (span.offset / BLOCK_BYTES as u64).to_le_bytes());
                }
                Err(_) => assert!(span.end() > (BLOCKS * BLOCK_BYTES) as u64, "{span:?} failed"),
            }
        });
        assert!(delivered.iter().all(|count| *count == 1));
        result
    }

    /// A ring, or `None` if the kernel refuses one.
    fn ring() -> Option<Ring> {
        Ring::new(DEPTH_MIN).inspect_err(|error| eprintln!("skipped: io_uring is refused: {error}")).ok()
    }

    #[test]
    fn reads_work_without_registered_buffers_and_files() {
        let (_named, file) = numbered_file();
        for (without_buffers, without_files) in [(false, false), (false, true), (true, false), (true, true)] {
            let Some(mut ring) = ring() else { return };
            if without_buffers {
                ring.queues.submitter().unregister_buffers().unwrap();
                ring.buffers_registered = false;
            }
            if without_files {
                ring.queues.submitter().unregister_files().unwrap();
                ring.files = None;
            }
            for _ in 0..3 {
                read_everything(&mut ring, &file).unwrap();
            }
            println!("{}", ring.describe());
        }
    }

    #[test]
    fn a_failing_ring_is_replaced_by_pread() {
        let (_named, file) = numbered_file();
        let Some(mut ring) = ring() else { return };
        read_everything(&mut ring, &file).unwrap();
        let other = File::open("/dev/null").unwrap().into_raw_fd();
        // SAFETY: the ring's descriptor now refers to another open file, on which the kernel accepts no ring
        // operations. The ring closes it when dropped.
        assert!(unsafe { libc::dup2(other, ring.queues.as_raw_fd()) } >= 0);
        assert!(read_everything(&mut ring, &file).is_err());
        assert!(!ring.is_usable());
    }

    #[test]
    fn more_files_than_slots_share_the_slots() {
        let Some(mut ring) = ring() else { return };
        let files: Vec<_> = (0..40_u8)
            .map(|fill| {
                let named = tempfile::NamedTempFile::new().unwrap();
                named.as_file().write_all_at(&[fill; BLOCK_BYTES], 0).unwrap();
                (named, Presence::new(), fill)
            })
            .collect();
        let mut read = |(named, presence, fill): &(tempfile::NamedTempFile, Presence, u8)| {
            let source = Source { file: named.as_file(), presence, name: "one of many" };
            let span = Span { offset: 0, bytes: BLOCK_BYTES };
            ring.read(&source, &[span], &mut |_, result| assert_eq!(result.unwrap()[9], *fill)).unwrap();
        };
        for _ in 0..3 {
            files.iter().for_each(&mut read);
        }
        let kept: Vec<_> = files.into_iter().skip(30).collect();
        kept.iter().for_each(&mut read);
    }
}
