//! tokio.

use std::{future::Future, io, net::SocketAddr, pin::Pin};

use tokio::net::{TcpStream, lookup_host};

use super::Runtime;
use crate::timer::TokioTimer;

/// tokio's sockets and timer, with names resolved by the C library on a blocking thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokio;

type Boxed<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

impl Runtime for Tokio {
    type Stream = TcpStream;
    type Timer = TokioTimer;
    type Resolving = Boxed<Vec<SocketAddr>>;
    type Connecting = Boxed<TcpStream>;

    fn timer(&self) -> TokioTimer {
        TokioTimer::new()
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolving {
        let host = host.to_owned();
        Box::pin(async move { Ok(lookup_host((host, port)).await?.collect()) })
    }

    fn connect(&self, address: SocketAddr) -> Self::Connecting {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        })
    }
}
