//! Logs: one JSON object per line, a sentence as `message` and its values as fields.

use std::str::FromStr;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Why logs could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The level is unknown.
    #[error("log level must be error, warn, info, debug, trace or off, got {level:?}")]
    Level {
        /// The level as given.
        level: String,
    },
    /// Logs of this process go elsewhere already.
    #[error("logs of this process were started before: start them once")]
    Started,
}

/// Write log events of `level` and above to standard error.
///
/// # Errors
/// When the level is unknown or logs were started before.
pub fn start_logs(level: &str) -> Result<(), LogError> {
    tracing::subscriber::set_global_default(json_lines(level, std::io::stderr)?)
        .map_err(|_| LogError::Started)
}

/// The same, to `writer`.
///
/// # Errors
/// When the level is unknown.
pub fn json_lines<W>(level: &str, writer: W) -> Result<impl tracing::Subscriber + Send + Sync, LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = LevelFilter::from_str(level).map_err(|_| LogError::Level { level: level.into() })?;
    Ok(tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_max_level(filter)
        .with_writer(writer)
        .finish())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn events_are_json_lines_with_their_fields() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = json_lines("info", move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(address = "127.0.0.1:8000", workers = 2, "listening");
            tracing::debug!("not at this level");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let event: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(event["message"], "listening");
        assert_eq!(event["address"], "127.0.0.1:8000");
        assert_eq!(event["workers"], 2);
        assert_eq!(event["level"], "INFO");
        assert!(event["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn unknown_levels_are_refused() {
        let error = json_lines("loud", std::io::sink).err().unwrap().to_string();
        assert_eq!(error, "log level must be error, warn, info, debug, trace or off, got \"loud\"");
    }
}
