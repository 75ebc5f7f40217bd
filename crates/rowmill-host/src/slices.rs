//! Which slices of a device are free.
//!
//! A slice is freed when the last reader and the last device that use it have let go. It is given out again only after a
//! slice table without it is durable: until then, a crash would give it back to its last owner.

use std::collections::BTreeSet;
use std::sync::Arc;

use rowmill_sync::unranked::Mutex;

#[derive(Debug, Default)]
struct State {
    free: BTreeSet<u32>,
    /// Freed since the slice table was saved.
    freed: Vec<u32>,
}

/// The free slices of a device.
#[derive(Debug)]
pub(crate) struct Slices {
    state: Mutex<State>,
}

/// A slice in use. It is freed when this is dropped.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) number: u32,
    slices: Arc<Slices>,
}

impl Slices {
    /// Slices 0 to `count`, all of them free.
    pub(crate) fn new(count: u32) -> Arc<Slices> {
        Arc::new(Slices { state: Mutex::new(State { free: (0..count).collect(), freed: Vec::new() }) })
    }

    /// The slice of a saved table; `None` if it is in use already, or beyond the end.
    pub(crate) fn claim(self: &Arc<Slices>, number: u32) -> Option<Slice> {
        let is_free = self.state.lock().free.remove(&number);
        is_free.then(|| Slice { number, slices: Arc::clone(self) })
    }

    /// A free slice.
    pub(crate) fn take(self: &Arc<Slices>) -> Option<Slice> {
        let number = self.state.lock().free.pop_first()?;
        Some(Slice { number, slices: Arc::clone(self) })
    }

    /// Slices that were freed so far, and are not given out yet. [`Slices::reuse`] them once a table without them is
    /// durable.
    pub(crate) fn freed(&self) -> Vec<u32> {
        self.state.lock().freed.clone()
    }

    /// Give these freed slices out again.
    pub(crate) fn reuse(&self, numbers: &[u32]) {
        let mut state = self.state.lock();
        let numbers: BTreeSet<u32> = numbers.iter().copied().collect();
        state.freed.retain(|number| !numbers.contains(number));
        state.free.extend(numbers);
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        self.slices.state.lock().freed.push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_given_out_again_only_after_it_was_released() {
        let slices = Slices::new(2);
        let first = slices.claim(1).unwrap();
        assert!(slices.claim(1).is_none() && slices.claim(2).is_none());
        assert_eq!(slices.take().unwrap().number, 0);
        assert_eq!(slices.freed(), [0]);
        assert!(slices.take().is_none(), "0 is freed, but not durably");
        let freed = slices.freed();
        drop(first);
        slices.reuse(&freed);
        assert_eq!(slices.freed(), [1]);
        assert_eq!(slices.take().unwrap().number, 0);
    }
}
