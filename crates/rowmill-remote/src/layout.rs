//! Layout of the objects at a URL.
//!
//! ```text
//! checkpoints/<number of the push>              a visible checkpoint: the entry
//! objects/<number of the push>-<random>/...     uploads of that push: parts, and the contents
//! ```
//!
//! Pushes are numbered from 1, without gaps. A writer must create the next number, so if two writers push at
//! once, one fails. After a checkpoint is removed, an empty object keeps its number for a while, so that a
//! slow writer cannot reuse it. The folder name of a push is random. A push removes only folders up to the
//! last number, so it never removes what another push is uploading.
//!
//! Entry and contents are JSON after a header line that every build can read:
//!
//! ```text
//! rowmill-remote <format version> <CRC32C of the rest, 8 hexadecimal digits> <bytes of the rest>
//! ```

use rowmill_io::Sealed;
use rowmill_store::CheckpointPart;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Format version of entry and contents. Older versions are readable; newer versions are refused.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// First word of the header line.
const MAGIC: &str = "rowmill-remote";
/// Folder of entries.
pub(crate) const CHECKPOINTS: &str = "checkpoints";
/// Folder of parts and contents.
pub(crate) const OBJECTS: &str = "objects";

/// A visible checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Number of the checkpoint in its store.
    pub(crate) epoch: u64,
    /// Number of rows.
    pub(crate) rows: u64,
    /// Total bytes of its parts.
    pub(crate) bytes: u64,
    /// Folder of the push that uploaded it.
    pub(crate) push: String,
    /// Length and CRC32C of its contents.
    pub(crate) contents: (u64, u32),
}

/// Parts and origin of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contents {
    /// Number of the checkpoint, as in the entry.
    pub(crate) epoch: u64,
    /// The openings that made the checkpoints of the store: first epoch and number of each.
    pub(crate) lineage: Vec<(u64, u64)>,
    /// Folders of the pushes that uploaded its parts.
    pub(crate) pushes: Vec<String>,
    /// All parts, ordered within each file.
    pub(crate) parts: Vec<PartEntry>,
}

/// A part. An array in JSON, because a checkpoint has many parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PartFields", into = "PartFields")]
pub(crate) struct PartEntry {
    pub(crate) name: String,
    /// File in the store's folder.
    pub(crate) file: String,
    /// Offset and length in bytes of each span of that file.
    pub(crate) spans: Vec<(u64, u64)>,
    /// Position in [`Contents::pushes`].
    pub(crate) push: u32,
    /// CRC32C of its bytes.
    pub(crate) crc: u32,
}

type PartFields = (String, String, Vec<(u64, u64)>, u32, u32);

impl From<PartFields> for PartEntry {
    fn from((name, file, spans, push, crc): PartFields) -> Self {
        Self { name, file, spans, push, crc }
    }
}

impl From<PartEntry> for PartFields {
    fn from(part: PartEntry) -> Self {
        (part.name, part.file, part.spans, part.push, part.crc)
    }
}

impl PartEntry {
    /// Bytes of the part; `None` if they overflow the length of a file.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let ends = self.spans.iter().all(|(offset, len)| offset.checked_add(*len).is_some());
        let bytes = self.spans.iter().try_fold(0_u64, |sum, (_, len)| sum.checked_add(*len))?;
        ends.then_some(bytes)
    }

    /// Whether its object holds the bytes of `part`, which must be of the same lineage.
    pub(crate) fn holds(&self, part: &CheckpointPart) -> bool {
        self.name == part.name && self.file == part.file && self.spans == part.spans
    }
}

impl Contents {
    /// Folder of the push that uploaded a part; `None` if the push is not listed.
    pub(crate) fn push_of(&self, part: &PartEntry) -> Option<&String> {
        self.pushes.get(part.push as usize)
    }

    /// Key of a part's object; `None` if its push is not listed.
    pub(crate) fn key(&self, part: &PartEntry) -> Option<String> {
        Some(part_key(self.push_of(part)?, &part.name))
    }
}

/// Key of the entry of a push.
pub(crate) fn entry_key(number: u64) -> String {
    format!("{CHECKPOINTS}/{number:020}")
}

/// The push number in the key of an entry.
pub(crate) fn entry_number(key: &str) -> Option<u64> {
    let number = key.strip_prefix(CHECKPOINTS)?.strip_prefix('/')?.parse().ok()?;
    (entry_key(number) == key).then_some(number)
}

/// The folder of a push.
pub(crate) fn push_folder(number: u64, random: u64) -> String {
    format!("{number:020}-{random:016x}")
}

/// The number of the push that uploaded an object; `None` if the key has another format.
pub(crate) fn object_number(key: &str) -> Option<u64> {
    let folder = key.strip_prefix(OBJECTS)?.strip_prefix('/')?;
    folder.split_once('-')?.0.parse().ok()
}

/// Key of a part.
pub(crate) fn part_key(push: &str, name: &str) -> String {
    format!("{OBJECTS}/{push}/parts/{name}")
}

/// Key of a push's contents.
pub(crate) fn contents_key(push: &str) -> String {
    format!("{OBJECTS}/{push}/contents")
}

/// Key of the object that tests whether the server honours `If-None-Match`.
pub(crate) fn probe_key(push: &str) -> String {
    format!("{OBJECTS}/{push}/probe")
}

/// The opening that made checkpoint `epoch`; `None` if the lineage starts later.
pub(crate) fn writer_of(lineage: &[(u64, u64)], epoch: u64) -> Option<u64> {
    lineage.iter().rev().find(|(first, _)| *first <= epoch).map(|&(_, opening)| opening)
}

/// JSON after its header line.
pub(crate) fn seal(value: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_vec(value).expect("entries and contents can be written as JSON");
    rowmill_io::seal(MAGIC, FORMAT_VERSION, &json)
}

/// Why sealed bytes could not be read.
pub(crate) enum Unsealed {
    /// A newer build wrote them.
    Newer(u32),
    /// They differ from the bytes that were written.
    Corrupt(String),
}

/// Parse bytes that [`seal`] wrote.
pub(crate) fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unsealed> {
    let Sealed { version, content, is_whole } =
        rowmill_io::unseal(MAGIC, bytes).map_err(Unsealed::Corrupt)?;
    if version > FORMAT_VERSION {
        return Err(Unsealed::Newer(version));
    }
    if !is_whole {
        let what = "length, checksum or version in its header line do not match its content";
        return Err(Unsealed::Corrupt(what.to_owned()));
    }
    serde_json::from_slice(content)
        .map_err(|error| Unsealed::Corrupt(format!("its JSON is not valid: {error}")))
}
