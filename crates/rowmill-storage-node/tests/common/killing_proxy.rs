//! A proxy before the process of a node. It kills the node at a chosen command of the host, and starts it again.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::NodeProcess;

/// How long the node is gone: longer than the first waits of a host that reconnects.
const GONE: Duration = Duration::from_millis(300);
/// How long a node may execute a command whose answer is lost.
const EXECUTED: Duration = Duration::from_millis(300);

/// A command of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The log page of the tables is read.
    ReadTables,
    Stage,
    Fetch,
    BeginFill,
    /// A frame of a fill or of the feed.
    Frame,
    EndFill,
}

/// When the node is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// The command does not reach the node.
    Before(Moment),
    /// The command reaches the node, but no answer comes back.
    After(Moment),
}

struct State {
    /// None when the proxy ends.
    node: Option<NodeProcess>,
    next: Option<Kill>,
}

struct Shared {
    folder: PathBuf,
    state: Mutex<State>,
}

pub struct KillingProxy {
    pub url: String,
    shared: Arc<Shared>,
}

impl KillingProxy {
    /// Start a node with its data in `folder`.
    pub fn start(folder: &Path) -> KillingProxy {
        let node = NodeProcess::start(folder);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = node.url.rsplit_once('/').unwrap().1;
        let url = format!("nvme+tcp://{}/{name}", listener.local_addr().unwrap());
        let state = Mutex::new(State { node: Some(node), next: None });
        let shared = Arc::new(Shared { folder: folder.to_owned(), state });
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for host in listener.incoming() {
                // While the node is gone, connections of the host end.
                let _ = of_thread.accept(&host.unwrap());
            }
        });
        KillingProxy { url, shared }
    }

    /// Kill the node once.
    pub fn kill_at(&self, kill: Kill) {
        self.shared.state.lock().next = Some(kill);
    }

    /// Kill the node now.
    pub fn kill(&self) {
        self.shared.restart();
    }

    /// Whether the last kill has happened.
    pub fn has_killed(&self) -> bool {
        self.shared.state.lock().next.is_none()
    }
}

impl Drop for KillingProxy {
    fn drop(&mut self) {
        self.shared.state.lock().node = None;
    }
}

impl Shared {
    fn accept(self: &Arc<Shared>, host: &TcpStream) -> io::Result<()> {
        let address = {
            let state = self.state.lock();
            let node = state.node.as_ref().ok_or(io::ErrorKind::ConnectionRefused)?;
            node.url.split('/').nth(2).unwrap().to_owned()
        };
        let node = TcpStream::connect(address)?;
        let is_muted = Arc::new(AtomicBool::new(false));
        let (from_node, to_host, muted) = (node.try_clone()?, host.try_clone()?, Arc::clone(&is_muted));
        std::thread::spawn(move || {
            let _ = answers(&from_node, &to_host, &muted);
            let _ = to_host.shutdown(Shutdown::Both);
        });
        let (from_host, shared) = (host.try_clone()?, Arc::clone(self));
        std::thread::spawn(move || {
            let _ = shared.commands(&from_host, &node, &is_muted);
            let _ = from_host.shutdown(Shutdown::Both);
            let _ = node.shutdown(Shutdown::Both);
        });
        Ok(())
    }

    /// Pass PDUs of the host.
    fn commands(&self, mut host: &TcpStream, mut node: &TcpStream, is_muted: &AtomicBool) -> io::Result<()> {
        loop {
            let mut pdu = vec![0; 8];
            host.read_exact(&mut pdu)?;
            let bytes = u32::from_le_bytes(pdu[4..8].try_into().unwrap());
            pdu.resize(bytes as usize, 0);
            host.read_exact(&mut pdu[8..])?;
            let kill = moment(&pdu).and_then(|moment| {
                let mut state = self.state.lock();
                state.next.take_if(|kill| [Kill::Before(moment), Kill::After(moment)].contains(kill))
            });
            is_muted.fetch_or(kill.is_some(), Ordering::SeqCst);
            if !matches!(kill, Some(Kill::Before(_))) {
                node.write_all(&pdu)?;
            }
            if kill.is_some() {
                std::thread::sleep(EXECUTED);
                self.restart();
                return Ok(());
            }
        }
    }

    fn restart(&self) {
        let Some(node) = self.state.lock().node.take() else { return };
        node.kill();
        std::thread::sleep(GONE);
        self.state.lock().node = Some(NodeProcess::start(&self.folder));
    }
}

/// Pass answers of the node, unless they are to be lost.
fn answers(mut node: &TcpStream, mut host: &TcpStream, is_muted: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let bytes = node.read(&mut buffer)?;
        if bytes == 0 {
            return Ok(());
        }
        if !is_muted.load(Ordering::SeqCst) {
            host.write_all(&buffer[..bytes])?;
        }
    }
}

/// What the command of a PDU is, if it is one of those.
fn moment(pdu: &[u8]) -> Option<Moment> {
    const COMMAND: u8 = 4;
    let (kind, opcode, dword_10) = (pdu[0], *pdu.get(8)?, *pdu.get(48)?);
    match (kind, opcode, dword_10) {
        (COMMAND, 0x02, 0xc0) => Some(Moment::ReadTables),
        (COMMAND, 0x81, _) => Some(Moment::Stage),
        (COMMAND, 0x82, _) => Some(Moment::Fetch),
        (COMMAND, 0x85, 0) => Some(Moment::BeginFill),
        (COMMAND, 0x85, 1) => Some(Moment::Frame),
        (COMMAND, 0x85, 2) => Some(Moment::EndFill),
        _ => None,
    }
}
