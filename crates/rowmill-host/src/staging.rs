//! How a request becomes stage commands. Each description fits into a command capsule, if no single bag is larger, and each
//! result into one transfer.

use std::borrow::Cow;
use std::ops::Range;

use rowmill_nvme::{
    Command, DAMAGED_BYTE, FeatureRequest, FetchHeader, Form, IdsRequest, Pooling, RowDtype, encode_stage,
};
use rowmill_rows::IdBag;
use zerocopy::IntoBytes;

use crate::rows::Number;

/// Bytes of the header of a description.
const HEADER_BYTES: usize = 16;
/// Bytes of an entry of a feature, and the most that fill up its three parts.
const ENTRY_BYTES: usize = 16 + 3 * 7;

/// Bags of one feature without padding ids, or ids whose rows are wanted.
#[derive(Debug)]
pub(crate) struct Feature<'a> {
    ids: Cow<'a, [u64]>,
    /// One more than bags; empty for rows.
    offsets: Cow<'a, [i64]>,
    weights: Option<Cow<'a, [f32]>>,
    pooling: Pooling,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) transfer_bytes: usize,
    /// Data that a command takes along. More is sent when the node asks for it, and a fetch would overtake it.
    pub(crate) capsule_bytes: usize,
    pub(crate) features: usize,
    pub(crate) vector_bytes: usize,
}

/// Where vectors are written to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Vector `v` of feature `f` at `v * row_stride + f * dim`.
    Columns { row_stride: usize },
    /// Feature after feature.
    InTurn,
}

/// Some bags, or ids, of one feature.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    feature: usize,
    vectors: Range<usize>,
    ids: Range<usize>,
}

/// What one stage command asks for.
#[derive(Debug)]
pub(crate) struct Part {
    pieces: Vec<Piece>,
    pub(crate) vectors: usize,
    /// Whether ids are sent in 4 bytes each.
    is_short: bool,
}

impl<'a> Feature<'a> {
    pub(crate) fn of_bag(bag: &IdBag<'a>) -> Result<Feature<'a>, String> {
        bag.validate().map_err(|error| error.to_string())?;
        let pooling = match bag.pooling {
            rowmill_rows::Pooling::Sum => Pooling::Sum,
            rowmill_rows::Pooling::Mean => Pooling::Mean,
        };
        let Some(padding) = bag.padding.filter(|padding| bag.ids.contains(padding)) else {
            let weights = bag.weights.map(Cow::Borrowed);
            return Ok(Feature { ids: bag.ids.into(), offsets: bag.offsets.into(), weights, pooling });
        };
        let mut offsets = vec![0];
        let mut ids = Vec::with_capacity(bag.ids.len());
        let mut weights = bag.weights.map(|_| Vec::with_capacity(bag.ids.len()));
        for ends in bag.offsets.windows(2) {
            for at in ends[0] as usize..ends[1] as usize {
                if bag.ids[at] != padding {
                    ids.push(bag.ids[at]);
                    if let (Some(kept), Some(all)) = (&mut weights, bag.weights) {
                        kept.push(all[at]);
                    }
                }
            }
            offsets.push(ids.len() as i64);
        }
        Ok(Feature { ids: ids.into(), offsets: offsets.into(), weights: weights.map(Cow::Owned), pooling })
    }

    pub(crate) fn of_ids(ids: &'a [u64]) -> Feature<'a> {
        Feature { ids: ids.into(), offsets: Cow::default(), weights: None, pooling: Pooling::Sum }
    }

    fn vectors(&self, form: Form) -> usize {
        if form == Form::Rows { self.ids.len() } else { self.offsets.len().saturating_sub(1) }
    }

    /// The ids of a vector.
    fn ids_of(&self, form: Form, vector: usize) -> Range<usize> {
        match form {
            Form::Rows => vector..vector + 1,
            Form::Pooled => self.offsets[vector] as usize..self.offsets[vector + 1] as usize,
        }
    }
}

fn has_short_ids(features: &[Feature<'_>]) -> bool {
    // The loop never exits early, so that it vectorizes.
    let all_bits = |feature: &Feature<'_>| feature.ids.iter().fold(0, |bits, &id| bits | id);
    features.iter().all(|feature| u32::try_from(all_bits(feature)).is_ok())
}

/// Split a request. Parts keep the order of features and bags.
///
/// # Errors
///
/// When one bag has more ids than a command holds, or one vector more bytes.
pub(crate) fn plan(features: &[Feature<'_>], form: Form, limits: Limits) -> Result<Vec<Part>, String> {
    let is_short = has_short_ids(features);
    let id_bytes = if is_short { 4 } else { 8 };
    let result_max = limits.transfer_bytes - size_of::<FetchHeader>();
    let mut parts = Vec::new();
    let new = || Part { pieces: Vec::new(), vectors: 0, is_short };
    let mut part = new();
    let mut bytes = HEADER_BYTES;
    for (number, feature) in features.iter().enumerate() {
        let per_id = id_bytes + if feature.weights.is_some() { 4 } else { 0 };
        let mut is_new = true;
        for vector in 0..feature.vectors(form) {
            let ids = feature.ids_of(form, vector);
            let own = ids.len() * per_id + if form == Form::Pooled { 4 } else { 0 };
            let entry = if is_new { ENTRY_BYTES } else { 0 };
            let fits = bytes + entry + own <= limits.capsule_bytes
                && (part.vectors + 1) * limits.vector_bytes <= result_max
                && (!is_new || part.pieces.len() < limits.features);
            if !fits && part.vectors > 0 {
                parts.push(std::mem::replace(&mut part, new()));
                (bytes, is_new) = (HEADER_BYTES, true);
            }
            if !fits {
                if HEADER_BYTES + ENTRY_BYTES + own > limits.transfer_bytes {
                    let most = (limits.transfer_bytes - HEADER_BYTES - ENTRY_BYTES - 4) / per_id;
                    return Err(format!("a bag has {} ids; one command pools at most {most}", ids.len()));
                }
                if limits.vector_bytes > result_max {
                    let bytes = limits.vector_bytes;
                    return Err(format!(
                        "a vector has {bytes} bytes; one command returns at most {result_max}"
                    ));
                }
            }
            if is_new {
                bytes += ENTRY_BYTES;
                part.pieces.push(Piece {
                    feature: number,
                    vectors: vector..vector,
                    ids: ids.start..ids.start,
                });
                is_new = false;
            }
            let piece = part.pieces.last_mut().expect("a piece was begun");
            (piece.vectors.end, piece.ids.end) = (vector + 1, ids.end);
            part.vectors += 1;
            bytes += own;
        }
    }
    if part.vectors > 0 {
        parts.push(part);
    }
    Ok(parts)
}

impl Part {
    /// The command and its data. `numbers` are those of the features' tables.
    pub(crate) fn encode(
        &self,
        namespace: u32,
        handle: u64,
        form: Form,
        dtype: RowDtype,
        numbers: &[u32],
        features: &[Feature<'_>],
    ) -> (Command, Vec<u8>) {
        let arrays: Vec<(Vec<u32>, Vec<u32>)> = self
            .pieces
            .iter()
            .map(|piece| {
                let feature = &features[piece.feature];
                let offsets = match form {
                    Form::Rows => Vec::new(),
                    Form::Pooled => feature.offsets[piece.vectors.clone()]
                        .iter()
                        .map(|&offset| (offset as usize - piece.ids.start) as u32)
                        .collect(),
                };
                let ids = &feature.ids[piece.ids.clone()];
                let short =
                    if self.is_short { ids.iter().map(|&id| id as u32).collect() } else { Vec::new() };
                (offsets, short)
            })
            .collect();
        let requests: Vec<FeatureRequest<'_>> = self
            .pieces
            .iter()
            .zip(&arrays)
            .map(|(piece, (offsets, short))| {
                let feature = &features[piece.feature];
                FeatureRequest {
                    table: numbers[piece.feature],
                    pooling: feature.pooling,
                    offsets,
                    ids: if self.is_short {
                        IdsRequest::Four(short)
                    } else {
                        IdsRequest::Eight(&feature.ids[piece.ids.clone()])
                    },
                    weights: feature.weights.as_ref().map(|weights| &weights[piece.ids.clone()]),
                }
            })
            .collect();
        encode_stage(namespace, handle, form, dtype, &requests)
    }

    /// The damaged vectors of a result, of which the node has counted `count`: number of the feature and of its vector.
    /// None if there are fewer.
    pub(crate) fn damaged(
        &self,
        result: &[u8],
        vector_bytes: usize,
        count: u16,
    ) -> Option<Vec<(usize, usize)>> {
        let vectors =
            self.pieces.iter().flat_map(|piece| piece.vectors.clone().map(|vector| (piece.feature, vector)));
        let is_damaged = |vector: &[u8]| vector.iter().all(|&byte| byte == DAMAGED_BYTE);
        let found = vectors.zip(result.chunks_exact(vector_bytes)).filter(|(_, bytes)| is_damaged(bytes));
        let found: Vec<_> = found.map(|(vector, _)| vector).collect();
        (found.len() >= usize::from(count)).then_some(found)
    }

    /// Write the vectors of the result.
    pub(crate) fn place<T: Number>(
        &self,
        mut result: &[u8],
        features: &[Feature<'_>],
        out: &mut [T],
        place: Place,
        dim: usize,
    ) {
        for piece in &self.pieces {
            let before: usize = features[..piece.feature].iter().map(|feature| feature.ids.len()).sum();
            for vector in piece.vectors.clone() {
                let start = match place {
                    Place::Columns { row_stride } => vector * row_stride + piece.feature * dim,
                    Place::InTurn => (before + vector) * dim,
                };
                let (bytes, rest) = result.split_at(dim * size_of::<T>());
                // Results are little-endian, as this machine is.
                out[start..start + dim].as_mut_bytes().copy_from_slice(bytes);
                result = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rowmill_nvme::Stage;

    use super::*;

    const LIMITS: Limits = Limits { transfer_bytes: 400, capsule_bytes: 250, features: 3, vector_bytes: 8 };

    fn bag<'a>(ids: &'a [u64], offsets: &'a [i64], padding: Option<u64>) -> IdBag<'a> {
        IdBag { ids, offsets, weights: None, padding, pooling: rowmill_rows::Pooling::Sum }
    }

    /// Sums of ids, as a node would answer them: two numbers per vector, the sum and its table.
    fn answer(part: &Part, form: Form, numbers: &[u32], features: &[Feature<'_>]) -> Vec<u8> {
        let (command, data) = part.encode(1, 7, form, RowDtype::Fp32, numbers, features);
        assert!(data.len() <= LIMITS.transfer_bytes, "{} bytes", data.len());
        let stage = Stage::parse(&command, &data, LIMITS.features as u32).unwrap();
        let mut result = Vec::new();
        for feature in &stage.features {
            let ids = feature.ids.to_vec();
            let ends: Vec<usize> = match form {
                Form::Rows => (0..=ids.len()).collect(),
                Form::Pooled => {
                    feature.offsets.iter().map(|offset| offset.get() as usize).chain([ids.len()]).collect()
                }
            };
            for pair in ends.windows(2) {
                let sum: u64 = ids[pair[0]..pair[1]].iter().sum();
                result.extend([sum as f32, feature.table as f32].into_iter().flat_map(f32::to_le_bytes));
            }
        }
        assert!(result.len() <= LIMITS.transfer_bytes - size_of::<FetchHeader>());
        result
    }

    #[test]
    fn parts_fit_into_transfers_and_give_the_whole_result() {
        for high in [0_u64, 1 << 40] {
            for bags in [0, 1, 5, 60] {
                let offsets: Vec<i64> = (0..=bags).map(|bag| bag * (bag + 1) / 2 % 23 + bag * 3).collect();
                let mut offsets = offsets;
                offsets.sort_unstable();
                let base = offsets[0];
                for offset in &mut offsets {
                    *offset -= base;
                }
                let ids: Vec<u64> = (0..*offsets.last().unwrap() as u64).map(|id| id | high).collect();
                let features: Vec<_> =
                    (0..7).map(|_| Feature::of_bag(&bag(&ids, &offsets, Some(3 | high))).unwrap()).collect();
                let numbers: Vec<u32> = (10..17).collect();
                let mut out = vec![0_f32; 14 * bags as usize];
                for part in plan(&features, Form::Pooled, LIMITS).unwrap() {
                    let result = answer(&part, Form::Pooled, &numbers, &features);
                    part.place(&result, &features, &mut out, Place::Columns { row_stride: 14 }, 2);
                }
                for (bag, row) in out.chunks(14).enumerate() {
                    let of_bag = &ids[offsets[bag] as usize..offsets[bag + 1] as usize];
                    let sum: u64 = of_bag.iter().filter(|&&id| id != 3 | high).sum();
                    for (feature, pair) in row.chunks(2).enumerate() {
                        assert_eq!(pair, [sum as f32, 10.0 + feature as f32]);
                    }
                }
            }
        }
    }

    #[test]
    fn as_many_vectors_are_damaged_as_the_node_says() {
        let ids: Vec<u64> = (0..5).collect();
        let features = [Feature::of_ids(&ids[..2]), Feature::of_ids(&ids)];
        let parts = plan(&features, Form::Rows, LIMITS).unwrap();
        assert_eq!((parts.len(), parts[0].vectors), (1, 7));
        let mut result = vec![0; 7 * 8];
        result[4 * 8..5 * 8].fill(DAMAGED_BYTE);
        result[6 * 8] = DAMAGED_BYTE;
        assert_eq!(parts[0].damaged(&result, 8, 1), Some(vec![(1, 2)]));
        assert_eq!(parts[0].damaged(&result, 8, 2), None);
    }

    #[test]
    fn rows_are_copied_in_turn() {
        let ids: Vec<u64> = (0..100).collect();
        let features = [Feature::of_ids(&ids), Feature::of_ids(&[]), Feature::of_ids(&ids[..5])];
        let mut out = vec![0_f32; 2 * 105];
        for part in plan(&features, Form::Rows, LIMITS).unwrap() {
            let result = answer(&part, Form::Rows, &[4, 5, 6], &features);
            part.place(&result, &features, &mut out, Place::InTurn, 2);
        }
        let expected: Vec<f32> = ids
            .iter()
            .map(|&id| [id as f32, 4.0])
            .chain(ids[..5].iter().map(|&id| [id as f32, 6.0]))
            .flatten()
            .collect();
        assert_eq!(out, expected);
    }

    #[test]
    fn what_no_command_holds_is_told() {
        let ids = vec![1_u64; 200];
        let large = [Feature::of_bag(&bag(&ids, &[0, 200], None)).unwrap()];
        assert!(plan(&large, Form::Pooled, LIMITS).unwrap_err().contains("a bag has 200 ids"));
        let wide = Limits { vector_bytes: 400, ..LIMITS };
        let small = [Feature::of_bag(&bag(&ids[..1], &[0, 1], None)).unwrap()];
        assert!(plan(&small, Form::Pooled, wide).unwrap_err().contains("a vector has 400 bytes"));
        assert!(Feature::of_bag(&bag(&ids, &[0, 1], None)).is_err());
    }

    #[test]
    fn weights_follow_their_ids() {
        let bag = IdBag { weights: Some(&[0.5, 1.5, 2.5]), ..bag(&[1, 9, 2], &[0, 2, 3], Some(9)) };
        let feature = Feature::of_bag(&bag).unwrap();
        assert_eq!(feature.ids[..], [1, 2]);
        assert_eq!(feature.offsets[..], [0, 1, 2]);
        assert_eq!(feature.weights.as_deref(), Some(&[0.5, 2.5][..]));
    }
}
