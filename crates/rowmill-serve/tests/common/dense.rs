//! A dense half without a model, and a client of it.

use std::time::{Duration, Instant};

use rowmill_serve::*;
use rowmill_server::{Exposure, Server};

pub(crate) const PROGRAM: u64 = 0xfeed;
pub(crate) const GENEROUS: Duration = Duration::from_mins(1);

/// A dense half that listens in this process.
pub(crate) struct Dense {
    pub(crate) server: Server,
    pub(crate) arena: Arena,
    pub(crate) address: Address,
}

impl Dense {
    /// Listen at `address` and answer requests by `handler`.
    pub(crate) fn start(
        address: &Address,
        arena: Arena,
        in_flight_max: usize,
        handler: impl Answers,
    ) -> Self {
        let server = Server::start(2).unwrap();
        let listener = server.handle().block_on(Listener::bind(address, Exposure::Loopback)).unwrap();
        let address = listener.address().unwrap();
        let limits = Limits::default();
        let serving = Serving {
            programs: vec![PROGRAM],
            arena: arena.clone(),
            limits,
            connections_max: 64,
            in_flight_max,
        };
        server.handle().spawn(serve(listener, serving, server.drain().clone(), handler));
        Self { server, arena, address }
    }

    pub(crate) fn client(&self, arena: &Arena) -> Client {
        Client::new(self.address.clone(), PROGRAM, arena.clone(), ClientOptions::default())
    }
}

/// Sends every request back: large tensors from where they lie, after a copy into the arena of the dense half.
pub(crate) fn echo(arena: &Arena, incoming: Incoming) {
    let Incoming { request, replier, .. } = incoming;
    let copies = request.tensors.iter().map(|tensor| {
        let mut lease = arena.lease(tensor.data.len()).unwrap();
        lease.copy_from_slice(&tensor.data);
        Tensor { data: lease.share(), ..tensor.clone() }
    });
    let copies = copies.collect();
    drop(request);
    replier.reply(copies);
}

/// One address of each transport; the folder holds the socket.
pub(crate) fn addresses(folder: &std::path::Path) -> [Address; 2] {
    [Address::Tcp("127.0.0.1:0".into()), Address::Shm(folder.join("dense.sock"))]
}

/// A tensor of bytes in `arena` that differ from place to place and from `seed` to `seed`.
pub(crate) fn bytes(arena: &Arena, name: u16, len: usize, seed: usize) -> Tensor {
    let mut lease = arena.lease(len).unwrap();
    for (at, byte) in lease.iter_mut().enumerate() {
        *byte = (at * 31 + at / 251 + seed) as u8;
    }
    Tensor::new(TensorName::Number(name), DType::UInt8, &[len as u64], lease.share())
}

pub(crate) fn by(time: Duration) -> Instant {
    Instant::now() + time
}

/// Wait until `condition` holds.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < GENEROUS, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}
