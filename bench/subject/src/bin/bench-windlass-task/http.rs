//! Connections of windlass-task for the suite `http`.

use std::io;

use windlass_bench_driver::Unsupported;
use windlass_bench_driver::http::{HttpRuntime, HttpServer, HttpStream, Serving};
use windlass_bench_driver::tasks::Runtime;
use windlass_task::net::TcpStream;

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
            HttpServer::Hyper | HttpServer::Axum => {
                return Err(Unsupported("hyper does not run on windlass-task yet"));
            }
        }
        Ok(())
    }
}

pub(crate) struct HttpConnection(TcpStream);

impl HttpStream for HttpConnection {
    #[inline]
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await
    }

    #[inline]
    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room).await
    }
}
