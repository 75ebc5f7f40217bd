//! Warm-up rounds.

use crate::settings::Failure;

/// A miss rate is steady if it falls by at most this fraction below the lowest rate so far...
const STEADY: f64 = 0.01;
/// ...in this many consecutive rounds.
const ROUNDS: usize = 2;

/// Run rounds until the miss rate that they return is steady, at most `limit` rounds. Returns their number.
pub(crate) fn warm_up(
    limit: usize,
    mut round: impl FnMut() -> Result<f64, Failure>,
) -> Result<usize, Failure> {
    let (mut least, mut steady) = (f64::INFINITY, 0);
    for number in 0..limit {
        let misses = round()?;
        steady = if misses < least * (1.0 - STEADY) { 0 } else { steady + 1 };
        if steady == ROUNDS {
            return Ok(number + 1);
        }
        least = least.min(misses);
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(limit: usize, misses: &[f64]) -> usize {
        let mut misses = misses.iter();
        warm_up(limit, || Ok(*misses.next().unwrap())).unwrap()
    }

    #[test]
    fn ends_when_misses_stop_falling() {
        assert_eq!(rounds(9, &[0.5, 0.3, 0.2, 0.199, 0.1985]), 5);
        assert_eq!(rounds(9, &[0.5, 0.3, 0.3, 0.2, 0.2, 0.21]), 6, "one steady round may be chance");
        assert_eq!(rounds(9, &[0.0, 0.0, 0.0]), 3);
    }

    #[test]
    fn ends_at_its_limit() {
        assert_eq!(rounds(3, &[0.4, 0.3, 0.2]), 3);
        assert_eq!(rounds(0, &[]), 0);
    }
}
