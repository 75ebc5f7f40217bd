//! Operations on one row, and their effect on a sequential row, with which histories are compared.

use std::fmt::{self, Debug, Formatter};

/// Number of threads that change rows.
pub(crate) const WRITERS: usize = 4;
/// Floats of a row: the number of the last put, two sums per writer, and the number again, to detect a row
/// that mixes two versions.
pub(crate) const DIM: usize = 16;
const SUMS: usize = 2 * WRITERS;
/// Largest integer up to which all integers are exact as floats.
const EXACT_MAX: u32 = 1 << 24;

/// The weights of a row, which identify the writes that made them. The last put has a unique number. The sums
/// of every writer say how many of its additions came after that put, and which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Content {
    /// Number of the last put; 0 when the row was created after it.
    pub(crate) put: u32,
    /// Per writer: the number of its additions, and the sum of their numbers.
    pub(crate) sums: [u32; SUMS],
}

impl Content {
    /// A value that no row ever holds: the weights mix several versions.
    pub(crate) const TORN: Self = Self { put: u32::MAX, sums: [0; SUMS] };

    pub(crate) fn of_put(put: u32) -> Self {
        Self { put, ..Self::default() }
    }

    /// With addition `number` of `writer`.
    pub(crate) fn plus(mut self, writer: usize, number: u32) -> Self {
        self.sums[2 * writer] += 1;
        self.sums[2 * writer + 1] += number;
        self
    }

    pub(crate) fn to_weights(self) -> [f32; DIM] {
        let mut weights = [self.put as f32; DIM];
        for (weight, sum) in weights[1..].iter_mut().zip(self.sums) {
            *weight = sum as f32;
        }
        weights
    }

    pub(crate) fn from_weights(weights: &[f32]) -> Self {
        let exact = |weight: &f32| weight.fract() == 0.0 && (0.0..EXACT_MAX as f32).contains(weight);
        let mut content = Self { put: weights[0] as u32, sums: [0; SUMS] };
        for (sum, weight) in content.sums.iter_mut().zip(&weights[1..]) {
            *sum = *weight as u32;
        }
        if weights.iter().all(exact) && content.to_weights() == weights { content } else { Self::TORN }
    }
}

/// One of the open steps; each writer has at most two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step(u8);

impl Step {
    /// The first or the second step of a writer.
    pub(crate) fn of(writer: usize, second: bool) -> Self {
        const { assert!(2 * WRITERS <= u8::BITS as usize, "a row has a bit for each step") };
        Self((2 * writer) as u8 + u8::from(second))
    }

    fn bit(self) -> u8 {
        1 << self.0
    }
}

/// One operation on one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A read that saw this content. It takes no clock.
    Get(Content),
    /// A training read that saw this content. The row is first created and its clock taken, then the row is
    /// read. In a table with clocks it may also create the row and then wait for the clock of this or of
    /// another row.
    Fetch { seen: Content, step: Step },
    /// A training read that gave way to another step while it waited.
    GaveWay,
    /// Whether the row exists.
    Contains(bool),
    /// Replaces the whole row, and releases its clock if this ends a step.
    Put { put: u32, step: Option<Step> },
    /// Addition `number` of a writer, which releases the clock likewise.
    Add { writer: u8, number: u32, step: Option<Step> },
    /// A step ended without changing the row.
    Release(Step),
    /// Deletes the row, if it exists. Steps that held its clock do not hold the clock of a row created later.
    Delete(bool),
    /// The row in a checkpoint.
    Saved { content: Content, exists: bool },
}

impl Effect {
    /// Number of instants at which it takes effect: a training read has two.
    pub(crate) fn stages(self) -> u8 {
        if matches!(self, Self::Fetch { .. }) { 2 } else { 1 }
    }

    /// Whether it waits for a clock before it takes effect, and may create the row meanwhile, even several
    /// times.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::Fetch { .. } | Self::GaveWay)
    }
}

/// An effect, and the interval in which it takes effect: positions in the total order of all beginnings and
/// ends.
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    /// The thread that did it.
    pub(crate) thread: Thread,
    /// Number of the row, counted over all tables.
    pub(crate) row: u32,
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    pub(crate) effect: Effect,
}

/// A thread that does operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// A thread that changes rows.
    Writer(u8),
    /// The thread that makes checkpoints and reads them.
    Saver,
}

impl Debug for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { thread, row, begun, ended, effect } = self;
        write!(f, "{thread:?} on row {row} from {begun} to {ended}: {effect:?}")
    }
}

/// A row that changes by one operation at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Row {
    content: Content,
    exists: bool,
    /// One bit per step that has read the row and has neither changed it nor ended.
    holders: u8,
}

impl Row {
    /// The row after stage `stage` of an effect; `None` if that effect is impossible. With a bound, clocks
    /// are kept and the bound is enforced.
    pub(crate) fn after(mut self, effect: Effect, stage: u8, bound: Option<u8>) -> Option<Self> {
        let possible = match effect {
            Effect::Fetch { step, .. } if stage == 0 => {
                self.exists = true;
                bound.is_none_or(|bound| self.take_clock(step, bound))
            }
            Effect::Get(seen) | Effect::Fetch { seen, .. } => seen == self.content,
            Effect::GaveWay => true,
            Effect::Contains(seen) => seen == self.exists,
            Effect::Put { put, step } => {
                self.content = Content::of_put(put);
                self.exists = true;
                self.release_clock(step);
                true
            }
            Effect::Add { writer, number, step } => {
                self.content = self.content.plus(writer as usize, number);
                self.exists = true;
                self.release_clock(step);
                true
            }
            Effect::Release(step) => {
                self.release_clock(Some(step));
                true
            }
            Effect::Delete(existed) => {
                let possible = self.exists == existed;
                self = Self::default();
                possible
            }
            Effect::Saved { content, exists } => content == self.content && exists == self.exists,
        };
        possible.then_some(self)
    }

    /// The row with its initial value, unless it already exists.
    pub(crate) fn born(self) -> Self {
        Self { exists: true, ..self }
    }

    /// A step takes the clock, unless it holds it. Returns whether that is within the bound.
    fn take_clock(&mut self, step: Step, bound: u8) -> bool {
        let is_held = self.holders & step.bit() != 0;
        self.holders |= step.bit();
        is_held || self.holders.count_ones() <= u32::from(bound) + 1
    }

    /// A step releases the clock, unless the row that it read was deleted.
    fn release_clock(&mut self, step: Option<Step>) {
        self.holders &= !step.map_or(0, Step::bit);
    }
}
