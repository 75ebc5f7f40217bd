//! A device with injected faults.

use std::sync::Arc;

use rowmill_io::{BLOCK_BYTES, Device, DeviceError, ReadResult, Span};

use crate::Fault;
use crate::fault_schedule::{FaultSchedule, Hit};
use crate::faulty_volume::{change, flip_bit, io_error, is_write_fault, sync, torn_sectors, write_error};

#[derive(Debug)]
pub(crate) struct FaultyDevice {
    inner: Arc<dyn Device>,
    name: String,
    schedule: Arc<FaultSchedule>,
}

impl FaultyDevice {
    pub(crate) fn new(inner: Arc<dyn Device>, name: &str, schedule: Arc<FaultSchedule>) -> Self {
        Self { inner, name: name.to_owned(), schedule }
    }

    /// The fault that hits the read of a span. Decided in the order of the batch, because the order of
    /// delivery varies between runs.
    fn hit_read(&self, span: Span) -> Option<Hit> {
        let elsewhere = self.inner.bytes() > span.bytes as u64;
        let within = span.end() <= self.inner.bytes();
        self.schedule.hit(&self.name, |past, fault| match fault {
            Fault::ReadError | Fault::BitFlip => within,
            Fault::StaleRead => within && past.blocks(span.offset, span.bytes).next().is_some(),
            Fault::MisdirectedRead => within && elsewhere,
            _ => false,
        })
    }

    /// The bytes that a faulty read gives instead of `blocks`.
    fn spoil(&self, span: Span, hit: Hit, blocks: &[u8]) -> Vec<u8> {
        let mut spoiled = blocks.to_vec();
        match hit.fault {
            Fault::BitFlip => flip_bit(&mut spoiled, hit.random),
            Fault::StaleRead => {
                let first = span.offset / BLOCK_BYTES as u64;
                let mut content = spoiled.chunks_exact_mut(BLOCK_BYTES).zip(first..);
                let older =
                    content.find_map(|(into, block)| Some((into, self.schedule.older(&self.name, block)?)));
                let (into, older) = older.expect("the schedule has an older version of a block of the span");
                into.copy_from_slice(&older);
            }
            Fault::MisdirectedRead => {
                let block = hit.random % (span.bytes / BLOCK_BYTES) as u64;
                let here = span.offset / BLOCK_BYTES as u64 + block;
                let others = self.inner.bytes() / BLOCK_BYTES as u64 - 1;
                let there = (hit.random >> 16) % others;
                let there = there + u64::from(there >= here);
                let into = &mut spoiled[block as usize * BLOCK_BYTES..][..BLOCK_BYTES];
                self.read_block(there, &mut |found| into.copy_from_slice(found));
            }
            _ => {}
        }
        spoiled
    }

    fn read_block(&self, block: u64, found: &mut dyn FnMut(&[u8])) {
        let span = Span { offset: block * BLOCK_BYTES as u64, bytes: BLOCK_BYTES };
        self.inner.read(&[span], &mut |_, result| {
            if let Ok(content) = result {
                found(content);
            }
        });
    }

    /// Record the blocks that a write is about to replace.
    fn remember(&self, offset: u64, blocks: &[u8]) {
        let first = offset / BLOCK_BYTES as u64;
        for (block, new) in (first..).zip(blocks.chunks_exact(BLOCK_BYTES)) {
            self.read_block(block, &mut |old| {
                if old != new {
                    self.schedule.remember(&self.name, block, old);
                }
            });
        }
    }
}

impl Device for FaultyDevice {
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>)) {
        let hits: Vec<Option<Hit>> = spans.iter().map(|span| self.hit_read(*span)).collect();
        // A slow read waits before the bytes are read, or between reading and delivering them.
        let slow = if spans.is_empty() { None } else { self.schedule.slow(&self.name) };
        let late =
            slow.and_then(|hit| (hit.random & 1 == 1).then_some((hit.random >> 1) as usize % spans.len()));
        if slow.is_some() && late.is_none() {
            self.schedule.pass_time("read", &self.name);
        }
        self.inner.read(spans, &mut |position, result| {
            let span = spans[position];
            if late == Some(position) {
                self.schedule.pass_time("read", &self.name);
            }
            match (hits[position], result) {
                (Some(hit), Ok(_)) if hit.fault == Fault::ReadError => {
                    deliver(
                        position,
                        Err(DeviceError::from_io(
                            "read",
                            self.name.as_str(),
                            span.offset,
                            span.bytes,
                            io_error(),
                        )),
                    );
                }
                (Some(hit), Ok(blocks)) => deliver(position, Ok(&self.spoil(span, hit, blocks))),
                (_, result) => deliver(position, result),
            }
        });
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError> {
        if blocks.is_empty() {
            return Ok(());
        }
        if self.schedule.remembers(&self.name) {
            self.remember(offset, blocks);
        }
        if self.schedule.slow(&self.name).is_some() {
            self.schedule.pass_time("write", &self.name);
        }
        let Some(hit) = self.schedule.hit(&self.name, |_, fault| is_write_fault(fault)) else {
            return change(&self.schedule, "write", &self.name, || self.inner.write(offset, blocks));
        };
        let block_count = blocks.len() / BLOCK_BYTES;
        if hit.fault != Fault::TornWrite {
            let written = (hit.random % block_count as u64) as usize * BLOCK_BYTES;
            self.inner.write(offset, &blocks[..written])?;
            let error = write_error(hit.fault);
            return Err(DeviceError::from_io("write", self.name.as_str(), offset, blocks.len(), error));
        }
        // Sectors that are not written keep their old bytes; beyond the end, these are zeros.
        let mut torn = blocks.to_vec();
        let mut before = vec![0; blocks.len()];
        for (position, into) in before.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            let block = offset / BLOCK_BYTES as u64 + position as u64;
            self.read_block(block, &mut |found| into.copy_from_slice(found));
        }
        for sector in torn_sectors(blocks.len(), hit.random) {
            torn[sector.clone()].copy_from_slice(&before[sector]);
        }
        self.inner.write(offset, &torn)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        sync(&self.schedule, &self.name, || self.inner.sync())
    }

    fn discard(&self, span: Span) -> Result<(), DeviceError> {
        change(&self.schedule, "discard", &self.name, || self.inner.discard(span))
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}
