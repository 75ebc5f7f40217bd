//! A served model: the way of a request through its halves.

use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;

use super::ranking::{TopK, repeat_user_inputs};
use super::signature::{tensors_of, values_of};
use super::{HalfSignature, LookupThreads, Program, Signature};
use crate::plan::{Plan, Values, bind};
use crate::transform::Transform;
use crate::{Arena, Ask, Client, Failure, Given, Model, ModelMetrics, Status, Tensor};

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
    There(Client),
}

/// A model whose CPU half is in this process.
#[derive(Debug)]
pub(crate) struct Served {
    /// Its signature.
    pub(crate) signature: Arc<Signature>,
    /// How raw columns become its inputs; `None` where requests cannot have any.
    pub(crate) transform: Option<Transform>,
    /// Where transforms and plans run.
    pub(crate) threads: LookupThreads,
    /// Where tensors lie.
    pub(crate) arena: Arena,
    /// The CPU half; `None` where the dense half takes inputs as they come.
    pub(crate) cpu: Option<Half>,
    /// The dense half; `None` where nothing is dense.
    pub(crate) dense: Option<Dense>,
    /// Post-processing.
    pub(crate) post: Option<Half>,
    /// What is counted of its requests.
    pub(crate) metrics: Arc<ModelMetrics>,
}

impl Served {
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
        let served = Arc::clone(self);
        let prepare = move |arena: &Arena| {
            let mut values = served.inputs(arena, given)?;
            if let Some(Half::Plan(plan)) = &served.cpu {
                values.extend(plan.run(arena, &values)?);
            }
            Ok(values)
        };
        let half = if let Some(Half::Plan(_)) = self.cpu { &self.metrics.cpu } else { &self.metrics.inputs };
        let mut values = self.threads.run(deadline, half, prepare).await?;
        if let (Some(Half::Program(program)), Some(about)) = (&self.cpu, signature.half("cpu")) {
            run(program, about, &mut values, deadline).await?;
        }
        if let (Some(dense), Some(about)) = (&self.dense, signature.half("dense")) {
            let tensors = tensors_of(about.inputs.iter().map(String::as_str), &values)?;
            let reply = match dense {
                Dense::Here(program) => program.run(tensors, deadline).await?,
                Dense::There(client) => {
                    let begin = Instant::now();
                    let reply = client.call(tensors, trace, deadline).await?.tensors;
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
                let run = move |arena: &Arena| plan.run(arena, &given);
                values.extend(self.threads.run(deadline, &self.metrics.post, run).await?);
            }
            (None, _) | (_, None) => {}
        }
        match top {
            Some(top) => self.best(top, &values),
            None => tensors_of(signature.outputs(), &values),
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

    fn best(&self, top: TopK, values: &Values) -> Result<Vec<Tensor>, Failure> {
        let name = self.signature.outputs().nth(top.output);
        let found = name.and_then(|name| Some((name, values.get(name)?)));
        let (name, scores) = found
            .ok_or_else(|| Failure::new(Status::Failed, format!("the model has no output {}", top.output)))?;
        let names = ["scores", "positions"];
        let best = names.map(str::to_owned).into_iter().zip(top.of(&self.arena, name, scores)?);
        tensors_of(names, &best.collect())
    }

    /// The model as the front door serves it. Requests run as tasks of `runtime`.
    pub(crate) fn model(self: &Arc<Self>, version: &str, runtime: &Handle) -> Model {
        let (served, runtime) = (Arc::clone(self), runtime.clone());
        let infer = move |ask: Ask| {
            let served = Arc::clone(&served);
            runtime.spawn(async move {
                match served.answer(ask.given, ask.top, ask.trace, ask.deadline).await {
                    Ok(outputs) => ask.answer.reply(outputs),
                    Err(Failure { status, text }) => {
                        if status == Status::Failed {
                            tracing::error!(reason = text, "a request failed");
                        }
                        ask.answer.fail(status, text);
                    }
                }
            });
        };
        Model {
            name: self.metrics.name.clone(),
            version: version.into(),
            inputs: self.signature.input_specs(),
            columns: self.transform.as_ref().map_or_else(Vec::new, Transform::columns),
            outputs: self.signature.output_specs(),
            infer: Arc::new(infer),
            loaded: Arc::new(true.into()),
            halves: Arc::default(),
            metrics: Arc::clone(&self.metrics),
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
    values.extend(values_of(&about.outputs, program.run(tensors, deadline).await?)?);
    Ok(())
}
