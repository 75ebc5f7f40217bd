//! Acquires the rows of a training read: takes clocks, creates missing rows, notes addresses.
//!
//! All calls take clocks in the same order: shard by shard, ascending, and within a shard all rows of the
//! call at once or none. So single calls never deadlock. A ticket that makes several calls can still close a
//! cycle of waits; the youngest ticket of the cycle is then cancelled with an error. Older steps go first: a
//! step gives way in a shard where an older step waits.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rowmill_kernels::RowPtr;

use super::entering::{Entering, Stop};
use crate::error::StoreError;
use crate::group::{Group, Known, ShardCell};
use crate::metrics::StalenessCounts;
use crate::shard::{Miss, Shard};
use crate::staleness::{Call, Held, TicketState};
use crate::table::{Key, Keys};
use crate::threads::Scatter;

/// Waits are cut into slices of this length, to check for cycles of waiting tickets and for the deadline.
pub(crate) const WAIT_SLICE: Duration = Duration::from_millis(20);

/// The clocks that a call takes.
#[derive(Debug)]
pub(crate) struct Clocks<'a> {
    /// The ticket that takes them.
    pub(crate) ticket: &'a TicketState,
    /// Identifies the call among the calls of the ticket.
    pub(crate) call: Call,
    /// By position: true if the ticket has not recorded the row as held. `None`: it has recorded none of
    /// them.
    pub(crate) fresh: Option<Vec<bool>>,
}

/// What a call requests besides addresses; by default nothing.
#[derive(Debug, Default)]
pub(crate) struct Wish<'a> {
    /// Create missing rows.
    pub(crate) births: bool,
    pub(crate) clocks: Option<Clocks<'a>>,
    /// Keep the index entries, for the change that follows.
    pub(crate) notes: bool,
    /// Staleness bound of every table of the group.
    pub(crate) bounds: Vec<Option<u8>>,
    /// Set by the queue, which already knows that these clocks were released.
    pub(crate) queued: bool,
}

/// Addresses of rows, as of the last visit of each shard.
#[derive(Debug)]
pub(crate) struct Entered {
    /// Address by position; null where the row is cold or missing.
    pub(crate) rows: Vec<RowPtr>,
    /// Generation of each shard's slots when its addresses were noted.
    pub(crate) moves: Vec<u64>,
    /// Cold rows.
    pub(crate) misses: Vec<Miss>,
    /// Keys without a row; only when missing rows are not created.
    pub(crate) unseen: Vec<Key>,
    /// Index entries by shard, for the change that follows a training read.
    pub(crate) known: Vec<Option<Known>>,
}

/// The result of entering each shard.
type Results = Vec<(usize, Result<Result<ShardEntered, Blocked>, StoreError>)>;

struct ShardEntered {
    /// Staleness of the clocks taken; counted once the whole call has entered.
    staleness: StalenessCounts,
    moves: u64,
    misses: Vec<Miss>,
    unseen: Vec<Key>,
    known: Option<Known>,
}

/// Why a shard cannot be entered now.
#[derive(Debug)]
pub(crate) struct Blocked {
    pub(crate) shard: usize,
    /// The row waited for: one beyond its bound, or the row that an older step waits for.
    pub(crate) row: Held,
    pub(crate) outstanding: u32,
    /// Generation of the gate to wait on.
    seen: u64,
}

impl Group {
    /// Enter every shard: take clocks, create missing rows, note addresses.
    ///
    /// # Errors
    /// Staleness timeout or conflict, too little memory, or a poisoned store. The call then holds no clock.
    pub(crate) fn enter(&self, keys: &Keys, wish: &mut Wish<'_>) -> Result<Entered, StoreError> {
        let mut rows = vec![std::ptr::null(); keys.positions()];
        let out = Scatter::new(&mut rows);
        let mut results = self.for_each_shard(keys, |shard| self.enter_shard(keys, shard, wish, &out));
        if let Some((shard, _)) = self.stop_at_first(keys, wish, &mut results) {
            let rest = (shard..self.shards.len()).filter(|&shard| !keys.of_shard(shard).is_empty());
            for shard in rest {
                match self.enter_waiting(keys, shard, wish, &out) {
                    Ok(entered) => results.push((shard, Ok(Ok(entered)))),
                    Err(error) => {
                        for (shard, _) in results {
                            self.leave_shard(keys, shard, wish);
                        }
                        return Err(error);
                    }
                }
            }
        }
        Ok(self.entered(results, rows))
    }

    /// As [`Group::enter`], but a row beyond its bound ends the attempt. The call then holds no clock.
    ///
    /// # Errors
    /// Too little memory, or a poisoned store.
    pub(crate) fn try_enter(
        &self,
        keys: &Keys,
        wish: &Wish<'_>,
    ) -> Result<Result<Entered, Blocked>, StoreError> {
        let mut rows = vec![std::ptr::null(); keys.positions()];
        let out = Scatter::new(&mut rows);
        let mut results = self.for_each_shard(keys, |shard| self.enter_shard(keys, shard, wish, &out));
        if let Some((_, stopped)) = self.stop_at_first(keys, wish, &mut results) {
            for (shard, _) in results {
                self.leave_shard(keys, shard, wish);
            }
            return stopped.map(Err);
        }
        Ok(Ok(self.entered(results, rows)))
    }

    /// Remove the first shard that was not entered from the results. Clocks taken in later shards are
    /// released, so that waiting keeps to the order of shards.
    fn stop_at_first(
        &self,
        keys: &Keys,
        wish: &Wish<'_>,
        results: &mut Results,
    ) -> Option<(usize, Result<Blocked, StoreError>)> {
        let first = results.iter().position(|(_, result)| !matches!(result, Ok(Ok(_))))?;
        for (shard, result) in results.drain(first + 1..).collect::<Vec<_>>() {
            if matches!(result, Ok(Ok(_))) {
                self.leave_shard(keys, shard, wish);
            }
        }
        let (shard, result) = results.pop().expect("one shard was not entered");
        let stopped = result.map(|entered| entered.err().expect("the shard was not entered"));
        Some((shard, stopped))
    }

    /// Merge the results of all shards.
    fn entered(&self, results: Results, rows: Vec<RowPtr>) -> Entered {
        let shards = self.shards.len();
        let (moves, known) = (vec![0; shards], (0..shards).map(|_| None).collect());
        let mut entered = Entered { rows, moves, misses: Vec::new(), unseen: Vec::new(), known };
        for (shard, result) in results {
            let Ok(Ok(part)) = result else { unreachable!("every shard was entered") };
            self.counters.count_staleness(&part.staleness);
            entered.moves[shard] = part.moves;
            entered.known[shard] = part.known;
            entered.misses.extend(part.misses);
            entered.unseen.extend(part.unseen);
        }
        // A failed spill is reported by the next change of a row.
        let _ = self.shrink_if_over();
        entered
    }

    /// Enter one shard, or report which row blocks. In that case no clock of this shard is taken.
    fn enter_shard(
        &self,
        keys: &Keys,
        shard: usize,
        wish: &Wish<'_>,
        out: &Scatter<'_, RowPtr>,
    ) -> Result<Result<ShardEntered, Blocked>, StoreError> {
        let cell = &self.shards[shard];
        let keys = keys.of_shard(shard);
        let mut state = cell.state.write();
        if let Some(row) = wish.older_waiter(cell) {
            return Ok(Err(Blocked { shard, row, outstanding: 0, seen: cell.gate.generation() }));
        }
        if let Some(Clocks { ticket, .. }) = &wish.clocks {
            state.advance(ticket.id());
        }
        // Read before entering: creating a row may spill a row whose address was noted just before.
        let (moves, edits) = (state.moves(), state.edits());
        let mut entering = Entering::default();
        let stopped = entering.enter(&self.core, &mut state, keys, wish, out);
        let seen = cell.gate.generation();
        let Entering { visited, misses, unseen, found, staleness } = entering;
        let Err(stop) = stopped else {
            let known = (wish.notes && state.edits() == edits).then_some(Known { edits, found });
            return Ok(Ok(ShardEntered { staleness, moves, misses, unseen, known }));
        };
        // No other call has seen these clocks taken, so none waits for them. Opening the gate would only wake
        // this call again and again.
        wish.give_back(&mut state, &keys[..visited]);
        drop(state);
        match stop {
            Stop::Failed(error) => Err(error),
            Stop::Blocked(key, outstanding) => {
                let row = (self.core.number, key.table, key.id);
                Ok(Err(Blocked { shard, row, outstanding, seen }))
            }
        }
    }

    /// Enter a shard, waiting for blocked rows until the deadline.
    fn enter_waiting(
        &self,
        keys: &Keys,
        shard: usize,
        wish: &mut Wish<'_>,
        out: &Scatter<'_, RowPtr>,
    ) -> Result<ShardEntered, StoreError> {
        let begun = Instant::now();
        let mut waited = false;
        let result = loop {
            match self.enter_shard(keys, shard, wish, out) {
                Err(error) => break Err(error),
                Ok(Ok(entered)) => break Ok(entered),
                Ok(Err(blocked)) => {
                    let row = blocked.row;
                    if wish.look_again(keys, shard, row) {
                        continue;
                    }
                    let &Clocks { ticket, call, .. } =
                        wish.clocks.as_ref().expect("only a call that takes clocks is blocked");
                    waited = true;
                    ticket.wait_for(call, row, || self.taken_before(keys, shard, wish));
                    self.shards[shard].waiting.lock().insert(ticket.id(), row);
                    if begun.elapsed() > WAIT_SLICE && self.tickets.must_give_way(ticket, row) {
                        break Err(StoreError::StepConflict {
                            ticket: ticket.id(),
                            key: self.key(row.1, row.2),
                        });
                    }
                    if begun.elapsed() >= self.wait_deadline {
                        break Err(self.timeout(row, blocked.outstanding, begun.elapsed(), ticket));
                    }
                    self.workers.idle(|| {
                        self.shards[shard].gate.wait(blocked.seen, WAIT_SLICE.min(self.wait_deadline));
                    });
                }
            }
        };
        if waited {
            let &Clocks { ticket, call, .. } =
                wish.clocks.as_ref().expect("only a call that takes clocks is blocked");
            ticket.end_wait(call);
            self.shards[shard].waiting.lock().remove(&ticket.id());
            // Younger steps that gave way may proceed.
            self.shards[shard].gate.open();
            self.tickets.gate.open();
            self.counters.clock_waits.fetch_add(1, Relaxed);
            self.counters.clock_wait_ns.fetch_add(begun.elapsed().as_nanos() as u64, Relaxed);
        }
        result
    }

    /// Rows whose clocks this call took in the shards before `shard`.
    fn taken_before(&self, keys: &Keys, shard: usize, wish: &Wish<'_>) -> Vec<Held> {
        (0..shard)
            .flat_map(|shard| keys.of_shard(shard))
            .filter(|key| wish.takes(key.position))
            .map(|key| (self.core.number, key.table, key.id))
            .collect()
    }

    pub(crate) fn timeout(
        &self,
        row: Held,
        outstanding: u32,
        waited: Duration,
        waiter: &TicketState,
    ) -> StoreError {
        let (_, table, id) = row;
        let tables = self.tables.read();
        let holders: Vec<String> = self
            .tickets
            .holders(row)
            .into_iter()
            .map(|(ticket, age)| {
                let own = if ticket == waiter.id() { " (this step itself)" } else { "" };
                format!("step {ticket}{own} for {age:.1?}")
            })
            .collect();
        StoreError::StalenessTimeout {
            key: rowmill_rows::RowKey { category: tables[table as usize].category, id },
            table: tables[table as usize].name.clone(),
            outstanding,
            bound: tables[table as usize].bound().unwrap_or(0),
            waited,
            holders: if holders.is_empty() {
                "steps that have ended meanwhile".into()
            } else {
                holders.join(", ")
            },
        }
    }

    /// Release all clocks that a call took.
    pub(crate) fn leave(&self, keys: &Keys, wish: &Wish<'_>) {
        for shard in 0..self.shards.len() {
            self.leave_shard(keys, shard, wish);
        }
    }

    /// Release the clocks that a call took in one shard.
    fn leave_shard(&self, keys: &Keys, shard: usize, wish: &Wish<'_>) {
        if wish.clocks.is_none() {
            return;
        }
        let cell = &self.shards[shard];
        wish.give_back(&mut cell.state.write(), keys.of_shard(shard));
        cell.gate.open();
        if !wish.queued {
            self.tickets.gate.open();
        }
    }
}

impl Wish<'_> {
    /// The row that an older step waits for in this shard, if this step must give way. A step that holds rows
    /// of an earlier call does not give way: the older step may wait for these rows.
    fn older_waiter(&self, cell: &ShardCell) -> Option<Held> {
        let Clocks { ticket, .. } = self.clocks.as_ref()?;
        let (oldest, row) = cell.waiting.lock().first_key_value().map(|(&ticket, &row)| (ticket, row))?;
        (oldest < ticket.id() && ticket.is_empty()).then_some(row)
    }

    /// Release the clocks taken of these rows.
    fn give_back(&self, state: &mut Shard, keys: &[Key]) {
        let Some(Clocks { ticket, .. }) = &self.clocks else { return };
        for key in keys {
            if self.takes(key.position) && self.bounds[key.table as usize].is_some() {
                state.release_clock_of(ticket.id(), key);
            }
        }
    }

    /// Whether the clock of the row at `position` must be taken.
    #[inline]
    pub(crate) fn takes(&self, position: u32) -> bool {
        self.clocks.as_ref().is_some_and(|clocks| clocks.takes(position))
    }

    /// If the ticket has meanwhile recorded the blocking row, another call of the step took its clock. Then
    /// check again which rows of the shard the ticket holds. Returns whether fewer clocks must be taken now.
    fn look_again(&mut self, keys: &Keys, shard: usize, row: Held) -> bool {
        let Some(Clocks { ticket, call: (group, _), fresh }) = &mut self.clocks else { return false };
        if !ticket.has_recorded(row) {
            return false;
        }
        let fresh = fresh.get_or_insert_with(|| vec![true; keys.positions()]);
        let mut fewer = false;
        for keys in keys.of_shard(shard).chunk_by(|one, next| one.table == next.table) {
            let ids: Vec<u64> = keys.iter().map(|key| key.id).collect();
            let Some(marks) = ticket.fresh(*group, keys[0].table, &ids) else { continue };
            for (key, _) in keys.iter().zip(marks).filter(|(_, fresh)| !fresh) {
                fewer |= std::mem::replace(&mut fresh[key.position as usize], false);
            }
        }
        fewer
    }
}

impl Clocks<'_> {
    /// Whether the clock of the row at `position` must be taken.
    #[inline]
    pub(crate) fn takes(&self, position: u32) -> bool {
        self.fresh.as_ref().is_none_or(|fresh| fresh[position as usize])
    }

    /// Whether the ticket's hold on this id belongs to a deleted row.
    #[inline]
    pub(crate) fn hold_is_void(&self, shard: &Shard, key: &Key) -> bool {
        // A running change of rows may have ended the hold: it first removes the row from the record.
        shard.may_be_void(self.ticket.id(), key) && self.ticket.has_recorded((self.call.0, key.table, key.id))
    }
}
