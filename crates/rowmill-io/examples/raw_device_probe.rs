//! What the disk under a file gives: random 4 KiB reads per second, and the CPU time each costs.
//!
//! ```text
//! cargo run --release -p rowmill-io --example raw_device_probe -- FILE [--create-gib N] [--seconds S]
//!     [--depth N] [--wait N] [--batch N]
//! ```
//!
//! Two measurements alternate, and the median of each is one line of JSON: `raw` is an `io_uring` of the
//! probe's own that looks at no byte it reads (the limit); `device` is this crate's device, asked for
//! batches of `--batch` reads, summing one byte of each. `--create-gib` writes the file first; a sparse or
//! cached file would measure something else than the disk.

use std::env;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use rowmill_io::{AlignedBuffer, BLOCK_BYTES, DirectoryVolume, IoChoice, Span, Volume};
use rowmill_testkit::Rng64;

const ROUNDS: usize = 5;

struct Probe {
    path: PathBuf,
    create_gib: u64,
    seconds: f64,
    depth: usize,
    wait: usize,
    batch: usize,
}

struct Measurement {
    reads_per_s: f64,
    cpu_us_per_read: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let probe = Probe::parse(env::args().skip(1))?;
    if probe.create_gib > 0 {
        write_file(&probe.path, probe.create_gib << 30)?;
    }
    let blocks = probe.path.metadata()?.len() / BLOCK_BYTES as u64;
    if blocks == 0 {
        return Err("the file is empty: pass --create-gib".into());
    }
    let mut raw = Vec::new();
    let mut device = Vec::new();
    for round in 0..ROUNDS as u64 {
        raw.push(measure_raw(&probe, blocks, round)?);
        device.push(measure_device(&probe, blocks, round)?);
    }
    report("raw", &probe, raw);
    report("device", &probe, device);
    Ok(())
}

impl Probe {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let path = PathBuf::from(arguments.next().ok_or("which file? see the head of this example")?);
        let mut probe = Self { path, create_gib: 0, seconds: 5.0, depth: 256, wait: 128, batch: 4096 };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--create-gib" => probe.create_gib = value.parse()?,
                "--seconds" => probe.seconds = value.parse()?,
                "--depth" => probe.depth = value.parse()?,
                "--wait" => probe.wait = value.parse()?,
                "--batch" => probe.batch = value.parse()?,
                other => return Err(format!("unknown option {other}").into()),
            }
        }
        Ok(probe)
    }

    fn round(&self) -> Duration {
        Duration::from_secs_f64(self.seconds / (2 * ROUNDS) as f64)
    }
}

fn write_file(path: &Path, bytes: u64) -> Result<(), Box<dyn Error>> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut piece = AlignedBuffer::new(1 << 20);
    let mut positions = Rng64::new(1);
    for _ in 0..bytes / piece.len() as u64 {
        piece.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = positions.next_u64().to_le_bytes());
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(())
}

fn measure_raw(probe: &Probe, blocks: u64, seed: u64) -> Result<Measurement, Box<dyn Error>> {
    let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(&probe.path)?;
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .build(probe.depth as u32)?;
    let mut memory = AlignedBuffer::new(probe.depth * BLOCK_BYTES);
    let buffer = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    // SAFETY: the memory outlives the ring's reads: the loop below ends with nothing in flight.
    unsafe { ring.submitter().register_buffers(&[buffer])? };
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    let mut positions = Rng64::new(seed);
    let mut free: Vec<usize> = (0..probe.depth).collect();
    let mut reads = 0_u64;
    let (start, cpu) = (Instant::now(), cpu_time());
    loop {
        if start.elapsed() < probe.round() {
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
        let in_flight = probe.depth - free.len();
        if in_flight == 0 {
            break;
        }
        ring.submit_and_wait(probe.wait.min(in_flight))?;
        for completion in ring.completion() {
            assert_eq!(completion.result(), BLOCK_BYTES as i32, "a read failed");
            free.push(completion.user_data() as usize);
            reads += 1;
        }
    }
    Ok(Measurement::of(reads, start, cpu))
}

fn measure_device(probe: &Probe, blocks: u64, seed: u64) -> Result<Measurement, Box<dyn Error>> {
    let folder =
        probe.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let volume = DirectoryVolume::open(folder, IoChoice::Auto)?;
    let name = probe.path.file_name().and_then(|name| name.to_str()).ok_or("the file has no plain name")?;
    let device = volume.device(name, false)?;
    let mut positions = Rng64::new(seed);
    let mut reads = 0_u64;
    let mut sum = 0_u64;
    let (start, cpu) = (Instant::now(), cpu_time());
    while start.elapsed() < probe.round() {
        let spans: Vec<Span> = (0..probe.batch)
            .map(|_| Span { offset: positions.below(blocks) * BLOCK_BYTES as u64, bytes: BLOCK_BYTES })
            .collect();
        device.read(&spans, &mut |_, result| sum += u64::from(result.expect("a read failed")[0]));
        reads += spans.len() as u64;
    }
    std::hint::black_box(sum);
    Ok(Measurement::of(reads, start, cpu))
}

impl Measurement {
    fn of(reads: u64, start: Instant, cpu: Duration) -> Self {
        Self {
            reads_per_s: reads as f64 / start.elapsed().as_secs_f64(),
            cpu_us_per_read: cpu_time().saturating_sub(cpu).as_secs_f64() * 1e6 / reads as f64,
        }
    }
}

fn report(engine: &str, probe: &Probe, mut rounds: Vec<Measurement>) {
    rounds.sort_by(|a, b| a.reads_per_s.total_cmp(&b.reads_per_s));
    let reads_per_s = rounds[rounds.len() / 2].reads_per_s;
    rounds.sort_by(|a, b| a.cpu_us_per_read.total_cmp(&b.cpu_us_per_read));
    let cpu_us_per_read = rounds[rounds.len() / 2].cpu_us_per_read;
    let setting = match engine {
        "raw" => format!(r#""depth": {}, "wait": {}"#, probe.depth, probe.wait),
        _ => format!(r#""batch": {}"#, probe.batch),
    };
    println!(
        r#"{{"engine": "{engine}", "reads_per_s": {reads_per_s:.0}, "cpu_us_per_read": {cpu_us_per_read:.2}, {setting}}}"#
    );
}

/// User and system time of this process so far.
fn cpu_time() -> Duration {
    // SAFETY: a zeroed rusage is a valid value of that plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one rusage to the pointer.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
