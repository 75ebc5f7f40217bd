//! Settings: a TOML file, and flags of the command line that override it.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// Why settings could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The file could not be read.
    #[error("cannot read settings from {path}: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{path} is not a TOML file: {cause}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line and reason.
        cause: Box<toml::de::Error>,
    },
    /// A setting is unknown, missing or of another type.
    #[error("settings: {cause}")]
    Value {
        /// The setting and the error in its value.
        cause: Box<toml::de::Error>,
    },
}

/// Settings of `file` where given, each replaced by the flag of its name where that is given.
///
/// `T` should refuse fields it does not know (`#[serde(deny_unknown_fields)]`), so that a misspelt setting is an
/// error.
///
/// # Errors
/// When the file cannot be read, or a setting is unknown, missing or of another type.
pub fn read_settings<T: DeserializeOwned>(file: Option<&Path>, flags: Table) -> Result<T, SettingsError> {
    let mut settings = Table::new();
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| SettingsError::File { path: path.into(), cause })?;
        settings = text
            .parse()
            .map_err(|cause| SettingsError::Syntax { path: path.into(), cause: Box::new(cause) })?;
    }
    replace(&mut settings, flags);
    settings.try_into().map_err(|cause| SettingsError::Value { cause: Box::new(cause) })
}

/// Put the values of `winning` into `settings`, tables value by value.
fn replace(settings: &mut Table, winning: Table) {
    for (name, value) in winning {
        match (settings.get_mut(&name), value) {
            (Some(Value::Table(inner)), Value::Table(winning)) => replace(inner, winning),
            (_, value) => {
                settings.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Example {
        listen: String,
        #[serde(default)]
        queue: Queue,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Queue {
        requests_max: u32,
        slo_ms: u32,
    }

    fn read(text: &str, flags: &str) -> Result<Example, SettingsError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("serve.toml");
        std::fs::write(&path, text).unwrap();
        read_settings(Some(&path), flags.parse().unwrap())
    }

    #[test]
    fn flags_win_over_the_file_setting_by_setting() {
        let file = "listen = 'a'\n[queue]\nrequests_max = 10\nslo_ms = 20";
        let settings = read(file, "listen = 'b'\nqueue.slo_ms = 30").unwrap();
        assert_eq!(settings, Example { listen: "b".into(), queue: Queue { requests_max: 10, slo_ms: 30 } });
        let without_file: Example = read_settings(None, "listen = 'c'".parse().unwrap()).unwrap();
        assert_eq!(without_file, Example { listen: "c".into(), queue: Queue::default() });
    }

    #[test]
    fn errors_name_the_setting() {
        for (text, name) in [
            ("listen = 'a'\nqueu = 1", "queu"),
            ("listen = 5", "listen"),
            ("", "listen"),
            ("listen = ", "serve.toml"),
            ("listen = 'a'\nqueue.requests_max = -1", "requests_max"),
        ] {
            let error = read(text, "").unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        let missing = read_settings::<Example>(Some(Path::new("nowhere.toml")), Table::new()).unwrap_err();
        assert!(missing.to_string().contains("nowhere.toml"));
    }
}
