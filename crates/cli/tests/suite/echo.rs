//! `windlass serve --mode echo` as its users see it: the program, real sockets, and a client with
//! the same engine.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
};

use crate::client::{Client, Received};
use crate::harness::{Server, WAIT_MAX, number_before, pattern, windlass, with_arguments};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use windlass_ws::{MessageRef, deflate::DeflateConfig};

fn connect(server: &Server) -> Client<TcpStream> {
    Client::new(server.connect(), None)
}

/// Lengths around the limits of each form of a frame's length, and around the size of a read.
const LENGTHS: [usize; 14] =
    [0, 1, 20, 125, 126, 127, 1024, 16_384, 65_521, 65_522, 65_535, 65_536, 65_550, 1_000_000];

#[test]
fn messages_of_every_length_come_back_with_and_without_compression() {
    for mode in ["off", "shared", "dedicated"] {
        // The text has a higher compression ratio than the default limit.
        let server = Server::start(&["--deflate", mode, "--inflate-ratio-max", "0"]);
        let mut client = Client::new(server.connect(), Some(&DeflateConfig::DEFAULT));
        assert_eq!(client.has_deflate, mode != "off");
        for length in LENGTHS {
            client.exchange(MessageRef::Binary(&pattern(7, length)));
            client.exchange(MessageRef::Text(&"zwölf Boxkämpfer ".repeat(length / 19)));
        }
        client.ping(b"are you there?");
        assert_eq!(client.receive(), Received::Pong(b"are you there?".to_vec()));
        client.close();
        let line = server.stop_cleanly();
        assert_eq!(number_before("messages", &line), 2 * LENGTHS.len() as u64);
        assert_eq!(number_before("broken off", &line), 0);
    }
}

#[test]
fn many_messages_in_one_segment_come_back_in_order() {
    let server = Server::start(&[]);
    let mut client = connect(&server);
    let words: Vec<String> = (0..1000).map(|number| format!("message {number}")).collect();
    let mut frames = Vec::new();
    for word in &words {
        frames.extend(client.frame(MessageRef::Text(word)));
    }
    client.socket.write_all(&frames).expect("the server takes it");
    for word in words {
        assert_eq!(client.receive(), Received::Text(word));
    }
    client.close();
    server.stop_cleanly();
}

#[test]
fn a_client_that_does_not_read_is_slowed_down_and_loses_nothing() {
    const LENGTH: usize = 1 << 20;
    let server = Server::start(&["--buffer", "1048586"]);
    let mut client = connect(&server);
    let message = pattern(3, LENGTH);
    let frame = client.frame(MessageRef::Binary(&message));
    // Writes until the kernel takes nothing for a while. A slow server would only make the test
    // easier.
    client.socket.set_nonblocking(true).expect("it can be set");
    let mut written = 0;
    loop {
        match client.socket.write(&frame[written % frame.len()..]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let a_while = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
                let takes_more = |timeout: &Timespec| {
                    let mut fds = [PollFd::new(&client.socket, PollFlags::OUT)];
                    poll(&mut fds, Some(timeout)).expect("poll works") > 0
                };
                if !takes_more(&a_while) {
                    // The server has had a turn after each of these, and has not read.
                    (0..2).for_each(|_| connect(&server).exchange(MessageRef::Text("hello")));
                    if !takes_more(&Timespec { tv_sec: 0, tv_nsec: 0 }) {
                        break;
                    }
                }
            }
            Err(error) => panic!("the server broke off: {error}"),
        }
        assert!(
            written < 100 * frame.len(),
            "the server keeps without bound what its client does not read"
        );
    }
    // Another client is served meanwhile.
    connect(&server).exchange(MessageRef::Text("hello"));

    client.socket.set_nonblocking(false).expect("it can be set");
    let rest = frame[written % frame.len()..].to_vec();
    let mut writer = client.socket.try_clone().expect("a socket can be cloned");
    thread::scope(|scope| {
        scope.spawn(move || writer.write_all(&rest).expect("the server takes it"));
        for _ in 0..written / frame.len() + 1 {
            let Received::Binary(heard) = client.receive() else { panic!("not an echo") };
            assert!(heard == message, "{} other bytes", heard.len());
        }
    });
    client.close();
    let line = server.stop_cleanly();
    assert!(number_before("times, accepting", &line) > 0, "reading was never paused: {line}");
}

#[test]
fn a_message_that_is_too_long_is_refused_by_its_code() {
    let server = Server::start(&["--message-max", "1000"]);
    connect(&server).exchange(MessageRef::Binary(&pattern(1, 1000)));
    let mut client = connect(&server);
    client.send(MessageRef::Binary(&pattern(1, 1001)));
    assert_eq!(client.receive(), Received::Close(Some(1009), String::new()));
    client.expect_end();
    // The compressed text is short.
    let mut client = Client::new(server.connect(), Some(&DeflateConfig::DEFAULT));
    client.send(MessageRef::Text(&"a".repeat(1001)));
    assert_eq!(client.receive(), Received::Close(Some(1009), String::new()));
    client.expect_end();
    server.stop_cleanly();
}

#[test]
fn a_flood_of_pings_is_stopped_and_a_second_later_there_is_room_again() {
    let server = Server::start(&[]);
    let pings = |count| b"\x89\x80\0\0\0\0".repeat(count);
    let mut patient = connect(&server);
    patient.socket.write_all(&pings(900)).expect("the server takes it");
    (0..900).for_each(|_| assert_eq!(patient.receive(), Received::Pong(Vec::new())));
    // One message that costs more than two seconds.
    let mut flooding = connect(&server);
    flooding.socket.write_all(&pings(2001)).expect("the server takes it");
    let heard =
        (0..2001).map(|_| flooding.receive()).find(|heard| *heard != Received::Pong(Vec::new()));
    assert_eq!(heard, Some(Received::Close(Some(1008), String::new())));
    flooding.expect_end();
    // sleep: the test is about time, and the server must have noticed that a second has passed.
    thread::sleep(std::time::Duration::from_secs(2));
    // The second message is handled in the same turn as the first, however busy the machine is.
    patient.ping(b"a turn");
    assert_eq!(patient.receive(), Received::Pong(b"a turn".to_vec()));
    patient.socket.write_all(&pings(900)).expect("the server takes it");
    (0..900).for_each(|_| assert_eq!(patient.receive(), Received::Pong(Vec::new())));
    patient.close();
    server.stop_cleanly();
}

#[test]
fn a_silent_client_gets_a_close_frame() {
    // The client would answer a ping, and so would not be silent.
    let server = Server::start(&["--idle-timeout", "1", "--ping-interval", "0"]);
    let mut client = connect(&server);
    client.exchange(MessageRef::Text("hello"));
    let Received::Close(code, _) = client.receive() else { panic!("no goodbye") };
    assert_eq!(code, Some(1001));
    client.expect_end();
    assert_eq!(number_before("broken off", &server.stop_cleanly()), 0);
}

#[test]
fn a_client_that_never_reads_again_is_disconnected() {
    let server = Server::start(&["--write-timeout", "1", "--buffer", "1048586"]);
    let mut client = connect(&server);
    let frame = client.frame(MessageRef::Binary(&pattern(1, 1 << 20)));
    // Waits until the server resets the connection, because its output buffer is full.
    let error =
        (0..1000).find_map(|_| client.socket.write_all(&frame).err()).expect("it is given up");
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    assert_eq!(number_before("broken off", &server.stop_cleanly()), 1);
}

#[test]
fn a_client_that_sends_no_close_frame_is_no_failure() {
    let server = Server::start(&[]);
    let mut client = connect(&server);
    client.exchange(MessageRef::Text("hello"));
    drop(client);
    // Later clients are served. A client that has sent its end of stream gets that of the server.
    let mut client = connect(&server);
    client.socket.shutdown(std::net::Shutdown::Write).expect("it can be ended");
    assert_eq!(client.socket.read(&mut [0; 16]).expect("it ends in order"), 0);
    assert_eq!(number_before("broken off", &server.stop_cleanly()), 0);
}

/// Returns the path of a socket that does not exist, in a folder of its own.
fn socket_path(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("windlass-echo-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    folder.join("socket")
}

fn connect_unix(path: &PathBuf) -> Client<UnixStream> {
    let socket = UnixStream::connect(path).expect("the server listens");
    socket.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
    Client::new(socket, None)
}

#[test]
fn it_listens_on_a_unix_socket_beside_tcp_and_removes_it() {
    let path = socket_path("beside");
    let name = path.to_str().expect("it is UTF-8");
    let server =
        Server::of_several(windlass(&["serve", "--unix", name, "--listen", "127.0.0.1:0"]), 2);
    let mut client = connect_unix(&path);
    client.exchange(MessageRef::Text("by a path"));
    client.exchange(MessageRef::Binary(&pattern(5, 300_000)));
    client.close();
    connect(&server).exchange(MessageRef::Text("by an address"));
    server.stop_cleanly();
    assert!(!path.exists(), "the socket goes with the server");
    std::fs::remove_dir(path.parent().expect("it has one")).expect("it is empty");
}

#[test]
fn several_workers_serve_each_other_s_clients_not() {
    let path = socket_path("workers");
    let name = path.to_str().expect("it is UTF-8");
    let arguments = ["serve", "--workers", "3", "--pin", "--unix", name, "--listen", "127.0.0.1:0"];
    let server = Server::of_several(windlass(&arguments), 2);
    let mut by_address: Vec<_> = (0..30).map(|_| connect(&server)).collect();
    let mut by_path: Vec<_> = (0..10).map(|_| connect_unix(&path)).collect();
    for seed in 0..3 {
        for client in &mut by_address {
            client.exchange(MessageRef::Binary(&pattern(seed, 5000)));
        }
        for client in &mut by_path {
            client.exchange(MessageRef::Binary(&pattern(seed, 5000)));
        }
    }
    by_address.into_iter().for_each(Client::close);
    by_path.into_iter().for_each(Client::close);
    let line = server.stop_cleanly();
    assert_eq!(number_before("connections", &line), 40);
    assert_eq!(number_before("messages", &line), 120);
    std::fs::remove_dir(path.parent().expect("it has one")).expect("it is empty");
}

#[test]
fn a_socket_from_the_service_manager_is_served() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address: SocketAddr = listener.local_addr().expect("it has an address");
    // The shell's process becomes the server, so `$$` is its id.
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null",
        env!("CARGO_BIN_EXE_windlass"),
    ]);
    let command = with_arguments(command, &["serve"]);
    let server = Server::with_input(command, Stdio::from(OwnedFd::from(listener)));
    assert_eq!(server.address, address, "it listens there and nowhere else");
    let mut client = connect(&server);
    client.exchange(MessageRef::Text("activated"));
    client.close();
    server.stop_cleanly();
}
