//! Optimizer steps on the rows of an engine that has no optimizers.

use rowmill_peers::{Engine, PeerError};

use crate::optimizer::Optimizer;

/// Take one optimizer step on every distinct row of `keys`, like the store's own update:
/// `gradient(position, weights, sum)` adds the gradient of a position to the sum of its row.
///
/// Threads that change one row at once may lose a step, depending on the engine.
pub(crate) fn step(
    engine: &dyn Engine,
    optimizer: Optimizer,
    keys: &[u64],
    mut gradient: impl FnMut(usize, &[f32], &mut [f32]),
) -> Result<(), PeerError> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_unstable_by_key(|position| keys[*position]);
    let same: Vec<&[usize]> = order.chunk_by(|one, next| keys[*one] == keys[*next]).collect();
    let distinct: Vec<u64> = same.iter().map(|positions| keys[positions[0]]).collect();
    let dim = engine.row_bytes() / size_of::<f32>() - optimizer.state_floats();
    let mut sum = vec![0.0; dim];
    engine.rmw(&distinct, &mut |number, row| {
        sum.fill(0.0);
        for &position in same[number] {
            gradient(position, &row[..dim], &mut sum);
        }
        optimizer.step(row, &sum);
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::*;

    /// Rows of two floats in a map.
    struct Map(Mutex<BTreeMap<u64, [f32; 2]>>);

    impl Engine for Map {
        fn row_bytes(&self) -> usize {
            8
        }

        fn get(&self, keys: &[u64], rows: &mut [f32]) -> Result<(), PeerError> {
            let map = self.0.lock().unwrap();
            rows.chunks_mut(2).zip(keys).for_each(|(row, key)| row.copy_from_slice(&map[key]));
            Ok(())
        }

        fn settle(&self) -> Result<(), PeerError> {
            Ok(())
        }

        fn put(&self, keys: &[u64], rows: &[f32]) -> Result<(), PeerError> {
            assert!(keys.is_sorted_by(|one, next| one < next), "{keys:?}");
            let mut map = self.0.lock().unwrap();
            rows.chunks(2).zip(keys).for_each(|(row, key)| {
                map.insert(*key, [row[0], row[1]]);
            });
            Ok(())
        }
    }

    #[test]
    fn duplicates_are_summed_into_one_step() {
        let map = Map(Mutex::new([(3, [1.0, 2.0]), (7, [5.0, 6.0])].into()));
        let gradients = [[1e5, 0.0], [0.0, 1e6], [2e5, 3e5]];
        step(&map, Optimizer::Sgd, &[7, 3, 7], |position, weights, sum| {
            assert_eq!(weights[0], if position == 1 { 1.0 } else { 5.0 });
            sum.iter_mut().zip(gradients[position]).for_each(|(sum, value)| *sum += value);
        })
        .unwrap();
        let map = map.0.into_inner().unwrap();
        let near = |row: [f32; 2], to: [f32; 2]| (row[0] - to[0]).abs() + (row[1] - to[1]).abs() < 1e-5;
        assert!(near(map[&3], [1.0, 1.0]) && near(map[&7], [4.7, 5.7]), "{map:?}");
    }
}
