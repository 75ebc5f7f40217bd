//! A server as a user runs it: a separate process that gets signals and HTTP requests.
//!
//! The test program starts itself again as the server, because a signal reaches a whole process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use rowmill_server::{Exposure, Server, bind_tcp, router, start_logs};

/// What the child does with its one hold: `drops` it when the drain starts, or `keeps` it for ever.
const ROLE: &str = "ROWMILL_TEST_SERVER";
const GENEROUS: Duration = Duration::from_mins(1);
/// More than the buffers of a connection hold.
const LARGE_BYTES: usize = 32 << 20;

/// Not a test: the program of the child process.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    start_logs("info").unwrap();
    let server = Server::start(1).unwrap();
    let mut registry = Registry::default();
    let requests = Counter::<u64>::default();
    registry.register("rowmill_test_requests", "Requests", requests.clone());
    requests.inc_by(3);
    let listener = {
        let _inside = server.handle().enter();
        bind_tcp("127.0.0.1:0", Exposure::Loopback).unwrap()
    };
    println!("port {}", listener.local_addr().unwrap().port());
    let large = axum::routing::get(|| async { vec![7_u8; LARGE_BYTES] });
    server.serve_http(listener, router(registry, server.drain()).route("/large", large));
    let mut hold = server.drain().hold();
    server.handle().spawn(async move {
        hold.draining().await;
        if role == "keeps" {
            std::future::pending::<()>().await;
        }
        if role == "waits" {
            // Long enough for the parent to request the health during the drain.
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    });
    // The deadline is long, because these children are ended by a second signal.
    let deadline =
        if std::env::var_os("ROWMILL_TEST_SHORT").is_some() { Duration::from_millis(50) } else { GENEROUS };
    if let Err(error) = server.run(deadline) {
        eprintln!("{error}");
        std::process::exit(3);
    }
    std::process::exit(0);
}

struct Process {
    child: Child,
    port: u16,
}

impl Process {
    fn start(role: &str, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(ROLE, role)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("port ")?.1.parse().unwrap()))
            .expect("the child prints its port");
        Self { child, port }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and not yet waited for, so its id names no other process.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    fn get(&self, path: &str) -> String {
        self.get_as(path, "*/*")
    }

    fn get_as(&self, path: &str, accept: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let headers = format!("host: localhost\r\nconnection: close\r\naccept: {accept}\r\n");
        write!(stream, "GET {path} HTTP/1.1\r\n{headers}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The exit status and the log of the child.
    fn end(mut self) -> (ExitStatus, String) {
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap(), log)
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < GENEROUS, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn metrics_and_health_are_served_and_sigterm_drains() {
    let process = Process::start("waits", &[]);
    let metrics = process.get("/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    assert!(metrics.contains("# TYPE rowmill_test_requests_total counter\n"), "{metrics}");
    assert!(metrics.contains("\nrowmill_test_requests_total 3\n"), "{metrics}");
    let metrics = process.get_as("/metrics", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(metrics.contains("content-type: application/openmetrics-text"), "{metrics}");
    assert!(metrics.ends_with("rowmill_test_requests_total 3\n# EOF\n"), "{metrics}");
    assert!(process.get("/healthz").contains("\r\n\r\nok\n"));
    assert!(process.get("/nothing").starts_with("HTTP/1.1 404"));

    process.signal(libc::SIGTERM);
    until("draining", || process.get("/healthz").starts_with("HTTP/1.1 503"));
    let (status, log) = process.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("\"message\":\"received SIGTERM, draining\""), "{log}");
}

#[test]
fn a_response_that_is_being_sent_when_the_drain_ends_arrives_whole() {
    let process = Process::start("drops", &[]);
    let idle = TcpStream::connect(("127.0.0.1", process.port)).unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", process.port)).unwrap();
    write!(stream, "GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut begin = [0; 16];
    stream.read_exact(&mut begin).unwrap();
    assert!(begin.starts_with(b"HTTP/1.1 200"));
    process.signal(libc::SIGTERM);
    until("the port closes", || TcpStream::connect(("127.0.0.1", process.port)).is_err());
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() > LARGE_BYTES, "{} bytes of {LARGE_BYTES}", rest.len());
    let (status, log) = process.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("did not receive"), "{log}");
    drop(idle);
}

#[test]
fn a_drain_that_does_not_end_is_an_error_that_counts_open_work() {
    let process = Process::start("keeps", &[("ROWMILL_TEST_SHORT", "1")]);
    process.signal(libc::SIGINT);
    let (status, log) = process.end();
    assert_eq!(status.code(), Some(3), "{log}");
    assert!(log.contains("1 connections or requests were still open 50ms after the drain started"), "{log}");
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    let process = Process::start("keeps", &[]);
    process.signal(libc::SIGTERM);
    until("draining", || process.get("/healthz").starts_with("HTTP/1.1 503"));
    process.signal(libc::SIGTERM);
    let (status, log) = process.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("second signal"), "{log}");
}
