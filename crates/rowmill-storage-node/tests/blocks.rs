//! Hosts that read and write blocks of a node over TCP.
//!
//! What could break: bytes that a socket takes or gives in parts, answers that come back to another command or
//! connection, data or names that a restart loses, a disk that fails, connections that outlive their controller or are not bounded. The host
//! is the machine of `rowmill-nvme` on a blocking socket; expected content comes from plain memory.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant};

use rowmill_io::{BLOCK_BYTES, DirectoryVolume, IoChoice, MemoryVolume, Volume, open_disk};
use rowmill_nvme::*;
use rowmill_storage_node::{ExportContent, NAMESPACE};
use rowmill_testkit::{Fault, FaultyVolume, Rng64, When};

use self::common::{PATIENCE, Queue, Served, connect};

const BLOCKS: u64 = 1024;

fn serve(volume: &dyn Volume) -> Served {
    common::serve(volume, ExportContent::Blocks(BLOCKS), Hosts::Any(Role::Write))
}

fn digests(bits: u8) -> Digests {
    Digests { header: bits & 1 == 1, data: bits & 2 == 2 }
}

#[test]
fn blocks_and_names_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::create(folder.path(), IoChoice::Auto).unwrap();
    let content: Vec<u8> = (0..3 * BLOCK_BYTES).map(|at| (at / 7) as u8).collect();
    let served = serve(&volume);
    let (mut admin, mut io) = connect(&served, digests(3));
    assert_eq!(io.read(0, 2), (Status::SUCCESS, vec![0; 2 * BLOCK_BYTES]), "never written");
    assert_eq!(io.write(5, content.clone(), false), Status::SUCCESS);
    assert_eq!(io.call(commands::flush(NAMESPACE), Exchange::None).0, Status::SUCCESS);
    assert_eq!(io.read(5, 3), (Status::SUCCESS, content.clone()));
    // The first block lies beyond what was written last.
    assert_eq!(io.read(7, 3).1, [&content[2 * BLOCK_BYTES..], &[0; 2 * BLOCK_BYTES]].concat());
    let health = commands::log_page(page::HEALTH, u32::MAX, 0, 512, true);
    let (_, health) = admin.call(health, Exchange::Receive(512));
    assert_eq!((health[64], health[80]), (3, 1), "reads and writes");
    let name = served.name().clone();
    served.end();
    assert_eq!(io.try_event(), None, "the node closed the connection");

    let served = serve(&volume);
    assert_eq!(served.name(), &name);
    let (_admin, mut io) = connect(&served, digests(0));
    assert_eq!(io.read(5, 3), (Status::SUCCESS, content.clone()));
    let (command, ranges) = commands::deallocate(NAMESPACE, &[BlockRange { first: 6, count: 1 }]);
    assert_eq!(io.call(command, Exchange::Send(ranges)).0, Status::SUCCESS);
    let zeros = [&content[..BLOCK_BYTES], &[0; BLOCK_BYTES], &content[2 * BLOCK_BYTES..]].concat();
    assert_eq!(io.read(5, 3), (Status::SUCCESS, zeros));
    served.end();
}

#[test]
fn many_hosts_write_many_blocks_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let volume = DirectoryVolume::create(folder.path(), IoChoice::Auto).unwrap();
    let served = serve(&volume);
    std::thread::scope(|scope| {
        for host in 0..8_u64 {
            let served = &served;
            scope.spawn(move || {
                let (_admin, mut io) = connect(served, digests(host as u8));
                let mut rng = Rng64::new(host);
                // Each host has its own 128 blocks.
                let start = host * 128;
                let mut model = [0_u8; 128];
                for _ in 0..12 {
                    // Eight writes in flight, of up to 64 KiB, that do not overlap.
                    for part in 0..8 {
                        let (first, count, fill) =
                            (part * 16 + rng.below(8), 1 + rng.below(8), rng.next_u64() as u8);
                        model[first as usize..(first + count) as usize].fill(fill);
                        let blocks = BlockRange { first: start + first, count };
                        let content = vec![fill; count as usize * BLOCK_BYTES];
                        let write = commands::write(NAMESPACE, blocks, rng.one_in(8));
                        io.host.submit(write, Exchange::Send(content)).unwrap();
                    }
                    for _ in 0..8 {
                        assert_eq!(io.completed().0.status(), Status::SUCCESS);
                    }
                    let (status, read) = io.read(start, 128);
                    let expected: Vec<u8> = model.iter().flat_map(|&fill| [fill; BLOCK_BYTES]).collect();
                    assert!(status == Status::SUCCESS && read == expected);
                }
            });
        }
    });
    served.end();
}

#[test]
fn a_failing_disk_gives_statuses_and_a_failed_sync_ends_writing() {
    let volume = FaultyVolume::over_memory(MemoryVolume::new(), 1);
    let served = serve(&volume);
    let (_admin, mut io) = connect(&served, digests(0));
    let block = || vec![1; BLOCK_BYTES];
    assert_eq!(io.write(0, block(), false), Status::SUCCESS);
    for (fault, status) in
        [(Fault::Full, Status::CAPACITY_EXCEEDED), (Fault::WriteError, Status::WRITE_FAULT)]
    {
        volume.inject_on("blocks", fault, When::Nth(1));
        assert_eq!(io.write(0, block(), false), status);
        volume.heal();
    }
    volume.inject_on("blocks", Fault::ReadError, When::Nth(1));
    assert_eq!(io.read(0, 1).0, Status::UNRECOVERED_READ_ERROR);
    volume.heal();
    assert_eq!(io.write(0, block(), true), Status::SUCCESS);
    volume.inject_on("blocks", Fault::SyncError, When::Nth(1));
    assert_eq!(io.call(commands::flush(NAMESPACE), Exchange::None).0, Status::WRITE_FAULT);
    volume.heal();
    assert_eq!(io.write(0, block(), false), Status::WRITE_FAULT, "older writes may be lost");
    assert_eq!(io.read(0, 1), (Status::SUCCESS, block()));
    served.end();
}

/// A block device whose blocks are a file. It is detached when this is dropped.
struct LoopDevice(PathBuf);

impl LoopDevice {
    /// None where this process may not attach one.
    fn attach(file: &Path) -> Option<LoopDevice> {
        let attached = process::Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(attached.stdout).unwrap();
        attached.status.success().then(|| LoopDevice(name.trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = process::Command::new("losetup").arg("--detach").arg(&self.0).status();
        assert!(detached.is_ok_and(|status| status.success()));
    }
}

#[test]
fn a_disk_is_a_namespace_with_what_it_held_before() {
    const BLOCKS: u64 = 256;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    let before: Vec<u8> = (0..BLOCKS as usize * BLOCK_BYTES).map(|at| (at / 1000) as u8).collect();
    // A part of a block at the end does not count.
    std::fs::write(&file, [&before[..], &[9; 512]].concat()).unwrap();
    let Some(disk) = LoopDevice::attach(&file) else {
        eprintln!("skipped: losetup cannot attach a loop device, which root can");
        return;
    };
    let serve = |choice| {
        let content = ExportContent::Disk(open_disk(&disk.0, choice).unwrap());
        common::serve(&MemoryVolume::new(), content, Hosts::Any(Role::Write))
    };
    // Rings keep files open until the end of their thread.
    let served = serve(IoChoice::Pread);
    // Another program may not use it meanwhile.
    let refused = open_disk(&disk.0, IoChoice::Auto).unwrap_err();
    assert!(refused.to_string().contains("busy"), "{refused}");
    let (_admin, mut io) = connect(&served, digests(3));
    let all = io.read(0, BLOCKS / 2).1;
    assert!(all == before[..all.len()]);
    assert_eq!(io.read(BLOCKS, 1).0, Status::BLOCK_OUT_OF_RANGE);
    assert_eq!(io.write(BLOCKS - 2, vec![5; 2 * BLOCK_BYTES], true), Status::SUCCESS);
    // Deallocated blocks read as zeros.
    let range = BlockRange { first: 3, count: 2 };
    let (command, data) = commands::deallocate(NAMESPACE, &[range]);
    assert_eq!(io.call(command, Exchange::Send(data)).0, Status::SUCCESS);
    served.end();
    let mut expected = before;
    expected[3 * BLOCK_BYTES..5 * BLOCK_BYTES].fill(0);
    expected[(BLOCKS as usize - 2) * BLOCK_BYTES..].fill(5);
    let served = serve(IoChoice::Auto);
    let (_admin, mut io) = connect(&served, digests(3));
    let halves = [io.read(0, BLOCKS / 2).1, io.read(BLOCKS / 2, BLOCKS / 2).1].concat();
    assert!(halves == expected);
    served.end();
    let error = open_disk(&file, IoChoice::Auto).unwrap_err();
    assert!(error.to_string().contains("no block device"), "{error}");
    assert!(open_disk(Path::new("/dev/absent"), IoChoice::Auto).is_err());
}

#[test]
fn connections_end_with_their_controller() {
    let served = serve(&MemoryVolume::new());
    let (admin, mut io) = connect(&served, digests(0));
    drop(admin);
    assert_eq!(io.try_event(), None, "its admin queue is gone");
    served.end();
}

#[test]
fn a_connection_that_says_nothing_is_closed() {
    let served = serve(&MemoryVolume::new());
    let mut silent = TcpStream::connect(served.address).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let start = Instant::now();
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
    assert!(start.elapsed() > Duration::from_secs(9), "it has time for its set-up");
    served.end();
}

fn write_block(io: &mut Queue, content: u8) -> Vec<u8> {
    let command = commands::write(NAMESPACE, BlockRange { first: 0, count: 1 }, false);
    io.host.submit(command, Exchange::Send(vec![content; BLOCK_BYTES])).unwrap();
    io.take_unsent()
}

#[test]
fn wrong_digests_are_told_and_nothing_damaged_is_executed() {
    let served = serve(&MemoryVolume::new());
    let (_admin, mut io) = connect(&served, digests(3));
    // The digest of the data is at the end. The command fails, and the queue goes on.
    let mut bytes = write_block(&mut io, 1);
    *bytes.last_mut().unwrap() ^= 1;
    io.stream.write_all(&bytes).unwrap();
    assert_eq!(io.completed().0.status(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert_eq!(io.read(0, 1), (Status::SUCCESS, vec![0; BLOCK_BYTES]));
    // A header with another opcode: which command it was is not known, so the connection ends.
    let mut bytes = write_block(&mut io, 2);
    bytes[8] ^= 1;
    io.stream.write_all(&bytes).unwrap();
    let mut answer = Vec::new();
    io.stream.read_to_end(&mut answer).unwrap();
    assert_eq!(
        (answer[0], answer[8]),
        (Kind::ControllerTerminate as u8, FatalReason::HeaderDigestError as u8)
    );
    let (_admin, mut io) = connect(&served, digests(3));
    assert_eq!(io.read(0, 1), (Status::SUCCESS, vec![0; BLOCK_BYTES]));
    served.end();
}

#[test]
fn a_host_that_sends_byte_by_byte_is_served() {
    let served = serve(&MemoryVolume::new());
    for bits in [0, 3] {
        let (_admin, mut io) = connect(&served, digests(bits));
        io.stream.set_nodelay(true).unwrap();
        for byte in write_block(&mut io, 7 + bits) {
            io.stream.write_all(&[byte]).unwrap();
        }
        assert_eq!(io.completed().0.status(), Status::SUCCESS);
        assert_eq!(io.read(0, 1), (Status::SUCCESS, vec![7 + bits; BLOCK_BYTES]));
    }
    served.end();
}

#[test]
fn what_is_no_nvme_is_told_so_and_closed() {
    let served = serve(&MemoryVolume::new());
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    // A termination request: the kind of the PDU is invalid.
    assert_eq!((answer[0], answer[8], answer[10]), (3, 1, 0));
    served.end();
}
