//! The store compared with a hash map, on slices of a large device.
//!
//! What could break: what breaks on other volumes (`crates/rowmill-store/tests/model`), and what a slice mixes up: blocks of
//! another device, old blocks behind the end, a slice that is freed too early. The device below is memory.

#[path = "../../rowmill-store/tests/model/cases.rs"]
mod cases;
#[path = "../../rowmill-store/tests/common/mod.rs"]
mod common;
mod fixed_device;

use std::sync::Arc;

use cases::{SHAPES, check_random_calls};
use fixed_device::FixedDevice;
use rowmill_host::SlicedVolume;
use rowmill_io::MemoryVolume;

#[test]
fn random_calls_on_slices_give_the_answers_of_a_map() {
    check_random_calls(4, &SHAPES, common::thread_counts(), || {
        let device = FixedDevice::shared(&MemoryVolume::new(), 64);
        Arc::new(SlicedVolume::open(Arc::new(MemoryVolume::new()), device).unwrap())
    });
}
