//! A connection to a server, which one request at a time uses.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::examples::Example;
use super::reply::Reply;
use super::target::{Protocol, Target};
use super::{grpc, http};

/// Bytes of a reply at most.
pub(super) const REPLY_BYTES_MAX: usize = 1 << 30;

/// An encoded request.
#[derive(Clone, Debug)]
pub(super) struct Encoded {
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
}

/// It is opened by the first request, and again after a failure.
#[derive(Debug)]
pub(super) struct Connection {
    target: Arc<Target>,
    sender: Option<Sender>,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

impl Encoded {
    /// Encode a request that must be answered within `timeout_us`.
    pub(super) fn new(target: &Target, example: &Example, timeout_us: u64) -> Self {
        match target.protocol {
            Protocol::Http => http::encode(example, &target.model, timeout_us),
            Protocol::Grpc => grpc::encode(example, &target.model, timeout_us),
        }
    }

    fn request(&self, target: &Target) -> Result<Request<Body>, String> {
        // HTTP/1 has the host in a header, HTTP/2 in the URI.
        let mut request = match target.protocol {
            Protocol::Http => Request::post(&self.path).header("host", &target.authority),
            Protocol::Grpc => Request::post(format!("http://{}{}", target.authority, self.path)),
        };
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.body(Body::from(self.body.clone())).map_err(|error| error.to_string())
    }
}

impl Connection {
    pub(super) fn new(target: Arc<Target>) -> Self {
        Self { target, sender: None }
    }

    /// Send a request and wait for its reply. A call that is dropped closes the connection.
    pub(super) async fn ask(&mut self, encoded: &Encoded, reads_outputs: bool) -> Reply {
        let opened = async { Ok::<_, String>((encoded.request(&self.target)?, self.open().await?)) };
        let (request, mut sender) = match opened.await {
            Ok(opened) => opened,
            Err(text) => return Reply::failed("unreachable", &text),
        };
        let answered = async {
            let response = sender.send(request).await.map_err(|error| error.to_string())?;
            match self.target.protocol {
                Protocol::Http => http::read(response, reads_outputs).await,
                Protocol::Grpc => grpc::read(response, reads_outputs).await,
            }
        };
        match answered.await {
            Ok(reply) => {
                self.sender = Some(sender);
                reply
            }
            Err(text) => {
                let text = format!("the connection to {} ended: {text}", self.target.authority);
                Reply::failed("disconnected", &text)
            }
        }
    }

    /// The open connection, or a new one. The server may have closed the open one since its last request.
    async fn open(&mut self) -> Result<Sender, String> {
        if let Some(mut sender) = self.sender.take()
            && sender.is_ready().await
        {
            return Ok(sender);
        }
        let authority = &self.target.authority;
        let wrong = |error: &dyn std::fmt::Display| format!("cannot connect to {authority}: {error}");
        let stream = TcpStream::connect(authority).await.map_err(|error| wrong(&error))?;
        stream.set_nodelay(true).map_err(|error| wrong(&error))?;
        let stream = TokioIo::new(stream);
        // Errors of the tasks are those of the requests, too.
        match self.target.protocol {
            Protocol::Http => {
                let (sender, connection) = http1::handshake(stream).await.map_err(|error| wrong(&error))?;
                tokio::spawn(async move { drop(connection.await) });
                Ok(Sender::Http1(sender))
            }
            Protocol::Grpc => {
                let shaken = http2::handshake(TokioExecutor::new(), stream).await;
                let (sender, connection) = shaken.map_err(|error| wrong(&error))?;
                tokio::spawn(async move { drop(connection.await) });
                Ok(Sender::Http2(sender))
            }
        }
    }
}

impl Sender {
    async fn is_ready(&mut self) -> bool {
        match self {
            Self::Http1(sender) => sender.ready().await.is_ok(),
            Self::Http2(sender) => sender.ready().await.is_ok(),
        }
    }

    async fn send(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => sender.send_request(request).await,
            Self::Http2(sender) => sender.send_request(request).await,
        }
    }
}
