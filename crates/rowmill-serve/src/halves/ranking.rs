//! Ranking requests: repeats inputs of the user for all candidates, and selects the best candidates.

use super::Signature;
use crate::plan::{Array, Size, Sizes, Values};
use crate::{Arena, DType, Failure, Per};

/// How many candidates a request wants back, and by which output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// Candidates at most; 1 at least.
    pub count: u64,
    /// The number of the output that scores them.
    pub output: usize,
}

/// Repeat inputs of `user` that have one row, where the signature has them with a row per candidate. A ragged one,
/// `X_offsets` with `X_values` and `X_weights`, has the bags of one row. The candidates are counted by the inputs of `item`,
/// which may be ragged, too.
///
/// # Errors
/// When the arena has no room, or offsets do not fit their values.
pub(super) fn repeat_user_inputs(
    signature: &Signature,
    arena: &Arena,
    values: &mut Values,
) -> Result<(), Failure> {
    let (mut candidates, mut one) = (Sizes::new(), Sizes::new());
    for input in signature.inputs.iter().filter(|input| input.per == Per::Item) {
        let found = input.shape.first().zip(values.get(&input.name).and_then(|array| array.shape.first()));
        let Some((size, &actual)) = found else { continue };
        let Some((name, number)) = size.solve(actual as i64) else { continue };
        candidates.entry(name.to_owned()).or_insert(number);
        // A model whose inputs are all ragged has a name for the number of offsets: one more than there are rows.
        let is_of_offsets = matches!(size, Size::Name(_)) && is_offsets(signature, &input.name);
        one.entry(name.to_owned()).or_insert(if is_of_offsets { 2 } else { 1 });
    }
    for input in signature.inputs.iter().filter(|input| input.per == Per::User) {
        let found = input.shape.first().zip(values.get(&input.name));
        let Some((size, array)) = found else { continue };
        let (Ok(expected), Ok(once)) = (size.of_tensor(&candidates), size.of_tensor(&one)) else { continue };
        if expected == once || array.shape.first() != Some(&once) {
            continue;
        }
        match input.name.strip_suffix("offsets") {
            // Offsets are one more than bags, for one row and for all.
            Some(of) if once > 1 && expected > 0 && (expected - 1).is_multiple_of(once - 1) => {
                repeat_bags(arena, values, of, (expected - 1) / (once - 1))?;
            }
            _ if once == 1 => {
                let array = repeated(arena, array, expected)?;
                values.insert(input.name.clone(), array);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether an input holds the offsets of a ragged one.
fn is_offsets(signature: &Signature, name: &str) -> bool {
    let values = name.strip_suffix("offsets").map(|of| format!("{of}values"));
    values.is_some_and(|values| signature.inputs.iter().any(|input| input.name == values))
}

/// Repeat each bag of the ragged input whose parts begin with `of`, next to itself: bags are ordered by feature, then row.
fn repeat_bags(arena: &Arena, values: &mut Values, of: &str, rows: usize) -> Result<(), Failure> {
    let name = format!("{of}offsets");
    let offsets = values.get(&name).map(Array::to_i64).unwrap_or_default();
    // Before the copies: those of empty bags take time and no memory.
    let copies = offsets.len().checked_sub(1).and_then(|bags| bags.checked_mul(rows)?.checked_add(1));
    let fits =
        |&count: &usize| count.checked_mul(DType::Int64.bytes()).is_some_and(|bytes| bytes <= arena.bytes());
    let count = copies.filter(fits).ok_or_else(|| {
        let bytes = arena.bytes();
        Failure::invalid(format!(
            "input {name:?} repeated for {rows} candidates does not fit into the arena of {bytes} bytes: send \
             fewer candidates, or raise wire_memory"
        ))
    })?;
    for part in ["values", "weights"].map(|part| format!("{of}{part}")) {
        let Some(array) = values.get(&part) else { continue };
        let count = array.shape.first().copied().unwrap_or(0);
        let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else { continue };
        if first != 0 || last != count as i64 || !offsets.is_sorted() {
            return Err(Failure::invalid(format!(
                "input {name:?} must run from 0 to {count}, the items of {part:?}, and never decrease; it runs from {first} to {last}"
            )));
        }
        let mut shape = array.shape.clone();
        let too_many = || Failure::invalid(format!("{rows} copies of {part:?} do not fit into memory"));
        shape[0] = count.checked_mul(rows).ok_or_else(too_many)?;
        let width = array.data.len().checked_div(count).unwrap_or(0);
        let array = Array::make(arena, array.dtype, &shape, |out| {
            let mut rest = out;
            for bag in offsets.windows(2) {
                let bag = &array.data[bag[0] as usize * width..bag[1] as usize * width];
                for _ in 0..rows {
                    let (target, behind) = rest.split_at_mut(bag.len());
                    target.copy_from_slice(bag);
                    rest = behind;
                }
            }
            Ok(())
        })?;
        values.insert(part, array);
    }
    let repeated = Array::make(arena, DType::Int64, &[count], |out| {
        let lengths = offsets.windows(2).flat_map(|bag| std::iter::repeat_n(bag[1] - bag[0], rows));
        let ends = lengths.scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        for (out, offset) in out.as_chunks_mut().0.iter_mut().zip(std::iter::once(0).chain(ends)) {
            *out = offset.to_le_bytes();
        }
        Ok(())
    })?;
    values.insert(name, repeated);
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
    /// The best scores and their positions: highest first, equal scores in the order of candidates, NaN last.
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

    fn integers(values: &[i64]) -> Array {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Array { dtype: DType::Int64, shape: vec![values.len()], data: Buffer::from(&data[..]) }
    }

    /// Values, offsets and weights.
    type Bags = (Vec<i64>, Vec<i64>, Vec<f32>);

    /// The bags of two features for `rows` candidates, given the values and offsets of one row.
    fn ragged(values: &[i64], offsets: &[i64], rows: usize) -> Result<Bags, Failure> {
        let signature = Signature::parse(
            r#"{
                "inputs": [
                    {"name": "x_values", "dtype": "int64", "shape": ["n"], "per": "user"},
                    {"name": "x_offsets", "dtype": "int64", "shape": [["+", 1, ["*", 2, "b"]]], "per": "user"},
                    {"name": "x_weights", "dtype": "float32", "shape": ["n"], "per": "user"},
                    {"name": "item", "dtype": "float32", "shape": ["b"], "per": "item"}
                ],
                "outputs": [], "output_shapes": [], "halves": {}
            }"#,
        )
        .unwrap();
        let weights: Vec<f32> = values.iter().map(|&value| value as f32 / 2.0).collect();
        let given = [
            ("x_values", integers(values)),
            ("x_offsets", integers(offsets)),
            ("x_weights", floats(&weights, &[weights.len()])),
            ("item", floats(&vec![0.0; rows], &[rows])),
        ];
        let mut given: Values = given.map(|(name, array)| (name.to_owned(), array)).into();
        repeat_user_inputs(&signature, &arena(), &mut given)?;
        crate::plan::bind(&signature.inputs, &given)?;
        Ok((given["x_values"].to_i64(), given["x_offsets"].to_i64(), given["x_weights"].to_f32()))
    }

    #[test]
    fn ragged_inputs_per_user_are_repeated_bag_by_bag() {
        let (values, offsets, weights) = ragged(&[7, 8, 9], &[0, 2, 3], 3).unwrap();
        assert_eq!(values, [7, 8, 7, 8, 7, 8, 9, 9, 9]);
        assert_eq!(offsets, [0, 2, 4, 6, 7, 8, 9]);
        assert_eq!(weights, [3.5, 4.0, 3.5, 4.0, 3.5, 4.0, 4.5, 4.5, 4.5]);
        // One candidate, none, and empty bags.
        assert_eq!(ragged(&[7, 8], &[0, 0, 2], 1).unwrap().1, [0, 0, 2]);
        assert_eq!(ragged(&[7, 8], &[0, 0, 2], 0).unwrap(), (vec![], vec![0], vec![]));
        assert_eq!(ragged(&[], &[0, 0, 0], 2).unwrap(), (vec![], vec![0; 5], vec![]));
        // With a row per candidate they stay as they are.
        let each = ragged(&[1, 2, 3], &[0, 1, 1, 2, 3], 2).unwrap();
        assert_eq!((each.0, each.1), (vec![1, 2, 3], vec![0, 1, 1, 2, 3]));
    }

    /// The values and offsets of the user, and another input of the user, for candidates of which each has a bag. `sizes` are
    /// those of all offsets, and of the rows of the other input.
    fn all_ragged(sizes: [&str; 2], bags: &[i64], rows: usize) -> Result<Bags, Failure> {
        let [offsets, batch] = sizes;
        let signature = Signature::parse(&format!(
            r#"{{
                "inputs": [
                    {{"name": "u_values", "dtype": "int64", "shape": ["n"], "per": "user"}},
                    {{"name": "u_offsets", "dtype": "int64", "shape": [{offsets}], "per": "user"}},
                    {{"name": "age", "dtype": "float32", "shape": [{batch}, 1], "per": "user"}},
                    {{"name": "i_values", "dtype": "int64", "shape": ["m"], "per": "item"}},
                    {{"name": "i_offsets", "dtype": "int64", "shape": [{offsets}], "per": "item"}}
                ],
                "outputs": [], "output_shapes": [], "halves": {{}}
            }}"#
        ))?;
        let of_items: Vec<i64> = (0..=rows as i64).collect();
        let given = [
            ("u_values", integers(&[7, 8])),
            ("u_offsets", integers(bags)),
            ("age", floats(&[0.5], &[1, 1])),
            ("i_values", integers(&of_items[1..])),
            ("i_offsets", integers(&of_items)),
        ];
        let mut given: Values = given.map(|(name, array)| (name.to_owned(), array)).into();
        repeat_user_inputs(&signature, &arena(), &mut given)?;
        crate::plan::bind(&signature.inputs, &given)?;
        Ok((given["u_values"].to_i64(), given["u_offsets"].to_i64(), given["age"].to_f32()))
    }

    #[test]
    fn candidates_are_counted_where_all_their_inputs_are_ragged() {
        // torch.export names the number of offsets or that of rows.
        for sizes in [[r#""s""#, r#"["+", -1, "s"]"#], [r#"["+", 1, "b"]"#, r#""b""#]] {
            let (values, offsets, age) = all_ragged(sizes, &[0, 2], 3).unwrap();
            assert_eq!((values, offsets), (vec![7, 8, 7, 8, 7, 8], vec![0, 2, 4, 6]));
            assert_eq!(age, [0.5; 3]);
            assert_eq!(all_ragged(sizes, &[0, 2], 1).unwrap().1, [0, 2]);
            assert_eq!(all_ragged(sizes, &[0, 2], 0).unwrap(), (vec![], vec![0], vec![]));
            let error = all_ragged(sizes, &[0, 1, 2], 3).unwrap_err();
            assert!(error.text.contains("items in dimension 0, must have"), "{error}");
        }
    }

    #[test]
    fn more_candidates_than_memory_holds_are_refused_at_once() {
        let signature = Signature::parse(
            r#"{
                "inputs": [
                    {"name": "x_values", "dtype": "int64", "shape": ["n"], "per": "user"},
                    {"name": "x_offsets", "dtype": "int64", "shape": [["+", 1, "b"]], "per": "user"},
                    {"name": "item", "dtype": "float32", "shape": ["b", 0], "per": "item"}
                ],
                "outputs": [], "output_shapes": [], "halves": {}
            }"#,
        )
        .unwrap();
        let repeat = move |offsets: Array, item: Array| {
            let given = [("x_values", integers(&[])), ("x_offsets", offsets), ("item", item)];
            let mut given: Values = given.map(|(name, array)| (name.to_owned(), array)).into();
            repeat_user_inputs(&signature, &arena(), &mut given)
        };
        assert!(repeat(Array { shape: vec![2, 0], ..integers(&[]) }, floats(&[], &[3, 0])).is_err());
        let (sender, result) = std::sync::mpsc::channel();
        let many = [1 << 40, 10_usize.pow(18), isize::MAX as usize - 1];
        std::thread::spawn(move || {
            for rows in many {
                sender.send(repeat(integers(&[0, 0]), floats(&[], &[rows, 0]))).unwrap();
            }
        });
        for rows in many {
            let error = result.recv_timeout(std::time::Duration::from_secs(20)).unwrap().unwrap_err();
            assert_eq!(error.status, crate::Status::Invalid, "{error}");
            assert!(error.text.contains(&format!("{rows} candidates")), "{error}");
        }
    }

    #[test]
    fn wrong_offsets_of_a_user_are_named() {
        for offsets in [[1, 2, 3], [0, 2, 4], [0, 4, 3], [0, -1, 3]] {
            let error = ragged(&[7, 8, 9], &offsets, 3).unwrap_err();
            assert!(error.text.contains("input \"x_offsets\" must run from 0 to 3"), "{error}");
        }
        let error = ragged(&[7, 8, 9], &[0, 1, 2, 3], 3).unwrap_err();
        assert!(error.text.contains("has 4 items in dimension 0, must have 7"), "{error}");
    }
}
