//! Tests of the checker, with histories of one row that can be judged by hand: `(beginning, end, effect)`.

use crate::checker::{Kind, Violation, check};
use crate::operation::{Content, DIM, Effect, Operation, Step, Thread};
use Effect::{Add, Contains, Delete, Fetch, GaveWay, Get, Put, Release, Saved};

const NOTHING: Content = Content { put: 0, sums: [0; 8] };

/// The operations are assigned to writers in turn.
fn violation(bound: Option<u8>, history: &[(u64, u64, Effect)]) -> Option<Violation> {
    let operation = |(number, &(begun, ended, effect))| Operation {
        thread: Thread::Writer(number),
        row: 0,
        begun,
        ended,
        effect,
    };
    let operations: Vec<Operation> = (0..).zip(history).map(operation).collect();
    check(&operations, bound).err()
}

fn judge(bound: Option<u8>, history: &[(u64, u64, Effect)]) -> Option<Kind> {
    violation(bound, history).map(|violation| violation.kind)
}

fn assert_good(bound: Option<u8>, history: &[(u64, u64, Effect)]) {
    assert_eq!(judge(bound, history), None, "{history:?}");
}

fn assert_bad(history: &[(u64, u64, Effect)]) {
    assert_eq!(judge(None, history), Some(Kind::NotLinearizable), "{history:?}");
}

fn put(put: u32) -> Effect {
    Put { put, step: None }
}

fn add(writer: u8, number: u32) -> Effect {
    Add { writer, number, step: None }
}

/// Steps of different writers.
fn step(writer: usize) -> Step {
    Step::of(writer, false)
}

/// A training read of one of these steps, which saw this content.
fn fetch(writer: usize, seen: Content) -> Effect {
    Fetch { seen, step: step(writer) }
}

fn release(writer: usize) -> Effect {
    Release(step(writer))
}

/// The row after a put and additions `(writer, number)`.
fn row(put: u32, additions: &[(usize, u32)]) -> Content {
    additions.iter().fold(Content::of_put(put), |row, &(writer, number)| row.plus(writer, number))
}

#[test]
fn overlapping_operations_may_have_any_order() {
    for seen in [1, 2] {
        assert_good(None, &[(0, 9, put(1)), (1, 8, put(2)), (10, 11, Get(row(seen, &[])))]);
    }
    for seen in [NOTHING, row(1, &[])] {
        assert_good(None, &[(0, 5, put(1)), (1, 2, Get(seen))]);
        assert_good(None, &[(0, 5, put(1)), (1, 2, Get(seen)), (3, 4, Get(row(1, &[])))]);
    }
    assert_good(None, &[(0, 9, add(0, 1)), (1, 8, add(1, 1)), (2, 7, Get(row(0, &[(1, 1)])))]);
}

#[test]
fn a_read_of_an_overwritten_value_is_flagged() {
    assert_bad(&[(0, 1, put(1)), (2, 3, put(2)), (4, 5, Get(row(1, &[])))]);
    // The first read has shown that the new value exists.
    assert_bad(&[
        (0, 1, put(1)),
        (2, 9, put(2)),
        (3, 4, Get(row(2, &[]))),
        (5, 6, Get(row(1, &[]))),
        (10, 11, Get(row(2, &[]))),
    ]);
    // Two readers see two puts in different orders.
    assert_bad(&[(0, 9, put(1)), (1, 8, put(2)), (10, 11, Get(row(1, &[]))), (12, 13, Get(row(2, &[])))]);
}

#[test]
fn a_read_of_a_value_not_yet_written_is_flagged() {
    assert_bad(&[(0, 1, Get(row(1, &[]))), (2, 3, put(1))]);
    assert_bad(&[(0, 1, Get(row(7, &[])))]);
}

#[test]
fn a_lost_addition_is_flagged() {
    let both = row(1, &[(0, 1), (1, 1)]);
    let history = |seen| [(0, 1, put(1)), (2, 6, add(0, 1)), (3, 5, add(1, 1)), (7, 8, Get(seen))];
    assert_good(None, &history(both));
    assert_bad(&history(row(1, &[(1, 1)])));
    assert_bad(&history(row(1, &[(0, 1), (0, 1), (1, 1)])));
    // Of one writer the first addition was lost, the second was not.
    assert_good(
        None,
        &[(0, 1, add(0, 1)), (2, 3, put(1)), (4, 5, add(0, 2)), (6, 7, Get(row(1, &[(0, 2)])))],
    );
    assert_bad(&[(0, 1, add(0, 1)), (2, 3, add(0, 2)), (4, 5, Get(row(0, &[(0, 2)])))]);
}

#[test]
fn a_deleted_row_does_not_exist_and_only_one_delete_finds_it() {
    assert_good(None, &[(0, 1, put(1)), (2, 5, Delete(true)), (3, 6, Delete(false)), (7, 8, Get(NOTHING))]);
    assert_bad(&[(0, 1, put(1)), (2, 5, Delete(true)), (3, 6, Delete(true))]);
    assert_bad(&[(0, 1, put(1)), (2, 3, Delete(true)), (4, 5, Get(row(1, &[])))]);
    assert_bad(&[(0, 1, put(1)), (2, 3, Delete(true)), (4, 5, Contains(true))]);
    assert_good(None, &[(0, 1, fetch(0, NOTHING)), (2, 3, Contains(true))]);
    // A training read creates the row, which may be deleted before it is read.
    assert_good(None, &[(0, 1, put(1)), (2, 5, fetch(0, NOTHING)), (3, 4, Delete(true))]);
    assert_bad(&[(0, 1, put(1)), (2, 3, fetch(0, NOTHING)), (4, 5, Delete(true))]);
    // A training read that waits for a clock may create the row several times.
    for waits in [fetch(0, NOTHING), GaveWay] {
        let history = [(0, 9, waits), (1, 2, Delete(true)), (3, 4, Contains(true)), (5, 6, Delete(true))];
        assert_good(Some(0), &history);
        assert_bad(&history);
    }
}

#[test]
fn clocks_of_a_deleted_row_do_not_pass_to_a_new_one() {
    let (first, second) = ((0, 1, fetch(0, NOTHING)), (4, 5, fetch(1, NOTHING)));
    let deleted = (2, 3, Delete(true));
    for end in [release(0), Put { put: 1, step: Some(step(0)) }] {
        let seen = if end == release(0) { NOTHING } else { row(1, &[]) };
        let early = [first, deleted, second, (6, 7, end), (8, 9, fetch(2, seen)), (10, 11, release(1))];
        assert_eq!(judge(Some(0), &early), Some(Kind::BeyondBound));
        assert_good(Some(1), &early);
        let late = [first, deleted, second, (6, 7, end), (8, 9, release(1)), (10, 11, fetch(2, seen))];
        assert_good(Some(0), &late);
    }
    // A step that reads the new row takes its clock like any other step, and then holds it.
    let again = [first, deleted, second, (6, 7, fetch(0, NOTHING))];
    assert_eq!(judge(Some(0), &again), Some(Kind::BeyondBound));
    let held = [first, (2, 3, fetch(0, NOTHING)), (4, 5, release(0)), (6, 7, fetch(1, NOTHING))];
    assert_good(Some(0), &held);
}

#[test]
fn a_checkpoint_holds_a_state_that_the_row_had() {
    let saved = |put, exists| Saved { content: row(put, &[]), exists };
    let history = |seen| [(0, 1, put(1)), (2, 7, seen), (3, 4, put(2)), (5, 6, put(3))];
    for number in 1..=3 {
        assert_good(None, &history(saved(number, true)));
    }
    assert_bad(&history(saved(0, false)));
    assert_bad(&history(saved(2, false)));
    assert_bad(&[(0, 1, put(1)), (2, 3, put(2)), (4, 5, saved(1, true))]);
}

#[test]
fn more_outstanding_gets_than_the_bound_allows_are_flagged() {
    let change = |number| Add { writer: 0, number, step: Some(step(number as usize - 1)) };
    let first = (0, 1, fetch(0, NOTHING));
    let history = [first, (2, 3, fetch(1, NOTHING)), (4, 5, change(1)), (6, 7, change(2))];
    assert_eq!(judge(Some(0), &history), Some(Kind::BeyondBound));
    assert_good(Some(1), &history);
    let three =
        [first, (2, 3, fetch(1, NOTHING)), (4, 5, fetch(2, NOTHING)), (6, 7, change(1)), (8, 9, release(2))];
    assert_eq!(judge(Some(1), &three), Some(Kind::BeyondBound));
    assert_good(Some(2), &three);
    // The second get may have waited for the change, if it saw the change.
    let waited = |seen| [first, (2, 9, fetch(1, seen)), (3, 8, change(1)), (10, 11, release(1))];
    assert_good(Some(0), &waited(row(0, &[(0, 1)])));
    assert_eq!(judge(Some(0), &waited(NOTHING)), Some(Kind::BeyondBound));
    assert_good(Some(1), &waited(NOTHING));
    // A step that changes nothing releases its clock, too; changes without a step release none.
    assert_good(Some(0), &[first, (2, 3, release(0)), (4, 5, fetch(1, NOTHING))]);
    let unreleased = [first, (2, 3, add(0, 1)), (4, 5, fetch(1, row(0, &[(0, 1)])))];
    assert_eq!(judge(Some(0), &unreleased), Some(Kind::BeyondBound));
}

#[test]
fn a_report_names_the_thread_of_every_operation() {
    let history = [(0, 1, put(1)), (2, 9, put(2)), (3, 8, add(2, 1)), (4, 5, Get(row(7, &[])))];
    let report = violation(None, &history).unwrap().to_string();
    let lines: Vec<&str> = report.lines().collect();
    assert!(lines[0].starts_with("NotLinearizable: Writer(3) on row 0 from 4 to 5: Get("), "{report}");
    let under_way: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("  under way: ")).collect();
    assert_eq!(under_way.len(), 3, "{report}");
    for thread in ["Writer(1) on row 0 from 2", "Writer(2) on row 0 from 3", "Writer(3) on row 0 from 4"] {
        assert!(under_way.iter().any(|line| line.starts_with(thread)), "{thread} in {report}");
    }
}

#[test]
fn weights_of_mixed_versions_are_detected() {
    let content = row(12, &[(0, 3), (3, 7), (3, 8)]);
    assert_eq!(Content::from_weights(&content.to_weights()), content);
    for column in 0..DIM {
        let mut weights = content.to_weights();
        weights[column] += 0.5;
        assert_eq!(Content::from_weights(&weights), Content::TORN);
        let mut torn = content.to_weights();
        torn[column..].copy_from_slice(&row(13, &[]).to_weights()[column..]);
        let is_torn = column > 0 && torn != row(13, &[]).to_weights();
        assert_eq!(Content::from_weights(&torn) == Content::TORN, is_torn, "column {column}");
    }
    assert_bad(&[(0, 1, Get(Content::TORN))]);
}
