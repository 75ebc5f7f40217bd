//! A million damaged messages.
//!
//! What could break: a reader that trusts a length, an offset or a count, and panics, asks for much memory or gives
//! tensors that were not sent. A checksum stops damage, but not a peer that writes wrongly, so half of the messages get
//! right checksums again. Whatever is read then must be exactly what its bytes say: written again, it gives them back.
//!
//! `ROWMILL_FUZZ_SEED=17` repeats one seed, `ROWMILL_FUZZ_SECONDS=3600` tries new ones for that long.

mod common;

use std::time::{Duration, Instant};

use common::{heap, poll_now};
use rowmill_io::crc32c;
use rowmill_serve::*;
use rowmill_testkit::{CountingAllocator, Rng64};

const MESSAGES: u64 = 1_000_000;
const MESSAGES_PER_SEED: u64 = 10_000;
const LIMITS: Limits = Limits { tensors_max: 64, payload_bytes_max: 128 << 10 };
/// No reader asks for more at once: a table of 64 tensors is 22 KiB.
const ALLOCATION_MAX: usize = 32 << 10;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// One message of each kind, small ones so that most bytes are structure.
fn originals() -> Vec<Vec<u8>> {
    let tensor = |name: TensorName, dtype: DType, shape: &[u64]| {
        let bytes = shape.iter().product::<u64>() as usize * dtype.bytes();
        Tensor::new(name, dtype, shape, heap(&(0..bytes).map(|at| at as u8).collect::<Vec<u8>>()))
    };
    let named = |text: &str| TensorName::Text(text.into());
    let message = |kind, status, time_left, tensors| Message {
        kind,
        id: 41,
        trace: [3; 16],
        program: 7,
        time_left,
        status,
        tensors,
    };
    let (zero, soon) = (Duration::ZERO, Duration::from_millis(20));
    let small = vec![
        tensor(named("ids"), DType::Int64, &[3]),
        tensor(TensorName::Number(4), DType::Float32, &[2, 2]),
    ];
    let large =
        vec![tensor(TensorName::Number(0), DType::UInt8, &[4097]), tensor(named("scalar"), DType::Bool, &[])];
    [
        message(Kind::Hello, Status::Ok, zero, vec![]),
        message(Kind::Request, Status::Ok, soon, small.clone()),
        message(Kind::Request, Status::Ok, soon, large),
        message(Kind::Reply, Status::Ok, zero, small),
        message(Kind::Failure, Status::Late, zero, vec![tensor(TensorName::Number(0), DType::UInt8, &[20])]),
        message(Kind::Release, Status::Ok, zero, vec![]),
        message(Kind::Reserve, Status::Ok, soon, vec![tensor(TensorName::Number(0), DType::UInt8, &[64, 0])]),
    ]
    .iter()
    .map(encode)
    .collect()
}

/// Change some bytes, most often of header and table.
fn change(bytes: &mut Vec<u8>, rng: &mut Rng64) {
    for _ in 0..=rng.below(3) {
        if bytes.is_empty() {
            return;
        }
        let reach = if rng.one_in(4) { bytes.len() } else { bytes.len().min(200) };
        let at = rng.below(reach as u64) as usize;
        let end = (at + 1 + rng.below(16) as usize).min(bytes.len());
        match rng.below(8) {
            0 | 1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes[at..end].fill([0, 0xff][rng.below(2) as usize]),
            3 => bytes[at..end].iter_mut().for_each(|byte| *byte = rng.next_u64() as u8),
            4 => bytes.truncate(at),
            5 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            6 => drop(bytes.drain(at..end)),
            _ => {
                let edge = (1_u64 << rng.below(64)).wrapping_sub(rng.below(2)).to_le_bytes();
                for (byte, new) in bytes[at / 8 * 8..].iter_mut().zip(edge) {
                    *byte = new;
                }
            }
        }
    }
}

/// Give the header and the table of a message right checksums.
fn sign(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let table_bytes = u32::from_le_bytes(bytes[48..52].try_into().unwrap()) as usize;
    let end = (HEADER_BYTES + table_bytes).min(bytes.len());
    let crc = crc32c(&bytes[HEADER_BYTES..end]);
    bytes[56..60].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&crc.to_le_bytes());
}

#[derive(Debug, Default)]
struct Tally {
    messages: u64,
    accepted: u64,
    spoiled: u64,
    refused: u64,
}

fn run(seed: u64, originals: &[Vec<u8>], intake: &Intake, tally: &mut Tally) {
    let mut rng = Rng64::new(seed);
    for number in 0..MESSAGES_PER_SEED {
        let original = &originals[rng.below(originals.len() as u64) as usize];
        let mut bytes = original.clone();
        change(&mut bytes, &mut rng);
        let is_signed = rng.one_in(2);
        if is_signed {
            sign(&mut bytes);
        }
        let mut stream = &bytes[..];
        tally.messages += 1;
        let replay = || format!("message {number}: ROWMILL_FUZZ_SEED={seed} repeats it");
        match poll_now(read(&mut stream, intake)) {
            Ok(Received::Message(message)) => {
                let consumed = &bytes[..bytes.len() - stream.len()];
                assert_eq!(encode(&message), consumed, "{}", replay());
                assert!(is_signed || consumed == original, "damage was not seen, {}", replay());
                tally.accepted += 1;
            }
            Ok(Received::Spoiled { .. }) => tally.spoiled += 1,
            Ok(Received::End) => assert!(bytes.is_empty(), "{}", replay()),
            Err(_) => tally.refused += 1,
        }
        assert_eq!(intake.arena.held_bytes(), 0, "memory leaks, {}", replay());
    }
}

#[test]
fn a_million_damaged_messages_do_no_harm() {
    let variable = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let originals = originals();
    let intake = Intake::new(Arena::new(1 << 20).unwrap(), LIMITS);
    let mut tally = Tally::default();
    CountingAllocator::start();
    if let Some(seed) = variable("ROWMILL_FUZZ_SEED") {
        run(seed, &originals, &intake, &mut tally);
    } else if let Some(seconds) = variable("ROWMILL_FUZZ_SECONDS") {
        let until = Instant::now() + Duration::from_secs(seconds);
        let first = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        for seed in first.. {
            if Instant::now() >= until {
                break;
            }
            run(seed, &originals, &intake, &mut tally);
        }
    } else {
        (0..MESSAGES / MESSAGES_PER_SEED).for_each(|seed| run(seed, &originals, &intake, &mut tally));
        // Changes that reach every outcome.
        assert!(tally.accepted > 10_000 && tally.spoiled > 1_000 && tally.refused > 100_000, "{tally:?}");
    }
    let largest = CountingAllocator::largest();
    println!("{tally:?}, largest allocation {largest}");
    assert!(largest <= ALLOCATION_MAX, "{largest} bytes were asked for at once");
}
