//! Limits on the size of a message.

/// Bounds that a reader checks before it allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tensors of one message.
    pub tensors_max: u16,
    /// All payloads of one message together.
    pub payload_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { tensors_max: 1024, payload_bytes_max: 64 << 20 }
    }
}
