use std::io;
use std::time::Duration;

use rowmill_nvme::{FatalReason, HostClosed, SetupError, Status};

/// Why a controller cannot be reached, or why its connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The socket failed.
    #[error("{0}; is the node running, and are host and port right?")]
    Socket(#[from] io::Error),
    /// The node did not answer in time.
    #[error("the node gave no answer for {0:?}")]
    Silent(Duration),
    /// The node closed the connection.
    #[error("the node closed the connection")]
    Ended,
    /// The protocol was broken, or the node ended the connection with a reason.
    #[error("{}", describe(.0))]
    Protocol(HostClosed),
    /// The node has no subsystem of this name.
    #[error("the node has no subsystem of this name; nvme discover -t tcp lists those that it has")]
    UnknownSubsystem,
    /// The subsystem does not allow this host.
    #[error("the subsystem does not allow host {0}: add that name to the node's settings")]
    HostRefused(String),
    /// The controller cannot be made ready.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The subsystem grants no I/O queue.
    #[error("the controller grants no I/O queue")]
    NoQueues,
}

/// Errors of a client. Each names the URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A text is no URL of a namespace.
    #[error("{url:?} is no URL of a namespace: {reason}; the form is nvme+tcp://HOST:PORT/NQN?namespace=1")]
    Url {
        /// The text.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// The first connection failed.
    #[error("cannot connect to {url}: {source}")]
    Connect {
        /// The node.
        url: String,
        /// Why.
        source: ConnectError,
    },
    /// The system gives no thread, event queue or random numbers.
    #[error("cannot start a client of {url}: {source}")]
    Start {
        /// The node.
        url: String,
        /// Why.
        source: io::Error,
    },
    /// The node answered with an error.
    #[error("{url}: {command} failed: {status}{}", advice(*.status))]
    Failed {
        /// The node.
        url: String,
        /// The command.
        command: &'static str,
        /// Its status.
        status: Status,
    },
    /// Data was damaged on its way, or is malformed.
    #[error("{url}: {command} gave damaged data")]
    Damaged {
        /// The node.
        url: String,
        /// The command.
        command: &'static str,
    },
    /// A command was not answered by its deadline.
    #[error("{url}: {command} was not answered within {after:?} ({state})")]
    TimedOut {
        /// The node.
        url: String,
        /// The command.
        command: &'static str,
        /// The time that it had.
        after: Duration,
        /// Whether the node is connected, and if not, why.
        state: String,
    },
    /// The connection ended while the command ran. It may have been executed.
    #[error("{url}: the connection ended during {command}: {reason}")]
    Lost {
        /// The node.
        url: String,
        /// The command.
        command: &'static str,
        /// Why it ended.
        reason: String,
    },
    /// The process forked after the client was opened.
    #[error("{url} was opened before this process was forked: open it in the child")]
    Forked {
        /// The node.
        url: String,
    },
    /// The namespace is not of the kind that is needed.
    #[error("{url} {reason}")]
    Namespace {
        /// The namespace.
        url: String,
        /// What it lacks, and what to do.
        reason: String,
    },
    /// The namespace has no table of this name.
    #[error("{url} has no table {table:?}; it has {tables}")]
    UnknownTable {
        /// The namespace.
        url: String,
        /// The name asked for.
        table: String,
        /// The names that exist.
        tables: String,
    },
    /// Rows of some vectors cannot be read on the node's disk. The other vectors were answered.
    #[error("{url}: {} vectors have rows that cannot be read, the first of table {table:?} ({}); \
             the node's error log names table and block: fill the namespace again", .vectors.len(), .vectors[0].1)]
    Unreadable {
        /// The namespace.
        url: String,
        /// The table of the first one.
        table: String,
        /// Number of the feature in the call, and of its bag or id.
        vectors: Vec<(usize, usize)>,
    },
    /// An argument of a call has a wrong value.
    #[error("{url}: {reason}")]
    Argument {
        /// The namespace.
        url: String,
        /// Which argument, its value, and what to do.
        reason: String,
    },
}

impl HostError {
    /// The caller has given a wrong value, such as an id out of range.
    pub fn is_argument(&self) -> bool {
        let of_call = matches!(self, HostError::Url { .. } | HostError::Argument { .. });
        of_call || self.status() == Some(Status::ID_OUT_OF_RANGE)
    }

    /// The status that the node answered with, if it did.
    pub fn status(&self) -> Option<Status> {
        if let HostError::Failed { status, .. } = self { Some(*status) } else { None }
    }
}

/// What a user can do about a status.
fn advice(status: Status) -> &'static str {
    match status {
        Status::ACCESS_DENIED => ": give this host the role \"write\" in the node's settings",
        Status::RATE_EXCEEDED => ": send fewer ids per second, or raise the node's limit",
        Status::FEED_GAP => ": fill the namespace again",
        Status::CAPACITY_EXCEEDED => {
            ": the node's log names the disk that is full, or the memory that its settings need"
        }
        Status::UNRECOVERED_READ_ERROR => ": the node's error log names table and block",
        _ => "",
    }
}

fn describe(closed: &HostClosed) -> String {
    match *closed {
        HostClosed::Fatal(fatal) => format!("the node broke the protocol: {fatal}"),
        HostClosed::ByPeer { reason, information } => {
            let name = FatalReason::ALL.into_iter().find(|&known| known as u16 == reason);
            match name {
                Some(name) => format!("the node ended the connection: {name:?} ({information:#x})"),
                None => format!("the node ended the connection for reason {reason} ({information:#x})"),
            }
        }
        HostClosed::TimedOut => "the node did not initialize the connection in time".into(),
    }
}
