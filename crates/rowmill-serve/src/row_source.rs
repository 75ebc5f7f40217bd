//! The source of the rows of a model: a store, or a storage node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_host::{HostError, Number, Rows};
use rowmill_store::{IdBag, Pooled, Store, StoreError, Table};

use crate::{Failure, Status};

/// The rows of a model.
#[derive(Clone, Debug)]
pub enum RowSource {
    /// A store in this process.
    Store(Arc<Store>),
    /// A storage node.
    Node {
        /// Its namespace of rows.
        rows: Arc<Rows>,
        /// Longest wait for one answer; a request with an earlier deadline waits until then.
        wait: Duration,
    },
}

/// Tables of one group, one per feature of a lookup.
#[derive(Debug)]
pub(crate) enum GroupTables {
    Store { store: Arc<Store>, tables: Vec<Table> },
    Node { rows: Arc<Rows>, wait: Duration, names: Vec<String>, dim: usize },
}

impl RowSource {
    /// Rows read from a disk so far; `None` for a storage node.
    pub(crate) fn cold_reads(&self) -> Option<u64> {
        match self {
            Self::Store(store) => Some(store.stats().cold_reads),
            Self::Node { .. } => None,
        }
    }

    /// Open tables, one per feature.
    ///
    /// # Errors
    /// When a table is missing, or they are of several groups.
    pub(crate) fn open(&self, names: &[String]) -> Result<GroupTables, Failure> {
        let mixed = || Failure::invalid(format!("the tables {names:?} are of several groups"));
        match self {
            Self::Store(store) => {
                let tables = names.iter().map(|name| store.open_table(name));
                let tables = tables.collect::<Result<Vec<_>, _>>().map_err(|error| of_store(&error))?;
                let is_group = tables.windows(2).all(|pair| pair[0].group_number() == pair[1].group_number());
                if is_group {
                    Ok(GroupTables::Store { store: Arc::clone(store), tables })
                } else {
                    Err(mixed())
                }
            }
            Self::Node { rows, wait } => {
                let list = rows.tables().map_err(|error| of_node(&error))?;
                let missing = |name: &String| {
                    let reason =
                        format!("{} has no table {name:?}: fill it from the store of this model", rows.url());
                    Failure::new(Status::Failed, reason)
                };
                let entries = names.iter().map(|name| list.get(name).ok_or_else(|| missing(name)));
                let entries = entries.collect::<Result<Vec<_>, _>>()?;
                if entries.windows(2).any(|pair| pair[0].group != pair[1].group) {
                    return Err(mixed());
                }
                let dim = entries.first().map_or(0, |entry| entry.dim as usize);
                let (rows, names) = (Arc::clone(rows), names.to_vec());
                Ok(GroupTables::Node { rows, wait: *wait, names, dim })
            }
        }
    }
}

impl GroupTables {
    pub(crate) fn dim(&self) -> usize {
        match self {
            Self::Store { tables, .. } => tables.first().map_or(0, |table| table.spec().dim as usize),
            Self::Node { dim, .. } => *dim,
        }
    }

    /// Pool one bag per feature: vector `v` of feature `f` is written to `out[v * row_stride + f * dim..]`. A storage node must
    /// answer by the `deadline`.
    ///
    /// # Errors
    /// When an id is out of range, or rows cannot be read.
    pub(crate) fn pool<T: Pooled + Number>(
        &self,
        bags: Vec<IdBag<'_>>,
        out: &mut [T],
        row_stride: usize,
        deadline: Instant,
    ) -> Result<(), Failure> {
        match self {
            Self::Store { store, tables } => {
                let bags: Vec<(&Table, IdBag<'_>)> = tables.iter().zip(bags).collect();
                store.evaluate(&bags, out, row_stride, None).map_err(|error| of_store(&error))
            }
            Self::Node { rows, wait, names, dim } => {
                let bags: Vec<(&str, IdBag<'_>)> = names.iter().map(String::as_str).zip(bags).collect();
                let wait_end = Instant::now() + *wait;
                let pooled = rows.pool(&bags, *dim, out, row_stride, deadline.min(wait_end));
                pooled.map(drop).map_err(|error| match error {
                    // A node that outlasts `wait` has failed, one that outlasts the request has made it late.
                    HostError::TimedOut { .. } if deadline <= wait_end => {
                        Failure::new(Status::Late, error.to_string())
                    }
                    error => of_node(&error),
                })
            }
        }
    }
}

fn of_store(error: &StoreError) -> Failure {
    let status = match error {
        StoreError::IdRange { .. } | StoreError::Length { .. } | StoreError::Bag { .. } => Status::Invalid,
        _ => Status::Failed,
    };
    Failure::new(status, error.to_string())
}

fn of_node(error: &HostError) -> Failure {
    let status = if error.is_argument() { Status::Invalid } else { Status::Failed };
    Failure::new(status, error.to_string())
}
