//! A runtime whose names and connections a test decides, with tokio's clock, which a test stops.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
};

use tokio::{io::DuplexStream, time::Instant};
use windlass_websocket::{
    TokioTimer,
    client::{Client, ConnectError, Runtime},
};

pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;
type Connect = dyn Fn(SocketAddr) -> Boxed<DuplexStream> + Send + Sync;
type Resolve = dyn Fn() -> Boxed<Vec<SocketAddr>> + Send + Sync;

#[derive(Clone)]
pub(crate) struct Fake {
    resolve: Arc<Resolve>,
    connect: Arc<Connect>,
    /// When each attempt began, in milliseconds.
    pub(crate) attempts: Arc<Mutex<Vec<(SocketAddr, u128)>>>,
    start: Instant,
}

impl Fake {
    pub(crate) fn new(
        addresses: &[&str],
        connect: impl Fn(SocketAddr) -> Boxed<DuplexStream> + Send + Sync + 'static,
    ) -> Self {
        let addresses: Vec<SocketAddr> =
            addresses.iter().map(|text| text.parse().expect("an address")).collect();
        Self {
            resolve: Arc::new(move || {
                let addresses = addresses.clone();
                Box::pin(async { Ok(addresses) })
            }),
            connect: Arc::new(connect),
            attempts: Arc::default(),
            start: Instant::now(),
        }
    }

    pub(crate) fn resolving(
        mut self,
        resolve: impl Fn() -> Boxed<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        self.resolve = Arc::new(resolve);
        self
    }

    /// The error of a connection to a host with a name, and after how many milliseconds it came.
    pub(crate) async fn failure(self, client: Client) -> (ConnectError, u128) {
        let start = self.start;
        let error = client.connect_on(self).await.expect_err("it cannot be reached");
        (error, start.elapsed().as_millis())
    }
}

impl Runtime for Fake {
    type Stream = DuplexStream;
    type Timer = TokioTimer;
    type Resolving = Boxed<Vec<SocketAddr>>;
    type Connecting = Boxed<DuplexStream>;

    fn timer(&self) -> TokioTimer {
        TokioTimer::new()
    }

    fn resolve(&self, _: &str, _: u16) -> Self::Resolving {
        (self.resolve)()
    }

    fn connect(&self, address: SocketAddr) -> Self::Connecting {
        let attempt = (address, self.start.elapsed().as_millis());
        self.attempts.lock().expect("no test panicked").push(attempt);
        (self.connect)(address)
    }
}

/// Runs a test with a stopped clock, which moves when nothing else can run.
pub(crate) fn paused<F: Future>(test: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().expect("a runtime").block_on(test)
}
