//! A process that listens: its runtime, its HTTP port, and its end.

use std::io;
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{Drain, StillOpen};

/// How long threads of the runtime get to notice its end.
const RUNTIME_END: Duration = Duration::from_secs(1);

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
        Ok(Self { runtime: Some(runtime), drain: Drain::new(), terminate, interrupt })
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
    /// `/healthz` tells load balancers about it.
    pub fn serve_http(&self, listener: TcpListener, routes: Router) {
        // A response of several writes must not wait for acknowledgements in between.
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::warn!(%error, "cannot set TCP_NODELAY");
            }
        });
        self.handle().spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::error!(%error, "the HTTP port closed");
            }
        });
    }

    /// Wait for SIGTERM or SIGINT or a drain that the program starts, then for open work. A second signal ends the
    /// wait. Every task has ended when this returns.
    ///
    /// # Errors
    /// When work is left after `deadline`.
    pub fn run(mut self, deadline: Duration) -> Result<(), ServerError> {
        let Some(runtime) = self.runtime.take() else { return Ok(()) };
        let Self { drain, terminate, interrupt, .. } = &mut self;
        let result = runtime.block_on(async {
            let mut started = drain.hold();
            tokio::select! {
                _ = terminate.recv() => tracing::info!("received SIGTERM, draining"),
                _ = interrupt.recv() => tracing::info!("received SIGINT, draining"),
                () = started.draining() => tracing::info!("draining"),
            }
            drop(started);
            tokio::select! {
                result = drain.finish(deadline) => return result,
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
