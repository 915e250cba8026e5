//! The WebSocket engine under tokio: one read and one write per cycle, and no copy of echoed bytes.
//!
//! Run `cargo run --example ws_tokio -- 127.0.0.1:9002`, and connect with any WebSocket client. The
//! engine does no I/O, so any runtime can use it. This file is the whole integration.

use std::{cell::RefCell, error::Error, io, net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use windlass_ws::{
    Config, Engine, EngineEvent, Scratch,
    deflate::DeflateConfig,
    handshake::{AcceptOptions, HeadLimits, HeadReader},
};

/// Maximum number of bytes per read.
const READ_MAX: usize = 64 << 10;

thread_local! {
    /// The state that the connections of one thread share. It is not borrowed across an `await`.
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9002".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address.parse::<SocketAddr>()?).await?;
        println!("listening on {}", listener.local_addr()?);
        let config = Arc::new(Config::server());
        loop {
            let (stream, peer) = listener.accept().await?;
            let config = Arc::clone(&config);
            tokio::spawn(async move {
                if let Err(error) = serve(stream, &config).await {
                    eprintln!("{peer}: {error}");
                }
            });
        }
    })
}

/// Handles one connection to its end.
async fn serve(
    mut stream: TcpStream,
    config: &Arc<Config>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; READ_MAX];
    let Some((mut engine, mut frames)) = handshake(&mut stream, config, &mut buffer).await? else {
        return Ok(());
    };
    loop {
        let mut gathered = Vec::new();
        let outcome = SCRATCH.with_borrow_mut(|scratch| {
            let mut pass = engine.process(&mut buffer[frames.clone()], scratch);
            while let Some(event) = pass.next() {
                // A reply fails at the end of the connection, and then no client waits for it.
                let _ = match event {
                    EngineEvent::Text(text) => text.reply(),
                    EngineEvent::Binary(bytes) => bytes.reply(),
                    _ => Ok(()),
                };
            }
            let outcome = pass.finish();
            if outcome.in_place.is_none() {
                // The output has several pieces, in buffers that another connection's pass would
                // overwrite.
                scratch
                    .output(&outcome, &buffer[frames.clone()])
                    .for_each(|piece| gathered.extend_from_slice(piece));
            }
            outcome
        });
        // The output is mostly a range of the received bytes.
        match &outcome.in_place {
            Some(range) => {
                stream
                    .write_all(&buffer[frames.start + range.start..frames.start + range.end])
                    .await?
            }
            None => stream.write_all(&gathered).await?,
        }
        if outcome.end.is_some() {
            stream.shutdown().await?;
            return Ok(());
        }
        match stream.read(&mut buffer).await? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => frames = 0..count,
        }
    }
}

/// Reads the request and answers it. Returns the engine and the offset of the first frames in the
/// buffer; `None` if the request is not an upgrade.
async fn handshake(
    stream: &mut TcpStream,
    config: &Arc<Config>,
    buffer: &mut [u8],
) -> io::Result<Option<(Engine, std::ops::Range<usize>)>> {
    let compression = DeflateConfig::DEFAULT;
    let (mut head, mut answer) = (HeadReader::new(HeadLimits::DEFAULT), Vec::new());
    loop {
        let count = match stream.read(buffer).await? {
            0 => return Ok(None),
            count => count,
        };
        let upgraded = match head.request(&buffer[..count]) {
            Ok(None) => continue,
            Ok(Some((request, used))) => request.upgrade().map(|upgrade| {
                let accepted = upgrade
                    .accept(&AcceptOptions::DEFAULT.deflate(Some(&compression)), &mut answer);
                (accepted.expect("it has nothing of ours in it").deflate, used)
            }),
            Err(rejection) => Err(rejection),
        };
        let opened = match upgraded {
            Ok((Some(agreement), used)) => {
                Some((Engine::with_deflate(config, &agreement, &compression), used..count))
            }
            Ok((None, used)) => Some((Engine::new(config), used..count)),
            Err(rejection) => {
                rejection.write(&mut answer);
                None
            }
        };
        stream.write_all(&answer).await?;
        return Ok(opened);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_ws::{MessageRef, handshake::ClientRequest};

    fn zeros(bytes: &mut [u8]) {
        bytes.fill(0);
    }

    /// Exchanges messages with the server. The first one is in the same segment as the request.
    async fn exchange(address: SocketAddr, messages: &[&str]) -> io::Result<Vec<String>> {
        let mut stream = TcpStream::connect(address).await?;
        let request = ClientRequest::new("localhost", "/", [0; 16]);
        let (mut out, mut scratch) = (Vec::new(), Scratch::new());
        request.write(&mut out).expect("it is one");
        let mut engine = Engine::new(&Arc::new(Config::client(zeros)));
        for message in messages {
            out.extend_from_slice(
                engine.send(MessageRef::Text(message), &mut scratch).expect("it is open"),
            );
        }
        stream.write_all(&out).await?;
        let (mut received, mut head_len, mut echoes) = (Vec::new(), None, Vec::new());
        while echoes.len() < messages.len() {
            assert_ne!(
                stream.read_buf(&mut received).await?,
                0,
                "the server hangs up after {echoes:?}"
            );
            if head_len.is_none() {
                let read =
                    request.read_response(&received, &HeadLimits::DEFAULT).expect("it is accepted");
                let Some((_, len)) = read else { continue };
                head_len = Some(len);
                received.drain(..len);
            }
            let mut pass = engine.process(&mut received, &mut scratch);
            while let Some(event) = pass.next() {
                match event {
                    EngineEvent::Text(text) => echoes.push(text.to_owned()),
                    other => panic!("{other:?}"),
                }
            }
            let consumed = pass.finish().consumed;
            received.drain(..consumed);
        }
        Ok(echoes)
    }

    #[tokio::test]
    async fn messages_come_back_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client comes");
            serve(stream, &Arc::new(Config::server())).await
        });
        let long = "a message of more than one read ".repeat(5000);
        let messages = ["first", "", "zwölf", &long];
        assert_eq!(exchange(address, &messages).await.expect("the server answers"), messages);
        // The client has disconnected without a Close frame.
        let error = server.await.expect("no panic").expect_err("it is no orderly end");
        assert!(error.to_string().contains("unexpected end of file"), "{error}");
    }

    #[tokio::test]
    async fn what_is_no_upgrade_is_answered_and_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client comes");
            serve(stream, &Arc::new(Config::server())).await
        });
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("it is taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it is answered");
        assert!(answer.starts_with("HTTP/1.1 426 "), "{answer}");
        server.await.expect("no panic").expect("nothing is wrong");
    }
}
