//! One published change as bytes.
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

/// Longest payload: the widest row, its id and its table's name.
pub(super) const PAYLOAD_BYTES_MAX: usize = 300 << 10;
const HEAD_BYTES: usize = 32;

/// A published change.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedEvent {
    /// Its number; larger than that of every earlier one, not always by one.
    pub sequence: u64,
    /// When it was published, in nanoseconds since 1970 by the clock of the machine.
    pub published_ns: u64,
    /// What it says.
    pub change: FeedChange,
}

/// What a published change says.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FeedChange {
    /// Rows are new or were written. Of an id that comes twice the last values hold.
    Rows {
        /// Name of the table.
        table: String,
        /// Updates of the table when they were copied: each row has had at least those before the frame
        /// before, and at most these.
        step: u64,
        /// Weights per row.
        dim: usize,
        /// The rows.
        ids: Vec<u64>,
        /// `dim` weights for each.
        weights: Vec<f32>,
    },
    /// Rows are gone.
    Deleted {
        /// Name of the table.
        table: String,
        /// As for rows.
        step: u64,
        /// The rows.
        ids: Vec<u64>,
    },
    /// Who has applied everything up to here has the rows of this checkpoint, once that is durable.
    Checkpoint {
        /// Its number.
        epoch: u64,
    },
    /// The store went back to an earlier checkpoint: what was published after `to` did not happen. The rows
    /// as they were there come next, ending with the checkpoint.
    Rollback {
        /// The last sequence number that holds.
        to: u64,
        /// The checkpoint.
        epoch: u64,
    },
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

/// The change of a payload whose checksum was right; none if it cannot have been written by us.
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
