//! The answer to a command, before it becomes PDUs.

use crate::command::Status;

/// The answer to a command: a status, two dwords of the completion, and data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// Data for the host. It is padded with zeros to the length that the command requests.
    pub data: Vec<u8>,
    /// The error log says more.
    pub has_more: bool,
}

impl Answer {
    /// Success without data.
    pub fn success() -> Answer {
        Answer::result(0)
    }

    /// Success with dwords of the completion.
    pub fn result(result: u64) -> Answer {
        Answer { status: Status::SUCCESS, result, data: Vec::new(), has_more: false }
    }

    /// Success with data.
    pub fn data(data: Vec<u8>) -> Answer {
        Answer { data, ..Answer::success() }
    }
}

impl From<Status> for Answer {
    fn from(status: Status) -> Answer {
        Answer { status, ..Answer::success() }
    }
}

/// What becomes of a command of an admin queue.
#[derive(Debug)]
pub enum Outcome {
    /// It is answered now.
    Answer(Answer),
    /// It waits for an event. [`PortEvent::Answer`](super::PortEvent::Answer) answers it.
    Held,
    /// The node must make a log page.
    Page(PageRequest),
}

/// A log page that only the node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// SMART and health.
    Health,
    /// Tables of a namespace of rows.
    Tables {
        /// The namespace.
        namespace: u32,
    },
}

/// A part of a log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The page.
    pub page: Page,
    /// Where to start, in bytes.
    pub(crate) offset: u64,
    /// Bytes wanted.
    pub(crate) bytes: usize,
}

impl PageRequest {
    /// The answer, from the whole page.
    pub fn answer(&self, page: &[u8]) -> Answer {
        match usize::try_from(self.offset).ok().and_then(|offset| page.get(offset..)) {
            Some(part) => {
                let mut data = part[..part.len().min(self.bytes)].to_vec();
                data.resize(self.bytes, 0);
                Answer::data(data)
            }
            None => Status::INVALID_FIELD.into(),
        }
    }
}
