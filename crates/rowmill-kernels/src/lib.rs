//! Arithmetic on rows: every computation between the store's row pointers and vectors of floats.
//!
//! Kernels do no I/O, start no threads, and know neither the index nor the cache. They take slices and row
//! pointers. Each kernel is one generic algorithm over a small vector trait (`arch`), compiled for AVX-512,
//! AVX2 and a portable instruction set. The set is chosen once, at run time.
//!
//! Invariants:
//! - Every instruction set gives the same bits, so a run can move between machines.
//! - Sums are computed in lookup order, so equal input gives equal bits.
//! - Kernels fuse a multiplication with an addition exactly where `torch` does.
// Generic algorithms get the right instructions only if they are inlined into functions that enable them.
#![allow(clippy::inline_always)]

mod accumulate;
mod arch;
mod bag_sort;
mod bf16;
mod category_unique;
mod csr;
mod finite;
mod float;
mod gather;
mod gradient_addresses;
mod initialize;
mod interaction;
mod lookups;
mod neighbours;
mod normal_quantile;
mod optimizer;
mod pool;
mod rank_sort;
mod recover;
mod rounding;
mod segment_unique;
mod split;
mod sums;
mod weights;
mod wire;

pub use accumulate::{LookupOrder, accumulate_range, accumulate_range_with};
pub use arch::InstructionSet;
pub use bag_sort::{SortedFeature, bag_sort};
pub use bf16::{narrow, narrow_with, widen, widen_with};
pub use category_unique::{CategoryWork, owner_unique, segment_unique_by_category};
pub use csr::{Csr, GraphError, NodeNumber};
pub use finite::{first_non_finite, first_non_finite_with};
pub use float::Float;
pub use gather::{gather, gather_with};
pub use gradient_addresses::GradientAddresses;
pub use initialize::{RowInitializer, initialize};
pub use interaction::{Interaction, interact, interact_backward, interact_backward_with, interact_with};
pub use lookups::{Lookups, RowPtr, SKIP};
pub use neighbours::{Draw, Sample, SampleKey, SampledLayer, sample_neighbours};
pub use optimizer::{RowUpdater, Update};
pub use pool::{RowArray, RowBags, pool, pool_array, pool_array_with, pool_rows, pool_rows_with, pool_with};
pub use rank_sort::{Owner, RankScratch, combine, rank_sort};
pub use recover::{RecoveredFeature, Recovery, recover, recover_backward, weights_backward};
pub use rounding::{Rounding, RoundingKey};
pub use segment_unique::{UniqueScratch, segment_unique};
pub use split::{join, join_with, split, split_sgd, split_sgd_with, split_with};
pub use wire::{Message, pack, unpack_add};
