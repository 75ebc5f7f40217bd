//! What one stage command asks for, checked against the tables.

use std::ops::Range;
use std::sync::Arc;

use rowmill_nvme::{DAMAGED_BYTE, ErrorPlace, Feature, Form, RowDtype, Stage, StagedResult, Status};
use rowmill_store::{IdBag, IdRange, Pooling, StoreError, Table};
use zerocopy::IntoBytes;

use super::tables::{Tables, find_unreadable};
use crate::NAMESPACE;
use crate::fault::{Fault, is_damage};

/// Most damaged vectors of one result. Beyond, the whole command fails: each takes some calls of the store to find.
const DAMAGED_MAX: usize = 64;

/// The result of a job.
#[derive(Debug)]
pub(crate) struct Pooled {
    pub(crate) result: StagedResult,
    /// Where the rows of damaged vectors could not be read.
    pub(crate) places: Vec<ErrorPlace>,
}

impl Pooled {
    /// A result without damage.
    pub(crate) fn whole(bytes: Vec<u8>) -> Pooled {
        Pooled { result: StagedResult { bytes, damaged: 0 }, places: Vec::new() }
    }
}

/// Bags of one table, as the store takes them.
#[derive(Debug)]
struct Bags {
    table: u32,
    ids: Vec<u64>,
    /// One more than there are bags.
    offsets: Vec<i64>,
    weights: Option<Vec<f32>>,
    pooling: Pooling,
}

/// A result to make.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) tables: Arc<Tables>,
    pub(crate) group: u32,
    pub(crate) dtype: RowDtype,
    features: Vec<Bags>,
    floats: usize,
}

impl Bags {
    fn new(feature: &Feature<'_>, form: Form, table: &Table) -> Result<Bags, Status> {
        let ids = feature.ids.to_vec();
        if let IdRange::Dense { rows } = table.spec().ids
            && ids.iter().max().is_some_and(|&largest| largest >= rows)
        {
            return Err(Status::ID_OUT_OF_RANGE);
        }
        let pooling = match feature.pooling {
            rowmill_nvme::Pooling::Sum => Pooling::Sum,
            // A mean has no weights.
            rowmill_nvme::Pooling::Mean if feature.weights.is_some() => return Err(Status::MALFORMED),
            rowmill_nvme::Pooling::Mean => Pooling::Mean,
        };
        let offsets = match form {
            Form::Rows => (0..=ids.len() as i64).collect(),
            Form::Pooled => feature
                .offsets
                .iter()
                .map(|offset| i64::from(offset.get()))
                .chain([ids.len() as i64])
                .collect(),
        };
        let weights = feature.weights.map(|weights| weights.iter().map(|weight| weight.get()).collect());
        Ok(Bags { table: feature.table, ids, offsets, weights, pooling })
    }

    fn bag(&self) -> IdBag<'_> {
        let Bags { ids, offsets, weights, pooling, .. } = self;
        IdBag { ids, offsets, weights: weights.as_deref(), padding: None, pooling: *pooling }
    }

    fn vectors(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Some of the bags.
    fn part(&self, vectors: &Range<usize>) -> Bags {
        let offsets = &self.offsets[vectors.start..=vectors.end];
        let ids = offsets[0] as usize..offsets[vectors.len()] as usize;
        Bags {
            table: self.table,
            ids: self.ids[ids.clone()].to_vec(),
            offsets: offsets.iter().map(|offset| offset - offsets[0]).collect(),
            weights: self.weights.as_ref().map(|weights| weights[ids].to_vec()),
            pooling: self.pooling,
        }
    }
}

impl Job {
    /// # Errors
    ///
    /// The status of the stage command.
    pub(crate) fn new(stage: &Stage<'_>, tables: &Arc<Tables>) -> Result<Job, Status> {
        let (mut features, mut floats, mut group) = (Vec::with_capacity(stage.features.len()), 0_usize, None);
        for feature in &stage.features {
            let table = tables.table(feature.table)?;
            if *group.get_or_insert(table.group_number()) != table.group_number() {
                return Err(Status::MIXED_GROUPS);
            }
            let bags = Bags::new(feature, stage.form, table)?;
            floats = bags
                .vectors()
                .checked_mul(table.spec().dim as usize)
                .and_then(|more| floats.checked_add(more))
                .ok_or(Status::OVER_QUOTA)?;
            features.push(bags);
        }
        let group = group.ok_or(Status::MALFORMED)?;
        Ok(Job { tables: Arc::clone(tables), group, dtype: stage.dtype, features, floats })
    }

    pub(crate) fn result_bytes(&self) -> usize {
        self.floats * self.dtype.bytes()
    }

    pub(crate) fn ids(&self) -> usize {
        self.features.iter().map(|bags| bags.ids.len()).sum()
    }

    /// Bytes that the job holds until it is done, with its result.
    pub(crate) fn bytes(&self) -> u64 {
        let held = self.features.iter().map(|bags| {
            bags.ids.len() * 8
                + bags.offsets.len() * 8
                + bags.weights.as_ref().map_or(0, |weights| weights.len() * 4)
        });
        (held.sum::<usize>() + self.result_bytes()) as u64
    }

    /// Whether one call of the store can serve both.
    pub(crate) fn joins(&self, other: &Job) -> bool {
        Arc::ptr_eq(&self.tables, &other.tables) && self.group == other.group && self.dtype == other.dtype
    }

    /// The results of jobs that can be served by one call, or the error of the call.
    pub(crate) fn run(jobs: &[&Job]) -> Result<Vec<Vec<u8>>, StoreError> {
        match jobs[0].dtype {
            RowDtype::Fp32 => Self::pool(jobs, 0_f32),
            RowDtype::Bf16 => Self::pool(jobs, 0_u16),
        }
    }

    fn pool<T>(jobs: &[&Job], zero: T) -> Result<Vec<Vec<u8>>, StoreError>
    where
        T: rowmill_store::Pooled + IntoBytes + zerocopy::Immutable,
    {
        let tables = &jobs[0].tables;
        let features = jobs.iter().flat_map(|job| &job.features);
        let bags: Vec<(&Table, IdBag<'_>)> = features
            .map(|bags| (tables.table(bags.table).expect("checked when it was staged"), bags.bag()))
            .collect();
        let mut out = vec![zero; jobs.iter().map(|job| job.floats).sum()];
        // A job has a feature, whose table knows the store.
        bags[0].0.store().evaluate_in_turn(&bags, &mut out)?;
        let mut rest = &out[..];
        let next = |job: &&Job| {
            let (own, after) = rest.split_at(job.floats);
            rest = after;
            own.as_bytes().to_vec()
        };
        Ok(jobs.iter().map(next).collect())
    }

    /// The result of this job alone. Vectors whose rows cannot be read are damaged, and the others are not.
    pub(crate) fn run_alone(&self) -> Result<Pooled, Fault> {
        match Job::run(&[self]) {
            Ok(mut results) => Ok(Pooled::whole(results.remove(0))),
            Err(error) if is_damage(&error) => match self.dtype {
                RowDtype::Fp32 => self.pool_intact(0_f32),
                RowDtype::Bf16 => self.pool_intact(0_u16),
            },
            Err(error) => Err(Fault::of_store(&error, ErrorPlace::default())),
        }
    }

    /// Pool what can be pooled: halves of what failed, until single vectors are left.
    fn pool_intact<T>(&self, zero: T) -> Result<Pooled, Fault>
    where
        T: rowmill_store::Pooled + IntoBytes + zerocopy::Immutable,
    {
        let mut out = vec![zero; self.floats];
        let (mut damaged, mut places) = (Vec::new(), Vec::new());
        let mut start = 0;
        for bags in &self.features {
            let table = self.tables.table(bags.table).expect("checked when it was staged");
            let dim = table.spec().dim as usize;
            let mut ranges = Vec::from([Range { start: 0, end: bags.vectors() }]);
            while let Some(range) = ranges.pop() {
                let part = bags.part(&range);
                let own = start + range.start * dim..start + range.end * dim;
                let pooled = table.store().evaluate_in_turn(&[(table, part.bag())], &mut out[own.clone()]);
                match pooled {
                    Ok(()) => (),
                    Err(error) if !is_damage(&error) => {
                        return Err(Fault::of_store(&error, ErrorPlace::default()));
                    }
                    Err(_) if range.len() > 1 => {
                        let middle = range.start + range.len() / 2;
                        ranges.extend([middle..range.end, range.start..middle]);
                    }
                    Err(error) => {
                        let fault = Fault::of_store(&error, self.unreadable(table, &part));
                        if damaged.len() >= DAMAGED_MAX {
                            return Err(fault);
                        }
                        damaged.push(own);
                        places.extend(fault.place.filter(|place| !places.contains(place)));
                    }
                }
            }
            start += bags.vectors() * dim;
        }
        let mut bytes = out.as_bytes().to_vec();
        for own in &damaged {
            bytes[own.start * size_of::<T>()..own.end * size_of::<T>()].fill(DAMAGED_BYTE);
        }
        let damaged = damaged.len() as u16;
        Ok(Pooled { result: StagedResult { bytes, damaged }, places })
    }

    /// Where a row of bags that failed cannot be read.
    fn unreadable(&self, table: &Table, bags: &Bags) -> ErrorPlace {
        if bags.ids.is_empty() {
            return ErrorPlace { namespace: NAMESPACE, block: 0, table: Some(bags.table) };
        }
        let reads =
            |ids: &[u64]| table.get(ids, &mut vec![0.0; ids.len() * table.spec().dim as usize]).is_ok();
        self.tables.place(bags.table, find_unreadable(&bags.ids, &reads))
    }
}
