//! Recorded requests with their answers: `examples.safetensors` of a bundle, or a file in the same form.

use std::collections::BTreeMap;
use std::path::Path;

use axum::body::Bytes;
use safetensors::SafeTensors;

use crate::plan::Array;
use crate::{Buffer, DType, Failure};

/// A named input of a request. Its bytes are a part of the file in memory.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) data: Bytes,
}

/// A request and its recorded answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Example {
    /// Inputs in the order of their names.
    pub(super) inputs: Vec<Input>,
    /// Outputs in the order of the signature; none where the file has no answers.
    pub(super) outputs: Vec<Array>,
}

/// Read tensors `N.input.NAME` and `N.output.PLACE`, for examples N from 0 on.
///
/// # Errors
/// When the file cannot be read or has no examples.
pub(super) fn read_examples(path: &Path) -> Result<Vec<Example>, Failure> {
    let path = if path.is_dir() { &path.join("examples.safetensors") } else { path };
    let wrong = |cause: String| {
        Failure::invalid(format!("cannot read recorded requests from {}: {cause}", path.display()))
    };
    let file = Bytes::from(std::fs::read(path).map_err(|error| wrong(error.to_string()))?);
    let tensors = SafeTensors::deserialize(&file).map_err(|error| {
        wrong(format!("it is not a safetensors file ({error}): give a bundle, or a file of that kind"))
    })?;
    let mut examples: BTreeMap<usize, (Vec<Input>, BTreeMap<usize, Array>)> = BTreeMap::new();
    for (key, view) in tensors.iter() {
        let strange = || wrong(format!("tensor {key:?} is called neither N.input.NAME nor N.output.PLACE"));
        let mut parts = key.splitn(3, '.');
        let (Some(number), Some(kind), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(strange());
        };
        let number: usize = number.parse().map_err(|_| strange())?;
        let dtype = DType::of_safetensors(view.dtype()).ok_or_else(|| {
            wrong(format!("tensor {key:?} has type {:?}, which is not served", view.dtype()))
        })?;
        let (shape, example) = (view.shape().to_vec(), examples.entry(number).or_default());
        match kind {
            "input" => {
                let data = file.slice_ref(view.data());
                example.0.push(Input { name: name.into(), dtype, shape, data });
            }
            "output" => {
                let place = name.parse().map_err(|_| strange())?;
                example.1.insert(place, Array { dtype, shape, data: Buffer::from(view.data()) });
            }
            _ => return Err(strange()),
        }
    }
    if examples.is_empty() {
        return Err(wrong("it has none".into()));
    }
    let with_inputs = examples.into_iter().map(|(number, (mut inputs, outputs))| {
        if inputs.is_empty() {
            return Err(wrong(format!("example {number} has no input")));
        }
        inputs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Example { inputs, outputs: outputs.into_values().collect() })
    });
    with_inputs.collect()
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;

    fn write(path: &Path, names: &[&str], dtype: Dtype) {
        let data = [0_u8; 8];
        let views = names
            .iter()
            .map(|name| (*name, TensorView::new(dtype, vec![1], &data[..dtype.bitsize() / 8]).unwrap()));
        std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    }

    #[test]
    fn examples_keep_their_numbers_names_and_places() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("examples.safetensors");
        write(&path, &["10.input.b", "2.input.b.c", "2.input.a", "2.output.1", "2.output.0"], Dtype::F32);
        for path in [&path, folder.path()] {
            let examples = read_examples(path).unwrap();
            let names: Vec<Vec<_>> = examples
                .iter()
                .map(|example| example.inputs.iter().map(|input| input.name.as_str()).collect())
                .collect();
            assert_eq!(names, [vec!["a", "b.c"], vec!["b"]]);
            assert_eq!(examples[0].outputs.len(), 2);
            assert_eq!(examples[0].inputs[0].data.len(), 4);
            assert!(examples[1].outputs.is_empty());
        }
    }

    #[test]
    fn files_without_requests_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (names, why) in [
            (vec![], "it has none"),
            (vec!["weights"], "\"weights\""),
            (vec!["x.input.a"], "\"x.input.a\""),
            (vec!["0.inputs.a"], "\"0.inputs.a\""),
            (vec!["0.output.a"], "\"0.output.a\""),
            (vec!["0.output.0"], "example 0 has no input"),
        ] {
            write(&path, &names, Dtype::F32);
            let error = read_examples(&path).unwrap_err();
            assert!(error.text.contains(why) && error.text.contains("file"), "{error} lacks {why:?}");
        }
        write(&path, &["0.input.a"], Dtype::U64);
        assert!(read_examples(&path).unwrap_err().text.contains("U64"));
        std::fs::write(&path, b"no safetensors").unwrap();
        assert!(read_examples(&path).unwrap_err().text.contains("file"));
        assert!(read_examples(&folder.path().join("absent")).unwrap_err().text.contains("absent"));
    }
}
