//! Calls over both transports, within one process: what arrives, what is refused and why, and that memory returns.
//! What a peer does that is killed, stopped or malicious is in `faults.rs`.

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::arena;
use common::dense::*;
use parking_lot::Mutex;
use rowmill_serve::*;

fn each_transport(test: impl Fn(&Address)) {
    let folder = tempfile::tempdir().unwrap();
    for address in addresses(folder.path()) {
        println!("{address}");
        test(&address);
    }
}

fn echoing(address: &Address) -> Dense {
    let arena = arena();
    let from = arena.clone();
    Dense::start(address, arena, 64, move |incoming: Incoming| echo(&from, incoming))
}

#[test]
fn tensors_of_every_size_come_back_and_memory_returns() {
    each_transport(|address| {
        let dense = echoing(address);
        let mine = arena();
        let client = dense.client(&mine);
        for round in 0..3 {
            let sizes = [0, 1, 4096, 4097, 100_000, 8 << 20];
            let sent: Vec<Tensor> =
                (0..).zip(sizes).map(|(name, len)| bytes(&mine, name, len, round)).collect();
            let call = client.call(sent.clone(), [round as u8; 16], by(GENEROUS));
            let reply = dense.server.handle().block_on(call).unwrap();
            assert_eq!((reply.kind, reply.trace, reply.program), (Kind::Reply, [round as u8; 16], PROGRAM));
            assert_eq!(reply.tensors.len(), sent.len());
            for (reply, sent) in reply.tensors.iter().zip(&sent) {
                assert_eq!((&reply.name, &reply.shape), (&sent.name, &sent.shape));
                assert!(reply.data == sent.data, "tensor {:?}", sent.name);
            }
        }
        until("memory of requests returns", || mine.held_bytes() == 0);
        until("memory of replies returns", || dense.arena.held_bytes() == 0);
    });
}

#[test]
fn tensors_of_shared_memory_are_read_where_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    let received = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&received);
    let arena_of_dense = arena();
    let [_, address] = addresses(folder.path());
    let dense = Dense::start(&address, arena_of_dense.clone(), 64, move |incoming: Incoming| {
        requests.lock().push(incoming.request.tensors);
        incoming.replier.reply(Vec::new());
    });
    let mine = arena();
    let client = dense.client(&mine);
    let sent = bytes(&mine, 0, 1 << 20, 0);
    dense.server.handle().block_on(client.call(vec![sent.clone()], [0; 16], by(GENEROUS))).unwrap();
    assert!(received.lock()[0][0].data == sent.data);
    assert_eq!(dense.arena.held_bytes(), 0, "the dense half holds no copy");
    drop(sent);
    assert_eq!(mine.held_bytes(), 1 << 20, "lent as long as the dense half reads it");
    received.lock().clear();
    until("memory returns", || mine.held_bytes() == 0);
}

#[test]
fn replies_find_their_calls_in_any_order() {
    each_transport(|address| {
        let (sender, requests) = mpsc::channel();
        let dense =
            Dense::start(address, arena(), 64, move |incoming: Incoming| sender.send(incoming).unwrap());
        let reverse = std::thread::spawn(move || {
            for _ in 0..4 {
                let mut burst: Vec<Incoming> = requests.iter().take(16).collect();
                burst.reverse();
                for Incoming { request, replier, .. } in burst {
                    replier.reply(request.tensors);
                }
            }
        });
        let mine = arena();
        let client = dense.client(&mine);
        let calls: Vec<_> = (0..64)
            .map(|number| {
                let (client, tensor) = (client.clone(), bytes(&mine, 0, 5000 + number, number));
                dense.server.handle().spawn(async move {
                    let reply = client.call(vec![tensor.clone()], [0; 16], by(GENEROUS)).await.unwrap();
                    assert!(reply.tensors[0].data == tensor.data, "request {number}");
                })
            })
            .collect();
        for call in calls {
            dense.server.handle().block_on(call).unwrap();
        }
        reverse.join().unwrap();
        until("memory returns", || mine.held_bytes() == 0);
    });
}

#[test]
fn refusals_and_failures_say_why() {
    each_transport(|address| {
        let dense = Dense::start(address, arena(), 64, |incoming: Incoming| {
            match incoming.request.tensors.len() {
                0 => incoming.replier.fail(Status::Late, "its deadline is in 3ms"),
                1 => incoming.replier.fail(Status::Failed, &"\u{e4}".repeat(5000)),
                // Dropped without a reply.
                _ => {}
            }
        });
        let mine = arena();
        let client = dense.client(&mine);
        let call = |tensors: u16| {
            let tensors = (0..tensors).map(|name| bytes(&mine, name, 10, 0)).collect();
            dense.server.handle().block_on(client.call(tensors, [0; 16], by(GENEROUS))).unwrap_err()
        };
        let error = call(0);
        assert!(matches!(error, CallError::Failed { status: Status::Late, .. }), "{error}");
        assert_eq!(error.to_string(), format!("{}: its deadline is in 3ms", dense.address));
        assert!(matches!(call(1), CallError::Failed { reason, .. } if reason == "\u{e4}".repeat(2048)));
        assert!(call(2).to_string().contains("dropped without a reply"));

        let other = Client::new(dense.address.clone(), 0xbad, mine.clone(), ClientOptions::default());
        let error = dense
            .server
            .handle()
            .block_on(other.call(vec![], [0; 16], by(GENEROUS)))
            .unwrap_err()
            .to_string();
        assert!(error.contains("000000000000feed") && error.contains("0000000000000bad"), "{error}");
    });
}

/// Tensors of more than 64 MiB together, which share 4 MiB of memory. The first is small.
fn too_large(arena: &Arena) -> Vec<Tensor> {
    let (small, large) = (bytes(arena, 0, 10, 0), bytes(arena, 1, 4 << 20, 0));
    let numbered = |name| Tensor { name: TensorName::Number(name), ..large.clone() };
    std::iter::once(small).chain((1..=16).map(numbered)).collect()
}

#[test]
fn a_request_beyond_the_limit_fails_alone_and_its_connection_stays() {
    each_transport(|address| {
        let (sender, requests) = mpsc::channel();
        let dense =
            Dense::start(address, arena(), 64, move |incoming: Incoming| sender.send(incoming).unwrap());
        let mine = arena();
        let client = dense.client(&mine);
        let handle = dense.server.handle();
        let (other, tensor) = (client.clone(), bytes(&mine, 0, 10_000, 1));
        let open = handle.spawn(async move {
            let reply = other.call(vec![tensor.clone()], [0; 16], by(GENEROUS)).await.unwrap();
            assert!(reply.tensors[0].data == tensor.data);
        });
        let waiting = requests.recv().unwrap();

        let error = handle.block_on(client.call(too_large(&mine), [0; 16], by(GENEROUS))).unwrap_err();
        assert!(matches!(error, CallError::Failed { status: Status::Invalid, .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("67108874 bytes") && text.contains("request_max is 67108864"), "{text}");

        let Incoming { request, replier, .. } = waiting;
        replier.reply(request.tensors);
        handle.block_on(open).unwrap();
        until("memory of requests returns", || mine.held_bytes() == 0);
        until("memory of replies returns", || dense.arena.held_bytes() == 0);
    });
}

#[test]
fn a_reply_beyond_the_limit_fails_alone_and_its_connection_stays() {
    each_transport(|address| {
        let (sender, requests) = mpsc::channel();
        let dense =
            Dense::start(address, arena(), 64, move |incoming: Incoming| sender.send(incoming).unwrap());
        let mine = arena();
        let client = dense.client(&mine);
        let call = || {
            let client = client.clone();
            dense.server.handle().spawn(async move { client.call(vec![], [0; 16], by(GENEROUS)).await })
        };
        let open = call();
        let waiting = requests.recv().unwrap();
        let large = call();
        requests.recv().unwrap().replier.reply(too_large(&dense.arena));
        let error = dense.server.handle().block_on(large).unwrap().unwrap_err();
        assert!(matches!(error, CallError::Spoiled { .. }), "{error}");
        assert!(error.to_string().contains("67108874 bytes"), "{error}");
        waiting.replier.reply(Vec::new());
        dense.server.handle().block_on(open).unwrap().unwrap();
        until("memory of replies returns", || dense.arena.held_bytes() == 0);
    });
}

#[test]
fn a_deadline_ends_a_call_and_a_late_reply_harms_none() {
    each_transport(|address| {
        let (sender, requests) = mpsc::channel();
        let dense =
            Dense::start(address, arena(), 64, move |incoming: Incoming| sender.send(incoming).unwrap());
        let mine = arena();
        let client = dense.client(&mine);
        let call = client.call(vec![bytes(&mine, 0, 10_000, 0)], [0; 16], by(Duration::from_millis(20)));
        let error = dense.server.handle().block_on(call).unwrap_err();
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
        let late = requests.recv().unwrap();
        assert!(late.request.time_left <= Duration::from_millis(20));
        late.replier.reply(late.request.tensors);
        let client = client.clone();
        let (tensor, handle) = (bytes(&mine, 0, 20_000, 1), dense.server.handle());
        let next = handle.spawn({
            let tensor = tensor.clone();
            async move { client.call(vec![tensor], [0; 16], by(GENEROUS)).await }
        });
        let Incoming { request, replier, .. } = requests.recv().unwrap();
        replier.reply(request.tensors);
        assert!(handle.block_on(next).unwrap().unwrap().tensors[0].data == tensor.data);
        drop(tensor);
        until("memory returns", || mine.held_bytes() == 0);
    });
}

#[test]
fn a_full_arena_refuses_the_request_and_keeps_the_connection() {
    let small = Arena::new(64 << 10).unwrap();
    let dense = Dense::start(&Address::Tcp("127.0.0.1:0".into()), small, 64, |incoming: Incoming| {
        incoming.replier.reply(Vec::new());
    });
    let mine = arena();
    let client = dense.client(&mine);
    let held = dense.arena.lease(40 << 10).unwrap();
    let call = |len: usize, time| {
        dense.server.handle().block_on(client.call(vec![bytes(&mine, 0, len, 0)], [0; 16], by(time)))
    };
    let error = call(128 << 10, GENEROUS).unwrap_err();
    assert!(matches!(error, CallError::Failed { status: Status::Full, .. }), "{error}");
    assert!(error.to_string().contains("131072 bytes are more than the arena of 65536 bytes"), "{error}");
    call(8 << 10, GENEROUS).unwrap();
    // The caller gives up when the dense half stops waiting for room; which of the two comes first is open.
    let error = call(50 << 10, Duration::from_millis(30)).unwrap_err();
    assert!(
        matches!(error, CallError::Failed { status: Status::Full, .. } | CallError::Deadline { .. }),
        "{error}"
    );
    drop(held);
    call(50 << 10, GENEROUS).unwrap();
}

#[test]
fn requests_beyond_the_limit_in_flight_are_not_read() {
    each_transport(|address| {
        let open = Arc::new(AtomicUsize::new(0));
        let (sender, requests) = mpsc::channel();
        let counted = Arc::clone(&open);
        let dense = Dense::start(address, arena(), 3, move |incoming: Incoming| {
            assert!(counted.fetch_add(1, SeqCst) < 3, "four requests at once");
            sender.send(incoming).unwrap();
        });
        let mine = arena();
        let client = dense.client(&mine);
        let calls: Vec<_> = (0..20)
            .map(|number| {
                let (client, tensor) = (client.clone(), bytes(&mine, 0, 5000, number));
                dense
                    .server
                    .handle()
                    .spawn(async move { client.call(vec![tensor], [0; 16], by(GENEROUS)).await })
            })
            .collect();
        for _ in 0..20 {
            let Incoming { request, replier, .. } = requests.recv().unwrap();
            drop(request);
            open.fetch_sub(1, SeqCst);
            replier.reply(Vec::new());
        }
        for call in calls {
            dense.server.handle().block_on(call).unwrap().unwrap();
        }
    });
}

#[test]
fn a_drain_finishes_open_requests_and_refuses_new_ones() {
    each_transport(|address| {
        let (sender, requests) = mpsc::channel();
        let dense =
            Dense::start(address, arena(), 64, move |incoming: Incoming| sender.send(incoming).unwrap());
        let mine = arena();
        let (client, other) = (dense.client(&mine), dense.client(&mine));
        let client_runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let ask = |client: &Client| {
            let client = client.clone();
            client_runtime.spawn(async move { client.call(vec![], [0; 16], by(GENEROUS)).await })
        };
        let open = ask(&client);
        let request = requests.recv().unwrap();
        let drain = dense.server.drain().clone();
        drain.start();
        let refused = client_runtime.block_on(ask(&client)).unwrap().unwrap_err();
        assert!(matches!(refused, CallError::Failed { status: Status::Draining, .. }), "{refused}");
        until("the listener closes", || {
            let error = client_runtime.block_on(ask(&other)).unwrap().unwrap_err();
            matches!(error, CallError::Unreachable { .. })
        });
        request.replier.reply(Vec::new());
        dense.server.run(GENEROUS).unwrap();
        client_runtime.block_on(open).unwrap().unwrap();
    });
}

#[test]
fn the_time_of_a_request_runs_while_it_is_read() {
    let (sender, received) = mpsc::channel();
    let address = Address::Tcp("127.0.0.1:0".into());
    let dense = Dense::start(&address, arena(), 64, move |incoming: Incoming| sender.send(incoming).unwrap());
    let Address::Tcp(address) = &dense.address else { unreachable!("the address is tcp") };
    let mine = arena();
    let message = |kind: Kind, time_left: Duration, tensors: Vec<Tensor>| {
        let (trace, status) = ([0; 16], Status::Ok);
        encode(&Message { kind, id: 0, trace, program: PROGRAM, time_left, status, tensors })
    };
    let request = message(Kind::Request, GENEROUS, vec![bytes(&mine, 0, 100_000, 0)]);
    let (first, rest) = request.split_at(request.len() - 1);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&message(Kind::Hello, Duration::ZERO, vec![])).unwrap();
    stream.write_all(first).unwrap();
    until("the header is read", || dense.arena.held_bytes() > 0);
    let read = Instant::now();
    stream.write_all(rest).unwrap();
    assert!(received.recv_timeout(GENEROUS).unwrap().deadline <= read + GENEROUS);
}

#[test]
fn batches_of_the_dispatcher_answer_calls() {
    each_transport(|address| {
        let limits = BatchLimits {
            batch_requests_max: 8,
            batch_rows_max: 1000,
            queue_requests_max: 100,
            batches_max: 1,
        };
        let dispatcher = Dispatcher::new(limits, |incoming: Incoming, refusal| {
            incoming.replier.fail(Status::Late, &refusal.to_string());
        });
        let queue = Arc::clone(&dispatcher);
        let dense = Dense::start(address, arena(), 64, move |incoming: Incoming| {
            let rows = incoming.request.tensors.first().map_or(1, |tensor| tensor.shape[0] as u32);
            queue.submit(incoming.deadline, rows, incoming).keep();
        });
        let device = std::thread::spawn({
            let dispatcher = Arc::clone(&dispatcher);
            move || {
                let mut answered = 0;
                while let Some(mut batch) = dispatcher.take(0, GENEROUS) {
                    for Incoming { request, replier, .. } in std::mem::take(&mut batch.requests) {
                        answered += 1;
                        replier.reply(request.tensors);
                    }
                }
                answered
            }
        });
        let mine = arena();
        let client = dense.client(&mine);
        let calls: Vec<_> = (0..40)
            .map(|number| {
                let (client, tensor) = (client.clone(), bytes(&mine, 0, 100, number));
                dense.server.handle().spawn(async move {
                    let reply = client.call(vec![tensor.clone()], [0; 16], by(GENEROUS)).await.unwrap();
                    assert!(reply.tensors[0].data == tensor.data);
                })
            })
            .collect();
        for call in calls {
            dense.server.handle().block_on(call).unwrap();
        }
        let hopeless = client.call(vec![bytes(&mine, 0, 1001, 0)], [0; 16], by(GENEROUS));
        let error = dense.server.handle().block_on(hopeless).unwrap_err().to_string();
        assert!(error.contains("the request has 1001 rows, a batch takes 1000"), "{error}");
        dispatcher.close();
        assert_eq!(device.join().unwrap(), 40);
    });
}

/// Admits requests of up to 100 rows, and counts the places that it holds.
struct Places {
    held: Arc<AtomicUsize>,
    answered_in_places: Arc<AtomicUsize>,
}

struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Answers for Places {
    type Place = Held;

    fn reserve(&self, program: u64, rows: u32, _deadline: std::time::Instant) -> Result<Held, Failure> {
        assert_eq!(program, PROGRAM);
        if rows > 100 {
            return Err(Failure::new(Status::Late, format!("{rows} rows take too long")));
        }
        self.held.fetch_add(1, SeqCst);
        Ok(Held(Arc::clone(&self.held)))
    }

    fn answer(&self, incoming: Incoming, place: Option<Held>) {
        self.answered_in_places.fetch_add(usize::from(place.is_some()), SeqCst);
        incoming.replier.reply(Vec::new());
    }
}

#[test]
fn a_place_is_used_let_go_or_lost_with_its_connection() {
    each_transport(|address| {
        let (held, answered_in_places) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let places = Places { held: Arc::clone(&held), answered_in_places: Arc::clone(&answered_in_places) };
        let dense = Dense::start(address, arena(), 3, places);
        let client = dense.client(&arena());
        let runtime = dense.server.handle();
        let reserve = |rows| runtime.block_on(client.reserve(rows, [0; 16], by(GENEROUS)));

        let place = reserve(64).unwrap();
        assert_eq!(held.load(SeqCst), 1);
        runtime.block_on(client.call_in(Some(place), vec![], [0; 16], by(GENEROUS))).unwrap();
        assert_eq!((held.load(SeqCst), answered_in_places.load(SeqCst)), (0, 1));
        runtime.block_on(client.call(vec![], [0; 16], by(GENEROUS))).unwrap();
        assert_eq!(answered_in_places.load(SeqCst), 1, "a request without a place has none");

        let error = reserve(101).unwrap_err();
        assert!(
            matches!(&error, CallError::Failed { status: Status::Late, reason, .. } if reason == "101 rows take too long")
        );
        assert_eq!(held.load(SeqCst), 0);

        drop(reserve(1).unwrap());
        until("a place that is not used is let go", || held.load(SeqCst) == 0);

        let kept: Vec<_> = (0..3).map(|_| reserve(1).unwrap()).collect();
        let error = reserve(1).unwrap_err().to_string();
        assert!(error.contains("3 places are reserved"), "{error}");
        assert_eq!(held.load(SeqCst), 3);
        drop(client);
        until("places are lost with their connection", || held.load(SeqCst) == 0);
        drop(kept);
    });
}
