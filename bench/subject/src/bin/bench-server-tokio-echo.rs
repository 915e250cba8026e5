//! The floor of the suite `websocket`: a server on tokio that answers the upgrade, and then sends
//! back the bytes that it receives, without a look at them. One buffer serves all connections.

#![deny(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::unconstrained;
use windlass_bench_driver::locked_version;
use windlass_bench_driver::protocol::ServerInfo;
use windlass_bench_driver::server::{self, Mode};
use windlass_bench_tokio_server as tokio_server;
use windlass_ws::handshake::accept_value;

const LOCK: &str = include_str!("../../../../Cargo.lock");

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; 64 * 1024].into());
}

fn main() -> ExitCode {
    let version = locked_version(LOCK, "tokio");
    let announced = |address| ServerInfo { echoes_bytes: true, ..server::this(address, &version) };
    tokio_server::serve(announced, |settings| {
        settings.require(Mode::Echo)?;
        Ok(move |stream| {
            unconstrained(async move {
                // It ends with an error when its client disconnects.
                let _ = connection(stream, settings.deflate).await;
            })
        })
    })
}

async fn connection(mut stream: TcpStream, deflate: bool) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    stream.write_all(&answer(&request, deflate)).await?;
    drop(request);
    while let Some(rest) = std::future::poll_fn(|cx| {
        BUFFER.with_borrow_mut(|buffer| {
            let mut received = ReadBuf::new(buffer);
            ready!(Pin::new(&mut stream).poll_read(cx, &mut received))?;
            let received = received.filled();
            if received.is_empty() {
                return Poll::Ready(Ok::<_, io::Error>(None));
            }
            let sent = match Pin::new(&mut stream).poll_write(cx, received) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            };
            Poll::Ready(Ok(Some(received[sent..].to_vec())))
        })
    })
    .await?
    {
        stream.write_all(&rest).await?;
    }
    Ok(())
}

/// Returns the response to an upgrade. With compression it agrees to what the client offers.
fn answer(request: &[u8], deflate: bool) -> Vec<u8> {
    let head = String::from_utf8_lossy(request);
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    let key = fields.find_map(|(name, key)| {
        name.eq_ignore_ascii_case("sec-websocket-key").then(|| accept_value(key.as_bytes()))
    });
    let extension = if deflate {
        "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; \
         client_no_context_takeover\r\n"
    } else {
        ""
    };
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {}\r\n{extension}\r\n",
        key.flatten().unwrap_or_default()
    )
    .into_bytes()
}
