//! Requests to a URL in an object store, with bounded retries and errors that name URL and cause.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, Error, ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutMode, PutOptions, RetryConfig,
};
use url::Url;

use crate::RemoteError;
use crate::layout::{Unsealed, unseal};

/// Most requests in flight. With parts of at most 4 MiB, they take 32 MiB of memory.
pub(crate) const REQUESTS: usize = 8;
/// Retries of a failed request: most tries, and longest time.
const RETRIES: usize = 5;
const RETRY_TIME: Duration = Duration::from_mins(1);
/// Longest pause between two tries.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Called by tests before every request, with operation and key.
#[cfg(test)]
pub(crate) type Hook = Box<dyn Fn(&str, &str) -> Result<(), String>>;

/// A URL in an object store.
pub struct Remote {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    url: String,
    #[cfg(test)]
    pub(crate) hook: Option<Hook>,
}

/// An object in a listing.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) key: String,
    pub(crate) bytes: u64,
    /// Time of the last change, in seconds since 1970.
    pub(crate) modified_s: i64,
}

impl Remote {
    /// Open a URL: `s3://bucket/path`, `gs://bucket/path`, `az://container/path` or `file:///path`.
    /// Credentials and endpoints come from each service's usual environment variables, such as
    /// `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT`.
    ///
    /// # Errors
    /// [`RemoteError::Url`], also if an environment variable is not valid.
    pub fn open(url: &str) -> Result<Self, RemoteError> {
        let wrong = |cause: String| RemoteError::Url { url: url.to_owned(), cause };
        let parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(wrong("it has a '?' or a '#'".into()));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(wrong("credentials must be given in environment variables".into()));
        }
        let (scheme, prefix) = ObjectStoreScheme::parse(&parsed).map_err(|error| wrong(error.to_string()))?;
        let retry = RetryConfig {
            backoff: BackoffConfig { max_backoff: BACKOFF_MAX, ..BackoffConfig::default() },
            max_retries: RETRIES,
            retry_timeout: RETRY_TIME,
        };
        // TLS needs a provider, set once per process. If one is already set, keep it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store: Result<Arc<dyn ObjectStore>, Error> = match scheme {
            ObjectStoreScheme::Local => Ok(Arc::new(LocalFileSystem::new().with_fsync(true))),
            ObjectStoreScheme::AmazonS3 => AmazonS3Builder::from_env()
                .with_url(url)
                .with_retry(retry)
                .build()
                .map(|store| Arc::new(store) as _),
            ObjectStoreScheme::GoogleCloudStorage => GoogleCloudStorageBuilder::from_env()
                .with_url(url)
                .with_retry(retry)
                .build()
                .map(|store| Arc::new(store) as _),
            ObjectStoreScheme::MicrosoftAzure => MicrosoftAzureBuilder::from_env()
                .with_url(url)
                .with_retry(retry)
                .build()
                .map(|store| Arc::new(store) as _),
            _ => return Err(wrong(format!("{}:// cannot be written to", parsed.scheme()))),
        };
        let store = store.map_err(|error| wrong(error.to_string()))?;
        Ok(Self::new(store, prefix, url.trim_end_matches('/').to_owned()))
    }

    pub(crate) fn new(store: Arc<dyn ObjectStore>, prefix: Path, url: String) -> Self {
        Self {
            store,
            prefix,
            url,
            #[cfg(test)]
            hook: None,
        }
    }

    /// The URL that was opened.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of an object, for messages.
    pub(crate) fn url_of(&self, key: &str) -> String {
        format!("{}/{key}", self.url)
    }

    /// The bytes of an object; `None` if it does not exist.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, RemoteError> {
        self.before("reading", key)?;
        let bytes = match self.store.get(&self.path(key)).await {
            Ok(found) => found.bytes().await,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => Err(error),
        };
        bytes.map(|bytes| Some(bytes.into())).map_err(|error| self.failed("reading", key, &error))
    }

    /// Parse the `bytes` of an object that [`crate::layout::seal`] wrote.
    pub(crate) fn unsealed<T: serde::de::DeserializeOwned>(
        &self,
        key: &str,
        bytes: &[u8],
    ) -> Result<T, RemoteError> {
        unseal(bytes).map_err(|error| match error {
            Unsealed::Newer(found) => {
                RemoteError::Newer { url: self.url_of(key), found, supported: crate::layout::FORMAT_VERSION }
            }
            Unsealed::Corrupt(what) => self.corrupt(key, what),
        })
    }

    /// Write an object; replaces an existing one.
    pub(crate) async fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), RemoteError> {
        self.before("writing", key)?;
        let written = self.store.put(&self.path(key), bytes.into()).await;
        written.map(|_| ()).map_err(|error| self.failed("writing", key, &error))
    }

    /// Create an object; false if it already exists.
    pub(crate) async fn create(&self, key: &str, bytes: Vec<u8>) -> Result<bool, RemoteError> {
        self.before("creating", key)?;
        let options = PutOptions::from(PutMode::Create);
        match self.store.put_opts(&self.path(key), bytes.into(), options).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(self.failed("creating", key, &error)),
        }
    }

    /// All objects in a folder, sorted by key.
    pub(crate) async fn list(&self, folder: &str) -> Result<Vec<Listed>, RemoteError> {
        self.before("listing", folder)?;
        let prefix = self.path(folder);
        let listed: Result<Vec<_>, Error> = self.store.list(Some(&prefix)).try_collect().await;
        let mut objects = Vec::new();
        for object in listed.map_err(|error| self.failed("listing", folder, &error))? {
            let Some(rest) = object.location.prefix_match(&self.prefix) else { continue };
            let names: Vec<String> = rest.map(|name| name.as_ref().to_owned()).collect();
            let modified_s = object.last_modified.timestamp();
            objects.push(Listed { key: names.join("/"), bytes: object.size, modified_s });
        }
        objects.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        Ok(objects)
    }

    /// Remove objects. Objects that do not exist are skipped.
    pub(crate) async fn remove(&self, keys: Vec<String>) -> Result<(), RemoteError> {
        let remove = |key: String| async move {
            self.before("removing", &key)?;
            match self.store.delete(&self.path(&key)).await {
                Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(self.failed("removing", &key, &error)),
            }
        };
        stream::iter(keys).map(remove).buffer_unordered(REQUESTS).try_collect().await
    }

    pub(crate) fn corrupt(&self, key: &str, what: impl Into<String>) -> RemoteError {
        RemoteError::Corrupt { url: self.url_of(key), what: what.into() }
    }

    fn path(&self, key: &str) -> Path {
        key.split('/').fold(self.prefix.clone(), Path::join)
    }

    fn failed(&self, operation: &'static str, key: &str, error: &Error) -> RemoteError {
        RemoteError::Request { operation, url: self.url_of(key), cause: with_sources(error) }
    }

    #[cfg(test)]
    fn before(&self, operation: &'static str, key: &str) -> Result<(), RemoteError> {
        let Some(hook) = &self.hook else { return Ok(()) };
        hook(operation, key).map_err(|cause| RemoteError::Request { operation, url: self.url_of(key), cause })
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "tests look into every request")]
    fn before(&self, _operation: &'static str, _key: &str) -> Result<(), RemoteError> {
        Ok(())
    }
}

impl Debug for Remote {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({})", self.url)
    }
}

/// An error and its causes in one line, without causes that it already mentions.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
