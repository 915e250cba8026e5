//! The connection that is measured. windlass-tokio-tungstenite is measured by the same file.
//!
//! All messages that are readable at once are answered by one flush, as its example forwards them.

use std::time::Duration;

use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::broadcast::{self, Sender};
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async_with_config};
use windlass_bench_driver::server::{Mode, PUBLISHER, Settings, Traffic};
use windlass_bench_driver::work;
use windlass_bench_tokio_server::LAG_MAX;

/// Returns the size of the read buffer, whose unused part is zeroed before each read. So the
/// default of 128 KiB is slower in most cases. The documentation has 4 KiB for many connections.
fn read_buffer_bytes(traffic: Traffic) -> usize {
    match traffic {
        Traffic::Large => 32 * 1024,
        Traffic::Idle => 4 * 1024,
        Traffic::Untuned => 128 * 1024,
        Traffic::Any | Traffic::Single | Traffic::Pipelined => 8 * 1024,
    }
}

/// The server's connections, which send to each other.
#[derive(Clone)]
pub(crate) struct Connections {
    mode: Mode,
    work: Duration,
    traffic: Traffic,
    all: Sender<Message>,
}

impl Connections {
    pub(crate) fn new(Settings { mode, work, traffic, .. }: Settings) -> Self {
        Self { mode, work, traffic, all: Sender::new(LAG_MAX) }
    }

    /// Serves one. It ends with an error when its client disconnects.
    pub(crate) async fn serve(self, stream: TcpStream) -> tungstenite::Result<()> {
        connection(stream, self.mode, self.work, self.traffic, self.all).await
    }
}

async fn connection(
    stream: TcpStream,
    mode: Mode,
    work: Duration,
    traffic: Traffic,
    all: Sender<Message>,
) -> tungstenite::Result<()> {
    let config = WebSocketConfig::default().read_buffer_size(read_buffer_bytes(traffic));
    let mut is_publisher = false;
    #[allow(clippy::result_large_err, reason = "the callback's type is tungstenite's")]
    let callback = |request: &Request, response: Response| {
        is_publisher = request.uri().path() == PUBLISHER;
        Ok(response)
    };
    let mut socket = accept_hdr_async_with_config(stream, callback, Some(config)).await?;
    match mode {
        Mode::Echo if matches!(traffic, Traffic::Any | Traffic::Pipelined) => {
            echo(&mut socket, work).await
        }
        Mode::Echo => echo_each(&mut socket).await,
        Mode::Broadcast if is_publisher => publish(&mut socket, &all).await,
        Mode::Broadcast => receive(&mut socket, all.subscribe()).await,
    }
}

/// Sends each answer on its own, which is cheaper if a client has one message in flight.
async fn echo_each(socket: &mut WebSocketStream<TcpStream>) -> tungstenite::Result<()> {
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_text() || message.is_binary() {
            socket.send(message).await?;
        }
    }
    Ok(())
}

async fn echo(socket: &mut WebSocketStream<TcpStream>, time: Duration) -> tungstenite::Result<()> {
    loop {
        let next = match socket.next().now_or_never() {
            Some(next) => next,
            None => {
                socket.flush().await?;
                socket.next().await
            }
        };
        match next {
            Some(message) => {
                let message = message?;
                if message.is_text() || message.is_binary() {
                    work(time);
                    socket.feed(message).await?;
                }
            }
            None => return Ok(()),
        }
    }
}

async fn publish(
    socket: &mut WebSocketStream<TcpStream>,
    all: &Sender<Message>,
) -> tungstenite::Result<()> {
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_text() || message.is_binary() {
            // This fails if there are no receivers.
            let _ = all.send(message);
        }
    }
    Ok(())
}

async fn receive(
    socket: &mut WebSocketStream<TcpStream>,
    mut all: broadcast::Receiver<Message>,
) -> tungstenite::Result<()> {
    while let Ok(message) = all.recv().await {
        socket.feed(message).await?;
        while let Ok(message) = all.try_recv() {
            socket.feed(message).await?;
        }
        socket.flush().await?;
    }
    Ok(())
}
