//! `transform.json` as the bundle has it, and its checks.

use serde::Deserialize;

use super::row_id::{Known, RowIds};
use crate::{Failure, Per, Status};

#[derive(Debug, Deserialize)]
pub(super) struct TransformFile {
    pub(super) inputs: InputNames,
    pub(super) dense: Vec<NamedColumn>,
    pub(super) ids: Vec<NamedColumn>,
    pub(super) histories: Vec<History>,
    pub(super) id_base: u32,
    pub(super) missing: i64,
    pub(super) way: Way,
}

/// The names of the three inputs in the signature.
#[derive(Debug, Deserialize)]
pub(super) struct InputNames {
    pub(super) dense: String,
    pub(super) ids: String,
    pub(super) lengths: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NamedColumn {
    pub(super) name: String,
    pub(super) per: Per,
}

#[derive(Debug, Deserialize)]
pub(super) struct History {
    pub(super) name: String,
    pub(super) per: Per,
    pub(super) of: String,
    pub(super) places: usize,
}

/// Not an enum with `kind` as its tag: serde would keep every number of a vocabulary in 32 bytes before it knows the tag.
#[derive(Debug, Deserialize)]
pub(super) struct Way {
    kind: String,
    buckets: Option<u64>,
    numbers: Option<Vec<u64>>,
    values: Option<Vec<Box<[i64]>>>,
}

impl TransformFile {
    /// Read `transform.json`.
    ///
    /// # Errors
    /// When it is no transform; names the key and its value.
    pub(super) fn parse(json: &str) -> Result<Self, Failure> {
        let wrong = |text: String| Failure::new(Status::Failed, format!("transform.json: {text}"));
        let file: Self = serde_json::from_str(json).map_err(|error| wrong(error.to_string()))?;
        if ![10, 16].contains(&file.id_base) {
            return Err(wrong(format!("id_base must be 10 or 16, got {}", file.id_base)));
        }
        for history in &file.histories {
            if !file.ids.iter().any(|column| column.name == history.of) {
                return Err(wrong(format!(
                    "history {:?} is of {:?}, which is none of ids",
                    history.name, history.of
                )));
            }
            // All histories of a row have the same lengths, so they also have one number of places.
            if history.places == 0 || history.places != file.histories[0].places {
                return Err(wrong(format!(
                    "history {:?} has {} places, must have at least 1, and as many as the others",
                    history.name, history.places
                )));
            }
        }
        if file.inputs.lengths.is_none() && !file.histories.is_empty() {
            return Err(wrong("inputs must name lengths, because there are histories".into()));
        }
        Ok(file)
    }
}

impl Way {
    /// The mapping to rows for these columns of ids.
    ///
    /// # Errors
    /// When it is unknown or incomplete; names the key and its value.
    pub(super) fn row_ids(self, ids: &[NamedColumn]) -> Result<RowIds, Failure> {
        let wrong = |text: String| Err(Failure::new(Status::Failed, format!("transform.json: way {text}")));
        let kind = self.kind.as_str();
        let numbers = match (kind, self.numbers) {
            ("numbered_hash", Some(numbers)) if numbers.len() == ids.len() => numbers,
            ("numbered_hash", numbers) => {
                return wrong(format!(
                    "needs numbers of {} columns of ids, got {}",
                    ids.len(),
                    numbers.map_or(0, |numbers| numbers.len())
                ));
            }
            _ => (0..ids.len() as u64).collect(),
        };
        match (kind, self.buckets, self.values) {
            ("full", ..) => Ok(RowIds::Full),
            ("hash" | "numbered_hash", Some(buckets), _)
                if (1..=i64::MAX.cast_unsigned()).contains(&buckets) =>
            {
                Ok(RowIds::hash(buckets, &numbers))
            }
            ("hash" | "numbered_hash", buckets, _) => {
                wrong(format!("needs buckets from 1 to 2^63 - 1, got {buckets:?}"))
            }
            ("vocabulary", _, Some(values)) if values.len() == ids.len() => {
                let mut known = Vec::with_capacity(values.len());
                for (column, values) in ids.iter().zip(values) {
                    match Known::new(values) {
                        Ok(of_column) => known.push(of_column),
                        Err(value) => {
                            return wrong(format!("has the value {value} of {:?} twice", column.name));
                        }
                    }
                }
                Ok(RowIds::Vocabulary(known))
            }
            ("vocabulary", _, values) => wrong(format!(
                "needs values of {} columns of ids, got those of {}",
                ids.len(),
                values.map_or(0, |values| values.len())
            )),
            (kind, ..) => {
                wrong(format!("is {kind:?}, must be \"full\", \"hash\", \"numbered_hash\" or \"vocabulary\""))
            }
        }
    }
}
