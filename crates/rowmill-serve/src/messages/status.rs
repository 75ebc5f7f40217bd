//! Statuses of failed requests.

/// The status of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    /// No failure.
    Ok = 0,
    /// The message or its tensors do not match the program.
    Invalid = 1,
    /// The request cannot meet its deadline.
    Late = 2,
    /// A queue or the arena has no room.
    Full = 3,
    /// The process is about to end.
    Draining = 4,
    /// The other half of the model is another one.
    UnknownProgram = 5,
    /// The program failed.
    Failed = 6,
}

impl Status {
    pub(super) fn of(number: u16) -> Option<Self> {
        use Status::{Draining, Failed, Full, Invalid, Late, Ok, UnknownProgram};
        [Ok, Invalid, Late, Full, Draining, UnknownProgram, Failed]
            .into_iter()
            .find(|&status| status as u16 == number)
    }
}
