//! Checks our host on a namespace of a target that is not ours. Overwrites the namespace, of at least 64 MiB:
//!
//! ```text
//! check_target URL plain|digests SEED
//! ```
//!
//! A volume on the namespace must pass the checks of every volume. Then threads write, read and free random blocks, which are
//! compared with plain memory. Prints the SHA-256 of all blocks as they must be at the end.

use std::fmt::Write;
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use rowmill_host::{Client, HostSettings, NamespaceDevice, NvmeUrl, SlicedVolume};
use rowmill_io::{BLOCK_BYTES, Device, MemoryVolume, Span};
use rowmill_nvme::Digests;
use rowmill_testkit::{Rng64, conformance};

/// Each thread has its own blocks.
const THREADS: usize = 4;
const OPERATIONS: u64 = 60;
/// More than one transfer.
const BLOCKS_MAX: u64 = 200;
/// Spans of one read.
const SPANS_MAX: u64 = 40;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, form, seed] = &arguments[..] else { panic!("usage: check_target URL plain|digests SEED") };
    let url: NvmeUrl = url.parse().unwrap();
    let has_digests = match form.as_str() {
        "plain" => false,
        "digests" => true,
        other => panic!("{other} is neither plain nor digests"),
    };
    let mut settings = HostSettings::of_machine().unwrap();
    settings.digests = Digests { header: has_digests, data: has_digests };
    let client = Arc::new(Client::connect(&url, &settings).unwrap());
    let device = Arc::new(NamespaceDevice::open(client, &url).unwrap());

    for (name, check) in conformance::CHECKS {
        eprintln!("{name}");
        check(&new_volume(&device));
    }
    for seed in 0..2 {
        eprintln!("a_device_agrees_with_plain_bytes, seed {seed}");
        conformance::a_device_agrees_with_plain_bytes(&new_volume(&device), seed);
    }
    eprintln!("random blocks");
    let mut model = vec![0; usize::try_from(device.bytes()).unwrap()];
    device.discard(span(0, device.bytes() / BLOCK_BYTES as u64)).unwrap();
    let part_bytes = model.len() / THREADS;
    let seed: u64 = seed.parse().unwrap();
    std::thread::scope(|scope| {
        for (thread, part) in model.chunks_mut(part_bytes).enumerate() {
            let (device, rng) = (&*device, Rng64::new(seed * THREADS as u64 + thread as u64));
            scope.spawn(move || exercise(device, (thread * part_bytes) as u64, part, rng));
        }
    });
    device.sync().unwrap();
    let hex = digest(&SHA256, &model).as_ref().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    });
    println!("{hex}");
}

/// A volume without devices. A folder, here memory, gets a namespace without a label only.
fn new_volume(device: &Arc<NamespaceDevice>) -> SlicedVolume {
    device.write(0, &[0; BLOCK_BYTES]).unwrap();
    SlicedVolume::open(Arc::new(MemoryVolume::new()), Arc::clone(device) as Arc<dyn Device>).unwrap()
}

fn span(first: u64, count: u64) -> Span {
    Span { offset: first * BLOCK_BYTES as u64, bytes: usize::try_from(count).unwrap() * BLOCK_BYTES }
}

/// Random calls on the blocks from byte `start` on, whose content is `model`.
fn exercise(device: &NamespaceDevice, start: u64, model: &mut [u8], mut rng: Rng64) {
    let blocks = (model.len() / BLOCK_BYTES) as u64;
    let within = |part: Span| part.offset as usize..part.end() as usize;
    let moved = |part: Span| Span { offset: start + part.offset, bytes: part.bytes };
    for _ in 0..OPERATIONS {
        let count = 1 + rng.below(BLOCKS_MAX.min(blocks));
        let part = span(rng.below(blocks - count + 1), count);
        match rng.below(8) {
            0..3 => {
                for byte in &mut model[within(part)] {
                    *byte = rng.next_u64() as u8;
                }
                device.write(start + part.offset, &model[within(part)]).unwrap();
            }
            3 => {
                model[within(part)].fill(0);
                device.discard(moved(part)).unwrap();
            }
            4 => device.sync().unwrap(),
            _ => {
                let parts: Vec<Span> = (0..=rng.below(SPANS_MAX))
                    .map(|_| span(rng.below(blocks - 8), 1 + rng.below(8)))
                    .collect();
                let spans: Vec<Span> = parts.iter().map(|&part| moved(part)).collect();
                let mut delivered = 0;
                device.read(&spans, &mut |position, content| {
                    assert!(
                        content.unwrap() == &model[within(parts[position])],
                        "{:?} differs",
                        spans[position]
                    );
                    delivered += 1;
                });
                assert_eq!(delivered, spans.len());
            }
        }
    }
}
