//! Plans the device reads for a batch of spans: neighbouring spans are merged into one read.

use crate::{BLOCK_BYTES, Span};

/// Longest merged read, in bytes. The device does about 107 k reads/s of 4 KiB and 85 k/s of 8 KiB, so
/// merging neighbours always wins. Beyond 64 KiB, bandwidth limits the device and merging gains nothing.
pub(crate) const MERGED_BYTES_MAX: usize = 64 * 1024;

/// Most spans of one plan: 128 KiB of memory, and a sixth of a second of random reads. A larger batch is read
/// in rounds. The device is idle for about 1% of a round, at its end.
pub(crate) const SPANS_MAX: usize = 16 * 1024;

/// Low bits of an entry, which hold the span's position in the batch. The high bits hold its block number.
const POSITION_BITS: u32 = SPANS_MAX.ilog2();

/// One device read and the spans it serves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// Index of its first span in the plan's order, and number of its spans.
    first: u32,
    count: u32,
}

/// Spans sorted by offset and divided into [`Run`]s.
///
/// Overlapping, equal and adjacent spans share a run of at most [`MERGED_BYTES_MAX`]. A longer span is a run
/// of its own. The plan keeps its memory between batches.
#[derive(Debug, Default)]
pub(crate) struct ReadPlan {
    /// Block number and position of every span in one word. Sorting words takes 25 to 60 ns per span; sorting
    /// positions by the block they refer to takes 100 to 140 ns.
    order: Vec<u64>,
    cursor: usize,
}

impl ReadPlan {
    /// Most memory of a plan, in bytes.
    pub(crate) const BYTES_MAX: usize = SPANS_MAX * size_of::<u64>();

    /// Replace the batch.
    pub(crate) fn start(&mut self, spans: &[Span]) {
        assert!(spans.len() <= SPANS_MAX, "{} spans in one plan", spans.len());
        self.order.clear();
        self.order.reserve_exact(spans.len());
        self.order.extend(spans.iter().enumerate().map(|(position, span)| {
            span.assert_whole_blocks();
            (span.offset / BLOCK_BYTES as u64) << POSITION_BITS | position as u64
        }));
        self.order.sort_unstable();
        self.cursor = 0;
    }

    /// The next read, or `None` at the end of the batch.
    pub(crate) fn next_run(&mut self, spans: &[Span]) -> Option<Run> {
        let first = self.cursor;
        let start = spans[position(*self.order.get(first)?)];
        let mut end = start.end();
        let mut after = first + 1;
        while let Some(entry) = self.order.get(after) {
            let span = spans[position(*entry)];
            let merged_end = end.max(span.end());
            if span.offset > end || merged_end - start.offset > MERGED_BYTES_MAX as u64 {
                break;
            }
            end = merged_end;
            after += 1;
        }
        self.cursor = after;
        Some(Run {
            offset: start.offset,
            bytes: (end - start.offset) as usize,
            first: first as u32,
            count: (after - first) as u32,
        })
    }

    /// Positions of the spans that `run` serves, in the caller's batch.
    pub(crate) fn positions(&self, run: Run) -> impl Iterator<Item = usize> {
        let entries = &self.order[run.first as usize..(run.first + run.count) as usize];
        entries.iter().map(|entry| position(*entry))
    }

    /// Position of the single span in a run longer than [`MERGED_BYTES_MAX`].
    pub(crate) fn wide_position(&self, run: Run) -> usize {
        debug_assert!(run.bytes > MERGED_BYTES_MAX && run.count == 1);
        position(self.order[run.first as usize])
    }
}

fn position(entry: u64) -> usize {
    (entry & ((1 << POSITION_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(block: u64, blocks: usize) -> Span {
        Span { offset: block * BLOCK_BYTES as u64, bytes: blocks * BLOCK_BYTES }
    }

    /// (first block, blocks, positions) of every run.
    fn runs(spans: &[Span]) -> Vec<(u64, usize, Vec<usize>)> {
        let mut plan = ReadPlan::default();
        plan.start(spans);
        let mut found = Vec::new();
        while let Some(run) = plan.next_run(spans) {
            let mut positions: Vec<usize> = plan.positions(run).collect();
            positions.sort_unstable();
            found.push((run.offset / BLOCK_BYTES as u64, run.bytes / BLOCK_BYTES, positions));
        }
        found
    }

    #[test]
    fn adjacent_spans_in_any_order_become_one_read() {
        let spans = [span(7, 1), span(3, 1), span(6, 1), span(9, 2), span(3, 1)];
        assert_eq!(runs(&spans), [(3, 1, vec![1, 4]), (6, 2, vec![0, 2]), (9, 2, vec![3])]);
    }

    #[test]
    fn a_read_does_not_exceed_the_limit() {
        let spans: Vec<Span> = (0..20).map(|block| span(block, 1)).collect();
        assert_eq!(runs(&spans), [(0, 16, (0..16).collect()), (16, 4, (16..20).collect())]);
    }

    #[test]
    fn a_wide_span_is_read_alone() {
        let spans = [span(0, 1), span(1, 40), span(2, 1), span(41, 1)];
        assert_eq!(runs(&spans), [(0, 1, vec![0]), (1, 40, vec![1]), (2, 1, vec![2]), (41, 1, vec![3])],);
    }

    #[test]
    #[should_panic(expected = "whole blocks")]
    fn an_unaligned_span_panics() {
        ReadPlan::default().start(&[Span { offset: 1, bytes: BLOCK_BYTES }]);
    }
}
