//! A server with two workers, for the case `fan_out`. The publisher is at the first worker, and the
//! kernel distributes the receivers. With `--ordered` the topic is ordered, and the other worker
//! owns it, which is the longer way.

#![deny(unsafe_code)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use windlass::Backend;
use windlass_bench_driver::Error;
use windlass_bench_driver::protocol::ServerInfo;
use windlass_bench_driver::server::{
    self, ANY_PORT, Mode, PUBLISHER, Settings, TOPIC, announce_as,
};
use windlass_server::http::{Accept, Reject, UpgradeRequest};
use windlass_server::{Connection, Handler, Message, Options, RunningServer, Server};

/// The path of a connection that finds the owner of the topic.
const PROBE: &str = "/probe";

fn main() -> ExitCode {
    server::run(serve)
}

fn serve(settings: Settings) -> Result<(), Error> {
    settings.require(Mode::Broadcast)?;
    let (running, publisher) = loop {
        let (running, publisher) = start(&settings)?;
        if !settings.ordered || !owns_topic(publisher)? {
            break (running, publisher);
        }
        // Each start chooses the owner anew.
        running.stop();
        running.join()?;
    };
    announce_as(&ServerInfo {
        receivers: running.addresses()[0].socket_addr(),
        ..ServerInfo::new(publisher, env!("CARGO_PKG_VERSION"))
    });
    Ok(running.join()?)
}

/// Starts the server. Returns the address of the first worker, too.
fn start(settings: &Settings) -> Result<(RunningServer, SocketAddr), Error> {
    let backend = settings.backend_or(Backend::Auto)?;
    let mut options = Options::new();
    if settings.ordered {
        options.ordered_topics(TOPIC);
    }
    let first = TcpListener::bind(ANY_PORT)?;
    let address = first.local_addr()?;
    let running = Server::new(options, |_| Broadcast)
        .workers(2)
        .backend(backend)
        .listen(ANY_PORT)
        .listen_on_each(vec![vec![OwnedFd::from(first)], Vec::new()])
        .start()?;
    Ok((running, address))
}

/// Returns whether the worker at this address owns the topic: it alone delivers a publication
/// before the answer that is sent after it.
fn owns_topic(address: SocketAddr) -> Result<bool, Error> {
    let mut socket = TcpStream::connect(address)?;
    let request = format!(
        "GET {PROBE} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    socket.write_all(request.as_bytes())?;
    // A text message without a payload, masked with zeros.
    socket.write_all(&[0x81, 0x80, 0, 0, 0, 0])?;
    let (mut received, mut byte) = (Vec::new(), [0]);
    while !received.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte)?;
        received.push(byte[0]);
    }
    // The header of a text of one byte, and that byte.
    let mut frame = [0; 3];
    socket.read_exact(&mut frame)?;
    Ok(frame[2] == b'p')
}

/// Sends the messages of publishers to all receivers.
struct Broadcast;

enum Role {
    Publisher,
    Receiver,
    Probe,
}

impl Handler for Broadcast {
    type Data = Role;

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<Role>, Reject> {
        Ok(Accept::new(match request.path() {
            PUBLISHER => Role::Publisher,
            PROBE => Role::Probe,
            _ => Role::Receiver,
        }))
    }

    fn on_open(&self, connection: &mut Connection<'_>, role: &mut Role) {
        if !matches!(role, Role::Publisher) {
            connection.subscribe(TOPIC).expect("the name is short");
        }
    }

    fn on_message(&self, connection: &mut Connection<'_>, role: &mut Role, message: Message<'_>) {
        match role {
            Role::Publisher => _ = connection.publish_to_others(TOPIC, message.to_out()),
            Role::Receiver => {}
            Role::Probe => {
                connection.publish(TOPIC, "p");
                // This fails if the connection is closing, and then nobody waits for it.
                let _ = connection.send("a");
            }
        }
    }
}
