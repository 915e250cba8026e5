//! Streams of bytes: TCP and Unix alike.

use std::{
    io::{ErrorKind, IoSlice},
    task::Poll,
};

use rustix::net::sockopt;
use windlass_task::{net::UnixStream, spawn};

use crate::{
    scenarios::Build,
    tools::{both, connected, pattern, poll_now, run, turns},
};

/// Runs a block for both kinds of streams, which are bound to the two names.
macro_rules! on_both {
    ($build:expr, |$first:ident, $second:ident| $block:block) => {
        run($build, async {
            let ($first, $second) = connected().await;
            $block
        });
        run($build, async {
            let ($first, $second) = UnixStream::pair().unwrap();
            $block
        });
    };
}

fn bytes_are_echoed(build: Build) {
    on_both!(build, |client, server| {
        let (mut client, mut server) = (client, server);
        let echo = spawn(async move {
            let mut buffer = [0; 512];
            loop {
                match server.read(&mut buffer).await.unwrap() {
                    0 => break,
                    count => server.write_all(&buffer[..count]).await.unwrap(),
                }
            }
        });
        for length in [1, 2, 511, 512, 513, 5000] {
            let bytes = pattern(length);
            client.write_all(&bytes).await.unwrap();
            let mut back = vec![0; length];
            client.read_exact(&mut back).await.unwrap();
            assert_eq!(back, bytes);
        }
        client.flush().await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        echo.await.unwrap();
    });
}

fn a_reader_that_is_slow_stops_the_writer(build: Build) {
    on_both!(build, |client, server| {
        let (mut client, mut server) = (client, server);
        sockopt::set_socket_send_buffer_size(&client, 64 << 10).unwrap();
        sockopt::set_socket_recv_buffer_size(&server, 64 << 10).unwrap();
        let bytes = pattern(8 << 20);
        let expected = bytes.clone();
        let writer = spawn(async move {
            client.write_all(&bytes).await.unwrap();
            client.shutdown().await.unwrap();
            client
        });
        for _ in 0..100 {
            turns().await;
        }
        assert!(!writer.is_finished(), "the kernel's queues are shorter than that");
        let mut received = Vec::new();
        let mut buffer = vec![0; 65_536];
        loop {
            match server.read(&mut buffer).await.unwrap() {
                0 => break,
                count => received.extend_from_slice(&buffer[..count]),
            }
        }
        assert!(received == expected);
        writer.await.unwrap();
    });
}

fn a_zero_length_buffer_touches_nothing(build: Build) {
    on_both!(build, |client, server| {
        let (mut client, mut server) = (client, server);
        // Ready at once, although nothing can be read.
        for _ in 0..100 {
            assert_eq!(server.read(&mut []).await.unwrap(), 0);
            assert_eq!(client.write(&[]).await.unwrap(), 0);
            assert_eq!(client.write_vectored(&[IoSlice::new(&[])]).await.unwrap(), 0);
            server.read_exact(&mut []).await.unwrap();
            client.write_all(&[]).await.unwrap();
        }
        assert_eq!(windlass_task::stats().unwrap().budget_exhausted, 0);
        client.write_all(b"x").await.unwrap();
        assert_eq!(server.read(&mut [0; 2]).await.unwrap(), 1);
        assert_eq!(server.read(&mut []).await.unwrap(), 0);
        drop(server);
        // Neither the end nor an error is looked at.
        assert_eq!(client.write(&[]).await.unwrap(), 0);
    });
}

fn a_fresh_socket_is_writable_and_waits_for_its_first_read_edge(build: Build) {
    run(build, async {
        let (mut first, mut second) = UnixStream::pair().unwrap();
        // Without a turn in between.
        assert!(matches!(poll_now(&mut Box::pin(first.write(b"early"))), Poll::Ready(Ok(5))));
        assert!(poll_now(&mut Box::pin(second.read(&mut [0; 8]))).is_pending());
        assert_eq!(second.would_block_count(), 0, "not tried");
        assert_eq!(second.read(&mut [0; 8]).await.unwrap(), 5);
    });
}

fn data_and_the_end_in_one_edge(build: Build) {
    on_both!(build, |client, server| {
        let (mut client, mut server) = (client, server);
        client.write_all(b"the last words").await.unwrap();
        drop(client);
        let mut buffer = [0; 64];
        assert_eq!(server.read(&mut buffer).await.unwrap(), 14);
        assert_eq!(server.read(&mut buffer).await.unwrap(), 0);
        assert_eq!(server.read(&mut buffer).await.unwrap(), 0);
    });
}

fn halves_work_in_two_tasks_and_are_put_together_again(build: Build) {
    on_both!(build, |client, server| {
        let mut server = server;
        let (mut read, mut write) = client.into_split();
        let bytes = pattern(1 << 20);
        let sent = bytes.clone();
        let writer = spawn(async move {
            write.write_all(&sent).await.unwrap();
            write
        });
        let length = bytes.len();
        let reader = spawn(async move {
            let mut received = vec![0; length];
            read.read_exact(&mut received).await.unwrap();
            (read, received)
        });
        let (from, to) = server.split();
        let (mut from, mut to) = (from, to);
        let mut buffer = [0; 16_384];
        let mut left = bytes.len();
        while left > 0 {
            let count = from.read(&mut buffer).await.unwrap();
            to.write_all(&buffer[..count]).await.unwrap();
            left -= count;
        }
        let (read, received) = reader.await.unwrap();
        assert!(received == bytes);
        let mut client = read.reunite(writer.await.unwrap()).unwrap();
        client.write_all(b"again").await.unwrap();
        server.read_exact(&mut [0; 5]).await.unwrap();
    });
}

fn dropping_the_write_half_ends_writing_unless_it_is_forgotten(build: Build) {
    on_both!(build, |client, server| {
        let mut server = server;
        let (mut read, write) = client.into_split();
        drop(write);
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
        server.write_all(b"still").await.unwrap();
        read.read_exact(&mut [0; 5]).await.unwrap();
    });
    on_both!(build, |client, server| {
        let mut server = server;
        let (read, write) = client.into_split();
        write.forget();
        assert!(poll_now(&mut Box::pin(server.read(&mut [0; 1]))).is_pending());
        turns().await;
        assert!(poll_now(&mut Box::pin(server.read(&mut [0; 1]))).is_pending());
        drop(read);
        assert_eq!(server.read(&mut [0; 1]).await.unwrap(), 0);
    });
}

fn halves_of_different_streams_are_returned(build: Build) {
    on_both!(build, |client, server| {
        let (client_read, client_write) = client.into_split();
        let (server_read, server_write) = server.into_split();
        let error = client_read.reunite(server_write).unwrap_err();
        error.0.reunite(client_write).unwrap();
        server_read.reunite(error.1).unwrap();
    });
}

fn gathered_writes_arrive_in_order(build: Build) {
    on_both!(build, |client, server| {
        let (mut client, mut server) = (client, server);
        let parts = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two")];
        assert_eq!(client.write_vectored(&parts).await.unwrap(), 7);
        let mut buffer = [0; 7];
        server.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"one two");
    });
}

fn an_early_end_and_a_closed_peer_are_errors(build: Build) {
    on_both!(build, |client, server| {
        let (mut client, mut server) = (client, server);
        client.write_all(b"abc").await.unwrap();
        client.shutdown().await.unwrap();
        let error = server.read_exact(&mut [0; 4]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        drop(client);
        let error = loop {
            if let Err(error) = server.write(&[0; 65_536]).await {
                break error;
            }
        };
        let is_closed = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
        assert!(is_closed, "{error}");
        server.shutdown().await.unwrap();
    });
}

fn one_task_reads_and_writes_at_the_same_time(build: Build) {
    on_both!(build, |client, server| {
        let (mut client, mut server) = (client, server);
        let bytes = pattern(2 << 20);
        let (mut first, mut second) = (vec![0; bytes.len()], vec![0; bytes.len()]);
        let (mut client_read, mut client_write) = client.split();
        let (mut server_read, mut server_write) = server.split();
        both(
            both(async { client_write.write_all(&bytes).await.unwrap() }, async {
                server_write.write_all(&bytes).await.unwrap()
            }),
            both(async { client_read.read_exact(&mut first).await.unwrap() }, async {
                server_read.read_exact(&mut second).await.unwrap()
            }),
        )
        .await;
        assert!(first == bytes && second == bytes);
    });
}

scenarios! {
    bytes_are_echoed,
    a_reader_that_is_slow_stops_the_writer,
    a_zero_length_buffer_touches_nothing,
    a_fresh_socket_is_writable_and_waits_for_its_first_read_edge,
    data_and_the_end_in_one_edge,
    halves_work_in_two_tasks_and_are_put_together_again,
    dropping_the_write_half_ends_writing_unless_it_is_forgotten,
    halves_of_different_streams_are_returned,
    gathered_writes_arrive_in_order,
    an_early_end_and_a_closed_peer_are_errors,
    one_task_reads_and_writes_at_the_same_time,
}
