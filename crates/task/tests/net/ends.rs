//! The ends of TCP streams: who is told what, and which bytes are kept.

use std::{
    future::Future,
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use rustix::event::{EventfdFlags, eventfd};
use windlass_task::{AsyncFd, net::TcpStream, spawn, with_turn};

use crate::{
    acknowledged::until_acknowledged,
    read_buffers::{is_on_ring, with_std_peer},
    scenarios::Build,
    tools::{executor, poll_now, reset, run, turns},
};

/// Starts the stream on a ring, by a read that is dropped.
async fn start(stream: &mut TcpStream) {
    assert!(poll_now(&mut Box::pin(stream.read(&mut [0; 1]))).is_pending());
    turns().await;
}

fn bytes_in_flight_at_the_executors_end_are_kept(build: Build) {
    for has_read in [false, true] {
        let mut first = executor(build);
        let (ours, mut peer) = first.block_on(async {
            let (mut ours, mut peer) = with_std_peer();
            start(&mut ours).await;
            // Its end fetches what a ring has completed.
            let other = AsyncFd::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()).unwrap();
            spawn(async move { other.readable().await }).detach();
            turns().await;
            if has_read {
                peer.write_all(b"ab").unwrap();
                assert_eq!(ours.read(&mut [0; 1]).await.unwrap(), 1);
            }
            (ours, peer)
        });
        peer.write_all(b"in flight").unwrap();
        drop(first);
        let (mut socket, mut received) = run(build, async { ours.detach().await.unwrap() });
        drop(peer);
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.read_to_end(&mut received).unwrap();
        let unread: &[u8] = if has_read { b"bin flight" } else { b"in flight" };
        assert_eq!(received, unread);
    }
}

fn a_stream_without_unread_bytes_is_a_socket_after_the_executors_end(build: Build) {
    let mut first = executor(build);
    let (ours, mut peer) = first.block_on(async {
        let (mut ours, peer) = with_std_peer();
        start(&mut ours).await;
        (ours, peer)
    });
    drop(first);
    let mut socket = ours.into_std().unwrap();
    peer.write_all(b"later").unwrap();
    socket.set_nonblocking(false).unwrap();
    socket.read_exact(&mut [0; 5]).unwrap();
}

/// The peer goes on sending after this side has ended its direction.
fn a_write_after_a_shutdown_is_an_error_and_reading_goes_on(build: Build) {
    run(build, async {
        for how in 0..3 {
            for reads_first in [false, true] {
                let (mut ours, mut peer) = with_std_peer();
                if reads_first {
                    start(&mut ours).await;
                }
                match how {
                    0 => ours.shutdown().await.unwrap(),
                    1 => ours.shutdown_now(Shutdown::Write).unwrap(),
                    _ => {
                        ours.shutdown().await.unwrap();
                        ours.shutdown().await.unwrap();
                    }
                }
                for length in [1, 100_000] {
                    let error = ours.write(&vec![0; length]).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{how} {reads_first}");
                }
                assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
                peer.write_all(b"answer").unwrap();
                let mut buffer = [0; 6];
                ours.read_exact(&mut buffer).await.unwrap();
                assert_eq!(&buffer, b"answer", "{how} {reads_first}");
                drop(peer);
                assert_eq!(ours.read(&mut buffer).await.unwrap(), 0);
            }
        }
    });
}

/// A ring takes the reset out of the socket before it can tell the stream.
fn a_reset_is_not_read_as_the_end_although_a_write_fails_first(build: Build) {
    run(build, async {
        let (mut ours, peer) = with_std_peer();
        start(&mut ours).await;
        let other = AsyncFd::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()).unwrap();
        turns().await;
        reset(peer, &ours);
        if !is_on_ring() {
            // The write takes the error there, which is told once.
            return;
        }
        // The end of a registration fetches what has completed.
        drop(other);
        assert!(poll_now(&mut Box::pin(ours.write(&[0; 100_000]))).is_pending());
        let error = ours.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

/// Where there is no turn, a stream cannot start, and readiness must go on.
fn readiness_outlasts_a_start_that_has_to_wait(build: Build) {
    run(build, async {
        let (ours, mut peer) = with_std_peer();
        let (mut read, write) = ours.into_split();
        let waiter = spawn(async move {
            write.stream().readable().await.unwrap();
            write
        });
        turns().await;
        with_turn(|_| {
            let mut buffer = [0; 1];
            let read = pin!(read.read(&mut buffer));
            assert!(read.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        })
        .unwrap();
        turns().await;
        assert!(!waiter.is_finished(), "{:?}", waiter.await.map(drop));
        peer.write_all(b"x").unwrap();
        let write = waiter.await.unwrap();
        assert_eq!(read.read(&mut [0; 2]).await.unwrap(), 1);
        drop(read.reunite(write).unwrap());
    });
}

fn many_streams_that_are_dropped_at_once_end_at_once(build: Build) {
    const COUNT: usize = 300;
    run(build, async {
        let subscribers = || with_turn(|turn| turn.stats().subscribers).unwrap();
        let before = subscribers();
        let (mut streams, mut peers) = (Vec::new(), Vec::new());
        for number in 0..COUNT {
            let (mut ours, mut peer) = with_std_peer();
            start(&mut ours).await;
            match number % 3 {
                // Received and not read.
                0 => {
                    peer.write_all(b"unread").unwrap();
                    ours.readable().await.unwrap();
                }
                // The kernel has received it, and the stream may not know.
                1 => {
                    peer.write_all(b"unread").unwrap();
                    until_acknowledged(&peer);
                }
                _ => ours.write_all(b"last").await.unwrap(),
            }
            streams.push(ours);
            peers.push(peer);
        }
        drop(streams);
        turns().await;
        assert_eq!(subscribers(), before);
        for (number, peer) in peers.iter_mut().enumerate() {
            let mut received = Vec::new();
            let result = peer.read_to_end(&mut received).map_err(|error| error.kind());
            if number % 3 == 2 {
                assert_eq!((result, &*received), (Ok(4), &b"last"[..]), "{number}");
            } else {
                assert_eq!(result, Err(ErrorKind::ConnectionReset), "{number}");
            }
        }
    });
}

scenarios! {
    bytes_in_flight_at_the_executors_end_are_kept,
    a_stream_without_unread_bytes_is_a_socket_after_the_executors_end,
    a_write_after_a_shutdown_is_an_error_and_reading_goes_on,
    a_reset_is_not_read_as_the_end_although_a_write_fails_first,
    readiness_outlasts_a_start_that_has_to_wait,
    many_streams_that_are_dropped_at_once_end_at_once,
}
