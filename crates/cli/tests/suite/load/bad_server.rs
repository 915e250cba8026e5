//! Servers that misbehave, each in a thread of the test.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread::{self, JoinHandle},
};

use rustix::net::sockopt;
use windlass_ws::{
    CloseCode, Config, Engine, EngineEvent, MessageRef, Scratch,
    handshake::{AcceptOptions, HeadLimits, HeadReader},
};

use crate::harness::WAIT_MAX;

/// A server for one connection.
pub(crate) struct BadServer {
    address: SocketAddr,
    thread: JoinHandle<()>,
}

impl BadServer {
    /// Serves one connection.
    pub(crate) fn start(serve: impl FnOnce(TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let address = listener.local_addr().expect("it has an address");
        let thread = thread::spawn(move || {
            let (socket, _) = listener.accept().expect("the client connects");
            socket.set_nodelay(true).expect("it can be set");
            socket.set_read_timeout(Some(WAIT_MAX)).expect("it can be set");
            serve(socket);
        });
        Self { address, thread }
    }

    /// Starts a WebSocket server that calls `respond` for each message instead of echoing it.
    pub(crate) fn websocket(
        mut respond: impl FnMut(u64, MessageRef<'_>, &mut Responder<'_>) + Send + 'static,
    ) -> Self {
        Self::start(move |mut socket| {
            let mut peer = WebSocketPeer::accept(&mut socket);
            let mut number = 0;
            while peer.answer(&mut socket, |message, responder| {
                number += 1;
                respond(number, message, responder);
            }) {}
        })
    }

    pub(crate) fn ws(&self) -> String {
        format!("ws://{}/", self.address)
    }

    pub(crate) fn tcp(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// Waits for its end. Panics if the server panicked.
    pub(crate) fn join(self) {
        self.thread.join().expect("the server does not panic");
    }
}

/// Sends the responses of a server.
pub(crate) struct Responder<'a> {
    engine: &'a mut Engine,
    socket: &'a mut TcpStream,
    scratch: &'a mut Scratch,
    is_over: &'a mut bool,
}

impl Responder<'_> {
    /// Sends a message at once.
    pub(crate) fn send(&mut self, message: MessageRef<'_>) {
        let frame = self.engine.send(message, self.scratch).expect("it is open");
        // A client that has found the fault disconnects.
        let _ = self.socket.write_all(frame);
    }

    /// Sends bytes that need not be frames.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes);
    }

    /// Sends a Close frame.
    pub(crate) fn send_close(&mut self, code: CloseCode, reason: &str) {
        let frame = self.engine.close(code, reason, self.scratch).expect("it is open");
        let _ = self.socket.write_all(frame);
    }

    /// Disconnects.
    pub(crate) fn disconnect(&mut self) {
        *self.is_over = true;
    }

    /// Disconnects with a RST.
    pub(crate) fn reset(&mut self) {
        sockopt::set_socket_linger(&*self.socket, Some(std::time::Duration::ZERO))
            .expect("it can be set");
        *self.is_over = true;
    }
}

/// The WebSocket side of a server: reads messages, and calls a function to answer them.
pub(crate) struct WebSocketPeer {
    engine: Engine,
    scratch: Scratch,
    buffer: Vec<u8>,
}

impl WebSocketPeer {
    /// Accepts the handshake, without extensions.
    pub(crate) fn accept(socket: &mut TcpStream) -> Self {
        Self::accept_and_send(socket, &[])
    }

    /// The same, with more bytes after the response, in one write.
    pub(crate) fn accept_and_send(socket: &mut TcpStream, more: &[u8]) -> Self {
        let (mut head, mut answer) = (HeadReader::new(HeadLimits::DEFAULT), Vec::new());
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = socket.read(&mut buffer).expect("the client asks");
            if let Some((request, used)) = head.request(&buffer[..count]).expect("it is a request")
            {
                assert_eq!(used, count, "the client waits for the answer");
                let upgrade = request.upgrade().expect("it asks for an upgrade");
                upgrade
                    .accept(&AcceptOptions::DEFAULT, &mut answer)
                    .expect("there is nothing of ours in it");
                break;
            }
        }
        answer.extend_from_slice(more);
        socket.write_all(&answer).expect("the client waits for it");
        Self { engine: Engine::new(&Arc::new(Config::server())), scratch: Scratch::new(), buffer }
    }

    /// Reads once and calls `respond` for each message. Returns whether the connection is still
    /// open.
    pub(crate) fn answer(
        &mut self,
        socket: &mut TcpStream,
        mut respond: impl FnMut(MessageRef<'_>, &mut Responder<'_>),
    ) -> bool {
        // A client without a fault sends a Close frame before it disconnects. A client with one
        // resets the connection.
        let Ok(count @ 1..) = socket.read(&mut self.buffer) else { return false };
        let mut messages = Vec::new();
        let mut pass = self.engine.process(&mut self.buffer[..count], &mut self.scratch);
        let mut is_closing = false;
        while let Some(event) = pass.next() {
            match event {
                EngineEvent::Text(text) => messages.push((true, text.as_bytes().to_vec())),
                EngineEvent::Binary(bytes) => messages.push((false, bytes.to_vec())),
                EngineEvent::Close(_) => is_closing = true,
                EngineEvent::Violation(violation) => {
                    panic!("the client breaks the protocol: {violation}")
                }
                _ => {}
            }
        }
        let outcome = pass.finish();
        let output: Vec<u8> =
            self.scratch.output(&outcome, &self.buffer[..count]).flatten().copied().collect();
        let mut is_over = false;
        for (is_text, bytes) in messages {
            let message = match is_text {
                true => MessageRef::Text(
                    std::str::from_utf8(&bytes).expect("the engine has checked it"),
                ),
                false => MessageRef::Binary(&bytes),
            };
            let (engine, scratch) = (&mut self.engine, &mut self.scratch);
            respond(message, &mut Responder { engine, socket, scratch, is_over: &mut is_over });
            if is_over {
                return false;
            }
        }
        let _ = socket.write_all(&output);
        !is_closing
    }
}

/// Starts a byte stream server that passes each received piece to `change` before it echoes it. It
/// disconnects if `change` returns false, or if the client disconnects.
pub(crate) fn raw(mut change: impl FnMut(&mut Vec<u8>) -> bool + Send + 'static) -> BadServer {
    BadServer::start(move |mut socket| {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = socket.read(&mut buffer) {
            let mut piece = buffer[..count].to_vec();
            let goes_on = change(&mut piece);
            // A client that has found the fault disconnects.
            let _ = socket.write_all(&piece);
            if !goes_on {
                return;
            }
        }
    })
}

/// Reads a request and ignores its contents.
pub(crate) fn read_request(socket: &mut TcpStream) {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte).expect("the client asks");
        request.push(byte[0]);
    }
}
