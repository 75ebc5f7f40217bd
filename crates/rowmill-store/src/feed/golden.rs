//! A feed of format version 1, made by hand from docs/reference/store-format.md, must stay readable and equal
//! what is written. If this fails, the format has changed: raise the version and continue to read the old
//! one.

use std::path::PathBuf;
use std::sync::Arc;

use rowmill_io::{MemoryVolume, Volume};

use super::segment::{self, NOTHING, Segment};
use super::{FeedChange, FeedEvent, FeedReader, frame};

const FIRST: u64 = 7;
const PUBLISHED_NS: u64 = 1_700_000_000_000_000_000;

fn golden() -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/feed-1");
    std::fs::read(folder.join(segment::name(FIRST))).unwrap()
}

fn events() -> Vec<FeedEvent> {
    let rows = FeedChange::Rows {
        table: "words".into(),
        step: 9,
        dim: 2,
        ids: vec![7, u64::MAX, 7],
        weights: vec![1.0, -0.5, 0.25, 1e-30, 3.0, f32::INFINITY],
    };
    let changes = [
        FeedChange::Checkpoint { epoch: 4 },
        rows,
        FeedChange::Deleted { table: "W\u{f6}rter".into(), step: 10, ids: vec![7, 1 << 40] },
        FeedChange::Rollback { to: 7, epoch: 4 },
    ];
    let event = |(number, change)| FeedEvent {
        sequence: FIRST + number,
        published_ns: PUBLISHED_NS + number,
        change,
    };
    (0..).zip(changes).map(event).collect()
}

#[test]
fn format_1_is_read() {
    let volume = MemoryVolume::new();
    volume.create(&segment::name(FIRST)).unwrap().write_all(&golden()).unwrap();
    let shared: Arc<dyn Volume> = Arc::new(volume);
    let mut reader = FeedReader::open(&shared, NOTHING).unwrap();
    for event in events() {
        assert_eq!(reader.poll().unwrap(), Some(event));
    }
    assert_eq!(reader.poll().unwrap(), None);
    assert_eq!(FeedReader::at_checkpoint(&shared, 4).unwrap().position(), FIRST);
}

#[test]
fn format_1_is_written() {
    let mut bytes = segment::header(Segment { first: FIRST, follows: NOTHING }).to_vec();
    for FeedEvent { sequence, published_ns, change } in events() {
        frame::encode(&mut bytes, sequence, published_ns, &change);
    }
    assert_eq!(bytes, golden());
}
