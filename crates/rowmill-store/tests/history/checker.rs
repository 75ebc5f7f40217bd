//! Checks whether the operations on one row could have happened one after the other.
//!
//! A history is linearizable if every operation can be given one instant (a training read: two) between its
//! beginning and its end, so that the sequential row of `operation.rs`, in that order, gives all recorded
//! answers. The checker follows all orders at once, as in Lowe's "Testing for linearizability" (2017),
//! section 3. A *possibility* is a row, and which of the running operations have taken effect. Effects are
//! decided only when an operation ends: every possibility in which it has not taken effect is replaced by all
//! ways in which it still can, and dropped if there is none. There are as many running operations as threads.
//! A read names the writes that it saw and so drops all possibilities but one or two. So checking takes about
//! the time of reading the history.
//!
//! Clocks are part of the row. A training read that saw more outstanding gets than its bound allows, in every
//! order, is a violation, too. A training read that waits for a clock may already have created the row. So
//! any number of births may take effect while it runs and has not taken the clock.

use std::collections::HashSet;
use std::fmt::{self, Display, Formatter};

use crate::operation::{Operation, Row};

/// Maximum operations on one row that may run at once; two bits per operation say how far it is.
const UNDER_WAY_MAX: usize = 32;
/// Far more than any history of a correct store needs.
const POSSIBILITIES_MAX: usize = 100_000;

/// An operation that cannot have happened as recorded.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    /// The first operation whose end leaves no possibility.
    pub(crate) operation: Operation,
    /// The operations that were running then.
    under_way: Vec<Operation>,
    /// What the row could have been before that operation.
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No order of the operations gives these answers.
    NotLinearizable,
    /// Some order gives these answers, but not within the staleness bound.
    BeyondBound,
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}: {:?}", self.kind, self.operation)?;
        for operation in &self.under_way {
            writeln!(f, "  under way: {operation:?}")?;
        }
        self.rows.iter().try_for_each(|row| writeln!(f, "  the row was one of: {row:?}"))
    }
}

/// Check the operations on one row, in any order. `bound` is `None` for a table without clocks.
pub(crate) fn check(operations: &[Operation], bound: Option<u8>) -> Result<(), Violation> {
    let Err(violation) = check_within(operations, bound) else { return Ok(()) };
    let unbounded = bound.is_some() && check_within(operations, Some(u8::MAX)).is_ok();
    let kind = if unbounded { Kind::BeyondBound } else { Kind::NotLinearizable };
    Err(Violation { kind, ..violation })
}

fn check_within(operations: &[Operation], bound: Option<u8>) -> Result<(), Violation> {
    let mut moments: Vec<(u64, usize)> = Vec::with_capacity(2 * operations.len());
    for (number, operation) in operations.iter().enumerate() {
        assert!(operation.begun < operation.ended, "an operation ends after it began: {operation:?}");
        moments.extend([(operation.begun, number), (operation.ended, number)]);
    }
    moments.sort_unstable();
    let mut search = Search { under_way: Vec::new(), possible: vec![Possibility::default()], bound };
    for (moment, number) in moments {
        let operation = &operations[number];
        if moment == operation.begun { search.begin(operation) } else { search.end(operation)? }
    }
    Ok(())
}

/// A row, and how many stages of each running operation have taken effect (two bits per place).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Possibility {
    row: Row,
    progress: u64,
}

impl Possibility {
    fn stage(self, place: usize) -> u8 {
        (self.progress >> (2 * place) & 3) as u8
    }

    /// With one more stage of the operation in `place`, if that is possible.
    fn advanced(self, place: usize, operation: &Operation, bound: Option<u8>) -> Option<Self> {
        let stage = self.stage(place);
        if stage == operation.effect.stages() {
            return None;
        }
        let row = self.row.after(operation.effect, stage, bound)?;
        Some(Self { row, progress: self.progress + (1 << (2 * place)) })
    }

    /// With the row created by an operation that waits for its clock, if it waits.
    fn born(self, place: usize, operation: &Operation, bound: Option<u8>) -> Option<Self> {
        let waits = bound.is_some() && operation.effect.waits() && self.stage(place) == 0;
        waits.then(|| Self { row: self.row.born(), ..self })
    }

    fn has_done(self, place: usize, operation: &Operation) -> bool {
        self.stage(place) == operation.effect.stages()
    }
}

struct Search<'a> {
    /// Running operations by place.
    under_way: Vec<Option<&'a Operation>>,
    possible: Vec<Possibility>,
    bound: Option<u8>,
}

impl<'a> Search<'a> {
    fn begin(&mut self, operation: &'a Operation) {
        let free = self.under_way.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.under_way.push(None);
            self.under_way.len() - 1
        });
        assert!(place < UNDER_WAY_MAX, "more threads than the checker has bits for");
        self.under_way[place] = Some(operation);
    }

    fn end(&mut self, operation: &'a Operation) -> Result<(), Violation> {
        let is_it = |other: Option<&Operation>| other.is_some_and(|other| std::ptr::eq(other, operation));
        let place =
            self.under_way.iter().position(|&other| is_it(other)).expect("an operation that ends has begun");
        let mut after: HashSet<Possibility> = HashSet::new();
        let mut seen: HashSet<Possibility> = HashSet::new();
        let mut open: Vec<Possibility> = self.possible.clone();
        while let Some(possibility) = open.pop() {
            if possibility.has_done(place, operation) {
                after.insert(Possibility {
                    progress: possibility.progress & !(3 << (2 * place)),
                    ..possibility
                });
                continue;
            }
            for (place, operation) in self.under_way.iter().enumerate() {
                let Some(operation) = operation else { continue };
                let advanced = possibility.advanced(place, operation, self.bound);
                let born = possibility.born(place, operation, self.bound);
                open.extend(advanced.into_iter().chain(born).filter(|&next| seen.insert(next)));
            }
        }
        assert!(after.len() < POSSIBILITIES_MAX, "the reads of this history distinguish too few orders");
        if after.is_empty() {
            return Err(self.violation(operation));
        }
        self.possible = after.into_iter().collect();
        self.under_way[place] = None;
        Ok(())
    }

    fn violation(&self, operation: &Operation) -> Violation {
        let mut rows: Vec<Row> = self.possible.iter().map(|possibility| possibility.row).collect();
        rows.sort_unstable();
        rows.dedup();
        Violation {
            kind: Kind::NotLinearizable,
            operation: *operation,
            under_way: self.under_way.iter().flatten().map(|&other| *other).collect(),
            rows,
        }
    }
}
