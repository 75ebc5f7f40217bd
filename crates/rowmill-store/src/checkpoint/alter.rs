//! Changes the rules and the range of ids of tables when a store is opened.
//!
//! Specs are changed in the loaded manifest, before anything is built from them. The next checkpoint makes the change
//! durable; until then the store on disk is unchanged.

use std::collections::BTreeMap;

use rowmill_rows::{IdRange, TableSpec};

use crate::error::StoreError;
use crate::files::Manifest;
use crate::options::TableChange;
use crate::store::check_spec;

/// Change the specs of tables by name. Names without a table are skipped.
///
/// # Errors
/// [`StoreError::Spec`] for an invalid rule; [`StoreError::SpecMismatch`] for fewer ids, and for an eviction rule that
/// needs rows with a stamp in a table whose rows have none, or the reverse.
pub(super) fn alter(
    manifest: &mut Manifest,
    changes: &BTreeMap<String, TableChange>,
) -> Result<(), StoreError> {
    for entry in &mut manifest.tables {
        let Some(&TableChange { ids, eviction, admission }) = changes.get(&entry.name) else { continue };
        let (table, old) = (&entry.name, entry.spec);
        let spec = TableSpec { ids, eviction, admission, ..old };
        spec.validate().map_err(|source| StoreError::Spec { table: table.clone(), source })?;
        let grows =
            matches!((old.ids, ids), (IdRange::Dense { rows: old }, IdRange::Dense { rows }) if rows > old);
        if !grows {
            check_spec(table, &old, &TableSpec { ids, ..old })?;
        }
        if spec.group() != old.group() {
            check_spec(table, &old, &TableSpec { eviction, ..old })?;
        }
        entry.spec = spec;
    }
    Ok(())
}
