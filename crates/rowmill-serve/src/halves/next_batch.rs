//! Memory in which the inputs of the next batch come together.
//!
//! A request that waits for the dense half will likely be joined with others. The thread that has looked it up copies its inputs
//! behind those of the requests before it, while they are still in the caches of its core: the thread that runs batches finds
//! them side by side and copies nothing.

use parking_lot::Mutex;

use crate::arena::{Strip, StripPart};
use crate::plan::Array;
use crate::{Arena, BatchLimits, Buffer};

/// The part of the arena that the inputs of all batches may take, full or not: the rest is for requests and replies.
const ARENA_PART: usize = 4;

/// The inputs of requests for the batch that starts next.
#[derive(Debug, Default)]
pub(super) struct NextBatch(Mutex<Vec<Strip>>);

impl NextBatch {
    /// Copies of a request's inputs, beside those of the requests before it. `None` where a batch of such requests would need
    /// too much of the arena, or have no room for a second one.
    pub(super) fn add(&self, arena: &Arena, limits: BatchLimits, inputs: &[Array]) -> Option<Vec<Buffer>> {
        let mut parts = self.parts(arena, limits, inputs)?;
        for (part, input) in parts.iter_mut().zip(inputs) {
            part.copy_from_slice(&input.data);
        }
        Some(parts.into_iter().map(StripPart::share).collect())
    }

    fn parts(&self, arena: &Arena, limits: BatchLimits, inputs: &[Array]) -> Option<Vec<StripPart>> {
        let mut strips = self.0.lock();
        let fits = |(strip, input): (&Strip, &Array)| input.data.len() <= strip.left();
        let has_room = !strips.is_empty() && strips.iter().zip(inputs).all(fits);
        if !has_room {
            let rows = *inputs.first()?.shape.first()?;
            let requests = limits.batch_requests_max.min(limits.batch_rows_max as usize / rows.max(1));
            let bytes: usize = inputs.iter().map(|input| input.data.len()).sum();
            // Those that run, and the next one.
            let batches = limits.batches_max.saturating_add(1);
            if requests < 2 || bytes.saturating_mul(requests) > arena.bytes() / ARENA_PART / batches {
                return None;
            }
            let strip = |input: &Array| arena.lease(input.data.len() * requests).map(Strip::new);
            *strips = inputs.iter().map(strip).collect::<Result<_, _>>().ok()?;
        }
        Some(strips.iter_mut().zip(inputs).map(|(strip, input)| strip.part(input.data.len())).collect())
    }

    /// The batch has started: requests from now on are for another one.
    pub(super) fn close(&self) {
        // The memory may return here, which needs no lock.
        let strips = std::mem::take(&mut *self.0.lock());
        drop(strips);
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
        let small = Arena::new(100 << 10).unwrap();
        assert!(next.add(&small, LIMITS, &inputs(1, 1)).is_none(), "two would take more than a quarter");
        let held = arena.lease(500 << 10).unwrap();
        assert!(next.add(&arena, LIMITS, &inputs(1, 1)).is_none());
        assert_eq!(arena.held_bytes(), 500 << 10);
        drop(held);
        assert!(next.add(&arena, LIMITS, &inputs(1, 1)).is_some());
    }
}
