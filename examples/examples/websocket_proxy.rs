//! A client behind a proxy: HTTP CONNECT or SOCKS5, with a user and a password.
//!
//! Run `cargo run --example websocket_proxy -- socks5://me:secret@127.0.0.1:1080 wss://host/chat`.
//!
//! It shows:
//! - The proxy resolves the host's name, and sees no header and no byte of the TLS connection.
//! - An error tells the proxy's refusal from the server's. No error has the password.

use std::{error::Error, time::Duration};

use windlass_websocket::client::{Client, ConnectError, Phase};

/// Says whether a server answers through a proxy, and how.
async fn probe(proxy: &str, url: &str) -> String {
    let client = Client::new(url).proxy(proxy).time_limit(Phase::Proxy, Duration::from_secs(5));
    match client.connect().with_response().await {
        Ok((_, response)) => format!("connected: {}", response.status),
        Err(ConnectError::Proxy(error)) => format!("the proxy refuses: {error}"),
        Err(error) => match error.response() {
            Some(response) => format!("the server refuses: {}", response.status),
            None => format!("{} failed: {error}", error.phase()),
        },
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(proxy), Some(url)) = (arguments.next(), arguments.next()) else {
        return Err("give the URL of a proxy and that of a server".into());
    };
    println!("{}", probe(&proxy, &url).await);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    /// What a proxy gets as a request, and what the client says to its answer.
    async fn through(answer: &str) -> (String, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("http://me:secret@{}", listener.local_addr().unwrap());
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(head).unwrap()
        };
        let probe = super::probe(&proxy, "wss://host.example/chat");
        tokio::join!(server, probe)
    }

    #[tokio::test]
    async fn a_refusal_of_the_proxy_is_told_without_the_password() {
        let (request, said) = through("HTTP/1.1 403 No\r\n\r\n").await;
        assert!(request.starts_with("CONNECT host.example:443 HTTP/1.1\r\n"), "{request}");
        assert_eq!(said, "the proxy refuses: the proxy answered with status 403");
        let (_, said) = through("no HTTP\r\n\r\n").await;
        assert!(said.starts_with("the proxy refuses: the proxy's answer is no HTTP"), "{said}");
        assert!(!said.contains("secret"));
    }
}
