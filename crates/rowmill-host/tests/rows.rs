//! Rows of a storage node, over loopback.
//!
//! What could break: vectors that differ from those of the store, parts of a large request at a wrong place, results of
//! another caller, requests that a restart of the node ends, errors that do not say what is wrong. Expected values come from
//! `Store::evaluate` on the store that the node serves.

mod common;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::tables::{self, DENSE_ROWS, spec};
use common::{serve_rows, serve_rows_at, settings, soon};
use rowmill_host::{Client, HostError, HostSettings, NvmeUrl, Rows};
use rowmill_nvme::{Digests, Status, VENDOR_VERSION};
use rowmill_store::{Dtype, IdBag, IdRange, Pooling, Store, Table};
use rowmill_testkit::Rng64;

/// "users" and "items" are one group; half of their ids have rows.
fn store() -> (tempfile::TempDir, Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let dense = IdRange::Dense { rows: DENSE_ROWS };
    let tables = [
        ("users", spec(24, Dtype::F32, IdRange::Sparse)),
        ("items", spec(24, Dtype::F32, dense)),
        ("words", spec(16, Dtype::Bf16, dense)),
    ];
    let store = tables::store(folder.path(), &tables);
    (folder, store)
}

fn rows(url: &NvmeUrl) -> Rows {
    Rows::open(Arc::new(Client::connect(url, &settings()).unwrap()), url).unwrap()
}

/// Features of one group with equal numbers of bags.
struct Request {
    names: Vec<&'static str>,
    ids: Vec<Vec<u64>>,
    offsets: Vec<Vec<i64>>,
    weights: Vec<Option<Vec<f32>>>,
    poolings: Vec<Pooling>,
    padding: Option<u64>,
}

impl Request {
    fn new(rng: &mut Rng64, bags: usize, ids_max: u64) -> Request {
        let names: Vec<&str> = match rng.below(3) {
            0 => vec!["words"; 1 + rng.below(3) as usize],
            _ => (0..=rng.below(5)).map(|_| if rng.one_in(2) { "users" } else { "items" }).collect(),
        };
        let mut request = Request {
            padding: rng.one_in(3).then(|| rng.below(DENSE_ROWS)),
            ids: Vec::new(),
            offsets: Vec::new(),
            weights: Vec::new(),
            poolings: Vec::new(),
            names,
        };
        for name in &request.names {
            let mut offsets = vec![0];
            for _ in 0..bags {
                offsets.push(offsets[offsets.len() - 1] + rng.below(ids_max) as i64);
            }
            let count = offsets[bags] as usize;
            // Ids of "users" need 8 bytes from time to time.
            let high = if *name == "users" && rng.one_in(2) { 1 << 40 } else { 0 };
            request.ids.push((0..count).map(|_| rng.below(DENSE_ROWS) | high).collect());
            request.poolings.push(if rng.one_in(3) { Pooling::Mean } else { Pooling::Sum });
            let has_weights = request.poolings.last() == Some(&Pooling::Sum) && rng.one_in(2);
            request
                .weights
                .push(has_weights.then(|| (0..count).map(|_| rng.below(100) as f32 / 7.0).collect()));
            request.offsets.push(offsets);
        }
        request
    }

    fn bags(&self) -> Vec<IdBag<'_>> {
        (0..self.names.len())
            .map(|at| IdBag {
                ids: &self.ids[at],
                offsets: &self.offsets[at],
                weights: self.weights[at].as_deref(),
                padding: self.padding,
                pooling: self.poolings[at],
            })
            .collect()
    }

    /// Whether a node and the store give the same bits, as fp32 and bf16.
    fn check(&self, rows: &Rows, store: &Arc<Store>) {
        let tables: Vec<Table> = self.names.iter().map(|name| store.open_table(name).unwrap()).collect();
        let dim = tables[0].spec().dim as usize;
        let stride = self.names.len() * dim;
        let count = (self.offsets[0].len() - 1) * stride;
        let here: Vec<_> = tables.iter().zip(self.bags()).collect();
        let there: Vec<_> = self.names.iter().copied().zip(self.bags()).collect();
        let (mut expected, mut found) = (vec![0_f32; count], vec![1_f32; count]);
        store.evaluate(&here, &mut expected, stride, None).unwrap();
        rows.pool(&there, dim, &mut found, stride, soon()).unwrap();
        assert!(expected.iter().map(|value| value.to_bits()).eq(found.iter().map(|value| value.to_bits())));
        let (mut expected, mut found) = (vec![0_u16; count], vec![1_u16; count]);
        store.evaluate(&here, &mut expected, stride, None).unwrap();
        rows.pool(&there, dim, &mut found, stride, soon()).unwrap();
        assert!(expected == found);
    }
}

#[test]
fn pooled_vectors_have_the_bits_of_the_store() {
    let (_folder, store) = store();
    let served = serve_rows(&store);
    let rows = rows(&served.url());
    let names: Vec<_> = rows.tables().unwrap().entries().iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(names.len(), 3);
    for threads in [1, 2, 8, 16] {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (rows, store) = (&rows, &store);
                scope.spawn(move || {
                    let mut rng = Rng64::new(thread);
                    for _ in 0..10 {
                        let bags = rng.below(20) as usize;
                        Request::new(&mut rng, bags, 12).check(rows, store);
                    }
                });
            }
        });
    }
    served.end();
}

#[test]
fn a_request_beyond_one_transfer_is_put_together() {
    let (_folder, store) = store();
    let served = serve_rows(&store);
    let rows = rows(&served.url());
    let mut rng = Rng64::new(5);
    for _ in 0..3 {
        // Some MB of ids and of vectors: parts of all features and of few bags.
        Request::new(&mut rng, 9000, 30).check(&rows, &store);
    }
    let ids: Vec<u64> = (0..60_000).map(|_| rng.below(DENSE_ROWS)).collect();
    let (users, items) = (store.open_table("users").unwrap(), store.open_table("items").unwrap());
    let (mut expected, mut found) = (vec![0_f32; 24 * 60_010], vec![1_f32; 24 * 60_010]);
    users.get(&ids, &mut expected[..24 * 60_000]).unwrap();
    items.get(&ids[..10], &mut expected[24 * 60_000..]).unwrap();
    rows.get(&[("users", &ids[..]), ("items", &ids[..10])], &mut found, soon()).unwrap();
    assert!(expected == found);
    served.end();
}

#[test]
fn requests_go_on_after_the_node_was_restarted() {
    let (_folder, store) = store();
    let disk = rowmill_io::MemoryVolume::new();
    let served = serve_rows_at(&disk, &store, "127.0.0.1:0");
    let rows = rows(&served.url());
    let (ends, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    let served = std::thread::scope(|scope| {
        for thread in 0..4 {
            let (rows, store, ends, requests) = (&rows, &store, &ends, &requests);
            scope.spawn(move || {
                let mut rng = Rng64::new(thread);
                while !ends.load(Ordering::Relaxed) {
                    Request::new(&mut rng, 10, 12).check(rows, store);
                    requests.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut served = served;
        for _ in 0..3 {
            let before = requests.load(Ordering::Relaxed);
            while requests.load(Ordering::Relaxed) < before + 10 {
                std::thread::yield_now();
            }
            let address = served.end().to_string();
            served = serve_rows_at(&disk, &store, &address);
        }
        let before = requests.load(Ordering::Relaxed);
        while requests.load(Ordering::Relaxed) < before + 10 {
            std::thread::yield_now();
        }
        ends.store(true, Ordering::Relaxed);
        served
    });
    assert!(rows.client().connection() >= 4);
    served.end();
}

#[test]
fn wrong_requests_are_told() {
    let (_folder, store) = store();
    let served = serve_rows(&store);
    let rows = rows(&served.url());
    let pool = |name: &str, ids: &[u64], offsets: &[i64], deadline| {
        let bag = IdBag { ids, offsets, weights: None, padding: None, pooling: Pooling::Sum };
        rows.pool::<f32>(&[(name, bag)], 24, &mut [0.0; 24], 24, deadline).unwrap_err()
    };
    let error = pool("absent", &[1], &[0, 1], soon());
    assert!(matches!(&error, HostError::UnknownTable { tables, .. } if tables.contains("users")), "{error}");
    let error = pool("items", &[DENSE_ROWS], &[0, 1], soon());
    assert!(error.is_argument() && error.status() == Some(Status::ID_OUT_OF_RANGE), "{error}");
    assert!(pool("users", &[1], &[0, 2], soon()).is_argument());
    let bag = IdBag { ids: &[1], offsets: &[0, 1], weights: None, padding: None, pooling: Pooling::Sum };
    let mixed =
        rows.pool::<f32>(&[("users", bag), ("words", bag)], 24, &mut [0.0; 48], 48, soon()).unwrap_err();
    assert!(mixed.to_string().contains("rows of 16 weights"), "{mixed}");
    let many = vec![1; 200_000];
    let error = pool("users", &many, &[0, 200_000], soon());
    assert!(error.to_string().contains("a bag has 200000 ids"), "{error}");
    served.end();
    let started = Instant::now();
    let error = pool("users", &[1], &[0, 1], started + Duration::from_millis(300));
    assert!(matches!(error, HostError::TimedOut { .. }) && started.elapsed() < common::PATIENCE, "{error}");
}

/// Pass what a node sends, with another version in the vendor area of Identify Controller.
fn change_version(mut node: &TcpStream, mut host: &TcpStream, version: u16) -> io::Result<()> {
    const AREA: &[u8] = b"rowmill\0";
    loop {
        let mut pdu = vec![0; 8];
        node.read_exact(&mut pdu)?;
        let bytes = u32::from_le_bytes(pdu[4..8].try_into().unwrap());
        pdu.resize(bytes as usize, 0);
        node.read_exact(&mut pdu[8..])?;
        if let Some(at) = pdu.windows(AREA.len()).position(|window| window == AREA) {
            pdu[at + AREA.len()..][..2].copy_from_slice(&version.to_le_bytes());
        }
        host.write_all(&pdu)?;
    }
}

#[test]
fn a_node_of_another_version_is_refused_with_both_versions() {
    let (_folder, store) = store();
    let served = serve_rows(&store);
    for (version, newer) in [(VENDOR_VERSION - 1, "the node"), (VENDOR_VERSION + 1, "this host")] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nvme+tcp://{}/{}", listener.local_addr().unwrap(), served.name);
        let url: NvmeUrl = url.parse().unwrap();
        let address = served.address;
        std::thread::spawn(move || {
            for host in listener.incoming() {
                let (host, node) = (host.unwrap(), TcpStream::connect(address).unwrap());
                let (from_host, to_node) = (host.try_clone().unwrap(), node.try_clone().unwrap());
                std::thread::spawn(move || io::copy(&mut &from_host, &mut &to_node));
                std::thread::spawn(move || change_version(&node, &host, version));
            }
        });
        // The changed bytes have no digest then.
        let settings = HostSettings { digests: Digests { header: true, data: false }, ..settings() };
        let error = Rows::open(Arc::new(Client::connect(&url, &settings).unwrap()), &url).unwrap_err();
        let expected = format!(
            "has version {version} of the commands on rows, and this host has version {VENDOR_VERSION}: install a newer \
             rowmill on {newer}"
        );
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
    served.end();
}

#[test]
fn bags_beside_damaged_rows_are_answered() {
    let (folder, store) = store();
    let (store, damaged) = tables::damage(store, folder.path(), "words", 500);
    let served = serve_rows(&store);
    let rows = rows(&served.url());
    let intact: Vec<u64> = (0..DENSE_ROWS).step_by(2).filter(|id| !damaged.contains(id)).collect();
    // Some MB, so that there are many parts. Bags 700 and 5000 of the second feature have a damaged row.
    let bags = 6000;
    let bad = [700, 5000];
    let first: Vec<u64> = (0..bags * 3).map(|at| intact[at * 7 % intact.len()]).collect();
    let mut second = first.clone();
    for (&bag, &id) in bad.iter().zip(damaged.iter().cycle()) {
        second[bag * 3 + 1] = id;
    }
    let offsets: Vec<i64> = (0..=bags as i64).map(|bag| bag * 3).collect();
    let bag = |ids| IdBag { ids, offsets: &offsets, weights: None, padding: None, pooling: Pooling::Sum };
    let asked = [("words", bag(&first)), ("words", bag(&second))];
    let mut found = vec![0_f32; bags * 32];
    let error = rows.pool(&asked, 16, &mut found, 32, soon()).unwrap_err();
    let HostError::Unreadable { table, vectors, .. } = &error else { panic!("{error}") };
    assert_eq!((table.as_str(), &vectors[..]), ("words", &bad.map(|bag| (1, bag))[..]));
    assert!(error.to_string().contains("2 vectors") && error.to_string().contains("error log"), "{error}");
    let words = store.open_table("words").unwrap();
    let mut expected = vec![0_f32; bags * 16];
    store.evaluate(&[(&words, bag(&first))], &mut expected, 16, None).unwrap();
    for (at, (row, expected)) in found.chunks(32).zip(expected.chunks(16)).enumerate() {
        assert_eq!(&row[..16], expected, "bag {at}");
        if bad.contains(&at) {
            assert!(row[16..].iter().all(|value| value.is_nan()), "bag {at}");
        } else {
            assert_eq!(&row[16..], expected, "bag {at}");
        }
    }
    // Rows of ids, too.
    let ids = [intact[0], damaged[0], intact[1]];
    let mut found = vec![0_u16; 48];
    let error = rows.get(&[("words", &ids[..])], &mut found, soon()).unwrap_err();
    assert!(matches!(&error, HostError::Unreadable { vectors, .. } if vectors[..] == [(0, 1)]), "{error}");
    assert_eq!(found[16..32], [u16::MAX; 16]);
    let mut expected = vec![0_u16; 16];
    let one =
        IdBag { ids: &[intact[1]], offsets: &[0, 1], weights: None, padding: None, pooling: Pooling::Sum };
    store.evaluate(&[(&words, one)], &mut expected, 16, None).unwrap();
    assert_eq!(found[32..], expected);
    served.end();
}
