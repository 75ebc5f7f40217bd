//! A storage node of blocks or rows on loopback, which tests end and start again on the same port.

#![allow(dead_code, reason = "each test program uses a part")]

#[path = "../../../rowmill-storage-node/tests/common/tables.rs"]
pub(crate) mod tables;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_host::{HostSettings, NvmeUrl};
use rowmill_io::{MemoryVolume, Volume};
use rowmill_nvme::{HostIdentity, Hosts, Nqn, Role};
use rowmill_server::{Exposure, Server, bind_tcp};
use rowmill_storage_node::{Export, ExportContent, Node, RowsLimits};
use rowmill_store::Store;

/// No test waits longer for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}

pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) name: Nqn,
    server: Option<Server>,
}

/// A node of blocks at an address; port 0 is a free one.
pub(crate) fn serve_at(volume: &dyn Volume, address: &str, blocks: u64, hosts: Hosts) -> Served {
    serve_export(volume, address, ExportContent::Blocks(blocks), hosts)
}

/// A node of the rows of a store at an address.
pub(crate) fn serve_rows_at(volume: &dyn Volume, store: &Arc<Store>, address: &str) -> Served {
    let limits = RowsLimits { staged_bytes_max: 8 << 20, ..RowsLimits::default() };
    serve_export(volume, address, ExportContent::Store(Arc::clone(store), limits), Hosts::Any(Role::Write))
}

pub(crate) fn serve_rows(store: &Arc<Store>) -> Served {
    serve_rows_at(&MemoryVolume::new(), store, "127.0.0.1:0")
}

fn serve_export(volume: &dyn Volume, address: &str, content: ExportContent, hosts: Hosts) -> Served {
    let server = Server::start(2).unwrap();
    let listener = {
        let _inside = server.handle().enter();
        bind_tcp(address, Exposure::Loopback).unwrap()
    };
    let address = listener.local_addr().unwrap();
    let export = Export { volume, content, hosts, key: None };
    // Room for about 40 connections.
    let node = Arc::new(Node::open(vec![export], address, 192 << 20, 1).unwrap());
    let name = node.names().next().unwrap().clone();
    server.handle().spawn(node.serve(listener, server.drain().clone()));
    Served { address, name, server: Some(server) }
}

pub(crate) fn serve(volume: &dyn Volume, blocks: u64) -> Served {
    serve_at(volume, "127.0.0.1:0", blocks, Hosts::Any(Role::Write))
}

impl Served {
    pub(crate) fn url(&self) -> NvmeUrl {
        format!("nvme+tcp://{}/{}", self.address, self.name).parse().unwrap()
    }

    /// End the node: its connections are closed, whatever runs on them.
    pub(crate) fn end(mut self) -> SocketAddr {
        let server = self.server.take().unwrap();
        server.drain().start();
        server.run(PATIENCE).unwrap();
        self.address
    }
}

pub(crate) fn identity(number: u8) -> HostIdentity {
    HostIdentity { name: Nqn::from_uuid([number; 16]), id: [number; 16], key: None, controller_key: None }
}

pub(crate) fn settings() -> HostSettings {
    HostSettings::new(identity(7))
}
