//! One life of a controller: from its connections to the end of the first of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom, SystemRandom};
use rowmill_nvme::{CAPSULE_DATA_BYTES, HostEvent, HostLimits, Ready, Setup, SetupError, SetupStep, Status};

use crate::lane::Lane;
use crate::wire::Wire;
use crate::{ConnectError, HostSettings, NvmeUrl};

/// Commands of an admin queue, one less than the entries that its Connect asks for.
const ADMIN_COMMANDS_MAX: usize = 31;

/// A controller whose queues are connected.
pub(crate) struct Session {
    admin: Wire,
    io: Vec<Wire>,
    /// Commands at a time of one I/O queue.
    io_commands: usize,
    pub(crate) ready: Ready,
}

impl Session {
    /// Connect, authenticate, and make the controller ready.
    pub(crate) async fn open(url: &NvmeUrl, settings: &HostSettings) -> Result<Session, ConnectError> {
        let opening = Session::open_queues(url, settings);
        let opened = tokio::time::timeout(settings.connect_time, opening).await;
        opened.unwrap_or(Err(ConnectError::Silent(settings.connect_time)))
    }

    async fn open_queues(url: &NvmeUrl, settings: &HostSettings) -> Result<Session, ConnectError> {
        let limits = HostLimits {
            digests: settings.digests,
            commands_max: ADMIN_COMMANDS_MAX,
            capsule_data_bytes: CAPSULE_DATA_BYTES,
            setup_time: settings.connect_time,
        };
        let mut admin = Wire::open(&url.host, url.port, limits).await?;
        let identity = settings.identity.clone();
        let keep_alive_ms = settings.keep_alive.as_millis() as u32;
        let mut setup =
            Setup::new(identity, url.subsystem.clone(), keep_alive_ms, settings.io_queues, seed()?);
        let mut step = setup.start();
        let ready = loop {
            match step {
                SetupStep::Send { command, exchange, not_before } => {
                    if let Some(instant) = not_before {
                        tokio::time::sleep_until(instant.into()).await;
                    }
                    let (completion, data, is_intact) = admin.call(command, exchange).await?;
                    step = setup
                        .next(Instant::now(), &completion, &data, is_intact)
                        .map_err(|error| explain(error, settings))?;
                }
                SetupStep::Ready(ready) => break *ready,
            }
        };
        if ready.io_queues == 0 {
            return Err(ConnectError::NoQueues);
        }
        let entries = ready.io_queue_entries_max.min(settings.commands_max as u16 + 1).max(2);
        let io_commands = usize::from(entries - 1);
        let limits =
            HostLimits { commands_max: io_commands, capsule_data_bytes: ready.capsule_data_bytes, ..limits };
        let mut io = Vec::new();
        for queue in 1..=ready.io_queues {
            let mut wire = Wire::open(&url.host, url.port, limits).await?;
            let SetupStep::Send { command, exchange, .. } = setup.connect_io(&ready, queue, entries) else {
                unreachable!("a queue is connected by a command");
            };
            let (completion, _, _) = wire.call(command, exchange).await?;
            let status = completion.status();
            if status != Status::SUCCESS {
                return Err(SetupError::Failed { command: "Connect of an I/O queue", status }.into());
            }
            if let Some(mut auth) = setup.authenticate(&completion, seed()?)? {
                let mut next = Some(auth.start());
                while let Some((command, exchange)) = next {
                    let (completion, data, is_intact) = wire.call(command, exchange).await?;
                    let (command, status) = ("authentication", completion.status());
                    if status != Status::SUCCESS {
                        return Err(SetupError::Failed { command, status }.into());
                    }
                    if !is_intact {
                        return Err(SetupError::Damaged { command }.into());
                    }
                    next = auth.next(&data).map_err(SetupError::Auth)?;
                }
            }
            io.push(wire);
        }
        Ok(Session { admin, io, io_commands, ready })
    }

    /// Pass commands of the lanes until the first connection ends. Lanes beyond the queues that the node granted share
    /// the last one.
    pub(crate) async fn run(
        self,
        admin: &Arc<Lane>,
        lanes: &[Arc<Lane>],
        settings: &HostSettings,
    ) -> ConnectError {
        let patience = settings.command_time;
        admin.watch();
        let mut queues = tokio::task::JoinSet::new();
        for (wire, lane) in self.io.into_iter().zip(lanes) {
            queues.spawn(serve(wire, Arc::clone(lane), self.io_commands, patience, None));
        }
        let patience = patience.min(settings.keep_alive);
        let alive = Some(settings.keep_alive / 2);
        queues.spawn(serve(self.admin, Arc::clone(admin), ADMIN_COMMANDS_MAX, patience, alive));
        match queues.join_next().await {
            Some(Ok(reason)) => reason,
            Some(Err(_)) | None => ConnectError::Ended,
        }
    }
}

/// Serve a lane on its connection until that ends.
async fn serve(
    mut wire: Wire,
    lane: Arc<Lane>,
    room: usize,
    patience: Duration,
    keep_alive: Option<Duration>,
) -> ConnectError {
    let mut next_alive = keep_alive.map(|period| Instant::now() + period);
    loop {
        lane.send(|command, exchange| wire.connection.submit(command, exchange), room);
        let silent_at = lane.silent_at(patience);
        let wake = silent_at.into_iter().chain(next_alive).min();
        tokio::select! {
            stepped = wire.step() => if let Err(error) = stepped {
                return error;
            },
            () = lane.work.notified() => (),
            () = sleep_until(wake) => {
                let now = Instant::now();
                if silent_at.is_some_and(|instant| now >= instant) {
                    return ConnectError::Silent(patience);
                }
                if let Some(period) = keep_alive.filter(|_| next_alive.is_some_and(|instant| now >= instant)) {
                    lane.keep_alive();
                    next_alive = Some(now + period);
                }
            }
        }
        while let Some(event) = wire.connection.poll() {
            match event {
                HostEvent::Completed { completion, data, is_intact } => {
                    lane.complete(&completion, data, is_intact);
                }
                HostEvent::Closed(closed) => {
                    // The reason that this side sends may help on the other side; if it cannot be sent, it is lost.
                    let _ = wire.send();
                    return ConnectError::Protocol(closed);
                }
                HostEvent::Initialized => (),
            }
        }
    }
}

fn explain(error: SetupError, settings: &HostSettings) -> ConnectError {
    match error {
        SetupError::Failed { status: Status::CONNECT_INVALID_PARAMETERS, .. } => {
            ConnectError::UnknownSubsystem
        }
        SetupError::Failed { status: Status::CONNECT_INVALID_HOST, .. } => {
            ConnectError::HostRefused(settings.identity.name.to_string())
        }
        error => error.into(),
    }
}

fn seed() -> Result<[u8; 32], ConnectError> {
    let mut seed = [0; 32];
    let filled = SystemRandom::new().fill(&mut seed);
    filled.map_err(|_| std::io::Error::other("the system gives no random numbers"))?;
    Ok(seed)
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
