//! The limits of the disk: random 4 KiB reads per second, and CPU time per read.
//!
//! The probe has its own `io_uring`, tuned as well as possible (registered file and buffers, one issuer,
//! deferred task work, deep queue), and ignores the bytes. Its rate is the limit of cold reads. Its time for
//! as many blocks as a call of the store misses is the limit of latencies.

use std::fs::File;
use std::io;
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
/// The file has no block with data, or does not support direct reads.
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
                    .offset(blocks.draw(&mut positions))
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
    blocks: DataBlocks,
    ring: IoUring,
    memory: AlignedBuffer,
    positions: Rng64,
}

impl BlockReader {
    /// A reader of up to `count` blocks at a time.
    ///
    /// # Errors
    /// The file has no block with data, or does not support direct reads.
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
                .offset(self.blocks.draw(&mut self.positions))
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

/// The blocks of a file that hold data. The file system answers reads of holes without the device.
struct DataBlocks {
    /// For each run of blocks: the number of blocks with data before it, and its first block.
    runs: Vec<(u64, u64)>,
    count: u64,
}

impl DataBlocks {
    fn of(file: &File) -> io::Result<Self> {
        let (mut runs, mut count, mut end) = (Vec::new(), 0, 0);
        while let Some(start) = seek(file, end, libc::SEEK_DATA)? {
            // Every file ends with a hole.
            end = seek(file, start, libc::SEEK_HOLE)?.unwrap_or(start);
            let (first, after) = (start.div_ceil(BLOCK_BYTES as u64), end / BLOCK_BYTES as u64);
            if first < after {
                runs.push((count, first));
                count += after - first;
            }
        }
        Ok(Self { runs, count })
    }

    /// Offset of a random block.
    fn draw(&self, rng: &mut Rng64) -> u64 {
        let number = rng.below(self.count);
        let (before, first) = self.runs[self.runs.partition_point(|(before, _)| *before <= number) - 1];
        (first + number - before) * BLOCK_BYTES as u64
    }
}

/// The next data or hole at or after `offset`; `None` if only a hole follows.
fn seek(file: &File, offset: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    // SAFETY: lseek accesses no memory of this process.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, whence) };
    if found >= 0 {
        return Ok(Some(found as u64));
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) }
}

/// Open a file for direct reads. Returns it with its blocks.
fn open_direct(path: &Path) -> Result<(File, DataBlocks), Failure> {
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let blocks = DataBlocks::of(&file)?;
    if blocks.count == 0 {
        return Err(format!("{} has no block of {BLOCK_BYTES} bytes with data", path.display()).into());
    }
    Ok((file, blocks))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn blocks_are_drawn_from_data_and_not_from_holes() {
        let file = tempfile::tempfile().unwrap();
        for block in [0, 3, 4, 9] {
            file.write_all_at(&[1; BLOCK_BYTES], block * BLOCK_BYTES as u64).unwrap();
        }
        file.set_len(100 * BLOCK_BYTES as u64).unwrap();
        let blocks = DataBlocks::of(&file).unwrap();
        let mut rng = Rng64::new(1);
        let drawn: HashSet<u64> = (0..1000).map(|_| blocks.draw(&mut rng) / BLOCK_BYTES as u64).collect();
        assert_eq!(drawn, HashSet::from([0, 3, 4, 9]));
    }

    #[test]
    fn a_file_of_holes_is_refused() {
        let named = tempfile::NamedTempFile::new().unwrap();
        named.as_file().set_len(100 * BLOCK_BYTES as u64).unwrap();
        assert!(open_direct(named.path()).is_err());
    }
}
