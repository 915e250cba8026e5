//! Connections of tokio for the suite `http`.

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windlass_bench_driver::Unsupported;
use windlass_bench_driver::http::{HttpRuntime, HttpServer, Serving};
use windlass_bench_driver::tasks::Runtime;

use super::service::hello;
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
            HttpServer::Axum => return Err(Unsupported("the suite has no server with axum yet")),
        }
        Ok(())
    }
}

windlass_bench_driver::borrowing_http_connection!(TcpStream);
