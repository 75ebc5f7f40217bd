//! Volumes on slices of one large device.
//!
//! What could break: what a new slice held before is read, a slice that a crash gives back to its last owner, a table that
//! names blocks that were never flushed, a device with another folder, a full device. Devices are compared with byte arrays.
//! The device below is memory that loses its power, or the namespace of a real node.

mod common;
mod fixed_device;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{serve, settings};
use fixed_device::FixedDevice;
use rowmill_host::{Client, NamespaceDevice, SlicedVolume};
use rowmill_io::{BLOCK_BYTES, Device, DeviceError, MemoryVolume, Span, Volume};
use rowmill_testkit::{Rng64, conformance};

const MIB: u64 = 1 << 20;

fn open(local: &MemoryVolume, disk: &MemoryVolume, mib: u64) -> SlicedVolume {
    SlicedVolume::open(Arc::new(local.clone()), FixedDevice::shared(disk, mib)).unwrap()
}

fn read(device: &dyn Device, block: u64) -> Vec<u8> {
    let mut content = Vec::new();
    let span = Span { offset: block * BLOCK_BYTES as u64, bytes: BLOCK_BYTES };
    device.read(&[span], &mut |_, result| content = result.unwrap().to_vec());
    content
}

#[test]
fn slices_of_memory_behave_as_any_volume() {
    for (name, check) in conformance::CHECKS {
        println!("{name}");
        check(&open(&MemoryVolume::new(), &MemoryVolume::new(), 64));
    }
    for seed in 0..12 {
        let volume = open(&MemoryVolume::new(), &MemoryVolume::new(), 4);
        conformance::a_device_agrees_with_plain_bytes(&volume, seed);
    }
}

#[test]
fn a_namespace_of_a_node_behaves_as_any_volume() {
    let new_volume = |mib: u64| {
        let served = serve(&MemoryVolume::new(), mib * 256);
        let url = served.url();
        let client = Arc::new(Client::connect(&url, &settings()).unwrap());
        let device = NamespaceDevice::open(client, &url).unwrap();
        (SlicedVolume::open(Arc::new(MemoryVolume::new()), Arc::new(device)).unwrap(), served)
    };
    for (name, check) in conformance::CHECKS {
        println!("{name}");
        let (volume, served) = new_volume(64);
        check(&volume);
        drop(volume);
        served.end();
    }
    for seed in 0..4 {
        let (volume, served) = new_volume(4);
        conformance::a_device_agrees_with_plain_bytes(&volume, seed);
        drop(volume);
        served.end();
    }
}

/// Blocks as of the last sync, and which of them were written or discarded since.
#[derive(Clone, Debug, Default)]
struct Model {
    synced: Vec<u8>,
    now: Vec<u8>,
    changed: std::collections::BTreeSet<u64>,
}

fn blocks(first: u64, count: u64) -> Span {
    Span { offset: first * BLOCK_BYTES as u64, bytes: count as usize * BLOCK_BYTES }
}

/// Devices that are made, written, discarded and removed on few slices, and lose the power.
#[test]
fn what_was_synced_survives_a_crash_and_slices_are_reused() {
    for seed in 0..40 {
        let mut rng = Rng64::new(seed);
        let (mut local, mut disk) = (MemoryVolume::crashable(), MemoryVolume::crashable());
        // Slice 0 has the label; five are for three devices of up to three slices each.
        let mut volume = open(&local, &disk, 6);
        let mut models: BTreeMap<String, Model> = BTreeMap::new();
        let (mut full, mut crashes) = (0, 0);
        for step in 0..150 {
            let name = format!("device-{}", rng.below(3));
            let context = format!("seed {seed}, step {step}, {name}");
            match rng.below(20) {
                0 => {
                    volume.remove(&name).ok();
                    // A removed name is durable after a sync of the volume.
                    volume.sync().unwrap();
                    models.remove(&name);
                }
                1..=3 => {
                    if let Ok(device) = volume.device(&name, true) {
                        device.sync().unwrap();
                        let model = models.entry(name).or_default();
                        model.synced.clone_from(&model.now);
                        model.changed.clear();
                    }
                }
                4 => {
                    crashes += 1;
                    drop(volume);
                    local = local.crash(rng.next_u64()).volume;
                    disk = disk.crash(rng.next_u64()).volume;
                    volume = open(&local, &disk, 6);
                    for (name, model) in &mut models {
                        let Ok(device) = volume.device(name, true) else {
                            panic!("{context}: {name} is gone");
                        };
                        for block in 0..model.synced.len() as u64 {
                            let found = read(&*device, block);
                            if !model.changed.contains(&block) {
                                let expected = model.synced[block as usize];
                                assert!(
                                    found.iter().all(|&byte| byte == expected),
                                    "{context}: block {block}"
                                );
                            }
                        }
                        // Unsynced changes may have survived in part: begin anew with what is there.
                        let blocks = device.bytes() / BLOCK_BYTES as u64;
                        device.discard(Span { offset: 0, bytes: (3 * MIB) as usize }).unwrap();
                        device.sync().unwrap();
                        let zeros = vec![0; blocks as usize];
                        *model = Model { synced: zeros.clone(), now: zeros, ..Model::default() };
                    }
                }
                5..=7 => {
                    let Ok(device) = volume.device(&name, true) else { continue };
                    let model = models.entry(name).or_default();
                    let (first, count) = (rng.below(700), 1 + rng.below(300));
                    device.discard(blocks(first, count)).unwrap();
                    for block in first..(first + count).min(model.now.len() as u64) {
                        model.now[block as usize] = 0;
                        model.changed.insert(block);
                    }
                }
                _ => {
                    let device = volume.device(&name, true).unwrap();
                    let model = models.entry(name).or_default();
                    let (first, count, fill) = (rng.below(700), 1 + rng.below(60), 1 + rng.below(255) as u8);
                    let content = vec![fill; count as usize * BLOCK_BYTES];
                    let end = (first + count) as usize;
                    match device.write(first * BLOCK_BYTES as u64, &content) {
                        Ok(()) => {
                            let length = model.now.len().max(end);
                            model.now.resize(length, 0);
                            model.now[first as usize..end].fill(fill);
                        }
                        Err(DeviceError::Full { .. }) => {
                            full += 1;
                            // A part may be written: make it whole again.
                            device.discard(blocks(first, count)).unwrap();
                            let end = end.min(model.now.len());
                            model.now[(first as usize).min(end)..end].fill(0);
                        }
                        Err(error) => panic!("{context}: {error}"),
                    }
                    model.changed.extend(first..first + count);
                }
            }
            for (name, model) in &models {
                let device = volume.device(name, true).unwrap();
                assert_eq!(device.bytes(), (model.now.len() * BLOCK_BYTES) as u64, "{context}: {name}");
                if let Some(block) = (!model.now.is_empty()).then(|| rng.below(model.now.len() as u64)) {
                    let expected = model.now[block as usize];
                    let found = read(&*device, block);
                    assert!(found.iter().all(|&byte| byte == expected), "{context}: {name}, block {block}");
                }
            }
        }
        assert!(seed > 0 || full + crashes > 0);
    }
}

#[test]
fn a_reader_keeps_the_slices_that_it_reads() {
    let volume = open(&MemoryVolume::new(), &MemoryVolume::new(), 3);
    let first = volume.device("first", true).unwrap();
    first.write(0, &[1; 4 * BLOCK_BYTES]).unwrap();
    let spans = [0, 2].map(|block| Span { offset: block * BLOCK_BYTES as u64, bytes: BLOCK_BYTES });
    let mut seen = 0;
    first.read(&spans, &mut |_, result| {
        assert!(result.unwrap().iter().all(|&byte| byte == 1));
        if seen == 0 {
            // The slice is freed, but this read still uses it: the other device takes the other one.
            first.discard(Span { offset: 0, bytes: MIB as usize }).unwrap();
            first.sync().unwrap();
            let second = volume.device("second", true).unwrap();
            second.write(0, &[2; BLOCK_BYTES]).unwrap();
            assert!(matches!(second.write(MIB, &[2; BLOCK_BYTES]), Err(DeviceError::Full { .. })));
        }
        seen += 1;
    });
    assert_eq!(seen, 2);
    let second = volume.device("second", true).unwrap();
    second.write(MIB, &[2; BLOCK_BYTES]).expect("a save makes the freed slice usable");
}

#[test]
fn folder_and_device_belong_together() {
    let (local, disk) = (MemoryVolume::new(), MemoryVolume::new());
    let volume = open(&local, &disk, 4);
    let refused = |local: &MemoryVolume, disk: &MemoryVolume| {
        let error = SlicedVolume::open(Arc::new(local.clone()), FixedDevice::shared(disk, 4)).unwrap_err();
        error.to_string()
    };
    assert!(refused(&local, &disk).contains("in use by another process"), "one process at a time");
    drop(volume);
    assert!(refused(&MemoryVolume::new(), &disk).contains("this folder does not know it"));
    assert!(
        refused(&local, &{
            let other = MemoryVolume::new();
            drop(open(&MemoryVolume::new(), &other, 4));
            other
        })
        .contains("is not the one of this folder")
    );
    let volume = open(&local, &disk, 4);
    for name in ["SLICES", "SLICES.new", "LOCK", "a/b"] {
        assert!(volume.device(name, true).is_err() && volume.create(name).is_err(), "{name}");
    }
    volume.device("device", true).unwrap();
    volume.create("file").unwrap();
    assert!(volume.rename("file", "device").is_err() && volume.rename("device", "file").is_err());
    volume.rename("device", "moved").unwrap();
    assert_eq!(volume.list().unwrap(), ["file", "moved"]);
}
