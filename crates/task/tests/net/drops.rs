//! Futures that are dropped after k polls, for every k, at every point where they wait.

use windlass_task::{
    net::{TcpListener, TcpStream, UdpSocket, UnixStream},
    spawn, yield_now,
};

use crate::{
    scenarios::Build,
    tools::{any, at_most, connected, pattern, run, turns},
};

/// How many polls a future needs at most here; the last k does not drop it.
const POLLS: usize = 12;

fn a_dropped_read_loses_no_bytes(build: Build) {
    run(build, async {
        for polls in 0..POLLS {
            let (mut client, mut server) = connected().await;
            let sender = spawn(async move {
                for byte in 0..20 {
                    client.write_all(&[byte]).await.unwrap();
                    yield_now().await;
                }
            });
            let mut received = Vec::new();
            while received.len() < 20 {
                let mut buffer = [0; 3];
                match at_most(polls, server.read(&mut buffer)).await {
                    Some(count) => received.extend_from_slice(&buffer[..count.unwrap()]),
                    // The sender and the reactor have their turn.
                    None => turns().await,
                }
                if polls == 0 {
                    server.readable().await.unwrap();
                    let count = server.read(&mut buffer).await.unwrap();
                    received.extend_from_slice(&buffer[..count]);
                }
            }
            assert_eq!(received, (0..20).collect::<Vec<u8>>(), "after {polls} polls");
            sender.await.unwrap();
        }
    });
}

fn a_dropped_write_has_written_what_it_said(build: Build) {
    run(build, async {
        for polls in 1..POLLS {
            let (mut client, mut server) = UnixStream::pair().unwrap();
            let bytes = pattern(1 << 20);
            let expected = bytes.clone();
            let reader = spawn(async move {
                let mut received = Vec::new();
                let mut buffer = vec![0; 10_000];
                loop {
                    match server.read(&mut buffer).await.unwrap() {
                        0 => break,
                        count => received.extend_from_slice(&buffer[..count]),
                    }
                    yield_now().await;
                }
                assert!(received == expected);
            });
            let mut sent = 0;
            while sent < bytes.len() {
                let part = &bytes[sent..bytes.len().min(sent + 100_000)];
                match at_most(polls, client.write(part)).await {
                    Some(count) => sent += count.unwrap(),
                    None => turns().await,
                }
            }
            drop(client);
            reader.await.unwrap();
        }
    });
}

fn a_dropped_accept_loses_no_connection(build: Build) {
    run(build, async {
        for polls in 0..POLLS {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let clients = spawn(async move {
                let mut streams = Vec::new();
                for _ in 0..10 {
                    streams.push(TcpStream::connect(address).await.unwrap());
                    yield_now().await;
                }
                streams
            });
            let mut accepted = Vec::new();
            while accepted.len() < 10 {
                match at_most(polls, listener.accept()).await {
                    Some(connection) => accepted.push(connection.unwrap().1),
                    None => turns().await,
                }
                if polls == 0 {
                    accepted.push(listener.accept().await.unwrap().1);
                }
            }
            let streams = clients.await.unwrap();
            for stream in &streams {
                assert!(accepted.contains(&stream.local_addr().unwrap()));
            }
        }
    });
}

fn a_dropped_connect_leaves_nothing(build: Build) {
    run(build, async {
        let subscribers = || windlass_task::with_turn(|turn| turn.stats().subscribers).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let before = subscribers();
        for polls in 0..POLLS {
            for _ in 0..20 {
                for address in [address, any(address)] {
                    drop(at_most(polls, TcpStream::connect(address)).await);
                    assert_eq!(subscribers(), before);
                }
            }
        }
    });
}

fn a_dropped_receive_loses_no_datagram(build: Build) {
    run(build, async {
        for polls in 0..POLLS {
            let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            client.connect(server.local_addr().unwrap()).await.unwrap();
            let sender = spawn(async move {
                for byte in 0..10 {
                    client.send(&[byte]).await.unwrap();
                    yield_now().await;
                }
            });
            let mut received = Vec::new();
            while received.len() < 10 {
                let mut buffer = [0; 8];
                match at_most(polls, server.recv(&mut buffer)).await {
                    Some(count) => received.extend_from_slice(&buffer[..count.unwrap()]),
                    None => turns().await,
                }
                if polls == 0 {
                    let count = server.recv(&mut buffer).await.unwrap();
                    received.extend_from_slice(&buffer[..count]);
                }
            }
            assert_eq!(received, (0..10).collect::<Vec<u8>>());
            sender.await.unwrap();
        }
    });
}

scenarios! {
    a_dropped_read_loses_no_bytes,
    a_dropped_write_has_written_what_it_said,
    a_dropped_accept_loses_no_connection,
    a_dropped_connect_leaves_nothing,
    a_dropped_receive_loses_no_datagram,
}
