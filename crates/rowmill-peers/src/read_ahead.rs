//! Threads that read announced rows into an engine's memory before they are needed.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::{Engine, PeerError};

/// Keys per piece, which a thread reads at a time.
const PIECE_KEYS: usize = 256;
/// Most pieces in the queue; further announced keys are dropped.
const PIECES_MAX: usize = 1 << 14;

/// Announced keys, and the threads that read them.
pub struct ReadAhead {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Most rows read for steps that have not begun: more rows would evict each other from memory.
    rows_max: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// Number of steps that have begun.
    step: u64,
    /// Number of pieces being read now.
    reading: usize,
    /// Rows read or being read, by the step that needs them.
    held: VecDeque<(u64, usize)>,
    held_rows: usize,
    dropped: u64,
    failure: Option<PeerError>,
    ended: bool,
}

struct Piece {
    keys: Vec<u64>,
    /// The step that needs the rows.
    due: u64,
}

impl ReadAhead {
    /// Start threads that read for `engine`, at most `rows_max` rows before the steps that need them.
    pub fn start(engine: &Arc<dyn Engine>, threads: usize, rows_max: usize) -> Self {
        let shared = Arc::new(Shared { rows_max, queue: Mutex::default(), changed: Condvar::new() });
        let threads = (0..threads)
            .map(|_| {
                let (engine, shared) = (Arc::clone(engine), Arc::clone(&shared));
                std::thread::spawn(move || shared.run(&*engine))
            })
            .collect();
        Self { shared, threads }
    }

    /// Announce that the step that begins in `steps` steps needs the rows of `keys`; 1 is the next step.
    pub fn announce(&self, keys: &[u64], steps: u64) {
        let mut queue = self.shared.lock();
        let due = queue.step + steps;
        for piece in keys.chunks(PIECE_KEYS) {
            if queue.pieces.len() < PIECES_MAX {
                queue.pieces.push_back(Piece { keys: piece.to_vec(), due });
            } else {
                queue.dropped += piece.len() as u64;
            }
        }
        drop(queue);
        self.shared.changed.notify_all();
    }

    /// Begin a step. It reads its rows itself, so keys that still wait for it are dropped.
    ///
    /// # Errors
    /// A read has failed since the last call.
    pub fn begin_step(&self) -> Result<(), PeerError> {
        let mut queue = self.shared.lock();
        queue.step += 1;
        let step = queue.step;
        while queue.pieces.front().is_some_and(|piece| piece.due <= step) {
            queue.dropped += queue.pieces.pop_front().map_or(0, |piece| piece.keys.len() as u64);
        }
        while queue.held.front().is_some_and(|(due, _)| *due <= step) {
            queue.held_rows -= queue.held.pop_front().map_or(0, |(_, rows)| rows);
        }
        let failure = queue.failure.take();
        drop(queue);
        self.shared.changed.notify_all();
        failure.map_or(Ok(()), Err)
    }

    /// Wait until no more rows can be read before the next step begins.
    ///
    /// # Errors
    /// A read failed.
    pub fn wait(&self) -> Result<(), PeerError> {
        let mut queue = self.shared.lock();
        while queue.reading > 0 || queue.next(self.shared.rows_max).is_some() {
            queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.failure.take().map_or(Ok(()), Err)
    }

    /// Number of announced keys that were not read, because the queue was full or their step had begun.
    pub fn dropped(&self) -> u64 {
        self.shared.lock().dropped
    }
}

impl Queue {
    /// The piece to read next, if there is room for its rows.
    fn next(&self, rows_max: usize) -> Option<&Piece> {
        let fits = |piece: &&Piece| self.held_rows == 0 || self.held_rows + piece.keys.len() <= rows_max;
        self.pieces.front().filter(fits)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, engine: &dyn Engine) {
        let mut queue = self.lock();
        while !queue.ended {
            if queue.next(self.rows_max).is_none() {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let piece = queue.pieces.pop_front().expect("the queue has a next piece");
            queue.held.push_back((piece.due, piece.keys.len()));
            queue.held_rows += piece.keys.len();
            queue.reading += 1;
            drop(queue);
            let result = engine.read_ahead(&piece.keys);
            queue = self.lock();
            queue.reading -= 1;
            if let Err(error) = result {
                queue.failure = Some(error);
            }
            if queue.reading == 0 {
                self.changed.notify_all();
            }
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the keys read; key 13 is missing. Reads wait until the gate is open.
    struct Noted {
        read: Mutex<Vec<u64>>,
        open: Mutex<bool>,
        opened: Condvar,
    }

    impl Noted {
        fn new(open: bool) -> Arc<Self> {
            Arc::new(Self { read: Mutex::default(), open: Mutex::new(open), opened: Condvar::new() })
        }

        fn open(&self) {
            *self.open.lock().unwrap() = true;
            self.opened.notify_all();
        }

        fn sorted(&self) -> Vec<u64> {
            let mut keys = self.read.lock().unwrap().clone();
            keys.sort_unstable();
            keys
        }
    }

    impl Engine for Noted {
        fn row_bytes(&self) -> usize {
            4
        }

        fn get(&self, keys: &[u64], _: &mut [f32]) -> Result<(), PeerError> {
            let gate = self.open.lock().unwrap();
            drop(self.opened.wait_while(gate, |open| !*open).unwrap());
            self.read.lock().unwrap().extend(keys);
            if keys.contains(&13) { Err(PeerError::Missing { engine: "noted", count: 1 }) } else { Ok(()) }
        }

        fn put(&self, _: &[u64], _: &[f32]) -> Result<(), PeerError> {
            Ok(())
        }

        fn settle(&self) -> Result<(), PeerError> {
            Ok(())
        }
    }

    #[test]
    fn announced_keys_are_read_once() {
        let engine = Noted::new(true);
        let ahead = ReadAhead::start(&(Arc::clone(&engine) as Arc<dyn Engine>), 3, 1 << 20);
        let keys: Vec<u64> = (100..1000).collect();
        ahead.announce(&keys, 1);
        ahead.wait().unwrap();
        assert_eq!(engine.sorted(), keys);
        assert_eq!(ahead.dropped(), 0);
    }

    #[test]
    fn late_announcements_are_dropped() {
        let engine = Noted::new(false);
        let ahead = ReadAhead::start(&(Arc::clone(&engine) as Arc<dyn Engine>), 1, 1 << 20);
        ahead.announce(&[1], 5);
        // The only thread waits at the gate with the first piece.
        while ahead.shared.lock().reading == 0 {
            std::thread::yield_now();
        }
        ahead.announce(&[2, 3], 1);
        ahead.announce(&[4], 2);
        ahead.begin_step().unwrap();
        assert_eq!(ahead.dropped(), 2);
        engine.open();
        ahead.wait().unwrap();
        assert_eq!(engine.sorted(), [1, 4]);
    }

    #[test]
    fn reads_do_not_exceed_the_room() {
        let engine = Noted::new(true);
        let ahead = ReadAhead::start(&(Arc::clone(&engine) as Arc<dyn Engine>), 2, 300);
        ahead.announce(&(100..356).collect::<Vec<_>>(), 1);
        ahead.announce(&[1000; 40], 2);
        ahead.announce(&[2000; 5], 3);
        ahead.wait().unwrap();
        assert_eq!(engine.sorted().len(), 296, "the last piece would exceed 300 rows");
        ahead.begin_step().unwrap();
        ahead.wait().unwrap();
        assert_eq!(engine.sorted().last(), Some(&2000));
        assert_eq!(ahead.dropped(), 0);
    }

    #[test]
    fn a_read_that_fails_is_reported_once() {
        let engine = Noted::new(true);
        let ahead = ReadAhead::start(&(Arc::clone(&engine) as Arc<dyn Engine>), 2, 1 << 20);
        ahead.announce(&[12, 13], 1);
        assert!(ahead.wait().unwrap_err().to_string().contains("missing"));
        ahead.begin_step().unwrap();
    }
}
