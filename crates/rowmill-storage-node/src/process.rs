//! A process that is a storage node: what its settings say, put together.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use rowmill_io::{DirectoryVolume, IoChoice, open_disk};
use rowmill_server::{Exposure, ListenError, LogError, Server, ServerError, bind_tcp, router, start_logs};
use rowmill_store::{Store, StoreOptions};

use crate::metrics::Exposition;
use crate::settings::{NodeSettings, SetupError, SubsystemSettings};
use crate::{BLOCK_BYTES, Export, ExportContent, FilledOptions, Node, NodeError, RowsLimits};

/// Why a node cannot start or end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// A setting is wrong.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The level of the log is unknown.
    #[error("log_level: {0}")]
    Log(#[from] LogError),
    /// An address cannot be listened at.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The data of a subsystem cannot be opened.
    #[error("{field} is {path:?}: {cause}")]
    Data {
        /// The setting.
        field: String,
        /// Its value.
        path: PathBuf,
        /// What is wrong there.
        cause: Box<NodeError>,
    },
    /// The data cannot be opened.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The runtime failed, or work was left at the deadline of the drain.
    #[error(transparent)]
    Server(#[from] ServerError),
}

fn data_error(number: usize, name: &str, path: &Path, cause: impl Into<NodeError>) -> ProcessError {
    let field = format!("subsystem[{number}].{name}");
    ProcessError::Data { field, path: path.to_owned(), cause: Box::new(cause.into()) }
}

/// Open the data of a subsystem.
fn content(
    number: usize,
    subsystem: &SubsystemSettings,
    threads: usize,
) -> Result<ExportContent, ProcessError> {
    let limits = RowsLimits {
        staged_bytes_max: subsystem.staged().0,
        lookups_per_second: subsystem.lookups_per_second.map(NonZeroU64::get),
        ..RowsLimits::default()
    };
    let memory = subsystem.memory().0;
    if let Some(store) = &subsystem.store {
        let options =
            StoreOptions { memory, threads, create: false, read_only: true, ..StoreOptions::default() };
        let opened =
            Store::open(store, options).map_err(|error| data_error(number, "store", store, error))?;
        return Ok(ExportContent::Store(opened, limits));
    }
    if subsystem.filled {
        let (folder, fill_memory) = (subsystem.folder.clone(), memory / 4);
        let save_every = Duration::try_from_secs_f64(subsystem.checkpoint()).unwrap_or(Duration::MAX);
        let options =
            FilledOptions { folder, memory: memory - fill_memory, fill_memory, threads, save_every };
        return Ok(ExportContent::Filled(options, limits));
    }
    if let Some(disk) = &subsystem.disk {
        let opened =
            open_disk(disk, IoChoice::Auto).map_err(|error| data_error(number, "disk", disk, error))?;
        return Ok(ExportContent::Disk(opened));
    }
    Ok(ExportContent::Blocks(subsystem.blocks.map_or(0, |size| size.0) / BLOCK_BYTES))
}

/// A node with its sockets. Dropping it closes them.
#[derive(Debug)]
pub struct Process {
    server: Server,
    drain: Duration,
    /// URLs of the subsystems, in the order of the settings.
    pub urls: Vec<String>,
    /// Where `/metrics` is.
    pub metrics: String,
}

impl Process {
    /// Start to log, open the data and listen. From here on the process must not fork.
    ///
    /// # Errors
    ///
    /// See [`ProcessError`].
    pub fn start(settings: &NodeSettings) -> Result<Process, ProcessError> {
        start_logs(&settings.log_level)?;
        let subsystems = || settings.subsystems.iter().enumerate();
        let folders = subsystems().map(|(number, subsystem)| {
            DirectoryVolume::create(&subsystem.folder, IoChoice::Auto)
                .map_err(|error| data_error(number, "folder", &subsystem.folder, error))
        });
        let folders = folders.collect::<Result<Vec<_>, _>>()?;
        let exports = subsystems().zip(&folders).map(|((number, subsystem), folder)| {
            let (hosts, key) = (subsystem.access(number)?, subsystem.key(number)?);
            let content = content(number, subsystem, settings.pooling_threads)?;
            Ok(Export { volume: folder, content, hosts, key })
        });
        let exports = exports.collect::<Result<Vec<_>, ProcessError>>()?;
        let server = Server::start(settings.network_threads)?;
        let (listener, metrics) = {
            let _inside = server.handle().enter();
            // The settings demand keys where other machines reach the node.
            let exposure = if settings.is_exposed()? { Exposure::Authenticated } else { Exposure::Loopback };
            (bind_tcp(&settings.listen, exposure)?, bind_tcp(&settings.metrics, Exposure::Loopback)?)
        };
        let system = |address: &str, cause| ListenError::System { address: address.into(), cause };
        let address = listener.local_addr().map_err(|cause| system(&settings.listen, cause))?;
        let metrics_at = metrics.local_addr().map_err(|cause| system(&settings.metrics, cause))?;
        let mut told = address;
        if let Some(ip) = settings.discovery_address {
            told.set_ip(ip);
        }
        let node = Arc::new(Node::open(exports, told, settings.wire_memory.0, settings.pooling_threads)?);
        let urls = node.names().map(|name| format!("nvme+tcp://{told}/{name}")).collect();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Exposition(Arc::clone(&node))));
        server.serve_http(metrics, router(registry, server.drain()));
        server.handle().spawn(node.serve(listener, server.drain().clone()));
        Ok(Process {
            server,
            drain: Duration::try_from_secs_f64(settings.drain).unwrap_or(Duration::MAX),
            urls,
            metrics: metrics_at.to_string(),
        })
    }

    /// Serve until SIGTERM or SIGINT, then finish open commands.
    ///
    /// # Errors
    ///
    /// When work is left at the deadline of the drain.
    pub fn run(self) -> Result<(), ProcessError> {
        Ok(self.server.run(self.drain)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_cannot_be_opened_is_named_with_its_setting() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.toml");
        for (setting, field) in
            [("store = 'none'", "subsystem[0].store is "), ("disk = 'node.toml'", "subsystem[0].disk is ")]
        {
            let text = format!("[[subsystem]]\nfolder = 'data'\nany_host = 'read'\n{setting}\n");
            std::fs::write(&file, text).unwrap();
            let settings = NodeSettings::read(&file).unwrap();
            let error = content(0, &settings.subsystems[0], 1).unwrap_err().to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
