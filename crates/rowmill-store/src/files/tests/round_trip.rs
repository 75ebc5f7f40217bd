//! Files are read back as they were written, and only files that a checkpoint needs are kept.

use proptest::prelude::*;
use rowmill_index::Location;

use super::*;

fn row() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(Location::ROW_MAX), 0..Location::ROW_MAX]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn deltas_come_back_in_order(
        changes in prop::collection::vec((0..5_u32, any::<u64>(), prop::option::of(row())), 0..10_000),
    ) {
        let changes: Vec<Change> =
            changes.into_iter().map(|(category, id, row)| (key(category, id), row)).collect();
        let volume = volume();
        let file = write_delta(&volume, 3, &changes);
        prop_assert_eq!(read_file(&volume, &file.name).len() as u64, file.len);
        let (read, result) = read_delta(&volume, &file);
        prop_assert!(result.is_ok());
        prop_assert_eq!(read, changes);
    }

    #[test]
    fn snapshots_come_back_in_order(
        entries in prop::collection::vec((0..3_u32, any::<u64>(), row()), 0..200),
        repeat in 1..60_usize,
    ) {
        let entries = entries.repeat(repeat);
        let volume = volume();
        let file = write_snapshot(&volume, 3, &entries);
        let (read, result) = read_snapshot(&volume, &file);
        prop_assert!(result.is_ok());
        prop_assert_eq!(read, entries);
    }

    #[test]
    fn attachments_come_back(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        let volume = volume();
        let entry = save_attachment(&volume, 9, "dense-0.pt", &bytes).unwrap();
        prop_assert_eq!(&entry.name, "dense-0.pt");
        prop_assert_eq!(load_attachment(&volume, &entry).unwrap(), bytes);
    }

    /// Opening a table compares its spec with the stored one, so floats must keep their exact bits.
    #[test]
    fn hyper_parameters_keep_their_bits(lr in any::<f32>(), eps in any::<f32>()) {
        prop_assume!(lr.is_finite() && eps.is_finite());
        let mut written = manifest(1);
        let optimizer =
            OptimizerSpec::Adagrad { lr: lr.abs(), eps: eps.abs(), initial_accumulator: f32::MIN_POSITIVE };
        written.tables.iter_mut().for_each(|table| table.spec.optimizer = optimizer);
        written.groups[0].spec = written.tables[0].spec.group();
        let volume = volume();
        written.save(&volume).unwrap();
        prop_assert_eq!(Manifest::load(&volume).unwrap(), written);
    }
}

#[test]
fn a_manifest_replaces_the_one_before() {
    let volume = volume();
    assert!(matches!(Manifest::load(&volume), Err(FileError::Missing { name: "MANIFEST" })));
    for epoch in [1, 2] {
        let mut written = manifest(epoch);
        written.snapshot = Some(write_snapshot(&volume, epoch, &[(0, 1, 2)]));
        written.deltas = vec![write_delta(&volume, epoch, &[(key(0, 1), None)])];
        written.attachments = vec![save_attachment(&volume, epoch, "dense", b"weights").unwrap()];
        written.save(&volume).unwrap();
        assert_eq!(Manifest::load(&volume).unwrap(), written);
    }
    assert!(!volume.list().unwrap().contains(&"MANIFEST.new".to_owned()));
}

#[test]
fn only_what_no_checkpoint_needs_is_removed() {
    let volume = volume();
    let change = [(key(0, 1), Some(2))];
    let old_delta = write_delta(&volume, 1, &change);
    let old_attachment = save_attachment(&volume, 1, "dense", b"1").unwrap();
    let kept_attachment = save_attachment(&volume, 1, "vocabulary", b"1").unwrap();
    let pinned = save_attachment(&volume, 1, "pinned", b"1").unwrap();
    let mut written = manifest(2);
    written.deltas = vec![write_delta(&volume, 2, &change)];
    written.snapshot = Some(write_snapshot(&volume, 2, &[]));
    written.attachments = vec![save_attachment(&volume, 2, "dense", b"2").unwrap(), kept_attachment];
    written.save(&volume).unwrap();
    let next = write_delta(&volume, 3, &change);
    let others = ["MANIFEST", "group-0.log", "group-7.log", "notes.txt", &next.name];
    for name in &others[1..4] {
        write_file(&volume, name, b"x");
    }
    write_file(&volume, "MANIFEST.new", b"torn");

    let mut removed = collect_garbage(&volume, &written, &|name| name == pinned.file).unwrap();
    removed.sort();
    assert_eq!(removed, ["MANIFEST.new", &old_attachment.file, &old_delta.name]);
    let mut left: Vec<&str> = written.file_names().chain(others).chain([pinned.file.as_str()]).collect();
    left.sort_unstable();
    assert_eq!(volume.list().unwrap(), left);
    assert_eq!(collect_garbage(&volume, &written, &|_| false).unwrap(), [pinned.file]);
}

#[test]
fn attachment_names_are_file_names() {
    let volume = volume();
    for name in ["", "a/b", "..\\x", "ä", "a b", &"x".repeat(101)] {
        let error = save_attachment(&volume, 1, name, b"").unwrap_err();
        assert!(matches!(&error, FileError::AttachmentName { name: found } if found == name), "{error}");
    }
    assert!(volume.list().unwrap().is_empty());
}

/// `cargo test --release -p rowmill-store measure_snapshot -- --ignored --nocapture`
#[test]
#[ignore = "a measurement, not a check"]
fn measure_snapshot() {
    const ENTRIES: u64 = 20_000_000;
    let folder = tempfile::tempdir().unwrap();
    let volume = rowmill_io::DirectoryVolume::open(folder.path(), rowmill_io::IoChoice::Pread).unwrap();
    let rate = |started: std::time::Instant| ENTRIES as f64 / started.elapsed().as_secs_f64() / 1e6;
    let started = std::time::Instant::now();
    let mut writer = SnapshotWriter::create(&volume, 1).unwrap();
    (0..ENTRIES).for_each(|i| writer.push(Category(0), i * 977, i as u32).unwrap());
    let file = writer.finish().unwrap();
    println!("snapshot written: {:.1} M entries/s with its sync", rate(started));
    let mut writer = DeltaWriter::create(&volume, 1).unwrap();
    let started = std::time::Instant::now();
    (0..ENTRIES).for_each(|i| writer.record(key(0, i * 977), Some(i as u32)).unwrap());
    let delta = writer.finish().unwrap();
    println!("delta written: {:.1} M changes/s with its sync", rate(started));
    for _ in 0..3 {
        let (mut sum, started) = (0, std::time::Instant::now());
        SnapshotReader::open(&volume, &file)
            .unwrap()
            .for_each_chunk(|_, ids, rows| {
                sum += ids.iter().sum::<u64>() + u64::from(rows[0]);
                Ok::<_, FileError>(())
            })
            .unwrap();
        println!("snapshot read: {:.1} M entries/s ({sum})", rate(started));
        let (mut sum, started) = (0, std::time::Instant::now());
        DeltaReader::open(&volume, &delta)
            .unwrap()
            .for_each(|key, row| {
                sum += key.id + u64::from(row.unwrap());
                Ok::<_, FileError>(())
            })
            .unwrap();
        println!("delta read: {:.1} M changes/s ({sum})", rate(started));
    }
}
