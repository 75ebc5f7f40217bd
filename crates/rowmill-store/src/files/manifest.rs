//! The manifest: the one file that defines a checkpoint.
//!
//! Its first line can be read by every build, for any format version:
//!
//! ```text
//! rowmill-manifest <format version> <CRC32C of the rest, 8 hexadecimal digits> <bytes of the rest>
//! ```
//!
//! The rest is JSON, readable by people (`tail -n +2 MANIFEST | jq`). Fields unknown to this build are
//! ignored. A build that writes fields that an older one must not ignore raises the format version.

use std::collections::HashSet;
use std::io::Read;

use rowmill_index::Location;
use rowmill_io::{DeviceError, Sealed, Volume};
use rowmill_log::LogState;
use rowmill_rows::{Category, Dtype, GroupSpec, TableSpec};
use serde::{Deserialize, Serialize};

use super::attachment::AttachmentEntry;
use super::error::FileError;
use super::frame::FileEntry;
use super::name::{self, MANIFEST, MANIFEST_NEW};
use super::version::VersionEntry;

/// Format version of all files of a store. Older versions stay readable, newer ones are refused.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Version of a manifest that has tables with eviction or admission: older builds would neither stamp rows
/// nor count ids. Stores without such tables stay readable by older builds.
const FORMAT_VERSION_EVICTION: u32 = 2;
/// Version of a manifest that has tables of dtype bf16, for the same reason.
const FORMAT_VERSION_BF16: u32 = 3;
/// Version of a manifest that has tables of dtype split-bf16, for the same reason.
const FORMAT_VERSION_SPLIT: u32 = 4;
/// Version of a manifest that keeps versions or whose index has moves: older builds would overwrite rows of
/// versions.
const FORMAT_VERSION_VERSIONS: u32 = 5;
const FORMAT_VERSION_MAX: u32 = FORMAT_VERSION_VERSIONS;
/// First word of the header line.
const MAGIC: &str = "rowmill-manifest";
/// Maximum bytes of a manifest: enough for about ten million segments, petabytes of rows.
const BYTES_MAX: u64 = 256 << 20;

/// Maximum number of tables of a store.
pub(crate) const TABLES_MAX: u32 = 1 << 16;
/// Maximum of all counters.
const COUNT_MAX: u64 = 1 << 62;
/// Maximum bytes of a segment.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Format version, as in the header line.
    pub(crate) format_version: u32,
    /// Number of the checkpoint.
    pub(crate) epoch: u64,
    /// Seed of every initializer.
    pub(crate) seed: u64,
    /// Version of rowmill that created the store, for information.
    pub(crate) created_by: String,
    /// The openings that made its checkpoints, oldest first: the first epoch and the number of each. Two
    /// folders with a common history have equal lineages up to where they diverged. Stores older than this
    /// field have none for their first epochs.
    #[serde(default)]
    pub(crate) lineage: Vec<(u64, u64)>,
    /// Groups by number.
    pub(crate) groups: Vec<GroupEntry>,
    /// Tables, in the order of their creation.
    pub(crate) tables: Vec<TableEntry>,
    /// The latest event time that a step passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) event_time: Option<u64>,
    /// The index at an earlier checkpoint; `None` while the deltas contain the whole index.
    #[serde(default)]
    pub(crate) snapshot: Option<FileEntry>,
    /// Index changes since the snapshot, oldest first. After a rollback, there are moves among them.
    #[serde(default)]
    pub(crate) deltas: Vec<FileEntry>,
    /// Older index changes, oldest first. They are needed only to list the changes since an earlier
    /// checkpoint.
    #[serde(default)]
    pub(crate) history: Vec<FileEntry>,
    /// Sequence number of this checkpoint's frame in the feed; 0 without a feed.
    #[serde(default)]
    pub(crate) feed: u64,
    /// Attachments of the caller.
    #[serde(default)]
    pub(crate) attachments: Vec<AttachmentEntry>,
    /// Sketches that count ids without a row. The name is the number of the category.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) sketches: Vec<AttachmentEntry>,
    /// Rows of this checkpoint, while there are versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rows: Option<FileEntry>,
    /// Kept versions, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) versions: Vec<VersionEntry>,
    /// Moved rows of versions, since the oldest of them, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) moves: Vec<FileEntry>,
}

/// A group and its log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupEntry {
    /// The spec that its tables share.
    pub(crate) spec: GroupSpec,
    /// Number of shards, a power of two.
    pub(crate) shards: u32,
    /// Bytes from one row to the next.
    pub(crate) stride: u32,
    /// Bytes of a segment of the log.
    pub(crate) segment_bytes: u64,
    /// Name of the device that holds the log.
    pub(crate) log_device: String,
    /// Segments with rows of this checkpoint.
    pub(crate) log: LogState,
}

/// Rows of a group at most: it has a place on the device for each.
const ROWS_MAX: u64 = Location::ROW_MAX as u64 + 1;

/// A table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TableEntry {
    /// Name.
    pub(crate) name: String,
    /// Category of its rows.
    pub(crate) category: Category,
    /// Number of its group.
    pub(crate) group: u32,
    /// The spec that it was created with.
    pub(crate) spec: TableSpec,
    /// Number of updates applied (the step count of Adam).
    pub(crate) steps: u64,
    /// Number of rows.
    pub(crate) rows: u64,
    /// Number of ids looked up since the table was created.
    #[serde(default)]
    pub(crate) accesses: u64,
    /// Number of rows created since the table was created.
    #[serde(default)]
    pub(crate) births: u64,
    /// Number of rows deleted since the table was created.
    #[serde(default)]
    pub(crate) deletes: u64,
    /// Number of rows evicted since the table was created.
    #[serde(default)]
    pub(crate) evicted: u64,
    /// Sampled counts of the most looked-up ids.
    #[serde(default)]
    pub(crate) hot: Vec<(u64, u64)>,
}

impl GroupEntry {
    fn check(&self) -> Result<(), String> {
        if !self.shards.is_power_of_two() {
            return Err(format!("a group has {} shards, not a power of two", self.shards));
        }
        self.spec.validate().map_err(|error| format!("a group: {error}"))?;
        let stride = self.spec.layout().stride;
        if self.stride as usize != stride {
            return Err(format!("a group has rows of {} bytes, but its spec needs {stride}", self.stride));
        }
        if self.segment_bytes > SEGMENT_BYTES_MAX {
            return Err(format!("a group has segments of {} bytes, which is too large", self.segment_bytes));
        }
        Ok(())
    }
}

impl Manifest {
    /// The same with the format version that its content needs.
    pub(crate) fn stamped(mut self) -> Self {
        self.format_version = self.format_needed();
        self
    }

    /// The oldest format version that can describe the content.
    fn format_needed(&self) -> u32 {
        let moved = self.deltas.iter().any(|file| name::lists_moves(&file.name));
        let versions = if self.versions.is_empty() && !moved { 0 } else { FORMAT_VERSION_VERSIONS };
        Self::version_of(&self.tables).max(versions)
    }

    /// Make this the checkpoint of the volume in one step: a crash at any point leaves the previous manifest
    /// or this one, and every file that it names.
    ///
    /// # Errors
    /// When the volume fails. The previous checkpoint is then still the last one, unless the very last sync
    /// failed: then either may be. Write nothing more to the volume after an error.
    pub(crate) fn save(&self, volume: &dyn Volume) -> Result<(), FileError> {
        self.save_as(volume, MANIFEST)
    }

    /// Write this as a file of the volume, like [`Manifest::save`].
    ///
    /// # Errors
    /// As [`Manifest::save`].
    pub(crate) fn save_as(&self, volume: &dyn Volume, name: &str) -> Result<(), FileError> {
        debug_assert_eq!(self.format_version, self.format_needed());
        let bytes = self.to_bytes();
        let mut file = volume.create(MANIFEST_NEW)?;
        file.write_all(&bytes).map_err(|error| {
            DeviceError::from_io("write", volume.path(MANIFEST_NEW), 0, bytes.len(), error)
        })?;
        file.sync()?;
        // The names of the listed files must become durable before the manifest's own name.
        volume.sync()?;
        volume.rename(MANIFEST_NEW, name)?;
        volume.sync()?;
        Ok(())
    }

    /// The bytes of its file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("a manifest has only string keys and finite numbers");
        rowmill_io::seal(MAGIC, self.format_version, &json)
    }

    /// The checkpoint of the volume.
    ///
    /// # Errors
    /// [`FileError::Missing`] when there is none, [`FileError::Newer`], or [`FileError::Corrupt`].
    pub(crate) fn load(volume: &dyn Volume) -> Result<Self, FileError> {
        Ok(Self::load_with_bytes(volume)?.0)
    }

    /// The manifest in the file `name` of the volume.
    ///
    /// # Errors
    /// As [`Manifest::load`].
    pub(crate) fn load_from(volume: &dyn Volume, name: &str) -> Result<Self, FileError> {
        Self::parse(&Self::read(volume, name)?)
    }

    /// The checkpoint of the volume, and the bytes of its file.
    ///
    /// # Errors
    /// As [`Manifest::load`].
    pub(crate) fn load_with_bytes(volume: &dyn Volume) -> Result<(Self, Vec<u8>), FileError> {
        let bytes = Self::read(volume, MANIFEST)?;
        Ok((Self::parse(&bytes)?, bytes))
    }

    fn read(volume: &dyn Volume, name: &str) -> Result<Vec<u8>, FileError> {
        let file = match volume.open(name) {
            Ok(file) => file,
            Err(DeviceError::Missing { .. }) => return Err(FileError::Missing { name: MANIFEST }),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Vec::new();
        file.take(BYTES_MAX)
            .read_to_end(&mut bytes)
            .map_err(|error| DeviceError::from_io("read", volume.path(name), 0, bytes.len(), error))?;
        Ok(bytes)
    }

    /// The oldest format version that can describe all these tables.
    fn version_of(tables: &[TableEntry]) -> u32 {
        let version = |spec: &TableSpec| match spec {
            TableSpec { dtype: Dtype::SplitBf16, .. } => FORMAT_VERSION_SPLIT,
            TableSpec { dtype: Dtype::Bf16, .. } => FORMAT_VERSION_BF16,
            TableSpec { eviction: Some(_), .. } | TableSpec { admission: Some(_), .. } => {
                FORMAT_VERSION_EVICTION
            }
            TableSpec { dtype: Dtype::F32, .. } => FORMAT_VERSION,
        };
        tables.iter().map(|table| version(&table.spec)).max().unwrap_or(FORMAT_VERSION)
    }

    /// Names of all files except the logs, and except those that only its versions name.
    pub(crate) fn file_names(&self) -> impl Iterator<Item = &str> {
        let index = self.snapshot.iter().chain(&self.history).chain(&self.deltas);
        let index = index.chain(&self.rows).chain(&self.moves);
        let versions = self.versions.iter().flat_map(|version| [&version.manifest, &version.rows]);
        let beside = self.attachments.iter().chain(&self.sketches);
        let beside = beside.map(|attachment| attachment.file.as_str());
        index.chain(versions).map(|file| file.name.as_str()).chain(beside)
    }

    /// Names and lengths of all files except the logs and history, and except those of its versions.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        let index = self.snapshot.iter().chain(&self.deltas).chain(&self.rows).chain(&self.moves);
        let beside = self.attachments.iter().chain(&self.sketches);
        index
            .map(|file| (file.name.as_str(), file.len))
            .chain(beside.map(|entry| (entry.file.as_str(), entry.len)))
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, FileError> {
        let corrupt = |what: String| FileError::corrupt(MANIFEST, what);
        let (version, json) = check_header(bytes)?;
        let manifest: Self =
            serde_json::from_slice(json).map_err(|error| corrupt(format!("its JSON is invalid: {error}")))?;
        if manifest.format_version != version {
            return Err(corrupt(format!("its JSON has another format version, {}", manifest.format_version)));
        }
        manifest.check().map_err(corrupt)?;
        Ok(manifest)
    }

    /// Check all values: they determine how much is allocated and read.
    fn check(&self) -> Result<(), String> {
        let counts = self
            .tables
            .iter()
            .flat_map(|table| [table.steps, table.accesses, table.births, table.deletes, table.evicted]);
        let logs = self.groups.iter().flat_map(|group| [group.log.cut, group.log.next_sequence]);
        let logs = logs.chain([self.feed]);
        if let Some(count) = counts.chain(logs).chain([self.epoch]).find(|count| *count > COUNT_MAX) {
            return Err(format!("a counter is {count}, beyond the maximum of 2^62"));
        }
        if self.epoch == 0 {
            return Err("its checkpoint number is 0, but checkpoints count from 1".into());
        }
        self.groups.iter().try_for_each(GroupEntry::check)?;
        let (mut names, mut categories) = (HashSet::new(), HashSet::new());
        for table in &self.tables {
            let name = &table.name;
            let Some(group) = self.groups.get(table.group as usize) else {
                return Err(format!("table {name:?} is in group {}, which does not exist", table.group));
            };
            table.spec.validate().map_err(|error| format!("table {name:?}: {error}"))?;
            if table.rows > ROWS_MAX {
                return Err(format!(
                    "table {name:?} has {} rows, a group has room for {ROWS_MAX}",
                    table.rows
                ));
            }
            if table.spec.group() != group.spec {
                return Err(format!("table {name:?} has another spec than its group {}", table.group));
            }
            if table.category.0 >= TABLES_MAX || !categories.insert(table.category) {
                return Err(format!(
                    "table {name:?} has category {}, which is out of range or used twice",
                    table.category.0
                ));
            }
            if !names.insert(name) {
                return Err(format!("two tables have the name {name:?}"));
            }
        }
        if let Some(pair) = self.versions.windows(2).find(|pair| pair[0].epoch >= pair[1].epoch) {
            return Err(format!("version {} comes before version {}", pair[0].epoch, pair[1].epoch));
        }
        match self.file_names().find(|name| name::epoch_of(name).is_none() || name.contains(['/', '\\'])) {
            Some(name) => Err(format!("it names {name:?}, which is not the name of a checkpoint file")),
            None => Ok(()),
        }
    }
}

/// The version in the JSON of a manifest of any version.
#[derive(Deserialize)]
struct Claim {
    format_version: u32,
}

/// The version in a correct header line, and the JSON after it.
fn check_header(bytes: &[u8]) -> Result<(u32, &[u8]), FileError> {
    let corrupt = |what: &str| FileError::corrupt(MANIFEST, what);
    let Sealed { version, content: json, is_whole } =
        rowmill_io::unseal(MAGIC, bytes).map_err(|what| corrupt(&what))?;
    if !is_whole {
        return Err(corrupt("length, checksum or version in its header line do not match the rest"));
    }
    if version > FORMAT_VERSION_MAX {
        // Damage must not be reported as a newer version. The version in the header line is not covered by
        // the checksum, but it is repeated in the JSON.
        if serde_json::from_slice::<Claim>(json).is_ok_and(|claim| claim.format_version != version) {
            return Err(corrupt("its header line has another format version than the rest"));
        }
        return Err(FileError::Newer { name: MANIFEST, found: version, supported: FORMAT_VERSION_MAX });
    }
    Ok((version, json))
}
