//! A subsystem: its namespaces, and the hosts that may connect.

use super::Namespace;
use crate::auth::Key;
use crate::command::Nqn;
use crate::vendor::VendorArea;

/// The rights of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read blocks, pool rows.
    Read,
    /// Also write blocks and apply fills and feeds.
    Write,
}

/// A host that may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: Nqn,
    /// Its rights.
    pub role: Role,
    /// The key that it must prove.
    pub key: Option<Key>,
}

/// The hosts that may connect to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Every host, with one role.
    Any(Role),
    /// These hosts.
    Listed(Vec<Host>),
}

impl Hosts {
    /// The role and the key of a host that may connect.
    pub(crate) fn find(&self, name: &Nqn) -> Option<(Role, Option<&Key>)> {
        match self {
            Hosts::Any(role) => Some((*role, None)),
            Hosts::Listed(hosts) => {
                let host = hosts.iter().find(|host| host.name == *name)?;
                Some((host.role, host.key.as_ref()))
            }
        }
    }
}

/// A set of namespaces that hosts connect to by name.
#[derive(Clone, Debug)]
pub struct Subsystem {
    /// Its name, which stays with the data.
    pub name: Nqn,
    /// A serial number, at most 20 characters.
    pub serial: String,
    /// Version of the program, at most 8 characters.
    pub firmware: String,
    /// Its namespaces. Numbers are distinct.
    pub namespaces: Vec<Namespace>,
    /// Its hosts.
    pub hosts: Hosts,
    /// The key that its controllers prove to hosts with a key that ask for it.
    pub key: Option<Key>,
    /// Limits of the commands on rows; none, if no namespace holds rows.
    pub area: Option<VendorArea>,
    /// Most I/O queues of one controller.
    pub io_queues_max: u16,
    /// Most entries of an I/O queue.
    pub io_queue_entries_max: u16,
}

impl Subsystem {
    /// The namespace of a number.
    pub fn namespace(&self, number: u32) -> Option<&Namespace> {
        self.namespaces.iter().find(|namespace| namespace.number == number)
    }
}
