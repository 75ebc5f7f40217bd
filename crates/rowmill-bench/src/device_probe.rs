//! What the disk under a file gives: random 4 KiB reads per second, and the CPU time each costs.
//!
//! An `io_uring` of the probe's own, tuned as well as we know (registered file and buffers, one issuer,
//! deferred task work, deep queue), that looks at no byte it reads. Its rate is the limit of cold reads.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use rowmill_io::{AlignedBuffer, BLOCK_BYTES};
use rowmill_testkit::Rng64;

use crate::settings::Failure;

const DEPTH: usize = 256;
/// Completions waited for at a time.
const WAIT: usize = 128;

/// Read random blocks of a file for a while, past the page cache; how many were read.
///
/// # Errors
/// A file shorter than a block, or one that cannot be read directly.
pub(crate) fn read_blocks(path: &Path, seconds: f64, seed: u64) -> Result<u64, Failure> {
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let blocks = file.metadata()?.len() / BLOCK_BYTES as u64;
    if blocks == 0 {
        return Err(format!("{} is shorter than a block", path.display()).into());
    }
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .build(DEPTH as u32)?;
    let mut memory = AlignedBuffer::new(DEPTH * BLOCK_BYTES);
    let buffer = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    // SAFETY: the memory outlives the ring's reads: the loop below ends with nothing in flight.
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
                // SAFETY: the place is not used by another read, and the memory outlives the ring.
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
                return Err(format!("a read of {} gave {}", path.display(), completion.result()).into());
            }
            free.push(completion.user_data() as usize);
            reads += 1;
        }
    }
}
