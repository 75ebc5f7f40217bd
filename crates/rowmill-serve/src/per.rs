//! Whether a ranking request has an input or a raw column once, or once per candidate.

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
