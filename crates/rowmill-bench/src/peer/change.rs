//! Changing rows of an engine that only knows get and put.

use crate::optimizer::Optimizer;
use crate::peer::Engine;
use crate::settings::Failure;

/// Take one optimizer step on every distinct row of `keys`, as the store's own update does:
/// `gradient(position, weights, sum)` adds the gradient of a position to the sum of its row.
///
/// Threads that change the same row at once may lose a step: an engine that made them wait would be slower.
pub(crate) fn change(
    engine: &dyn Engine,
    optimizer: Optimizer,
    row_floats: usize,
    keys: &[u64],
    mut gradient: impl FnMut(usize, &[f32], &mut [f32]),
) -> Result<(), Failure> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_unstable_by_key(|position| keys[*position]);
    let mut distinct: Vec<u64> = order.iter().map(|position| keys[*position]).collect();
    distinct.dedup();
    let mut rows = vec![0.0; distinct.len() * row_floats];
    engine.get(&distinct, &mut rows)?;
    let dim = row_floats - optimizer.state_floats();
    let mut sum = vec![0.0; dim];
    let same = order.chunk_by(|one, next| keys[*one] == keys[*next]);
    for (row, positions) in rows.chunks_mut(row_floats).zip(same) {
        sum.fill(0.0);
        for &position in positions {
            gradient(position, &row[..dim], &mut sum);
        }
        optimizer.step(row, &sum);
    }
    engine.put(&distinct, &rows)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::*;

    /// Rows of two floats in a map.
    struct Map(Mutex<BTreeMap<u64, [f32; 2]>>);

    impl Engine for Map {
        fn get(&self, keys: &[u64], rows: &mut [f32]) -> Result<(), Failure> {
            let map = self.0.lock().unwrap();
            rows.chunks_mut(2).zip(keys).for_each(|(row, key)| row.copy_from_slice(&map[key]));
            Ok(())
        }

        fn put(&self, keys: &[u64], rows: &[f32]) -> Result<(), Failure> {
            assert!(keys.is_sorted_by(|one, next| one < next), "{keys:?}");
            let mut map = self.0.lock().unwrap();
            rows.chunks(2).zip(keys).for_each(|(row, key)| {
                map.insert(*key, [row[0], row[1]]);
            });
            Ok(())
        }
    }

    #[test]
    fn duplicates_add_up_to_one_step() {
        let map = Map(Mutex::new([(3, [1.0, 2.0]), (7, [5.0, 6.0])].into()));
        let gradients = [[1e5, 0.0], [0.0, 1e6], [2e5, 3e5]];
        change(&map, Optimizer::Sgd, 2, &[7, 3, 7], |position, weights, sum| {
            assert_eq!(weights[0], if position == 1 { 1.0 } else { 5.0 });
            sum.iter_mut().zip(gradients[position]).for_each(|(sum, value)| *sum += value);
        })
        .unwrap();
        let map = map.0.into_inner().unwrap();
        let near = |row: [f32; 2], to: [f32; 2]| (row[0] - to[0]).abs() + (row[1] - to[1]).abs() < 1e-5;
        assert!(near(map[&3], [1.0, 1.0]) && near(map[&7], [4.7, 5.7]), "{map:?}");
    }
}
