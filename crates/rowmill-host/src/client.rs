//! A client of a storage node: one controller, with a thread that waits for all its sockets and reconnects.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rowmill_io::ProcessLocal;
use rowmill_nvme::{Exchange, IDENTIFY_BYTES, IdentifyNamespace, Ready, cns, commands};
use rowmill_sync::unranked::Mutex;
use tokio::sync::Notify;
use zerocopy::FromBytes;

use crate::lane::{Lane, Link};
use crate::session::Session;
use crate::{ConnectError, HostError, HostSettings, NvmeUrl, Pending, Request};

/// The first wait before a reconnect.
const RECONNECT_WAIT: Duration = Duration::from_millis(50);
/// Most commands of callers at a time on the admin queue.
const ADMIN_COMMANDS_MAX: usize = 16;
/// The time that admin commands have.
const ADMIN_TIME: Duration = Duration::from_secs(10);

/// A connected controller of a subsystem, for any number of threads.
///
/// One thread waits for all sockets. It reconnects, with growing waits, for as long as the client lives. Meanwhile
/// commands wait, at most until their deadlines.
pub struct Client {
    link: Arc<Link>,
    admin: Arc<Lane>,
    lanes: Vec<Arc<Lane>>,
    ready: Arc<Mutex<Arc<Ready>>>,
    next_lane: AtomicUsize,
    driver: ProcessLocal<Driver>,
}

struct Driver {
    closing: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Connect to the subsystem of a URL. The first attempt is the only one, so that a wrong URL is an error at once.
    ///
    /// # Errors
    ///
    /// [`HostError::Connect`] if the node cannot be reached, [`HostError::Start`] if a thread cannot be started.
    pub fn connect(url: &NvmeUrl, settings: &HostSettings) -> Result<Client, HostError> {
        let start = |source| HostError::Start { url: url.to_string(), source };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(start)?;
        let link = Arc::new(Link { url: url.to_string(), ..Link::default() });
        let lane = |depth| Arc::new(Lane::new(Arc::clone(&link), depth));
        let admin = lane(ADMIN_COMMANDS_MAX);
        let mut lanes: Vec<_> =
            (0..settings.io_queues.max(1)).map(|_| lane(settings.commands_max.max(2))).collect();
        let closing = Arc::new(Notify::new());
        let (connected, first) = mpsc::sync_channel(1);
        let keeper = Keeper {
            url: url.clone(),
            settings: settings.clone(),
            link: Arc::clone(&link),
            admin: Arc::clone(&admin),
            lanes: lanes.clone(),
            closing: Arc::clone(&closing),
        };
        let thread = std::thread::Builder::new()
            .name("rowmill-host".into())
            .spawn(move || runtime.block_on(keeper.run(connected)))
            .map_err(start)?;
        let driver = ProcessLocal::new(Driver { closing, thread: Some(thread) });
        let first = first.recv().unwrap_or(Err(ConnectError::Ended));
        let ready = first.map_err(|source| HostError::Connect { url: url.to_string(), source })?;
        lanes.truncate(usize::from(ready.lock().io_queues));
        Ok(Client { link, admin, lanes, ready, next_lane: AtomicUsize::new(0), driver })
    }

    /// The URL, as text.
    pub fn url(&self) -> &str {
        &self.link.url
    }

    /// Limits and namespaces of the controller, from the last connect.
    pub fn ready(&self) -> Arc<Ready> {
        Arc::clone(&self.ready.lock())
    }

    /// A number that grows whenever namespaces or their tables may have changed: when the node tells so, and with each
    /// connection.
    pub fn changes(&self) -> u64 {
        self.link.changes.load(Ordering::Acquire)
    }

    /// The number of the connection, from 1 on. It grows with each one.
    pub fn connection(&self) -> u64 {
        self.link.connection.load(Ordering::Acquire)
    }

    /// Send a command on an I/O queue. Waits for room in the queue until the deadline.
    ///
    /// # Errors
    ///
    /// [`HostError::TimedOut`] without room, [`HostError::Forked`].
    pub fn submit(&self, request: Request, deadline: Instant) -> Result<Pending, HostError> {
        Ok(self.submit_in_order(vec![request], deadline)?.swap_remove(0))
    }

    /// Send commands on one I/O queue, one after the other and without others between them.
    ///
    /// # Errors
    ///
    /// Those of [`Client::submit`].
    ///
    /// # Panics
    ///
    /// If there are more commands than a queue may have at a time.
    pub fn submit_in_order(
        &self,
        requests: Vec<Request>,
        deadline: Instant,
    ) -> Result<Vec<Pending>, HostError> {
        self.check_process()?;
        // The least used lane, from another one each time.
        let first = self.next_lane.fetch_add(1, Ordering::Relaxed);
        let lanes = (0..self.lanes.len()).map(|at| &self.lanes[(first + at) % self.lanes.len()]);
        let lane = lanes.min_by_key(|lane| lane.used()).expect("a client has a lane");
        lane.submit(requests, deadline)
    }

    /// Send an admin command and wait for its answer.
    ///
    /// # Errors
    ///
    /// Those of [`Client::submit`] and [`Pending::wait`].
    pub fn admin(&self, request: Request) -> Result<Vec<u8>, HostError> {
        self.check_process()?;
        let pending = self.admin.submit(vec![request], Instant::now() + ADMIN_TIME)?.swap_remove(0);
        pending.wait().map(|completed| completed.data)
    }

    /// `bytes` bytes of a log page from `offset` on; both are multiples of 4.
    ///
    /// # Errors
    ///
    /// Those of [`Client::admin`].
    pub fn log_page(&self, page: u8, namespace: u32, offset: u64, bytes: u32) -> Result<Vec<u8>, HostError> {
        self.admin(Request {
            name: "Get Log Page",
            command: commands::log_page(page, namespace, offset, bytes, true),
            exchange: Exchange::Receive(bytes as usize),
            is_repeatable: true,
        })
    }

    /// Size and block size of a namespace.
    ///
    /// # Errors
    ///
    /// Those of [`Client::admin`].
    pub fn identify_namespace(&self, namespace: u32) -> Result<Box<IdentifyNamespace>, HostError> {
        let name = "Identify Namespace";
        let data = self.admin(Request {
            name,
            command: commands::identify(cns::NAMESPACE, namespace),
            exchange: Exchange::Receive(IDENTIFY_BYTES),
            is_repeatable: true,
        })?;
        let identified = IdentifyNamespace::read_from_bytes(&data);
        identified.map(Box::new).map_err(|_| HostError::Damaged { url: self.link.url.clone(), command: name })
    }

    fn check_process(&self) -> Result<(), HostError> {
        if self.driver.is_here() { Ok(()) } else { Err(HostError::Forked { url: self.link.url.clone() }) }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.link.url)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.closing.notify_one();
        if let Some(thread) = self.thread.take() {
            // Its panic was already printed.
            let _ = thread.join();
        }
    }
}

/// The work of the thread of a client.
struct Keeper {
    url: NvmeUrl,
    settings: HostSettings,
    link: Arc<Link>,
    admin: Arc<Lane>,
    lanes: Vec<Arc<Lane>>,
    closing: Arc<Notify>,
}

type First = Result<Arc<Mutex<Arc<Ready>>>, ConnectError>;

impl Keeper {
    async fn run(self, connected: mpsc::SyncSender<First>) {
        let closing = Arc::clone(&self.closing);
        tokio::select! {
            () = closing.notified() => (),
            () = self.keep_connected(connected) => (),
        }
        for lane in self.lanes.iter().chain([&self.admin]) {
            lane.close("the client was closed");
        }
    }

    async fn keep_connected(&self, connected: mpsc::SyncSender<First>) {
        let mut session = match Session::open(&self.url, &self.settings).await {
            Ok(session) => session,
            Err(error) => {
                // The caller waits for it.
                let _ = connected.send(Err(error));
                return;
            }
        };
        let ready = Arc::new(Mutex::new(Arc::new(std::mem::take(&mut session.ready))));
        // Of what a reconnect grants, lanes beyond the first connect's would have no callers.
        let lanes = &self.lanes[..self.lanes.len().min(usize::from(ready.lock().io_queues))];
        self.begin();
        let _ = connected.send(Ok(Arc::clone(&ready)));
        loop {
            let reason = session.run(&self.admin, lanes, &self.settings).await;
            tracing::warn!(url = self.link.url, %reason, "a connection ended");
            *self.link.trouble.lock() = reason.to_string();
            self.lose(&reason.to_string());
            session = self.reconnect(lanes.len()).await;
            *ready.lock() = Arc::new(std::mem::take(&mut session.ready));
            self.begin();
            tracing::info!(url = self.link.url, "connected again");
        }
    }

    async fn reconnect(&self, queues: usize) -> Session {
        let mut wait = RECONNECT_WAIT;
        loop {
            tokio::time::sleep(wait).await;
            match Session::open(&self.url, &self.settings).await {
                Ok(session) if usize::from(session.ready.io_queues) >= queues => return session,
                Ok(_) => {
                    *self.link.trouble.lock() =
                        format!("the controller grants fewer than {queues} I/O queues");
                }
                Err(error) => *self.link.trouble.lock() = error.to_string(),
            }
            wait = (wait * 2).min(self.settings.reconnect_wait_max);
        }
    }

    /// A connection begins.
    fn begin(&self) {
        self.link.connection.fetch_add(1, Ordering::Release);
        self.link.changes.fetch_add(1, Ordering::Release);
        self.link.trouble.lock().clear();
    }

    fn lose(&self, reason: &str) {
        for lane in self.lanes.iter().chain([&self.admin]) {
            lane.lose(reason);
        }
    }
}
