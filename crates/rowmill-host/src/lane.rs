//! The commands of one queue: those that wait to be sent, and those in flight. A lane outlives the connections of its queue.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rowmill_nvme::{Command, Completion, Exchange, Status};
use rowmill_sync::unranked::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::HostError;
use crate::ticket::{Completed, Failure, Pending, Request, Slot, round};

/// A command whose data was damaged is sent this often.
const DAMAGED_MAX: u32 = 3;

/// What happens to an answer.
#[derive(Debug)]
enum Reply {
    /// A caller waits for it.
    Caller(Arc<Slot>),
    /// Nothing.
    None,
    /// The node tells that namespaces changed.
    Event,
}

/// A command.
#[derive(Debug)]
struct Job {
    command: Command,
    exchange: Exchange,
    reply: Reply,
    is_repeatable: bool,
    /// How often it was sent and gave damaged data.
    damaged: u32,
    sent: Instant,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Job>,
    in_flight: HashMap<u16, Job>,
    /// Commands of callers that wait or are in flight.
    used: usize,
}

/// What all lanes of a client share.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) url: String,
    /// The number of the connection; it grows with each one.
    pub(crate) connection: AtomicU64,
    /// Why there is no connection; empty if there is one.
    pub(crate) trouble: Mutex<String>,
    /// Grows whenever namespaces may have changed: when the node tells so, and with each connection.
    pub(crate) changes: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Lane {
    link: Arc<Link>,
    depth: usize,
    state: Mutex<State>,
    /// A command of a caller has ended.
    room: Condvar,
    /// A command waits to be sent.
    pub(crate) work: Notify,
}

impl Lane {
    pub(crate) fn new(link: Arc<Link>, depth: usize) -> Lane {
        Lane { link, depth, state: Mutex::default(), room: Condvar::new(), work: Notify::new() }
    }

    pub(crate) fn url(&self) -> String {
        self.link.url.clone()
    }

    /// Whether there is a connection, for messages.
    pub(crate) fn state(&self) -> String {
        let trouble = self.link.trouble.lock();
        if !trouble.is_empty() {
            return format!("not connected: {trouble}");
        }
        let state = self.state.lock();
        format!("connected, {} commands in flight, {} waiting", state.in_flight.len(), state.waiting.len())
    }

    /// Commands of callers that wait or are in flight.
    pub(crate) fn used(&self) -> usize {
        self.state.lock().used
    }

    /// Queue commands of a caller, in order and without others between them. Waits for room until the deadline.
    pub(crate) fn submit(
        self: &Arc<Lane>,
        requests: Vec<Request>,
        deadline: Instant,
    ) -> Result<Vec<Pending>, HostError> {
        let started = Instant::now();
        assert!(requests.len() <= self.depth, "at most {} commands at a time", self.depth);
        let mut state = self.state.lock();
        while state.used + requests.len() > self.depth {
            let in_time;
            (state, in_time) = self.room.wait_until(state, deadline);
            if !in_time {
                drop(state);
                let state =
                    format!("{}, {} commands before it, the most at a time", self.state(), self.depth);
                let after = round(deadline.saturating_duration_since(started));
                let command = requests.first().map_or("a command", |request| request.name);
                return Err(HostError::TimedOut { url: self.url(), command, after, state });
            }
        }
        state.used += requests.len();
        let pending = requests.into_iter().map(|request| {
            let slot = Arc::new(Slot::default());
            state.waiting.push_back(Job {
                command: request.command,
                exchange: request.exchange,
                reply: Reply::Caller(Arc::clone(&slot)),
                is_repeatable: request.is_repeatable,
                damaged: 0,
                sent: started,
            });
            Pending { name: request.name, slot, lane: Arc::clone(self), started, deadline }
        });
        let pending = pending.collect();
        drop(state);
        self.work.notify_one();
        Ok(pending)
    }

    /// Drop a command that was not sent, and whose caller has left.
    pub(crate) fn forget(&self, slot: &Arc<Slot>) {
        let mut state = self.state.lock();
        let is_it = |job: &Job| matches!(&job.reply, Reply::Caller(other) if Arc::ptr_eq(other, slot));
        if let Some(at) = state.waiting.iter().position(is_it) {
            state.waiting.remove(at);
            self.release(&mut state);
        }
    }

    fn release(&self, state: &mut State) {
        state.used -= 1;
        self.room.notify_all();
    }

    /// Pass waiting commands to `send`, which gives the identifier of a sent one, or none if there is no room.
    pub(crate) fn send(&self, mut send: impl FnMut(Command, Exchange) -> Option<u16>, room: usize) {
        let mut state = self.state.lock();
        while state.in_flight.len() < room
            && let Some(mut job) = state.waiting.pop_front()
        {
            let again = if job.is_repeatable { job.exchange.clone() } else { Exchange::None };
            let Some(cid) = send(job.command, std::mem::replace(&mut job.exchange, again)) else {
                unreachable!("an open connection takes as many commands as its limit");
            };
            job.sent = Instant::now();
            state.in_flight.insert(cid, job);
        }
    }

    /// Send commands of the lane itself before those of callers.
    fn queue_own(&self, command: Command, exchange: Exchange, reply: Reply) {
        let job = Job { command, exchange, reply, is_repeatable: false, damaged: 0, sent: Instant::now() };
        self.state.lock().waiting.push_front(job);
        self.work.notify_one();
    }

    /// Ask the node to say that it lives.
    pub(crate) fn keep_alive(&self) {
        self.queue_own(rowmill_nvme::commands::keep_alive(), Exchange::None, Reply::None);
    }

    /// Ask the node to tell when namespaces change.
    pub(crate) fn watch(&self) {
        self.queue_own(rowmill_nvme::commands::async_event(), Exchange::None, Reply::Event);
    }

    /// When the first command in flight has waited for `patience`. Events come when they come.
    pub(crate) fn silent_at(&self, patience: Duration) -> Option<Instant> {
        let state = self.state.lock();
        let waiting = state.in_flight.values().filter(|job| !matches!(job.reply, Reply::Event));
        waiting.map(|job| job.sent + patience).min()
    }

    /// A command has ended.
    pub(crate) fn complete(&self, completion: &Completion, data: Vec<u8>, is_intact: bool) {
        let mut state = self.state.lock();
        let Some(mut job) = state.in_flight.remove(&completion.cid.get()) else { return };
        let status = completion.status();
        let slot = match &job.reply {
            Reply::Caller(slot) => slot,
            Reply::None => return,
            Reply::Event => {
                drop(state);
                if status == Status::SUCCESS {
                    self.tell_change();
                }
                return;
            }
        };
        let is_damaged = status == Status::TRANSIENT_TRANSPORT_ERROR || !is_intact;
        if is_damaged && job.is_repeatable && job.damaged + 1 < DAMAGED_MAX {
            job.damaged += 1;
            state.waiting.push_front(job);
            self.work.notify_one();
            return;
        }
        let answer = if status != Status::SUCCESS {
            Err(Failure::Status(status))
        } else if is_intact {
            let connection = self.link.connection.load(Ordering::Relaxed);
            Ok(Completed { result: completion.result.get(), data, connection })
        } else {
            Err(Failure::Damaged)
        };
        slot.fill(answer);
        self.release(&mut state);
    }

    fn tell_change(&self) {
        self.link.changes.fetch_add(1, Ordering::Release);
        // The node tells the next change when the list of changed namespaces was read.
        let list = rowmill_nvme::commands::log_page(
            rowmill_nvme::page::CHANGED_NAMESPACES,
            u32::MAX,
            0,
            CHANGED_BYTES,
            false,
        );
        self.watch();
        self.queue_own(list, Exchange::Receive(CHANGED_BYTES as usize), Reply::None);
    }

    /// There will be no further connection.
    pub(crate) fn close(&self, reason: &str) {
        self.lose(reason);
        let mut state = self.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        for job in waiting {
            if let Reply::Caller(slot) = job.reply {
                slot.fill(Err(Failure::Lost(reason.to_owned())));
                self.release(&mut state);
            }
        }
    }

    /// The connection has ended. Commands in flight that may run twice wait for the next one.
    pub(crate) fn lose(&self, reason: &str) {
        let mut state = self.state.lock();
        let State { waiting, in_flight, used } = &mut *state;
        waiting.retain(|job| matches!(job.reply, Reply::Caller(_)));
        for (_, job) in in_flight.drain() {
            let Reply::Caller(slot) = &job.reply else { continue };
            if job.is_repeatable && !slot.is_abandoned() {
                waiting.push_front(job);
            } else {
                slot.fill(Err(Failure::Lost(reason.to_owned())));
                *used -= 1;
            }
        }
        self.room.notify_all();
    }
}

const CHANGED_BYTES: u32 = 4096;

#[cfg(test)]
mod tests {
    use rowmill_nvme::commands;

    use super::*;

    #[test]
    fn a_command_without_room_fails_at_its_deadline() {
        let lane = Arc::new(Lane::new(Arc::default(), 1));
        let flush = || Request {
            name: "flush",
            command: commands::flush(1),
            exchange: Exchange::None,
            is_repeatable: false,
        };
        let deadline = Instant::now() + Duration::from_millis(20);
        let first = lane.submit(vec![flush()], deadline).unwrap();
        let message = lane.submit(vec![flush()], deadline).unwrap_err().to_string();
        assert!(message.contains("0 commands in flight, 1 waiting, 1 commands before it"), "{message}");
        drop(first);
    }
}
