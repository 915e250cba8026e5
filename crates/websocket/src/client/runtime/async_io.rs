//! async-io, for smol and async-std.

use std::{
    future::Future,
    io,
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    pin::Pin,
};

use async_io::Async;

use super::Runtime;
use crate::{adapters::FuturesIo, timer::AsyncIoTimer};

/// The sockets and timer of async-io, with names resolved by the C library on a blocking thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsyncIo;

type Boxed<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

impl Runtime for AsyncIo {
    type Stream = FuturesIo<Async<TcpStream>>;
    type Timer = AsyncIoTimer;
    type Resolving = Boxed<Vec<SocketAddr>>;
    type Connecting = Boxed<Self::Stream>;

    fn timer(&self) -> AsyncIoTimer {
        AsyncIoTimer::new()
    }

    fn resolve(&self, host: &str, port: u16) -> Self::Resolving {
        let host = host.to_owned();
        Box::pin(blocking::unblock(move || (&*host, port).to_socket_addrs().map(Iterator::collect)))
    }

    fn connect(&self, address: SocketAddr) -> Self::Connecting {
        Box::pin(async move {
            let stream = Async::<TcpStream>::connect(address).await?;
            stream.get_ref().set_nodelay(true)?;
            Ok(FuturesIo::new(stream))
        })
    }
}
