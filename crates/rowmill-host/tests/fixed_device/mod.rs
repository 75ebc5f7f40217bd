use std::sync::Arc;

use rowmill_io::{BLOCK_BYTES, Device, DeviceError, MemoryVolume, Span, Volume};

/// A device in memory, of fixed length.
#[derive(Debug)]
pub(crate) struct FixedDevice {
    inner: Arc<dyn Device>,
    bytes: u64,
}

impl FixedDevice {
    pub(crate) fn shared(volume: &MemoryVolume, mib: u64) -> Arc<dyn Device> {
        let inner = volume.device("disk", true).unwrap();
        let bytes = mib << 20;
        if inner.bytes() < bytes {
            inner.write(bytes - BLOCK_BYTES as u64, &[0; BLOCK_BYTES]).unwrap();
            inner.sync().unwrap();
            volume.sync().unwrap();
        }
        Arc::new(FixedDevice { inner, bytes })
    }
}

impl Device for FixedDevice {
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, Result<&[u8], DeviceError>)) {
        self.inner.read(spans, deliver);
    }
    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError> {
        assert!(offset + blocks.len() as u64 <= self.bytes, "beyond the end");
        self.inner.write(offset, blocks)
    }
    fn sync(&self) -> Result<(), DeviceError> {
        self.inner.sync()
    }
    fn discard(&self, span: Span) -> Result<(), DeviceError> {
        self.inner.discard(span)
    }
    fn bytes(&self) -> u64 {
        self.bytes
    }
}
