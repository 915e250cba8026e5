//! A WebSocket server with a plain thread for each connection, on blocking sockets.
//!
//! Run `cargo run --example ws_blocking -- 127.0.0.1:9024`, and connect with any WebSocket client.
//! The engine does no I/O, so it needs no event loop: this is an accept, a read and a write.
//! `ws_client` is a client of the same kind.

use std::{
    error::Error,
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use windlass_ws::{
    Config, Engine, EngineEvent, Scratch,
    handshake::{AcceptOptions, HeadLimits, HeadReader},
};

/// The size of a connection's only buffer. The engine's own memory is that of one message.
const READ_MAX: usize = 16 << 10;

/// How long a client may be silent. Without a limit it holds a thread for ever.
const SILENCE_MAX: Duration = Duration::from_secs(60);

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9024".to_owned());
    let listener = TcpListener::bind(address)?;
    println!("listening on ws://{}/", listener.local_addr()?);
    let config = Arc::new(Config::server());
    loop {
        let (stream, peer) = listener.accept()?;
        let config = Arc::clone(&config);
        thread::spawn(move || {
            if let Err(error) = serve(stream, &config) {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

/// Echoes messages to the end of the connection.
fn serve(mut stream: TcpStream, config: &Arc<Config>) -> Result<(), Box<dyn Error>> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let (mut buffer, mut scratch) = (vec![0; READ_MAX], Scratch::new());
    let Some(mut frames) = handshake(&mut stream, &mut buffer)? else { return Ok(()) };
    let mut engine = Engine::new(config);
    loop {
        let received = &mut buffer[frames];
        let mut pass = engine.process(received, &mut scratch);
        while let Some(event) = pass.next() {
            // A reply fails at the end of the connection, and then no client waits for it.
            let _ = match event {
                EngineEvent::Text(text) => text.reply(),
                EngineEvent::Binary(bytes) => bytes.reply(),
                _ => Ok(()),
            };
        }
        let outcome = pass.finish();
        for piece in scratch.output(&outcome, received) {
            stream.write_all(piece)?;
        }
        if outcome.end.is_some() {
            return Ok(());
        }
        frames = 0..read(&mut stream, &mut buffer)?;
    }
}

/// Reads the request and answers it. Returns where the first frames are in the buffer; `None` if
/// the request is no upgrade.
fn handshake(
    stream: &mut TcpStream,
    buffer: &mut [u8],
) -> Result<Option<std::ops::Range<usize>>, Box<dyn Error>> {
    let (mut head, mut answer) = (HeadReader::new(HeadLimits::DEFAULT), Vec::new());
    let frames = loop {
        let count = read(stream, buffer)?;
        let upgrade = match head.request(&buffer[..count]) {
            Ok(None) => continue,
            Ok(Some((request, used))) => request.upgrade().map(|upgrade| (upgrade, used)),
            Err(rejection) => Err(rejection),
        };
        break match upgrade {
            Ok((upgrade, used)) => {
                upgrade.accept(&AcceptOptions::DEFAULT, &mut answer)?;
                Some(used..count)
            }
            Err(rejection) => {
                rejection.write(&mut answer);
                None
            }
        };
    };
    stream.write_all(&answer)?;
    Ok(frames)
}

fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tungstenite::{Message, client};

    /// Starts a server for one connection.
    fn start() -> (thread::JoinHandle<Result<(), String>>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client comes");
            serve(stream, &Arc::new(Config::server())).map_err(|error| error.to_string())
        });
        (server, TcpStream::connect(address).expect("it listens"))
    }

    #[test]
    fn messages_come_back_and_a_close_frame_is_answered() {
        let (server, stream) = start();
        let (mut socket, _) = client("ws://localhost/", stream).expect("it accepts");
        let long = "longer than a read ".repeat(5000);
        for text in ["first", "", "zwölf", &long] {
            socket.send(Message::text(text)).expect("it reads");
            assert_eq!(socket.read().expect("it answers"), Message::text(text));
        }
        socket.close(None).expect("it reads");
        assert!(matches!(socket.read(), Ok(Message::Close(None))), "it is answered");
        server.join().expect("no panic").expect("the end is clean");
    }

    #[test]
    fn what_is_no_upgrade_is_answered() {
        let (server, mut stream) = start();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is answered");
        assert!(answer.starts_with("HTTP/1.1 426 "), "{answer}");
        server.join().expect("no panic").expect("nothing is wrong");
    }
}
