//! Changed, truncated, extended or exchanged bytes give an error that names the file, never wrong data.

use super::*;

/// Run `read` on every damaged version of a file; it must fail each time. Flips every single bit, truncates
/// the file at every length, and appends bytes.
fn damage_everywhere(volume: &MemoryVolume, name: &str, mut read: impl FnMut() -> Result<(), FileError>) {
    let good = read_file(volume, name);
    read().unwrap();
    let mut must_fail = |bytes: &[u8], what: &dyn std::fmt::Display| {
        write_file(volume, name, bytes);
        match read().expect_err(&format!("{name}, {what}")) {
            FileError::Corrupt { name: found, .. } => assert_eq!(found, name),
            error => panic!("{name}, {what}: {error}"),
        }
    };
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        must_fail(&bad, &format_args!("bit {} of byte {}", bit % 8, bit / 8));
    }
    for len in 0..good.len() {
        must_fail(&good[..len], &format_args!("cut to {len} bytes"));
    }
    must_fail(&[good.as_slice(), &[0]].concat(), &"a zero more");
    must_fail(&[good.as_slice(), &good].concat(), &"written twice");
    write_file(volume, name, &good);
    read().unwrap();
}

#[test]
fn damage_of_a_manifest_is_seen() {
    let volume = volume();
    let mut written = manifest(4);
    written.deltas = vec![write_delta(&volume, 4, &[])];
    written.save(&volume).unwrap();
    damage_everywhere(&volume, "MANIFEST", || Manifest::load(&volume).map(|_| ()));
}

#[test]
fn damage_of_a_delta_is_seen_and_what_came_before_it_is_right() {
    let volume = volume();
    let changes: Vec<Change> =
        (0..9).map(|i| (key(i, u64::from(i) << 40), (i % 3 > 0).then_some(i))).collect();
    let file = write_delta(&volume, 4, &changes);
    damage_everywhere(&volume, &file.name.clone(), || {
        let (read, result) = read_delta(&volume, &file);
        assert!(changes.starts_with(&read));
        result
    });
}

#[test]
fn damage_of_a_snapshot_is_seen_and_what_came_before_it_is_right() {
    let volume = volume();
    // Three frames, because each frame has one category.
    let entries: Vec<Entry> = (0..12).map(|i| (i / 4, u64::from(i) << 50, i * 7)).collect();
    let file = write_snapshot(&volume, 4, &entries);
    damage_everywhere(&volume, &file.name.clone(), || {
        let (read, result) = read_snapshot(&volume, &file);
        assert!(entries.starts_with(&read));
        result
    });
}

#[test]
fn damage_of_an_attachment_is_seen() {
    let volume = volume();
    let entry = save_attachment(&volume, 4, "dense", b"sixteen weights.").unwrap();
    damage_everywhere(&volume, &entry.file.clone(), || load_attachment(&volume, &entry).map(|_| ()));
}

/// Two exchanged frames of equal length: each is intact, and the length of the file is correct.
#[test]
fn frames_cannot_change_places() {
    let volume = volume();
    let entries: Vec<Entry> = (0..8).map(|i| (i / 4, u64::from(i), i)).collect();
    let file = write_snapshot(&volume, 4, &entries);
    let good = read_file(&volume, &file.name);
    let (header, frames) = good.split_at(16);
    let (first, second) = frames.split_at(frames.len() / 2);
    write_file(&volume, &file.name, &[header, second, first].concat());
    let (read, result) = read_snapshot(&volume, &file);
    assert_eq!(read, []);
    assert!(result.unwrap_err().to_string().contains("frame 0 does not match its checksum"));
}

#[test]
fn a_healthy_file_of_another_checkpoint_or_kind_is_refused() {
    let volume = volume();
    let file = write_delta(&volume, 4, &[(key(0, 1), Some(2))]);
    let other = write_delta(&volume, 5, &[(key(0, 1), Some(3))]);
    volume.rename(&other.name, &file.name).unwrap();
    assert!(matches!(read_delta(&volume, &file).1, Err(FileError::Corrupt { .. })));
    assert!(matches!(read_snapshot(&volume, &file).1, Err(FileError::Corrupt { .. })));
    volume.remove(&file.name).unwrap();
    let error = read_delta(&volume, &file).1.unwrap_err();
    assert_eq!(error.to_string(), "index-4.delta is damaged: it does not exist");
    let attachment = save_attachment(&volume, 4, "dense", b"1").unwrap();
    volume.remove(&attachment.file).unwrap();
    assert!(matches!(load_attachment(&volume, &attachment), Err(FileError::Corrupt { .. })));
}

/// A newer build may have changed everything except the format of the first line.
#[test]
fn a_newer_manifest_is_told_from_a_damaged_one_by_its_first_line() {
    let volume = volume();
    for rest in ["", "words of tomorrow\n\0\0", "{\"format_version\":6}"] {
        let text =
            format!("rowmill-manifest 6 {:08x} {}\n{rest}", rowmill_io::crc32c(rest.as_bytes()), rest.len());
        write_file(&volume, "MANIFEST", text.as_bytes());
        let error = Manifest::load(&volume).unwrap_err();
        assert!(matches!(error, FileError::Newer { found: 6, supported: 5, .. }), "{error}");
    }
    // If only the first line has a newer version, the first line is damaged.
    manifest(4).save(&volume).unwrap();
    let written = String::from_utf8(read_file(&volume, "MANIFEST")).unwrap();
    write_file(
        &volume,
        "MANIFEST",
        written.replacen("rowmill-manifest 1 ", "rowmill-manifest 6 ", 1).as_bytes(),
    );
    let error = Manifest::load(&volume).unwrap_err();
    assert!(error.to_string().contains("another format version than the rest"), "{error}");
    let old =
        ["", "\n", "rowmill-manifest\n", "rowmill-manifest x\n", "rowmill-manifest 0 00000000 0\n", "{}"];
    for text in old.into_iter().chain([
        "rowmill-manifest 1 00000000 0\n",
        "rowmill-manifest 99999999999 0 0\n",
        "rowmill-manifest 2\n",
    ]) {
        write_file(&volume, "MANIFEST", text.as_bytes());
        assert!(matches!(Manifest::load(&volume), Err(FileError::Corrupt { .. })), "{text:?}");
    }
}

/// Write a manifest with the JSON `json` and a correct checksum.
fn write_json(volume: &MemoryVolume, json: &serde_json::Value) {
    let json = json.to_string();
    let crc = rowmill_io::crc32c(json.as_bytes());
    write_file(volume, "MANIFEST", format!("rowmill-manifest 1 {crc:08x} {}\n{json}", json.len()).as_bytes());
}

#[test]
fn fields_may_come_and_go_but_not_contradict_each_other() {
    let volume = volume();
    let written = manifest(4);
    let json = serde_json::to_value(&written).unwrap();
    let mut other = json.clone();
    let fields = other.as_object_mut().unwrap();
    fields.insert("of tomorrow".into(), 1.into());
    for optional in ["snapshot", "deltas", "attachments"] {
        fields.remove(optional).unwrap();
    }
    fields["tables"][0].as_object_mut().unwrap().insert("also".into(), "new".into());
    write_json(&volume, &other);
    assert_eq!(Manifest::load(&volume).unwrap(), written);

    let wrong: [(&str, serde_json::Value, &str); 7] = [
        (
            "/tables/0/rows",
            (1_u64 << 31 | 1).into(),
            "table \"users\" has 2147483649 rows, a group has room for 2147483648",
        ),
        ("/tables/0/deletes", u64::MAX.into(), "a counter is 18446744073709551615"),
        ("/tables/0/group", 1.into(), "table \"users\" is in group 1"),
        ("/groups/0/shards", 3.into(), "a group has 3 shards"),
        ("/format_version", 2.into(), "its JSON has another format version, 2"),
        ("/epoch", "four".into(), "invalid type: string \"four\""),
        ("/tables/0/spec", 0.into(), "its JSON is invalid"),
    ];
    for (pointer, value, message) in wrong {
        let mut other = json.clone();
        *other.pointer_mut(pointer).unwrap() = value;
        write_json(&volume, &other);
        let error = Manifest::load(&volume).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
