//! A WebSocket client on a blocking socket, with the engine's client role.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::{
    io::{Read, Write},
    sync::Arc,
};

use windlass_ws::{
    CloseCode, Config, End, Engine, EngineEvent, EngineLimits, MessageRef, Scratch,
    deflate::DeflateConfig,
    handshake::{ClientRequest, HeadLimits},
};

/// A message or event from the server.
#[derive(Debug, PartialEq)]
pub(crate) enum Received {
    Text(String),
    Binary(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
}

/// A client. Each of its waits has the time limit of the socket.
pub(crate) struct Client<S> {
    pub(crate) socket: S,
    engine: Engine,
    scratch: Scratch,
    received: Vec<u8>,
    pub(crate) has_deflate: bool,
}

/// Keys that are easy to recognise. In a test they need not be unpredictable.
fn entropy(bytes: &mut [u8]) {
    (0_u8..=u8::MAX)
        .cycle()
        .zip(bytes)
        .for_each(|(number, byte)| *byte = number.wrapping_mul(37).wrapping_add(11));
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn new(socket: S, deflate: Option<&DeflateConfig>) -> Self {
        Self::open(socket, "/echo", deflate)
    }

    pub(crate) fn open(mut socket: S, path: &str, deflate: Option<&DeflateConfig>) -> Self {
        let mut request = ClientRequest::new("localhost", path, *b"sixteen bytes ok");
        if let Some(deflate) = deflate {
            request = request.deflate(deflate);
        }
        let mut out = Vec::new();
        request.write(&mut out).expect("it is a request");
        socket.write_all(&out).expect("the server takes it");
        let mut received = Vec::new();
        let (head_len, agreed) = loop {
            let read =
                request.read_response(&received, &HeadLimits::DEFAULT).expect("it is accepted");
            if let Some((upgraded, head_len)) = read {
                break (head_len, upgraded.deflate);
            }
            read_more(&mut socket, &mut received);
        };
        received.drain(..head_len);
        let mut limits = EngineLimits::DEFAULT;
        (limits.frame_max, limits.message_max) = (1 << 30, 1 << 30);
        limits.inflate_ratio_max = None;
        let config = Arc::new(Config::client(entropy).with_limits(limits));
        let engine = match (agreed, deflate) {
            (Some(agreement), Some(deflate)) => Engine::with_deflate(&config, &agreement, deflate),
            _ => Engine::new(&config),
        };
        Self { socket, engine, scratch: Scratch::new(), received, has_deflate: agreed.is_some() }
    }

    /// Returns the frame of a message without sending it.
    pub(crate) fn frame(&mut self, message: MessageRef<'_>) -> Vec<u8> {
        self.engine.send(message, &mut self.scratch).expect("it is open").to_vec()
    }

    pub(crate) fn send(&mut self, message: MessageRef<'_>) {
        let frame = self.frame(message);
        self.socket.write_all(&frame).expect("the server takes it");
    }

    pub(crate) fn ping(&mut self, payload: &[u8]) {
        let frame = self.engine.ping(payload, &mut self.scratch).expect("it is open");
        self.socket.write_all(frame).expect("the server takes it");
    }

    /// Returns the next message or event of the server.
    pub(crate) fn receive(&mut self) -> Received {
        loop {
            let mut heard = None;
            let mut pass = self.engine.process(&mut self.received, &mut self.scratch);
            while heard.is_none() {
                heard = match pass.next() {
                    Some(EngineEvent::Text(text)) => Some(Received::Text(text.to_owned())),
                    Some(EngineEvent::Binary(bytes)) => Some(Received::Binary(bytes.to_vec())),
                    Some(EngineEvent::Pong(payload)) => Some(Received::Pong(payload.to_vec())),
                    Some(EngineEvent::Close(close)) => Some(Received::Close(
                        close.code.map(CloseCode::get),
                        close.reason.to_owned(),
                    )),
                    Some(EngineEvent::Violation(violation)) => {
                        panic!("the server breaks the protocol: {violation}")
                    }
                    Some(_) => None,
                    None => break,
                };
            }
            let outcome = pass.finish();
            for piece in self.scratch.output(&outcome, &self.received) {
                // The answer to a Close frame may be too late.
                let _ = self.socket.write_all(piece);
            }
            self.received.drain(..outcome.consumed);
            match heard {
                Some(heard) => return heard,
                None => read_more(&mut self.socket, &mut self.received),
            }
        }
    }

    pub(crate) fn exchange(&mut self, message: MessageRef<'_>) {
        self.send(message);
        match (message, self.receive()) {
            (MessageRef::Text(sent), Received::Text(heard)) => {
                assert!(sent == heard, "other text of {} bytes", heard.len())
            }
            (MessageRef::Binary(sent), Received::Binary(heard)) => {
                assert!(sent == heard, "{} other bytes", heard.len())
            }
            (_, other) => panic!("not an echo: {other:?}"),
        }
    }

    /// Performs the close handshake. The server closes TCP.
    pub(crate) fn close(mut self) {
        let frame =
            self.engine.close(CloseCode::NORMAL, "done", &mut self.scratch).expect("it is open");
        self.socket.write_all(frame).expect("the server takes it");
        assert_eq!(self.receive(), Received::Close(Some(1000), "done".to_owned()));
        assert_eq!(self.engine.end(), Some(End::Closed));
        self.expect_end();
    }

    /// Checks that nothing more is received.
    pub(crate) fn expect_end(mut self) {
        assert_eq!(self.socket.read(&mut [0; 16]).expect("it ends in order"), 0);
    }
}

fn read_more(socket: &mut impl Read, received: &mut Vec<u8>) {
    let mut buffer = [0; 16 << 10];
    let count = socket.read(&mut buffer).expect("the server says something");
    assert_ne!(count, 0, "the server has hung up");
    received.extend_from_slice(&buffer[..count]);
}
