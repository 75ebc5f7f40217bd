//! How this host identifies itself to storage nodes.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use rowmill_host::HostSettings;

use crate::errors::{exception, invalid};

/// The attributes of `rowmill.store.access.Access`.
#[derive(FromPyObject)]
pub(crate) struct Access {
    name: Option<String>,
    key: Option<String>,
    controller_key: Option<String>,
    file: Option<PathBuf>,
}

impl Access {
    /// The settings of a connection: those of this machine, with this name and these keys.
    pub(crate) fn settings(&self, py: Python<'_>) -> PyResult<HostSettings> {
        let mut settings =
            HostSettings::of_machine().map_err(|error| exception(py, "StorageError", error.to_string()))?;
        let file = self.file.as_deref().unwrap_or(Path::new("")).display();
        let wrong = |setting: &str, reason: String| invalid(py, format!("{file}: {setting}: {reason}"));
        if let Some(name) = &self.name {
            settings.identity.name = name.parse().map_err(|error| wrong("nqn", format!("{error}")))?;
        }
        let parse = |text: Option<&str>, setting: &str| {
            text.map(|text| text.parse().map_err(|error| wrong(setting, format!("{error}")))).transpose()
        };
        settings.identity.key = parse(self.key.as_deref(), "key_file")?;
        settings.identity.controller_key = parse(self.controller_key.as_deref(), "controller_key_file")?;
        Ok(settings)
    }
}
