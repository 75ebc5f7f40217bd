//! URLs of namespaces on storage nodes.

use std::fmt;
use std::str::FromStr;

use rowmill_nvme::Nqn;

use crate::HostError;

/// Where a namespace is: `nvme+tcp://HOST:PORT/NQN`, with `?namespace=N` if the subsystem has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeUrl {
    /// A host name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// The port; 4420 if the URL names none.
    pub port: u16,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The number of the namespace, if the URL names one.
    pub namespace: Option<u32>,
}

const SCHEME: &str = "nvme+tcp://";
/// The port that is registered for NVMe over TCP.
const PORT: u16 = 4420;

impl NvmeUrl {
    /// Whether a text is meant as the URL of a namespace.
    pub fn is_one(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    fn parse(text: &str) -> Result<NvmeUrl, String> {
        let rest = text.strip_prefix(SCHEME).ok_or("it does not start with \"nvme+tcp://\"")?;
        let (authority, path) = rest.split_once('/').ok_or("it has no /NQN after host and port")?;
        let (name, query) = path.split_once('?').map_or((path, None), |(name, query)| (name, Some(query)));
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or("a [ without ]")?;
                let port = if after.is_empty() { None } else { after.strip_prefix(':') };
                (host, if after.is_empty() { None } else { Some(port.ok_or("text after ]")?) })
            }
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() {
            return Err("it has no host".into());
        }
        let port = match port {
            None => PORT,
            Some(port) => port.parse().map_err(|_| format!("{port:?} is no port"))?,
        };
        let namespace = match query.map(|query| query.split_once('=').unwrap_or((query, ""))) {
            None => None,
            Some(("namespace", number)) => match number.parse() {
                Ok(number) if (1..u32::MAX).contains(&number) => Some(number),
                _ => return Err(format!("{number:?} is no number of a namespace")),
            },
            Some((name, _)) => {
                return Err(format!("it has the parameter {name:?}; only \"namespace\" exists"));
            }
        };
        let subsystem = name.parse().map_err(|error: rowmill_nvme::NqnError| error.to_string())?;
        Ok(NvmeUrl { host: host.to_owned(), port, subsystem, namespace })
    }
}

impl FromStr for NvmeUrl {
    type Err = HostError;

    fn from_str(text: &str) -> Result<NvmeUrl, HostError> {
        NvmeUrl::parse(text).map_err(|reason| HostError::Url { url: text.to_owned(), reason })
    }
}

impl fmt::Display for NvmeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{SCHEME}{open}{}{close}:{}/{}", self.host, self.port, self.subsystem)?;
        self.namespace.map_or(Ok(()), |number| write!(f, "?namespace={number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_survive_their_text() {
        for (text, host, port, namespace) in [
            ("nvme+tcp://127.0.0.1:4421/nqn.x", "127.0.0.1", 4421, None),
            ("nvme+tcp://[::1]:7/nqn.2014-08.org.nvmexpress:uuid:1?namespace=2", "::1", 7, Some(2)),
            ("nvme+tcp://node/nqn.x?namespace=4294967294", "node", 4420, Some(u32::MAX - 1)),
        ] {
            let url: NvmeUrl = text.parse().unwrap();
            assert_eq!((url.host.as_str(), url.port, url.namespace), (host, port, namespace));
            assert_eq!(url.to_string().parse::<NvmeUrl>().unwrap(), url);
        }
    }

    #[test]
    fn errors_name_the_url_and_what_is_wrong() {
        for (text, reason) in [
            ("tcp://node/nqn.x", "start with"),
            ("nvme+tcp://node:4420", "no /NQN"),
            ("nvme+tcp://:4420/nqn.x", "no host"),
            ("nvme+tcp://node:x/nqn.x", "no port"),
            ("nvme+tcp://node/", "NVMe qualified name"),
            ("nvme+tcp://[::1/nqn.x", "without ]"),
            ("nvme+tcp://[::1]7/nqn.x", "after ]"),
            ("nvme+tcp://node/nqn.x?namespace=0", "no number"),
            ("nvme+tcp://node/nqn.x?ns=1", "\"ns\""),
        ] {
            let error = text.parse::<NvmeUrl>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains(reason), "{error}");
        }
    }
}
