//! A dense half that is killed, stopped or damaged, and peers that do not keep to the protocol.
//!
//! The test program starts itself again as the dense half, because SIGKILL and SIGSTOP reach a whole process.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::arena;
use common::dense::*;
use rowmill_serve::*;
use rowmill_testkit::Rng64;

/// Address of the child; requests without tensors are never answered, all others are sent back.
const ADDRESS: &str = "ROWMILL_TEST_DENSE";

/// Not a test of its own: what the child process runs.
#[test]
fn child() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let arena = arena();
    let (from, unanswered) = (arena.clone(), parking_lot::Mutex::new(Vec::new()));
    let dense = Dense::start(&address.parse().unwrap(), arena, 64, move |incoming: Incoming| {
        if incoming.request.tensors.is_empty() {
            unanswered.lock().push(incoming);
        } else {
            echo(&from, incoming);
        }
    });
    println!("address {}", dense.address);
    let _ = dense.server.run(GENEROUS);
}

struct Process(Child, Address);

impl Process {
    fn start(address: &Address) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(ADDRESS, address.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("address ")?.1.parse().unwrap()))
            .expect("the child prints its address");
        Self(child, address)
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and not yet waited for, so its id names no other process.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }
}

impl Process {
    /// Stop the process. The signal takes effect in each of its threads after the call of `kill`, so wait for all.
    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let is_stopped = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap();
            // The state follows the name, which is in parentheses.
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        let tasks = format!("/proc/{}/task", self.0.id());
        until("every thread stops", || {
            std::fs::read_dir(&tasks).unwrap().all(|task| is_stopped(task.unwrap()))
        });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn each_transport(test: impl Fn(&Address)) {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(folder.path()) {
        println!("{address}");
        test(&address);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn a_killed_peer_is_an_error_at_once_and_a_restart_heals() {
    each_transport(|address| {
        let runtime = runtime();
        let process = Process::start(address);
        let mine = arena();
        let client = Client::new(process.1.clone(), PROGRAM, mine.clone(), ClientOptions::default());
        let echo = |client: Client| {
            let tensor = bytes(client.arena(), 0, 1 << 20, 3);
            runtime.block_on(client.call(vec![tensor.clone()], [0; 16], by(GENEROUS))).map(|reply| {
                assert!(reply.tensors[0].data == tensor.data);
            })
        };
        echo(client.clone()).unwrap();
        // One request under way, which the child never answers.
        let begin = Instant::now();
        let open = runtime.spawn({
            let client = client.clone();
            async move { client.call(vec![], [0; 16], by(GENEROUS)).await }
        });
        echo(client.clone()).unwrap();
        let restarted_at = process.1.clone();
        drop(process);
        let error = runtime.block_on(open).unwrap().unwrap_err();
        assert!(matches!(error, CallError::Disconnected { .. }), "{error}");
        assert!(begin.elapsed() < GENEROUS, "the error comes before the deadline");
        let error = echo(client.clone()).unwrap_err();
        assert!(matches!(error, CallError::Unreachable { .. }), "{error}");
        until("memory returns", || mine.held_bytes() == 0);

        let _restarted = Process::start(&restarted_at);
        until("the client connects again", || echo(client.clone()).is_ok());
        until("memory returns", || mine.held_bytes() == 0);
    });
}

#[test]
fn a_stopped_peer_costs_deadlines_and_then_its_connection() {
    each_transport(|address| {
        let runtime = runtime();
        let process = Process::start(address);
        let mine = arena();
        let options = ClientOptions { in_flight_max: 2, ..ClientOptions::default() };
        let client = Client::new(process.1.clone(), PROGRAM, mine.clone(), options);
        let call = |time: Duration| {
            let tensor = bytes(&mine, 0, 100_000, 0);
            runtime.block_on(client.call(vec![tensor], [0; 16], by(time)))
        };
        call(GENEROUS).unwrap();
        process.stop();
        for _ in 0..2 {
            let error = call(Duration::from_millis(30)).unwrap_err();
            assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        }
        let error = call(GENEROUS).unwrap_err();
        assert!(matches!(error, CallError::Busy { in_flight: 2, .. }), "{error}");
        until("lent memory returns with the connection", || mine.held_bytes() == 0);
        process.signal(libc::SIGCONT);
        until("the client connects again", || call(GENEROUS).is_ok());
    });
}

#[test]
fn a_peer_that_never_says_hello_is_unreachable_whatever_the_deadlines() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(silent.local_addr().unwrap().to_string());
    let runtime = runtime();
    let client = Client::new(address, PROGRAM, arena(), ClientOptions::default());
    let call = |time: Duration| runtime.block_on(client.call(vec![], [0; 16], by(time))).unwrap_err();
    let short = Duration::from_millis(20);
    assert!(matches!(call(short), CallError::Deadline { .. }));
    until("the attempt to connect ends", || matches!(call(short), CallError::Unreachable { .. }));
    // Calls during the next attempt do not wait for it.
    until("the next attempt begins", || matches!(call(short), CallError::Deadline { .. }));
    let error = call(short).to_string();
    assert!(error.contains("cannot connect") && error.contains("no answer within 5s"), "{error}");
}

#[test]
fn garbage_ends_its_connection_and_no_other() {
    let arena_of_dense = arena();
    let from = arena_of_dense.clone();
    let dense =
        Dense::start(&Address::Tcp("127.0.0.1:0".into()), arena_of_dense, 64, move |incoming: Incoming| {
            echo(&from, incoming);
        });
    let Address::Tcp(address) = &dense.address else { unreachable!("the address is tcp") };
    let mine = arena();
    let client = dense.client(&mine);
    let call = || {
        let tensor = bytes(&mine, 0, 5000, 0);
        dense.server.handle().block_on(client.call(vec![tensor], [0; 16], by(GENEROUS))).unwrap()
    };
    drop(call());
    let hello = encode(&Message {
        kind: Kind::Hello,
        id: 0,
        trace: [0; 16],
        program: PROGRAM,
        time_left: Duration::ZERO,
        status: Status::Ok,
        tensors: Vec::new(),
    });
    let mut rng = Rng64::new(5);
    for round in 0..40 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(GENEROUS)).unwrap();
        if round % 2 == 0 {
            stream.write_all(&hello).unwrap();
            stream.read_exact(&mut [0; HEADER_BYTES]).unwrap();
        }
        let garbage: Vec<u8> = (0..rng.below(300) + 64).map(|_| rng.next_u64() as u8).collect();
        // The dense half may close before it has all of it.
        let _ = stream.write_all(&garbage);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "garbage has no answer");
        if round % 10 == 0 {
            drop(call());
        }
    }
    drop(call());
    until("memory returns", || dense.arena.held_bytes() == 0 && mine.held_bytes() == 0);
}

#[test]
fn shared_tensors_need_shared_memory_that_holds_them() {
    let folder = tempfile::tempdir().unwrap();
    let [_, address] = addresses(folder.path());
    let dense = Dense::start(&address, arena(), 64, |incoming: Incoming| incoming.replier.reply(Vec::new()));
    let Address::Shm(path) = &dense.address else { unreachable!("the address is shm") };
    // A peer that sends no memory with its hello, and one tensor of 5000 bytes at every kind of offset.
    let message = |kind, tensors| Message {
        kind,
        id: 9,
        trace: [0; 16],
        program: PROGRAM,
        time_left: Duration::ZERO,
        status: Status::Ok,
        tensors,
    };
    let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(GENEROUS)).unwrap();
    stream.write_all(&encode(&message(Kind::Hello, Vec::new()))).unwrap();
    stream.read_exact(&mut [0; HEADER_BYTES]).unwrap();
    for offset in [0_u64, 4096, u64::MAX - 100, u64::MAX] {
        let tensor = bytes(&arena(), 0, 5000, 0);
        let mut request = encode(&message(Kind::Request, vec![tensor]));
        request.truncate(request.len() - 5000);
        request[HEADER_BYTES + 4] = 2;
        request[HEADER_BYTES + 8..HEADER_BYTES + 16].copy_from_slice(&offset.to_le_bytes());
        request[HEADER_BYTES + 16..HEADER_BYTES + 20].fill(0);
        let crc = rowmill_io::crc32c(&request[HEADER_BYTES..]);
        request[56..60].copy_from_slice(&crc.to_le_bytes());
        let crc = rowmill_io::crc32c(&request[..60]);
        request[60..64].copy_from_slice(&crc.to_le_bytes());
        stream.write_all(&request).unwrap();
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).unwrap();
        let header = Header::decode(&header, &Limits::default()).unwrap();
        assert_eq!((header.kind, header.status, header.id), (Kind::Failure, Status::Invalid, 9));
        let mut rest = vec![0; (header.table_bytes + header.inline_bytes) as usize];
        stream.read_exact(&mut rest).unwrap();
        let text = String::from_utf8_lossy(&rest).into_owned();
        assert!(text.contains(&format!("offset of a shared tensor is {offset}")), "{text}");
    }
}
