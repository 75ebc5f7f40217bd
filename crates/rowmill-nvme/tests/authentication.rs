//! Hosts that must prove a key, over bytes in pieces.
//!
//! What could break: a message at a wrong offset, a command that is executed before the key is proved, a wrong key, an old
//! response or a reflected one that is accepted, a controller that need not prove its key. The responses themselves are
//! tested against a second computation, beside the code.

mod common;

use std::time::{Duration, Instant};

use common::*;
use rowmill_nvme::*;

const DIGESTS: Digests = Digests { header: true, data: false };

fn connect(node: &mut Node, host: HostIdentity, piece: usize) -> Result<(Link, Setup, Ready), SetupError> {
    let setup = Setup::new(host, nqn(3), 5000, 2, [4; 32]);
    connect_with(node, Instant::now(), DIGESTS, piece, setup)
}

fn host(key_text: &str, controller_key: Option<&str>) -> HostIdentity {
    let controller_key = controller_key.map(key);
    HostIdentity { key: Some(key(key_text)), controller_key, ..identity(WITH_KEY) }
}

#[test]
fn both_sides_prove_their_keys_on_every_queue() {
    for (controller_key, piece) in [(None, 1), (Some(CONTROLLER_KEY), 1), (Some(CONTROLLER_KEY), 100_000)] {
        let (mut node, now) = (Node::new(), Instant::now());
        let (mut admin, setup, ready) = connect(&mut node, host(HOST_KEY, controller_key), piece).unwrap();
        assert_eq!(admin.status(&mut node, now, commands::keep_alive(), Exchange::None), Status::SUCCESS);
        let mut io = Link::open(&mut node, now, DIGESTS, piece, 1);
        io.pump(&mut node, now);
        io.events.clear();
        let SetupStep::Send { command, exchange, .. } = setup.connect_io(&ready, 1, 4) else { panic!() };
        let (connected, _) = io.call(&mut node, now, command, exchange);
        assert_eq!(connected.status(), Status::SUCCESS);
        let flush = commands::flush(BLOCKS);
        let before = io.status(&mut node, now, flush, Exchange::None);
        assert_eq!(before, Status::AUTHENTICATION_REQUIRED);
        // Much data is asked for when the key is proved.
        let write = commands::write(BLOCKS, blocks(0, 64), false);
        io.host.submit(write, Exchange::Send(vec![1; 32 << 10])).unwrap();
        io.pump(&mut node, now);
        let connection = &node.connections[io.index].connection;
        assert_eq!((connection.held_bytes(), connection.wanted_bytes()), (0, 0));
        let mut auth = setup.authenticate(&connected, [5; 32]).unwrap().unwrap();
        let mut next = Some(auth.start());
        while let Some((command, exchange)) = next {
            let (completion, data) = io.call(&mut node, now, command, exchange);
            assert_eq!(completion.status(), Status::SUCCESS);
            next = auth.next(&data).unwrap();
        }
        assert_eq!(io.completed().0.status(), Status::SUCCESS);
        assert_eq!(io.status(&mut node, now, flush, Exchange::None), Status::SUCCESS);
        assert!(node.closed.is_empty());
    }
}

#[test]
fn wrong_keys_are_refused_and_end_the_connection() {
    let mut node = Node::new();
    let refused = connect(&mut node, host(CONTROLLER_KEY, None), 50).err().unwrap();
    assert_eq!(refused, SetupError::Auth(AuthError::Refused(Some(AuthFailure::Failed))));
    assert_eq!(node.closed, [(0, Closed::Unauthenticated)]);
    let mut node = Node::new();
    let refused = connect(&mut node, host(HOST_KEY, Some(HOST_KEY)), 50).err().unwrap();
    assert_eq!(refused, SetupError::Auth(AuthError::ControllerFailed));
    assert_eq!(node.closed, [(0, Closed::Unauthenticated)]);
}

#[test]
fn a_key_that_is_needed_must_be_there() {
    let mut node = Node::new();
    assert_eq!(connect(&mut node, identity(WITH_KEY), 50).err().unwrap(), SetupError::NoKey);
    // Subsystem 1 asks no host for a key, so it cannot prove its own.
    let trusting = Setup::new(host(HOST_KEY, Some(CONTROLLER_KEY)), nqn(1), 5000, 2, [4; 32]);
    let refused = connect_with(&mut node, Instant::now(), DIGESTS, 50, trusting).err().unwrap();
    assert_eq!(refused, SetupError::NoAuthentication);
}

#[test]
fn a_host_that_does_not_authenticate_in_time_is_left() {
    let (mut node, now) = (Node::new(), Instant::now());
    assert!(connect(&mut node, identity(WITH_KEY), 50).is_err());
    let connection = &mut node.connections[0].connection;
    let deadline = connection.deadline().expect("it is not authenticated");
    assert!(deadline <= now + Duration::from_secs(11));
    connection.expire(deadline);
    node.work(deadline, 0);
    assert_eq!(node.closed, [(0, Closed::TimedOut)]);
}

/// A controller and the first messages to it, as bytes.
fn controller() -> (ControllerAuth, Vec<u8>) {
    let auth = ControllerAuth::new(nqn(WITH_KEY), nqn(3), key(HOST_KEY), Some(key(CONTROLLER_KEY)), SEED);
    let host = HostAuth::new(nqn(WITH_KEY), nqn(3), key(HOST_KEY), None, [5; 32]);
    let (_, Exchange::Send(negotiate)) = host.start() else { panic!() };
    (auth, negotiate)
}

fn failure(message: &[u8]) -> u8 {
    assert_eq!(message[..2], [0, 0xf1], "no failure1");
    message[7]
}

#[test]
fn each_failure_of_a_negotiation_is_named() {
    let changed = |changes: &[(usize, u8)]| {
        let (mut auth, mut negotiate) = controller();
        for &(at, value) in changes {
            negotiate[at] = value;
        }
        auth.send(&negotiate);
        let message = auth.receive();
        assert!(auth.has_failed() && !auth.is_authenticated());
        failure(&message)
    };
    assert_eq!(changed(&[(6, 1)]), AuthFailure::SecureChannel as u8);
    assert_eq!(changed(&[(8, 2)]), AuthFailure::NotUsable as u8);
    assert_eq!(changed(&[(12, 9), (13, 9), (14, 9)]), AuthFailure::HashNotUsable as u8);
    assert_eq!(changed(&[(10, 0)]), AuthFailure::HashNotUsable as u8);
    assert_eq!(changed(&[(42, 1)]), AuthFailure::GroupNotUsable as u8);
    assert_eq!(changed(&[(10, 31)]), AuthFailure::IncorrectPayload as u8);
    assert_eq!(changed(&[(1, 2)]), AuthFailure::IncorrectMessage as u8);
}

#[test]
fn an_old_reply_and_a_reply_to_another_queue_are_refused() {
    let (mut auth, negotiate) = controller();
    let mut host = HostAuth::new(nqn(WITH_KEY), nqn(3), key(HOST_KEY), None, [5; 32]);
    host.next(&[]).unwrap();
    auth.send(&negotiate);
    let challenge = auth.receive();
    let Some((_, Exchange::Send(reply))) = host.next(&challenge).unwrap() else { panic!() };
    auth.send(&reply);
    assert_eq!(auth.receive()[1], 3, "success1");
    assert!(auth.is_authenticated());
    // Again on the same queue: there is a new challenge.
    auth.send(&negotiate);
    assert_ne!(auth.receive(), challenge);
    auth.send(&reply);
    assert_eq!(failure(&auth.receive()), AuthFailure::Failed as u8);
    assert!(!auth.is_authenticated());
    // On another queue.
    let mut other = ControllerAuth::new(nqn(WITH_KEY), nqn(3), key(HOST_KEY), None, [8; 32]);
    other.send(&negotiate);
    other.receive();
    other.send(&reply);
    assert_eq!(failure(&other.receive()), AuthFailure::Failed as u8);
    // Without a challenge.
    let (mut auth, _) = controller();
    auth.send(&reply);
    assert_eq!(failure(&auth.receive()), AuthFailure::IncorrectMessage as u8);
}

#[test]
fn damaged_messages_never_authenticate() {
    let (auth, negotiate) = controller();
    let mut host = HostAuth::new(nqn(WITH_KEY), nqn(3), key(HOST_KEY), None, [5; 32]);
    host.next(&[]).unwrap();
    let mut challenged = auth;
    challenged.send(&negotiate);
    let challenge = challenged.receive();
    let Some((_, Exchange::Send(reply))) = host.next(&challenge).unwrap() else { panic!() };
    let response = 16..16 + 32;
    for length in 0..reply.len() {
        let mut auth = challenged.clone();
        auth.send(&reply[..length]);
        auth.receive();
        assert!(!auth.is_authenticated(), "{length} bytes");
    }
    for bit in response.start * 8..response.end * 8 {
        let mut auth = challenged.clone();
        let mut damaged = reply.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        auth.send(&damaged);
        assert_eq!(failure(&auth.receive()), AuthFailure::Failed as u8);
        assert!(!auth.is_authenticated());
    }
}
