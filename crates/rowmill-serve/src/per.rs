//! How often a request gives an input or a raw column.

use serde::{Deserialize, Serialize};

/// Once for the user that a ranking request is about, or once per candidate item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// One row for all candidates, or one row per candidate.
    User,
    /// One row per candidate.
    #[default]
    Item,
}
