//! A feed that survives lost connections: each request names the position to resume at.
//!
//! Run `cargo run --example websocket_reconnect -- ws://127.0.0.1:9023/feed`. The server sends
//! numbered lines, `7 text`, from the number in the query on.
//!
//! It shows:
//! - The hook before each attempt changes the URL. A new token would go into a header there.
//! - Lost connections are made again after growing delays. A status from 400 to 499 ends it.
//! - The position moves when a line was handled, so no line is lost and none is handled twice.

use std::{
    error::Error,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use windlass_websocket::client::Client;

/// Hands the lines to a function until it returns `false`.
async fn follow(url: String, mut handle: impl FnMut(&str) -> bool) -> Result<(), Box<dyn Error>> {
    let next = Arc::new(AtomicU64::new(0));
    let resume = next.clone();
    let mut socket = Client::new(&url).reconnecting().before_attempt(move |client, attempt| {
        if let Some(why) = &attempt.lost_by {
            eprintln!("attempt {}: {why}", attempt.number);
        }
        ready(Ok(client.url(&format!("{url}?from={}", resume.load(Relaxed)))))
    });
    while let Some(message) = socket.recv().await? {
        let Some((number, line)) = message.as_str().and_then(|text| text.split_once(' ')) else {
            continue;
        };
        let goes_on = handle(line);
        next.store(number.parse::<u64>()? + 1, Relaxed);
        if !goes_on {
            break;
        }
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "ws://127.0.0.1:9023/feed".to_owned());
    follow(url, |line| {
        println!("{line}");
        true
    })
    .await
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use windlass_websocket::{Answer, Config, WebSocket};

    #[tokio::test]
    async fn it_resumes_behind_the_last_line_that_was_handled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/feed", listener.local_addr().unwrap());
        tokio::spawn(async move {
            // Each connection breaks after two lines.
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let mut from = 0;
                let decide = |upgrade: &windlass_websocket::Upgrade<'_>| {
                    let query = upgrade.request().query().unwrap_or_default();
                    from = query.strip_prefix("from=").unwrap().parse().unwrap();
                    Answer::accept()
                };
                let config = Config::new();
                let mut socket = WebSocket::accept_with(stream, &config, decide).await.unwrap();
                for number in from..from + 2 {
                    socket.send(format!("{number} line {number}")).await.unwrap();
                }
            }
        });
        let mut lines = Vec::new();
        let handle = |line: &str| {
            lines.push(line.to_owned());
            lines.len() < 5
        };
        super::follow(url, handle).await.unwrap();
        assert_eq!(lines, ["line 0", "line 1", "line 2", "line 3", "line 4"]);
    }
}
