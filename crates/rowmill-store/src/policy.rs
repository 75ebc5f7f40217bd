//! Which resident row to give up next.
//!
//! Three FIFO queues as in S3-FIFO (Yang et al., SOSP 2023): rows enter `small`; those used again there
//! move to `main`, the others leave and are remembered in `ghost`; a remembered row that comes back
//! enters `main` at once. Rows in `main` are given another round for each use counted. Rows that
//! lookahead brings wait in a fourth queue, `ahead`, and enter `small` when their step is over.
//!
//! Use counts live beside the key in the index (a hit touches no memory of the policy's own), so the
//! caller passes them in. Removed rows are dropped from the queues lazily: a slot whose row was deleted
//! stays queued and is handed out when its turn comes.

use std::collections::VecDeque;

/// `small` holds one slot of this many.
const SMALL_SHARE: usize = 10;
/// `ahead` holds at most one slot of this many.
const AHEAD_SHARE: usize = 2;
/// Held rows met in one search before one of them is given up.
const HELD_MAX: usize = 256;

/// What the caller knows about the row in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The slot holds no row any more.
    Vacant,
    /// The row should not leave now (a step holds it, or a coming one wants it).
    Held,
    /// The row may leave; it was used this often since it was last examined.
    Uses(u8),
}

/// The queues of one shard.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    /// With the step that wants them, in whose order announcements come as a rule.
    ahead: VecDeque<(u32, u32)>,
    /// Direct-mapped fingerprints of rows that left `small`; newer ones overwrite older ones.
    ghost: Vec<u32>,
}

impl Policy {
    /// A row with hash `hash` came into `slot`.
    pub(crate) fn admit(&mut self, slot: u32, hash: u64) {
        if self.forget(hash) { self.main.push_back(slot) } else { self.small.push_back(slot) }
    }

    /// A row with hash `hash` came into `slot` for a coming step.
    pub(crate) fn admit_ahead(&mut self, slot: u32, step: u64, hash: u64) {
        if self.forget(hash) {
            self.main.push_back(slot);
        } else {
            self.ahead.push_back((slot, step as u32));
        }
    }

    /// Step number `now` has begun: rows that earlier ones wanted compete with the others from now on.
    pub(crate) fn advance(&mut self, now: u64) {
        while let Some(&(slot, step)) = self.ahead.front()
            && (now as u32).wrapping_sub(step).cast_signed() > 0
        {
            self.ahead.pop_front();
            self.small.push_back(slot);
        }
    }

    /// Let all rows that coming steps want compete with the others.
    pub(crate) fn release_ahead(&mut self) {
        self.small.extend(self.ahead.drain(..).map(|(slot, _)| slot));
    }

    /// Whether one more row may come in for a coming step.
    pub(crate) fn may_admit_ahead(&self, slots: usize) -> bool {
        self.ahead.len() * AHEAD_SHARE < slots
    }

    /// Choose the slot to give up. `standing` reports on a slot's row, `hash` its key hash, `spare` lowers
    /// its use count by one (or to zero).
    ///
    /// The search is short even if all rows are held: after [`HELD_MAX`] of them the next is chosen
    /// (clocks live in the index, so a held row may leave memory; it is merely a pity).
    pub(crate) fn evict(
        &mut self,
        mut standing: impl FnMut(u32) -> Standing,
        mut hash: impl FnMut(u32) -> u64,
        mut spare: impl FnMut(u32, bool),
    ) -> Option<u32> {
        let slots = self.small.len() + self.main.len();
        let mut held = 0;
        // A row in `main` survives at most 3 rounds (its count is at most 3).
        for _ in 0..slots * 4 + HELD_MAX {
            let from_small = self.small.len() * SMALL_SHARE >= slots || self.main.is_empty();
            let Some(slot) = (if from_small { self.small.pop_front() } else { self.main.pop_front() }) else {
                break;
            };
            match standing(slot) {
                Standing::Held if held < HELD_MAX => {
                    held += 1;
                    self.main.push_back(slot);
                }
                Standing::Vacant | Standing::Held => return Some(slot),
                Standing::Uses(0) => {
                    if from_small {
                        self.remember(hash(slot), slots);
                    }
                    return Some(slot);
                }
                Standing::Uses(_) => {
                    spare(slot, from_small);
                    self.main.push_back(slot);
                }
            }
        }
        // The last to come is wanted last.
        self.ahead.pop_back().map(|(slot, _)| slot)
    }

    /// Keep only slots for which `keep` returns their (possibly new) number.
    pub(crate) fn rename(&mut self, keep: impl Fn(u32) -> Option<u32>) {
        for queue in [&mut self.small, &mut self.main] {
            *queue = queue.iter().filter_map(|&slot| keep(slot)).collect();
        }
        self.ahead = self.ahead.iter().filter_map(|&(slot, step)| Some((keep(slot)?, step))).collect();
    }

    /// Bytes of memory taken.
    pub(crate) fn bytes(&self) -> usize {
        let slots = self.small.capacity() + self.main.capacity() + 2 * self.ahead.capacity();
        (slots + self.ghost.capacity()) * size_of::<u32>()
    }

    fn remember(&mut self, hash: u64, slots: usize) {
        let wanted = slots.next_power_of_two();
        if self.ghost.len() != wanted {
            self.ghost = vec![0; wanted];
        }
        let index = hash as usize & (self.ghost.len() - 1);
        self.ghost[index] = fingerprint(hash);
    }

    fn forget(&mut self, hash: u64) -> bool {
        if self.ghost.is_empty() {
            return false;
        }
        let index = hash as usize & (self.ghost.len() - 1);
        let known = self.ghost[index] == fingerprint(hash);
        if known {
            self.ghost[index] = 0;
        }
        known
    }
}

/// Zero means "nothing remembered".
fn fingerprint(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// A cache of `capacity` keys driven by the policy; returns the hit rate of `trace`.
    fn hit_rate(capacity: usize, trace: impl Iterator<Item = u64>) -> f64 {
        let mut policy = Policy::default();
        let mut slot_of: HashMap<u64, u32> = HashMap::new();
        let mut key_of: Vec<u64> = Vec::new();
        let mut uses: Vec<u8> = Vec::new();
        let mix = |key: u64| {
            key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        };
        let (mut hits, mut total) = (0_u32, 0_u32);
        for key in trace {
            total += 1;
            if let Some(&slot) = slot_of.get(&key) {
                hits += 1;
                uses[slot as usize] = (uses[slot as usize] + 1).min(3);
                continue;
            }
            let slot = if key_of.len() < capacity {
                key_of.push(key);
                uses.push(0);
                key_of.len() as u32 - 1
            } else {
                let uses_cell = std::cell::RefCell::new(&mut uses);
                let slot = policy
                    .evict(
                        |slot| Standing::Uses(uses_cell.borrow()[slot as usize]),
                        |slot| mix(key_of[slot as usize]),
                        |slot, all| {
                            let count = &mut uses_cell.borrow_mut()[slot as usize];
                            *count = if all { 0 } else { *count - 1 };
                        },
                    )
                    .unwrap();
                slot_of.remove(&key_of[slot as usize]);
                key_of[slot as usize] = key;
                uses[slot as usize] = 0;
                slot
            };
            slot_of.insert(key, slot);
            policy.admit(slot, mix(key));
        }
        f64::from(hits) / f64::from(total)
    }

    #[test]
    fn a_scan_does_not_flush_the_working_set() {
        // 100 hot keys used over and over with a long scan of cold keys between the uses.
        let trace = (0..200_000_u64).map(|i| if i % 2 == 0 { (i / 2) % 100 } else { 1_000_000 + i });
        let rate = hit_rate(300, trace);
        assert!(rate > 0.48, "hot half should nearly always hit, got {rate}");
    }

    #[test]
    fn held_rows_stay_while_others_can_go_and_leave_when_all_are_held() {
        let mut policy = Policy::default();
        for slot in 0..4 {
            policy.admit(slot, u64::from(slot) << 40);
        }
        let gone = policy.evict(
            |slot| if slot == 2 { Standing::Uses(0) } else { Standing::Held },
            u64::from,
            |_, _| {},
        );
        assert_eq!(gone, Some(2));
        assert!(
            policy.evict(|_| Standing::Held, u64::from, |_, _| {}).is_some(),
            "a full house must still yield"
        );
    }

    #[test]
    fn rows_leave_once_the_step_that_wanted_them_is_over() {
        let mut policy = Policy::default();
        for slot in 0..100 {
            policy.admit_ahead(slot, u64::from(slot / 50) + 7, u64::from(slot) << 40);
        }
        policy.admit(100, 100 << 40);
        let mut evict = |now| {
            policy.advance(now);
            policy.evict(|_| Standing::Uses(0), u64::from, |_, _| {})
        };
        assert_eq!(evict(7), Some(100), "step 7 still wants the others");
        assert_eq!((0..50).map(|_| evict(8).unwrap()).max(), Some(49));
        assert_eq!((0..50).map(|_| evict(9).unwrap()).min(), Some(50));
    }

    #[test]
    fn a_search_among_held_rows_is_short() {
        let mut policy = Policy::default();
        for slot in 0..100_000 {
            policy.admit(slot, u64::from(slot) << 40);
        }
        let mut searched = 0;
        let gone = policy.evict(
            |_| {
                searched += 1;
                Standing::Held
            },
            u64::from,
            |_, _| {},
        );
        assert!(gone.is_some() && searched <= HELD_MAX + 1, "{searched} slots looked at");
    }

    #[test]
    fn a_part_of_the_slots_may_be_filled_ahead() {
        let mut policy = Policy::default();
        let admitted = (0..100)
            .take_while(|&slot| {
                let may = policy.may_admit_ahead(100);
                policy.admit_ahead(slot, 1, u64::from(slot) << 40);
                may
            })
            .count();
        assert_eq!(admitted, 50);
    }

    #[test]
    fn an_empty_policy_has_nothing_to_give() {
        assert_eq!(Policy::default().evict(|_| Standing::Uses(0), u64::from, |_, _| {}), None);
    }
}
