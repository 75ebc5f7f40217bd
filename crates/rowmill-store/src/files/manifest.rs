//! The one file that says what a checkpoint is.
//!
//! First a line that every build can read, whatever the version of the rest:
//!
//! ```text
//! rowmill-manifest <format version> <CRC32C of the rest, 8 hexadecimal digits> <bytes of the rest>
//! ```
//!
//! then JSON, so that a person can read it too (`tail -n +2 MANIFEST | jq`). Fields unknown to this build are ignored; a build that
//! writes something an older one must not ignore raises the format version.

use std::collections::HashSet;
use std::io::Read;

use rowmill_io::{DeviceError, Sealed, Volume};
use rowmill_log::LogState;
use rowmill_rows::{Category, Dtype, GroupSpec, TableSpec};
use serde::{Deserialize, Serialize};

use super::attachment::AttachmentEntry;
use super::error::FileError;
use super::frame::FileEntry;
use super::name::{self, MANIFEST, MANIFEST_NEW};

/// Version of every file of a store. Older ones stay readable, newer ones are refused.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Version of a manifest with tables that evict rows or refuse ids: a build that does not know of them would
/// neither stamp rows nor count ids. Stores without such tables stay readable by older builds.
const FORMAT_VERSION_EVICTION: u32 = 2;
/// Version of a manifest with tables of bf16 weights, likewise.
const FORMAT_VERSION_BF16: u32 = 3;
/// Version of a manifest with tables of split weights, likewise.
const FORMAT_VERSION_SPLIT: u32 = 4;
const FORMAT_VERSION_MAX: u32 = FORMAT_VERSION_SPLIT;
/// First word of the header line.
const MAGIC: &str = "rowmill-manifest";
/// Largest manifest: some ten million segments, petabytes of rows.
const BYTES_MAX: u64 = 256 << 20;

/// Tables of a store.
pub(crate) const TABLES_MAX: u32 = 1 << 16;
/// Nothing is counted further than this.
const COUNT_MAX: u64 = 1 << 62;
/// Bytes of a segment, generously.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// As in the header line.
    pub(crate) format_version: u32,
    /// Number of the checkpoint.
    pub(crate) epoch: u64,
    /// Seed of every initializer.
    pub(crate) seed: u64,
    /// Version of rowmill that created the store, for people.
    pub(crate) created_by: String,
    /// Who made its checkpoints: the first epoch and the number of every opening that made some, oldest
    /// first. Two folders with one past have one lineage up to where they parted; stores from before this
    /// field have none for their first epochs.
    #[serde(default)]
    pub(crate) lineage: Vec<(u64, u64)>,
    /// Groups by number.
    pub(crate) groups: Vec<GroupEntry>,
    /// Tables, in the order of their creation.
    pub(crate) tables: Vec<TableEntry>,
    /// The latest event time that a step said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) event_time: Option<u64>,
    /// The index at some earlier checkpoint; none as long as the deltas say all.
    #[serde(default)]
    pub(crate) snapshot: Option<FileEntry>,
    /// Index changes since the snapshot, oldest first.
    #[serde(default)]
    pub(crate) deltas: Vec<FileEntry>,
    /// Index changes from before that, oldest first: nothing needs them but the question what changed
    /// since an earlier checkpoint.
    #[serde(default)]
    pub(crate) history: Vec<FileEntry>,
    /// Number of the frame of this checkpoint in the feed; 0 where none was kept.
    #[serde(default)]
    pub(crate) feed: u64,
    /// Bytes of the caller's own.
    #[serde(default)]
    pub(crate) attachments: Vec<AttachmentEntry>,
    /// Counts of ids that have no row yet; the name is the number of the category.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) sketches: Vec<AttachmentEntry>,
}

/// A group and its log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupEntry {
    /// What its tables agree on.
    pub(crate) spec: GroupSpec,
    /// Shards, a power of two.
    pub(crate) shards: u32,
    /// Bytes from one row to the next.
    pub(crate) stride: u32,
    /// Bytes of a segment of the log.
    pub(crate) segment_bytes: u64,
    /// Device that holds the log.
    pub(crate) log_device: String,
    /// Segments that hold rows of this checkpoint.
    pub(crate) log: LogState,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TableEntry {
    /// Name.
    pub(crate) name: String,
    /// Category of its rows.
    pub(crate) category: Category,
    /// Number of its group.
    pub(crate) group: u32,
    /// What it was created with.
    pub(crate) spec: TableSpec,
    /// Updates applied, the step count of Adam.
    pub(crate) steps: u64,
    /// Rows in it.
    pub(crate) rows: u64,
    /// Ids looked up since the table was created.
    #[serde(default)]
    pub(crate) accesses: u64,
    /// Rows born since the table was created.
    #[serde(default)]
    pub(crate) births: u64,
    /// Rows deleted since the table was created.
    #[serde(default)]
    pub(crate) deletes: u64,
    /// Rows evicted since the table was created.
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
            return Err(format!(
                "a group has rows of {} bytes where its spec asks for {stride}",
                self.stride
            ));
        }
        if self.segment_bytes > SEGMENT_BYTES_MAX {
            return Err(format!("a group has segments of {} bytes", self.segment_bytes));
        }
        Ok(())
    }
}

impl Manifest {
    /// Make this the checkpoint of the volume, in one step: a crash at any instant leaves the previous
    /// manifest or this one, and every file that one names.
    ///
    /// # Errors
    /// When the volume fails. The previous checkpoint is still there unless the very last sync failed,
    /// when either may be; nothing should be written to the volume any more then.
    pub(crate) fn save(&self, volume: &dyn Volume) -> Result<(), FileError> {
        self.save_as(volume, MANIFEST)
    }

    /// Make this the content of a file of the volume, as [`Manifest::save`] does.
    ///
    /// # Errors
    /// As [`Manifest::save`].
    pub(crate) fn save_as(&self, volume: &dyn Volume, name: &str) -> Result<(), FileError> {
        debug_assert_eq!(self.format_version, Self::version_of(&self.tables));
        let json = serde_json::to_vec(self).expect("a manifest has neither odd keys nor odd numbers");
        let bytes = rowmill_io::seal(MAGIC, self.format_version, &json);
        let mut file = volume.create(MANIFEST_NEW)?;
        file.write_all(&bytes).map_err(|error| {
            DeviceError::from_io("write", volume.path(MANIFEST_NEW), 0, bytes.len(), error)
        })?;
        file.sync()?;
        // The names of the files this manifest names must not come later than its own.
        volume.sync()?;
        volume.rename(MANIFEST_NEW, name)?;
        volume.sync()?;
        Ok(())
    }

    /// The checkpoint of the volume.
    ///
    /// # Errors
    /// [`FileError::Missing`] when there is none, [`FileError::Newer`], or [`FileError::Corrupt`].
    pub(crate) fn load(volume: &dyn Volume) -> Result<Self, FileError> {
        Ok(Self::load_with_bytes(volume)?.0)
    }

    /// The manifest in another file of the volume than that of its checkpoint.
    ///
    /// # Errors
    /// As [`Manifest::load`].
    pub(crate) fn load_from(volume: &dyn Volume, name: &str) -> Result<Self, FileError> {
        Self::parse(&Self::read(volume, name)?)
    }

    /// The checkpoint of the volume, and the content of its file.
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

    /// The oldest version that says all of these tables.
    pub(crate) fn version_of(tables: &[TableEntry]) -> u32 {
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

    /// Names of all files but the logs.
    pub(crate) fn file_names(&self) -> impl Iterator<Item = &str> {
        let index =
            self.snapshot.iter().chain(&self.history).chain(&self.deltas).map(|file| file.name.as_str());
        let beside = self.attachments.iter().chain(&self.sketches);
        index.chain(beside.map(|attachment| attachment.file.as_str()))
    }

    fn parse(bytes: &[u8]) -> Result<Self, FileError> {
        let corrupt = |what: String| FileError::corrupt(MANIFEST, what);
        let (version, json) = check_header(bytes)?;
        let manifest: Self = serde_json::from_slice(json)
            .map_err(|error| corrupt(format!("its JSON does not fit: {error}")))?;
        if manifest.format_version != version {
            return Err(corrupt(format!("it claims format version {}", manifest.format_version)));
        }
        manifest.check().map_err(corrupt)?;
        Ok(manifest)
    }

    /// Whether this can be a checkpoint: what is read from here decides how much is allocated and read.
    fn check(&self) -> Result<(), String> {
        let counts = self.tables.iter().flat_map(|table| [table.steps, table.accesses, table.births]);
        let logs = self.groups.iter().flat_map(|group| [group.log.cut, group.log.next_sequence]);
        let logs = logs.chain([self.feed]);
        if let Some(count) = counts.chain(logs).chain([self.epoch]).find(|count| *count > COUNT_MAX) {
            return Err(format!("it counts up to {count}, more than can have happened"));
        }
        if self.epoch == 0 {
            return Err("checkpoint 0 is none".into());
        }
        self.groups.iter().try_for_each(GroupEntry::check)?;
        let (mut names, mut categories) = (HashSet::new(), HashSet::new());
        for table in &self.tables {
            let name = &table.name;
            let Some(group) = self.groups.get(table.group as usize) else {
                return Err(format!("table {name:?} is in group {}, which is not there", table.group));
            };
            table.spec.validate().map_err(|error| format!("table {name:?}: {error}"))?;
            if table.spec.group() != group.spec {
                return Err(format!("table {name:?} has another spec than its group {}", table.group));
            }
            if table.category.0 >= TABLES_MAX || !categories.insert(table.category) {
                return Err(format!("table {name:?} has category {}, or another has it", table.category.0));
            }
            if !names.insert(name) {
                return Err(format!("two tables are called {name:?}"));
            }
        }
        match self.file_names().find(|name| name::epoch_of(name).is_none() || name.contains(['/', '\\'])) {
            Some(name) => Err(format!("it names {name:?}, which is no file of a checkpoint")),
            None => Ok(()),
        }
    }
}

/// What a manifest of any version says of itself, if it is JSON.
#[derive(Deserialize)]
struct Claim {
    format_version: u32,
}

/// The version in a header line that is right, and the JSON behind it.
fn check_header(bytes: &[u8]) -> Result<(u32, &[u8]), FileError> {
    let corrupt = |what: &str| FileError::corrupt(MANIFEST, what);
    let Sealed { version, content: json, is_whole } =
        rowmill_io::unseal(MAGIC, bytes).map_err(|what| corrupt(&what))?;
    if !is_whole {
        return Err(corrupt("length, checksum or version in its header line do not fit the rest"));
    }
    if version > FORMAT_VERSION_MAX {
        // Damage must not send anybody to look for an upgrade: the version alone is not under the checksum,
        // but stands in the rest again.
        if serde_json::from_slice::<Claim>(json).is_ok_and(|claim| claim.format_version != version) {
            return Err(corrupt("its header line has another format version than the rest"));
        }
        return Err(FileError::Newer { name: MANIFEST, found: version, supported: FORMAT_VERSION_MAX });
    }
    Ok((version, json))
}
