//! A served model: passes a request through both halves and post-processing.

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;

use super::lookup_threads::{Done, Part};
use super::ranking::{TopK, repeat_user_inputs};
use super::signature::{tensors_of, values_of};
use super::stage::Stage;
use super::window::Window;
use super::{HalfSignature, LookupThreads, Program, Remote, Signature, Task};
use crate::plan::{Plan, Values, bind};
use crate::transform::Transform;
use crate::{Arena, Ask, Failure, Given, Model, ModelMetrics, Reservation, Reserved, Status, Tensor};

/// The CPU half, or post-processing.
#[derive(Clone, Debug)]
pub(crate) enum Half {
    /// A plan.
    Plan(Arc<Plan>),
    /// A program of torch.
    Program(Program),
}

/// Where the dense half is.
#[derive(Clone, Debug)]
pub(crate) enum Dense {
    /// In this process.
    Here(Program),
    /// In another one.
    There(Remote),
}

/// Rows of a request at least.
const ROWS_MIN: u32 = 1;

/// A place of a request in the queue of the dense half.
enum Place {
    Here(Reservation<Task>),
    There(Reserved),
}

/// A model whose CPU half is in this process.
#[derive(Debug)]
pub(crate) struct Served {
    signature: Arc<Signature>,
    /// How raw columns become its inputs; `None` where requests cannot have any.
    transform: Option<Transform>,
    /// Where transforms and plans run, and tensors lie.
    threads: LookupThreads,
    arena: Arena,
    /// The CPU half; `None` where the dense half takes inputs as they come.
    cpu: Option<Half>,
    /// The dense half; `None` where nothing is dense.
    dense: Option<Dense>,
    /// How far lookups run ahead of the dense half of this process.
    window: Option<Arc<Window>>,
    /// Post-processing.
    post: Option<Half>,
    /// The jobs on lookup threads before and behind the dense half.
    first: Arc<Stage>,
    last: Arc<Stage>,
    metrics: Arc<ModelMetrics>,
}

impl Served {
    /// A model of a bundle. The two `halves` are the CPU half and post-processing.
    pub(crate) fn new(
        signature: Arc<Signature>,
        transform: Option<Transform>,
        threads: LookupThreads,
        arena: Arena,
        halves: [Option<Half>; 2],
        dense: Option<Dense>,
        metrics: &Arc<ModelMetrics>,
    ) -> Self {
        let [cpu, post] = halves;
        let first = Stage::new(if let Some(Half::Plan(_)) = cpu { &metrics.cpu } else { &metrics.inputs });
        let (last, metrics) = (Stage::new(&metrics.post), Arc::clone(metrics));
        let window = match (&cpu, &dense) {
            // It runs behind the lookups, and refuses requests by its own queue.
            (Some(Half::Program(_)), _) => None,
            (_, Some(Dense::Here(program))) => Some(Window::new(program.clone(), threads.count())),
            _ => None,
        };
        Self { signature, transform, threads, arena, cpu, dense, window, post, first, last, metrics }
    }

    /// The outputs of a request; with `top`, the best scores and their positions in place of them.
    ///
    /// # Errors
    /// When the request is wrong, or a half refuses or fails.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        given: Given,
        top: Option<TopK>,
        trace: [u8; 16],
        deadline: Instant,
    ) -> Result<Vec<Tensor>, Failure> {
        let signature = &self.signature;
        let rows = self.rows(&given);
        let place = self.reserve(rows, trace, deadline).await?;
        let served = Arc::clone(self);
        let prepare = move |arena: &Arena| {
            let mut values = served.inputs(arena, given)?;
            if let Some(Half::Plan(plan)) = &served.cpu {
                values.extend(plan.run(arena, &values, deadline)?);
            }
            served.gather(arena, &mut values);
            Ok(values)
        };
        let window = self.window.as_ref();
        let Done { mut values, ahead } =
            self.threads.run(Part::First, &self.first, window, rows, deadline, prepare).await?;
        let prepared = Instant::now();
        if let (Some(Half::Program(program)), Some(about)) = (&self.cpu, signature.half("cpu")) {
            run(program, about, &mut values, deadline).await?;
        }
        if let (Some(dense), Some(about)) = (&self.dense, signature.half("dense")) {
            let tensors = tensors_of(about.inputs.iter().map(String::as_str), &values)?;
            // Of a request that waits for the dense half, the arena holds only what is still needed.
            values.retain(|name, _| self.is_needed_behind_dense(name));
            let reply = match (dense, place) {
                (Dense::Here(program), Some(Place::Here(place))) => {
                    program.run(tensors, deadline, Some(place), ahead).await?
                }
                (Dense::Here(program), _) => program.run(tensors, deadline, None, ahead).await?,
                (Dense::There(remote), place) => {
                    let place = place.and_then(Place::there);
                    let begin = Instant::now();
                    let reply = remote.call(tensors, trace, deadline, place).await?;
                    self.metrics.crossing.observe(begin.elapsed());
                    reply
                }
            };
            values.extend(values_of(&about.outputs, reply)?);
        }
        match (&self.post, signature.half("post")) {
            (Some(Half::Program(program)), Some(about)) => {
                run(program, about, &mut values, deadline).await?;
            }
            (Some(Half::Plan(plan)), _) => {
                let (plan, given) = (Arc::clone(plan), values.clone());
                let run = move |arena: &Arena| plan.run(arena, &given, deadline);
                let done = self.threads.run(Part::Last, &self.last, None, rows, deadline, run).await?;
                values.extend(done.values);
            }
            (None, _) | (_, None) => {}
        }
        self.first.observe_rest(prepared.elapsed());
        match top {
            Some(top) => self.best(top, &values),
            None => tensors_of(signature.outputs(), &values),
        }
    }

    /// Whether post-processing takes a value, or it is an output of the model.
    fn is_needed_behind_dense(&self, name: &str) -> bool {
        let signature = &self.signature;
        let of_post = match &self.post {
            Some(Half::Plan(plan)) => plan.takes(name),
            Some(Half::Program(_)) => {
                signature.half("post").is_some_and(|about| about.inputs.iter().any(|input| input == name))
            }
            None => false,
        };
        of_post || signature.outputs().any(|output| output == name)
    }

    /// Refuse a request whose inputs have not been read, as [`Self::answer`] would refuse one of the fewest rows.
    ///
    /// # Errors
    /// When a half is predicted to be late, or too many requests wait.
    async fn check_time(&self, trace: [u8; 16], deadline: Instant) -> Result<(), Failure> {
        drop(self.reserve(ROWS_MIN, trace, deadline).await?);
        self.threads.check(&self.first, self.window.as_ref(), ROWS_MIN, deadline)
    }

    /// Rows that a request has for the dense half.
    fn rows(&self, given: &Given) -> u32 {
        match (given, &self.transform) {
            (Given::Tensors(tensors), _) => self.signature.rows(tensors),
            (Given::Columns(columns), Some(transform)) => {
                transform.rows_of(columns).and_then(|rows| u32::try_from(rows).ok()).unwrap_or(1)
            }
            (Given::Columns(_), None) => 1,
        }
    }

    /// A place in the queue of the dense half. A dense half of another process gives one only while it refuses requests.
    async fn reserve(&self, rows: u32, trace: [u8; 16], deadline: Instant) -> Result<Option<Place>, Failure> {
        match &self.dense {
            Some(Dense::Here(program)) => program.reserve(rows, deadline).map(Place::Here).map(Some),
            Some(Dense::There(remote)) => Ok(remote.reserve(rows, trace, deadline).await?.map(Place::There)),
            None => Ok(None),
        }
    }

    /// The model's inputs by name.
    fn inputs(&self, arena: &Arena, given: Given) -> Result<Values, Failure> {
        let signature = &self.signature;
        let mut values = match (given, &self.transform) {
            (Given::Tensors(tensors), _) => {
                let names: Vec<String> = signature.inputs.iter().map(|input| input.name.clone()).collect();
                values_of(&names, tensors)?
            }
            (Given::Columns(columns), Some(transform)) => transform.apply(arena, &columns)?,
            (Given::Columns(_), None) => return Err(Failure::invalid("the model takes no raw columns")),
        };
        repeat_user_inputs(signature, arena, &mut values)?;
        bind(&signature.inputs, &values)?;
        Ok(values)
    }

    /// Let the inputs of the dense half lie beside those of the other requests for its next batch.
    fn gather(&self, arena: &Arena, values: &mut Values) {
        let (Some(Dense::Here(program)), Some(about)) = (&self.dense, self.signature.half("dense")) else {
            return;
        };
        let inputs: Option<Vec<_>> = about.inputs.iter().map(|name| values.get(name).cloned()).collect();
        let Some(copies) = inputs.and_then(|inputs| program.gather(arena, &inputs)) else { return };
        for (name, data) in about.inputs.iter().zip(copies) {
            values.entry(name.clone()).and_modify(|value| value.data = data);
        }
    }

    fn best(&self, top: TopK, values: &Values) -> Result<Vec<Tensor>, Failure> {
        let name = self.signature.outputs().nth(top.output);
        let found = name.and_then(|name| Some((name, values.get(name)?)));
        let (name, scores) = found
            .ok_or_else(|| Failure::new(Status::Failed, format!("the model has no output {}", top.output)))?;
        let names = ["scores", "positions"];
        let best = names.map(str::to_owned).into_iter().zip(top.of(&self.arena, name, scores)?);
        tensors_of(names, &best.collect())
    }

    /// The model as the front door serves it.
    pub(crate) fn model(self: &Arc<Self>, version: &str) -> Model {
        let served = Arc::clone(self);
        let infer = move |ask: Ask| {
            let served = Arc::clone(&served);
            async move {
                let Ask { given, top, trace, deadline } = ask;
                let found = served.answer(given, top, trace, deadline).await;
                if let Err(Failure { status: Status::Failed, text }) = &found {
                    tracing::error!(reason = text, "a request failed");
                }
                found
            }
            .boxed()
        };
        let served = Arc::clone(self);
        let check_time = move |deadline, trace| {
            let served = Arc::clone(&served);
            async move { served.check_time(trace, deadline).await }.boxed()
        };
        Model {
            name: self.metrics.name.clone(),
            version: version.into(),
            inputs: self.signature.input_specs(),
            columns: self.transform.as_ref().map_or_else(Vec::new, Transform::columns),
            outputs: self.signature.output_specs(),
            infer: Arc::new(infer),
            check_time: Arc::new(check_time),
            loaded: Arc::new(true.into()),
            halves: Arc::default(),
            metrics: Arc::clone(&self.metrics),
        }
    }
}

impl Place {
    fn there(self) -> Option<Reserved> {
        match self {
            Self::There(place) => Some(place),
            Self::Here(_) => None,
        }
    }
}

async fn run(
    program: &Program,
    about: &HalfSignature,
    values: &mut Values,
    deadline: Instant,
) -> Result<(), Failure> {
    let tensors = tensors_of(about.inputs.iter().map(String::as_str), values)?;
    values.extend(values_of(&about.outputs, program.run(tensors, deadline, None, None).await?)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::Weights;
    use crate::{BatchLimits, DType, TensorName};

    /// A model whose CPU half casts `x` to `y`, whose dense half makes `z` of it, and whose outputs are `outputs`.
    fn served(arena: &Arena, outputs: &[&str]) -> (Arc<Served>, Program) {
        served_in_batches(arena, outputs, 1)
    }

    /// The same in batches of `requests`.
    fn served_in_batches(arena: &Arena, outputs: &[&str], requests: usize) -> (Arc<Served>, Program) {
        let value = |name: &str, dtype: &str| json!({"name": name, "dtype": dtype, "shape": ["b", 1024]});
        let signature = json!({
            "inputs": [value("x", "float32")],
            "outputs": outputs,
            "output_shapes": outputs.iter().map(|name| value(name, "float64")).collect::<Vec<_>>(),
            "halves": {
                "cpu": {"inputs": ["x"], "outputs": ["y"]},
                "dense": {"inputs": ["y"], "outputs": ["z"]},
            },
        });
        let plan = json!({
            "inputs": [value("x", "float32")],
            "steps": [{"op": "cast", "out": "y", "in": "x", "dtype": "float64"}],
            "outputs": [{"name": "y", "value": "y"}],
        });
        let weights = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(weights.path(), b"\x02\0\0\0\0\0\0\0{}").unwrap();
        let plan = Plan::load(&plan.to_string(), &Weights::open(weights.path()).unwrap(), None).unwrap();
        let limits = BatchLimits {
            batch_requests_max: requests,
            batch_rows_max: 64,
            queue_requests_max: 8,
            batches_max: 1,
        };
        let metrics = ModelMetrics::new("model");
        let program = Program::new(limits, None, &metrics.dense);
        let served = Served::new(
            Arc::new(Signature::parse(&signature.to_string()).unwrap()),
            None,
            LookupThreads::start(1, 8, arena).unwrap(),
            arena.clone(),
            [Some(Half::Plan(Arc::new(plan))), None],
            Some(Dense::Here(program.clone())),
            &metrics,
        );
        (Arc::new(served), program)
    }

    /// A tensor [2, 1024] in the arena.
    fn tensor(arena: &Arena, dtype: DType) -> Tensor {
        let lease = arena.lease(2 * 1024 * dtype.bytes()).unwrap();
        Tensor::new(TensorName::Number(0), dtype, &[2, 1024], lease.share())
    }

    const WAIT: std::time::Duration = std::time::Duration::from_secs(10);

    async fn until(condition: impl Fn() -> bool) {
        let wait = async {
            while !condition() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(WAIT, wait).await.expect("it happens in time");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn lookups_wait_until_batches_begin_or_requests_are_given_up() {
        let arena = Arena::new(1 << 20).unwrap();
        let (served, program) = served(&arena, &["z"]);
        // One deadline: lookups for an earlier one would not wait for the window.
        let deadline = Instant::now() + WAIT;
        let mut asked: Vec<_> = (0..4)
            .map(|_| {
                let (served, tensor) = (Arc::clone(&served), tensor(&arena, DType::Float32));
                let given = Given::Tensors(vec![tensor]);
                tokio::spawn(async move { served.answer(given, None, [0; 16], deadline).await })
            })
            .collect();
        let looked_up = || served.metrics.cpu.run.count();
        // A batch of one request.
        until(|| (served.metrics.dense.waiting(), served.metrics.cpu.waiting()) == (1, 3)).await;
        assert_eq!(looked_up(), 1);
        let take = || tokio::task::block_in_place(|| program.take(0, WAIT).unwrap());
        let first = take();
        until(|| looked_up() == 2).await;
        for request in asked.drain(..) {
            request.abort();
            assert!(request.await.unwrap_err().is_cancelled());
        }
        assert_eq!((program.queued(), served.metrics.cpu.waiting()), (0, 0));
        drop(first);
        // The lookup thread may still drop the inputs of the second request.
        until(|| arena.held_bytes() == 0).await;
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_leaves_the_queue_of_the_dense_half() {
        let arena = Arena::new(1 << 20).unwrap();
        let (served, program) = served(&arena, &["z"]);
        let given = Given::Tensors(vec![tensor(&arena, DType::Float32)]);
        let asked =
            tokio::spawn(async move { served.answer(given, None, [0; 16], Instant::now() + WAIT).await });
        // Its inputs are released when its lookups have run, and it waits for the dense half.
        until(|| arena.held_bytes() == 2 * 1024 * 8).await;
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
        assert_eq!((program.queued(), arena.held_bytes()), (0, 0));
    }

    #[tokio::test]
    async fn a_request_that_waits_for_the_dense_half_holds_what_is_still_needed() {
        let (x_bytes, y_bytes) = (2 * 1024 * 4, 2 * 1024 * 8);
        for (outputs, held) in [(&["z"][..], y_bytes), (&["z", "x"], x_bytes + y_bytes)] {
            let arena = Arena::new(1 << 20).unwrap();
            let (served, program) = served(&arena, outputs);
            let given = Given::Tensors(vec![tensor(&arena, DType::Float32)]);
            let asked =
                tokio::spawn(async move { served.answer(given, None, [0; 16], Instant::now() + WAIT).await });
            let mut batch =
                tokio::task::spawn_blocking(move || program.take(0, WAIT).unwrap()).await.unwrap();
            assert_eq!(arena.held_bytes(), held);
            batch.requests.pop().unwrap().reply(vec![tensor(&arena, DType::Float64)]);
            assert_eq!(asked.await.unwrap().unwrap().len(), outputs.len());
            assert_eq!(arena.held_bytes(), 0);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn lookup_threads_put_the_inputs_of_the_next_batch_side_by_side() {
        let arena = Arena::new(1 << 20).unwrap();
        let (served, program) = served_in_batches(&arena, &["z"], 3);
        let ask = || {
            let (served, given) = (Arc::clone(&served), Given::Tensors(vec![tensor(&arena, DType::Float32)]));
            tokio::spawn(async move { served.answer(given, None, [0; 16], Instant::now() + WAIT).await })
        };
        let take = || tokio::task::block_in_place(|| program.take(0, WAIT).unwrap());
        let mut asked = vec![ask()];
        let mut running = take();
        program.join(&mut running, &arena).unwrap();
        asked.extend([ask(), ask()]);
        until(|| served.metrics.dense.waiting() == 2).await;
        drop(running);
        let mut batch = take();
        let first = batch.requests.iter().map(|request| request.tensors[0].data.as_ptr()).min().unwrap();
        let joined = program.join(&mut batch, &arena).unwrap();
        assert_eq!((joined[0].shape[0], joined[0].data.as_ptr()), (4, first), "nothing was copied");
        drop((batch, joined));
        for request in asked {
            assert!(request.await.unwrap().is_err(), "no one has answered");
        }
        until(|| arena.held_bytes() == 0).await;
    }
}
