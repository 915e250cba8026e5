//! Connections of windlass-task for the suite `http`.

use hyper::server::conn::http1;
use hyper::service::service_fn;
use windlass_bench_driver::Unsupported;
use windlass_bench_driver::http::{HttpRuntime, HttpServer, Serving};
use windlass_bench_driver::tasks::Runtime;
use windlass_task::net::TcpStream;
use windlass_task::rt::WindlassTimer;

use super::service::hello;
use super::{Connection, Windlass};

impl HttpRuntime for Windlass {
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
                server.timer(WindlassTimer::new());
                let served = server.serve_connection(stream.0, service_fn(hello)).await;
                serving.finish(served.map_err(Into::into));
            }),
            HttpServer::Axum => return Err(Unsupported("the suite has no server with axum yet")),
        }
        Ok(())
    }
}

windlass_bench_driver::borrowing_http_connection!(TcpStream);
