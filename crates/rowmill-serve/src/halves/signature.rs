//! The signature of a bundle: inputs and outputs of the model, and the tensors of its halves.

use std::collections::HashMap;

use serde::Deserialize;

use crate::plan::{Array, Input, Size, Sizes, Values};
use crate::transform::Transform;
use crate::{Failure, Per, Status, Tensor, TensorName, TensorSpec};

/// `signature.json` of a bundle.
#[derive(Debug, Deserialize)]
pub(crate) struct Signature {
    pub(crate) inputs: Vec<Input>,
    outputs: Vec<Option<String>>,
    output_shapes: Vec<Input>,
    #[serde(default)]
    crossing: Vec<Input>,
    #[serde(default)]
    reply: Vec<Input>,
    halves: HashMap<String, HalfSignature>,
}

/// The values that a half takes and makes, by name and in order.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct HalfSignature {
    /// Its inputs.
    pub(crate) inputs: Vec<String>,
    /// Its outputs.
    pub(crate) outputs: Vec<String>,
}

impl Signature {
    /// Read `signature.json`.
    ///
    /// # Errors
    /// When it is no signature, or an output is a constant.
    pub(crate) fn parse(json: &str) -> Result<Self, Failure> {
        let signature: Self = serde_json::from_str(json).map_err(|error| {
            Failure::new(Status::Failed, format!("signature.json cannot be read: {error}"))
        })?;
        if signature.outputs.iter().any(Option::is_none) {
            return Err(Failure::new(Status::Failed, "an output is None: return only tensors"));
        }
        Ok(signature)
    }

    /// A half by its name, "cpu", "dense" or "post"; `None` where the model has none.
    pub(crate) fn half(&self, name: &str) -> Option<&HalfSignature> {
        self.halves.get(name)
    }

    /// Names of the outputs.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().flatten().map(String::as_str)
    }

    /// The inputs as clients see them.
    pub(crate) fn input_specs(&self) -> Vec<TensorSpec> {
        self.inputs.iter().map(spec).collect()
    }

    /// The outputs as clients see them.
    pub(crate) fn output_specs(&self) -> Vec<TensorSpec> {
        self.output_shapes.iter().map(spec).collect()
    }

    /// Check that a transform makes all inputs.
    ///
    /// # Errors
    /// When it makes others; names what each of the two has.
    pub(crate) fn check_transform(&self, transform: &Transform) -> Result<(), Failure> {
        let made = transform.inputs();
        let is_made = |input: &Input| {
            made.iter().any(|&(name, dtype, width)| {
                let shape_fits = match (&input.shape[..], width) {
                    ([Size::Name(_)], None) => true,
                    ([Size::Name(_), Size::Number(found)], Some(width)) => *found == width as i64,
                    _ => false,
                };
                name == input.name && dtype == input.dtype && shape_fits
            })
        };
        if made.len() == self.inputs.len() && self.inputs.iter().all(is_made) {
            return Ok(());
        }
        let inputs: Vec<_> =
            self.inputs.iter().map(|input| (&input.name, input.dtype, &input.shape)).collect();
        let text = format!("transform.json makes the inputs {made:?}, but signature.json has {inputs:?}");
        Err(Failure::new(Status::Failed, text))
    }

    /// Check what arrives at the dense half.
    ///
    /// # Errors
    /// When a tensor is missing or has another type or shape than the signature says.
    pub(crate) fn check_crossing(&self, values: &Values) -> Result<(), Failure> {
        crate::plan::bind(&self.crossing, values).map(drop)
    }

    /// Rows that a request with these inputs will add to a batch of the dense half; 1 where they do not tell, and `u32::MAX`
    /// where they are more.
    pub(crate) fn rows(&self, inputs: &[Tensor]) -> u32 {
        let mut sizes = Sizes::new();
        // Inputs of the user may have one row, which is repeated.
        for is_of_user in [false, true] {
            for (about, tensor) in self.inputs.iter().zip(inputs) {
                if (about.per == Per::User) == is_of_user {
                    for (size, &actual) in about.shape.iter().zip(&tensor.shape) {
                        let actual = i64::try_from(actual).unwrap_or(i64::MAX);
                        if let Some((name, number)) = size.solve(actual) {
                            sizes.entry(name.to_owned()).or_insert(number);
                        }
                    }
                }
            }
        }
        let Some(first) = self.crossing.first().and_then(|value| value.shape.first()) else { return 1 };
        match first.evaluate(&sizes) {
            Ok(rows) if rows < 0 => 1,
            Ok(rows) => u32::try_from(rows).unwrap_or(u32::MAX),
            // A product of known sizes overflows only if one of them is huge.
            Err(_) if sizes.values().any(|&size| size > u32::MAX.into()) => u32::MAX,
            Err(_) => 1,
        }
    }

    /// Whether requests can be joined along their first dimension: each tensor that crosses has the batch, one size for
    /// all of them, as its first dimension and nowhere else.
    pub(crate) fn can_join(&self) -> bool {
        let batch = self.crossing.first().and_then(|value| match value.shape.first() {
            Some(Size::Name(name)) => Some(name),
            _ => None,
        });
        let Some(batch) = batch else { return false };
        self.crossing.iter().chain(&self.reply).all(|value| match value.shape.split_first() {
            Some((Size::Name(first), rest)) => {
                first == batch && rest.iter().all(|size| matches!(size, Size::Number(_)))
            }
            _ => false,
        })
    }
}

fn spec(value: &Input) -> TensorSpec {
    let fixed = |size: &Size| match size {
        Size::Number(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    TensorSpec {
        name: value.name.clone(),
        dtype: value.dtype,
        shape: value.shape.iter().map(fixed).collect(),
        per: value.per,
    }
}

/// Tensors that are numbered as `names` are, as values by name.
///
/// # Errors
/// When a number occurs twice, is unknown or missing.
pub(crate) fn values_of(names: &[String], tensors: Vec<Tensor>) -> Result<Values, Failure> {
    let mut values = Values::new();
    for tensor in tensors {
        let TensorName::Number(number) = tensor.name else {
            return Err(Failure::invalid("a tensor has a name in place of its number"));
        };
        let name = names.get(usize::from(number)).ok_or_else(|| {
            Failure::invalid(format!("tensor {number} is not among the {} that are taken", names.len()))
        })?;
        let shape = tensor.shape.iter().map(|&size| size as usize).collect();
        values.insert(name.clone(), Array { dtype: tensor.dtype, shape, data: tensor.data });
    }
    match names.iter().find(|name| !values.contains_key(*name)) {
        Some(missing) => Err(Failure::invalid(format!("tensor {missing:?} is missing"))),
        None => Ok(values),
    }
}

/// The values of these names, as tensors with numbers.
///
/// # Errors
/// When a value is missing.
pub(crate) fn tensors_of<'n>(
    names: impl IntoIterator<Item = &'n str>,
    values: &Values,
) -> Result<Vec<Tensor>, Failure> {
    (0..)
        .zip(names)
        .map(|(number, name)| {
            let missing = || Failure::new(Status::Failed, format!("no half of the model makes {name:?}"));
            let array = values.get(name).ok_or_else(missing)?;
            let shape: Vec<u64> = array.shape.iter().map(|&size| size as u64).collect();
            Ok(Tensor::new(TensorName::Number(number), array.dtype, &shape, array.data.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, DType};

    /// The rows of a request whose one tensor has `rows` items without elements. `crossing` is the first dimension of what
    /// crosses.
    fn rows(crossing: &str, rows: u64) -> u32 {
        let signature = Signature::parse(&format!(
            r#"{{
                "inputs": [{{"name": "item", "dtype": "uint8", "shape": ["b", 0], "per": "item"}}],
                "crossing": [{{"name": "x", "dtype": "float32", "shape": [{crossing}, 4]}}],
                "outputs": [], "output_shapes": [], "halves": {{}}
            }}"#
        ))
        .unwrap();
        let tensor = Tensor::new(TensorName::Number(0), DType::UInt8, &[rows, 0], Buffer::default());
        signature.rows(&[tensor])
    }

    #[test]
    fn rows_beyond_32_bits_are_more_than_any_batch_takes() {
        let (name, product, difference) = (r#""b""#, r#"["*", 100, "b"]"#, r#"["+", -1, "b"]"#);
        assert_eq!([name, product, difference].map(|crossing| rows(crossing, 7)), [7, 700, 6]);
        for many in [1 << 32, 10_u64.pow(18), u64::MAX] {
            for crossing in [name, product, difference] {
                assert_eq!(rows(crossing, many), u32::MAX, "{many} rows, {crossing}");
            }
        }
        assert_eq!(rows(r#""unknown""#, 7), 1);
        assert_eq!(rows(difference, 0), 1);
    }
}
