//! Blocking clients that count all they do.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
};

use windlass_testkit::frames::masked;

use crate::harness::WAIT_MAX;

macro_rules! tally {
    ($($name:ident)*) => {
        /// What clients have done, in the words of the metrics: `in` is what the server receives.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Tally {
            $(pub(crate) $name: u64,)*
        }

        impl Tally {
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

tally! {
    opened lost closed_1000 closed_1005 closed_3000
    in_text in_binary in_ping in_pong in_bytes in_wire
    out_text out_binary out_pong out_bytes out_wire
    subscriptions_begun subscriptions_ended slow_published
}

impl Tally {
    pub(crate) fn closed(&self) -> u64 {
        self.lost + self.closed_1000 + self.closed_1005 + self.closed_3000
    }
}

pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// An open WebSocket.
pub(crate) struct Client {
    socket: TcpStream,
    is_member: bool,
}

/// How a connection is ended.
#[derive(Clone, Copy)]
pub(crate) enum Ending {
    Code(u16),
    NoCode,
    Lost,
}

impl Client {
    pub(crate) fn open(server: SocketAddr, path: &str, tally: &mut Tally) -> Self {
        let socket = TcpStream::connect_timeout(&server, WAIT_MAX).expect("the server listens");
        socket.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
        socket.set_nodelay(true).expect("it is a TCP socket");
        let is_member = path.starts_with("/room/");
        let mut client = Self { socket, is_member };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        client.write(request.as_bytes(), tally);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.socket.read_exact(&mut byte).expect("the response comes");
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        tally.out_wire += head.len() as u64;
        tally.opened += 1;
        tally.subscriptions_begun += u64::from(is_member);
        client
    }

    fn write(&mut self, bytes: &[u8], tally: &mut Tally) {
        self.socket.write_all(bytes).expect("the server reads");
        tally.in_wire += bytes.len() as u64;
    }

    fn frame(&mut self, opcode: u8, payload: &[u8], tally: &mut Tally) {
        let frame = masked(0x80 | opcode, payload);
        self.write(&frame, tally);
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, opcode: u8, payload: &[u8], tally: &mut Tally) {
        self.frame(opcode, payload, tally);
        *(if opcode == TEXT { &mut tally.in_text } else { &mut tally.in_binary }) += 1;
        tally.in_bytes += payload.len() as u64;
    }

    /// Receives a message.
    pub(crate) fn receive(&mut self, tally: &mut Tally) -> (u8, Vec<u8>) {
        let (opcode, payload) = self.next(tally).expect("a message comes");
        match opcode {
            TEXT => tally.out_text += 1,
            BINARY => tally.out_binary += 1,
            other => panic!("{other} is no message"),
        }
        tally.out_bytes += payload.len() as u64;
        (opcode, payload)
    }

    /// Receives a message if one comes soon.
    pub(crate) fn try_receive(&mut self, tally: &mut Tally) -> Option<Vec<u8>> {
        self.socket.set_read_timeout(Some(std::time::Duration::from_millis(200))).expect("it is");
        let waits = matches!(self.socket.peek(&mut [0]), Ok(1..));
        self.socket.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
        waits.then(|| self.receive(tally).1)
    }

    /// Sends a ping, and a pong that nobody has asked for. Receives the answer.
    pub(crate) fn ping(&mut self, tally: &mut Tally) {
        self.frame(PONG, b"", tally);
        self.frame(PING, b"ping", tally);
        assert_eq!(self.next(tally).expect("a pong comes"), (PONG, b"ping".to_vec()));
        tally.in_pong += 1;
        tally.in_ping += 1;
        tally.out_pong += 1;
    }

    /// The next frame, unless the connection ends before it.
    fn next(&mut self, tally: &mut Tally) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        if let Err(error) = self.socket.read_exact(&mut head) {
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
            return None;
        }
        let mut take = |count: usize| {
            let mut bytes = vec![0; count];
            self.socket.read_exact(&mut bytes).expect("the whole frame comes");
            bytes
        };
        let len = match head[1] {
            126 => u16::from_be_bytes(take(2).try_into().expect("two bytes")).into(),
            127 => u64::from_be_bytes(take(8).try_into().expect("eight bytes")),
            len => len.into(),
        };
        let payload = take(len as usize);
        let header = match head[1] {
            126 => 4,
            127 => 10,
            _ => 2,
        };
        tally.out_wire += header + len;
        Some((head[0] & 0xf, payload))
    }

    /// Ends the connection, and waits for the server's part of it.
    pub(crate) fn end(mut self, ending: Ending, tally: &mut Tally) {
        tally.subscriptions_ended += u64::from(self.is_member);
        let code = match ending {
            Ending::Code(code) => code.to_be_bytes().to_vec(),
            Ending::NoCode => Vec::new(),
            Ending::Lost => {
                tally.lost += 1;
                return;
            }
        };
        self.frame(CLOSE, &code, tally);
        assert_eq!(self.next(tally), Some((CLOSE, code)));
        assert_eq!(self.next(tally), None);
        match ending {
            Ending::Code(1000) => tally.closed_1000 += 1,
            Ending::NoCode => tally.closed_1005 += 1,
            _ => tally.closed_3000 += 1,
        }
    }
}
