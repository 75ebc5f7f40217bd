//! A volume that calls a hook before every read and write. The hook may fail, wait or panic.

use std::fmt::{self, Debug, Formatter};
use std::io::{self, Read, Write};
use std::sync::Arc;

use rowmill_io::{Device, DeviceError, FileWriter, ReadResult, Span, VolumeLock};
use rowmill_store::Volume;

/// The operation about to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    DeviceRead,
    DeviceWrite,
    FileRead,
    FileWrite,
}

type Hook = dyn Fn(Call, &str) -> io::Result<()> + Send + Sync;

#[derive(Clone)]
pub(crate) struct Hooked {
    inner: Arc<dyn Volume>,
    hook: Arc<Hook>,
}

impl Hooked {
    /// `hook` receives the call and the name of the file or device.
    pub(crate) fn new(
        inner: impl Volume + 'static,
        hook: impl Fn(Call, &str) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { inner: Arc::new(inner), hook: Arc::new(hook) }
    }

    fn file<T>(&self, name: &str, inner: T) -> HookedFile<T> {
        HookedFile { inner, name: name.to_owned(), hook: Arc::clone(&self.hook) }
    }
}

impl Debug for Hooked {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Hooked({:?})", self.inner)
    }
}

impl Volume for Hooked {
    fn device(&self, name: &str, writable: bool) -> Result<Arc<dyn Device>, DeviceError> {
        Ok(Arc::new(self.file(name, self.inner.device(name, writable)?)))
    }

    fn create(&self, name: &str) -> Result<Box<dyn FileWriter>, DeviceError> {
        Ok(Box::new(self.file(name, self.inner.create(name)?)))
    }

    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>, DeviceError> {
        Ok(Box::new(self.file(name, self.inner.open(name)?)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DeviceError> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DeviceError> {
        self.inner.remove(name)
    }

    fn list(&self) -> Result<Vec<String>, DeviceError> {
        self.inner.list()
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.inner.sync()
    }

    fn lock(&self) -> Result<Box<dyn VolumeLock>, DeviceError> {
        self.inner.lock()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

struct HookedFile<T> {
    inner: T,
    name: String,
    hook: Arc<Hook>,
}

impl<T> Debug for HookedFile<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "HookedFile({})", self.name)
    }
}

impl Device for HookedFile<Arc<dyn Device>> {
    fn read(&self, spans: &[Span], deliver: &mut dyn FnMut(usize, ReadResult<'_>)) {
        match (self.hook)(Call::DeviceRead, &self.name) {
            Ok(()) => self.inner.read(spans, deliver),
            Err(error) => {
                for (position, span) in spans.iter().enumerate() {
                    let error = io::Error::new(error.kind(), error.to_string());
                    let name = self.name.as_str();
                    let error = DeviceError::from_io("read", name, span.offset, span.bytes, error);
                    deliver(position, Err(error));
                }
            }
        }
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> Result<(), DeviceError> {
        (self.hook)(Call::DeviceWrite, &self.name).map_err(|error| {
            DeviceError::from_io("write", self.name.as_str(), offset, blocks.len(), error)
        })?;
        self.inner.write(offset, blocks)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.inner.sync()
    }

    fn discard(&self, span: Span) -> Result<(), DeviceError> {
        self.inner.discard(span)
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}

impl Read for HookedFile<Box<dyn Read + Send>> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (self.hook)(Call::FileRead, &self.name)?;
        self.inner.read(bytes)
    }
}

impl Write for HookedFile<Box<dyn FileWriter>> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.hook)(Call::FileWrite, &self.name)?;
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl FileWriter for HookedFile<Box<dyn FileWriter>> {
    fn sync(&mut self) -> Result<(), DeviceError> {
        self.inner.sync()
    }
}
