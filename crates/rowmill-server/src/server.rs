//! A process that listens: its runtime, its HTTP port, and its end.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::{Drain, StillOpen};

/// How long threads of the runtime get to notice its end.
const RUNTIME_END: Duration = Duration::from_secs(1);
/// How long clients get to receive the last responses, once no work is open.
const LAST_RESPONSES: Duration = Duration::from_secs(5);

/// Why a server could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The system gave no threads, event queue or signal handler.
    #[error("cannot start the network runtime: {0}")]
    Runtime(io::Error),
    /// Work was left at the deadline of the drain.
    #[error(transparent)]
    StillOpen(#[from] StillOpen),
}

/// The runtime of a process that listens. Dropping it ends every task.
#[derive(Debug)]
pub struct Server {
    // An option, because a runtime is consumed where its end has a deadline.
    runtime: Option<Runtime>,
    drain: Drain,
    /// HTTP ports, and what closes them.
    ports: Mutex<JoinSet<()>>,
    closing: watch::Sender<bool>,
    terminate: Signal,
    interrupt: Signal,
}

impl Server {
    /// Start `threads` threads that wait for sockets and timers. From here on the process must not fork, and
    /// SIGTERM and SIGINT no longer end it: they start the drain once [`Self::run`] is called.
    ///
    /// # Errors
    /// When the system gives no threads, event queue or signal handler.
    ///
    /// # Panics
    /// When `threads` is 0.
    pub fn start(threads: usize) -> Result<Self, ServerError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("rowmill-server")
            .enable_all()
            .build()
            .map_err(ServerError::Runtime)?;
        let (terminate, interrupt) = {
            let _inside = runtime.enter();
            let on = |kind| signal(kind).map_err(ServerError::Runtime);
            (on(SignalKind::terminate())?, on(SignalKind::interrupt())?)
        };
        let (ports, closing) = (Mutex::default(), watch::Sender::new(false));
        Ok(Self { runtime: Some(runtime), drain: Drain::new(), ports, closing, terminate, interrupt })
    }

    /// Where tasks are spawned.
    ///
    /// # Panics
    /// Never: the runtime lives as long as the server.
    pub fn handle(&self) -> &Handle {
        self.runtime.as_ref().expect("the runtime ends with the server").handle()
    }

    /// What says that the process ends.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Answer HTTP/1 and HTTP/2 requests at `listener` until the server is dropped. The port stays open during a drain, so that
    /// `/healthz` tells load balancers about it. It closes when the last responses have been sent.
    pub fn serve_http(&self, listener: TcpListener, routes: Router) {
        // A response of several writes must not wait for acknowledgements in between.
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::warn!(%error, "cannot set TCP_NODELAY");
            }
        });
        let mut closing = self.closing.subscribe();
        let close = async move {
            // An error says that the server is gone, which closes the port as well.
            let _ = closing.wait_for(|&closing| closing).await;
        };
        let port = async move {
            if let Err(error) = axum::serve(listener, routes).with_graceful_shutdown(close).await {
                tracing::error!(%error, "the HTTP port closed");
            }
        };
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).spawn_on(port, self.handle());
    }

    /// Wait for SIGTERM or SIGINT or a drain that the program starts, then for open work. A second signal ends the
    /// wait. Every task has ended when this returns.
    ///
    /// # Errors
    /// When work is left after `deadline`.
    pub fn run(mut self, deadline: Duration) -> Result<(), ServerError> {
        let Some(runtime) = self.runtime.take() else { return Ok(()) };
        let Self { drain, ports, closing, terminate, interrupt, .. } = &mut self;
        let ports = std::mem::take(ports.get_mut().unwrap_or_else(PoisonError::into_inner));
        let result = runtime.block_on(async {
            let mut started = drain.hold();
            tokio::select! {
                _ = terminate.recv() => tracing::info!("received SIGTERM, draining"),
                _ = interrupt.recv() => tracing::info!("received SIGINT, draining"),
                () = started.draining() => tracing::info!("draining"),
            }
            drop(started);
            let finish = async {
                drain.finish(deadline).await?;
                // Work ends when its response is made, which may not have been sent yet.
                closing.send_replace(true);
                if tokio::time::timeout(LAST_RESPONSES, ports.join_all()).await.is_err() {
                    tracing::warn!("some clients did not receive their response within {LAST_RESPONSES:?}");
                }
                Ok::<(), StillOpen>(())
            };
            tokio::select! {
                result = finish => return result,
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::warn!("received a second signal, ending at once");
            Ok(())
        });
        runtime.shutdown_timeout(RUNTIME_END);
        Ok(result?)
    }
}
