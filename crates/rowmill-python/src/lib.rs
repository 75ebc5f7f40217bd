//! The Python binding `rowmill._core`: converts buffers, releases the GIL and maps errors. It has no logic of
//! its own.
//!
//! Arrays are contiguous buffers that are read and written in place while the GIL is released. As with
//! `NumPy`, no other thread may change them during a call.

#![allow(clippy::needless_pass_by_value, reason = "PyO3 extracts arguments into owned values")]

mod access;
mod batch;
mod buffers;
mod changes;
mod dlpack;
mod errors;
mod exchange;
mod feed;
mod folder_lock;
mod fsck;
mod interaction;
mod interrupt;
mod load;
mod neighbours;
mod node_rows;
mod queued_get;
mod remote;
mod scan;
mod serve;
mod spec;
mod split;
mod stats;
mod storage;
mod store;
mod table;
mod threads;
mod ticket;
mod versions;

use pyo3::pymodule;

/// The module `rowmill._core`.
#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::changes::{ChangedRows, Changes};
    #[pymodule_export]
    use crate::exchange::{
        bag_sort, combine, owner_unique, pack, rank_sort, recover, recover_backward, segment_unique,
        unpack_add, weights_backward,
    };
    #[pymodule_export]
    use crate::feed::FeedReader;
    #[pymodule_export]
    use crate::folder_lock::FolderLock;
    #[pymodule_export]
    use crate::fsck::fsck;
    #[pymodule_export]
    use crate::interaction::{interact, interact_backward};
    #[pymodule_export]
    use crate::load::loadtest;
    #[pymodule_export]
    use crate::neighbours::{check_graph, sample_neighbours};
    #[pymodule_export]
    use crate::node_rows::NodeRows;
    #[pymodule_export]
    use crate::queued_get::QueuedGet;
    #[pymodule_export]
    use crate::remote::{
        checkpoints, push_folder, remote_list, remote_read, remote_remove, remote_write, restore,
    };
    #[pymodule_export]
    use crate::scan::Scan;
    #[pymodule_export]
    use crate::serve::{Batch, Program, WireBytes, Worker, start_serving_logs};
    #[pymodule_export]
    use crate::spec::row_stride;
    #[pymodule_export]
    use crate::split::split_sgd;
    #[pymodule_export]
    use crate::storage::{StorageFollower, StorageNode, storage_fill, storage_status};
    #[pymodule_export]
    use crate::store::{Lookup, Store};
    #[pymodule_export]
    use crate::table::Table;
    #[pymodule_export]
    use crate::ticket::Ticket;
    #[pymodule_export]
    use crate::versions::{drop_version, prepare_rollback, rollback, settle, versions};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // Found out here, where no thread can fork: a child that was forked meanwhile would wait for it without end.
        rowmill_io::Process::current();
        rowmill_kernels::InstructionSet::best();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
