//! Connections that leave their executor, and streams with bytes that were read elsewhere.

use std::io::{ErrorKind, Read, Write};

use windlass_task::{Direction, net::TcpStream, spawn, with_turn};

use crate::{
    read_buffers::{is_on_ring, with_std_peer},
    scenarios::Build,
    tools::{at_most, connected, pattern, run, turns},
};

fn a_connection_moves_between_executors_with_all_its_bytes(build: Build) {
    run(build, async {
        let (client, server) = connected().await;
        let bytes = pattern(1 << 20);
        let (expected, mut client) = (bytes.clone(), client);
        let sender = spawn(async move {
            for part in bytes.chunks(7_777) {
                client.write_all(part).await.unwrap();
                windlass_task::yield_now().await;
            }
            client.shutdown().await.unwrap();
            client
        });
        let (mut server, mut received, mut moves) = (server, Vec::new(), 0);
        let mut buffer = vec![0; 20_000];
        while received.len() < expected.len() {
            let room = 1 + received.len() % buffer.len();
            let count = server.read(&mut buffer[..room]).await.unwrap();
            assert_ne!(count, 0);
            received.extend_from_slice(&buffer[..count]);
            if moves % 3 == 0 {
                server.write_all(b"!").await.unwrap();
            }
            let (socket, read_buf) = server.detach().await.unwrap();
            server = TcpStream::from_std_with_read_buf(socket, read_buf).unwrap();
            moves += 1;
        }
        assert!(received == expected);
        assert_eq!(server.read(&mut buffer).await.unwrap(), 0, "the end comes along");
        let mut client = sender.await.unwrap();
        let count = moves / 3 + usize::from(moves % 3 > 0);
        client.read_exact(&mut vec![0; count]).await.unwrap();
        assert!(moves > 10, "{moves}");
    });
}

fn a_prefix_is_read_first_and_is_ready(build: Build) {
    run(build, async {
        let (ours, mut peer) = with_std_peer();
        let socket = ours.into_std().unwrap();
        let mut ours = TcpStream::from_std_with_read_buf(socket, b"prefix".to_vec()).unwrap();
        ours.readable().await.unwrap();
        let mut buffer = [0; 4];
        assert_eq!(ours.peek(&mut buffer).await.unwrap(), 4);
        assert_eq!(&buffer, b"pref");
        let rejected = ours.try_io(Direction::Read, |_| Ok(())).unwrap_err();
        assert_eq!(rejected.kind(), ErrorKind::Unsupported);
        let error = ours.into_std().unwrap_err();
        assert!(error.to_string().contains("detach"), "{error}");
        ours = error.stream;
        assert_eq!(ours.read(&mut buffer).await.unwrap(), 4);
        peer.write_all(b" and more").unwrap();
        let mut rest = [0; 11];
        ours.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"ix and more");
        ours.write_all(b"ok").await.unwrap();
        ours.flush().await.unwrap();
        ours.shutdown().await.unwrap();
        let mut answer = [0; 3];
        let (count, socket) = spawn(async move {
            // The output of a ring is submitted with the turn's end.
            turns().await;
            (peer.read(&mut answer).unwrap(), peer)
        })
        .await
        .unwrap();
        assert_eq!(count, 2);
        drop(socket);
        assert_eq!(ours.read(&mut rest).await.unwrap(), 0);
    });
}

fn a_detach_that_is_dropped_closes_the_connection(build: Build) {
    run(build, async {
        let subscribers = || with_turn(|turn| turn.stats().subscribers).unwrap();
        let before = subscribers();
        // It is not woken again, because the peer does not read.
        for polls in 0..2 {
            let (mut ours, mut peer) = with_std_peer();
            peer.set_nonblocking(true).unwrap();
            let bytes = pattern(2 << 20);
            let mut sent = 0;
            while let Some(count) = at_most(1, ours.write(&bytes[sent..])).await {
                sent += count.unwrap();
            }
            // It waits for the output.
            let done = at_most(polls, ours.detach()).await;
            assert!(done.is_none() || !is_on_ring());
            drop(done);
            let mut received = 0;
            let mut buffer = [0; 65_536];
            loop {
                match peer.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => received += count,
                    Err(_) => turns().await,
                }
            }
            assert_eq!(received, sent);
            turns().await;
            assert_eq!(subscribers(), before);
        }
    });
}

/// Short writes are queued with a ring. The last of them may not fit into the socket.
fn a_detach_waits_for_all_that_was_written(build: Build) {
    run(build, async {
        for count in (14..34).step_by(2) {
            let (mut ours, mut peer) = with_std_peer();
            let bytes = pattern(count * 4_000);
            let mut written = 0;
            for part in bytes.chunks(4_000) {
                // Not after the last, which is queued when the detach begins.
                windlass_task::yield_now().await;
                match at_most(1, ours.write_all(part)).await {
                    Some(result) => result.unwrap(),
                    None => break,
                }
                written += part.len();
            }
            peer.set_nonblocking(true).unwrap();
            let reader = spawn(async move {
                let (mut received, mut buffer) = (Vec::new(), [0; 65_536]);
                loop {
                    match peer.read(&mut buffer) {
                        Ok(0) => break received,
                        Ok(count) => received.extend_from_slice(&buffer[..count]),
                        Err(_) => turns().await,
                    }
                }
            });
            drop(ours.detach().await.unwrap());
            let received = reader.await.unwrap();
            assert!(received.len() >= written, "{} of {written}", received.len());
            assert!(received == bytes[..received.len()]);
        }
    });
}

scenarios! {
    a_detach_waits_for_all_that_was_written,
    a_connection_moves_between_executors_with_all_its_bytes,
    a_prefix_is_read_first_and_is_ready,
    a_detach_that_is_dropped_closes_the_connection,
}
