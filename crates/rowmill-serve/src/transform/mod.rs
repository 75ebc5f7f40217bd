//! From raw columns of a request to the inputs of a click model: `transform.json` of its bundle.
//!
//! `python/rowmill/partition/transform.py` describes the file and defines the results, which have its bits. Columns are
//! numbered as [`Transform::columns`] lists them. One that a request gives once is computed once, and its results are
//! repeated.

mod column;
mod file;
mod history;
mod raw_id;
mod row_id;
mod spec;

pub use column::{Column, Elements};
use file::{History, InputNames, NamedColumn, TransformFile};
use history::Lists;
use raw_id::RawIds;
use row_id::RowIds;
pub use spec::{ColumnKind, ColumnSpec};

use crate::plan::{Array, Values};
use crate::{Arena, DType, Failure, Per};

/// A transform that is ready to run.
#[derive(Debug)]
pub(crate) struct Transform {
    inputs: InputNames,
    dense: Vec<NamedColumn>,
    ids: Vec<NamedColumn>,
    histories: Vec<History>,
    raw_ids: RawIds,
    row_ids: RowIds,
    row_of_missing: i64,
}

impl Transform {
    /// Read `transform.json`.
    ///
    /// # Errors
    /// When it is no transform; names the key and its value.
    pub(crate) fn parse(json: &str) -> Result<Self, Failure> {
        let TransformFile { inputs, dense, ids, histories, id_base, missing, way } =
            TransformFile::parse(json)?;
        let row_ids = way.row_ids(&ids)?;
        let raw_ids = RawIds { base: id_base, missing };
        let row_of_missing = row_ids.of_missing(missing);
        Ok(Self { inputs, dense, ids, histories, raw_ids, row_ids, row_of_missing })
    }

    /// The columns of a request, in the order that [`Self::apply`] takes them.
    pub(crate) fn columns(&self) -> Vec<ColumnSpec> {
        let spec =
            |column: &NamedColumn, kind| ColumnSpec { name: column.name.clone(), kind, per: column.per };
        let dense = self.dense.iter().map(|column| spec(column, ColumnKind::Number));
        let ids = self.ids.iter().map(|column| spec(column, ColumnKind::Id));
        let histories =
            self.histories.iter().flat_map(|history| {
                [("values", ColumnKind::Ids), ("offsets", ColumnKind::Offsets)].map(|(part, kind)| {
                    ColumnSpec { name: format!("{}.{part}", history.name), kind, per: history.per }
                })
            });
        dense.chain(ids).chain(histories).collect()
    }

    /// Names, types and numbers of elements per row of the inputs that [`Self::apply`] makes; `None`: one number per row.
    pub(crate) fn inputs(&self) -> Vec<(&str, DType, Option<usize>)> {
        let InputNames { dense, ids, lengths } = &self.inputs;
        let mut inputs: Vec<(&str, DType, Option<usize>)> =
            vec![(dense, DType::Float32, Some(self.dense.len())), (ids, DType::Int64, Some(self.places()))];
        if let (Some(lengths), [_, ..]) = (lengths, &self.histories[..]) {
            inputs.push((lengths, DType::Int64, None));
        }
        inputs
    }

    /// The model's inputs by name: of B rows, where columns of `user` may have one.
    ///
    /// # Errors
    /// When a value or a number of rows is not allowed; names column, row and value. When the arena has no room.
    pub(crate) fn apply(&self, arena: &Arena, columns: &[Column]) -> Result<Values, Failure> {
        let (dense, rest) = columns.split_at(self.dense.len());
        let (ids, histories) = rest.split_at(self.ids.len());
        let rows = self.rows(dense, ids)?;
        let mut values = Values::new();
        let width = self.dense.len();
        let numbers = Array::make(arena, DType::Float32, &[rows, width], |out| {
            let out = out.as_chunks_mut().0;
            self.dense.iter().zip(dense).enumerate().try_for_each(|(at, (about, column))| {
                put(out, width, at, log_counts(&about.name, column)?.into_iter().map(f32::to_le_bytes));
                Ok(())
            })
        })?;
        values.insert(self.inputs.dense.clone(), numbers);
        let width = self.places();
        let mut lengths: Option<Vec<usize>> = None;
        let found = Array::make(arena, DType::Int64, &[rows, width], |out| {
            let out = out.as_chunks_mut().0;
            for (feature, (about, column)) in self.ids.iter().zip(ids).enumerate() {
                let mut ids = self.raw_ids.read(&about.name, column)?;
                for id in &mut ids {
                    *id = self.row(feature, *id);
                }
                put(out, width, feature, ids.into_iter().map(i64::to_le_bytes));
            }
            let mut at = self.ids.len();
            for (history, parts) in self.histories.iter().zip(histories.chunks(2)) {
                let found = self.put_history(out, width, at, history, parts)?;
                lengths = Some(check_lengths(&self.histories, history, lengths.take(), found)?);
                at += history.places;
            }
            Ok(())
        })?;
        values.insert(self.inputs.ids.clone(), found);
        if let (Some(name), Some(lengths)) = (&self.inputs.lengths, lengths) {
            let places = self.histories[0].places;
            let taken = Array::make(arena, DType::Int64, &[rows], |out| {
                let taken = lengths.iter().map(|&length| (length.min(places) as i64).to_le_bytes());
                put(out.as_chunks_mut().0, 1, 0, taken);
                Ok(())
            })?;
            values.insert(name.clone(), taken);
        }
        Ok(values)
    }

    /// Columns of the input of ids.
    fn places(&self) -> usize {
        self.ids.len() + self.histories.iter().map(|history| history.places).sum::<usize>()
    }

    fn row(&self, feature: usize, raw: i64) -> i64 {
        if raw == self.raw_ids.missing { self.row_of_missing } else { self.row_ids.of(feature, raw) }
    }

    /// The number of rows that the inputs of these columns have; `None` where the columns do not agree.
    pub(crate) fn rows_of(&self, columns: &[Column]) -> Option<usize> {
        let (dense, rest) = columns.split_at_checked(self.dense.len())?;
        self.rows(dense, rest.get(..self.ids.len())?).ok()
    }

    /// The number of rows that the columns of `item` have; or else, the largest.
    fn rows(&self, dense: &[Column], ids: &[Column]) -> Result<usize, Failure> {
        let columns = || self.dense.iter().chain(&self.ids).zip(dense.iter().chain(ids));
        let item = columns().find(|(about, _)| about.per == Per::Item);
        let largest = || columns().max_by_key(|(_, column)| column.count);
        let Some((first, rows)) = item.or_else(largest).map(|(about, column)| (about, column.count)) else {
            return Err(Failure::invalid("the transform has no columns"));
        };
        if rows == 0 {
            return Err(Failure::invalid(format!(
                "column {:?} has 0 rows, must have 1 at least",
                first.name
            )));
        }
        columns().try_for_each(|(about, column)| check_rows(&about.name, about.per, column.count, rows))?;
        Ok(rows)
    }

    /// Write the last ids of each list, from column `at` of `width` on. Returns the lengths of the lists.
    fn put_history(
        &self,
        out: &mut [[u8; 8]],
        width: usize,
        at: usize,
        history: &History,
        parts: &[Column],
    ) -> Result<Vec<usize>, Failure> {
        let name = format!("{}.values", history.name);
        let mut ids = self.raw_ids.read(&name, &parts[0])?;
        let lists = Lists::read(&format!("{}.offsets", history.name), &parts[1], ids.len())?;
        check_rows(&history.name, history.per, lists.rows(), out.len() / width)?;
        if let Some(position) = ids.iter().position(|&id| id == self.raw_ids.missing) {
            return Err(Failure::invalid(format!(
                "column {name:?}, row {}: value {position} is missing: drop it from the list",
                lists.row_of(position)
            )));
        }
        let feature = self.ids.iter().position(|column| column.name == history.of).unwrap_or_default();
        for row in 0..lists.rows() {
            for id in &mut ids[lists.last(row, history.places)] {
                *id = self.row_ids.of(feature, *id);
            }
        }
        for (row, out) in out.chunks_exact_mut(width).enumerate() {
            let last = &ids[lists.last(row % lists.rows(), history.places)];
            for (place, out) in out[at..at + history.places].iter_mut().enumerate() {
                *out = last.get(place).copied().unwrap_or(self.row_of_missing).to_le_bytes();
            }
        }
        Ok((0..lists.rows()).map(|row| lists.length(row)).collect())
    }
}

/// Write one column of rows of `width` elements: an element per row, or one for all rows.
fn put<const BYTES: usize>(
    out: &mut [[u8; BYTES]],
    width: usize,
    column: usize,
    elements: impl Iterator<Item = [u8; BYTES]> + Clone,
) {
    for (row, element) in out.chunks_exact_mut(width).zip(elements.cycle()) {
        row[column] = element;
    }
}

fn check_rows(name: &str, per: Per, found: usize, rows: usize) -> Result<(), Failure> {
    if found == rows || (per == Per::User && found == 1) {
        return Ok(());
    }
    let one = if per == Per::User { "1 or " } else { "" };
    Err(Failure::invalid(format!("column {name:?} has {found} rows, must have {one}{rows}")))
}

/// All histories of a row describe the same events.
fn check_lengths(
    histories: &[History],
    history: &History,
    before: Option<Vec<usize>>,
    found: Vec<usize>,
) -> Result<Vec<usize>, Failure> {
    let Some(before) = before else { return Ok(found) };
    // One of the two may have been given once.
    let rows = before.len().max(found.len());
    let of = |lengths: &[usize], row: usize| lengths[row % lengths.len()];
    match (0..rows).find(|&row| of(&before, row) != of(&found, row)) {
        Some(row) => Err(Failure::invalid(format!(
            "history {:?}, row {row}: it has {} ids, but {:?} has {}: all histories of a row must be equally long",
            history.name,
            of(&found, row),
            histories[0].name,
            of(&before, row)
        ))),
        None if before.len() == rows => Ok(before),
        None => Ok(found),
    }
}

/// log(1 + x) of numbers, 0 for negative and missing ones.
///
/// Computed in 64 bits and rounded once: the logarithms of libraries then agree in every bit.
fn log_counts(name: &str, column: &Column) -> Result<Vec<f32>, Failure> {
    let mut numbers = column.numbers(name)?.to_f32();
    for (row, number) in numbers.iter_mut().enumerate() {
        if number.is_infinite() {
            return Err(Failure::invalid(format!(
                "column {name:?}, row {row}: {number} is infinite as a 32-bit number: send NaN if it is unknown"
            )));
        }
        *number = if *number > 0.0 { f64::from(*number).ln_1p() as f32 } else { 0.0 };
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests;
