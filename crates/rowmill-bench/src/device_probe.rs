//! The limits of the disk: random 4 KiB reads per second, and CPU time per read.
//!
//! The probe has its own `io_uring`, tuned as well as possible (registered file and buffers, one issuer,
//! deferred task work, deep queue), and ignores the bytes. Its rate is the limit of cold reads. Its time for
//! as many blocks as a call of the store misses is the limit of latencies.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use rowmill_io::{AlignedBuffer, BLOCK_BYTES};
use rowmill_testkit::Rng64;

use crate::measure::{print, sample};
use crate::settings::{Failure, Settings};

const DEPTH: usize = 256;
/// Completions to wait for at a time.
const WAIT: usize = 128;

/// Run rounds of the probe alone, on the log of the store in the folder.
pub(crate) fn run(settings: &Settings) -> Result<(), Failure> {
    (0..settings.rounds).try_for_each(|round| probe(settings, &settings.folder, round))
}

/// Run and print one round of the probe on the log of the store in `folder`.
pub(crate) fn probe(settings: &Settings, folder: &Path, round: usize) -> Result<(), Failure> {
    let mut probed = Ok(0);
    let line = sample("probe", 1, round, || {
        probed = read_blocks(&folder.join("group-0.log"), settings.seconds, settings.seed + round as u64);
        *probed.as_ref().unwrap_or(&0)
    });
    probed?;
    print(&line);
    Ok(())
}

/// Read random blocks of a file for `seconds`, bypassing the page cache. Returns the number of blocks.
///
/// # Errors
/// The file is shorter than a block, or does not support direct reads.
pub(crate) fn read_blocks(path: &Path, seconds: f64, seed: u64) -> Result<u64, Failure> {
    let (file, blocks) = open_direct(path)?;
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .build(DEPTH as u32)?;
    let mut memory = AlignedBuffer::new(DEPTH * BLOCK_BYTES);
    let buffer = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    // SAFETY: the memory outlives the ring's reads: the loop below ends when no read is in flight.
    unsafe { ring.submitter().register_buffers(&[buffer])? };
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    let mut positions = Rng64::new(seed);
    let mut free: Vec<usize> = (0..DEPTH).collect();
    let mut reads = 0_u64;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        if Instant::now() < end {
            let mut queue = ring.submission();
            for place in free.drain(..) {
                let into = memory[place * BLOCK_BYTES..].as_mut_ptr();
                let entry = opcode::ReadFixed::new(types::Fixed(0), into, BLOCK_BYTES as u32, 0)
                    .offset(positions.below(blocks) * BLOCK_BYTES as u64)
                    .build()
                    .user_data(place as u64);
                // SAFETY: no other read uses this slot, and the memory outlives the ring.
                unsafe { queue.push(&entry)? };
            }
        }
        let in_flight = DEPTH - free.len();
        if in_flight == 0 {
            return Ok(reads);
        }
        ring.submit_and_wait(WAIT.min(in_flight))?;
        for completion in ring.completion() {
            if completion.result() != BLOCK_BYTES as i32 {
                return Err(format!("a read of {} returned {}", path.display(), completion.result()).into());
            }
            free.push(completion.user_data() as usize);
            reads += 1;
        }
    }
}

/// Reads several random blocks of a file at once, bypassing the page cache, and waits for them.
pub(crate) struct BlockReader {
    file: File,
    blocks: u64,
    ring: IoUring,
    memory: AlignedBuffer,
    positions: Rng64,
}

impl BlockReader {
    /// A reader of up to `count` blocks at a time.
    ///
    /// # Errors
    /// The file is shorter than a block, or does not support direct reads.
    pub(crate) fn open(path: &Path, count: usize, seed: u64) -> Result<Self, Failure> {
        let (file, blocks) = open_direct(path)?;
        Ok(Self {
            file,
            blocks,
            ring: IoUring::builder().setup_coop_taskrun().build(count as u32)?,
            memory: AlignedBuffer::new(count * BLOCK_BYTES),
            positions: Rng64::new(seed),
        })
    }

    /// Read `count` random blocks at once.
    ///
    /// # Errors
    /// A read that fails.
    pub(crate) fn read(&mut self, count: usize) -> Result<(), Failure> {
        assert!(count * BLOCK_BYTES <= self.memory.len(), "{count} blocks exceed the reader's buffer");
        for place in 0..count {
            let into = self.memory[place * BLOCK_BYTES..].as_mut_ptr();
            let entry = opcode::Read::new(types::Fd(self.file.as_raw_fd()), into, BLOCK_BYTES as u32)
                .offset(self.positions.below(self.blocks) * BLOCK_BYTES as u64)
                .build();
            // SAFETY: every read has a slot of its own, and all reads have completed when this returns: an
            // error while waiting ends the program.
            unsafe { self.ring.submission().push(&entry)? };
        }
        self.ring.submit_and_wait(count).expect("waiting for an open ring works");
        let whole = self.ring.completion().filter(|done| done.result() == BLOCK_BYTES as i32).count();
        if whole < count {
            return Err(format!("{} of {count} reads failed", count - whole).into());
        }
        Ok(())
    }
}

/// Open a file for direct reads. Returns it with its number of blocks.
fn open_direct(path: &Path) -> Result<(File, u64), Failure> {
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let blocks = file.metadata()?.len() / BLOCK_BYTES as u64;
    if blocks == 0 {
        return Err(format!("{} is shorter than a block of {BLOCK_BYTES} bytes", path.display()).into());
    }
    Ok((file, blocks))
}
