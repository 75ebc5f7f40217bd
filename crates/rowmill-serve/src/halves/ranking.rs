//! Ranking requests: what is given once for all candidates, and the best of them.

use super::Signature;
use crate::plan::{Array, Input, Size, Values};
use crate::{Arena, DType, Failure, Per};

/// How many candidates a request wants back, and by which output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// Candidates at most; 1 at least.
    pub count: u64,
    /// The number of the output that scores them.
    pub output: usize,
}

/// Repeat inputs of `user` that have one row, where the signature has them with a row per candidate.
///
/// # Errors
/// When the arena has no room.
pub(super) fn repeat_user_inputs(
    signature: &Signature,
    arena: &Arena,
    values: &mut Values,
) -> Result<(), Failure> {
    for input in signature.inputs.iter().filter(|input| input.per == Per::User) {
        let Some(Size::Name(batch)) = input.shape.first() else { continue };
        let is_of_batch =
            |other: &&Input| matches!(other.shape.first(), Some(Size::Name(name)) if name == batch);
        let item = signature.inputs.iter().filter(|other| other.per == Per::Item).find(is_of_batch);
        let rows = item.and_then(|item| values.get(&item.name)?.shape.first().copied());
        let (Some(rows), Some(array)) = (rows, values.get_mut(&input.name)) else { continue };
        if rows != 1 && array.shape.first() == Some(&1) {
            *array = repeated(arena, array, rows)?;
        }
    }
    Ok(())
}

fn repeated(arena: &Arena, array: &Array, rows: usize) -> Result<Array, Failure> {
    let mut shape = array.shape.clone();
    shape[0] = rows;
    Array::make(arena, array.dtype, &shape, |out| {
        if !array.data.is_empty() {
            out.chunks_exact_mut(array.data.len()).for_each(|row| row.copy_from_slice(&array.data));
        }
        Ok(())
    })
}

impl TopK {
    /// The best scores and their positions: highest first, of equal ones the first, and what is not a number last.
    ///
    /// # Errors
    /// When the output does not have one score per candidate; names its shape.
    pub(super) fn of(self, arena: &Arena, name: &str, scores: &Array) -> Result<[Array; 2], Failure> {
        if scores.shape.len() != 1 && scores.shape.get(1..) != Some(&[1]) {
            return Err(Failure::invalid(format!(
                "top_k needs one score per candidate, but output {name:?} has shape {:?}: name another one as \
                 top_k_output",
                scores.shape
            )));
        }
        let numbers = scores.to_f64();
        let count = usize::try_from(self.count).unwrap_or(usize::MAX).min(numbers.len());
        let mut order: Vec<usize> = (0..numbers.len()).collect();
        let best_first = |&a: &usize, &b: &usize| {
            let (x, y) = (numbers[a], numbers[b]);
            let by_score = y.partial_cmp(&x).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()));
            by_score.then(a.cmp(&b))
        };
        if count < order.len() {
            order.select_nth_unstable_by(count, best_first);
            order.truncate(count);
        }
        order.sort_unstable_by(best_first);
        let element = scores.dtype.bytes();
        let best = Array::make(arena, scores.dtype, &[count], |out| {
            for (out, &at) in out.chunks_exact_mut(element).zip(&order) {
                out.copy_from_slice(&scores.data[at * element..][..element]);
            }
            Ok(())
        })?;
        let positions = Array::make(arena, DType::Int64, &[count], |out| {
            for (out, &at) in out.as_chunks_mut().0.iter_mut().zip(&order) {
                *out = (at as i64).to_le_bytes();
            }
            Ok(())
        })?;
        Ok([best, positions])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    fn arena() -> Arena {
        Arena::new(1 << 20).unwrap()
    }

    fn floats(values: &[f32], shape: &[usize]) -> Array {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Array { dtype: DType::Float32, shape: shape.to_vec(), data: Buffer::from(&data[..]) }
    }

    fn best(count: u64, scores: &Array) -> Result<(Vec<f32>, Vec<i64>), Failure> {
        let top = TopK { count, output: 0 };
        top.of(&arena(), "p", scores).map(|[scores, positions]| (scores.to_f32(), positions.to_i64()))
    }

    #[test]
    fn the_best_come_first_and_of_equal_ones_the_first() {
        let scores = [0.5, f32::NAN, 0.9, -0.0, 0.9, 0.0, f32::NEG_INFINITY];
        let order = [2, 4, 0, 3, 5, 6, 1];
        for count in 1..=9_usize {
            for shape in [vec![7], vec![7, 1]] {
                let (found, positions) = best(count as u64, &floats(&scores, &shape)).unwrap();
                let expected = &order[..count.min(7)];
                assert_eq!(positions, expected);
                assert!(
                    expected
                        .iter()
                        .zip(found)
                        .all(|(&at, score)| { score.to_bits() == scores[at as usize].to_bits() })
                );
            }
        }
        assert_eq!(best(u64::MAX, &floats(&[], &[0])).unwrap(), (vec![], vec![]));
        for shape in [vec![2, 2], vec![4, 1, 1], vec![2, 1, 2]] {
            let error = best(1, &floats(&[0.0; 4], &shape)).unwrap_err();
            assert!(error.text.contains("one score per candidate, but output \"p\" has shape"), "{error}");
        }
        assert!(best(1, &floats(&[0.0], &[])).is_err());
    }

    #[test]
    fn inputs_per_user_are_repeated_where_the_signature_has_a_row_per_candidate() {
        let signature = Signature::parse(
            r#"{
                "inputs": [
                    {"name": "user", "dtype": "float32", "shape": ["b", 2], "per": "user"},
                    {"name": "once", "dtype": "float32", "shape": ["u", 2], "per": "user"},
                    {"name": "item", "dtype": "float32", "shape": ["b"], "per": "item"}
                ],
                "outputs": [], "output_shapes": [], "halves": {}
            }"#,
        )
        .unwrap();
        let repeated = |user: Array| {
            let once = floats(&[8.0, 9.0], &[1, 2]);
            let item = floats(&[0.0; 3], &[3]);
            let given = [("user", user), ("once", once), ("item", item)];
            let mut values: Values = given.map(|(name, array)| (name.to_owned(), array)).into();
            repeat_user_inputs(&signature, &arena(), &mut values).unwrap();
            assert_eq!(values["once"].shape, [1, 2]);
            (values["user"].shape.clone(), values["user"].to_f32())
        };
        assert_eq!(repeated(floats(&[1.0, 2.0], &[1, 2])), (vec![3, 2], vec![1.0, 2.0, 1.0, 2.0, 1.0, 2.0]));
        // The other checks refuse it.
        assert_eq!(repeated(floats(&[1.0; 4], &[2, 2])).0, [2, 2]);
    }
}
