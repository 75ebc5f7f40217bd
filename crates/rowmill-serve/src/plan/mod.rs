//! The CPU plan: the CPU half of a model over a closed list of operators, without torch.
//!
//! `python/rowmill/partition/plan/format.py` has the list, and `plan_reference.py` the definition in torch. Results have its bits,
//! except those of `log1p`, `sigmoid`, `softmax`, `sum` and `mean`, which are rounded once. Values are contiguous; those
//! above 4 KiB lie in the arena, so that a plan's memory is bounded and its results are sent without a copy.

mod array;
mod elementwise;
mod layout;
mod lookup;
mod reduce;
mod step;
mod weights;

use std::collections::HashMap;
use std::time::Instant;

pub(crate) use array::Array;
use elementwise::Side;
use lookup::Lookup;
use step::{Fill, Number, Operand, Output, PlanText, Step};
pub(crate) use step::{Input, Size, Sizes};
pub(crate) use weights::Weights;

use crate::row_source::RowSource;
use crate::{Arena, Failure, Status};

/// Values by name.
pub(crate) type Values = HashMap<String, Array>;

/// A plan that is ready to run.
#[derive(Debug)]
pub(crate) struct Plan {
    inputs: Vec<Input>,
    steps: Vec<Ready>,
    outputs: Vec<Output>,
}

/// A step with its parameters.
#[derive(Debug)]
enum Ready {
    Step(Step),
    Lookup(Box<Lookup>),
    Weight { out: String, value: Array },
}

impl Plan {
    /// Read a plan, its weights, and open its tables.
    ///
    /// # Errors
    /// When the JSON is no plan, or a weight or table is missing.
    pub(crate) fn load(json: &str, weights: &Weights, rows: Option<&RowSource>) -> Result<Self, Failure> {
        let text: PlanText = serde_json::from_str(json)
            .map_err(|error| Failure::new(Status::Failed, format!("the CPU plan cannot be read: {error}")))?;
        let ready = |step: Step| {
            Ok(match step {
                Step::Lookup(step) => Ready::Lookup(Box::new(Lookup::open(step, rows)?)),
                Step::Weight { out, name } => Ready::Weight { out, value: weights.read(&name)? },
                step => Ready::Step(step),
            })
        };
        let steps = text.steps.into_iter().map(ready).collect::<Result<_, Failure>>()?;
        Ok(Self { inputs: text.inputs, steps, outputs: text.outputs })
    }

    /// Whether the value of this name is an input.
    pub(crate) fn takes(&self, name: &str) -> bool {
        self.inputs.iter().any(|input| input.name == name)
    }

    /// The outputs by name, given values that hold the inputs. Lookups at a storage node end at the `deadline`.
    ///
    /// # Errors
    /// When an input is missing or does not match the plan, the arena has no room, or rows cannot be read in time.
    pub(crate) fn run(&self, arena: &Arena, given: &Values, deadline: Instant) -> Result<Values, Failure> {
        let sizes = bind(&self.inputs, given)?;
        let mut values: Values = HashMap::new();
        for input in &self.inputs {
            values.insert(input.name.clone(), given[&input.name].clone());
        }
        for step in &self.steps {
            match step {
                Ready::Step(step) => run_step(arena, step, &mut values, &sizes)?,
                Ready::Lookup(lookup) => {
                    let step = &lookup.step;
                    let factors = step.weights.as_ref().map(|name| value(&values, name)).transpose()?;
                    let (ids, offsets) = (value(&values, &step.ids)?, value(&values, &step.offsets)?);
                    let bags = step.bags.of_tensor(&sizes)?;
                    let pooled = lookup.run(arena, ids, offsets, factors, bags, deadline)?;
                    values.insert(step.out.clone(), pooled);
                }
                Ready::Weight { out, value } => drop(values.insert(out.clone(), value.clone())),
            }
        }
        self.outputs
            .iter()
            .map(|output| Ok((output.name.clone(), value(&values, &output.value)?.clone())))
            .collect()
    }
}

/// The sizes that inputs have, by the names in their shapes.
///
/// # Errors
/// When an input is missing, or its type or shape is not the declared one.
pub(crate) fn bind(inputs: &[Input], given: &Values) -> Result<Sizes, Failure> {
    let mut sizes = Sizes::new();
    let found: Vec<(&Input, &Array)> = inputs
        .iter()
        .map(|input| {
            let array = given.get(&input.name);
            array
                .map(|array| (input, array))
                .ok_or_else(|| Failure::invalid(format!("input {:?} is missing", input.name)))
        })
        .collect::<Result<_, _>>()?;
    for (input, array) in &found {
        if array.dtype != input.dtype || array.shape.len() != input.shape.len() {
            return Err(Failure::invalid(format!(
                "input {:?} is {} with {} dimensions, must be {} with {}",
                input.name,
                array.dtype.name(),
                array.shape.len(),
                input.dtype.name(),
                input.shape.len()
            )));
        }
        for (size, &actual) in input.shape.iter().zip(&array.shape) {
            if let Size::Name(name) = size {
                sizes.entry(name.clone()).or_insert(actual as i64);
            }
        }
    }
    for (input, array) in &found {
        for (dim, (size, &actual)) in input.shape.iter().zip(&array.shape).enumerate() {
            let expected = size.of_tensor(&sizes)?;
            if actual != expected {
                return Err(Failure::invalid(format!(
                    "input {:?} has {actual} items in dimension {dim}, must have {expected} as other inputs do",
                    input.name
                )));
            }
        }
    }
    Ok(sizes)
}

fn value<'v>(values: &'v Values, name: &str) -> Result<&'v Array, Failure> {
    values
        .get(name)
        .ok_or_else(|| Failure::new(Status::Failed, format!("the plan uses {name:?} before it is made")))
}

fn side(values: &Values, operand: &Operand) -> Result<Option<Side>, Failure> {
    Ok(match operand {
        Operand::Value(name) => Some(Side::Array(value(values, name)?.clone())),
        Operand::Number { number } => number.map(Side::Number),
    })
}

fn run_step(arena: &Arena, step: &Step, values: &mut Values, sizes: &Sizes) -> Result<(), Failure> {
    let of = |name: &str| value(values, name);
    let shape_of =
        |shape: &[Size]| shape.iter().map(|size| size.of_tensor(sizes)).collect::<Result<Vec<_>, _>>();
    let both = |a: &Operand, b: &Operand| match (side(values, a)?, side(values, b)?) {
        (Some(a), Some(b)) => Ok((a, b)),
        _ => Err(Failure::new(Status::Failed, "an operand of the plan is missing")),
    };
    let (out, result) = match step {
        Step::View { out, r#in, shape } => (out, layout::view(of(r#in)?, shape_of(shape)?)?),
        Step::Permute { out, r#in, dims } => (out, layout::permute(arena, of(r#in)?, dims)?),
        Step::Broadcast { out, r#in, shape } => {
            (out, layout::broadcast(arena, of(r#in)?, &shape_of(shape)?)?)
        }
        Step::Cat { out, ins, dim } => {
            let arrays: Vec<&Array> = ins.iter().map(|name| of(name)).collect::<Result<_, _>>()?;
            (out, layout::cat(arena, &arrays, *dim)?)
        }
        Step::Slice { out, r#in, dim, start, stop, step } => {
            let bounds = (start.evaluate(sizes)?, stop.evaluate(sizes)?, *step);
            (out, layout::slice(arena, of(r#in)?, *dim, bounds)?)
        }
        Step::Gather { out, r#in, dim, index } => (out, layout::gather(arena, of(r#in)?, *dim, of(index)?)?),
        Step::Cast { out, r#in, dtype } => (out, elementwise::cast(arena, of(r#in)?, *dtype)?),
        Step::Compare { out, how, a, b } => {
            let (a, b) = both(a, b)?;
            (out, elementwise::compare(arena, *how, &a, &b)?)
        }
        Step::Where { out, r#if, a, b } => {
            let (a, b) = both(a, b)?;
            (out, elementwise::select(arena, of(r#if)?, &a, &b)?)
        }
        Step::Clamp { out, r#in, min, max } => (out, elementwise::clamp(arena, of(r#in)?, *min, *max)?),
        Step::Arithmetic { out, how, a, b } => {
            let missing = || Failure::new(Status::Failed, "an operand of the plan is missing");
            let (a, b) = (side(values, a)?.ok_or_else(missing)?, side(values, b)?);
            (out, elementwise::arithmetic(arena, *how, &a, b.as_ref())?)
        }
        Step::Log1p { out, r#in } => (out, elementwise::map(arena, of(r#in)?, f64::ln_1p)?),
        Step::Sigmoid { out, r#in } => {
            (out, elementwise::map(arena, of(r#in)?, |value| 1.0 / (1.0 + (-value).exp()))?)
        }
        Step::Softmax { out, r#in, dim } => (out, reduce::softmax(arena, of(r#in)?, *dim)?),
        Step::Sum { out, r#in, dims, keep } => (out, reduce::reduce(arena, of(r#in)?, dims, *keep, false)?),
        Step::Mean { out, r#in, dims, keep } => (out, reduce::reduce(arena, of(r#in)?, dims, *keep, true)?),
        Step::Topk { out: [first, second], r#in, k, dim, largest } => {
            let count = Some(k.of_tensor(sizes)?);
            let [found, positions] = reduce::order(arena, of(r#in)?, *dim, *largest, count)?;
            values.insert(second.clone(), positions);
            (first, found)
        }
        Step::Sort { out: [first, second], r#in, dim, descending } => {
            let [found, positions] = reduce::order(arena, of(r#in)?, *dim, *descending, None)?;
            values.insert(second.clone(), positions);
            (first, found)
        }
        Step::Range { out, start, stop, step, dtype } => {
            let bounds = (start.evaluate(sizes)?, stop.evaluate(sizes)?, step.evaluate(sizes)?);
            (out, elementwise::range(arena, bounds, *dtype)?)
        }
        Step::Full { out, shape, value, dtype } => {
            let number = match value {
                Fill::Number(number) => *number,
                Fill::Size { size } => Number::Int(size.evaluate(sizes)?),
            };
            (out, elementwise::fill(arena, &shape_of(shape)?, number, *dtype)?)
        }
        Step::Lookup(_) | Step::Weight { .. } => unreachable!("made ready when the plan was loaded"),
    };
    values.insert(out.clone(), result);
    Ok(())
}

#[cfg(test)]
mod tests;
