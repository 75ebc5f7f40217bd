//! Clients of a storage node over loopback.
//!
//! What could break: answers that reach another caller, commands that are lost or run twice when the node restarts, calls
//! that wait for ever, errors that do not say what is wrong. The node is the real one; it is ended and started again on the
//! same port.

mod common;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{PATIENCE, identity, serve, serve_at, settings, soon};
use rowmill_host::{
    Client, ConnectError, HostError, HostSettings, NamespaceDevice, NvmeUrl, Pending, Request,
};
use rowmill_io::{BLOCK_BYTES, Device, MemoryVolume, Span};
use rowmill_nvme::{BlockRange, Exchange, Host, Hosts, Key, Role, SetupError, Status, commands};
use rowmill_testkit::Rng64;

const BLOCKS: u64 = 4096;

fn read(first: u64) -> Request {
    Request {
        name: "read",
        command: commands::read(1, BlockRange { first, count: 1 }),
        exchange: Exchange::Receive(BLOCK_BYTES),
        is_repeatable: true,
    }
}

fn read_one(device: &dyn Device, block: u64) -> Vec<u8> {
    let mut content = Vec::new();
    let span = Span { offset: block * BLOCK_BYTES as u64, bytes: BLOCK_BYTES };
    device.read(&[span], &mut |_, result| content = result.unwrap().to_vec());
    content
}

fn device(url: &NvmeUrl) -> (Arc<Client>, NamespaceDevice) {
    let client = Arc::new(Client::connect(url, &settings()).unwrap());
    let device = NamespaceDevice::open(Arc::clone(&client), url).unwrap();
    (client, device)
}

#[test]
fn threads_get_their_own_answers() {
    let volume = MemoryVolume::new();
    let served = serve(&volume, BLOCKS);
    let (_client, device) = device(&served.url());
    for block in 0..256_u64 {
        device.write(block * BLOCK_BYTES as u64, &[block as u8; BLOCK_BYTES]).unwrap();
    }
    device.sync().unwrap();
    for threads in [1, 2, 8, 16] {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let device = &device;
                scope.spawn(move || {
                    let mut rng = Rng64::new(thread);
                    for _ in 0..40 {
                        let spans: Vec<Span> = (0..=rng.below(40))
                            .map(|_| Span { offset: rng.below(256) * BLOCK_BYTES as u64, bytes: BLOCK_BYTES })
                            .collect();
                        device.read(&spans, &mut |at, result| {
                            let expected = (spans[at].offset / BLOCK_BYTES as u64) as u8;
                            assert!(result.unwrap().iter().all(|&byte| byte == expected));
                        });
                    }
                });
            }
        });
    }
    served.end();
}

#[test]
fn reads_go_on_after_the_node_was_restarted() {
    let volume = MemoryVolume::new();
    let served = serve(&volume, BLOCKS);
    let (client, device) = device(&served.url());
    device.write(0, &[7; BLOCK_BYTES]).unwrap();
    device.sync().unwrap();
    let (ends, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let served = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    assert_eq!(read_one(&device, 0), [7; BLOCK_BYTES]);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut served = served;
        for _ in 0..3 {
            let before = reads.load(Ordering::Relaxed);
            while reads.load(Ordering::Relaxed) < before + 20 {
                std::thread::yield_now();
            }
            let address = served.end();
            served = serve_at(&volume, &address.to_string(), BLOCKS, Hosts::Any(Role::Write));
        }
        let before = reads.load(Ordering::Relaxed);
        while reads.load(Ordering::Relaxed) < before + 20 {
            std::thread::yield_now();
        }
        ends.store(true, Ordering::Relaxed);
        served
    });
    assert!(client.connection() >= 4, "{}", client.connection());
    served.end();
}

#[test]
fn a_write_that_was_not_flushed_before_a_reconnect_fails_the_flush() {
    let volume = MemoryVolume::new();
    let served = serve(&volume, BLOCKS);
    let url = served.url();
    let (client, device) = device(&url);
    device.write(0, &[1; BLOCK_BYTES]).unwrap();
    device.sync().unwrap();
    let restart = |served: common::Served, client: &Client| {
        let before = client.connection();
        let address = served.end();
        let served = serve_at(&volume, &address.to_string(), BLOCKS, Hosts::Any(Role::Write));
        while client.connection() == before {
            std::thread::yield_now();
        }
        served
    };
    let served = restart(served, &client);
    device.sync().expect("nothing was written since the last flush");
    device.write(0, &[2; BLOCK_BYTES]).unwrap();
    let served = restart(served, &client);
    let error = device.sync().unwrap_err().to_string();
    assert!(
        error.contains("before written blocks were flushed") && error.contains(&url.to_string()),
        "{error}"
    );
    for error in [device.write(0, &[3; BLOCK_BYTES]).unwrap_err(), device.sync().unwrap_err()] {
        assert!(error.to_string().contains("nothing is written any more"), "{error}");
    }
    NamespaceDevice::open(client, &url).unwrap().write(0, &[4; BLOCK_BYTES]).unwrap();
    served.end();
}

#[test]
fn a_command_without_an_answer_ends_at_its_deadline() {
    let served = serve(&MemoryVolume::new(), BLOCKS);
    let client = Client::connect(&served.url(), &settings()).unwrap();
    client.submit(read(0), soon()).unwrap().wait().unwrap();
    served.end();
    let started = Instant::now();
    let error = client.submit(read(0), started + Duration::from_millis(200)).and_then(Pending::wait);
    let error = error.unwrap_err();
    assert!(matches!(error, HostError::TimedOut { .. } | HostError::Lost { .. }), "{error}");
    assert!(error.to_string().contains("not connected") && started.elapsed() < PATIENCE, "{error}");
    // Commands that nothing sends fill the queues; a further caller gets an error.
    let deadline = Instant::now() + Duration::from_millis(300);
    let sent: Vec<_> = (0..64).map(|_| client.submit(read(0), deadline).unwrap()).collect();
    let error = client.submit(read(0), deadline).unwrap_err().to_string();
    assert!(error.contains("32 commands before it"), "{error}");
    drop(sent);
    client.submit(read(0), Instant::now() + PATIENCE).map(drop).unwrap();
}

#[test]
fn a_node_that_says_nothing_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url: NvmeUrl = format!("nvme+tcp://{}/nqn.x", listener.local_addr().unwrap()).parse().unwrap();
    let settings = HostSettings { connect_time: Duration::from_millis(100), ..settings() };
    let error = Client::connect(&url, &settings).unwrap_err();
    let HostError::Connect { source, .. } = &error else { panic!("{error}") };
    assert!(matches!(source, ConnectError::Silent(_)), "{error}");
    assert!(error.to_string().contains(&url.to_string()), "{error}");
}

#[test]
fn wrong_names_and_keys_are_told() {
    let key = |text: &str| text.parse::<Key>().unwrap();
    let right = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    let other = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
    let with_key = |text: &str| {
        let mut settings = settings();
        settings.identity.key = Some(key(text));
        settings
    };
    let hosts =
        Hosts::Listed(vec![Host { name: identity(7).name, role: Role::Write, key: Some(key(right)) }]);
    let served = serve_at(&MemoryVolume::new(), "127.0.0.1:0", BLOCKS, hosts);
    let url = served.url();
    let refused = |url: &NvmeUrl, settings: &HostSettings| {
        let error = Client::connect(url, settings).unwrap_err();
        assert!(error.to_string().contains(&url.to_string()), "{error}");
        let HostError::Connect { source, .. } = error else { panic!("{error}") };
        source
    };
    let client = Client::connect(&url, &with_key(right)).unwrap();
    client.submit(read(0), soon()).unwrap().wait().unwrap();
    assert!(matches!(refused(&url, &settings()), ConnectError::Setup(SetupError::NoKey)));
    assert!(matches!(refused(&url, &with_key(other)), ConnectError::Setup(SetupError::Auth(_))));
    assert!(matches!(refused(&url, &HostSettings::new(identity(8))), ConnectError::HostRefused(_)));
    let wrong = NvmeUrl { subsystem: identity(9).name, ..url.clone() };
    assert!(matches!(refused(&wrong, &settings()), ConnectError::UnknownSubsystem));
    served.end();
    assert!(matches!(refused(&url, &settings()), ConnectError::Socket(_)));
}

#[test]
fn statuses_and_absent_namespaces_are_told() {
    let hosts = Hosts::Any(Role::Read);
    let served = serve_at(&MemoryVolume::new(), "127.0.0.1:0", BLOCKS, hosts);
    let url = served.url();
    let (client, device) = device(&url);
    let error = client.submit(read(BLOCKS), soon()).unwrap().wait().unwrap_err();
    assert_eq!(error.status(), Some(Status::BLOCK_OUT_OF_RANGE));
    let error = device.write(0, &[0; BLOCK_BYTES]).unwrap_err().to_string();
    assert!(error.contains("role \"write\""), "{error}");
    let absent = NvmeUrl { namespace: Some(5), ..url.clone() };
    let error = NamespaceDevice::open(Arc::clone(&client), &absent).unwrap_err().to_string();
    assert!(error.contains("does not exist"), "{error}");
    let error = rowmill_host::Rows::open(client, &url).unwrap_err().to_string();
    assert!(error.contains("has no rows"), "{error}");
    served.end();
}
