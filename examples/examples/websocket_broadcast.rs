//! A broadcast with back-pressure: one publisher, many receivers, each as fast as it reads.
//!
//! Run `cargo run --example websocket_broadcast -- 127.0.0.1:9022`, and connect with several
//! WebSocket clients. Each line of the standard input goes to all of them.
//!
//! It shows:
//! - A `Prepared` message is encoded and compressed once. Each socket sends the shared bytes.
//! - `feed` waits while the high watermark is exceeded, so a socket holds a bounded number of
//!   bytes for a client that does not read.
//! - The queue in front of it is bounded too. A receiver that is so slow that it misses messages is
//!   told so, and disconnected. The publisher and the others do not wait for it.

use std::{error::Error, io};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::broadcast::{self, error::RecvError},
};
use windlass_websocket::{CloseCode, Config, DeflateConfig, Prepared, WebSocket};

/// The messages that wait for the slowest receiver at most.
const QUEUE_MAX: usize = 64;

type News = broadcast::Sender<Prepared>;

fn config() -> Config {
    Config::new().deflate(DeflateConfig::DEFAULT).high_watermark(16 << 10)
}

async fn serve(listener: TcpListener, news: News) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let news = news.clone();
        tokio::spawn(async move {
            if let Err(error) = receiver(stream, &news).await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

async fn receiver(stream: TcpStream, news: &News) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut socket = WebSocket::accept(stream, &config()).await?;
    let mut queue = news.subscribe();
    loop {
        let message = tokio::select! {
            // It answers pings and Close. Messages of clients are ignored here.
            received = socket.recv() => match received? {
                Some(_) => continue,
                None => return Ok(()),
            },
            message = queue.recv() => message,
        };
        match message {
            Ok(message) => socket.feed(message).await?,
            Err(RecvError::Lagged(count)) => {
                let reason = format!("{count} messages were missed");
                return Ok(socket.close(CloseCode::POLICY_VIOLATION, &reason).await?);
            }
            Err(RecvError::Closed) => {
                return Ok(socket.close(CloseCode::GOING_AWAY, "the publisher has ended").await?);
            }
        }
        // What else waits is sent with the same write.
        if queue.is_empty() {
            socket.flush().await?;
        }
    }
}

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9022".to_owned());
    let news = News::new(QUEUE_MAX);
    let publisher = news.clone();
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            // It fails if nobody listens.
            let _ = publisher.send(Prepared::new(line, &config()));
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("listening on ws://{}/", listener.local_addr()?);
        serve(listener, news).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use windlass_websocket::{ClientRequest, Message};

    async fn start() -> (SocketAddr, News) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        let news = News::new(QUEUE_MAX);
        tokio::spawn(serve(listener, news.clone()));
        (address, news)
    }

    /// Connects, and waits until the server counts it as receiver number `count`.
    async fn join(address: SocketAddr, news: &News, count: usize) -> WebSocket<TcpStream> {
        let (stream, config) = (TcpStream::connect(address).await.expect("it listens"), config());
        let request = ClientRequest::new("localhost", "/", config.random_key());
        let socket = WebSocket::client(stream, request, &config).await.expect("it accepts");
        while news.receiver_count() < count {
            tokio::task::yield_now().await;
        }
        socket
    }

    async fn next(socket: &mut WebSocket<TcpStream>) -> Option<Message> {
        let message = socket.recv().await.expect("the server is good")?;
        message.to_message()
    }

    #[tokio::test]
    async fn every_receiver_gets_every_message_in_order() {
        let (address, news) = start().await;
        let mut clients = [join(address, &news, 1).await, join(address, &news, 2).await];
        let texts = ["one", "two", "drei"].map(|text| text.repeat(100));
        for text in &texts {
            news.send(Prepared::new(text.clone(), &config())).expect("there are receivers");
        }
        for client in &mut clients {
            for text in &texts {
                assert_eq!(next(client).await, Some(text.clone().into()));
            }
            client.close(CloseCode::NORMAL, "").await.expect("it is answered");
        }
    }

    #[tokio::test]
    async fn a_slow_receiver_is_disconnected_and_the_others_get_everything() {
        let (address, news) = start().await;
        let mut slow = join(address, &news, 1).await;
        let mut fast = join(address, &news, 2).await;
        // Incompressible, and more in all than the slow one's socket and queue have room for.
        let mut long = vec![0; 1 << 20];
        getrandom::fill(&mut long).expect("the kernel gives random bytes");
        let message = Prepared::new(long, &config());
        for _ in 0..120 {
            news.send(message.clone()).expect("there are receivers");
            assert_eq!(next(&mut fast).await.as_ref(), Some(message.message()));
        }
        let mut received = 0;
        while next(&mut slow).await.is_some() {
            received += 1;
        }
        assert!(received < 120, "{received}");
        let close = slow.peer_close().expect("it was told why");
        assert_eq!(close.code, Some(CloseCode::POLICY_VIOLATION));
        assert!(close.reason.ends_with("messages were missed"), "{}", close.reason);
    }
}
