//! Serves `/metrics` and `/health` over HTTP.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use params::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Maximum number of connections at a time.
const CONNECTIONS_MAX: usize = 16;
/// Time for a client to send its request's header.
const HEADER_WAIT_MAX: Duration = Duration::from_secs(5);
/// Time for a whole connection.
const CONNECTION_MAX: Duration = Duration::from_secs(30);
/// Maximum size of a request's header, in bytes.
const HEADER_MAX: usize = 16 << 10;
/// Pause after a failed accept, for example without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// A server of the metrics. Dropping it ends the service.
pub(crate) struct MetricsServer {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl MetricsServer {
    /// Listens on an address: `[HOST:]PORT` with a numeric host; the default is the loopback
    /// address.
    ///
    /// # Errors
    ///
    /// The address is malformed or in use.
    pub(crate) async fn start(addr: &str, registry: &Registry) -> Result<MetricsServer> {
        let addr = parse_addr(addr)?;
        let listener = TcpListener::bind(addr)
            .await
            .with_context(|| format!("cannot serve metrics at {addr} (--metrics)"))?;
        let addr = listener.local_addr().context("cannot serve metrics")?;
        let task = tokio::spawn(accept(listener, registry.clone()));
        Ok(MetricsServer { addr, task })
    }

    /// The address with the port that the server listens on.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Parses `[HOST:]PORT`.
fn parse_addr(text: &str) -> Result<SocketAddr> {
    if let Ok(port) = text.parse() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    match text.parse() {
        Ok(addr) => Ok(addr),
        Err(_) => bail!(
            "--metrics {text}: expected a port, or an IP address and a port such as 127.0.0.1:9100 or [::1]:9100"
        ),
    }
}

async fn accept(listener: TcpListener, registry: Registry) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Fails only when the semaphore is closed, which never happens.
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let registry = registry.clone();
                tokio::spawn(async move {
                    // A client that is too slow loses its connection.
                    let _ = timeout(CONNECTION_MAX, serve_connection(stream, registry)).await;
                    drop(permit);
                });
            }
            Err(e) => {
                tracing::warn!("metrics: cannot accept a connection: {e}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, registry: Registry) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(request.method(), request.uri().path(), &registry);
        async move { Ok::<_, Infallible>(response) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_WAIT_MAX)
        .max_buf_size(HEADER_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(e) = served {
        tracing::debug!("metrics: connection failed: {e}");
    }
}

fn answer(method: &Method, path: &str, registry: &Registry) -> Response<Full<Bytes>> {
    let (status, text) = match (method, path) {
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, super::render(registry)),
        (&Method::GET | &Method::HEAD, "/health") => {
            let health = registry.get("health_check").pop().map(|(_, health)| health);
            let health = health.unwrap_or_default();
            let status = match health.as_str() {
                "healthy" => StatusCode::OK,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, health + "\n")
        }
        (_, "/metrics" | "/health") => (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "see /metrics and /health\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{CONNECTIONS_MAX, MetricsServer, parse_addr};
    use params::{Param, Registry};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn get(server: &MetricsServer, request: &str) -> String {
        let mut stream = TcpStream::connect(server.addr()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[test]
    fn port_alone_means_the_loopback_address() {
        assert_eq!(parse_addr("9100").unwrap().to_string(), "127.0.0.1:9100");
        assert_eq!(parse_addr("0.0.0.0:9100").unwrap().to_string(), "0.0.0.0:9100");
        assert_eq!(parse_addr("[::1]:9100").unwrap().to_string(), "[::1]:9100");
        for bad in ["", "localhost:9100", "127.0.0.1", "70000"] {
            let error = parse_addr(bad).unwrap_err().to_string();
            assert!(error.contains("127.0.0.1:9100"), "{error}");
        }
    }

    #[tokio::test]
    async fn metrics_and_health_are_served() {
        let registry = Registry::default();
        let health = registry.register("health_check", Param::read_only(|| "healthy".to_owned()));
        let server = MetricsServer::start("127.0.0.1:0", &registry).await.unwrap();
        let metrics = get(&server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
        assert!(
            metrics.contains("\r\ncontent-type: text/plain; version=0.0.4"),
            "{metrics}"
        );
        assert!(metrics.contains("\nnacre_build_info{version="), "{metrics}");
        let healthy = get(&server, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(
            healthy.starts_with("HTTP/1.1 200 ") && healthy.ends_with("healthy\n"),
            "{healthy}"
        );
        drop(health);
        let unhealthy = get(&server, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(unhealthy.starts_with("HTTP/1.1 503 "), "{unhealthy}");
        let refused = get(
            &server,
            "POST /metrics HTTP/1.1\r\nHost: x\r\ncontent-length: 0\r\n\r\n",
        )
        .await;
        assert!(refused.starts_with("HTTP/1.1 405 "), "{refused}");
        let missing = get(&server, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(missing.starts_with("HTTP/1.1 404 "), "{missing}");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_end_so_that_others_are_served() {
        let server = MetricsServer::start("127.0.0.1:0", &Registry::default())
            .await
            .unwrap();
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            idle.push(TcpStream::connect(server.addr()).await.unwrap());
        }
        let response = get(&server, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        drop(idle);
    }

    #[tokio::test]
    async fn address_in_use_is_an_error() {
        let server = MetricsServer::start("127.0.0.1:0", &Registry::default())
            .await
            .unwrap();
        let again = MetricsServer::start(&server.addr().to_string(), &Registry::default()).await;
        let error = again.err().map(|e| format!("{e:#}")).unwrap_or_default();
        assert!(error.contains("--metrics") && error.contains("in use"), "{error}");
    }
}
