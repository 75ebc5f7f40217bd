//! Many connections, and hosts that hold memory.
//!
//! What could break: a node whose memory grows with its connections or with what hosts send, connections that wait for each
//! other, a host that takes memory and keeps it. The node of the first test is a process of its own, so that its resident
//! memory can be read: this test program, which runs one of its tests.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::process::Command as Process;
use std::time::{Duration, Instant};

use rowmill_io::MemoryVolume;
use rowmill_nvme::*;
use rowmill_storage_node::{Export, ExportContent, NAMESPACE};

use self::common::{NodeProcess, PATIENCE, Queue, connect_queues, serve_with};

const NO_DIGESTS: Digests = Digests { header: false, data: false };
/// Room for 1,024 connections, 32 MiB of data of commands, and 32 MiB of answers.
const WIRE_MEMORY: u64 = 128 << 20;
/// Each host has an admin queue and as many I/O queues as a controller may have.
const HOSTS: u8 = 59;
const IO_QUEUES: u16 = 16;
/// Bytes of a write or a read: more than a capsule holds.
const BYTES: usize = 128 << 10;
const RANGE: BlockRange = BlockRange { first: 0, count: (BYTES >> 12) as u64 };

fn export(volume: &MemoryVolume) -> Export<'_> {
    Export { volume, content: ExportContent::Blocks(256), hosts: Hosts::Any(Role::Write), key: None }
}

#[test]
fn be_a_node() {
    common::be_a_node(|_| serve_with(export(&MemoryVolume::new()), WIRE_MEMORY, Duration::from_mins(5)));
}

/// Whether this process may open this many files. Else, run the test again in a process that may.
fn has_files(files: u64, test: &str) -> bool {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    if line.split_whitespace().nth(3).unwrap().parse().is_ok_and(|limit: u64| limit >= files) {
        return true;
    }
    let script = format!("ulimit -n {files} && exec \"$0\" --exact {test}");
    let status = Process::new("sh").arg("-c").arg(script).arg(std::env::current_exe().unwrap()).status();
    assert!(status.unwrap().success(), "the test needs {files} open files: raise the hard limit");
    false
}

/// Resident memory of a process in bytes: now, or the most so far.
fn resident_bytes(process: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// Sockets that do not wait.
struct Crowd {
    queues: Vec<Queue>,
    done: Vec<usize>,
}

impl Crowd {
    fn submit(&mut self, command: Command, exchange: &Exchange) {
        for queue in &mut self.queues {
            queue.stream.set_nonblocking(true).unwrap();
            queue.host.submit(command, exchange.clone()).unwrap();
        }
        self.done = vec![0; self.queues.len()];
    }

    fn send(&mut self) {
        for queue in &mut self.queues {
            let unsent: Vec<u8> = queue.host.unsent().flatten().copied().collect();
            match queue.stream.write(&unsent) {
                Ok(bytes) => queue.host.sent(bytes),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }

    fn receive(&mut self) {
        let mut buffer = vec![0; 256 << 10];
        for (queue, done) in self.queues.iter_mut().zip(&mut self.done) {
            match queue.stream.read(&mut buffer) {
                Ok(bytes) => {
                    assert!(bytes > 0, "the node has closed a connection");
                    queue.host.receive(&buffer[..bytes]);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            while let Some(event) = queue.host.poll() {
                let HostEvent::Completed { completion, data, .. } = event else { panic!("{event:?}") };
                assert_eq!(completion.status(), Status::SUCCESS);
                assert!(data.is_empty() || data.iter().all(|&byte| byte == 7));
                *done += 1;
            }
        }
    }

    /// How many hosts were asked for data that they have not sent.
    fn asked(&self) -> usize {
        self.queues.iter().filter(|queue| queue.host.unsent_bytes() > BYTES).count()
    }

    /// Move bytes until each queue has a completion.
    fn finish(&mut self) {
        let start = Instant::now();
        while self.done.contains(&0) {
            let done = self.done.iter().filter(|&&done| done > 0).count();
            assert!(start.elapsed() < 6 * PATIENCE, "{done} queues are done");
            self.send();
            self.receive();
            // The node has work, too.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_thousand_connections_share_the_memory() {
    if !has_files(4096, "a_thousand_connections_share_the_memory") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let node = NodeProcess::start(folder.path());
    let (address, name) = node.url.strip_prefix("nvme+tcp://").unwrap().split_once('/').unwrap();
    let (address, name): (SocketAddr, Nqn) = (address.parse().unwrap(), name.parse().unwrap());
    let before = resident_bytes(node.id(), "VmRSS:");
    let mut admins = Vec::new();
    let mut crowd = Crowd { queues: Vec::new(), done: Vec::new() };
    for host in 0..HOSTS {
        let mut queues = connect_queues(address, &name, host + 1, IO_QUEUES, NO_DIGESTS);
        admins.push(queues.remove(0));
        crowd.queues.append(&mut queues);
    }
    let connections = admins.len() + crowd.queues.len();
    assert!(connections > 1000);
    let idle = resident_bytes(node.id(), "VmRSS:").saturating_sub(before);
    println!("{connections} idle connections: {} KiB each", (idle >> 10) / connections as u64);
    assert!(idle <= connections as u64 * (32 << 10), "{idle} bytes for {connections} connections");

    // Data is asked for as far as memory goes.
    crowd.submit(commands::write(NAMESPACE, RANGE, false), &Exchange::Send(vec![7; BYTES]));
    crowd.send();
    let most = (WIRE_MEMORY / 4) as usize / BYTES;
    let start = Instant::now();
    while crowd.asked() < most {
        assert!(start.elapsed() < PATIENCE, "{} hosts are asked for data", crowd.asked());
        crowd.receive();
    }
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(50));
        crowd.receive();
    }
    assert_eq!(crowd.asked(), most);
    // Other hosts are served meanwhile.
    let (status, _) = admins[0].call(commands::keep_alive(), Exchange::None);
    assert_eq!(status, Status::SUCCESS);
    crowd.finish();

    // Four reads each, whose answers are not taken for a while: 4 x 944 x 128 KiB.
    for _ in 0..4 {
        crowd.submit(commands::read(NAMESPACE, RANGE), &Exchange::Receive(BYTES));
    }
    crowd.send();
    std::thread::sleep(Duration::from_secs(1));
    crowd.finish();
    let start = Instant::now();
    while crowd.done.iter().any(|&done| done < 4) {
        assert!(start.elapsed() < 3 * PATIENCE);
        crowd.receive();
    }
    let most = resident_bytes(node.id(), "VmHWM:");
    println!("resident memory: {} MiB at the beginning, at most {} MiB", before >> 20, most >> 20);
    assert!(most <= before + WIRE_MEMORY * 105 / 100, "{most} bytes");

    // There is room for 1,024.
    let mut more: Vec<_> = (connections..1024).map(|_| Queue::try_open(address, NO_DIGESTS)).collect();
    assert!(more.iter().all(Option::is_some));
    assert!(Queue::try_open(address, NO_DIGESTS).is_none(), "one too many");
    more.clear();
    let start = Instant::now();
    while Queue::try_open(address, NO_DIGESTS).is_none() {
        assert!(start.elapsed() < PATIENCE, "those that left make room");
    }
    node.kill();
}

#[test]
fn a_host_that_keeps_memory_without_using_it_is_disconnected() {
    // 8 MiB of data of commands: 16 transfers of the largest size.
    let volume = MemoryVolume::new();
    let served = serve_with(export(&volume), 32 << 20, Duration::from_secs(1));
    let (address, name) = (served.address, served.name().clone());
    let range = BlockRange { first: 0, count: (TRANSFER_BYTES_MAX >> 12) as u64 };
    let write = commands::write(NAMESPACE, range, false);
    let mut idle = connect_queues(address, &name, 1, 8, NO_DIGESTS);
    for queue in &mut idle[1..] {
        for _ in 0..2 {
            queue.host.submit(write, Exchange::Send(vec![1; TRANSFER_BYTES_MAX])).unwrap();
        }
        // The capsules, but never the data.
        let capsules: Vec<u8> = queue.host.unsent().flatten().copied().collect();
        queue.host.sent(capsules.len());
        queue.stream.write_all(&capsules).unwrap();
        let mut asked = [0; 24];
        queue.stream.read_exact(&mut asked).unwrap();
        assert_eq!(asked[0], 9, "an R2T");
    }
    let mut others = connect_queues(address, &name, 2, 1, NO_DIGESTS);
    let other = &mut others[1];
    let start = Instant::now();
    let content = vec![2; TRANSFER_BYTES_MAX];
    assert_eq!(other.call(write, Exchange::Send(content.clone())).0, Status::SUCCESS);
    assert!(start.elapsed() > Duration::from_millis(300), "it had to wait");
    for queue in &mut idle[1..] {
        // The second R2T may be there before the end.
        let ended = queue.stream.read_to_end(&mut Vec::new());
        assert!(ended.is_ok_and(|bytes| bytes <= 24), "the connection is closed");
    }
    // A queue without obligations stays.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(
        other.call(commands::read(NAMESPACE, range), Exchange::Receive(TRANSFER_BYTES_MAX)).1,
        content
    );
    // A host that takes no answers.
    let mut deaf = connect_queues(address, &name, 3, 1, NO_DIGESTS);
    let deaf = &mut deaf[1];
    for _ in 0..32 {
        deaf.host.submit(commands::read(NAMESPACE, range), Exchange::Receive(TRANSFER_BYTES_MAX)).unwrap();
    }
    let capsules: Vec<u8> = deaf.host.unsent().flatten().copied().collect();
    deaf.stream.write_all(&capsules).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(
        other.call(commands::read(NAMESPACE, range), Exchange::Receive(TRANSFER_BYTES_MAX)).1,
        content
    );
    served.end();
}

/// Each connection has memory for two large frames, and no memory to receive the small ones between their capsules and
/// their data.
#[test]
fn connections_whose_frames_wait_for_each_other_end() {
    const FRAMES: usize = 10;
    let volume = MemoryVolume::new();
    let served = serve_with(export(&volume), 32 << 20, Duration::from_secs(1));
    let (address, name) = (served.address, served.name().clone());
    let frame = |bytes: usize| {
        // Eight bytes are before the payload. The namespace has no rows, so the frames are refused.
        let (command, data) = encode_frame(NAMESPACE, 0, 0, &vec![7; bytes - 8]);
        assert_eq!(data.len(), bytes);
        (command, Exchange::Send(data))
    };
    let mut queues = connect_queues(address, &name, 1, 8, NO_DIGESTS);
    let _admin = queues.remove(0);
    let mut asked = vec![[0; 48]; queues.len()];
    for (queue, asked) in queues.iter_mut().zip(&mut asked) {
        for _ in 0..2 {
            let (command, exchange) = frame(TRANSFER_BYTES_MAX);
            queue.host.submit(command, exchange).unwrap();
        }
        let capsules: Vec<u8> = queue.host.unsent().flatten().copied().collect();
        queue.host.sent(capsules.len());
        queue.stream.write_all(&capsules).unwrap();
        queue.stream.read_exact(asked).unwrap();
    }
    // All 8 MiB are taken.
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (mut queue, asked) in queues.into_iter().zip(asked) {
            for _ in 2..FRAMES {
                let (command, exchange) = frame(CAPSULE_DATA_BYTES);
                queue.host.submit(command, exchange).unwrap();
            }
            queue.host.receive(&asked);
            queue.stream.set_write_timeout(Some(PATIENCE)).unwrap();
            scope.spawn(move || (0..FRAMES).all(|_| queue.try_event().is_some()));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(start.elapsed() < PATIENCE / 2, "each connection has its answers or is closed");
    let mut others = connect_queues(address, &name, 2, 1, NO_DIGESTS);
    let range = BlockRange { first: 0, count: (TRANSFER_BYTES_MAX >> 12) as u64 };
    let write = commands::write(NAMESPACE, range, false);
    assert_eq!(others[1].call(write, Exchange::Send(vec![2; TRANSFER_BYTES_MAX])).0, Status::SUCCESS);
    served.end();
}
