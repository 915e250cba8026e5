//! Urgent data of TCP. A read stops at the urgent mark, so it is short while more waits.

use std::{io::Write, net::TcpListener};

use rustix::net::{RecvFlags, SendFlags};
use windlass_task::{Direction, net::TcpStream};

use crate::{
    acknowledged::until_acknowledged,
    scenarios::Build,
    tools::{poll_now, run, turns},
};

/// A client that blocks, and a server's stream.
fn connected() -> (std::net::TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_nodelay(true).unwrap();
    (client, TcpStream::from_std(listener.accept().unwrap().0).unwrap())
}

fn urgent(client: &std::net::TcpStream, byte: u8) {
    rustix::net::send(client, &[byte], SendFlags::OOB).unwrap();
}

/// Reads until `length` bytes have come, in as many reads as it takes.
async fn read_all(server: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut received = Vec::new();
    while received.len() < length {
        let mut buffer = [0; 64];
        let count = server.read(&mut buffer).await.unwrap();
        assert_ne!(count, 0);
        received.extend_from_slice(&buffer[..count]);
    }
    received
}

fn bytes_behind_the_urgent_mark_are_read(build: Build) {
    run(build, async {
        // Before the first look at the socket, and between two.
        for waits_first in [false, true] {
            let (mut client, mut server) = connected();
            if waits_first {
                assert!(poll_now(&mut Box::pin(server.read(&mut [0; 1]))).is_pending());
                turns().await;
            }
            client.write_all(b"before").unwrap();
            urgent(&client, b'!');
            client.write_all(b"behind").unwrap();
            assert_eq!(read_all(&mut server, 12).await, b"beforebehind");
            // And so on, now that priority was seen.
            for _ in 0..3 {
                client.write_all(b"abc").unwrap();
                urgent(&client, b'?');
                client.write_all(b"def").unwrap();
                assert_eq!(read_all(&mut server, 6).await, b"abcdef");
            }
        }
    });
}

fn urgent_data_alone_wakes_no_reader(build: Build) {
    run(build, async {
        let (mut client, mut server) = connected();
        urgent(&client, b'!');
        let mut buffer = [0; 8];
        for _ in 0..20 {
            assert!(poll_now(&mut Box::pin(server.read(&mut buffer))).is_pending());
            turns().await;
        }
        assert_eq!(server.would_block_count(), 0, "no read was tried");
        client.write_all(b"abc").unwrap();
        assert_eq!(server.read(&mut buffer).await.unwrap(), 3);
    });
}

fn the_urgent_byte_can_be_received(build: Build) {
    run(build, async {
        let (mut client, mut server) = connected();
        client.write_all(b"abc").unwrap();
        urgent(&client, b'!');
        assert_eq!(read_all(&mut server, 3).await, b"abc");
        let mut byte = [0];
        // By a closure, whose result says nothing about the readiness to read.
        client.write_all(b"def").unwrap();
        let receive = |stream: &std::net::TcpStream| {
            Ok(rustix::net::recv(stream, &mut byte, RecvFlags::OOB)?.1)
        };
        assert_eq!(server.async_io(Direction::Read, receive).await.unwrap(), 1);
        assert_eq!(byte, *b"!");
        assert_eq!(read_all(&mut server, 3).await, b"def");
    });
}

/// On every backend, because a stream that was never read goes by readiness.
fn the_urgent_byte_can_be_received_by_closures_alone(build: Build) {
    run(build, async {
        let (mut client, server) = connected();
        client.write_all(b"abc").unwrap();
        urgent(&client, b'!');
        until_acknowledged(&client);
        for (flags, expected) in [(RecvFlags::empty(), &b"abc"[..]), (RecvFlags::OOB, b"!")] {
            let mut buffer = [0; 8];
            let receive =
                |stream: &std::net::TcpStream| Ok(rustix::net::recv(stream, &mut buffer, flags)?.1);
            let count = server.async_io(Direction::Read, receive).await.unwrap();
            assert_eq!(&buffer[..count], expected);
        }
        client.write_all(b"def").unwrap();
        let mut server = server;
        assert_eq!(read_all(&mut server, 3).await, b"def");
    });
}

scenarios! {
    bytes_behind_the_urgent_mark_are_read,
    urgent_data_alone_wakes_no_reader,
    the_urgent_byte_can_be_received except [
        uring "a receive that goes on skips the urgent byte; closures alone can receive it"
    ],
    the_urgent_byte_can_be_received_by_closures_alone,
}
