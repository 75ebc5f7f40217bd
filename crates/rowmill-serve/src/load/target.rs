//! The server under test.

use axum::http::Uri;

use crate::Failure;

/// How a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Grpc,
}

/// The address of a server and the name of a model.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) protocol: Protocol,
    /// `HOST:PORT`, where to connect.
    pub(super) authority: String,
    pub(super) model: String,
}

impl Target {
    /// Read `http://HOST:PORT` or `grpc://HOST:PORT`.
    ///
    /// # Errors
    /// When the URL has another form.
    pub(super) fn parse(url: &str, model: &str) -> Result<Self, Failure> {
        let wrong = |why: &str| {
            Failure::invalid(format!("the server is {url:?}: {why}, as in http://127.0.0.1:8000"))
        };
        let uri: Uri = url.parse().map_err(|_| wrong("give a URL"))?;
        let protocol = match uri.scheme_str() {
            Some("http") => Protocol::Http,
            Some("grpc") => Protocol::Grpc,
            _ => return Err(wrong("the scheme must be http or grpc")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("give HOST:PORT"))?;
        if authority.port_u16().is_none() {
            return Err(wrong("give the port"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("leave out the path: the model is a separate argument"));
        }
        if model.is_empty() || !model.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#%".contains(&byte))
        {
            return Err(Failure::invalid(format!(
                "the model is {model:?}, must be a name that fits into a URL"
            )));
        }
        Ok(Self { protocol, authority: authority.as_str().into(), model: model.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_or_refused_with_the_reason() {
        for url in ["http://127.0.0.1:8000", "http://127.0.0.1:80/", "http://[::1]:9"] {
            let authority = url.trim_start_matches("http://").trim_end_matches('/');
            assert_eq!(Target::parse(url, "dlrm").unwrap().authority, authority);
        }
        assert_eq!(Target::parse("http://127.0.0.1:1", "dlrm").unwrap().protocol, Protocol::Http);
        assert_eq!(Target::parse("grpc://127.0.0.1:1", "dlrm").unwrap().protocol, Protocol::Grpc);
        for (url, why) in [
            ("127.0.0.1:8000", "scheme"),
            ("https://127.0.0.1:1", "scheme"),
            ("http://127.0.0.1", "port"),
            ("http://127.0.0.1:1/v2", "path"),
            ("http://", "URL"),
        ] {
            let error = Target::parse(url, "dlrm").unwrap_err();
            assert!(error.text.contains(why) && error.text.contains(url), "{error} lacks {why:?}");
        }
        assert!(Target::parse("http://127.0.0.1:1", "a/b").unwrap_err().text.contains("a/b"));
    }
}
