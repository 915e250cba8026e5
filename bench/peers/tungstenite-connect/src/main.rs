//! `connect_async` of tokio-tungstenite, for the suite `websocket` of `windlass-bench`. With TLS it
//! is the form that takes a configuration: without one, each connection makes its own.

#![deny(unsafe_code)]

use std::process::ExitCode;

use tokio_tungstenite::{Connector, MaybeTlsStream, connect_async, connect_async_tls_with_config};
use windlass_bench_driver::locked_version;
use windlass_bench_tokio_server::connect;

fn main() -> ExitCode {
    let version = locked_version(include_str!("../../Cargo.lock"), "tokio-tungstenite");
    connect::run(&version, async |target| {
        let (socket, _) = match target.tls {
            None => connect_async(&target.url).await?,
            Some(config) => {
                let connector = Some(Connector::Rustls(config));
                connect_async_tls_with_config(&target.url, None, false, connector).await?
            }
        };
        Ok(match socket.get_ref() {
            MaybeTlsStream::Plain(stream) => connect::reset(stream, None)?,
            MaybeTlsStream::Rustls(stream) => {
                let (stream, tls) = stream.get_ref();
                connect::reset(stream, Some(tls))?
            }
            _ => return Err("a stream of another kind".into()),
        })
    })
}
