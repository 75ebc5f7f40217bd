//! Placeholder until the crate is filled in the next commit.
