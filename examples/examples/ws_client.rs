//! A WebSocket client on a blocking socket. The engine needs no event loop.
//!
//! Start `cargo run --release`, then `cargo run --example ws_client -- 127.0.0.1:9001/echo hello
//! world`. It sends each word as a message, prints the answers, and closes.

use std::{
    error::Error,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
};

use windlass_ws::{
    CloseCode, Config, Engine, EngineEvent, MessageRef, Scratch,
    deflate::DeflateConfig,
    handshake::{ClientRequest, HeadLimits},
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().unwrap_or_else(|| "127.0.0.1:9001/echo".to_owned());
    let (address, path) = place.split_once('/').unwrap_or((&place, ""));
    let mut client = Client::connect(address, &format!("/{path}"))?;
    for word in arguments {
        client.send(MessageRef::Text(&word))?;
        match client.receive()? {
            Some(answer) => println!("{answer}"),
            None => return Err("the server has closed the connection".into()),
        }
    }
    client.close()?;
    Ok(())
}

/// Masking keys and the handshake's key must be unpredictable (RFC 6455 section 10.3).
fn entropy(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel gives random bytes");
}

/// One connection, and received messages that were not requested yet.
struct Client {
    socket: TcpStream,
    engine: Engine,
    scratch: Scratch,
    received: Vec<u8>,
}

impl Client {
    fn connect(address: &str, path: &str) -> Result<Self, Box<dyn Error>> {
        let mut socket = TcpStream::connect(address)?;
        let mut key = [0; 16];
        entropy(&mut key);
        let compression = DeflateConfig::DEFAULT;
        let request = ClientRequest::new(address, path, key).deflate(&compression);
        let mut out = Vec::new();
        request.write(&mut out)?;
        socket.write_all(&out)?;

        let mut received = Vec::new();
        let (head_len, agreed) = loop {
            if let Some((upgraded, head_len)) =
                request.read_response(&received, &HeadLimits::DEFAULT)?
            {
                break (head_len, upgraded.deflate);
            }
            read_more(&mut socket, &mut received)?;
        };
        // The bytes after the response are the server's first frames.
        received.drain(..head_len);
        let config = Arc::new(Config::client(entropy));
        let engine = match agreed {
            Some(agreement) => Engine::with_deflate(&config, &agreement, &compression),
            None => Engine::new(&config),
        };
        Ok(Self { socket, engine, scratch: Scratch::new(), received })
    }

    fn send(&mut self, message: MessageRef<'_>) -> Result<(), Box<dyn Error>> {
        let frame = self.engine.send(message, &mut self.scratch)?;
        self.socket.write_all(frame)?;
        Ok(())
    }

    /// Returns the next message, or `None` after the server's Close frame.
    fn receive(&mut self) -> Result<Option<String>, Box<dyn Error>> {
        loop {
            let mut answer = None;
            let mut pass = self.engine.process(&mut self.received, &mut self.scratch);
            // One message is enough. The others are for the next calls.
            while answer.is_none() {
                match pass.next() {
                    Some(EngineEvent::Text(text)) => answer = Some(text.to_owned()),
                    Some(EngineEvent::Binary(bytes)) => {
                        answer = Some(format!("{} bytes", bytes.len()))
                    }
                    Some(EngineEvent::Violation(violation)) => {
                        println!("the server violates the protocol: {violation}")
                    }
                    Some(_) => {}
                    None => break,
                }
            }
            let outcome = pass.finish();
            // The answers to pings and to a Close frame.
            for piece in self.scratch.output(&outcome, &self.received) {
                self.socket.write_all(piece)?;
            }
            self.received.drain(..outcome.consumed);
            if answer.is_some() || outcome.end.is_some() {
                return Ok(answer);
            }
            read_more(&mut self.socket, &mut self.received)?;
        }
    }

    /// Sends a Close frame, and waits for that of the server.
    fn close(mut self) -> Result<(), Box<dyn Error>> {
        let frame = self.engine.close(CloseCode::NORMAL, "", &mut self.scratch)?;
        self.socket.write_all(frame)?;
        while self.receive()?.is_some() {}
        Ok(())
    }
}

fn read_more(socket: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 4096];
    match socket.read(&mut buffer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            received.extend_from_slice(&buffer[..count]);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};
    use windlass_ws::handshake::{AcceptOptions, HeadReader};

    /// A server for one connection, which echoes every message, and sends a ping before it.
    fn serve(
        listener: &TcpListener,
        compression: Option<&DeflateConfig>,
    ) -> Result<(), Box<dyn Error>> {
        let (mut socket, _) = listener.accept()?;
        let (mut head, mut answer, mut scratch) =
            (HeadReader::new(HeadLimits::DEFAULT), Vec::new(), Scratch::new());
        let mut buffer = vec![0; 16 << 10];
        let agreed = loop {
            let count = socket.read(&mut buffer)?;
            if let Some((request, used)) = head.request(&buffer[..count])? {
                assert_eq!(used, count, "the client waits for the answer");
                break request
                    .upgrade()?
                    .accept(&AcceptOptions::DEFAULT.deflate(compression), &mut answer)?
                    .deflate;
            }
        };
        socket.write_all(&answer)?;
        let config = Arc::new(Config::server());
        let mut engine = match (agreed, compression) {
            (Some(agreement), Some(compression)) => {
                Engine::with_deflate(&config, &agreement, compression)
            }
            _ => Engine::new(&config),
        };
        loop {
            let count = socket.read(&mut buffer)?;
            let mut pass = engine.process(&mut buffer[..count], &mut scratch);
            pass.ping(b"are you there?").ok();
            while let Some(event) = pass.next() {
                match event {
                    // This fails after the client's Close frame.
                    EngineEvent::Text(text) => _ = text.reply(),
                    EngineEvent::Pong(payload) => assert_eq!(payload, b"are you there?"),
                    EngineEvent::Violation(violation) => return Err(violation.into()),
                    _ => {}
                }
            }
            let outcome = pass.finish();
            for piece in scratch.output(&outcome, &buffer[..count]) {
                socket.write_all(piece)?;
            }
            if outcome.end.is_some() {
                return Ok(());
            }
        }
    }

    #[test]
    fn messages_come_back_with_and_without_compression() {
        for compression in [None, Some(&DeflateConfig::DEFAULT)] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
            let address = listener.local_addr().expect("it has an address").to_string();
            thread::scope(|scope| {
                let server = scope
                    .spawn(|| serve(&listener, compression).map_err(|error| error.to_string()));
                let mut client = Client::connect(&address, "/").expect("the server answers");
                let long = "long enough to be compressed, if compression was agreed on ".repeat(9);
                for word in ["one", "", "zwei und zwanzig", &long] {
                    client.send(MessageRef::Text(word)).expect("it is taken");
                    assert_eq!(client.receive().expect("it comes back").as_deref(), Some(word));
                }
                client.close().expect("both say goodbye");
                server.join().expect("no panic").expect("the server is content");
            });
        }
    }
}
