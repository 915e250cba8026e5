//! The example in `examples/cluster`.

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
};

use rustix::process::{Signal, kill_process};

use crate::{
    client::{Client, Received},
    harness::{Running, WAIT_MAX, lines_of},
    nats::until,
};
use windlass_ws::MessageRef;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster/run.sh");

fn enter(address: SocketAddr) -> Client<std::net::TcpStream> {
    let socket = std::net::TcpStream::connect(address).expect("it listens");
    socket.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
    let mut client = Client::open(socket, "/room/lobby", None);
    client.ping(b"in?");
    assert_eq!(client.receive(), Received::Pong(b"in?".to_vec()));
    client
}

pub(crate) fn its_script_runs_two_servers() {
    let mut command = Command::new("bash");
    command.arg(SCRIPT).env("WINDLASS", env!("CARGO_BIN_EXE_windlass"));
    for port in ["NATS_PORT", "PORT_A", "PORT_B"] {
        command.env(port, "0");
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut script = Running(child.spawn().expect("there is a bash"));
    let lines = lines_of(script.0.stdout.take().expect("piped"));
    let mut addresses = [None; 2];
    while addresses.contains(&None) {
        let line = lines.recv_timeout(WAIT_MAX).expect("both servers start");
        for (address, name) in addresses.iter_mut().zip(["a", "b"]) {
            let text = line.strip_prefix(&format!("{name}: listening on http://"));
            *address = address.or(text.and_then(|text| text.trim_end_matches('/').parse().ok()));
        }
    }
    let [mut ada, mut bob] = addresses.map(|address| enter(address.expect("it is there")));
    // Both are subscribed after a while, and then each message arrives.
    let (mut at, socket) = (0, bob.socket.try_clone().expect("it can be cloned"));
    until(
        || {
            at += 1;
            ada.send(MessageRef::Text(&format!("message {at}")));
            is_readable(&socket).then_some(())
        },
        || "no message crosses".to_owned(),
    );
    assert!(matches!(bob.receive(), Received::Text(text) if text.starts_with("message ")));
    // A graceful end waits for the members.
    drop((ada, bob, socket));
    kill_process(script.pid(), Signal::TERM).expect("it runs");
    script.wait();
    // The servers are gone, and nats-server with them: nothing holds the pipe any more.
    while lines.recv_timeout(WAIT_MAX).is_ok() {}
    for address in addresses.into_iter().flatten() {
        assert!(std::net::TcpStream::connect(address).is_err(), "{address} is closed");
    }
}

/// Whether something has come, within ten milliseconds.
fn is_readable(socket: &std::net::TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let patience = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&patience)).expect("poll works") > 0
}
