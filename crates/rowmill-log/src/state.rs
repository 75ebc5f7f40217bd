//! The state of a log that a checkpoint saves.

use serde::{Deserialize, Serialize};

/// The segments a checkpoint names, as written into its manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogState {
    /// The cut of the checkpoint; 0 before the first.
    pub cut: u64,
    /// The lowest sequence number that is not used yet.
    pub next_sequence: u64,
    /// The segments, ordered by place.
    pub segments: Vec<SegmentRecord>,
}

/// One segment that a checkpoint names. In JSON it is the short array `[place, sequence, rows]`, because a
/// store has many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u64, u32)", into = "(u32, u64, u32)")]
pub struct SegmentRecord {
    /// Place of the segment, counted from the beginning of the file.
    pub place: u32,
    /// Its sequence number, never used for another segment of this log.
    pub sequence: u64,
    /// Number of rows in it.
    pub rows: u32,
}

impl From<(u32, u64, u32)> for SegmentRecord {
    fn from((place, sequence, rows): (u32, u64, u32)) -> Self {
        Self { place, sequence, rows }
    }
}

impl From<SegmentRecord> for (u32, u64, u32) {
    fn from(record: SegmentRecord) -> Self {
        (record.place, record.sequence, record.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_a_short_array_in_json() {
        let state = LogState {
            cut: 2,
            next_sequence: 10,
            segments: vec![SegmentRecord { place: 1, sequence: 9, rows: 64 }],
        };
        let json = serde_json::to_string(&state).unwrap();
        assert_eq!(json, r#"{"cut":2,"next_sequence":10,"segments":[[1,9,64]]}"#);
        assert_eq!(serde_json::from_str::<LogState>(&json).unwrap(), state);
    }
}
