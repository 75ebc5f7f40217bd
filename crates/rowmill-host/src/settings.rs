//! Settings of a client: the names and keys by which it authenticates, and its limits.

use std::fs;
use std::io;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use rowmill_nvme::{Digests, HostIdentity, Nqn};

/// The identity of a client, and its limits.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// Name, UUID and keys of this host.
    pub identity: HostIdentity,
    /// Checksums of all bytes on the wire. Both by default.
    pub digests: Digests,
    /// Number of I/O queues; each has its own TCP connection.
    pub io_queues: u16,
    /// Most commands at a time of one I/O queue: at least 2. Their data is in memory: up to 512 KiB each.
    pub commands_max: usize,
    /// The node drops this host when it hears nothing for so long, and this host the node: at least 1 ms.
    pub keep_alive: Duration,
    /// A connection is closed if a command has no answer for this time.
    pub command_time: Duration,
    /// Time to connect and authenticate.
    pub connect_time: Duration,
    /// The wait between attempts to reconnect starts at 50 ms and doubles up to this.
    pub reconnect_wait_max: Duration,
}

/// Where nvme-cli keeps name and UUID of a machine.
const NAME_FILE: &str = "/etc/nvme/hostnqn";
const ID_FILE: &str = "/etc/nvme/hostid";

impl HostSettings {
    /// The settings of a host with this identity.
    pub fn new(identity: HostIdentity) -> HostSettings {
        HostSettings {
            identity,
            digests: Digests { header: true, data: true },
            io_queues: 2,
            commands_max: 32,
            keep_alive: Duration::from_secs(5),
            command_time: Duration::from_secs(30),
            connect_time: Duration::from_secs(5),
            reconnect_wait_max: Duration::from_secs(1),
        }
    }

    /// The settings of this machine: name and UUID from `/etc/nvme`, else new ones for this call. There are no keys.
    ///
    /// # Errors
    ///
    /// When a file cannot be read, holds no name, or the system gives no random numbers.
    pub fn of_machine() -> io::Result<HostSettings> {
        let mut id = [0; 16];
        SystemRandom::new().fill(&mut id).map_err(|_| io::Error::other("no random numbers"))?;
        let name = match read(NAME_FILE)? {
            Some(text) => text.parse().map_err(|error| io::Error::other(format!("{NAME_FILE}: {error}")))?,
            None => Nqn::from_uuid(id),
        };
        if let Some(text) = read(ID_FILE)? {
            id = parse_uuid(&text)
                .ok_or_else(|| io::Error::other(format!("{ID_FILE}: {text:?} is no UUID")))?;
        }
        Ok(HostSettings::new(HostIdentity { name, id, key: None, controller_key: None }))
    }
}

fn read(path: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
    }
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits = text.replace('-', "");
    let is_hex = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_read_as_nvme_cli_writes_them() {
        let id = parse_uuid("001132ff-4142-4344-4546-4748494a0102").unwrap();
        assert_eq!(
            Nqn::from_uuid(id).as_str(),
            "nqn.2014-08.org.nvmexpress:uuid:001132ff-4142-4344-4546-4748494a0102"
        );
        for text in ["", "001132ff", "+01132ff-4142-4344-4546-4748494a0102"] {
            assert_eq!(parse_uuid(text), None);
        }
    }
}
