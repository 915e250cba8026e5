//! Connections of tokio for the suite `http`.

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windlass_bench_driver::Unsupported;
use windlass_bench_driver::http::{HttpRuntime, HttpServer, Serving};
use windlass_bench_driver::tasks::Runtime;

use super::service::{hello, router};
use super::tasks::{Connection, CurrentThread};

impl HttpRuntime for CurrentThread {
    type Http = HttpConnection;

    fn http(stream: Connection) -> HttpConnection {
        HttpConnection(stream.into_inner())
    }

    fn serve(
        server: HttpServer,
        stream: HttpConnection,
        serving: Serving,
    ) -> Result<(), Unsupported> {
        match server {
            HttpServer::Mock => Self::detach(serving.mock(stream)),
            HttpServer::Hyper => Self::detach(async move {
                // The timer limits the time of a head, by default.
                let mut server = http1::Builder::new();
                server.timer(TokioTimer::new());
                let stream = TokioIo::new(stream.0);
                let served = server.serve_connection(stream, service_fn(hello)).await;
                serving.finish(served.map_err(Into::into));
            }),
            // As `axum::serve` does it.
            HttpServer::Axum => Self::detach(async move {
                let mut server = auto::Builder::new(TokioExecutor::new());
                server.http1().timer(TokioTimer::new());
                let (stream, router) = (TokioIo::new(stream.0), TowerToHyperService::new(router()));
                let served = server.serve_connection_with_upgrades(stream, router).await;
                serving.finish(served.map_err(|error| error.to_string().into()));
            }),
        }
        Ok(())
    }
}

windlass_bench_driver::borrowing_http_connection!(TcpStream);
