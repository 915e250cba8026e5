//! Operations that do not wait, and readiness of both directions.

use std::{
    cell::Cell,
    future::poll_fn,
    io::{ErrorKind, Read},
    rc::Rc,
    time::Duration,
};

use windlass::interest;
use windlass_task::{
    net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream},
    spawn, yield_now,
};

use crate::{
    scenarios::Build,
    tools::{connected, pattern, run, turns},
};

/// More than all buffers of a connection hold.
const LENGTH: usize = 8 << 20;

fn is_blocked<T>(result: &std::io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Sends all bytes, receives as many and compares, with one future for both directions.
macro_rules! exchange {
    ($stream:expr, $bytes:expr) => {{
        let (stream, bytes) = ($stream, $bytes);
        let (mut sent, mut received) = (0, Vec::new());
        let mut buffer = vec![0; 100_000];
        while sent < bytes.len() || received.len() < bytes.len() {
            let mut wanted = interest();
            if sent < bytes.len() {
                wanted = wanted.write();
            }
            if received.len() < bytes.len() {
                wanted = wanted.read();
            }
            let ready = stream.ready(wanted).await.unwrap();
            assert!(ready.has_read() || ready.has_write());
            if ready.has_write() {
                match stream.try_write(&bytes[sent..]) {
                    Ok(count) => sent += count,
                    result => assert!(is_blocked(&result), "{result:?}"),
                }
            }
            if ready.has_read() {
                match stream.try_read(&mut buffer) {
                    Ok(0) => panic!("the peer has not ended its direction"),
                    Ok(count) => received.extend_from_slice(&buffer[..count]),
                    result => assert!(is_blocked(&result), "{result:?}"),
                }
            }
        }
        assert!(received == *bytes, "the bytes differ");
    }};
}

fn two_streams_exchange_more_than_their_buffers_hold(build: Build) {
    run(build, async {
        let bytes = Rc::new(pattern(LENGTH));
        let (client, server) = connected().await;
        let (here, there) = UnixStream::pair().unwrap();
        let other = Rc::clone(&bytes);
        let peers = spawn(async move {
            exchange!(server, &*other);
            exchange!(there, &*other);
        });
        exchange!(client, &*bytes);
        exchange!(here, &*bytes);
        peers.await.unwrap();
    });
}

fn streams_may_change_between_both_ways(build: Build) {
    run(build, async {
        let (mut client, mut server) = connected().await;
        let mut buffer = [0; 16];
        for round in 0..4 {
            client.writable().await.unwrap();
            assert_eq!(client.try_write(b"tried").unwrap(), 5);
            client.write_all(b"awaited").await.unwrap();
            server.read_exact(&mut buffer[..5]).await.unwrap();
            assert_eq!(&buffer[..5], b"tried");
            let mut filled = 0;
            while filled < 7 {
                server.readable().await.unwrap();
                match server.try_read(&mut buffer[filled..]) {
                    Ok(count) => filled += count,
                    result => assert!(is_blocked(&result), "{result:?}"),
                }
            }
            assert_eq!(&buffer[..7], b"awaited", "in round {round}");
        }
        assert_eq!(client.try_read(&mut []).unwrap() + client.try_write(&[]).unwrap(), 0);
        client.shutdown().await.unwrap();
        assert_eq!(client.try_write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(server.read(&mut buffer).await.unwrap(), 0);
        assert_eq!(server.try_read(&mut buffer).unwrap(), 0, "the end stays");
    });
}

fn an_attempt_does_not_displace_a_waiter(build: Build) {
    run(build, async {
        let (mut client, server) = connected().await;
        let (mut reader, writer) = server.into_split();
        let waiting = spawn(async move {
            let mut buffer = [0; 5];
            reader.read_exact(&mut buffer).await.unwrap();
            buffer
        });
        turns().await;
        assert!(is_blocked(&writer.stream().try_read(&mut [0; 1])));
        turns().await;
        client.write_all(b"hello").await.unwrap();
        assert_eq!(&waiting.await.unwrap(), b"hello");
    });
}

fn a_loop_of_readiness_and_attempts_lets_others_run(build: Build) {
    run(build, async {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = socket.local_addr().unwrap();
        let (mut client, server) = connected().await;
        let is_over = Rc::new(Cell::new(false));
        let flag = Rc::clone(&is_over);
        let busy = spawn(async move {
            client.write_all(b"x").await.unwrap();
            for _ in 0..10_000 {
                socket.writable().await.unwrap();
                let _ = socket.try_send_to(b"datagram", to);
                server.writable().await.unwrap();
                if flag.get() {
                    return;
                }
            }
            panic!("no other task has run");
        });
        for _ in 0..10 {
            yield_now().await;
        }
        is_over.set(true);
        busy.await.unwrap();
    });
}

fn datagrams_are_received_and_sent_without_a_wait(build: Build) {
    run(build, async {
        let (server, client) = (
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        );
        let mut buffer = [0; 16];
        assert!(is_blocked(&server.try_recv(&mut buffer)));
        client.try_send_to(b"hello", server.local_addr().unwrap()).unwrap();
        server.readable().await.unwrap();
        let (count, from) = server.try_recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..count], from), (&b"hello"[..], client.local_addr().unwrap()));
        assert!(is_blocked(&server.try_recv_from(&mut buffer)));
        client.connect(server.local_addr().unwrap()).await.unwrap();
        client.try_send(b"again").unwrap();
        server.readable().await.unwrap();
        assert_eq!(server.try_recv(&mut buffer).unwrap(), 5);

        let (here, there) = UnixDatagram::pair().unwrap();
        assert!(is_blocked(&there.try_recv(&mut buffer)));
        here.try_send(b"hello").unwrap();
        there.readable().await.unwrap();
        assert_eq!(there.try_recv(&mut buffer).unwrap(), 5);
        while here.try_send(b"fill").is_ok() {}
        assert!(is_blocked(&here.try_send(b"fill")), "the peer's queue is full");
    });
}

fn a_datagram_is_received_into_unused_capacity(build: Build) {
    run(build, async {
        let (here, there) = UnixDatagram::pair().unwrap();
        here.send(b" world").await.unwrap();
        let mut full = Vec::from(*b"hello");
        full.shrink_to_fit();
        assert_eq!(there.recv_buf(&mut full).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        full.reserve(16);
        assert_eq!(there.recv_buf(&mut full).await.unwrap(), 6, "nothing was lost");
        assert_eq!(full, b"hello world");
    });
}

fn connections_are_accepted_by_polls(build: Build) {
    run(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let client = TcpStream::try_from(socket).unwrap();
        let (_, peer) = poll_fn(|context| listener.poll_accept(context)).await.unwrap();
        assert_eq!(peer, client.local_addr().unwrap());

        let directory = std::env::temp_dir().join(format!("windlass-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("{:p}", &raw const client));
        let listener = UnixListener::bind(&path).unwrap();
        let _client = UnixStream::connect(&path).await.unwrap();
        poll_fn(|context| listener.poll_accept(context)).await.unwrap();
        std::fs::remove_file(path).unwrap();
    });
}

fn an_interest_without_a_direction_is_an_error(build: Build) {
    run(build, async {
        let (client, _server) = connected().await;
        let error = client.ready(interest().priority()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        poll_fn(|context| client.poll_write_ready(context)).await.unwrap();
        let pending = poll_fn(|context| client.poll_read_ready(context).map(|_| ()));
        assert!(crate::tools::at_most(1, pending).await.is_none());
    });
}

fn a_zero_linger_resets(build: Build) {
    run(build, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().await.unwrap();
        server.set_zero_linger().unwrap();
        assert_eq!(server.linger().unwrap(), Some(Duration::ZERO));
        drop(server);
        turns().await;
        let error = client.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

scenarios!(
    two_streams_exchange_more_than_their_buffers_hold,
    streams_may_change_between_both_ways,
    an_attempt_does_not_displace_a_waiter,
    a_loop_of_readiness_and_attempts_lets_others_run,
    datagrams_are_received_and_sent_without_a_wait,
    a_datagram_is_received_into_unused_capacity,
    connections_are_accepted_by_polls,
    an_interest_without_a_direction_is_an_error,
    a_zero_linger_resets,
);
