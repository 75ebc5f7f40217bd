//! A connected socket of either transport, up to the exchange of hellos.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::{Address, descriptor};
use crate::arena::{Arena, Mapping, sealed_file_bytes};
use crate::messages::{HEADER_BYTES, Header, Kind, Limits, Message, Outgoing, StreamError};

pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(super) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Shm(UnixStream),
}

impl Socket {
    pub(super) async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => TcpStream::connect(address).await.and_then(Self::tcp),
            Address::Shm(path) => UnixStream::connect(path).await.map(Self::Shm),
        }
    }

    pub(super) fn tcp(stream: TcpStream) -> io::Result<Self> {
        // A request is written at once, so there is nothing to wait for.
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    pub(super) fn shares_memory(&self) -> bool {
        matches!(self, Self::Shm(_))
    }

    /// Send the first message: the program, and with shared memory the arena.
    pub(super) async fn send_hello(&mut self, program: u64, arena: &Arena) -> io::Result<()> {
        let hello = Outgoing::new(&Message { program, ..Message::bare(Kind::Hello, 0) }, None);
        let bytes = hello.slices().next().expect("a message begins with its header");
        match self {
            Self::Tcp(stream) => stream.write_all(&bytes).await,
            Self::Shm(stream) => descriptor::send(stream, &bytes, arena.file()).await,
        }
    }

    /// Receive the header of the peer's first message, and its arena if it shares one.
    pub(super) async fn receive_first(&mut self) -> Result<(Header, Option<Arc<Mapping>>), StreamError> {
        let mut bytes = [0; HEADER_BYTES];
        let file: Option<OwnedFd> = match self {
            Self::Tcp(stream) => stream.read_exact(&mut bytes).await.map(|_| None)?,
            Self::Shm(stream) => descriptor::receive(stream, &mut bytes).await?,
        };
        let header = Header::decode(&bytes, &Limits::default())?;
        let map = |file: OwnedFd| {
            let mapping = Mapping::readable(file.as_fd(), sealed_file_bytes(file.as_fd())?)?;
            io::Result::Ok(Arc::new(mapping))
        };
        Ok((header, file.map(map).transpose()?))
    }

    pub(super) fn split(self) -> (Reader, Writer) {
        match self {
            Self::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                (Box::new(reader), Box::new(writer))
            }
            Self::Shm(stream) => {
                let (reader, writer) = stream.into_split();
                (Box::new(reader), Box::new(writer))
            }
        }
    }
}
