//! Memory in which the inputs of the next batch come together.
//!
//! A request that waits for the dense half will likely be joined with others. The thread that has looked it up copies its
//! inputs behind those of the requests before it, while they are still in the caches of its core. The thread that runs
//! batches then finds them side by side and copies nothing.

use parking_lot::Mutex;

use crate::arena::{Strip, StripPart};
use crate::plan::Array;
use crate::{Arena, ArenaError, BatchLimits, Buffer};

/// The inputs of requests for the batch that starts next.
#[derive(Debug, Default)]
pub(super) struct NextBatch(Mutex<Vec<Strip>>);

impl NextBatch {
    /// Copies of a request's inputs, beside those of the requests before it. `None` where a batch has no room for a second
    /// request like this one, or the arena has too little room for such a batch: half of it stays free for requests and
    /// replies.
    pub(super) fn add(&self, arena: &Arena, limits: BatchLimits, inputs: &[Array]) -> Option<Vec<Buffer>> {
        let mut parts = self.parts(arena, limits, inputs)?;
        for (part, input) in parts.iter_mut().zip(inputs) {
            part.copy_from_slice(&input.data);
        }
        Some(parts.into_iter().map(StripPart::share).collect())
    }

    fn parts(&self, arena: &Arena, limits: BatchLimits, inputs: &[Array]) -> Option<Vec<StripPart>> {
        let rows = *inputs.first()?.shape.first()?;
        let mut strips = self.0.lock();
        if strips.len() == inputs.len() {
            let parts = strips.iter_mut().zip(inputs).map(|(strip, input)| strip.part(input.data.len()));
            if let Some(parts) = parts.collect() {
                return Some(parts);
            }
        }
        let requests = limits.batch_requests_max.min(limits.batch_rows_max as usize / rows.max(1));
        let bytes: usize = inputs.iter().map(|input| input.data.len()).sum();
        let held = arena.held_bytes().saturating_add(bytes.saturating_mul(requests));
        if requests < 2 || held > arena.bytes() / 2 {
            return None;
        }
        let start = |input: &Array| {
            let lease = arena.lease(input.data.len() * requests)?;
            Ok::<_, ArenaError>(Strip::start(lease, input.data.len()))
        };
        let started = inputs.iter().map(start).collect::<Result<Vec<_>, _>>().ok()?;
        let (made, parts) = started.into_iter().unzip();
        *strips = made;
        Some(parts)
    }

    /// The batch has started: requests from now on are for another one.
    pub(super) fn close(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    const LIMITS: BatchLimits =
        BatchLimits { batch_requests_max: 3, batch_rows_max: 8, queue_requests_max: 8, batches_max: 1 };

    /// Two inputs of a request.
    fn inputs(rows: usize, fill: u8) -> Vec<Array> {
        let input = |width: usize, fill: u8| Array {
            dtype: DType::UInt8,
            shape: vec![rows, width],
            data: Buffer::from(&vec![fill; rows * width][..]),
        };
        vec![input(5000, fill), input(3, fill + 100)]
    }

    fn side_by_side(requests: &[Vec<Buffer>], number: usize) -> Option<Buffer> {
        Buffer::side_by_side(requests.iter().map(|request| &request[number]))
    }

    #[test]
    fn requests_lie_side_by_side_until_the_batch_is_full_or_starts() {
        let arena = Arena::new(1 << 20).unwrap();
        let next = NextBatch::default();
        let add = |rows, fill| next.add(&arena, LIMITS, &inputs(rows, fill)).unwrap();
        let first = [add(2, 1), add(1, 2), add(3, 3)];
        let whole = [0, 1].map(|number| side_by_side(&first, number).unwrap());
        assert_eq!(whole[0][9_999..15_001], [&[1][..], &[2; 5000], &[3]].concat());
        assert_eq!(whole[1][..], [&[101; 6][..], &[102; 3], &[103; 9]].concat());
        let second = [add(1, 4), add(2, 5)];
        assert!(side_by_side(&second, 0).is_some());
        assert!(side_by_side(&[first[2].clone(), second[0].clone()], 0).is_none());
        next.close();
        let third = add(1, 6);
        assert!(side_by_side(&[second[1].clone(), third.clone()], 0).is_none());
        next.close();
        drop((first, second, third, whole));
        assert_eq!(arena.held_bytes(), 0);
    }

    #[test]
    fn nothing_is_copied_where_no_second_request_fits_or_the_arena_has_little_room() {
        let arena = Arena::new(512 << 10).unwrap();
        let next = NextBatch::default();
        assert!(next.add(&arena, LIMITS, &inputs(5, 1)).is_none());
        assert!(next.add(&arena, BatchLimits { batch_requests_max: 1, ..LIMITS }, &inputs(1, 1)).is_none());
        assert!(next.add(&arena, LIMITS, &[]).is_none());
        let held = arena.lease(248 << 10).unwrap();
        assert!(next.add(&arena, LIMITS, &inputs(1, 1)).is_none());
        assert_eq!(arena.held_bytes(), 248 << 10);
        drop(held);
        drop(next.add(&arena, LIMITS, &inputs(1, 1)).unwrap());
        assert_eq!(arena.held_bytes(), 0, "a request that is given up leaves nothing behind");
        assert!(next.add(&arena, LIMITS, &inputs(1, 1)).is_some());
    }

    #[test]
    fn requests_that_wait_behind_many_batches_leave_half_of_the_arena_free() {
        let arena = Arena::new(512 << 10).unwrap();
        let next = NextBatch::default();
        let mut waiting = Vec::new();
        while let Some(copies) = next.add(&arena, LIMITS, &inputs(1, 1)) {
            waiting.push(copies);
            next.close();
        }
        assert!(waiting.len() > 5, "{}", waiting.len());
        // Each input of a batch takes whole pages.
        assert!(arena.held_bytes() <= arena.bytes() / 2 + 2 * 4096);
    }
}
