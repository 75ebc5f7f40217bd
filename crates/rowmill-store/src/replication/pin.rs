//! Pins the last checkpoint while it is copied.
//!
//! A pinned checkpoint is the one that was durable when it was pinned. While it is pinned, its segments are
//! not overwritten and its files are not removed, although later checkpoints are made. The cost is space on
//! the device.
//!
//! A pinned checkpoint outlives its store. After [`Store::close`] it can still be read and keeps the lock of
//! the folder, so no other process can open the folder for writing until the checkpoint is dropped.

use std::collections::HashSet;
use std::fmt::{self, Debug, Formatter};
use std::io::Read;
use std::sync::Arc;

use rowmill_io::{DeviceError, Volume, VolumeLock};
use rowmill_log::{Geometry, SegmentCopier, SegmentRecord};

use crate::error::StoreError;
use crate::files::{self, GroupEntry, Manifest, load_manifest_with_bytes};
use crate::store::{Store, log_device};

/// Attachment that names further files of the folder which belong to the checkpoint, one per line. They must
/// never change: the trainer names them by their hash.
pub const FILES_ATTACHMENT: &str = "rowmill.files";
/// Maximum bytes of a part of a file. Segments are shorter, or hold one row.
const PART_BYTES_MAX: u64 = 4 << 20;

/// A durable checkpoint that is kept until this is dropped.
pub struct PinnedCheckpoint {
    volume: Arc<dyn Volume>,
    manifest: Arc<Manifest>,
    manifest_bytes: Vec<u8>,
    /// Files that [`FILES_ATTACHMENT`] names.
    further: Vec<FurtherFile>,
    /// The open store that keeps it; `None` when no process has the folder open for writing.
    store: Option<Arc<Store>>,
    /// Keeps other processes from writing to the folder.
    _lock: Option<Arc<dyn VolumeLock>>,
}

/// A file beside the checkpoint, as it was when the checkpoint was pinned.
struct FurtherFile {
    name: String,
    len: u64,
    crc: u32,
}

/// Some bytes of a checkpoint: a segment of a log, or a range of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPart {
    /// Within one lineage, parts with equal names have equal bytes.
    pub name: String,
    /// The file in the folder that it is a part of.
    pub file: String,
    /// The ranges of the bytes in that file: offset and length, in the order of the bytes.
    pub spans: Vec<(u64, u64)>,
    source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Segment { group: u32, segment: SegmentRecord },
    File { len: u64, crc: u32 },
    Manifest,
    Mark,
}

impl CheckpointPart {
    /// Number of bytes of the part.
    pub fn bytes(&self) -> u64 {
        self.spans.iter().map(|(_, len)| len).sum()
    }
}

impl Store {
    /// Pin the last durable checkpoint. Waits for a checkpoint that is being made. Work and later checkpoints
    /// continue.
    ///
    /// # Errors
    /// [`StoreError::NoCheckpoint`] and [`StoreError::Closed`]. For a store opened read-only also
    /// [`DeviceError::Locked`], when another process has it open for writing.
    pub fn pin_checkpoint(self: &Arc<Self>) -> Result<PinnedCheckpoint, StoreError> {
        self.check_open()?;
        self.check_at_last("a push")?;
        if self.is_read_only() {
            return PinnedCheckpoint::of_volume(Arc::clone(&self.volume));
        }
        // Under this lock no checkpoint becomes durable, and `close` waits before it releases the folder's
        // lock.
        let _saved = self.saved.lock();
        self.check_open()?;
        let (manifest, manifest_bytes) = load(&*self.volume)?;
        let further = further_files(&*self.volume, &manifest)?;
        let manifest = Arc::new(manifest);
        self.pins.add(&manifest);
        for (group, entry) in self.groups.read().iter().zip(&manifest.groups) {
            group.core.log.pin(entry.log.cut);
        }
        Ok(PinnedCheckpoint {
            volume: Arc::clone(&self.volume),
            manifest,
            manifest_bytes,
            further,
            store: Some(Arc::clone(self)),
            _lock: self.lock.lock().clone(),
        })
    }

    fn unpin(&self, manifest: &Arc<Manifest>) {
        self.pins.remove(manifest);
        for (group, entry) in self.groups.read().iter().zip(&manifest.groups) {
            group.core.log.unpin(entry.log.cut);
        }
    }
}

impl PinnedCheckpoint {
    /// Pin the checkpoint of a volume that no process has open for writing. None can open it so until this is
    /// dropped.
    ///
    /// # Errors
    /// [`StoreError::NoCheckpoint`], [`StoreError::Newer`], [`StoreError::Corrupt`], or
    /// [`DeviceError::Locked`].
    pub fn of_volume(volume: Arc<dyn Volume>) -> Result<Self, StoreError> {
        let lock = Arc::from(volume.lock()?);
        let (manifest, manifest_bytes) = load(&*volume)?;
        let further = further_files(&*volume, &manifest)?;
        let manifest = Arc::new(manifest);
        Ok(Self { volume, manifest, manifest_bytes, further, store: None, _lock: Some(lock) })
    }

    /// As [`Store::check_process`] for the store that keeps the checkpoint.
    pub(crate) fn check_process(&self) -> Result<(), StoreError> {
        self.store.as_ref().map_or(Ok(()), |store| store.check_process())
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Number of the checkpoint.
    pub fn epoch(&self) -> u64 {
        self.manifest.epoch
    }

    /// Number of rows of all tables.
    pub fn rows(&self) -> u64 {
        self.manifest.tables.iter().map(|table| table.rows).sum()
    }

    /// The openings that made the checkpoints of this store, oldest first: the first epoch and the number of
    /// each. Two lineages that are equal up to an epoch have equal checkpoints up to there.
    pub fn lineage(&self) -> &[(u64, u64)] {
        &self.manifest.lineage
    }

    /// All parts that make up the folder of this checkpoint. Parts of one file are in order.
    pub fn parts(&self) -> Vec<CheckpointPart> {
        let manifest = &*self.manifest;
        let index = manifest.snapshot.iter().chain(&manifest.deltas);
        let beside = manifest.attachments.iter().chain(&manifest.sketches);
        let files = index
            .map(|file| (&file.name, file.len, file.crc))
            .chain(beside.map(|entry| (&entry.file, entry.len, entry.crc)))
            .chain(self.further.iter().map(|file| (&file.name, file.len, file.crc)));
        let mut parts = vec![
            whole("STORE".to_owned(), files::MARKER, files::MARK.len(), Source::Mark),
            whole(
                format!("manifest-{}", manifest.epoch),
                files::MANIFEST,
                self.manifest_bytes.len(),
                Source::Manifest,
            ),
        ];
        for (name, len, crc) in files {
            let stretch = |offset: u64| CheckpointPart {
                name: format!("{name}-{offset}"),
                file: name.clone(),
                spans: vec![(offset, PART_BYTES_MAX.min(len - offset))],
                source: Source::File { len, crc },
            };
            // An empty file has one part, too.
            parts.extend((0..len.max(1)).step_by(PART_BYTES_MAX as usize).map(stretch));
        }
        for (group, entry) in (0..).zip(&manifest.groups) {
            let geometry = geometry(entry);
            parts.extend(entry.log.segments.iter().map(|&segment| {
                CheckpointPart {
                    name: format!("group-{group}-segment-{}", segment.sequence),
                    file: entry.log_device.clone(),
                    spans: SegmentCopier::spans(&geometry, segment)
                        .map(|span| (span.offset, span.bytes as u64))
                        .into(),
                    source: Source::Segment { group, segment },
                }
            }));
        }
        parts
    }

    /// Create a reader of parts.
    ///
    /// # Errors
    /// When a log cannot be opened.
    pub fn reader(&self) -> Result<PartReader<'_>, StoreError> {
        let copier = |(group, entry): (u32, &GroupEntry)| {
            let device = log_device(&*self.volume, &entry.log_device, &entry.log, false)?;
            Ok(SegmentCopier::new(device, geometry(entry), group))
        };
        let logs = (0..).zip(&self.manifest.groups).map(copier).collect::<Result<_, StoreError>>()?;
        Ok(PartReader { checkpoint: self, logs, open: None })
    }
}

impl Drop for PinnedCheckpoint {
    fn drop(&mut self) {
        if let Some(store) = self.store.as_ref().filter(|store| store.check_process().is_ok()) {
            store.unpin(&self.manifest);
        }
    }
}

impl Debug for PinnedCheckpoint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedCheckpoint({} of {})", self.manifest.epoch, self.volume.location())
    }
}

/// Reads and checks the parts of a pinned checkpoint. Parts of one file must be read in order.
pub struct PartReader<'a> {
    checkpoint: &'a PinnedCheckpoint,
    logs: Vec<SegmentCopier>,
    open: Option<OpenFile>,
}

/// A file that is read from its beginning.
struct OpenFile {
    name: String,
    reader: Box<dyn Read + Send>,
    position: u64,
    crc: u32,
}

impl PartReader<'_> {
    /// The bytes of a part.
    ///
    /// # Errors
    /// When the bytes cannot be read or do not match their checksum.
    ///
    /// # Panics
    /// When the part belongs to another checkpoint.
    pub fn read(&mut self, part: &CheckpointPart) -> Result<Vec<u8>, StoreError> {
        match &part.source {
            Source::Segment { group, segment } => Ok(self.logs[*group as usize].copy(*segment)?),
            Source::File { len, crc } => self.read_file(part, *len, *crc),
            Source::Manifest => Ok(self.checkpoint.manifest_bytes.clone()),
            Source::Mark => Ok(files::MARK.into()),
        }
    }

    fn read_file(&mut self, part: &CheckpointPart, len: u64, crc: u32) -> Result<Vec<u8>, StoreError> {
        let volume = &*self.checkpoint.volume;
        let (offset, part_len) = part.spans[0];
        let failed =
            |error| DeviceError::from_io("read", volume.path(&part.file), offset, part_len as usize, error);
        let corrupt = |what: &str| StoreError::Corrupt {
            what: format!("{} of {} is damaged: {what}", part.file, volume.location()),
        };
        let mut file = match self.open.take() {
            Some(file) if file.name == part.file && file.position <= offset => file,
            _ => {
                let reader = volume.open(&part.file)?;
                OpenFile { name: part.file.clone(), reader, position: 0, crc: 0 }
            }
        };
        let mut bytes = Vec::new();
        while file.position < offset + part_len {
            let wanted = if file.position < offset { offset - file.position } else { part_len };
            bytes.clear();
            let got = file.reader.by_ref().take(wanted.min(PART_BYTES_MAX)).read_to_end(&mut bytes);
            if got.map_err(failed)? == 0 {
                return Err(corrupt(&format!("it is shorter than {len} bytes")));
            }
            file.position += bytes.len() as u64;
            file.crc = rowmill_io::crc32c_append(file.crc, &bytes);
        }
        if file.position == len && file.crc != crc {
            return Err(corrupt("it does not match its checksum in the manifest"));
        }
        self.open = Some(file);
        Ok(bytes)
    }
}

impl Debug for PartReader<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "PartReader({:?})", self.checkpoint)
    }
}

fn load(volume: &dyn Volume) -> Result<(Manifest, Vec<u8>), StoreError> {
    let loaded = load_manifest_with_bytes(volume)?;
    let (manifest, bytes) = loaded.ok_or_else(|| StoreError::NoCheckpoint { location: volume.location() })?;
    if manifest.versions.is_empty() && manifest.rows.is_none() {
        return Ok((manifest, bytes));
    }
    let alone = without_versions(volume, manifest)?;
    let bytes = alone.to_bytes();
    Ok((alone, bytes))
}

/// A checkpoint without its versions, and without the segments and files that only versions need.
fn without_versions(volume: &dyn Volume, mut manifest: Manifest) -> Result<Manifest, StoreError> {
    if let Some(rows) = manifest.rows.take() {
        let sets = files::load_row_sets(volume, &rows, manifest.groups.len(), &manifest.moves)?;
        for (group, rows) in manifest.groups.iter_mut().zip(sets) {
            let per_segment = geometry(group).rows_per_segment();
            let places: HashSet<u32> = rows.rows().map(|row| row / per_segment).collect();
            group.log.segments.retain(|segment| places.contains(&segment.place));
        }
    }
    manifest.versions.clear();
    manifest.moves.clear();
    Ok(manifest.stamped())
}

fn further_files(volume: &dyn Volume, manifest: &Manifest) -> Result<Vec<FurtherFile>, StoreError> {
    let Some(entry) = manifest.attachments.iter().find(|entry| entry.name == FILES_ATTACHMENT) else {
        return Ok(Vec::new());
    };
    let names = files::load_attachment(volume, entry)?;
    let names = String::from_utf8_lossy(&names);
    names.lines().map(|name| further_file(volume, name)).collect()
}

fn further_file(volume: &dyn Volume, name: &str) -> Result<FurtherFile, StoreError> {
    if name.is_empty() || name.contains('/') {
        let what = format!(
            "attachment {FILES_ATTACHMENT} of {} names {name:?}, which is no file",
            volume.location()
        );
        return Err(StoreError::Corrupt { what });
    }
    let mut reader = volume.open(name)?;
    let (mut len, mut crc, mut bytes) = (0, 0, Vec::new());
    loop {
        bytes.clear();
        let read = reader.by_ref().take(PART_BYTES_MAX).read_to_end(&mut bytes);
        let read = read.map_err(|error| {
            DeviceError::from_io("read", volume.path(name), len, PART_BYTES_MAX as usize, error)
        })?;
        if read == 0 {
            return Ok(FurtherFile { name: name.to_owned(), len, crc });
        }
        len += read as u64;
        crc = rowmill_io::crc32c_append(crc, &bytes);
    }
}

fn geometry(entry: &GroupEntry) -> Geometry {
    Geometry::new(entry.stride as usize, entry.segment_bytes as usize)
}

fn whole(name: String, file: &str, len: usize, source: Source) -> CheckpointPart {
    CheckpointPart { name, file: file.to_owned(), spans: vec![(0, len as u64)], source }
}
