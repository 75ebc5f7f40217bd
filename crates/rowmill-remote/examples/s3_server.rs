//! A server of the S3 protocol over a folder, on loopback, for tests:
//! `s3_server FOLDER KEY SECRET [PAUSE_MS]`.
//!
//! Prints its address, then serves until it is killed. Sub-folders are buckets. Every request takes at least
//! `PAUSE_MS` milliseconds, so that a test can act during an upload.

use std::convert::Infallible;
use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::sync::Mutex;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, key, secret, pause @ ..] = &arguments[..] else {
        return Err("usage: s3_server FOLDER KEY SECRET [PAUSE_MS]".into());
    };
    let pause = Duration::from_millis(pause.first().map_or(Ok(0), |pause| pause.parse())?);
    let files = FileSystem::new(folder).map_err(|error| format!("{folder}: {error:?}"))?;
    let mut builder = S3ServiceBuilder::new(files);
    builder.set_auth(SimpleAuth::from_single(key.clone(), secret.as_str()));
    let service = builder.build();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(service, pause))
}

async fn serve(service: S3Service, pause: Duration) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    // The library checks whether an object exists before it receives a new one, which is not atomic.
    let conditional = Arc::new(Mutex::new(()));
    loop {
        let (socket, _) = listener.accept().await?;
        let (service, conditional) = (service.clone(), Arc::clone(&conditional));
        let answer = service_fn(move |request: Request<Incoming>| {
            let (service, conditional) = (service.clone(), Arc::clone(&conditional));
            async move {
                let alone = request.headers().contains_key("if-none-match");
                let _alone = if alone { Some(conditional.lock().await) } else { None };
                tokio::time::sleep(pause).await;
                let response = match service.call(request.map(s3s::Body::from)).await {
                    Ok(response) => response,
                    Err(error) => {
                        eprintln!("s3_server: {error:?}");
                        let mut response = Response::new(s3s::Body::from(String::new()));
                        *response.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
                        response
                    }
                };
                Ok::<_, Infallible>(response)
            }
        });
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), answer);
        // An error of one client must not affect other clients.
        tokio::spawn(async move { drop(connection.await) });
    }
}
