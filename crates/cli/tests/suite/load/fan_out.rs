//! Fan-out: publishers and receivers, against `windlass serve` and against brokers with faults.

use std::{
    io::Write as _,
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use tungstenite::Message;

use super::runs::{Load, Loaded, load};
use crate::harness::{Server, windlass};

/// Checks the counts: published, delivered, lost, duplicated, reordered.
#[track_caller]
fn expect_counts(loaded: &Loaded, counts: [u64; 5]) {
    let of_fan_out = |name: &str| loaded.number(&format!("/fan_out/{name}")) as u64;
    let found = [
        of_fan_out("published"),
        loaded.verified(),
        of_fan_out("lost"),
        of_fan_out("duplicated"),
        of_fan_out("reordered"),
    ];
    assert_eq!(found, counts, "{loaded:?}");
}

#[test]
fn every_receiver_of_a_room_gets_what_is_published_there() {
    let server = Server::start(&["--workers", "2"]);
    let room = |name: &str| format!("ws://{}/room/{name}", server.address);
    let counts = ["--publishers", "2", "--connections", "6", "--messages", "100", "--rate", "2000"];
    for options in [
        &[][..],
        &["--workers", "2"],
        &["--text", "utf8", "--size", "1000"],
        &["--deflate", "--text", "ascii"],
    ] {
        let loaded = load(&[&[&*room("one")], &counts[..], options].concat());
        expect_counts(loaded.expect_clean(), [100, 400, 0, 0, 0]);
        assert_eq!(loaded.json()["latency"]["corrected_for_coordinated_omission"], true);
    }
    // The warm-up does not count, and the measured time ends the run.
    let timed = ["--publishers", "1", "--connections", "3", "--rate", "1000"];
    let times = ["--warm-up", "100ms", "--duration", "300ms"];
    let loaded = load(&[&[&*room("timed")], &timed[..], &times[..]].concat());
    expect_counts(loaded.expect_clean(), [300, 600, 0, 0, 0]);
    assert!(loaded.number("/messages/warm_up") > 0.0);
    // Each room has its own publisher, and nothing comes from the other one.
    let loaded = load(&[&[&*room("two"), &*room("three")], &counts[..]].concat());
    expect_counts(loaded.expect_clean(), [100, 200, 0, 0, 0]);
    for target in 0..2 {
        let of_target = |pointer| loaded.number(&format!("/targets/{target}{pointer}")) as u64;
        assert_eq!((of_target("/fan_out/published"), of_target("/messages/verified")), (50, 100));
    }
    let text = Load::start(&[&[&*room("four")], &counts[..]].concat()).wait().output;
    assert!(text.contains("2 publishers and 4 receivers, 64 bytes"), "{text}");
    assert!(text.contains("delivered   400: 0 lost, 0 duplicated, 0 reordered\n"), "{text}");
    server.stop_cleanly();
}

/// The publisher is at one listener of the server, and the receivers are at both.
#[test]
fn targets_with_the_same_path_are_one_room() {
    let listen = ["serve", "--listen", "https://127.0.0.1:0", "--listen", "http://127.0.0.1:0"];
    let options = ["--tls-self-signed", "--drain-timeout", "0"];
    let (server, lines) = Server::with_lines(windlass(&[&listen[..], &options].concat()), 3);
    let tls = lines[1].trim_start_matches("listening on https://");
    let urls = [format!("ws://{}/room/a", server.address), format!("wss://{tls}room/a")];
    let counts = ["--publishers", "1", "--connections", "4", "--messages", "50", "--rate", "2000"];
    let loaded = load(&[&[&*urls[0], &*urls[1], "--insecure"], &counts[..]].concat());
    expect_counts(loaded.expect_clean(), [50, 150, 0, 0, 0]);
    assert_eq!(loaded.number("/targets/1/messages/verified"), 100.0);
    server.stop_cleanly();
}

/// Passes each message of the first client that sends one to the other client, changed by this
/// function of its number, from one on, and its bytes. Serves two clients.
fn broker(
    change: impl FnMut(usize, Vec<u8>) -> Vec<Vec<u8>> + Send + 'static,
) -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let url = format!("ws://{}/", listener.local_addr().expect("it has an address"));
    let serve = move || {
        let change = Arc::new(Mutex::new(change));
        let sockets = [(); 2].map(|()| listener.accept().expect("the client connects").0);
        let copies = sockets.each_ref().map(|socket| socket.try_clone().expect("a copy"));
        let others = copies.into_iter().rev();
        let threads: Vec<_> = sockets
            .into_iter()
            .zip(others)
            .map(|(from, to)| {
                let change = Arc::clone(&change);
                thread::spawn(move || {
                    pass(from, to, &mut |number, bytes| {
                        change.lock().expect("nothing panics")(number, bytes)
                    })
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
    };
    (url, thread::spawn(serve))
}

fn pass(
    from: TcpStream,
    mut to: TcpStream,
    change: &mut dyn FnMut(usize, Vec<u8>) -> Vec<Vec<u8>>,
) {
    let mut client = tungstenite::accept(from).expect("it is a WebSocket");
    let mut number = 0;
    while let Ok(message) = client.read() {
        if let Message::Binary(bytes) = message {
            number += 1;
            for bytes in change(number, bytes.to_vec()) {
                let len = u8::try_from(bytes.len()).expect("messages are short");
                let frame = [&[0x82, len][..], &bytes].concat();
                // A receiver that has found a fault has gone.
                let _ = to.write_all(&frame);
            }
        }
    }
}

const COUNTS: [&str; 10] = [
    "--publishers",
    "1",
    "--connections",
    "2",
    "--messages",
    "10",
    "--rate",
    "1000",
    "--timeout",
    "1s",
];

#[test]
fn lost_duplicated_and_reordered_messages_are_counted() {
    let mut held = Vec::new();
    let (url, server) = broker(move |number, bytes| match number {
        3 => vec![],
        5 => vec![bytes.clone(), bytes],
        7 => {
            held = bytes;
            vec![]
        }
        8 => vec![bytes, std::mem::take(&mut held)],
        _ => vec![bytes],
    });
    let loaded = load(&[&[&*url], &COUNTS[..]].concat());
    expect_counts(&loaded, [10, 9, 1, 1, 1]);
    assert_eq!((loaded.status, &loaded.json()["is_clean"]), (Some(1), &false.into()));
    assert!(loaded.errors.contains("1 lost, 1 duplicated, 1 reordered"), "{}", loaded.errors);
    assert_eq!(loaded.json()["errors"], serde_json::json!({}), "no connection has failed");
    server.join().expect("it does not panic");
}

#[test]
fn the_last_messages_are_missed_too() {
    let (url, server) = broker(|number, bytes| if number < 9 { vec![bytes] } else { vec![] });
    expect_counts(&load(&[&[&*url], &COUNTS[..]].concat()), [10, 8, 2, 0, 0]);
    server.join().expect("it does not panic");
}

#[test]
fn a_changed_or_foreign_message_is_a_fault_of_the_receiver() {
    for (at, words) in [
        (40, "message 4 of publisher 1 is changed"),
        (0, "a message came that this run has not published"),
        // The number of a message that is not due for years.
        (16, "a message came before it was published"),
    ] {
        let (url, server) = broker(move |number, mut bytes| {
            if number == 4 {
                bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            }
            vec![bytes]
        });
        let loaded = load(&[&[&*url], &COUNTS[..]].concat());
        loaded.expect_fault("wrong_content", words);
        server.join().expect("it does not panic");
    }
}

#[test]
fn a_server_that_delivers_nothing_is_named() {
    let server = Server::start(&["--mode", "echo"]);
    let url = format!("ws://{}/", server.address);
    let loaded = load(&[&[&*url], &COUNTS[..]].concat());
    expect_counts(&loaded, [10, 0, 10, 0, 0]);
    assert!(loaded.errors.contains("no message was delivered"), "{}", loaded.errors);
    server.stop_cleanly();
}

/// It completes the handshakes, and then reads nothing until both clients have gone.
#[test]
fn a_server_that_reads_nothing_does_not_hold_up_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let url = format!("ws://{}/", listener.local_addr().expect("it has an address"));
    let server = thread::spawn(move || {
        let accept = |()| {
            let (socket, _) = listener.accept().expect("the client connects");
            tungstenite::accept(socket).expect("it is a WebSocket")
        };
        let sockets = [(); 2].map(accept);
        drop(listener);
        sockets
    });
    let heavy = ["--publishers", "1", "--connections", "2", "--size", "100000", "--rate", "10000"];
    let limits = ["--timeout", "1s", "--duration", "1s"];
    let loaded = load(&[&[&*url], &heavy[..], &limits[..]].concat());
    assert_eq!(loaded.status, Some(1), "{loaded:?}");
    assert!(loaded.number("/messages/unsent") > 0.0, "{loaded:?}");
    drop(server.join().expect("it does not panic"));
}

#[test]
fn options_that_fan_out_lacks_are_rejected_with_the_reason() {
    let url = "ws://[::1]:1/";
    for (options, words) in [
        (&[url, "--publishers", "1"][..], "--publishers needs --rate"),
        (&[url, "--publishers", "10", "--rate", "1"], "needs a publisher and a receiver"),
        (
            &[url, "--publishers", "101", "--connections", "100000", "--rate", "1"],
            "--connections times --publishers is 10100000, and the limit is 10000000",
        ),
        (&[url, "--publishers", "1", "--rate", "1", "--size", "8"], "--size of 32 bytes or more"),
        (&[url, "--publishers", "1", "--rate", "1", "--depth", "2"], "--depth are not available"),
    ] {
        let loaded = Load::start(options).wait();
        assert_eq!(loaded.status, Some(2), "{loaded:?}");
        assert!(loaded.errors.contains(words), "{options:?}: {}", loaded.errors);
    }
}
