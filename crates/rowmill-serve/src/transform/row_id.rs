//! Maps raw ids to ids of rows: the value itself, a hash, or the position in a vocabulary.

/// Row ids of a vocabulary before its first value: of unknown and of missing values.
const OUT_OF_VOCABULARY: i64 = 0;
const MISSING_IN_VOCABULARY: i64 = 1;
const FIRST_IN_VOCABULARY: i64 = 2;

/// One of the three mappings, with its parameters. Features are columns of ids by their number.
#[derive(Debug)]
pub(super) enum RowIds {
    /// The raw id.
    Full,
    /// A hash modulo `buckets`.
    Hash {
        buckets: u64,
        /// What distinguishes equal values of two features, by feature.
        salts: Box<[u64]>,
    },
    /// The known values of each feature.
    Vocabulary(Vec<Known>),
}

/// The values of a feature that have rows.
#[derive(Debug)]
pub(super) struct Known {
    sorted: Box<[i64]>,
    /// The position of each of them in the vocabulary. None: the same, as long as the vocabulary has not grown.
    positions: Option<Box<[u32]>>,
}

impl Known {
    /// From values in the order of their rows.
    ///
    /// # Errors
    /// A value that occurs twice.
    pub(super) fn new(values: Box<[i64]>) -> Result<Self, i64> {
        if values.is_sorted_by(|one, next| one < next) {
            return Ok(Self { sorted: values, positions: None });
        }
        let mut positions: Box<[u32]> = (0..values.len() as u32).collect();
        positions.sort_unstable_by_key(|&at| values[at as usize]);
        let sorted: Box<[i64]> = positions.iter().map(|&at| values[at as usize]).collect();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(pair[0]),
            None => Ok(Self { sorted, positions: Some(positions) }),
        }
    }

    fn position(&self, value: i64) -> Option<i64> {
        let at = self.sorted.binary_search(&value).ok()?;
        Some(self.positions.as_ref().map_or(at as i64, |positions| i64::from(positions[at])))
    }
}

impl RowIds {
    /// A hash modulo a number of buckets, for features with these numbers.
    pub(super) fn hash(buckets: u64, numbers: &[u64]) -> Self {
        Self::Hash { buckets, salts: numbers.iter().map(|number| mix64(number.wrapping_add(1))).collect() }
    }

    /// The row of a missing value, whose raw id is `missing`.
    pub(super) fn of_missing(&self, missing: i64) -> i64 {
        match self {
            Self::Full => missing,
            Self::Hash { buckets, .. } => buckets.cast_signed(),
            Self::Vocabulary(_) => MISSING_IN_VOCABULARY,
        }
    }

    /// The row of a raw id that is not missing.
    pub(super) fn of(&self, feature: usize, raw: i64) -> i64 {
        match self {
            Self::Full => raw,
            Self::Hash { buckets, salts } => {
                (mix64(raw.cast_unsigned() ^ salts[feature]) % buckets).cast_signed()
            }
            Self::Vocabulary(known) => {
                known[feature].position(raw).map_or(OUT_OF_VOCABULARY, |at| at + FIRST_IN_VOCABULARY)
            }
        }
    }
}

/// A bijection of 64-bit words whose output bits all depend on all input bits (Stafford's variant 13).
fn mix64(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
