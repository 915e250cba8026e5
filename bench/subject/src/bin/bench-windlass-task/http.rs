//! Connections of windlass-task for the suite `http`.

use windlass_bench_driver::Unsupported;
use windlass_bench_driver::http::{HttpRuntime, HttpServer, Serving};
use windlass_bench_driver::tasks::Runtime;
use windlass_task::net::TcpStream;

use super::{Connection, Windlass, handed};

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
            HttpServer::Hyper | HttpServer::Axum => handed::serve(server, stream.0, serving),
        }
        Ok(())
    }
}

windlass_bench_driver::borrowing_http_connection!(TcpStream);
