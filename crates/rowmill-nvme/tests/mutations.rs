//! A million mutated PDUs.
//!
//! What could break: a state machine that trusts a length, an offset, an identifier or an order, and panics, asks for much
//! memory, or goes on after an error. Connections are recorded between a host and a node, then changed: bits, fields,
//! lost, repeated and swapped PDUs. Digests stop most damage, so half of the recordings have none, and most changed PDUs
//! get right digests again. Both sides read changed streams of the other.
//!
//! `ROWMILL_FUZZ_SEED=17` repeats one seed, `ROWMILL_FUZZ_SECONDS=3600` tries new ones for that long.

mod common;
mod recordings;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::*;
use recordings::{Recording, pdu_bytes, recordings};
use rowmill_io::crc32c;
use rowmill_nvme::*;
use rowmill_testkit::{CountingAllocator, Rng64};
use zerocopy::FromBytes;

const PDUS: u64 = 1_000_000;
const CASES_PER_SEED: u64 = 1_000;
/// Nothing asks for more at once than the data of one command.
const ALLOCATION_MAX: usize = TRANSFER_BYTES_MAX;
/// Two connections with all data that they may hold and have unsent, and what the test itself keeps.
const LIVE_MAX: usize = 2 * (HELD_BYTES_MAX + UNSENT_BYTES_MAX + TRANSFER_BYTES_MAX);

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What was seen.
#[derive(Debug, Default)]
struct Tally {
    pdus: u64,
    statuses: BTreeSet<(u8, u8)>,
    by_controller: BTreeSet<FatalReason>,
    by_host: BTreeSet<FatalReason>,
    completed: u64,
}

/// Change some PDUs.
fn change(pdus: &mut Vec<Vec<u8>>, all: &[Recording], digests: Digests, rng: &mut Rng64) {
    for _ in 0..=rng.below(3) {
        let at = rng.below(pdus.len() as u64) as usize;
        match rng.below(16) {
            0 => drop(pdus.remove(at)),
            1 => pdus.insert(at, pdus[at].clone()),
            2 => {
                let last = pdus.len() - 1;
                pdus.swap(at, last.min(at + 1));
            }
            3 => {
                let from = &all[rng.below(all.len() as u64) as usize];
                let side = if rng.one_in(2) { &from.host } else { &from.controller };
                pdus.insert(at, side[rng.below(side.len() as u64) as usize].clone());
            }
            4 => pdus[at].truncate(rng.below(80) as usize),
            5 => ask_in_parts(pdus, digests),
            _ => {
                change_bytes(&mut pdus[at], rng);
                if !rng.one_in(4) {
                    sign(&mut pdus[at], digests, rng.one_in(2));
                }
            }
        }
        if pdus.is_empty() {
            return;
        }
    }
}

/// Replace the first R2T by two, which ask for its data in two parts.
fn ask_in_parts(pdus: &mut Vec<Vec<u8>>, digests: Digests) {
    let Some(at) = pdus.iter().position(|pdu| pdu.len() >= 24 && pdu[0] == 9) else { return };
    let bytes = u32::from_le_bytes(pdus[at][16..20].try_into().unwrap());
    let (first, second) = (bytes / 8 * 4, bytes - bytes / 8 * 4);
    pdus.insert(at, pdus[at].clone());
    for (number, (offset, bytes)) in [(0, first), (first, second)].into_iter().enumerate() {
        pdus[at + number][12..16].copy_from_slice(&offset.to_le_bytes());
        pdus[at + number][16..20].copy_from_slice(&bytes.to_le_bytes());
        sign(&mut pdus[at + number], digests, false);
    }
}

fn change_bytes(pdu: &mut [u8], rng: &mut Rng64) {
    // Most often in the header.
    let reach = if rng.one_in(4) { pdu.len() } else { pdu.len().min(76) };
    if reach == 0 {
        return;
    }
    let at = rng.below(reach as u64) as usize;
    match rng.below(4) {
        0 => pdu[at] ^= 1 << rng.below(8),
        1 => pdu[at] = [0, 1, 4, 0x5a, 0x80, 0xff][rng.below(6) as usize],
        2 => pdu[at] = rng.next_u64() as u8,
        _ => {
            let edge = (1_u64 << rng.below(33)).wrapping_sub(rng.below(2)) as u32;
            for (byte, new) in pdu[at / 4 * 4..].iter_mut().zip(edge.to_le_bytes()) {
                *byte = new;
            }
        }
    }
}

/// Give a PDU right digests.
fn sign(pdu: &mut [u8], digests: Digests, has_data_digest: bool) {
    let header = usize::from(*pdu.get(2).unwrap_or(&0));
    if digests.header && header >= 8 && pdu.len() >= header + 4 && pdu[0] > 3 {
        let crc = crc32c(&pdu[..header]);
        pdu[header..header + 4].copy_from_slice(&crc.to_le_bytes());
    }
    let (start, end) = (usize::from(*pdu.get(3).unwrap_or(&0)), pdu.len().saturating_sub(4));
    if digests.data && has_data_digest && start > 0 && start < end {
        let crc = crc32c(&pdu[start..end]);
        pdu[end..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Whole PDUs from the front of what a side sends.
fn outgoing(mut bytes: &[u8], mut each: impl FnMut(&[u8])) {
    while bytes.len() >= 8 {
        let (pdu, rest) = bytes.split_at(pdu_bytes(bytes));
        each(pdu);
        bytes = rest;
    }
    assert!(bytes.is_empty(), "sides queue whole PDUs");
}

/// Feed PDUs in pieces, until the connection is over.
fn feed(pdu: &[u8], rng: &mut Rng64, mut take: impl FnMut(&[u8])) {
    let piece = if rng.one_in(8) { 1 + rng.below(40) as usize } else { pdu.len().max(1) };
    pdu.chunks(piece).for_each(&mut take);
}

fn reason(pdu: &[u8]) -> FatalReason {
    let reason = u16::from_le_bytes([pdu[8], pdu[9]]);
    FatalReason::ALL.into_iter().find(|&known| known as u16 == reason).expect("a reason of the standard")
}

/// The node reads a changed stream of a host.
fn node_case(node: &mut Node, all: &[Recording], scratch: &mut Vec<u8>, rng: &mut Rng64, tally: &mut Tally) {
    let recording = &all[rng.below(all.len() as u64) as usize];
    let now = recording.now;
    node.restart();
    for prefix in &recording.before {
        let index = node.open(now);
        for pdu in prefix {
            node.connections[index].connection.receive(pdu);
            node.work(now, index);
        }
    }
    let mut pdus = recording.host.clone();
    change(&mut pdus, all, recording.digests, rng);
    let index = node.open(now);
    let mut terminated = 0;
    for pdu in &pdus {
        tally.pdus += 1;
        feed(pdu, rng, |piece| {
            let consumed = node.connections[index].connection.receive(piece);
            assert_eq!(consumed, piece.len(), "what is sent is taken at once");
            node.work(now, index);
        });
        let connection = &mut node.connections[index].connection;
        assert!(connection.held_bytes() <= HELD_BYTES_MAX);
        scratch.clear();
        connection.unsent().for_each(|part| scratch.extend_from_slice(part));
        connection.sent(scratch.len());
        outgoing(scratch, |pdu| {
            assert_eq!(terminated, 0, "nothing follows a termination request");
            match pdu[0] {
                5 => {
                    let completion = Completion::ref_from_bytes(&pdu[8..24]).unwrap();
                    let status = completion.status();
                    tally.statuses.insert((status.kind(), status.code()));
                    tally.completed += 1;
                }
                3 => {
                    terminated += 1;
                    tally.by_controller.insert(reason(pdu));
                }
                _ => (),
            }
        });
        if connection.is_closed() {
            break;
        }
    }
    // Without a fatal error, the peer asked for termination.
    let fatal = node.closed.iter().any(|(closed, why)| *closed == index && matches!(why, Closed::Fatal(_)));
    assert_eq!(terminated == 1, fatal);
}

/// A host reads a changed stream of a node.
fn host_case(all: &[Recording], scratch: &mut Vec<u8>, rng: &mut Rng64, tally: &mut Tally) {
    let recording = &all[rng.below(all.len() as u64) as usize];
    let limits = HostLimits {
        digests: recording.digests,
        commands_max: recording.submitted.len(),
        capsule_data_bytes: CAPSULE_DATA_BYTES,
        setup_time: Duration::from_secs(10),
    };
    let mut host = HostConnection::new(recording.now, limits);
    let mut pdus = recording.controller.clone();
    change(&mut pdus, all, recording.digests, rng);
    let sends = !rng.one_in(4);
    for pdu in &pdus {
        tally.pdus += 1;
        feed(pdu, rng, |piece| host.receive(piece));
        while let Some(event) = host.poll() {
            match event {
                HostEvent::Initialized => {
                    for (command, exchange) in &recording.submitted {
                        let cid = host.submit(*command, exchange.clone());
                        assert!(cid.is_some() || host.is_closed(), "there is room for all of them");
                    }
                }
                HostEvent::Completed { .. } => tally.completed += 1,
                HostEvent::Closed(_) => assert!(host.is_closed()),
            }
        }
        if host.is_closed() || sends {
            scratch.clear();
            host.unsent().for_each(|part| scratch.extend_from_slice(part));
            host.sent(scratch.len());
            outgoing(scratch, |pdu| {
                if pdu[0] == 2 {
                    tally.by_host.insert(reason(pdu));
                }
            });
        }
        if host.is_closed() {
            break;
        }
    }
}

#[test]
fn a_million_mutated_pdus_do_no_harm() {
    let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let all = recordings();
    let mut node = Node::new();
    let mut scratch = Vec::with_capacity(4 << 20);
    let mut tally = Tally::default();
    let mut run = |seed: u64, tally: &mut Tally| {
        let mut rng = Rng64::new(seed);
        for case in 0..CASES_PER_SEED {
            let before = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                if rng.one_in(3) {
                    host_case(&all, &mut scratch, &mut rng, tally);
                } else {
                    node_case(&mut node, &all, &mut scratch, &mut rng, tally);
                }
            }));
            assert!(before.is_ok(), "case {case}: ROWMILL_FUZZ_SEED={seed} repeats it");
        }
    };
    CountingAllocator::start();
    if let Some(seed) = variable("ROWMILL_FUZZ_SEED") {
        run(seed, &mut tally);
    } else if let Some(seconds) = variable("ROWMILL_FUZZ_SECONDS") {
        let until = Instant::now() + Duration::from_secs(seconds);
        let mut seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        while Instant::now() < until {
            run(seed, &mut tally);
            seed += 1;
        }
    } else {
        let mut seed = 0;
        while tally.pdus < PDUS {
            run(seed, &mut tally);
            seed += 1;
        }
        let missing: Vec<_> = Status::ALL
            .iter()
            .filter(|status| !tally.statuses.contains(&(status.kind(), status.code())))
            .collect();
        assert!(missing.is_empty(), "never seen: {missing:?}");
        assert_eq!(tally.by_controller.len(), FatalReason::ALL.len(), "{:?}", tally.by_controller);
        assert_eq!(tally.by_host.len(), FatalReason::ALL.len(), "{:?}", tally.by_host);
        assert!(tally.completed > PDUS / 10, "most PDUs are still answered: {}", tally.completed);
    }
    let (largest, live) = (CountingAllocator::largest(), CountingAllocator::live_most());
    println!(
        "{} PDUs, {} completed, {} statuses, largest allocation {largest}, live {live}",
        tally.pdus,
        tally.completed,
        tally.statuses.len()
    );
    assert!(largest <= ALLOCATION_MAX, "{largest} bytes were asked for at once");
    assert!(live <= LIVE_MAX, "{live} bytes were in use");
}
