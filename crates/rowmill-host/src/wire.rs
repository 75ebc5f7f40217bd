//! One connection on its socket.

use std::io::{self, IoSlice};
use std::time::Instant;

use rowmill_nvme::{Command, Completion, Exchange, HostConnection, HostEvent, HostLimits};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::ConnectError;

/// Bytes read from the socket at a time.
const READ_BYTES: usize = 128 << 10;
/// Most parts of one vectored write.
const PARTS_MAX: usize = 64;

pub(crate) struct Wire {
    stream: TcpStream,
    pub(crate) connection: HostConnection,
    buffer: Vec<u8>,
}

impl Wire {
    /// Connect, and initialize the connection.
    pub(crate) async fn open(host: &str, port: u16, limits: HostLimits) -> Result<Wire, ConnectError> {
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let connection = HostConnection::new(Instant::now(), limits);
        let mut wire = Wire { stream, connection, buffer: vec![0; READ_BYTES] };
        loop {
            match wire.connection.poll() {
                Some(HostEvent::Initialized) => return Ok(wire),
                Some(HostEvent::Closed(closed)) => return Err(ConnectError::Protocol(closed)),
                Some(HostEvent::Completed { .. }) | None => wire.step().await?,
            }
        }
    }

    /// Send a command and wait for its answer. There must be no other.
    pub(crate) async fn call(
        &mut self,
        command: Command,
        exchange: Exchange,
    ) -> Result<(Completion, Vec<u8>, bool), ConnectError> {
        self.connection.submit(command, exchange).ok_or(ConnectError::Ended)?;
        loop {
            match self.connection.poll() {
                Some(HostEvent::Completed { completion, data, is_intact }) => {
                    return Ok((completion, data, is_intact));
                }
                Some(HostEvent::Closed(closed)) => return Err(ConnectError::Protocol(closed)),
                Some(HostEvent::Initialized) | None => self.step().await?,
            }
        }
    }

    /// Send what waits, then wait for bytes or for room to send more. Can be cancelled at any await.
    pub(crate) async fn step(&mut self) -> Result<(), ConnectError> {
        self.send()?;
        let has_unsent = self.connection.unsent_bytes() > 0;
        let interest = if has_unsent { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        if self.stream.ready(interest).await?.is_readable() {
            match self.stream.try_read(&mut self.buffer) {
                Ok(0) => return Err(ConnectError::Ended),
                Ok(bytes) => self.connection.receive(&self.buffer[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Send as much as the socket takes.
    pub(crate) fn send(&mut self) -> Result<(), ConnectError> {
        while self.connection.unsent_bytes() > 0 {
            let parts: Vec<IoSlice<'_>> =
                self.connection.unsent().take(PARTS_MAX).map(IoSlice::new).collect();
            match self.stream.try_write_vectored(&parts) {
                Ok(bytes) => self.connection.sent(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
