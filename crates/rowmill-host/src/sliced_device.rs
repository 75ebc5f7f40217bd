//! One device of a sliced volume.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use rowmill_io::{BLOCK_BYTES, Device, DeviceError, ReadResult, Span};
use rowmill_sync::unranked::{Mutex, RwLock};

use crate::slice_table::SavedDevice;
use crate::sliced_volume::Shared;
use crate::slices::{Slice, Slices};

/// A slice, and how many of its bytes were written, from its beginning.
#[derive(Clone, Debug)]
struct Place {
    slice: Arc<Slice>,
    written: u64,
}

#[derive(Debug, Default)]
struct Map {
    bytes: u64,
    places: Vec<Option<Place>>,
}

/// Where the content of a device is. Handles of the device share it.
#[derive(Debug, Default)]
pub(crate) struct SlicedFile {
    map: RwLock<Map>,
    /// Held by writes and discards: what lies before a write in a new slice is filled with zeros.
    writing: Mutex<()>,
}

impl SlicedFile {
    /// The device of a saved table; `None` if its slices are not free.
    pub(crate) fn load(saved: &SavedDevice, slices: &Arc<Slices>, slice_bytes: u64) -> Option<SlicedFile> {
        let place = |&(number, blocks): &(u32, u32)| {
            let written = u64::from(blocks) * BLOCK_BYTES as u64;
            let slice = Arc::new(slices.claim(number)?);
            (written <= slice_bytes).then_some(Place { slice, written })
        };
        let places = saved.slices.iter().map(|slice| match slice {
            None => Some(None),
            Some(slice) => place(slice).map(Some),
        });
        let map = Map { bytes: saved.bytes, places: places.collect::<Option<_>>()? };
        Some(SlicedFile { map: RwLock::new(map), writing: Mutex::new(()) })
    }

    pub(crate) fn save(&self, slice_bytes: u64) -> SavedDevice {
        let map = self.map.read();
        let saved = |(index, place): (usize, &Option<Place>)| {
            // A write that is under way has not yet made the device longer.
            let within = map.bytes.saturating_sub(index as u64 * slice_bytes);
            let blocks = |place: &Place| (place.written.min(within) / BLOCK_BYTES as u64) as u32;
            place.as_ref().map(|place| (place.slice.number, blocks(place)))
        };
        SavedDevice { bytes: map.bytes, slices: map.places.iter().enumerate().map(saved).collect() }
    }
}

/// A handle of a device.
#[derive(Debug)]
pub(crate) struct SlicedDevice {
    shared: Arc<Shared>,
    file: Arc<SlicedFile>,
    name: String,
    is_writable: bool,
}

/// A part of a span within one slice.
struct Part {
    /// Number of the slice within the device.
    index: usize,
    /// Its first byte within the slice.
    start: u64,
    bytes: usize,
}

/// A span that is put together from parts.
struct Assembly {
    content: Vec<u8>,
    missing: usize,
    error: Option<String>,
}

impl SlicedDevice {
    pub(crate) fn new(
        shared: Arc<Shared>,
        file: Arc<SlicedFile>,
        name: String,
        is_writable: bool,
    ) -> SlicedDevice {
        SlicedDevice { shared, file, name, is_writable }
    }

    /// The parts of a range of bytes, in order.
    fn parts(&self, offset: u64, end: u64) -> impl Iterator<Item = Part> + use<> {
        let slice_bytes = self.shared.slice_bytes;
        let first = offset / slice_bytes;
        let slices = if end > offset { first..end.div_ceil(slice_bytes) } else { first..first };
        slices.map(move |index| {
            let start = offset.max(index * slice_bytes) - index * slice_bytes;
            let bytes = end.min((index + 1) * slice_bytes) - index * slice_bytes - start;
            Part { index: index as usize, start, bytes: bytes as usize }
        })
    }

    fn at(&self, slice: &Slice, start: u64) -> u64 {
        u64::from(slice.number) * self.shared.slice_bytes + start
    }

    fn error(&self, operation: &'static str, span: Span, source: io::Error) -> DeviceError {
        DeviceError::from_io(operation, self.name.as_str(), span.offset, span.bytes, source)
    }

    /// An error of the device below, as one of this.
    fn failed(&self, operation: &'static str, span: Span, error: DeviceError) -> DeviceError {
        match error {
            DeviceError::Full { .. } => self.full(span),
            error => self.error(operation, span, io::Error::other(error)),
        }
    }

    fn full(&self, span: Span) -> DeviceError {
        DeviceError::Full { name: self.name.clone(), offset: span.offset, bytes: span.bytes }
    }

    fn check_writable(&self, operation: &'static str, span: Span) -> Result<(), DeviceError> {
        if self.is_writable {
            return Ok(());
        }
        Err(self.error(operation, span, io::Error::new(io::ErrorKind::PermissionDenied, "opened to read")))
    }

    /// The place of a slice of this device, which gets a free slice if it has none.
    fn place(&self, index: usize, span: Span) -> Result<Place, DeviceError> {
        if let Some(Some(place)) = self.file.map.read().places.get(index) {
            return Ok(place.clone());
        }
        let slice = if let Some(slice) = self.shared.slices.take() {
            slice
        } else {
            // Slices that were freed since the last save can be had after the next one.
            self.shared.save().map_err(|error| self.failed("write", span, error))?;
            self.shared.slices.take().ok_or_else(|| self.full(span))?
        };
        let place = Place { slice: Arc::new(slice), written: 0 };
        let mut map = self.file.map.write();
        if map.places.len() <= index {
            map.places.resize(index + 1, None);
        }
        map.places[index] = Some(place.clone());
        Ok(place)
    }

    fn write_part(&self, part: &Part, content: &[u8], span: Span) -> Result<(), DeviceError> {
        let place = self.place(part.index, span)?;
        let device = &self.shared.device;
        let failed = |error| self.failed("write", span, error);
        if part.start > place.written {
            let zeros = vec![0; (part.start - place.written) as usize];
            device.write(self.at(&place.slice, place.written), &zeros).map_err(failed)?;
        }
        device.write(self.at(&place.slice, part.start), content).map_err(failed)?;
        let end = part.start + part.bytes as u64;
        if end > place.written
            && let Some(Some(place)) = self.file.map.write().places.get_mut(part.index)
        {
            place.written = end;
            self.shared.change();
        }
        Ok(())
    }
}

impl Device for SlicedDevice {
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>)) {
        let mut physical = Vec::new();
        // Of each physical span: the span that it is for, and where it begins in that.
        let mut wanted = Vec::new();
        let mut assemblies: HashMap<usize, Assembly> = HashMap::new();
        // Slices in use are not given to others while they are read.
        let mut pins = Vec::new();
        let mut at_once = Vec::new();
        {
            let map = self.file.map.read();
            for (position, &span) in spans.iter().enumerate() {
                if span.end() > map.bytes {
                    at_once.push((position, Err(map.bytes)));
                    continue;
                }
                let first = physical.len();
                let mut start = 0;
                for part in self.parts(span.offset, span.end()) {
                    if let Some(Some(place)) = map.places.get(part.index)
                        && place.written > part.start
                    {
                        let bytes = part.bytes.min((place.written - part.start) as usize);
                        physical.push(Span { offset: self.at(&place.slice, part.start), bytes });
                        wanted.push((position, start));
                        pins.push(Arc::clone(&place.slice));
                    }
                    start += part.bytes;
                }
                let missing = physical.len() - first;
                let is_whole = missing == 1 && physical[first].bytes == span.bytes;
                if missing == 0 {
                    at_once.push((position, Ok(())));
                } else if !is_whole {
                    let content = vec![0; span.bytes];
                    assemblies.insert(position, Assembly { content, missing, error: None });
                }
            }
        }
        for (position, result) in at_once {
            let span = spans[position];
            match result {
                Ok(()) => deliver(position, Ok(&vec![0; span.bytes])),
                Err(bytes) => {
                    let reason = format!("the device has {bytes} bytes");
                    let source = io::Error::new(io::ErrorKind::UnexpectedEof, reason);
                    deliver(position, Err(self.error("read", span, source)));
                }
            }
        }
        if physical.is_empty() {
            return;
        }
        self.shared.device.read(&physical, &mut |number, result| {
            let (position, start) = wanted[number];
            let span = spans[position];
            let Some(assembly) = assemblies.get_mut(&position) else {
                deliver(position, result.map_err(|error| self.failed("read", span, error)));
                return;
            };
            match result {
                Ok(content) => assembly.content[start..start + content.len()].copy_from_slice(content),
                Err(error) => assembly.error = Some(error.to_string()),
            }
            assembly.missing -= 1;
            if assembly.missing == 0
                && let Some(whole) = assemblies.remove(&position)
            {
                match whole.error {
                    None => deliver(position, Ok(&whole.content)),
                    Some(error) => deliver(position, Err(self.error("read", span, io::Error::other(error)))),
                }
            }
        });
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError> {
        let span = Span { offset, bytes: blocks.len() };
        self.check_writable("write", span)?;
        let _writing = self.file.writing.lock();
        let mut rest = blocks;
        for part in self.parts(offset, span.end()) {
            let (content, after) = rest.split_at(part.bytes);
            self.write_part(&part, content, span)?;
            rest = after;
        }
        let mut map = self.file.map.write();
        if span.end() > map.bytes && span.bytes > 0 {
            map.bytes = span.end();
            self.shared.change();
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.shared.save()
    }

    fn discard(&self, span: Span) -> Result<(), DeviceError> {
        self.check_writable("discard", span)?;
        let _writing = self.file.writing.lock();
        for part in self.parts(span.offset, span.end()) {
            let mut map = self.file.map.write();
            let Some(Some(place)) = map.places.get_mut(part.index) else { continue };
            let end = part.start + part.bytes as u64;
            if end >= place.written {
                // What was not written reads as zeros.
                if part.start == 0 {
                    map.places[part.index] = None;
                    self.shared.change();
                } else if part.start < place.written {
                    place.written = part.start;
                    self.shared.change();
                }
                continue;
            }
            let offset = self.at(&place.slice, part.start);
            drop(map);
            let within = Span { offset, bytes: part.bytes };
            self.shared.device.discard(within).map_err(|error| self.failed("discard", span, error))?;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.file.map.read().bytes
    }
}
