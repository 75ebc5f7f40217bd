//! Batched reads through `io_uring`: one ring per thread, made when the thread first reads.
//!
//! Invariants:
//! - Nothing is in flight between calls, so the arena may go whenever the ring does. A `deliver` that
//!   panics is held up until the last read has landed.
//! - A ring is used only by the thread, and in the process, that made it.
//! - A ring that the kernel no longer serves leaves its arena allocated for ever, because a read may still
//!   land in it; the spans not read yet are read through `pread`.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use io_uring::{Builder, IoUring, opcode, squeue, types};

use crate::arena::{ARENA_BYTES, Arena, Region};
use crate::read_plan::{MERGED_BYTES_MAX, ReadPlan, Run};
use crate::registered_files::{Presence, RegisteredFiles};
use crate::{AlignedBuffer, Process, ReadResult, Span, pread};

/// Reads in flight: all that the arena holds when none is merged. On a virtio disk and two busy processors,
/// 128 gave 49 k random 4 KiB reads/s and 256 gave 61 k; on quiet ones the device is saturated by either.
const QUEUE_DEPTH: usize = 256;

/// Rings that read at this moment. Together they keep [`QUEUE_DEPTH`] reads in flight: a device takes so many
/// requests and no more (256 is the kernel's default), and who comes with another one is put to sleep inside
/// the submission, which cost two threads 1.7 us of CPU per read.
static READING: AtomicUsize = AtomicUsize::new(0);

/// Reads a ring keeps in flight however many others there are.
const SHARE_MIN: usize = 32;

/// Completions waited for at once, at most. Each wake-up costs the thread a few microseconds; waiting for
/// all of the queue would leave the device idle while the batch is worked on.
const WAIT_COMPLETIONS: usize = 128;

/// How often a submission may be interrupted, or find the kernel short of memory, before the ring is given
/// up.
const ENTER_TRIES: usize = 1000;

/// Memory of the two queues: 256 entries of 64 bytes, twice as many of 16 bytes, and their heads.
const QUEUES_BYTES: usize = 32 * 1024;

/// Memory that a ring holds.
pub(crate) const BYTES_PER_RING: usize = ARENA_BYTES + QUEUES_BYTES + ReadPlan::BYTES_MAX;

/// What to read from.
pub(crate) struct Source<'a> {
    pub(crate) file: &'a File,
    pub(crate) presence: &'a Presence,
    pub(crate) name: &'a str,
}

/// Told of every span of a batch.
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

/// Reads that the kernel has, by the number they go under.
struct InFlight {
    reads: Box<[(Run, Region); QUEUE_DEPTH]>,
    free: Vec<u16>,
}

/// A ring that reads.
struct Reading;

impl Reading {
    fn begin() -> Self {
        READING.fetch_add(1, Relaxed);
        Self
    }

    /// Reads each ring may have in flight.
    fn share() -> usize {
        (QUEUE_DEPTH / READING.load(Relaxed).max(1)).max(SHARE_MIN)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READING.fetch_sub(1, Relaxed);
    }
}

/// What one call reads.
struct Batch<'a> {
    source: &'a Source<'a>,
    spans: &'a [Span],
    descriptor: RawFd,
    /// The file's slot among the registered ones.
    slot: Option<u32>,
}

/// Waits, when it goes, for whatever is still in flight.
struct Drain<'a>(&'a mut Ring);

impl Ring {
    pub(crate) fn new() -> io::Result<Self> {
        let (queues, flags) = build()?;
        let arena = ManuallyDrop::new(Arena::new());
        // A user's limit of locked memory (ENOMEM) must not cost the ring: reads work without.
        // SAFETY: the arena lives as long as the ring, or for ever.
        let buffers_registered = unsafe { queues.submitter().register_buffers(&[arena.as_iovec()]) }.is_ok();
        let files = RegisteredFiles::register(&queues.submitter());
        Ok(Self {
            queues,
            arena,
            flags,
            buffers_registered,
            files,
            plan: ReadPlan::default(),
            in_flight: InFlight::new(),
            process: Process::current(),
        })
    }

    /// Whether the ring can take a batch. The child of a fork must not touch its parent's queues, and a
    /// ring that failed still owes reads.
    pub(crate) fn is_usable(&self) -> bool {
        self.process.is_current() && self.in_flight.count() == 0
    }

    /// How the ring is set up, for people.
    pub(crate) fn describe(&self) -> String {
        let registered = match (self.buffers_registered, self.files.is_some()) {
            (true, true) => "registered buffers and files",
            (true, false) => "registered buffers",
            (false, true) => "registered files",
            (false, false) => "nothing registered",
        };
        format!("io_uring ({}, {registered}, {QUEUE_DEPTH} reads in flight)", self.flags)
    }

    /// [`crate::Device::read`] over a file. After an error the ring is not usable any more; every span was
    /// delivered all the same.
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
                // SAFETY: the buffer lies in the arena, which outlives the read, and its place is not
                // handed out again before the read has completed; the file is open for as long as `batch`
                // lives, and `Drain` leaves nothing in flight after that.
                let pushed = unsafe { queue.push(&entry.user_data(u64::from(number))) };
                pushed.expect("the queue has an entry for every read in flight");
            }
            *waiting = self.plan.next_run(batch.spans);
        }
    }

    /// Hand the queued reads to the kernel and wait until `completions` have landed.
    fn enter(&mut self, completions: usize) -> io::Result<()> {
        for _ in 0..ENTER_TRIES {
            match self.queues.submit_and_wait(completions) {
                Ok(_) => return Ok(()),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    // Short of memory for requests; what is in flight gives some back.
                    ErrorKind::WouldBlock | ErrorKind::ResourceBusy => std::thread::yield_now(),
                    _ => return Err(error),
                },
            }
        }
        Err(io::Error::other("the kernel takes no more reads"))
    }

    /// Deliver what has landed.
    fn complete(&mut self, batch: &Batch<'_>, deliver: Deliver<'_>) {
        for completion in self.queues.completion() {
            let number = completion.user_data() as u16;
            let (run, region) = self.in_flight.reads[usize::from(number)];
            // Before anything is delivered: should `deliver` panic, this read is not waited for again.
            self.in_flight.free.push(number);
            let landed = usize::try_from(completion.result()) == Ok(run.bytes);
            // SAFETY: the place was taken for this read, which has completed.
            let blocks = unsafe { self.arena.bytes_mut(region) };
            batch.deliver(self.plan.positions(run), run, blocks, landed, deliver);
            self.arena.give_back(region);
        }
    }

    /// Deliver without the ring what is in flight and what has not been queued. What is in flight may
    /// still land in the arena, so none of it is used again.
    fn finish_by_pread(&mut self, batch: &Batch<'_>, waiting: Option<Run>, deliver: Deliver<'_>) {
        let mut buffer = AlignedBuffer::new(MERGED_BYTES_MAX);
        let mut owed: Vec<Run> = waiting.into_iter().collect();
        let numbers = (0..QUEUE_DEPTH as u16).filter(|number| !self.in_flight.free.contains(number));
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
            // SAFETY: the arena is not used after this, and no read can land in it.
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
    fn new() -> Self {
        Self {
            reads: Box::new([(Run::default(), Region::default()); QUEUE_DEPTH]),
            free: (0..QUEUE_DEPTH as u16).rev().collect(),
        }
    }

    fn count(&self) -> usize {
        QUEUE_DEPTH - self.free.len()
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

    /// Deliver the spans of a run that landed whole in `blocks`; of one that did not, read each by itself,
    /// so that the error of one is not its neighbour's.
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

/// The best ring that the kernel gives.
fn build() -> io::Result<(IoUring, &'static str)> {
    type Setup = fn(&mut Builder) -> &mut Builder;
    // Best first. Completions are worked on only when this thread asks for them (Linux 6.1), or at least
    // without interrupting it (5.19); older kernels refuse flags that they do not know.
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
        match setup(&mut IoUring::builder()).build(QUEUE_DEPTH as u32) {
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

    /// A file whose blocks begin with their numbers, opened for direct reads where possible.
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

    /// Every second block, some beyond the end, and a wide span: each is delivered once and rightly.
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

    /// A ring, unless the kernel has none to give.
    fn ring() -> Option<Ring> {
        Ring::new().inspect_err(|error| eprintln!("skipped: io_uring is refused: {error}")).ok()
    }

    #[test]
    fn reads_do_without_registered_buffers_and_files() {
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
    fn a_ring_that_fails_in_use_delivers_through_pread_and_is_given_up() {
        let (_named, file) = numbered_file();
        let Some(mut ring) = ring() else { return };
        read_everything(&mut ring, &file).unwrap();
        let other = File::open("/dev/null").unwrap().into_raw_fd();
        // SAFETY: the ring's descriptor now names another open file, which the kernel takes no reads on; the
        // ring closes it when it goes.
        assert!(unsafe { libc::dup2(other, ring.queues.as_raw_fd()) } >= 0);
        assert!(read_everything(&mut ring, &file).is_err());
        assert!(!ring.is_usable());
    }

    #[test]
    fn more_files_than_slots_take_turns() {
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
