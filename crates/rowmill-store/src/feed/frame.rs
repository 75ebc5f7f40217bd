//! Encodes and decodes one published change.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | length and checksum of a frame (`files::frame_codec`) with the sequence number |
//! | 1 | kind: 1 rows, 2 deleted, 3 checkpoint, 4 rollback |
//! | 1 | bytes of the table's name |
//! | 2 | zero |
//! | 4 | weights per row |
//! | 8 | when it was published, in nanoseconds since 1970 |
//! | 8 | updates of the table so far, or number of the checkpoint |
//! | 8 | rows, or the sequence number to go back to |
//! | then | name, ids (8 bytes each), weights (f32) |

use crate::files::{FRAME_HEADER_BYTES, seal_frame};

/// Maximum payload: the widest row, its id and its table's name.
pub(super) const PAYLOAD_BYTES_MAX: usize = 300 << 10;
const HEAD_BYTES: usize = 32;

/// A published change.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedEvent {
    /// Sequence number. It is larger than all earlier ones; numbers may be skipped.
    pub sequence: u64,
    /// Time of publishing by the machine's clock, in nanoseconds since 1970.
    pub published_ns: u64,
    /// The change.
    pub change: FeedChange,
}

/// The content of a published change.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FeedChange {
    /// Rows that are new or were written. If an id is repeated, its last values hold.
    Rows {
        /// Name of the table.
        table: String,
        /// Number of updates of the table when the rows were copied. Each row includes at least all updates
        /// before the previous frame, and at most these.
        step: u64,
        /// Weights per row.
        dim: usize,
        /// Ids of the rows.
        ids: Vec<u64>,
        /// `dim` weights for each row.
        weights: Vec<f32>,
    },
    /// Rows that were deleted.
    Deleted {
        /// Name of the table.
        table: String,
        /// As for `Rows`.
        step: u64,
        /// Ids of the rows.
        ids: Vec<u64>,
    },
    /// A follower that has applied everything up to here has the rows of this checkpoint, once it is durable.
    Checkpoint {
        /// Number of the checkpoint.
        epoch: u64,
    },
    /// The store went back to an earlier checkpoint: changes published after `to` are undone. The next frames
    /// hold the rows as of that checkpoint and end with its `Checkpoint` frame.
    Rollback {
        /// The last sequence number that is still valid.
        to: u64,
        /// Number of the checkpoint.
        epoch: u64,
    },
}

impl FeedEvent {
    /// The payload of the event's frame, as a segment of the feed has it.
    pub fn payload(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        encode(&mut frame, self.sequence, self.published_ns, &self.change);
        frame.split_off(FRAME_HEADER_BYTES)
    }

    /// The event of a frame. `None` if the payload is malformed.
    pub fn parse(sequence: u64, payload: &[u8]) -> Option<FeedEvent> {
        decode(sequence, payload)
    }
}

/// Append the frame of a change to `out`.
pub(super) fn encode(out: &mut Vec<u8>, sequence: u64, published_ns: u64, change: &FeedChange) {
    let begin = out.len();
    out.resize(begin + FRAME_HEADER_BYTES, 0);
    let (kind, table, dim, first, second) = match change {
        FeedChange::Rows { table, step, dim, ids, .. } => (1, table.as_str(), *dim, *step, ids.len() as u64),
        FeedChange::Deleted { table, step, ids } => (2, table.as_str(), 0, *step, ids.len() as u64),
        FeedChange::Checkpoint { epoch } => (3, "", 0, *epoch, 0),
        FeedChange::Rollback { to, epoch } => (4, "", 0, *epoch, *to),
    };
    out.extend_from_slice(&[kind, table.len() as u8, 0, 0]);
    out.extend_from_slice(&(dim as u32).to_le_bytes());
    out.extend_from_slice(&published_ns.to_le_bytes());
    out.extend_from_slice(&first.to_le_bytes());
    out.extend_from_slice(&second.to_le_bytes());
    out.extend_from_slice(table.as_bytes());
    if let FeedChange::Rows { ids, .. } | FeedChange::Deleted { ids, .. } = change {
        out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    }
    if let FeedChange::Rows { weights, .. } = change {
        out.extend(weights.iter().flat_map(|weight| weight.to_le_bytes()));
    }
    debug_assert!(out.len() - begin - FRAME_HEADER_BYTES <= PAYLOAD_BYTES_MAX);
    seal_frame(sequence, &mut out[begin..]);
}

/// Decode a payload whose checksum is verified. `None` if this format cannot have produced it.
pub(super) fn decode(sequence: u64, payload: &[u8]) -> Option<FeedEvent> {
    let (head, rest) = payload.split_first_chunk::<HEAD_BYTES>()?;
    let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
    let dim = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    let (published_ns, first, second) = (word(8), word(16), word(24));
    let (name, rest) = rest.split_at_checked(usize::from(head[1]))?;
    let table = String::from_utf8(name.to_vec()).ok()?;
    let count = usize::try_from(second).ok();
    let ids = |count: usize| {
        let (ids, rest) = rest.split_at_checked(count.checked_mul(8)?)?;
        let ids: Vec<u64> = ids.as_chunks().0.iter().map(|&id| u64::from_le_bytes(id)).collect();
        Some((ids, rest))
    };
    let change = match head[0] {
        1 => {
            let (ids, rest) = ids(count?)?;
            if dim == 0 || rest.len() != ids.len().checked_mul(dim)?.checked_mul(4)? {
                return None;
            }
            let weights = rest.as_chunks().0.iter().map(|&weight| f32::from_le_bytes(weight)).collect();
            FeedChange::Rows { table, step: first, dim, ids, weights }
        }
        2 => {
            let (ids, rest) = ids(count?)?;
            if !rest.is_empty() {
                return None;
            }
            FeedChange::Deleted { table, step: first, ids }
        }
        3 => FeedChange::Checkpoint { epoch: first },
        4 => FeedChange::Rollback { to: second, epoch: first },
        _ => return None,
    };
    Some(FeedEvent { sequence, published_ns, change })
}
