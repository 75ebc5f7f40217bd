//! Messages that wait to be sent to a peer, and the memory that they lend to it.

use std::any::Any;
use std::collections::HashMap;
use std::io::{self, IoSlice};

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::socket::Writer;
use crate::arena::{Arena, Buffer, Release};
use crate::messages::{Kind, Message, Outgoing};

/// Messages prepared for one write.
const BURST: usize = 16;

/// A message to write.
pub(super) struct Item {
    pub(super) message: Message,
    /// Dropped when the message is written: what counts it as open until then.
    pub(super) hold: Option<Box<dyn Any + Send>>,
}

/// The queue of messages to send. It needs no bound: the requests in flight are bounded, and every other message
/// answers or releases a request or a reply.
#[derive(Clone)]
pub(super) struct Outbox(mpsc::UnboundedSender<Item>);

/// Messages that the writer takes.
pub(super) type Items = mpsc::UnboundedReceiver<Item>;

/// Tensors that the peer reads where they lie, by message, until it releases them or the connection ends.
#[derive(Debug, Default)]
pub(super) struct Lent(Mutex<HashMap<u64, Vec<Buffer>>>);

impl Outbox {
    pub(super) fn new() -> (Self, Items) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Write `message`, unless the connection has ended.
    pub(super) fn put(&self, message: Message, hold: Option<Box<dyn Any + Send>>) {
        // The end of a connection is reported where replies are awaited.
        let _ = self.0.send(Item { message, hold });
    }
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").finish_non_exhaustive()
    }
}

impl Release for Outbox {
    fn release(&self, message: u64) {
        self.put(Message::bare(Kind::Release, message), None);
    }
}

impl Lent {
    fn keep(&self, message: u64, tensors: Vec<Buffer>) {
        self.0.lock().insert(message, tensors);
    }

    /// The peer reads the tensors of `message` no more.
    pub(super) fn give_back(&self, message: u64) {
        let tensors = self.0.lock().remove(&message);
        drop(tensors);
    }

    /// The peer is gone.
    pub(super) fn clear(&self) {
        let tensors = std::mem::take(&mut *self.0.lock());
        drop(tensors);
    }
}

/// Write items until the outbox is dropped.
pub(super) async fn write_items(
    items: &mut Items,
    writer: &mut Writer,
    shared: Option<&Arena>,
    lent: &Lent,
) -> io::Result<()> {
    let mut burst = Vec::with_capacity(BURST);
    while items.recv_many(&mut burst, BURST).await > 0 {
        let prepare = |item: &Item| {
            let mut outgoing = Outgoing::new(&item.message, shared);
            let tensors = std::mem::take(&mut outgoing.lent);
            if !tensors.is_empty() {
                // Before the write: the peer may release them at once.
                lent.keep(item.message.id, tensors);
            }
            outgoing
        };
        let prepared: Vec<Outgoing> = burst.iter().map(prepare).collect();
        let mut slices: Vec<IoSlice<'_>> = prepared.iter().flat_map(Outgoing::slices).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let written = writer.write_vectored(rest).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut rest, written);
        }
        burst.drain(..).for_each(|item| drop(item.hold));
    }
    Ok(())
}
