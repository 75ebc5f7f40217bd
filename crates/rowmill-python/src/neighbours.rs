//! Neighbour sampling on graphs in arrays or memory-mapped files.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use rowmill_kernels::{Csr, Draw, GraphError, NodeNumber, Sample, SampleKey};

use crate::buffers::{Buffer, id_bytes, position_bytes};
use crate::errors::invalid;

/// A layer of a sample: `(indptr, indices, sources)`, as int64 bytes and a number of nodes.
type Layer<'py> = (Bound<'py, PyByteArray>, Bound<'py, PyByteArray>, usize);

/// The array of neighbours, as int32 or int64.
enum Indices {
    Narrow(Buffer<i32>),
    Wide(Buffer<i64>),
}

impl Indices {
    fn read(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        if PyBuffer::<i32>::get(argument).is_ok() {
            return Buffer::read(argument, "indices", "int32").map(Self::Narrow);
        }
        Buffer::read(argument, "indices", "int32 or int64").map(Self::Wide)
    }
}

/// Check every entry of a graph.
#[pyfunction]
pub(crate) fn check_graph(
    py: Python<'_>,
    indptr: &Bound<'_, PyAny>,
    indices: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (indptr, indices) = (Buffer::read(indptr, "indptr", "int64")?, Indices::read(indices)?);
    let indptr: &[i64] = indptr.slice();
    let checked = match &indices {
        Indices::Narrow(indices) => check(py, indptr, indices.slice()),
        Indices::Wide(indices) => check(py, indptr, indices.slice()),
    };
    checked.map_err(|error| invalid(py, error.to_string()))
}

/// Sample neighbours of seeds. Returns the nodes as int64 bytes, and the layers. A fan-out of -1 takes all
/// neighbours.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "a graph, seeds, and how to draw")]
pub(crate) fn sample_neighbours<'py>(
    py: Python<'py>,
    indptr: &Bound<'py, PyAny>,
    indices: &Bound<'py, PyAny>,
    seeds: &Bound<'py, PyAny>,
    fanouts: Vec<i64>,
    replace: bool,
    seed: u64,
    batch: u64,
) -> PyResult<(Bound<'py, PyByteArray>, Vec<Layer<'py>>)> {
    let (indptr, indices) = (Buffer::read(indptr, "indptr", "int64")?, Indices::read(indices)?);
    let seeds = Buffer::read(seeds, "seeds", "int64")?;
    let (indptr, seeds): (&[i64], &[u64]) = (indptr.slice(), seeds.ids());
    let draw = |fanout| match usize::try_from(fanout) {
        Ok(count) if replace => Draw::Repeated(count),
        Ok(count) => Draw::Distinct(count),
        Err(_) => Draw::All,
    };
    let draws: Vec<Draw> = fanouts.into_iter().map(draw).collect();
    let key = SampleKey { seed, batch };
    let sampled = match &indices {
        Indices::Narrow(indices) => sample(py, indptr, indices.slice(), seeds, &draws, key),
        Indices::Wide(indices) => sample(py, indptr, indices.slice(), seeds, &draws, key),
    };
    let Sample { nodes, layers } = sampled.map_err(|error| invalid(py, error.to_string()))?;
    let layers = layers
        .iter()
        .map(|layer| (position_bytes(py, &layer.indptr), position_bytes(py, &layer.indices), layer.sources));
    Ok((id_bytes(py, &nodes), layers.collect()))
}

fn check<N: NodeNumber>(py: Python<'_>, indptr: &[i64], indices: &[N]) -> Result<(), GraphError> {
    py.detach(|| Csr::new(indptr, indices)?.check())
}

fn sample<N: NodeNumber>(
    py: Python<'_>,
    indptr: &[i64],
    indices: &[N],
    seeds: &[u64],
    draws: &[Draw],
    key: SampleKey,
) -> Result<Sample, GraphError> {
    py.detach(|| rowmill_kernels::sample_neighbours(&Csr::new(indptr, indices)?, seeds, draws, key))
}
