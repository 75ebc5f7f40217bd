//! Marks rows in memory that a coming step has announced.
//!
//! There is one byte per slot. Lookahead marks a row with the step that will read it. The row does not leave
//! memory before that step has used it or is over. Steps have the numbers of their tickets. The byte holds
//! the number modulo 127. Marks of past steps are cleared every 32 steps, so the remaining marks span at most
//! 95 steps and are unambiguous.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use rowmill_index::prefetch;

/// How many steps ahead a row can be marked.
pub(crate) const STEPS_MAX: u64 = 63;

/// Steps between two sweeps. Together with `STEPS_MAX` it must stay below `MODULUS`.
const SWEEP_STEPS: u64 = 32;
const MODULUS: u64 = 127;
/// Lookahead read the row, and no step has used it yet.
const UNUSED: u8 = 0x80;
const STEP: u8 = 0x7f;

/// The marks of a shard's slots. Marking needs exclusive access. Using a row needs only a shared lock.
#[derive(Debug, Default)]
pub(crate) struct Due {
    marks: Vec<AtomicU8>,
    /// The youngest step that has read rows of this shard.
    now: u64,
    /// No mark belongs to an earlier step.
    swept: u64,
    /// Whether there may be marks.
    marked: bool,
}

impl Due {
    /// Step number `step` reads rows.
    pub(crate) fn advance(&mut self, step: u64) {
        self.now = self.now.max(step);
        if self.now - self.swept < SWEEP_STEPS {
            return;
        }
        if self.marked {
            self.sweep();
        }
        self.swept = self.now;
    }

    /// Clear the marks of past steps. The loop is plain byte arithmetic, which compilers vectorize: it visits
    /// every slot, and a step may use only a few hundred between two sweeps.
    fn sweep(&mut self) {
        let first = (self.swept % MODULUS) as u8;
        let over = (self.now - self.swept).min(MODULUS) as u8;
        let mut left = 0;
        for mark in &mut self.marks {
            let mark = mark.get_mut();
            // The step of the mark, counted from `swept`; arbitrary for an empty mark.
            let step = (*mark & STEP).wrapping_sub(1);
            let since =
                if step < first { step.wrapping_add(MODULUS as u8) } else { step }.wrapping_sub(first);
            *mark &= if since < over { UNUSED } else { UNUSED | STEP };
            left |= *mark;
        }
        self.marked = left != 0;
    }

    /// Whether there may be marks. Without lookahead there are none.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.marked
    }

    /// Prefetch the mark of a slot.
    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        prefetch(self.marks.as_ptr().wrapping_add(slot as usize));
    }

    /// Number of the youngest step that has read rows of this shard.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Whether step number `step` has begun.
    pub(crate) fn is_past(&self, step: u64) -> bool {
        step <= self.now
    }

    /// Mark the row in `slot` for step number `step`, unless that step is past.
    pub(crate) fn mark(&mut self, slot: u32, step: u64) {
        let step = step.min(self.now + STEPS_MAX);
        let mark = self.marks[slot as usize].get_mut();
        // With several steps, the latest counts.
        if step >= self.now && decode(*mark, self.swept).is_none_or(|marked| marked < step) {
            *mark = *mark & UNUSED | encode(step);
            self.marked = true;
        }
    }

    /// Record that lookahead read the row in `slot`.
    pub(crate) fn mark_unused(&mut self, slot: u32) {
        *self.marks[slot as usize].get_mut() |= UNUSED;
        self.marked = true;
    }

    /// Whether a step that is not over needs the row in `slot`.
    pub(crate) fn is_held(&self, slot: u32) -> bool {
        decode(self.marks[slot as usize].load(Relaxed), self.swept).is_some_and(|step| step >= self.now)
    }

    /// The row in `slot` is used by step `now`, or by a read outside steps. Returns whether this is the first
    /// use after lookahead loaded it.
    #[inline]
    pub(crate) fn use_row(&self, slot: u32, in_step: bool) -> bool {
        let cell = &self.marks[slot as usize];
        let mark = cell.load(Relaxed);
        if mark == 0 {
            return false;
        }
        let later = in_step && decode(mark, self.swept).is_some_and(|step| step > self.now);
        let kept = if later { mark & STEP } else { 0 };
        // Only the use that clears the flag is the first. A mark cannot be set meanwhile, because that takes
        // exclusive access.
        cell.swap(kept, Relaxed) & UNUSED != 0
    }

    /// The slot no longer holds a row.
    pub(crate) fn clear(&mut self, slot: u32) {
        *self.marks[slot as usize].get_mut() = 0;
    }

    /// Clear all marks.
    pub(crate) fn clear_all(&mut self) {
        self.marks.iter_mut().for_each(|mark| *mark.get_mut() = 0);
        self.marked = false;
    }

    /// Resize to `len` slots.
    pub(crate) fn resize(&mut self, len: usize) {
        self.marks.resize_with(len, AtomicU8::default);
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.marks.capacity()
    }
}

fn encode(step: u64) -> u8 {
    (step % MODULUS) as u8 + 1
}

/// The step of a mark; it is not before `swept`.
fn decode(mark: u8, swept: u64) -> Option<u64> {
    let step = u64::from(mark & STEP).checked_sub(1)?;
    Some(swept + (step + MODULUS - swept % MODULUS) % MODULUS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(slots: usize, now: u64) -> Due {
        let mut due = Due::default();
        due.resize(slots);
        due.advance(now);
        due
    }

    #[test]
    fn a_row_is_held_until_its_step_is_over() {
        for start in [0, 1, 60, 126, 127, 1000] {
            for ahead in 1..=STEPS_MAX {
                let mut due = due(1, start);
                due.mark(0, start + ahead);
                for now in start..start + 400 {
                    due.advance(now);
                    assert_eq!(due.is_held(0), now <= start + ahead, "from {start}, {ahead} ahead, at {now}");
                }
            }
        }
    }

    #[test]
    fn a_mark_nobody_used_is_gone_however_many_steps_pass_at_once() {
        for jump in [1, 31, 32, 63, 64, 90, 126, 127, 128, 1000] {
            let mut due = due(1, 10);
            due.mark(0, 12);
            for round in 1..200 {
                due.advance(12 + round * jump);
                assert!(!due.is_held(0), "{jump} steps at once, {round} times");
            }
            let now = 12 + 199 * jump;
            due.mark(0, now + STEPS_MAX);
            assert!(due.is_held(0));
            due.advance(now + STEPS_MAX);
            assert!(due.is_held(0));
            due.use_row(0, true);
            assert!(!due.is_held(0));
        }
    }

    #[test]
    fn a_sweep_clears_what_is_over_and_nothing_else() {
        for start in 100..100 + MODULUS {
            for passed in [SWEEP_STEPS, 40, STEPS_MAX, 100, 126, 127, 500] {
                let mut due = due(STEPS_MAX as usize + 1, start);
                due.swept = start;
                (1..=STEPS_MAX).for_each(|ahead| due.mark(ahead as u32 - 1, start + ahead));
                due.mark_unused(0);
                due.mark_unused(STEPS_MAX as u32);
                let now = start + passed;
                due.advance(now);
                for ahead in 1..=STEPS_MAX {
                    let held = due.is_held(ahead as u32 - 1);
                    assert_eq!(held, start + ahead >= now, "{ahead} ahead from {start}, {passed} passed");
                }
                assert!(
                    due.use_row(0, true) && due.use_row(STEPS_MAX as u32, true),
                    "the flag for unused rows stays set"
                );
                assert!(due.is_marked());
            }
        }
    }

    #[test]
    fn slots_without_marks_are_not_swept() {
        let mut due = due(1, 10);
        due.mark(0, 11);
        due.advance(11 + SWEEP_STEPS);
        assert!(!due.is_marked());
        due.advance(1000);
        due.mark(0, 1001);
        assert!(due.is_held(0));
    }

    #[test]
    fn the_use_of_its_step_frees_a_row_and_an_earlier_use_does_not() {
        let mut due = due(1, 10);
        due.mark(0, 12);
        due.advance(11);
        assert!(!due.use_row(0, true));
        assert!(due.is_held(0), "step 12 is still to come");
        due.advance(12);
        assert!(due.is_held(0));
        due.use_row(0, true);
        assert!(!due.is_held(0));
    }

    #[test]
    fn the_later_of_two_steps_counts() {
        let mut due = due(1, 10);
        due.mark(0, 14);
        due.mark(0, 12);
        due.advance(13);
        assert!(due.is_held(0));
        due.mark(0, 16);
        due.advance(15);
        assert!(due.is_held(0));
    }

    #[test]
    fn only_the_first_use_of_a_loaded_row_is_what_it_was_brought_for() {
        let mut due = due(2, 10);
        due.mark_unused(0);
        due.mark(0, 11);
        assert!(!due.use_row(1, true), "not loaded by lookahead");
        assert!(due.use_row(0, false));
        assert!(!due.use_row(0, false));
        assert!(!due.is_held(0), "a read that belongs to no step frees it as well");
    }

    #[test]
    fn a_step_too_far_ahead_counts_as_the_farthest() {
        let mut due = due(1, 10);
        due.mark(0, 10_000);
        due.advance(10 + STEPS_MAX);
        assert!(due.is_held(0));
        due.advance(11 + STEPS_MAX);
        assert!(!due.is_held(0));
    }
}
