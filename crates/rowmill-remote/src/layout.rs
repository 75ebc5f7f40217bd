//! What lies behind a URL, and what it is called.
//!
//! ```text
//! checkpoints/<number of the push>              a visible checkpoint: the entry
//! objects/<number of the push>-<random>/...     what that push uploaded: parts, and the contents
//! ```
//!
//! Pushes are numbered from 1, without gaps: the next writer must create the next number, so of two that
//! try at once one fails. The number of a push whose checkpoint was removed stays taken by an empty object
//! for a while, so that a writer that was slow cannot take it again. The folder of a push has a random
//! name, so nobody removes what another push is uploading: only folders up to the last number are cleaned.
//!
//! Entry and contents are JSON behind a line that every build can read:
//!
//! ```text
//! rowmill-remote <format version> <CRC32C of the rest, 8 hexadecimal digits> <bytes of the rest>
//! ```

use rowmill_io::Sealed;
use rowmill_store::CheckpointPart;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of entry and contents. Older ones stay readable, newer ones are refused.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// First word of the header line.
const MAGIC: &str = "rowmill-remote";
/// Folder of entries.
pub(crate) const CHECKPOINTS: &str = "checkpoints";
/// Folder of everything else.
pub(crate) const OBJECTS: &str = "objects";

/// A visible checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Number of the checkpoint in its store.
    pub(crate) epoch: u64,
    /// Rows in it.
    pub(crate) rows: u64,
    /// Bytes of all its parts.
    pub(crate) bytes: u64,
    /// Folder of the push that made it.
    pub(crate) push: String,
    /// Length and CRC32C of its contents.
    pub(crate) contents: (u64, u32),
}

/// What a checkpoint consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contents {
    /// As in the entry.
    pub(crate) epoch: u64,
    /// Who made the checkpoints of the store: first epoch and number of every opening.
    pub(crate) lineage: Vec<(u64, u64)>,
    /// Folders of the pushes that uploaded its parts.
    pub(crate) pushes: Vec<String>,
    /// All parts, those of a file in order.
    pub(crate) parts: Vec<PartEntry>,
}

/// A part; in JSON an array, because a checkpoint has many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PartFields", into = "PartFields")]
pub(crate) struct PartEntry {
    pub(crate) name: String,
    /// File of the folder.
    pub(crate) file: String,
    /// Offset and length of every stretch of that file.
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
    /// Bytes of the part; none when no file can be so long.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let ends = self.spans.iter().all(|(offset, len)| offset.checked_add(*len).is_some());
        let bytes = self.spans.iter().try_fold(0_u64, |sum, (_, len)| sum.checked_add(*len))?;
        ends.then_some(bytes)
    }

    /// Whether its object holds the bytes of `part`, which is of the same lineage.
    pub(crate) fn holds(&self, part: &CheckpointPart) -> bool {
        self.name == part.name && self.file == part.file && self.spans == part.spans
    }
}

impl Contents {
    /// The folder of the push that uploaded a part; none when it is not listed.
    pub(crate) fn push_of(&self, part: &PartEntry) -> Option<&String> {
        self.pushes.get(part.push as usize)
    }

    /// The object of a part; none when it names a push that is not listed.
    pub(crate) fn key(&self, part: &PartEntry) -> Option<String> {
        Some(part_key(self.push_of(part)?, &part.name))
    }
}

/// Key of the entry of a push.
pub(crate) fn entry_key(number: u64) -> String {
    format!("{CHECKPOINTS}/{number:020}")
}

/// The number of a push in the key of its entry.
pub(crate) fn entry_number(key: &str) -> Option<u64> {
    let number = key.strip_prefix(CHECKPOINTS)?.strip_prefix('/')?.parse().ok()?;
    (entry_key(number) == key).then_some(number)
}

/// The folder of a push.
pub(crate) fn push_folder(number: u64, random: u64) -> String {
    format!("{number:020}-{random:016x}")
}

/// The number of the push that uploaded an object; none for a key we did not make.
pub(crate) fn object_number(key: &str) -> Option<u64> {
    let folder = key.strip_prefix(OBJECTS)?.strip_prefix('/')?;
    folder.split_once('-')?.0.parse().ok()
}

/// Key of a part.
pub(crate) fn part_key(push: &str, name: &str) -> String {
    format!("{OBJECTS}/{push}/parts/{name}")
}

/// Key of the contents.
pub(crate) fn contents_key(push: &str) -> String {
    format!("{OBJECTS}/{push}/contents")
}

/// Key of the object that tells whether the server honours conditions.
pub(crate) fn probe_key(push: &str) -> String {
    format!("{OBJECTS}/{push}/probe")
}

/// The opening that made checkpoint `epoch`; none when the lineage does not reach back so far.
pub(crate) fn writer_of(lineage: &[(u64, u64)], epoch: u64) -> Option<u64> {
    lineage.iter().rev().find(|(first, _)| *first <= epoch).map(|&(_, opening)| opening)
}

/// JSON behind its header line.
pub(crate) fn seal(value: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_vec(value).expect("entries and contents have neither odd keys nor odd numbers");
    rowmill_io::seal(MAGIC, FORMAT_VERSION, &json)
}

/// Why sealed bytes could not be read.
pub(crate) enum Unsealed {
    /// A newer build wrote them.
    Newer(u32),
    /// They are not those that were written.
    Corrupt(String),
}

/// What [`seal`] wrote.
pub(crate) fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unsealed> {
    let Sealed { version, content, is_whole } =
        rowmill_io::unseal(MAGIC, bytes).map_err(Unsealed::Corrupt)?;
    if version > FORMAT_VERSION {
        return Err(Unsealed::Newer(version));
    }
    if !is_whole {
        let what = "length, checksum or version in its header line do not fit the rest";
        return Err(Unsealed::Corrupt(what.to_owned()));
    }
    serde_json::from_slice(content)
        .map_err(|error| Unsealed::Corrupt(format!("its JSON does not fit: {error}")))
}
