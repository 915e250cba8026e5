//! A server of a cluster, its operator and its clients.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use crate::{
    client::{Client, Received},
    harness::{Server, WAIT_MAX, windlass},
    nats::{Nats, until},
};
use serde_json::Value;
use windlass_ws::MessageRef;

/// A server, and the address of its admin listener.
pub(crate) struct Node {
    pub(crate) server: Server,
    pub(crate) admin: String,
}

impl Node {
    /// Starts a server with these options, and does not wait for its cluster. It is ready when it
    /// is connected.
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_ready(&[options, &["--cluster-required"]].concat())
    }

    /// Starts a server that is ready without its cluster.
    pub(crate) fn start_ready(options: &[&str]) -> Self {
        let all = ["serve", "--listen", "127.0.0.1:0", "--drain-timeout", "0"];
        let admin = ["--admin", "127.0.0.1:0"];
        let (server, lines) =
            Server::with_lines(windlass(&[&all[..], &admin, options].concat()), 2);
        let admin = lines[0].strip_prefix("admin at http://").expect("it is the first line");
        Self { server, admin: admin.trim_end_matches('/').to_owned() }
    }

    /// Starts a server, and waits until it is connected.
    pub(crate) fn of(nats: &Nats, options: &[&str]) -> Self {
        let node = Self::start(&[&["--cluster", &nats.url()], options].concat());
        node.wait_until_ready();
        node
    }

    /// Returns the status of the response, and its body.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        get(&self.admin, path)
    }

    #[track_caller]
    pub(crate) fn wait_until_ready(&self) {
        let answer = || self.get("/readyz");
        until(|| (answer().0 == 200).then_some(()), || format!("{:?}", answer()));
    }

    /// Returns its part of the cluster.
    pub(crate) fn cluster(&self) -> Value {
        let status: Value = serde_json::from_str(&self.get("/status").1).expect("it is JSON");
        status["cluster"].clone()
    }

    /// Enters a room at this server.
    #[track_caller]
    pub(crate) fn enter(&self, room: &str) -> Member {
        let mut client = Client::open(self.server.connect(), room, None);
        // The server answers the ping after the connection has entered the room.
        client.ping(b"in?");
        assert_eq!(client.receive(), Received::Pong(b"in?".to_vec()));
        Member(client)
    }
}

/// A member of a room.
pub(crate) struct Member(pub(crate) Client<TcpStream>);

impl Member {
    pub(crate) fn say(&mut self, text: &str) {
        self.0.send(MessageRef::Text(text));
    }

    #[track_caller]
    pub(crate) fn hears(&mut self, text: &str) {
        assert_eq!(self.0.receive(), Received::Text(text.to_owned()));
    }

    /// Nothing has come so far.
    #[track_caller]
    pub(crate) fn hears_nothing(&mut self) {
        self.0.ping(b"quiet?");
        assert_eq!(self.0.receive(), Received::Pong(b"quiet?".to_vec()));
    }
}

/// Returns the status and the body of a response.
pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
    write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("it reads");
    let mut response = String::new();
    socket.read_to_string(&mut response).expect("it answers");
    let (head, body) = response.split_once("\r\n\r\n").expect("the head ends");
    (head[9..12].parse().expect("a status"), body.to_owned())
}
