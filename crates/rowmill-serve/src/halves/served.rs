//! A served model: the way of a request through its halves.

use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;

use super::signature::{tensors_of, values_of};
use super::{HalfSignature, LookupThreads, Program, Signature};
use crate::plan::{Plan, Values, bind};
use crate::{Ask, Client, Failure, Model, Status, Tensor};

/// The CPU half, or post-processing.
#[derive(Clone, Debug)]
pub(crate) enum Half {
    /// A plan.
    Plan(Arc<Plan>, LookupThreads),
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
    /// The CPU half; `None` where the dense half takes inputs as they come.
    pub(crate) cpu: Option<Half>,
    /// The dense half; `None` where nothing is dense.
    pub(crate) dense: Option<Dense>,
    /// Post-processing.
    pub(crate) post: Option<Half>,
}

impl Served {
    /// The outputs of a request whose tensors are numbered as the inputs of the signature.
    ///
    /// # Errors
    /// When the request is wrong, or a half refuses or fails.
    pub(crate) async fn answer(
        &self,
        tensors: Vec<Tensor>,
        trace: [u8; 16],
        deadline: Instant,
    ) -> Result<Vec<Tensor>, Failure> {
        let signature = &self.signature;
        let names: Vec<String> = signature.inputs.iter().map(|input| input.name.clone()).collect();
        let mut values = values_of(&names, tensors)?;
        bind(&signature.inputs, &values)?;
        if let (Some(half), Some(about)) = (&self.cpu, signature.half("cpu")) {
            run(half, about, &mut values, deadline).await?;
        }
        if let (Some(dense), Some(about)) = (&self.dense, signature.half("dense")) {
            let tensors = tensors_of(about.inputs.iter().map(String::as_str), &values)?;
            let reply = match dense {
                Dense::Here(program) => program.run(tensors, deadline).await?,
                Dense::There(client) => client.call(tensors, trace, deadline).await?.tensors,
            };
            values.extend(values_of(&about.outputs, reply)?);
        }
        if let (Some(half), Some(about)) = (&self.post, signature.half("post")) {
            run(half, about, &mut values, deadline).await?;
        }
        tensors_of(signature.outputs(), &values)
    }

    /// The model as the front door serves it. Requests run as tasks of `runtime`.
    pub(crate) fn model(self: &Arc<Self>, name: &str, version: &str, runtime: &Handle) -> Model {
        let (served, runtime) = (Arc::clone(self), runtime.clone());
        let infer = move |ask: Ask| {
            let served = Arc::clone(&served);
            runtime.spawn(async move {
                match served.answer(ask.tensors, ask.trace, ask.deadline).await {
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
            name: name.into(),
            version: version.into(),
            inputs: self.signature.input_specs(),
            outputs: self.signature.output_specs(),
            infer: Arc::new(infer),
            loaded: Arc::new(true.into()),
        }
    }
}

async fn run(
    half: &Half,
    about: &HalfSignature,
    values: &mut Values,
    deadline: Instant,
) -> Result<(), Failure> {
    let made = match half {
        Half::Plan(plan, threads) => threads.run(plan, values.clone(), deadline).await?,
        Half::Program(program) => {
            let tensors = tensors_of(about.inputs.iter().map(String::as_str), values)?;
            values_of(&about.outputs, program.run(tensors, deadline).await?)?
        }
    };
    values.extend(made);
    Ok(())
}
