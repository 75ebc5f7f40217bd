//! Settings of a node: a TOML file, checked before anything is opened.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rowmill_nvme::{Host, Hosts, Key, Nqn, Role};
use rowmill_server::{SettingsError, read_settings};
use serde::Deserialize;

use crate::size::Size;
use crate::wire_memory;

/// Settings of a node, as its file has them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSettings {
    /// Where hosts connect: `HOST:PORT`.
    #[serde(default = "default_listen")]
    pub listen: String,
    /// The address that discovery tells hosts, if it is another one than that of `listen`.
    pub discovery_address: Option<IpAddr>,
    /// Where `/metrics` and `/healthz` are, on loopback: `HOST:PORT`.
    #[serde(default = "default_metrics")]
    pub metrics: String,
    /// Memory of everything but stores: connections, commands, answers, staged results.
    #[serde(default = "default_wire_memory")]
    pub wire_memory: Size,
    /// Threads that wait for sockets.
    #[serde(default = "default_network_threads")]
    pub network_threads: usize,
    /// Threads that pool rows: by default one for each core.
    #[serde(default = "default_pooling_threads")]
    pub pooling_threads: usize,
    /// Seconds for open commands after SIGTERM.
    #[serde(default = "default_drain")]
    pub drain: f64,
    /// Level of the log: error, warn, info, debug, trace or off.
    #[serde(default = "default_log_level")]
    pub log_level: String,
    /// What hosts connect to, one for each tenant.
    #[serde(default, rename = "subsystem")]
    pub subsystems: Vec<SubsystemSettings>,
}

/// One subsystem: a namespace in a folder, and the hosts that may use it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubsystemSettings {
    /// Folder of the data and of the names that hosts know it by. It is made if it does not exist.
    pub folder: PathBuf,
    /// A namespace of blocks: its size.
    pub blocks: Option<Size>,
    /// A namespace of blocks: the block device whose blocks they are.
    pub disk: Option<PathBuf>,
    /// A namespace of rows: the store, which no other process may write to.
    pub store: Option<PathBuf>,
    /// A namespace of rows that hosts fill, in `folder`.
    #[serde(default)]
    pub filled: bool,
    /// Of a namespace of rows: memory of the store, 256 MiB by default. A quarter of it is for the next fill, where hosts
    /// fill it.
    pub memory: Option<Size>,
    /// Of rows that hosts fill: seconds between checkpoints, while frames of a feed come. 30 by default.
    pub checkpoint: Option<f64>,
    /// Of a namespace of rows: most bytes of staged results, and of ids that wait, of all its hosts. 16 MiB by default.
    pub staged: Option<Size>,
    /// Of a namespace of rows: most rows looked up per second, of all its hosts.
    pub lookups_per_second: Option<NonZeroU64>,
    /// Every host may connect, as `read` or `write`. Only on loopback, and only if no host is listed.
    pub any_host: Option<RoleSetting>,
    /// The hosts that may connect.
    #[serde(default, rename = "host")]
    pub hosts: Vec<HostSettings>,
    /// File with the key that the node proves to hosts that ask for it.
    pub key_file: Option<PathBuf>,
}

/// A host that may connect.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSettings {
    /// The name of the host.
    pub nqn: String,
    /// What it may do.
    pub role: RoleSetting,
    /// File with the key that the host must prove.
    pub key_file: Option<PathBuf>,
}

/// What a host may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleSetting {
    /// Read blocks, pool rows.
    Read,
    /// Also write blocks and apply fills and feeds.
    Write,
}

impl From<RoleSetting> for Role {
    fn from(role: RoleSetting) -> Role {
        match role {
            RoleSetting::Read => Role::Read,
            RoleSetting::Write => Role::Write,
        }
    }
}

fn default_listen() -> String {
    "127.0.0.1:4420".into()
}
fn default_metrics() -> String {
    "127.0.0.1:9420".into()
}
fn default_wire_memory() -> Size {
    Size(256 << 20)
}
fn default_network_threads() -> usize {
    2
}
fn default_pooling_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
fn default_drain() -> f64 {
    30.0
}
fn default_log_level() -> String {
    "info".into()
}

const MEMORY: Size = Size(256 << 20);
/// Least memory of rows that hosts fill: a store has 16 MiB at least.
const MEMORY_FILLED_MIN: Size = Size(64 << 20);
const CHECKPOINT_SECONDS: f64 = 30.0;
const STAGED: Size = Size(16 << 20);
/// The ids of one command and its result, each of the size of a transfer.
const STAGED_MIN: Size = Size(1 << 20);

/// Why a node cannot be set up from its settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The file cannot be read, or a setting is unknown, missing or of another type.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A setting has a value that is not allowed.
    #[error("{field} is {value}: {fix}")]
    Value {
        /// The setting.
        field: String,
        /// Its value.
        value: String,
        /// Why it is not allowed, and what is.
        fix: String,
    },
}

fn wrong(field: impl Into<String>, value: impl std::fmt::Debug, fix: impl Into<String>) -> SetupError {
    SetupError::Value { field: field.into(), value: format!("{value:?}"), fix: fix.into() }
}

impl NodeSettings {
    /// Read and check a settings file. Paths are relative to the folder of the file.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn read(file: &Path) -> Result<NodeSettings, SetupError> {
        let mut settings: NodeSettings = read_settings(Some(file), toml::Table::new())?;
        let base = file.parent().unwrap_or(Path::new(""));
        for subsystem in &mut settings.subsystems {
            subsystem.folder = base.join(&subsystem.folder);
            let keys = subsystem.hosts.iter_mut().map(|host| &mut host.key_file);
            for path in
                keys.chain([&mut subsystem.key_file, &mut subsystem.store, &mut subsystem.disk]).flatten()
            {
                *path = base.join(&*path);
            }
        }
        settings.check()?;
        Ok(settings)
    }

    /// Whether other machines can connect.
    pub(crate) fn is_exposed(&self) -> Result<bool, SetupError> {
        Ok(!is_loopback(&resolved("listen", &self.listen)?))
    }

    fn check(&self) -> Result<(), SetupError> {
        if !(1..=256).contains(&self.network_threads) {
            return Err(wrong("network_threads", self.network_threads, "set 1 to 256 threads"));
        }
        if !(1..=256).contains(&self.pooling_threads) {
            return Err(wrong("pooling_threads", self.pooling_threads, "set 1 to 256 threads"));
        }
        if Duration::try_from_secs_f64(self.drain).is_err() {
            return Err(wrong("drain", self.drain, "set a number of seconds, 0 or more"));
        }
        if self.wire_memory.0 < wire_memory::BYTES_MIN {
            let fix = format!("set at least {}, which has room for one host", Size(wire_memory::BYTES_MIN));
            return Err(wrong("wire_memory", self.wire_memory, fix));
        }
        if self.subsystems.is_empty() {
            return Err(wrong("subsystem", "empty", "add a [[subsystem]] with the folder of its data"));
        }
        let is_exposed = self.is_exposed()?;
        let is_everywhere =
            resolved("listen", &self.listen)?.iter().any(|address| address.ip().is_unspecified());
        if is_everywhere && self.discovery_address.is_none() {
            let fix =
                "discovery must tell hosts one address: set discovery_address, or listen at that address";
            return Err(wrong("listen", &self.listen, fix));
        }
        if !is_loopback(&resolved("metrics", &self.metrics)?) {
            let fix = "metrics are neither encrypted nor authenticated; use an address of loopback, such as \
                       127.0.0.1:9420";
            return Err(wrong("metrics", &self.metrics, fix));
        }
        let mut folders = HashSet::new();
        for (number, subsystem) in self.subsystems.iter().enumerate() {
            let field = |name: &str| format!("subsystem[{number}].{name}");
            if !folders.insert(&subsystem.folder) {
                let fix = "another subsystem has the same folder; give each its own";
                return Err(wrong(field("folder"), &subsystem.folder, fix));
            }
            subsystem.check(number, is_exposed.then_some(&self.listen))?;
        }
        let staged = self.subsystems.iter().filter(|subsystem| !subsystem.has_blocks());
        let staged: u64 = staged.map(|subsystem| subsystem.staged().0).fold(0, u64::saturating_add);
        let staged_max = wire_memory::staged_bytes_max(self.wire_memory.0);
        if staged > staged_max {
            let fix = format!(
                "a quarter of it, {}, is for staged results, and the subsystems have staged = {} together",
                Size(staged_max),
                Size(staged)
            );
            return Err(wrong("wire_memory", self.wire_memory, fix));
        }
        Ok(())
    }
}

fn resolved(field: &str, address: &str) -> Result<Vec<SocketAddr>, SetupError> {
    let resolved = address.to_socket_addrs();
    let unknown = |error| wrong(field, address, format!("{error}; write HOST:PORT, such as 127.0.0.1:4420"));
    Ok(resolved.map_err(unknown)?.collect())
}

fn is_loopback(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().is_loopback())
}

impl SubsystemSettings {
    /// `exposed` is the address of the node, if other machines reach it.
    fn check(&self, number: usize, exposed: Option<&String>) -> Result<(), SetupError> {
        let field = |name: &str| format!("subsystem[{number}].{name}");
        let kinds = [
            ("blocks", self.blocks.is_some()),
            ("disk", self.disk.is_some()),
            ("store", self.store.is_some()),
            ("filled", self.filled),
        ];
        let kinds: Vec<&str> = kinds.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect();
        let &[kind] = &kinds[..] else {
            let found = if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(" and ") };
            let fix = "set one of blocks (the size of a namespace of blocks), disk (a block device), store (a folder \
                       of rows that do not change) and filled = true (rows that hosts fill)";
            return Err(wrong(format!("the content of subsystem[{number}]"), found, fix));
        };
        let of_blocks = self.has_blocks();
        let unused = [
            ("memory", self.memory.filter(|_| of_blocks).map(|size| size.to_string())),
            ("staged", self.staged.filter(|_| of_blocks).map(|size| size.to_string())),
            (
                "lookups_per_second",
                self.lookups_per_second.filter(|_| of_blocks).map(|rows| rows.to_string()),
            ),
            ("checkpoint", self.checkpoint.filter(|_| !self.filled).map(|seconds| seconds.to_string())),
        ];
        if let Some((name, Some(value))) = unused.into_iter().find(|(_, value)| value.is_some()) {
            return Err(wrong(field(name), value, format!("it has no effect beside {kind}; remove it")));
        }
        if let Some(blocks) = self.blocks
            && (blocks.0 == 0 || !blocks.0.is_multiple_of(crate::BLOCK_BYTES))
        {
            let fix = "set the size of the namespace, a multiple of 4KiB above 0";
            return Err(wrong(field("blocks"), blocks, fix));
        }
        if Duration::try_from_secs_f64(self.checkpoint()).is_err() {
            return Err(wrong(field("checkpoint"), self.checkpoint(), "set a number of seconds, 0 or more"));
        }
        if self.filled && self.memory() < MEMORY_FILLED_MIN {
            let fix = format!("set at least {MEMORY_FILLED_MIN}: a quarter of it is for the next fill");
            return Err(wrong(field("memory"), self.memory(), fix));
        }
        if self.staged() < STAGED_MIN {
            let fix = format!("set at least {STAGED_MIN}, which has room for the largest command");
            return Err(wrong(field("staged"), self.staged(), fix));
        }
        match (self.any_host, self.hosts.is_empty()) {
            (Some(_), false) => {
                let fix = "remove it, or the list of hosts";
                return Err(wrong(field("any_host"), self.any_host, fix));
            }
            (None, true) => {
                let fix = "list hosts with [[subsystem.host]], or set any_host to \"read\" or \"write\"";
                return Err(wrong(field("host"), "empty", fix));
            }
            _ => (),
        }
        let keyless = self.hosts.iter().find(|host| host.key_file.is_none()).map(|host| host.nqn.as_str());
        if let Some(address) = exposed
            && let Some(host) = keyless.or(self.any_host.map(|_| "any host"))
        {
            let fix = format!(
                "{host} has no key: listen on loopback, or give each host a key_file (nvme gen-dhchap-key)"
            );
            return Err(wrong("listen", address, fix));
        }
        let mut names = HashSet::new();
        for host in &self.hosts {
            if let Err(error) = host.nqn.parse::<Nqn>() {
                return Err(wrong(field("host.nqn"), &host.nqn, error.to_string()));
            }
            if !names.insert(&host.nqn) {
                return Err(wrong(
                    field("host.nqn"),
                    &host.nqn,
                    "the host is listed twice; remove one entry",
                ));
            }
        }
        if let Some(file) = &self.key_file
            && keyless.is_some()
        {
            let fix =
                "hosts without a key cannot ask for the node's; give each host a key_file, or remove this";
            return Err(wrong(field("key_file"), file, fix));
        }
        Ok(())
    }

    fn has_blocks(&self) -> bool {
        self.blocks.is_some() || self.disk.is_some()
    }

    pub(crate) fn memory(&self) -> Size {
        self.memory.unwrap_or(MEMORY)
    }

    pub(crate) fn checkpoint(&self) -> f64 {
        self.checkpoint.unwrap_or(CHECKPOINT_SECONDS)
    }

    pub(crate) fn staged(&self) -> Size {
        self.staged.unwrap_or(STAGED)
    }

    /// The hosts that may connect, with their keys. `number` is that of this subsystem.
    pub(crate) fn access(&self, number: usize) -> Result<Hosts, SetupError> {
        if let Some(role) = self.any_host {
            return Ok(Hosts::Any(role.into()));
        }
        let listed = self.hosts.iter().map(|host| {
            let field = |name: &str| format!("subsystem[{number}].host.{name}");
            let name =
                host.nqn.parse::<Nqn>().map_err(|error| wrong(field("nqn"), &host.nqn, error.to_string()))?;
            let key = host.key_file.as_deref().map(|file| read_key(&field("key_file"), file)).transpose()?;
            Ok(Host { name, role: host.role.into(), key })
        });
        Ok(Hosts::Listed(listed.collect::<Result<_, SetupError>>()?))
    }

    /// The key of the node itself.
    pub(crate) fn key(&self, number: usize) -> Result<Option<Key>, SetupError> {
        let field = format!("subsystem[{number}].key_file");
        self.key_file.as_deref().map(|file| read_key(&field, file)).transpose()
    }
}

fn read_key(field: &str, file: &Path) -> Result<Key, SetupError> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        wrong(field, file, format!("{error}; name a file with a key that nvme gen-dhchap-key printed"))
    })?;
    let others = file.metadata().map_or(0, |metadata| metadata.mode()) & 0o077;
    if others != 0 {
        tracing::warn!(field, file = %file.display(), "other users can read or change a key: chmod 600 the file");
    }
    text.trim().parse().map_err(|error: rowmill_nvme::KeyError| wrong(field, file, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<NodeSettings, SetupError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.toml");
        std::fs::write(&file, text).unwrap();
        NodeSettings::read(&file)
    }

    const EXPOSED: &str = "listen = '0.0.0.0:4420'\ndiscovery_address = '192.0.2.1'\n";
    const DISK: &str = "[[subsystem]]\nfolder = 'disk'\nblocks = '1GiB'\nany_host = 'write'\n";

    #[test]
    fn paths_are_relative_to_the_file() {
        let settings = read(DISK).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:4420");
        assert!(
            settings.subsystems[0].folder.is_absolute() && settings.subsystems[0].folder.ends_with("disk")
        );
        assert_eq!(settings.subsystems[0].access(0).unwrap(), Hosts::Any(Role::Write));
    }

    #[test]
    fn errors_name_field_value_and_fix() {
        let disk = |line: &str| format!("{DISK}{line}\n");
        let host = "[[subsystem.host]]\nnqn = 'nqn.2014-08.org.nvmexpress:uuid:\
                    001132ff-4142-4344-4546-4748494a0102'\nrole = 'read'\n";
        let listed = DISK.replace("any_host = 'write'\n", host);
        for (text, parts) in [
            ("", ["subsystem", "[[subsystem]]"]),
            (&format!("{EXPOSED}{DISK}"), ["listen", "key_file"]),
            (&format!("{EXPOSED}{listed}"), ["001132ff", "key_file"]),
            (&format!("listen = '0.0.0.0:4420'\n{DISK}"), ["listen", "discovery_address"]),
            (&format!("listen = 'nowhere'\n{DISK}"), ["listen", "HOST:PORT"]),
            (&format!("metrics = '0.0.0.0:0'\n{DISK}"), ["metrics", "0.0.0.0:0"]),
            (&format!("wire_memory = '1MiB'\n{DISK}"), ["wire_memory", "1MiB"]),
            (&format!("wire_memory = 'much'\n{DISK}"), ["wire_memory", "much"]),
            (&format!("network_threads = 0\n{DISK}"), ["network_threads", "1 to 256"]),
            (&format!("drain = -1.0\n{DISK}"), ["drain", "-1"]),
            (&disk("colour = 'blue'"), ["colour", "unknown"]),
            (&format!("pooling_threads = 0\n{DISK}"), ["pooling_threads", "1 to 256"]),
            (&disk("store = 'rows'"), ["the content of subsystem[0]", "\"blocks and store\""]),
            (&disk("disk = '/dev/sdb'"), ["the content of subsystem[0]", "\"blocks and disk\""]),
            (&DISK.replace("blocks = '1GiB'\n", ""), ["the content of subsystem[0]", "\"nothing\""]),
            (&DISK.replace("blocks = '1GiB'", "store = 'rows'\nstaged = '1GiB'"), ["wire_memory", "1GiB"]),
            (
                &DISK.replace("blocks = '1GiB'", "filled = true\ncheckpoint = -2.5"),
                ["subsystem[0].checkpoint", "-2.5"],
            ),
            (
                &DISK.replace("blocks = '1GiB'", "store = 'rows'\ncheckpoint = 5.0"),
                ["subsystem[0].checkpoint", "beside store"],
            ),
            (&disk("memory = '1GiB'"), ["subsystem[0].memory", "beside blocks"]),
            (&disk("staged = '8MiB'"), ["subsystem[0].staged", "beside blocks"]),
            (&disk("lookups_per_second = 5"), ["subsystem[0].lookups_per_second", "beside blocks"]),
            (&DISK.replace("blocks = '1GiB'", "store = 'rows'\nstaged = 0"), ["subsystem[0].staged", "1MiB"]),
            (&disk("filled = true"), ["the content of subsystem[0]", "\"blocks and filled\""]),
            (
                &DISK.replace("blocks = '1GiB'", "filled = true\nmemory = '32MiB'"),
                ["subsystem[0].memory", "32MiB"],
            ),
            (&DISK.replace("1GiB", "5KiB"), ["subsystem[0].blocks", "5KiB"]),
            (&DISK.replace("any_host = 'write'", ""), ["subsystem[0].host", "any_host"]),
            (&DISK.replace("'write'", "'all'"), ["any_host", "all"]),
            (&disk(host), ["subsystem[0].any_host", "list of hosts"]),
            (&format!("{DISK}{DISK}"), ["subsystem[1].folder", "its own"]),
            (&listed.replace("nqn.2014", "name.2014"), ["subsystem[0].host.nqn", "name.2014"]),
            (&format!("{listed}{host}"), ["subsystem[0].host.nqn", "twice"]),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}\n{error}");
        }
    }

    #[test]
    fn a_key_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("host.key");
        assert!(read_key("host.key_file", &file).unwrap_err().to_string().contains("host.key"));
        std::fs::write(&file, "no key").unwrap();
        assert!(read_key("host.key_file", &file).unwrap_err().to_string().contains("DHHC-1"));
        std::fs::write(&file, "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:\n").unwrap();
        read_key("host.key_file", &file).unwrap();
    }
}
