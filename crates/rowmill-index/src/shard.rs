//! Which shard an id belongs to, and the hash behind it.

use rowmill_splitmix::mix;

/// The hash that selects the bucket within a shard: the high half of the mixed id.
#[inline]
pub fn hash(id: u64) -> u32 {
    (mix(id) >> 32) as u32
}

/// The shard of an id of a sparse table, out of `shards` (a power of two).
///
/// The low bits of the hash select the shard, and the high bits the bucket within it. So the ids of one
/// shard are spread evenly over its buckets.
#[inline]
pub fn shard_of(id: u64, shards: usize) -> usize {
    debug_assert!(shards.is_power_of_two());
    (mix(id) & (shards as u64 - 1)) as usize
}

/// [`shard_of`] and [`hash`] in one.
#[inline]
pub fn shard_and_hash_of(id: u64, shards: usize) -> (u32, u32) {
    let mixed = mix(id);
    ((mixed & (shards as u64 - 1)) as u32, (mixed >> 32) as u32)
}

/// The shard of an id of a dense table: its low bits, so that the ids of one shard are dense as well.
#[inline]
pub fn dense_shard_of(id: u64, shards: usize) -> usize {
    debug_assert!(shards.is_power_of_two());
    (id & (shards as u64 - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids of one shard must fill the buckets of that shard evenly, whatever pattern the ids have:
    /// the sum of squared deviations over 256 bins stays near its expectation of 255.
    #[test]
    fn shard_bits_and_bucket_bits_are_independent() {
        const BINS: usize = 256;
        type Pattern = fn(u64) -> u64;
        let patterns: [(&str, Pattern); 4] = [
            ("consecutive", |i| i),
            ("equal low bits", |i| i << 32),
            ("strided", |i| i * 4096 + 7),
            ("prehashed", |i| mix(i ^ 0x5eed)),
        ];
        for (name, pattern) in patterns {
            for shards in [1, 16, 256] {
                let mut counts = [0_u32; BINS];
                let mut rows = 0;
                for id in (0..400_000 * shards as u64).map(pattern) {
                    if shard_of(id, shards) == shards / 2 {
                        counts[((u128::from(mix(id)) * BINS as u128) >> 64) as usize] += 1;
                        rows += 1;
                    }
                    if rows == 100_000 {
                        break;
                    }
                }
                assert_eq!(rows, 100_000);
                let expected = rows as f64 / BINS as f64;
                let chi_squared: f64 =
                    counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
                assert!((170.0..350.0).contains(&chi_squared), "{name}, {shards} shards: {chi_squared}");
            }
        }
    }
}
