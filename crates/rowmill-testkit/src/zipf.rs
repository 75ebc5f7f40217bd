//! The exact Zipf distribution, in constant time and memory.

use crate::Rng64;

/// Ranks in `[0, size)`; rank k has a probability proportional to (k + 1)^-exponent.
///
/// Rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone
/// discrete distributions", 1996): the integral H of x^-exponent is inverted, and draws that would favour a
/// rank are rejected, which is rare. It needs no table and no approximation of the harmonic number.
#[derive(Clone, Debug)]
pub struct Zipf {
    size: f64,
    exponent: f64,
    integral_first: f64,
    integral_last: f64,
    accept_within: f64,
}

impl Zipf {
    /// Ranks in `[0, size)`. Exponent 0 is the uniform distribution.
    ///
    /// # Panics
    /// When `size` is 0 or above 2^53, or `exponent` is negative, NaN or infinite.
    pub fn new(size: u64, exponent: f64) -> Self {
        assert!((1..=1 << 53).contains(&size), "size must be in [1, 2^53], got {size}");
        assert!(exponent >= 0.0 && exponent.is_finite(), "exponent must be finite and >= 0, got {exponent}");
        let mut zipf =
            Self { size: size as f64, exponent, integral_first: 0.0, integral_last: 0.0, accept_within: 0.0 };
        zipf.integral_first = zipf.integral(1.5) - 1.0;
        zipf.integral_last = zipf.integral(zipf.size + 0.5);
        zipf.accept_within = 2.0 - zipf.integral_inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    /// The next rank.
    pub fn draw(&self, rng: &mut Rng64) -> u64 {
        loop {
            let area = self.integral_last + rng.unit() * (self.integral_first - self.integral_last);
            let x = self.integral_inverse(area);
            let k = (x + 0.5).floor().clamp(1.0, self.size);
            if k - x <= self.accept_within || area >= self.integral(k + 0.5) - self.weight(k) {
                return k as u64 - 1;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// H(x) = (x^(1 - exponent) - 1) / (1 - exponent), or ln x if the exponent is 1.
    fn integral(&self, x: f64) -> f64 {
        let power = (1.0 - self.exponent) * x.ln();
        x.ln() * if power.abs() > 1e-8 { power.exp_m1() / power } else { 1.0 + power / 2.0 }
    }

    fn integral_inverse(&self, area: f64) -> f64 {
        // Rounding can move the smallest areas just below the pole of the logarithm.
        let power = (area * (1.0 - self.exponent)).max(-1.0);
        (area * if power.abs() > 1e-8 { power.ln_1p() / power } else { 1.0 - power / 2.0 }).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probability of every rank, by the definition.
    fn chances(size: u64, exponent: f64) -> Vec<f64> {
        let weights: Vec<f64> = (1..=size).map(|k| (k as f64).powf(-exponent)).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    #[test]
    fn every_rank_is_as_frequent_as_defined() {
        const DRAWS: u64 = 400_000;
        for exponent in [0.0, 0.5, 0.99, 1.0, 1.000_000_001, 1.05, 2.0, 4.0] {
            for size in [1, 2, 3, 60] {
                let zipf = Zipf::new(size, exponent);
                let mut rng = Rng64::new(size + 17);
                let mut counts = vec![0_u64; size as usize];
                for _ in 0..DRAWS {
                    counts[zipf.draw(&mut rng) as usize] += 1;
                }
                for (rank, (count, chance)) in counts.iter().zip(chances(size, exponent)).enumerate() {
                    let expected = chance * DRAWS as f64;
                    let deviation = (expected * (1.0 - chance)).sqrt().max(1.0);
                    assert!(
                        (*count as f64 - expected).abs() < 5.0 * deviation,
                        "rank {rank} of {size}, exponent {exponent}: {count}, expected {expected:.0}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_hot_part_of_many_ids_is_as_hot_as_defined() {
        const DRAWS: usize = 1_000_000;
        let (size, hot) = (8_000_000, 1_800_000);
        let share: f64 = chances(size, 0.99)[..hot].iter().sum();
        let zipf = Zipf::new(size, 0.99);
        let mut rng = Rng64::new(3);
        let hits = (0..DRAWS).filter(|_| zipf.draw(&mut rng) < hot as u64).count();
        let found = hits as f64 / DRAWS as f64;
        assert!((found - share).abs() < 0.002, "{found} of draws are hot, expected {share}");
    }

    #[test]
    fn the_largest_size_stays_in_range() {
        let zipf = Zipf::new(1 << 53, 1.2);
        let mut rng = Rng64::new(4);
        assert!((0..10_000).all(|_| zipf.draw(&mut rng) < 1 << 53));
    }
}
