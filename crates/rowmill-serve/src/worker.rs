//! A worker process: its models, its listeners, and its shutdown.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use rowmill_server::{Drain, Exposure, Server, bind_tcp};
use tokio::runtime::Handle;

use crate::front_door::{FrontDoor, Model};
use crate::halves::{
    CoreShare, Dense, DenseHalf, Half, LookupThreads, Program, Remote, Served, Signature, serve_dense,
};
use crate::metrics::{Exposition, HalfMetrics};
use crate::page::{self, Shown};
use crate::plan::{Plan, Weights};
use crate::row_source::RowSource;
use crate::transform::Transform;
use crate::{
    Address, Arena, BatchLimits, Client, ClientOptions, Failure, Given, Limits, Listener, ModelMetrics,
    Status, Tensor,
};

/// Bytes of a request beside binary tensors at most.
const PARSED_BYTES_MAX: usize = 16 << 20;

/// Bounds of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// Threads that wait for sockets.
    pub network_threads: usize,
    /// Threads that run CPU plans.
    pub lookup_threads: usize,
    /// Bytes of the arena.
    pub wire_memory: usize,
    /// Bytes of a request.
    pub request_bytes_max: usize,
    /// The deadline of requests that give none.
    pub slo: Duration,
    /// Batches of the dense half.
    pub batch: BatchLimits,
    /// Run fewer batches and lookups at once where other work of the process needs the cores.
    pub share_cores: bool,
}

/// A bundle and its name.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The model's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The number that both halves must agree on.
    pub program: u64,
    /// Where its files are.
    pub folder: PathBuf,
}

fn twice(name: &str) -> Failure {
    Failure::invalid(format!("two bundles are called {name:?}: give one as NAME=FOLDER"))
}

/// The models of one process, their threads and their sockets. [`Self::listen_http`], [`Self::listen_grpc`],
/// [`Self::listen_dense`] and [`Self::listen_metrics`] open sockets. [`Self::run`] waits for the end of the process and closes everything.
#[derive(Debug)]
pub struct Worker {
    server: Mutex<Option<Server>>,
    runtime: Handle,
    drain: Drain,
    options: WorkerOptions,
    arena: Arena,
    threads: LookupThreads,
    /// `None` where the number of batches at once is fixed.
    share: Option<Arc<CoreShare>>,
    models: Mutex<Vec<(Model, Arc<Served>)>>,
    dense: Mutex<HashMap<u64, DenseHalf>>,
    programs: Mutex<Vec<Program>>,
    shown: Mutex<Vec<Shown>>,
    is_ready: Arc<AtomicBool>,
    started: Instant,
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Status::Failed, error.to_string())
}

impl Bundle {
    fn text(&self, file: &str) -> Result<String, Failure> {
        let path = self.folder.join(file);
        std::fs::read_to_string(&path)
            .map_err(|error| failed(format!("cannot read {}: {error}", path.display())))
    }

    fn signature(&self) -> Result<Arc<Signature>, Failure> {
        Signature::parse(&self.text("signature.json")?).map(Arc::new)
    }

    fn transform(&self, signature: &Signature) -> Result<Option<Transform>, Failure> {
        if !self.folder.join("transform.json").exists() {
            return Ok(None);
        }
        let transform = Transform::parse(&self.text("transform.json")?)?;
        signature.check_transform(&transform)?;
        let is_input = |name: &str| signature.inputs.iter().any(|input| input.name == name);
        if let Some(column) = transform.columns().into_iter().find(|column| is_input(&column.name)) {
            tracing::warn!(
                model = self.name,
                column = column.name,
                "requests cannot have raw columns, because one is called as an input of the signature"
            );
            return Ok(None);
        }
        Ok(Some(transform))
    }
}

impl Worker {
    /// Start the threads of a worker.
    ///
    /// # Errors
    /// When the system gives no thread or memory.
    pub fn start(options: WorkerOptions) -> Result<Self, Failure> {
        let server = Server::start(options.network_threads).map_err(failed)?;
        let arena = Arena::new(options.wire_memory)?;
        let queue_max = options.batch.queue_requests_max;
        let threads = LookupThreads::start(options.lookup_threads, queue_max, &arena).map_err(failed)?;
        let share =
            options.share_cores.then(|| Arc::new(CoreShare::new(options.batch.batches_max, threads.limit())));
        let (runtime, drain) = (server.handle().clone(), server.drain().clone());
        Ok(Self {
            server: Mutex::new(Some(server)),
            runtime,
            drain,
            options,
            arena,
            threads,
            share,
            models: Mutex::default(),
            dense: Mutex::default(),
            programs: Mutex::default(),
            shown: Mutex::default(),
            is_ready: Arc::default(),
            started: Instant::now(),
        })
    }

    /// Where tensors lie.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Serve a model whose CPU half runs here, and whose dense half runs at `dense_at` or here. Returns the halves, by
    /// name, that threads of Python must run.
    ///
    /// # Errors
    /// When a file of the bundle cannot be used.
    pub fn add_model(
        &self,
        bundle: &Bundle,
        rows: Option<&RowSource>,
        dense_at: Option<&Address>,
    ) -> Result<Vec<(String, Program)>, Failure> {
        if self.models.lock().iter().any(|(model, _)| model.name == bundle.name) {
            return Err(twice(&bundle.name));
        }
        let signature = bundle.signature()?;
        let metrics = ModelMetrics::new(&bundle.name);
        if let Some(RowSource::Store(store)) = rows {
            metrics.set_rows(store);
        }
        if let (Some(share), Some(rows)) = (&self.share, rows) {
            share.add_rows(rows);
        }
        let (mut programs, mut halves) = (Vec::new(), Vec::new());
        let mut half = |name: &'static str, times: &Arc<HalfMetrics>| -> Result<Option<Half>, Failure> {
            if signature.half(name).is_none() {
                return Ok(None);
            }
            let file = format!("{name}.json");
            if bundle.folder.join(&file).exists() {
                let weights = Weights::open(&bundle.folder.join("weights.safetensors"))?;
                let plan = Plan::load(&bundle.text(&file)?, &weights, rows)?;
                halves.push((name, "here, a plan".to_owned()));
                return Ok(Some(Half::Plan(Arc::new(plan))));
            }
            let one_by_one =
                BatchLimits { batch_requests_max: 1, batch_rows_max: u32::MAX, ..self.options.batch };
            let program = self.program(one_by_one, None, times);
            halves.push((name, "here, in torch".to_owned()));
            programs.push((name.to_owned(), program.clone()));
            Ok(Some(Half::Program(program)))
        };
        let (cpu, post) = (half("cpu", &metrics.cpu)?, half("post", &metrics.post)?);
        let dense = match (signature.half("dense"), dense_at) {
            (None, _) => None,
            (Some(_), Some(address)) => {
                let limits =
                    Limits { payload_bytes_max: self.options.request_bytes_max as u64, ..Limits::default() };
                let options = ClientOptions { limits, ..ClientOptions::default() };
                let client = Client::new(address.clone(), bundle.program, self.arena.clone(), options);
                halves.push(("dense", address.to_string()));
                Some(Dense::There(Remote::new(client)))
            }
            (Some(_), None) => {
                let program = self.program(self.batches(&signature), self.share.clone(), &metrics.dense);
                halves.push(("dense", "here, in torch".to_owned()));
                programs.push(("dense".to_owned(), program.clone()));
                Some(Dense::Here(program))
            }
        };
        let transform = bundle.transform(&signature)?;
        let (threads, arena) = (self.threads.clone(), self.arena.clone());
        let halves_of_model = [cpu, post];
        let served =
            Arc::new(Served::new(signature, transform, threads, arena, halves_of_model, dense, &metrics));
        let model = served.model(&bundle.version);
        halves.sort_by_key(|&(name, _)| ["cpu", "dense", "post"].iter().position(|&half| half == name));
        self.shown.lock().push(Shown { metrics, loaded: Arc::clone(&model.loaded), halves });
        self.models.lock().push((model, served));
        Ok(programs)
    }

    /// Serve the dense half of a model to other processes. Returns what a thread of Python must run, if it has one.
    ///
    /// # Errors
    /// When a file of the bundle cannot be used.
    pub fn add_dense(&self, bundle: &Bundle) -> Result<Option<Program>, Failure> {
        let signature = bundle.signature()?;
        if signature.half("dense").is_none() {
            return Ok(None);
        }
        if self.shown.lock().iter().any(|shown| shown.metrics.name == bundle.name) {
            return Err(twice(&bundle.name));
        }
        let metrics = ModelMetrics::new(&bundle.name);
        let program = self.program(self.batches(&signature), self.share.clone(), &metrics.dense);
        let half = DenseHalf { signature, program: program.clone() };
        let halves = vec![("dense", "here, in torch".to_owned())];
        self.shown.lock().push(Shown { metrics, loaded: Arc::new(true.into()), halves });
        match self.dense.lock().insert(bundle.program, half) {
            Some(_) => {
                Err(Failure::invalid(format!("the bundle {} is given twice", bundle.folder.display())))
            }
            None => Ok(Some(program)),
        }
    }

    /// Say in the log, and in the configuration of a model that is here, how one of its halves runs.
    pub fn tell(&self, name: &str, half: &str, how: &str) {
        tracing::info!(model = name, "{half} half: {how}");
        if let Some((model, _)) = self.models.lock().iter().find(|(model, _)| model.name == name) {
            model.halves.lock().insert(format!("{half}_half"), how.to_owned());
        }
    }

    fn batches(&self, signature: &Signature) -> BatchLimits {
        let limits = self.options.batch;
        if signature.can_join() { limits } else { BatchLimits { batch_requests_max: 1, ..limits } }
    }

    fn program(
        &self,
        limits: BatchLimits,
        share: Option<Arc<CoreShare>>,
        metrics: &Arc<HalfMetrics>,
    ) -> Program {
        let program = Program::new(limits, share, metrics);
        self.programs.lock().push(program.clone());
        program
    }

    /// Answer HTTP clients at `address`, `host:port`. Returns the address with its port.
    ///
    /// # Errors
    /// When the address is in use, or more exposed than `exposure` allows.
    pub fn listen_http(&self, address: &str, exposure: Exposure) -> Result<String, Failure> {
        self.listen(address, exposure, self.front_door().http_routes(&self.drain).merge(self.page()))
    }

    /// Answer gRPC clients at `address`, `host:port`. Returns the address with its port.
    ///
    /// # Errors
    /// As [`Self::listen_http`].
    pub fn listen_grpc(&self, address: &str, exposure: Exposure) -> Result<String, Failure> {
        self.listen(address, exposure, self.front_door().grpc_routes(&self.drain))
    }

    fn front_door(&self) -> FrontDoor {
        FrontDoor {
            arena: self.arena.clone(),
            models: self.models.lock().iter().map(|(model, _)| model.clone()).collect(),
            request_bytes_max: self.options.request_bytes_max,
            parsed_bytes_max: PARSED_BYTES_MAX.min(self.options.request_bytes_max),
            slo: self.options.slo,
            is_ready: Arc::clone(&self.is_ready),
        }
    }

    /// Answer Prometheus at `address`, `host:port`. Returns the address with its port.
    ///
    /// # Errors
    /// As [`Self::listen_http`].
    pub fn listen_metrics(&self, address: &str, exposure: Exposure) -> Result<String, Failure> {
        let mut registry = Registry::default();
        let models = self.shown.lock().iter().map(|shown| Arc::clone(&shown.metrics)).collect();
        registry.register_collector(Box::new(Exposition { models, arena: self.arena.clone() }));
        // The status page is here too: a worker of dense halves has no other HTTP port.
        self.listen(address, exposure, rowmill_server::router(registry, &self.drain).merge(self.page()))
    }

    fn page(&self) -> axum::Router {
        page::routes(page::Status {
            models: self.shown.lock().clone(),
            arena: self.arena.clone(),
            is_ready: Arc::clone(&self.is_ready),
            drain: self.drain.clone(),
            started: self.started,
        })
    }

    fn listen(&self, address: &str, exposure: Exposure, routes: axum::Router) -> Result<String, Failure> {
        let listener = {
            let _inside = self.runtime.enter();
            bind_tcp(address, exposure).map_err(failed)?
        };
        let found = listener.local_addr().map_err(failed)?.to_string();
        match &*self.server.lock() {
            Some(server) => server.serve_http(listener, routes),
            None => return Err(failed("the worker has ended")),
        }
        Ok(found)
    }

    /// Answer CPU halves at `address`. Returns the address with its port.
    ///
    /// # Errors
    /// When the address is in use, or more exposed than `exposure` allows.
    pub fn listen_dense(&self, address: &Address, exposure: Exposure) -> Result<Address, Failure> {
        let listener = self.runtime.block_on(Listener::bind(address, exposure)).map_err(failed)?;
        let found = listener.address().map_err(failed)?;
        let limit = self.options.request_bytes_max as u64;
        let halves = self.dense.lock().clone();
        let serving = serve_dense(listener, self.arena.clone(), limit, self.drain.clone(), halves);
        self.runtime.spawn(serving);
        Ok(found)
    }

    /// Ask a model from this process, for warm-up.
    ///
    /// # Errors
    /// When there is no such model or the worker ends, or as for any request.
    pub fn ask(&self, name: &str, tensors: Vec<Tensor>, wait: Duration) -> Result<Vec<Tensor>, Failure> {
        let found = self.models.lock().iter().find(|(model, _)| model.name == name).cloned();
        let (_, served) = found.ok_or_else(|| Failure::invalid(format!("no model {name:?}")))?;
        // The runtime is there until the hold is dropped, unless the drain has started before.
        let mut hold = self.drain.hold();
        let ending = || Failure::new(Status::Draining, "the worker is about to end");
        if self.drain.has_started() {
            return Err(ending());
        }
        self.runtime.block_on(async {
            let deadline = Instant::now() + wait;
            let answer = served.answer(Given::Tensors(tensors), None, [0; 16], deadline);
            tokio::select! {
                () = hold.draining() => Err(ending()),
                answer = tokio::time::timeout_at(deadline.into(), answer) => answer.unwrap_or_else(|_| {
                    Err(Failure::new(Status::Late, format!("no answer within {wait:?}")))
                }),
            }
        })
    }

    /// Tell clients that the models are warm.
    pub fn set_ready(&self) {
        self.shown.lock().iter().for_each(|shown| shown.metrics.forget_warm_up());
        self.is_ready.store(true, Relaxed);
    }

    /// Whether the worker takes no more requests.
    pub fn is_draining(&self) -> bool {
        self.drain.has_started()
    }

    /// Start the end of the worker, as a signal does.
    pub fn stop(&self) {
        self.drain.start();
    }

    /// Wait for SIGTERM or SIGINT, then for open requests, `deadline` at most. All programs are closed then.
    ///
    /// # Errors
    /// When requests are left after `deadline`.
    pub fn run(&self, deadline: Duration) -> Result<(), Failure> {
        let server = self.server.lock().take();
        let result = server.map_or(Ok(()), |server| server.run(deadline));
        for program in &*self.programs.lock() {
            program.close();
        }
        result.map_err(failed)
    }
}
