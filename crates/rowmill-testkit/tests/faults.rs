//! Injected faults act as documented, count their hits, and repeat by seed. A crash of a memory volume keeps
//! all synced data and guarantees nothing else.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::Arc;

use rowmill_io::{BLOCK_BYTES, Device, DeviceError, DirectoryVolume, IoChoice, MemoryVolume, Span, Volume};
use rowmill_testkit::{Fault, FaultyVolume, When};

fn span(first: u64, count: usize) -> Span {
    Span { offset: first * BLOCK_BYTES as u64, bytes: count * BLOCK_BYTES }
}

fn block(fill: u8) -> Vec<u8> {
    vec![fill; BLOCK_BYTES]
}

fn read(device: &dyn Device, span: Span) -> Result<Vec<u8>, DeviceError> {
    let mut found = None;
    device.read(&[span], &mut |_, result| found = Some(result.map(<[u8]>::to_vec)));
    found.expect("the span is delivered")
}

/// A volume with a synced device whose block i is filled with i.
fn volume(seed: u64, blocks: u8) -> (FaultyVolume, Arc<dyn Device>) {
    let volume = FaultyVolume::over_memory(MemoryVolume::crashable(), seed);
    let device = volume.device("device", true).unwrap();
    for fill in 0..blocks {
        device.write(u64::from(fill) * BLOCK_BYTES as u64, &block(fill)).unwrap();
    }
    device.sync().unwrap();
    volume.sync().unwrap();
    (volume, device)
}

fn is_eio(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Io { source, .. } if source.raw_os_error() == Some(libc::EIO))
}

#[test]
fn only_the_nth_read_fails_and_healing_ends_it() {
    let (volume, device) = volume(1, 4);
    volume.inject(Fault::ReadError, When::Nth(2));
    let spans = [span(0, 1), span(1, 1), span(2, 1)];
    let mut failed = Vec::new();
    device.read(&spans, &mut |position, result| match result {
        Ok(blocks) => assert_eq!(blocks, block(position as u8)),
        Err(error) => {
            assert!(is_eio(&error), "{error}");
            failed.push(position);
        }
    });
    assert_eq!(failed, [1]);
    assert_eq!(volume.fired(Fault::ReadError), 1);
    volume.inject(Fault::ReadError, When::Always);
    assert!(read(&*device, span(0, 1)).is_err());
    volume.heal();
    assert_eq!(read(&*device, span(0, 1)).unwrap(), block(0));
    assert_eq!(volume.fired(Fault::ReadError), 2);
}

#[test]
fn a_flipped_bit_is_one_bit() {
    let (volume, device) = volume(2, 4);
    volume.inject(Fault::BitFlip, When::Always);
    for _ in 0..50 {
        let found = read(&*device, span(1, 2)).unwrap();
        let expected = [block(1), block(2)].concat();
        let bits: u32 = found.iter().zip(&expected).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(bits, 1);
    }
    assert_eq!(volume.fired(Fault::BitFlip), 50);
}

#[test]
fn a_stale_read_returns_the_previous_version_once_there_is_one() {
    let (volume, device) = volume(3, 4);
    volume.inject(Fault::StaleRead, When::Nth(1));
    assert_eq!(read(&*device, span(2, 1)).unwrap(), block(2), "nothing was overwritten yet");
    assert_eq!(volume.fired(Fault::StaleRead), 0);
    device.write(2 * BLOCK_BYTES as u64, &block(9)).unwrap();
    assert_eq!(read(&*device, span(1, 2)).unwrap(), [block(1), block(2)].concat());
    assert_eq!(read(&*device, span(1, 2)).unwrap(), [block(1), block(9)].concat());
    assert_eq!(volume.fired(Fault::StaleRead), 1);
}

#[test]
fn a_misdirected_read_returns_another_block() {
    let (volume, device) = volume(4, 6);
    volume.inject(Fault::MisdirectedRead, When::Always);
    let mut seen = BTreeSet::new();
    for _ in 0..100 {
        let found = read(&*device, span(3, 1)).unwrap();
        assert_eq!(found, block(found[0]));
        seen.insert(found[0]);
    }
    assert_eq!(seen, BTreeSet::from([0, 1, 2, 4, 5]));
}

#[test]
fn failed_writes_give_the_reason_and_may_write_a_prefix() {
    let (volume, device) = volume(5, 8);
    let mut partial = false;
    for (fault, is_right) in [
        (Fault::WriteError, is_eio as fn(&DeviceError) -> bool),
        (Fault::Full, |error| matches!(error, DeviceError::Full { bytes, .. } if *bytes == 8 * BLOCK_BYTES)),
    ] {
        volume.inject(fault, When::Always);
        for version in 100..120_u8 {
            let before = read(&*device, span(0, 8)).unwrap();
            let error = device.write(0, &vec![version; 8 * BLOCK_BYTES]).unwrap_err();
            assert!(is_right(&error), "{error}");
            let after = read(&*device, span(0, 8)).unwrap();
            let changed = after.iter().take_while(|byte| **byte == version).count();
            assert_eq!(after[changed..], before[changed..]);
            assert!(changed < after.len() && changed.is_multiple_of(BLOCK_BYTES));
            partial |= changed > 0;
        }
        volume.heal();
        assert_eq!(volume.fired(fault), 20);
    }
    assert!(partial);
}

#[test]
fn a_torn_write_succeeds_and_loses_sectors() {
    let (volume, device) = volume(6, 4);
    volume.inject(Fault::TornWrite, When::Always);
    let mut inside_a_block = false;
    for version in 50..80 {
        let before = read(&*device, span(0, 4)).unwrap();
        device.write(0, &vec![version; 4 * BLOCK_BYTES]).unwrap();
        let after = read(&*device, span(0, 4)).unwrap();
        let mut lost = 0;
        for (after, before) in after.chunks(512).zip(before.chunks(512)) {
            let kept = after == before;
            assert!(kept || *after == [version; 512]);
            lost += usize::from(kept);
        }
        assert!(lost > 0);
        inside_a_block |= !lost.is_multiple_of(8);
    }
    assert!(inside_a_block);
    let mut file = volume.create("file").unwrap();
    file.write_all(&[7; 5000]).unwrap();
    let mut found = Vec::new();
    volume.open("file").unwrap().read_to_end(&mut found).unwrap();
    assert_eq!(found.len(), 5000);
    assert!(found.contains(&0));
}

#[test]
fn faults_affect_files_too() {
    let volume = FaultyVolume::over_memory(MemoryVolume::crashable(), 7);
    volume.create("MANIFEST").unwrap().write_all(&[1; 100]).unwrap();
    volume.inject_on("MANIFEST", Fault::BitFlip, When::Nth(1));
    let mut found = Vec::new();
    volume.open("MANIFEST").unwrap().read_to_end(&mut found).unwrap();
    assert_eq!(found.iter().filter(|byte| **byte != 1).count(), 1);
    volume.inject_on("MANIFEST", Fault::ReadError, When::Nth(1));
    assert!(volume.open("MANIFEST").unwrap().read_to_end(&mut found).is_err());

    volume.inject_on("MANIFEST.next", Fault::Full, When::Nth(2));
    let mut file = volume.create("MANIFEST.next").unwrap();
    file.write_all(b"fits").unwrap();
    assert_eq!(file.write_all(b"does not").unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    volume.inject_on("MANIFEST.next", Fault::SyncError, When::Nth(1));
    assert!(is_eio(&file.sync().unwrap_err()));
    file.sync().unwrap();

    volume.inject_on("MANIFEST.next", Fault::RenameError, When::Nth(1));
    assert!(is_eio(&volume.rename("MANIFEST.next", "MANIFEST").unwrap_err()));
    assert_eq!(volume.list().unwrap(), ["MANIFEST", "MANIFEST.next"]);
    volume.rename("MANIFEST.next", "MANIFEST").unwrap();
    volume.inject_on(".", Fault::SyncError, When::Nth(1));
    assert!(is_eio(&volume.sync().unwrap_err()));
    volume.sync().unwrap();
}

#[test]
fn synced_data_survives_and_a_lost_sync_has_no_effect() {
    let mut lost = 0;
    for seed in 0..60 {
        let (volume, device) = volume(seed, 4);
        if seed % 2 == 0 {
            volume.inject(Fault::LostSync, When::Always);
        }
        device.write(0, &block(77)).unwrap();
        device.sync().unwrap();
        let crash = volume.crash();
        assert!(device.sync().is_err() && volume.list().is_err(), "the crashed volume must return errors");
        let device = crash.volume.device("device", true).unwrap();
        let found = read(&*device, span(0, 4)).unwrap();
        assert_eq!(found[BLOCK_BYTES..], [block(1), block(2), block(3)].concat());
        if found[..BLOCK_BYTES] != block(77) {
            assert_eq!(seed % 2, 0, "a synced write was lost");
            lost += 1;
        }
        assert_eq!(crash.volume.fired(Fault::LostSync), u64::from(seed % 2 == 0));
        crash.volume.lock().unwrap();
    }
    assert!(lost > 10);
}

#[test]
fn a_rename_is_atomic_in_a_crash() {
    let (mut done, mut not_done) = (0, 0);
    for seed in 0..100 {
        let volume = MemoryVolume::crashable();
        for (name, content) in [("MANIFEST", "old"), ("next", "new")] {
            let mut file = volume.create(name).unwrap();
            file.write_all(content.as_bytes()).unwrap();
            file.sync().unwrap();
            if name == "MANIFEST" {
                volume.sync().unwrap();
            }
        }
        volume.rename("next", "MANIFEST").unwrap();
        let found = volume.crash(seed).volume;
        let mut content = String::new();
        found.open("MANIFEST").unwrap().read_to_string(&mut content).unwrap();
        match content.as_str() {
            "old" => not_done += 1,
            "new" => {
                done += 1;
                assert_eq!(found.list().unwrap(), ["MANIFEST"]);
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(done > 10 && not_done > 10);
}

#[test]
fn an_unsynced_name_may_be_lost_although_its_content_was_synced() {
    let mut gone = 0;
    for seed in 0..50 {
        let volume = MemoryVolume::crashable();
        let mut file = volume.create("file").unwrap();
        file.write_all(b"content").unwrap();
        file.sync().unwrap();
        let crash = volume.crash(seed);
        let names = crash.volume.list().unwrap();
        assert_eq!(names.is_empty(), crash.names_lost == 1);
        gone += crash.names_lost;
    }
    assert!((5..45).contains(&gone), "{gone}");
}

#[test]
fn equal_seeds_give_equal_crashes() {
    let run = |seed| {
        let (volume, device) = volume(seed, 16);
        volume.inject(Fault::TornWrite, When::OneIn(3));
        for round in 0..40_u64 {
            device.write(round * 7 % 16 * BLOCK_BYTES as u64, &block(round as u8 + 100)).unwrap();
            if round % 9 == 0 {
                device.sync().unwrap();
            }
        }
        let crash = volume.crash();
        let found = read(&*crash.volume.device("device", false).unwrap(), span(0, 16)).unwrap();
        (found, crash.changes_kept, crash.changes_lost, crash.changes_torn, volume.fired(Fault::TornWrite))
    };
    assert_eq!(run(11), run(11));
    assert_ne!(run(11), run(12));
}

#[test]
fn faults_affect_a_real_directory_too() {
    let folder = tempfile::tempdir().unwrap();
    let directory = DirectoryVolume::open(folder.path(), IoChoice::Auto).unwrap();
    let volume = FaultyVolume::new(Arc::new(directory), 1);
    let device = volume.device("device", true).unwrap();
    device.write(0, &[block(1), block(2)].concat()).unwrap();
    volume.inject(Fault::StaleRead, When::Always);
    device.write(0, &block(3)).unwrap();
    assert_eq!(read(&*device, span(0, 1)).unwrap(), block(1));
    volume.heal();
    assert_eq!(read(&*device, span(0, 1)).unwrap(), block(3));
    volume.inject(Fault::Full, When::Always);
    assert!(matches!(device.write(0, &block(4)), Err(DeviceError::Full { .. })));
}

#[test]
fn a_slow_operation_does_not_block_other_operations() {
    let (volume, device) = volume(8, 4);
    volume.inject(Fault::Slow, When::Always);
    let inside = volume.clone();
    let other = Arc::clone(&device);
    let busy = std::sync::atomic::AtomicBool::new(false);
    volume.meanwhile(move |_, name| {
        // The overtaking operation is not slow itself.
        if !busy.swap(true, std::sync::atomic::Ordering::SeqCst) {
            assert_eq!(name, "device");
            inside.heal();
            other.write(0, &block(50)).unwrap();
            inside.inject(Fault::Slow, When::Always);
            busy.store(false, std::sync::atomic::Ordering::SeqCst);
        }
    });
    let (mut before, mut after) = (0, 0);
    for _ in 0..40 {
        volume.heal();
        device.write(0, &block(0)).unwrap();
        volume.inject(Fault::Slow, When::Always);
        match read(&*device, span(0, 1)).unwrap()[0] {
            0 => before += 1,
            50 => after += 1,
            other => panic!("{other}"),
        }
    }
    assert!(before > 5 && after > 5, "{before} reads came before the overtaking write, {after} after");
    device.write(0, &block(51)).unwrap();
    volume.heal();
    assert!(read(&*device, span(0, 1)).unwrap() == block(51), "a slow write comes last");
    assert!(volume.fired(Fault::Slow) > 40);
}

#[test]
fn the_power_fails_in_the_scheduled_change() {
    let (mut made, mut not_made) = (0, 0);
    for seed in 0..40 {
        let (volume, device) = volume(seed, 4);
        volume.lose_power_in(3);
        device.write(0, &block(60)).unwrap();
        volume.create("file").unwrap();
        assert!(!volume.has_crashed());
        device.sync().unwrap_err();
        assert!(volume.has_crashed() && device.write(0, &block(61)).is_err());
        let found = volume.crash().volume;
        assert!(!found.has_crashed());
        let device = found.device("device", true).unwrap();
        match read(&*device, span(0, 1)).unwrap() {
            found if found == block(60) => made += 1,
            _ => not_made += 1,
        }
        device.write(0, &block(62)).unwrap();
        device.sync().unwrap();
    }
    assert!(made > 5 && not_made > 5, "{made} {not_made}");
}
