//! Which device reads serve a batch of spans: neighbours are read as one.

use crate::Span;

/// Longest read that spans are merged into. 4 KiB reads run at about 107 k/s and 8 KiB ones at 85 k/s, so
/// merging neighbours always wins; beyond 64 KiB the device is limited by bandwidth and nothing is gained.
pub(crate) const MERGED_BYTES_MAX: usize = 64 * 1024;

/// One device read and the spans it serves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// First of its spans in the plan's order, and how many there are.
    first: u32,
    count: u32,
}

/// Spans in the order of their offsets, cut into [`Run`]s one after the other.
///
/// Overlapping, equal and adjacent spans share a run as long as it stays within [`MERGED_BYTES_MAX`]; a
/// span longer than that is a run of its own. The plan keeps its memory between batches.
#[derive(Debug, Default)]
pub(crate) struct ReadPlan {
    order: Vec<u32>,
    cursor: usize,
}

impl ReadPlan {
    /// Entries of the order kept from one batch to the next.
    const KEPT_ENTRIES_MAX: usize = 16 * 1024;

    /// Memory kept between batches.
    pub(crate) const BYTES_MAX: usize = Self::KEPT_ENTRIES_MAX * size_of::<u32>();

    /// Start over with another batch.
    pub(crate) fn start(&mut self, spans: &[Span]) {
        assert!(u32::try_from(spans.len()).is_ok(), "a batch has fewer than 2^32 spans");
        for span in spans {
            span.assert_whole_blocks();
        }
        self.order.clear();
        self.order.shrink_to(Self::KEPT_ENTRIES_MAX);
        self.order.extend(0..spans.len() as u32);
        self.cursor = 0;
        if !spans.is_sorted_by_key(|span| span.offset) {
            self.order.sort_unstable_by_key(|position| spans[*position as usize].offset);
        }
    }

    /// The next read, if any is left.
    pub(crate) fn next_run(&mut self, spans: &[Span]) -> Option<Run> {
        let first = self.cursor;
        let start = spans[*self.order.get(first)? as usize];
        let mut end = start.end();
        let mut after = first + 1;
        while let Some(position) = self.order.get(after) {
            let span = spans[*position as usize];
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

    /// Positions, in the caller's batch, of the spans that `run` serves.
    pub(crate) fn positions(&self, run: Run) -> &[u32] {
        &self.order[run.first as usize..(run.first + run.count) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK_BYTES;

    fn span(block: u64, blocks: usize) -> Span {
        Span { offset: block * BLOCK_BYTES as u64, bytes: blocks * BLOCK_BYTES }
    }

    /// (first block, blocks, positions) of every run.
    fn runs(spans: &[Span]) -> Vec<(u64, usize, Vec<u32>)> {
        let mut plan = ReadPlan::default();
        plan.start(spans);
        let mut found = Vec::new();
        while let Some(run) = plan.next_run(spans) {
            let mut positions = plan.positions(run).to_vec();
            positions.sort_unstable();
            found.push((run.offset / BLOCK_BYTES as u64, run.bytes / BLOCK_BYTES, positions));
        }
        found
    }

    #[test]
    fn neighbours_in_any_order_become_one_read() {
        let spans = [span(7, 1), span(3, 1), span(6, 1), span(9, 2), span(3, 1)];
        assert_eq!(runs(&spans), [(3, 1, vec![1, 4]), (6, 2, vec![0, 2]), (9, 2, vec![3])]);
    }

    #[test]
    fn a_read_stays_within_the_bound() {
        let spans: Vec<Span> = (0..20).map(|block| span(block, 1)).collect();
        assert_eq!(runs(&spans), [(0, 16, (0..16).collect()), (16, 4, (16..20).collect())]);
    }

    #[test]
    fn a_wide_span_is_a_read_of_its_own() {
        let spans = [span(0, 1), span(1, 40), span(2, 1), span(41, 1)];
        assert_eq!(runs(&spans), [(0, 1, vec![0]), (1, 40, vec![1]), (2, 1, vec![2]), (41, 1, vec![3])],);
    }

    #[test]
    #[should_panic(expected = "whole blocks")]
    fn a_crooked_span_is_the_callers_mistake() {
        ReadPlan::default().start(&[Span { offset: 1, bytes: BLOCK_BYTES }]);
    }
}
