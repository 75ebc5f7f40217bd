//! The thread that announces arrivals at their times. A timer of the network runtime would be up to 1 ms late.

use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::arrivals::Arrivals;

/// Arrivals that are due and not taken. More of them wait here; their latency counts from their time.
const WAITING_MAX: usize = 1024;
/// Longest sleep, after which the thread looks whether the run has been interrupted.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Announce each arrival when `start` plus its time has come. The channel closes after the last.
///
/// # Errors
/// When the system gives no thread.
pub(super) fn pace(start: Instant, arrivals: Arrivals) -> std::io::Result<Receiver<Duration>> {
    let (sender, receiver) = channel(WAITING_MAX);
    thread::Builder::new().name("rowmill-pacer".into()).spawn(move || announce(start, arrivals, &sender))?;
    Ok(receiver)
}

fn announce(start: Instant, arrivals: Arrivals, sender: &Sender<Duration>) {
    for at in arrivals {
        loop {
            let left = (start + at).saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if sender.is_closed() {
                return;
            }
            thread::sleep(left.min(SLEEP_MAX));
        }
        if sender.blocking_send(at).is_err() {
            return;
        }
    }
}
