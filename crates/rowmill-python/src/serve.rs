//! Serving workers: the halves of models that threads of Python run, and the process around them.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use rowmill_serve::{
    Address, Arena, BatchLimits, Bundle, DType, Failure, RowSource, Status, Task, Tensor, TensorName,
    WorkerOptions,
};
use rowmill_server::{Exposure, start_logs};

use crate::dlpack;
use crate::errors::{exception, invalid};
use crate::node_rows::NodeRows;
use crate::store::Store;

/// A tensor of Python: its bytes, the name of its type, and its shape.
type Given<'py> = (Bound<'py, PyAny>, String, Vec<u64>);
/// The same on its way to Python.
type Handed = (WireBytes, &'static str, Vec<u64>);

pub(crate) fn raised(py: Python<'_>, failure: &Failure) -> PyErr {
    let class = match failure.status {
        Status::Invalid => "InvalidInput",
        _ => "ServingError",
    };
    exception(py, class, failure.text.clone())
}

fn handed(tensors: Vec<Tensor>) -> Vec<Handed> {
    let hand = |tensor: Tensor| (WireBytes(tensor.data), tensor.dtype.name(), tensor.shape.into_vec());
    tensors.into_iter().map(hand).collect()
}

/// Copy tensors of Python into the arena, numbered in their order.
fn taken(py: Python<'_>, arena: &Arena, given: &[Given<'_>]) -> PyResult<Vec<Tensor>> {
    (0..)
        .zip(given)
        .map(|(number, (bytes, dtype, shape))| {
            let bytes = PyBuffer::<u8>::get(bytes)?;
            let wrong = |what: &str| invalid(py, format!("tensor {number}: {what}"));
            let dtype = DType::from_name(dtype).ok_or_else(|| wrong(&format!("unknown dtype {dtype:?}")))?;
            let mut lease = arena.lease(bytes.len_bytes()).map_err(|error| raised(py, &error.into()))?;
            bytes.copy_to_slice(py, &mut lease)?;
            let size = shape.iter().try_fold(dtype.bytes() as u64, |bytes, &size| bytes.checked_mul(size));
            if size != Some(lease.len() as u64) || shape.len() > 8 {
                return Err(wrong(&format!("{} bytes do not have the shape {shape:?}", lease.len())));
            }
            Ok(Tensor::new(TensorName::Number(number), dtype, shape, lease.share()))
        })
        .collect()
}

/// Read-only bytes of a tensor, used in place.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct WireBytes(rowmill_serve::Buffer);

#[pymethods]
impl WireBytes {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes: &[u8] = &slf.get().0;
        let start = bytes.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: `view` is Python's to fill. The view holds a reference to `slf`, whose buffer stays in place.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes.len() as ffi::Py_ssize_t, 1, flags)
        };
        if filled == -1 { Err(PyBufferError::new_err("the bytes of a tensor are read-only")) } else { Ok(()) }
    }
}

/// A half of a model that a thread of Python runs.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct Program {
    program: rowmill_serve::Program,
    arena: Arena,
}

#[pymethods]
impl Program {
    /// Wait for requests that run together, as the thread of this number.
    fn take(slf: &Bound<'_, Self>, number: usize, wait_s: f64) -> PyResult<Option<Batch>> {
        let wait = seconds(slf.py(), wait_s)?;
        let program = &slf.get().program;
        let batch = slf.py().detach(|| program.take(number, wait));
        Ok(batch.map(|batch| Batch { batch: Mutex::new(Some(batch)), program: slf.clone().unbind() }))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.program.is_closed()
    }
}

/// The outputs of one request, or the reason why there are none.
#[derive(FromPyObject)]
enum Answer<'py> {
    Outputs(Vec<Bound<'py, PyCapsule>>),
    Failed(String),
}

/// Requests that run together; each is answered once.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct Batch {
    batch: Mutex<Option<rowmill_serve::Batch<Task>>>,
    program: Py<Program>,
}

impl Batch {
    fn finish(&self, py: Python<'_>) -> PyResult<rowmill_serve::Batch<Task>> {
        let batch = self.batch.lock().ok().and_then(|mut batch| batch.take());
        batch.ok_or_else(|| answered(py))
    }

    /// What `work` makes of the batch, without the GIL.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut rowmill_serve::Batch<Task>) -> R + Send,
    ) -> PyResult<R> {
        let done = py.detach(|| self.batch.lock().ok().and_then(|mut batch| batch.as_mut().map(work)));
        done.ok_or_else(|| answered(py))
    }
}

fn answered(py: Python<'_>) -> PyErr {
    invalid(py, "the batch is answered already")
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        let batch = self.batch.lock().ok();
        batch.and_then(|batch| batch.as_ref().map(|batch| batch.requests.len())).unwrap_or(0)
    }

    /// The tensors of each request, as `DLPack` capsules over memory that must not be written.
    fn requests<'py>(&self, py: Python<'py>) -> PyResult<Vec<Vec<Bound<'py, PyCapsule>>>> {
        let batch = self.batch.lock().ok();
        let requests = batch.as_ref().and_then(|batch| batch.as_ref()).map(|batch| &batch.requests);
        requests
            .into_iter()
            .flatten()
            .map(|task| task.tensors.iter().map(|tensor| dlpack::capsule(py, tensor)).collect())
            .collect()
    }

    /// The tensors of all requests as those of one, in the form of `requests`. An error where they cannot be joined.
    fn joined<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyCapsule>>> {
        let Program { program, arena } = self.program.get();
        let joined = self.with(py, |batch| program.join(batch, arena))?;
        let tensors = joined.map_err(|failure| raised(py, &failure))?;
        tensors.iter().map(|tensor| dlpack::capsule(py, tensor)).collect()
    }

    /// Answer each request with its rows of the outputs for `joined`, which took the program some CPU time. After an error no
    /// request is answered.
    fn reply_joined(&self, py: Python<'_>, outputs: Vec<Bound<'_, PyCapsule>>, cpu_s: f64) -> PyResult<()> {
        let Program { program, arena } = self.program.get();
        let copied = (0..).zip(&outputs).map(|(number, capsule)| dlpack::copied(arena, number, capsule));
        let outputs: Result<Vec<Tensor>, Failure> = copied.collect::<PyResult<_>>()?;
        let outputs = outputs.map_err(|failure| raised(py, &failure))?;
        let replies = self.with(py, |batch| rowmill_serve::split(&batch.requests, &outputs))?;
        let replies = replies.map_err(|failure| raised(py, &failure))?;
        program.add_cpu(seconds(py, cpu_s)?);
        for (task, outputs) in self.finish(py)?.requests.drain(..).zip(replies) {
            task.reply(outputs);
        }
        Ok(())
    }

    /// Answer each request, which took the program some CPU time.
    fn reply(&self, py: Python<'_>, answers: Vec<Answer<'_>>, cpu_s: f64) -> PyResult<()> {
        let Program { program, arena } = self.program.get();
        program.add_cpu(seconds(py, cpu_s)?);
        let copied = |(number, capsule)| dlpack::copied(arena, number, capsule);
        let replies = answers.iter().map(|answer| -> PyResult<Result<Vec<_>, Failure>> {
            match answer {
                Answer::Outputs(outputs) => (0..).zip(outputs).map(copied).collect(),
                Answer::Failed(reason) => Ok(Err(Failure::new(Status::Failed, reason))),
            }
        });
        let replies = replies.collect::<PyResult<Vec<_>>>()?;
        let mut batch = self.finish(py)?;
        if replies.len() != batch.requests.len() {
            return Err(invalid(
                py,
                format!("{} replies to {} requests", replies.len(), batch.requests.len()),
            ));
        }
        for (task, reply) in batch.requests.drain(..).zip(replies) {
            match reply {
                Ok(outputs) => task.reply(outputs),
                Err(failure) => {
                    if failure.status == Status::Full {
                        program.count_memory_full();
                    }
                    task.fail(failure);
                }
            }
        }
        Ok(())
    }

    /// Report that the program failed for all of them.
    fn fail(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        for task in self.finish(py)?.requests.drain(..) {
            task.fail(Failure::new(Status::Failed, reason));
        }
        Ok(())
    }
}

/// A process that serves models.
#[pyclass(frozen, module = "rowmill._core")]
pub(crate) struct Worker(rowmill_serve::Worker);

#[pymethods]
impl Worker {
    #[new]
    #[pyo3(signature = (*, network_threads, lookup_threads, wire_memory, request_max, slo_s, batch_requests, batch_rows, queue_requests, batches, share_cores))]
    #[expect(clippy::too_many_arguments, reason = "the settings of a worker, by name")]
    fn new(
        py: Python<'_>,
        network_threads: usize,
        lookup_threads: usize,
        wire_memory: usize,
        request_max: usize,
        slo_s: f64,
        batch_requests: usize,
        batch_rows: u32,
        queue_requests: usize,
        batches: usize,
        share_cores: bool,
    ) -> PyResult<Self> {
        let options = WorkerOptions {
            network_threads,
            lookup_threads,
            wire_memory,
            request_bytes_max: request_max,
            slo: seconds(py, slo_s)?,
            batch: BatchLimits {
                batch_requests_max: batch_requests,
                batch_rows_max: batch_rows,
                queue_requests_max: queue_requests,
                batches_max: batches,
            },
            share_cores,
        };
        rowmill_serve::Worker::start(options).map(Self).map_err(|failure| raised(py, &failure))
    }

    /// Serve a model whose CPU half is here. Returns the halves that threads must run.
    #[pyo3(signature = (name, folder, program, rows, dense))]
    fn add_model(
        &self,
        py: Python<'_>,
        name: String,
        folder: PathBuf,
        program: u64,
        rows: Option<&Bound<'_, PyAny>>,
        dense: Option<&str>,
    ) -> PyResult<Vec<(String, Program)>> {
        let dense = dense.map(|address| parse_address(py, address)).transpose()?;
        let bundle = Bundle { name, version: "1".into(), program, folder };
        let rows = rows.map(|rows| row_source(py, rows)).transpose()?;
        let programs = self
            .0
            .add_model(&bundle, rows.as_ref(), dense.as_ref())
            .map_err(|failure| raised(py, &failure))?;
        let wrap = |program| Program { program, arena: self.0.arena().clone() };
        Ok(programs.into_iter().map(|(half, program)| (half, wrap(program))).collect())
    }

    /// Serve the dense half of a model to other processes. Returns it, if the model has one.
    fn add_dense(
        &self,
        py: Python<'_>,
        name: String,
        folder: PathBuf,
        program: u64,
    ) -> PyResult<Option<Program>> {
        let bundle = Bundle { name, version: "1".into(), program, folder };
        let program = self.0.add_dense(&bundle).map_err(|failure| raised(py, &failure))?;
        Ok(program.map(|program| Program { program, arena: self.0.arena().clone() }))
    }

    /// Answer clients over HTTP; returns the address with its port.
    fn listen_http(&self, py: Python<'_>, address: &str, insecure: bool) -> PyResult<String> {
        self.0.listen_http(address, exposure(insecure)).map_err(|failure| raised(py, &failure))
    }

    /// Answer clients over gRPC; returns the address with its port.
    fn listen_grpc(&self, py: Python<'_>, address: &str, insecure: bool) -> PyResult<String> {
        self.0.listen_grpc(address, exposure(insecure)).map_err(|failure| raised(py, &failure))
    }

    /// Answer Prometheus; returns the address with its port.
    fn listen_metrics(&self, py: Python<'_>, address: &str, insecure: bool) -> PyResult<String> {
        self.0.listen_metrics(address, exposure(insecure)).map_err(|failure| raised(py, &failure))
    }

    /// Answer CPU halves; returns the address with its port.
    fn listen_dense(&self, py: Python<'_>, address: &str, insecure: bool) -> PyResult<String> {
        let address = parse_address(py, address)?;
        let found = py.detach(|| self.0.listen_dense(&address, exposure(insecure)));
        found.map(|address| address.to_string()).map_err(|failure| raised(py, &failure))
    }

    /// The outputs of a model, for warm-up.
    fn ask(&self, py: Python<'_>, name: &str, inputs: Vec<Given<'_>>, wait_s: f64) -> PyResult<Vec<Handed>> {
        let tensors = taken(py, self.0.arena(), &inputs)?;
        let wait = seconds(py, wait_s)?;
        py.detach(|| self.0.ask(name, tensors, wait)).map(handed).map_err(|failure| raised(py, &failure))
    }

    /// Address and bytes of the memory that holds requests and replies.
    fn arena(&self) -> (usize, usize) {
        (self.0.arena().address(), self.0.arena().bytes())
    }

    /// Say in the log and in the configuration of a model how one of its halves runs.
    fn tell(&self, name: &str, half: &str, how: &str) {
        self.0.tell(name, half, how);
    }

    /// Tell clients that the models are warm.
    fn set_ready(&self) {
        self.0.set_ready();
    }

    /// Start the end, as SIGTERM does.
    fn stop(&self) {
        self.0.stop();
    }

    /// Wait for SIGTERM or SIGINT, then for open requests.
    fn run(&self, py: Python<'_>, drain_s: f64) -> PyResult<()> {
        let deadline = seconds(py, drain_s)?;
        py.detach(|| self.0.run(deadline)).map_err(|failure| raised(py, &failure))
    }
}

/// Write log events to standard error, as JSON.
#[pyfunction]
pub(crate) fn start_serving_logs(py: Python<'_>, level: &str) -> PyResult<()> {
    start_logs(level).map_err(|error| invalid(py, error.to_string()))
}

/// A `Store` or `NodeRows` as the rows of a model.
fn row_source(py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<RowSource> {
    if let Ok(node) = rows.cast::<NodeRows>() {
        return node.get().source(py);
    }
    Ok(RowSource::Store(Arc::clone(&rows.cast::<Store>()?.get().0)))
}

fn parse_address(py: Python<'_>, text: &str) -> PyResult<Address> {
    text.parse().map_err(|error: rowmill_serve::AddressError| invalid(py, error.to_string()))
}

fn exposure(insecure: bool) -> Exposure {
    if insecure { Exposure::Insecure } else { Exposure::Loopback }
}

fn seconds(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| invalid(py, format!("{seconds} is no number of seconds")))
}
