//! Every device and volume behaves the same.
//!
//! The suite runs over each kind of volume: a directory read through `io_uring`, one read through `pread`,
//! one on tmpfs, memory, and wrappers without faults or limits. Volumes of other crates run it in their own tests.

mod volumes;

use rowmill_testkit::conformance;

use volumes::each_volume;

#[test]
fn a_device_returns_the_written_bytes() {
    each_volume(conformance::a_device_returns_the_written_bytes);
}

#[test]
fn buffers_of_any_alignment_can_be_written() {
    each_volume(conformance::buffers_of_any_alignment_can_be_written);
}

#[test]
fn a_batch_may_be_larger_than_the_queue_and_in_any_order() {
    each_volume(conformance::a_batch_may_be_larger_than_the_queue_and_in_any_order);
}

#[test]
fn holes_and_discarded_blocks_read_as_zeros_and_nothing_else_changes() {
    each_volume(conformance::holes_and_discarded_blocks_read_as_zeros_and_nothing_else_changes);
}

#[test]
fn reading_beyond_the_end_is_an_error_of_only_that_span() {
    each_volume(conformance::reading_beyond_the_end_is_an_error_of_only_that_span);
}

#[test]
fn the_callback_of_a_read_may_read_write_and_panic() {
    each_volume(conformance::the_callback_of_a_read_may_read_write_and_panic);
}

#[test]
fn threads_read_and_write_at_the_same_time() {
    each_volume(conformance::threads_read_and_write_at_the_same_time);
}

#[test]
fn files_are_replaced_listed_and_removed_by_name() {
    each_volume(conformance::files_are_replaced_listed_and_removed_by_name);
}

#[test]
fn a_volume_has_one_holder_at_a_time() {
    each_volume(conformance::a_volume_has_one_holder_at_a_time);
}

/// Any sequence of operations gives the same result on any device as on a byte array.
#[test]
fn every_device_agrees_with_plain_bytes() {
    for seed in 0..12 {
        each_volume(|volume| conformance::a_device_agrees_with_plain_bytes(volume, seed));
    }
}
