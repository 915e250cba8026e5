//! A client by URL: it sends a line, and prints the answers.
//!
//! Run `cargo run --example websocket_client -- wss://example.com/echo hello`. An error names the
//! phase that failed, and has the response if the server refuses.

use std::error::Error;

use windlass_websocket::client;

async fn talk(url: &str, line: &str) -> Result<(), Box<dyn Error>> {
    let mut socket = client::connect(url).await?;
    socket.send(line).await?;
    while let Some(message) = socket.recv().await? {
        println!("{}", message.as_str().unwrap_or("(binary)"));
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "ws://127.0.0.1:9023/".to_owned());
    talk(&url, &arguments.next().unwrap_or_else(|| "hello".to_owned())).await
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use windlass_websocket::{CloseCode, Config, WebSocket};

    #[tokio::test]
    async fn it_sends_its_line_and_reads_to_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/", listener.local_addr().unwrap());
        let server = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = WebSocket::accept(stream, &Config::new()).await.unwrap();
            let received = socket.recv().await.unwrap().unwrap();
            assert_eq!(received.as_str(), Some("a line"));
            socket.close(CloseCode::NORMAL, "").await.unwrap();
        };
        let (end, ()) = tokio::join!(super::talk(&url, "a line"), server);
        end.unwrap();
    }
}
