//! The connections of the servers of windlass-websocket, on any runtime, written as its users would
//! write them.

use futures_util::StreamExt;
use tokio::sync::broadcast::{Receiver, Sender};
use windlass_bench_driver::Error;
use windlass_bench_driver::server::{MESSAGE_MAX, Mode, PUBLISHER, Settings};
use windlass_bench_tokio_server::LAG_MAX;
use windlass_websocket::{Answer, Config, DeflateConfig, Prepared, Transport, WebSocket};

/// What the connections of a server have in common. A clone shares it.
#[derive(Clone, Debug)]
pub struct Server {
    mode: Mode,
    owned: bool,
    config: Config,
    all: Sender<Prepared>,
}

impl Server {
    /// The server for these settings.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let config = Config::new().frame_max(MESSAGE_MAX).message_max(MESSAGE_MAX);
        let config = match settings.deflate {
            true => config.deflate(DeflateConfig::DEFAULT),
            false => config,
        };
        let all = Sender::new(LAG_MAX);
        Self { mode: settings.mode, owned: settings.owned, config, all }
    }

    /// Serves a connection until its end.
    ///
    /// # Errors
    ///
    /// If the client disconnects without a Close frame.
    pub async fn serve<S: Transport>(self, stream: S) -> Result<(), Error> {
        let mut is_publisher = false;
        let mut socket = WebSocket::accept_with(stream, &self.config, |upgrade| {
            is_publisher = upgrade.request().path() == PUBLISHER;
            Answer::accept()
        })
        .await?;
        match self.mode {
            Mode::Echo if self.owned => {
                while let Some(message) = socket.next().await {
                    socket.feed(message?).await?;
                }
            }
            Mode::Echo => {
                while let Some(message) = socket.recv().await? {
                    message.reply()?;
                }
            }
            Mode::Broadcast if is_publisher => {
                while let Some(message) = socket.next().await {
                    // This fails if there are no receivers.
                    let _ = self.all.send(Prepared::new(message?, &self.config));
                }
            }
            Mode::Broadcast => receive(&mut socket, self.all.subscribe()).await?,
        }
        Ok(())
    }
}

async fn receive<S: Transport>(
    socket: &mut WebSocket<S>,
    mut all: Receiver<Prepared>,
) -> Result<(), Error> {
    while let Ok(message) = all.recv().await {
        socket.feed(message).await?;
        while let Ok(message) = all.try_recv() {
            socket.feed(message).await?;
        }
        socket.flush().await?;
    }
    Ok(())
}
