//! Quantiles of the normal distribution from basic arithmetic only, so that every machine and C library gives
//! the same bits.
//!
//! Wichura 1988, "Algorithm AS 241: The Percentage Points of the Normal Distribution", routine PPND16:
//! relative error about 1e-16. The logarithm is a series of this file.

use std::f64::consts::{LN_2, SQRT_2};

/// Half the width of the central region.
const CENTRE: f64 = 0.425;

/// Probability at which the far tail starts: `exp(-25)`.
const FAR: f64 = 1.388_794_386_496_402e-11;

const CENTRE_ABOVE: [f64; 8] = [
    3.387_132_872_796_366_5,
    133.141_667_891_784_38,
    1_971.590_950_306_551_3,
    13_731.693_765_509_46,
    45_921.953_931_549_87,
    67_265.770_927_008_7,
    33_430.575_583_588_13,
    2_509.080_928_730_122_7,
];
const CENTRE_BELOW: [f64; 8] = [
    1.0,
    42.313_330_701_600_91,
    687.187_007_492_057_9,
    5_394.196_021_424_751,
    21_213.794_301_586_597,
    39_307.895_800_092_71,
    28_729.085_735_721_943,
    5_226.495_278_852_854,
];
const NEAR_ABOVE: [f64; 8] = [
    1.423_437_110_749_683_5,
    4.630_337_846_156_546,
    5.769_497_221_460_691,
    3.647_848_324_763_204_5,
    1.270_458_252_452_368_4,
    0.241_780_725_177_450_6,
    0.022_723_844_989_269_184,
    7.745_450_142_783_414e-4,
];
const NEAR_BELOW: [f64; 8] = [
    1.0,
    2.053_191_626_637_759,
    1.676_384_830_183_803_8,
    0.689_767_334_985_1,
    0.148_103_976_427_480_08,
    0.015_198_666_563_616_457,
    5.475_938_084_995_345e-4,
    1.050_750_071_644_416_9e-9,
];
const FAR_ABOVE: [f64; 8] = [
    6.657_904_643_501_103,
    5.463_784_911_164_114,
    1.784_826_539_917_291_3,
    0.296_560_571_828_504_87,
    0.026_532_189_526_576_124,
    0.001_242_660_947_388_078_4,
    2.711_555_568_743_487_6e-5,
    2.010_334_399_292_288e-7,
];
const FAR_BELOW: [f64; 8] = [
    1.0,
    0.599_832_206_555_888,
    0.136_929_880_922_735_8,
    0.014_875_361_290_850_615,
    7.868_691_311_456_133e-4,
    1.846_318_317_510_054_8e-5,
    1.421_511_758_316_446e-7,
    2.044_263_103_389_939_8e-15,
];

/// The `z` that a standard normal variable falls below with probability `p`, `0 < p < 1`.
fn quantile(p: f64) -> f64 {
    let tail = tail_of(p);
    if tail < FAR {
        let r = (-ln(tail)).sqrt() - 5.0;
        with_sign_of(p, polynomial(&FAR_ABOVE, r) / polynomial(&FAR_BELOW, r))
    } else {
        quantile_near(p)
    }
}

/// Replace each probability by its [`quantile`].
#[inline(always)]
pub(crate) fn quantiles(probabilities: &mut [f64]) {
    let far = probabilities.iter().fold(false, |far, &p| far | (tail_of(p) < FAR));
    if far {
        // Only distributions truncated to a far tail reach this branch.
        for value in probabilities {
            *value = quantile(*value);
        }
    } else {
        for value in probabilities {
            *value = quantile_near(*value);
        }
    }
}

/// The quantile outside the far tails. Both formulas are computed and one is selected: vectorised, that is
/// faster than a branch that one draw in seven takes.
#[inline(always)]
fn quantile_near(p: f64) -> f64 {
    let q = p - 0.5;
    let r = CENTRE * CENTRE - q * q;
    let centre = q * polynomial(&CENTRE_ABOVE, r) / polynomial(&CENTRE_BELOW, r);
    let r = (-ln(tail_of(p))).sqrt() - 1.6;
    let near = with_sign_of(p, polynomial(&NEAR_ABOVE, r) / polynomial(&NEAR_BELOW, r));
    if q.abs() <= CENTRE { centre } else { near }
}

/// The smaller of `p` and `1 - p`.
#[inline(always)]
fn tail_of(p: f64) -> f64 {
    if p < 0.5 { p } else { 1.0 - p }
}

#[inline(always)]
fn with_sign_of(p: f64, z: f64) -> f64 {
    if p < 0.5 { -z } else { z }
}

/// The probability of falling below `z <= 0`: the `p` whose quantile is `z`. Found by bisection over the
/// positive floats, which is fast enough because it runs twice per table, never per row.
pub(crate) fn lower_tail(z: f64) -> f64 {
    debug_assert!(z <= 0.0);
    let (mut low, mut high) = (f64::MIN_POSITIVE.to_bits(), 0.5_f64.to_bits());
    while high - low > 1 {
        let middle = low.midpoint(high);
        if quantile(f64::from_bits(middle)) < z { low = middle } else { high = middle }
    }
    f64::from_bits(high)
}

#[inline(always)]
fn polynomial(coefficients: &[f64; 8], x: f64) -> f64 {
    let [lower @ .., highest] = coefficients;
    lower.iter().rev().fold(*highest, |sum, coefficient| sum * x + coefficient)
}

/// Natural logarithm of a positive normal float. With `x = 2^e * m` and `s = (m - 1) / (m + 1)`, it is
/// `e ln 2 + 2 (s + s^3 / 3 + s^5 / 5 + ...)`. `|s| <= 0.172`, so eleven terms are enough.
#[inline(always)]
fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits(bits & MANTISSA | 1.0_f64.to_bits());
    let upper = mantissa > SQRT_2;
    let mantissa = if upper { mantissa * 0.5 } else { mantissa };
    let exponent = (exponent + i64::from(upper)) as f64;
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = (0..10).rev().fold(2.0 / 21.0, |sum, k| sum * square + 2.0 / f64::from(2 * k + 1));
    exponent * LN_2 + s * series
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference values from Wichura's paper and from 50-digit arithmetic.
    #[test]
    fn known_quantiles() {
        for (p, z) in [
            (0.25, -0.674_489_750_196_081_7),
            (0.001, -3.090_232_306_167_813_5),
            (1e-20, -9.262_340_089_798_408),
            (0.975, 1.959_963_984_540_054),
        ] {
            assert!((quantile(p) - z).abs() < 1e-14 * z.abs(), "quantile({p}) = {}", quantile(p));
        }
        assert_eq!(quantile(0.5), 0.0);
    }

    #[test]
    fn logarithm_agrees_with_the_c_library() {
        let mut x = 1e-300;
        while x < 1.0 {
            assert!((ln(x) - x.ln()).abs() <= 4.0 * f64::EPSILON * x.ln().abs().max(1e-3), "ln({x})");
            x *= 1.37;
        }
    }

    #[test]
    fn lower_tail_inverts_the_quantile() {
        for (z, p) in [(-2.0, 0.022_750_131_948_179_21), (-6.0, 9.865_876_450_376_98e-10), (0.0, 0.5)] {
            assert!((lower_tail(z) - p).abs() <= 1e-13 * p, "lower_tail({z}) = {}", lower_tail(z));
        }
        assert!(lower_tail(-50.0) < 1e-300);
    }
}
