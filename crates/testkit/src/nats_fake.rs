//! A server of NATS that does what a test says, for what nats-server cannot be made to do: it
//! begins with TLS (nats-server from 2.10 on), or ends between two bytes.

use std::{
    fmt,
    io::{self, BufRead as _, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::Arc,
    thread::{self, JoinHandle},
};

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use windlass_server::bus::Envelope;

use crate::certificates::server_config;

/// The longest payload that it takes.
const PAYLOAD_MAX: usize = 1 << 30;

pub struct Fake {
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    /// In JSON.
    name: &'static str,
}

impl Fake {
    pub fn start() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), tls: None, name: "fake" }
    }

    /// Its name, as it stands in JSON.
    pub fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// It says nothing before TLS.
    pub fn tls_first() -> Self {
        Self::tls_first_as("localhost")
    }

    /// The same with a certificate of the tests of `windlass-tls`.
    pub fn tls_first_as(name: &str) -> Self {
        let config = server_config(name);
        Self { tls: Some(Arc::new(config)), ..Self::start() }
    }

    pub fn url(&self) -> String {
        format!("nats://{}", self.listener.local_addr().unwrap())
    }

    /// Accepts a node, and says nothing.
    pub fn accept_silently(&self) -> Peer {
        let (socket, _) = self.listener.accept().unwrap();
        Peer { reader: BufReader::new(Box::new(socket.try_clone().unwrap())), socket }
    }

    /// Accepts a node, until it is connected.
    ///
    /// # Errors
    /// The node has ended the connection before.
    pub fn accept(&self) -> io::Result<Peer> {
        let (socket, _) = self.listener.accept().unwrap();
        let stream: Box<dyn Stream> = match &self.tls {
            Some(config) => {
                let connection = ServerConnection::new(Arc::clone(config)).unwrap();
                Box::new(StreamOwned::new(connection, socket.try_clone()?))
            }
            None => Box::new(socket.try_clone()?),
        };
        let mut peer = Peer { reader: BufReader::new(stream), socket };
        let port = self.listener.local_addr()?.port();
        peer.write(format_args!(
            "INFO {{\"server_id\":\"F\",\"server_name\":\"{}\",\"version\":\"2.10.0\",\
             \"proto\":1,\"headers\":true,\"host\":\"127.0.0.1\",\"port\":{port},\
             \"max_payload\":{PAYLOAD_MAX}}}\r\n",
            self.name
        ))?;
        peer.connect_line()?;
        peer.write(format_args!("PONG\r\n"))?;
        Ok(peer)
    }
}

pub trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// A connected node.
pub struct Peer {
    reader: BufReader<Box<dyn Stream>>,
    socket: TcpStream,
}

impl Peer {
    fn write(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
        let stream = self.reader.get_mut();
        stream.write_all(text.to_string().as_bytes())?;
        stream.flush()
    }

    /// The line by which the node shows its credentials. It asks for an answer behind it.
    pub fn connect_line(&mut self) -> io::Result<String> {
        let connect = self.line()?;
        assert!(connect.starts_with("CONNECT {"), "{connect}");
        assert_eq!(self.line()?, "PING");
        Ok(connect)
    }

    pub fn send(&mut self, text: &str) {
        self.write(format_args!("{text}")).unwrap();
    }

    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Sends a beginning, and then bytes until the node ends the connection, or so many. Returns
    /// their number.
    pub fn flood(&mut self, begin: &str, max: usize) -> usize {
        let (mut sent, more) = (0, [b' '; 64 << 10]);
        if self.socket.write_all(begin.as_bytes()).is_err() {
            return sent;
        }
        while sent < max {
            match self.socket.write(&more) {
                Ok(len) => sent += len,
                Err(_) => break,
            }
        }
        sent
    }

    /// Sends a line without end, on a thread, until the node ends the connection.
    pub fn chatter(&self) -> JoinHandle<()> {
        let mut socket = self.socket.try_clone().unwrap();
        let lines = "+OK\r\n".repeat(1000);
        thread::spawn(move || while socket.write_all(lines.as_bytes()).is_ok() {})
    }

    /// Delivers a text of another node.
    pub fn deliver(&mut self, subject: &str, text: &str) {
        let payload = text.as_bytes();
        let mut bytes = Vec::new();
        Envelope { node: 1, worker: 0, epoch: 0, sequence: 0, topic: None, is_text: true, payload }
            .encode(&mut bytes);
        self.write(format_args!("MSG {subject} 1 {}\r\n", bytes.len())).unwrap();
        self.socket.write_all(&bytes).unwrap();
        self.send("\r\n");
    }

    /// Answers until the head of a publication comes. Returns its subject and the length of its
    /// payload, which is not read. `None` at the end.
    pub fn head(&mut self) -> Option<(String, usize)> {
        while let Ok(line) = self.line() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["PING"] => self.write(format_args!("PONG\r\n")).ok()?,
                ["PUB", subject, length] => return Some((subject.into(), length.parse().unwrap())),
                ["PONG" | "SUB" | "UNSUB", ..] => {}
                _ => panic!("{line}"),
            }
        }
        None
    }

    /// The subject of the next publication. `None` at the end.
    pub fn publication(&mut self) -> Option<String> {
        let (subject, length) = self.head()?;
        io::copy(&mut self.reader.by_ref().take(length as u64 + 2), &mut io::sink()).ok()?;
        Some(subject)
    }

    /// Sends no more.
    pub fn finish(&self) {
        self.socket.shutdown(Shutdown::Write).unwrap();
    }

    /// Ends the connection, in the middle of what comes.
    pub fn cut(self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
