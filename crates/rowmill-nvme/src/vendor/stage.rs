//! Stage: which rows of which tables to pool. The data is read in place.

use zerocopy::little_endian::{F32, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::VENDOR_VERSION;
use crate::command::{Command, Status, io};

/// What a result holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Form {
    /// One vector per bag.
    Pooled = 0,
    /// One vector per id.
    Rows = 1,
}

/// Numbers of a result, or of stored weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RowDtype {
    /// 32-bit floats.
    Fp32 = 0,
    /// bfloat16.
    Bf16 = 1,
}

impl RowDtype {
    pub(crate) fn from_byte(byte: u8) -> Option<RowDtype> {
        [RowDtype::Fp32, RowDtype::Bf16].into_iter().find(|&dtype| dtype as u8 == byte)
    }

    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        if self == RowDtype::Fp32 { 4 } else { 2 }
    }
}

/// How the rows of a bag become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Pooling {
    /// Their sum.
    Sum = 0,
    /// Their mean; zeros for an empty bag.
    Mean = 1,
}

/// Ids of a feature, in the data of a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ids<'a> {
    /// Ids of 4 bytes.
    Four(&'a [U32]),
    /// Ids of 8 bytes.
    Eight(&'a [U64]),
}

impl Ids<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Ids::Four(ids) => ids.len(),
            Ids::Eight(ids) => ids.len(),
        }
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All ids, in order.
    pub fn to_vec(&self) -> Vec<u64> {
        match self {
            Ids::Four(ids) => ids.iter().map(|id| u64::from(id.get())).collect(),
            Ids::Eight(ids) => ids.iter().map(|id| id.get()).collect(),
        }
    }
}

/// One feature of a stage command: bags of ids of one table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feature<'a> {
    /// Number of the table, from log page 0xC0.
    pub table: u32,
    /// How rows are pooled; sum in the form of rows.
    pub pooling: Pooling,
    /// Where each bag starts among the ids: ascending from 0. Empty in the form of rows.
    pub offsets: &'a [U32],
    /// The ids of all bags.
    pub ids: Ids<'a>,
    /// One weight per id; none for unweighted bags.
    pub weights: Option<&'a [F32]>,
}

/// The data of a stage command, parsed and checked. Whether tables and ids exist is for the store to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage<'a> {
    /// The handle of the result.
    pub handle: u64,
    /// The form of the result.
    pub form: Form,
    /// Numbers of the result.
    pub dtype: RowDtype,
    /// The features; their results follow each other in this order.
    pub features: Vec<Feature<'a>>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    version: U16,
    form: u8,
    dtype: u8,
    id_bytes: u8,
    reserved: [u8; 3],
    features: U32,
    bytes: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Entry {
    table: U32,
    pooling: u8,
    has_weights: u8,
    reserved: [u8; 2],
    bags: U32,
    ids: U32,
}

/// Parts of the data start at multiples of this.
const ALIGNMENT: usize = 8;

impl<'a> Stage<'a> {
    /// Parse the data of a stage command.
    ///
    /// # Errors
    ///
    /// [`Status::MALFORMED`] and [`Status::INVALID_OFFSETS`].
    pub fn parse(command: &Command, data: &'a [u8], features_max: u32) -> Result<Stage<'a>, Status> {
        let (header, _) = Header::read_from_prefix(data).map_err(|_| Status::MALFORMED)?;
        let is_supported = header.version.get() == VENDOR_VERSION
            && matches!(header.id_bytes, 4 | 8)
            && header.reserved == [0; 3]
            && (1..=features_max).contains(&header.features.get());
        // Bytes after the description fill a transfer up to a multiple of 4.
        let data =
            data.get(..header.bytes.get() as usize).filter(|_| is_supported).ok_or(Status::MALFORMED)?;
        let form = [Form::Pooled, Form::Rows].into_iter().find(|&form| form as u8 == header.form);
        let (form, dtype) = form.zip(RowDtype::from_byte(header.dtype)).ok_or(Status::MALFORMED)?;
        let rest = data.get(size_of::<Header>()..).ok_or(Status::MALFORMED)?;
        let (entries, _) = <[Entry]>::ref_from_prefix_with_elems(rest, header.features.get() as usize)
            .map_err(|_| Status::MALFORMED)?;
        let mut parts = Parts { data, at: size_of::<Header>() + size_of_val(entries) };
        let features = entries
            .iter()
            .map(|entry| parts.feature(entry, form, header.id_bytes))
            .collect::<Result<Vec<_>, _>>()?;
        if parts.at != data.len() {
            return Err(Status::MALFORMED);
        }
        Ok(Stage { handle: command.quadword(10), form, dtype, features })
    }
}

/// The parts of features, one after the other.
struct Parts<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Parts<'a> {
    fn next<T>(&mut self, count: usize) -> Result<&'a [T], Status>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        let rest = self.data.get(self.at..).ok_or(Status::MALFORMED)?;
        let (part, _) = <[T]>::ref_from_prefix_with_elems(rest, count).map_err(|_| Status::MALFORMED)?;
        self.at += size_of_val(part).next_multiple_of(ALIGNMENT);
        Ok(part)
    }

    fn feature(&mut self, entry: &Entry, form: Form, id_bytes: u8) -> Result<Feature<'a>, Status> {
        let pooling =
            [Pooling::Sum, Pooling::Mean].into_iter().find(|&pooling| pooling as u8 == entry.pooling);
        let pooling = pooling.ok_or(Status::MALFORMED)?;
        let (bags, ids) = (entry.bags.get() as usize, entry.ids.get() as usize);
        let is_plain = bags == 0 && entry.has_weights == 0 && pooling == Pooling::Sum;
        if entry.has_weights > 1 || entry.reserved != [0; 2] || (form == Form::Rows && !is_plain) {
            return Err(Status::MALFORMED);
        }
        let offsets: &[U32] = self.next(bags)?;
        let feature = Feature {
            table: entry.table.get(),
            pooling,
            offsets,
            ids: if id_bytes == 4 { Ids::Four(self.next(ids)?) } else { Ids::Eight(self.next(ids)?) },
            weights: if entry.has_weights == 1 { Some(self.next(ids)?) } else { None },
        };
        let starts_at_zero = match offsets.first() {
            Some(first) => first.get() == 0,
            None => form == Form::Rows || ids == 0,
        };
        let ascends = offsets.is_sorted_by_key(|offset| offset.get());
        let is_within = offsets.last().is_none_or(|last| last.get() as usize <= ids);
        if starts_at_zero && ascends && is_within { Ok(feature) } else { Err(Status::INVALID_OFFSETS) }
    }
}

/// Ids of a feature, as a host has them.
#[derive(Clone, Copy, Debug)]
pub enum IdsRequest<'a> {
    /// Ids of 4 bytes.
    Four(&'a [u32]),
    /// Ids of 8 bytes.
    Eight(&'a [u64]),
}

/// One feature, as a host has it. The fields are those of [`Feature`].
#[derive(Clone, Copy, Debug)]
pub struct FeatureRequest<'a> {
    /// Number of the table.
    pub table: u32,
    /// How rows are pooled.
    pub pooling: Pooling,
    /// Where each bag starts.
    pub offsets: &'a [u32],
    /// The ids of all bags. All features of a command have ids of one size.
    pub ids: IdsRequest<'a>,
    /// One weight per id.
    pub weights: Option<&'a [f32]>,
}

/// The command and its data: stage `features` under `handle` in namespace `nsid`.
///
/// # Panics
///
/// If ids have different sizes, or the number of weights is not that of the ids.
pub fn encode_stage(
    nsid: u32,
    handle: u64,
    form: Form,
    dtype: RowDtype,
    features: &[FeatureRequest<'_>],
) -> (Command, Vec<u8>) {
    let id_bytes = features.first().map_or(8, |feature| feature.ids.id_bytes());
    let bytes = |feature: &FeatureRequest<'_>| {
        let weights = feature.weights.map_or(0, size_of_val);
        let ids = feature.ids.len() * id_bytes as usize;
        [size_of_val(feature.offsets), ids, weights]
            .map(|part| part.next_multiple_of(ALIGNMENT))
            .iter()
            .sum::<usize>()
    };
    let entries_bytes = size_of::<Header>() + size_of::<Entry>() * features.len();
    let mut data = Vec::with_capacity(entries_bytes + features.iter().map(bytes).sum::<usize>());
    data.resize(size_of::<Header>(), 0);
    for feature in features {
        assert_eq!(feature.ids.id_bytes(), id_bytes, "all ids of a command have one size");
        let ids = feature.ids.len();
        assert!(feature.weights.is_none_or(|weights| weights.len() == ids), "one weight per id");
        let entry = Entry {
            table: feature.table.into(),
            pooling: feature.pooling as u8,
            has_weights: feature.weights.is_some().into(),
            bags: (feature.offsets.len() as u32).into(),
            ids: (ids as u32).into(),
            ..Entry::new_zeroed()
        };
        data.extend(entry.as_bytes());
    }
    for feature in features {
        push(&mut data, feature.offsets.as_bytes());
        match feature.ids {
            IdsRequest::Four(ids) => push(&mut data, ids.as_bytes()),
            IdsRequest::Eight(ids) => push(&mut data, ids.as_bytes()),
        }
        push(&mut data, feature.weights.unwrap_or_default().as_bytes());
    }
    let header = Header {
        version: VENDOR_VERSION.into(),
        form: form as u8,
        dtype: dtype as u8,
        id_bytes,
        reserved: [0; 3],
        features: (features.len() as u32).into(),
        bytes: (data.len() as u32).into(),
    };
    data[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    (Command::new(io::STAGE, nsid).with_quadword(10, handle), data)
}

impl IdsRequest<'_> {
    fn id_bytes(&self) -> u8 {
        if matches!(self, IdsRequest::Four(_)) { 4 } else { 8 }
    }

    fn len(&self) -> usize {
        match self {
            IdsRequest::Four(ids) => ids.len(),
            IdsRequest::Eight(ids) => ids.len(),
        }
    }
}

/// Numbers of this machine, which is little-endian as the wire is.
fn push(data: &mut Vec<u8>, numbers: &[u8]) {
    const { assert!(cfg!(target_endian = "little")) };
    data.extend_from_slice(numbers);
    data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn feature<'a>(offsets: &'a [u32], ids: IdsRequest<'a>) -> FeatureRequest<'a> {
        FeatureRequest { table: 3, pooling: Pooling::Sum, offsets, ids, weights: None }
    }

    fn parse(data: &[u8]) -> Result<Stage<'_>, Status> {
        Stage::parse(&Command::new(io::STAGE, 1), data, 16)
    }

    proptest! {
        #[test]
        fn features_survive_their_encoding(
            bags in prop::collection::vec(prop::collection::vec((any::<u32>(), -9.0_f32..9.0), 0..5), 0..6),
            handle: u64, is_weighted: bool, is_mean: bool, has_four: bool,
        ) {
            let mut offsets = Vec::new();
            let (mut ids, mut weights) = (Vec::new(), Vec::new());
            for bag in &bags {
                offsets.push(ids.len() as u32);
                ids.extend(bag.iter().map(|pair| pair.0));
                weights.extend(bag.iter().map(|pair| pair.1));
            }
            let wide: Vec<u64> = ids.iter().map(|&id| u64::from(id) << 20).collect();
            let request = FeatureRequest {
                table: 9,
                pooling: if is_mean { Pooling::Mean } else { Pooling::Sum },
                offsets: &offsets,
                ids: if has_four { IdsRequest::Four(&ids) } else { IdsRequest::Eight(&wide) },
                weights: is_weighted.then_some(&weights),
            };
            let (command, mut data) = encode_stage(5, handle, Form::Pooled, RowDtype::Bf16, &[request, request]);
            data.extend([0; 3]);
            let stage = Stage::parse(&command, &data, 16).unwrap();
            prop_assert_eq!((stage.handle, stage.form, stage.dtype), (handle, Form::Pooled, RowDtype::Bf16));
            prop_assert_eq!(stage.features.len(), 2);
            for feature in &stage.features {
                prop_assert_eq!((feature.table, feature.pooling), (9, request.pooling));
                prop_assert!(feature.offsets.iter().map(|offset| offset.get()).eq(offsets.iter().copied()));
                let expected = ids.iter().map(|&id| if has_four { u64::from(id) } else { u64::from(id) << 20 });
                prop_assert!(feature.ids.to_vec().into_iter().eq(expected));
                prop_assert_eq!(feature.weights.is_some(), is_weighted);
                if let Some(found) = feature.weights {
                    prop_assert!(found.iter().map(|weight| weight.get()).eq(weights.iter().copied()));
                }
            }
        }
    }

    #[test]
    fn bad_offsets_have_their_own_status() {
        for offsets in [&[1, 1][..], &[0, 2, 1], &[0, 4], &[]] {
            let (_, data) = encode_stage(
                1,
                0,
                Form::Pooled,
                RowDtype::Fp32,
                &[feature(offsets, IdsRequest::Eight(&[5, 6, 7]))],
            );
            assert_eq!(parse(&data), Err(Status::INVALID_OFFSETS), "{offsets:?}");
        }
    }

    #[test]
    fn every_header_field_is_checked() {
        let (_, data) =
            encode_stage(1, 0, Form::Rows, RowDtype::Fp32, &[feature(&[], IdsRequest::Four(&[5, 6, 7]))]);
        assert_eq!(parse(&data).unwrap().features[0].ids.len(), 3);
        let damaged =
            [(0, 2), (2, 2), (3, 2), (4, 5), (5, 1), (8, 0), (8, 17), (12, 47), (12, 49), (20, 1), (20, 2)];
        for (at, value) in damaged.into_iter().chain([(21, 1), (21, 2), (22, 1), (24, 1), (28, 5), (28, 1)]) {
            let mut bytes = data.clone();
            bytes[at] = value;
            assert_eq!(parse(&bytes), Err(Status::MALFORMED), "byte {at} is {value}");
        }
        for length in 0..data.len() {
            assert_eq!(parse(&data[..length]), Err(Status::MALFORMED));
        }
    }
}
