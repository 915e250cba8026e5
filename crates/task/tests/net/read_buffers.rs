//! What is received ahead and sent later: bounds, errors and ends.
//!
//! On a ring TCP goes by completion. What a program sees is the same on every backend, except where
//! a test says so.

use std::{
    future::poll_fn,
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpListener as StdListener, TcpStream as StdStream},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use rustix::net::sockopt;
use windlass::Backend;
use windlass_task::{Direction, Executor, net::TcpStream, spawn, with_turn};

use crate::{
    scenarios::Build,
    tools::{at_most, connected, executor, pattern, poll_now, reset, run, turns},
};

/// A stream, and the other end of its connection, which may block for some seconds.
pub(crate) fn with_std_peer() -> (TcpStream, StdStream) {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    // Short queues of the kernel, so that most of what waits is ours.
    sockopt::set_socket_recv_buffer_size(&listener, 16 << 10).unwrap();
    let peer = StdStream::connect(listener.local_addr().unwrap()).unwrap();
    sockopt::set_socket_send_buffer_size(&peer, 16 << 10).unwrap();
    sockopt::set_socket_recv_buffer_size(&peer, 16 << 10).unwrap();
    peer.set_nodelay(true).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let ours = listener.accept().unwrap().0;
    sockopt::set_socket_send_buffer_size(&ours, 16 << 10).unwrap();
    (TcpStream::from_std(ours).unwrap(), peer)
}

pub(crate) fn is_on_ring() -> bool {
    with_turn(|turn| turn.stats().backend == Backend::Uring).unwrap()
}

/// The memory of the reactor's streams.
fn stream_memory() -> usize {
    with_turn(|mut turn| turn.stream_memory()).unwrap()
}

async fn many_turns() {
    for _ in 0..20 {
        turns().await;
    }
}

fn a_peer_that_sends_more_than_is_read_is_stopped(build: Build) {
    run(build, async {
        let (mut ours, mut peer) = with_std_peer();
        peer.set_nonblocking(true).unwrap();
        peer.write_all(b"x").unwrap();
        // From now on it receives ahead.
        assert_eq!(ours.read(&mut [0; 1]).await.unwrap(), 1);
        let bytes = pattern(4 << 20);
        let (mut sent, mut received) = (0, Vec::new());
        for round in 0..3 {
            let before = sent;
            let mut rests = 0;
            while rests < 5 {
                match peer.write(&bytes[sent..]) {
                    Ok(count) => (sent, rests) = (sent + count, 0),
                    Err(_) => rests += 1,
                }
                many_turns().await;
            }
            let waiting = sent - received.len();
            assert!(sent > before, "round {round}: reading has made room");
            // The read buffer has 64 KiB, and the kernel's queues and one more receive are short.
            assert!(waiting < 400 << 10, "round {round}: {waiting} bytes wait");
            assert!(stream_memory() < 200 << 10, "round {round}: {}", stream_memory());
            let mut buffer = [0; 5000];
            while received.len() < sent {
                let count = ours.read(&mut buffer).await.unwrap();
                received.extend_from_slice(&buffer[..count]);
            }
            assert!(received == bytes[..sent]);
        }
        assert_eq!(stream_memory(), 0, "an idle stream has no buffer");
    });
}

fn output_that_the_peer_does_not_read_is_bounded(build: Build) {
    run(build, async {
        for part in [100, 3_000, 10_000, 200_000] {
            let (mut ours, mut peer) = with_std_peer();
            peer.set_nonblocking(true).unwrap();
            let bytes = pattern(2 << 20);
            let mut sent = 0;
            let mut rests = 0;
            // The kernel may take more at any time, until its queues are full.
            while rests < 5 || poll_now(&mut Box::pin(ours.writable())).is_ready() {
                let end = bytes.len().min(sent + part);
                match at_most(1, ours.write(&bytes[sent..end])).await {
                    Some(count) => (sent, rests) = (sent + count.unwrap(), 0),
                    None => rests += 1,
                }
                assert!(sent < 400 << 10, "{part}: {sent} bytes were accepted");
                assert!(rests < 1_000, "{part}: writable, and a write waits");
                turns().await;
            }
            assert!(stream_memory() < 200 << 10, "{part}: {}", stream_memory());
            let reader = spawn(async move {
                let mut received = Vec::new();
                let mut buffer = [0; 9000];
                loop {
                    match peer.read(&mut buffer) {
                        Ok(0) => break received,
                        Ok(count) => received.extend_from_slice(&buffer[..count]),
                        Err(_) => turns().await,
                    }
                }
            });
            ours.writable().await.unwrap();
            ours.write_all(&bytes[sent..]).await.unwrap();
            ours.flush().await.unwrap();
            ours.shutdown().await.unwrap();
            assert_eq!(stream_memory(), 0, "{part}: nothing is buffered after a flush");
            assert!(reader.await.unwrap() == bytes);
            let error = ours.write(b"late").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        }
    });
}

fn is_over(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

fn bytes_before_a_failed_write_are_read_and_the_error_is_told_once(build: Build) {
    run(build, async {
        // Without a turn in between, with some, and with the receive under way.
        for (rests, reads_first) in [(0, false), (1, false), (0, true), (1, true)] {
            let (mut ours, mut peer) = with_std_peer();
            if reads_first {
                assert!(poll_now(&mut Box::pin(ours.read(&mut [0; 1]))).is_pending());
                turns().await;
            }
            peer.write_all(b"the last words").unwrap();
            reset(peer, &ours);
            for _ in 0..rests {
                turns().await;
            }
            let mut errors = 0;
            for _ in 0..4 {
                match ours.write(b"unwanted").await {
                    Ok(_) => turns().await,
                    Err(error) => {
                        assert!(is_over(&error), "{error}");
                        errors += 1;
                    }
                }
            }
            assert!(errors >= 2, "{errors}");
            let (mut received, mut buffer) = (Vec::new(), [0; 4]);
            loop {
                match ours.read(&mut buffer).await {
                    Ok(0) => break,
                    Ok(count) => received.extend_from_slice(&buffer[..count]),
                    Err(error) => {
                        assert!(is_over(&error), "{error}");
                        errors += 1;
                        assert!(errors < 6, "the error is told once");
                    }
                }
            }
            assert_eq!(received, b"the last words", "{rests} {reads_first}");
            assert_eq!(ours.read(&mut buffer).await.unwrap(), 0);
            // The descriptor is there still.
            assert!(ours.local_addr().is_ok() && ours.nodelay().is_ok());
        }
    });
}

fn the_error_of_a_queued_write_is_that_of_flush_or_shutdown(build: Build) {
    run(build, async {
        if !is_on_ring() {
            // Otherwise the write itself has it.
            return;
        }
        for ends in [false, true] {
            let (mut ours, peer) = with_std_peer();
            assert_eq!(ours.write(b"x").await.unwrap(), 1);
            turns().await;
            reset(peer, &ours);
            // Queued, and then submitted.
            assert_eq!(ours.write(b"y").await.unwrap(), 1);
            many_turns().await;
            let result = if ends { ours.shutdown().await } else { ours.flush().await };
            let error = result.unwrap_err();
            assert!(is_over(&error), "{error}");
            let error = ours.write(b"z").await.unwrap_err();
            assert!(is_over(&error), "{error}");
            assert!(ours.flush().await.is_ok(), "it is told once");
        }
    });
}

fn a_drop_with_unread_bytes_resets_and_another_ends_the_connection(build: Build) {
    run(build, async {
        for is_read in [false, true] {
            let (mut ours, mut peer) = with_std_peer();
            peer.write_all(b"hello").unwrap();
            assert_eq!(ours.read(&mut [0; 2]).await.unwrap(), 2);
            if is_read {
                ours.read_exact(&mut [0; 3]).await.unwrap();
            } else {
                ours.readable().await.unwrap();
            }
            drop(ours);
            turns().await;
            let result = peer.read(&mut [0; 8]).map_err(|error| error.kind());
            let expected = if is_read { Ok(0) } else { Err(ErrorKind::ConnectionReset) };
            assert_eq!(result, expected);
        }
    });
}

fn what_was_written_is_sent_before_the_end(build: Build) {
    for how in 0..4 {
        run(build, async move {
            let (mut ours, mut peer) = with_std_peer();
            ours.write_all(b"first ").await.unwrap();
            ours.write_all(b"second").await.unwrap();
            // Without a further turn, except for a drop.
            match how {
                0 => {
                    drop(ours);
                    turns().await;
                }
                1 => ours.shutdown().await.unwrap(),
                2 => drop(ours.into_split().1),
                _ => ours.shutdown_now(std::net::Shutdown::Both).unwrap(),
            }
            let mut received = Vec::new();
            peer.read_to_end(&mut received).unwrap();
            assert_eq!(received, b"first second");
        });
    }
}

fn output_of_a_dropped_stream_goes_to_a_slow_peer(build: Build) {
    run(build, async {
        let (mut ours, mut peer) = with_std_peer();
        let bytes = pattern(2 << 20);
        let mut sent = 0;
        while let Some(count) = at_most(1, ours.write(&bytes[sent..])).await {
            sent += count.unwrap();
        }
        drop(ours);
        peer.set_nonblocking(true).unwrap();
        let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match peer.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => received.extend_from_slice(&buffer[..count]),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    turns().await;
                }
            }
        }
        assert!(received == bytes[..sent], "{} of {sent}", received.len());
    });
}

fn closures_of_the_user_are_rejected_after_the_first_read(build: Build) {
    run(build, async {
        let (mut ours, mut peer) = with_std_peer();
        peer.write_all(b"ab").unwrap();
        ours.readable().await.unwrap();
        let read = |mut stream: &StdStream| stream.read(&mut [0; 1]);
        assert_eq!(ours.try_io(Direction::Read, read).unwrap(), 1);
        assert_eq!(ours.read(&mut [0; 1]).await.unwrap(), 1);
        let result = ours.try_io(Direction::Write, |mut stream| stream.write(b"x"));
        if !is_on_ring() {
            assert_eq!(result.unwrap(), 1);
            return;
        }
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("detach"), "{error}");
        let error = ours.async_io(Direction::Read, |_| Ok(())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let error = ours.into_std().unwrap_err();
        let (socket, read_buf) = error.stream.detach().await.unwrap();
        assert!(read_buf.is_empty());
        drop(TcpStream::from_std(socket).unwrap().into_std().unwrap());
    });
}

fn waiters_for_readiness_go_on_when_the_stream_starts(build: Build) {
    run(build, async {
        let (ours, mut peer) = with_std_peer();
        let (mut read, write) = ours.into_split();
        let waiter = spawn(async move {
            write.stream().readable().await.unwrap();
            write
        });
        let peeker = spawn(async move {
            turns().await;
            assert!(poll_now(&mut Box::pin(read.read(&mut [0; 1]))).is_pending());
            turns().await;
            read
        });
        let mut read = peeker.await.unwrap();
        assert!(!waiter.is_finished());
        peer.write_all(b"x").unwrap();
        let write = waiter.await.unwrap();
        assert_eq!(read.read(&mut [0; 2]).await.unwrap(), 1);
        drop(read.reunite(write).unwrap());
    });
}

fn where_there_is_no_turn_operations_wait_for_one(build: Build) {
    run(build, async {
        let subscribers = || with_turn(|turn| turn.stats().subscribers).unwrap();
        let before = subscribers();
        for is_started in [false, true] {
            let (mut ours, mut peer) = with_std_peer();
            if is_started {
                ours.write_all(b"0").await.unwrap();
                turns().await;
            }
            {
                let mut write = pin!(ours.write(b"a"));
                let mut is_first = true;
                let count = poll_fn(|context| {
                    if std::mem::take(&mut is_first) {
                        return with_turn(|_| write.as_mut().poll(context)).unwrap();
                    }
                    write.as_mut().poll(context)
                });
                assert_eq!(count.await.unwrap(), 1);
            }
            {
                let mut read = pin!(async { ours.read(&mut [0; 4]).await });
                let mut is_first = true;
                peer.write_all(b"b").unwrap();
                let count = poll_fn(|context| {
                    if std::mem::take(&mut is_first) {
                        return with_turn(|_| read.as_mut().poll(context)).unwrap();
                    }
                    read.as_mut().poll(context)
                });
                assert_eq!(count.await.unwrap(), 1);
            }
            with_turn(|_| drop(ours)).unwrap();
            turns().await;
            let mut received = Vec::new();
            peer.read_to_end(&mut received).unwrap();
            assert_eq!(received, if is_started { &b"0a"[..] } else { b"a" });
            assert_eq!(subscribers(), before);
        }
    });
}

fn sockets_that_wait_for_a_turn_are_bounded(build: Build) {
    let mut executor =
        Executor::builder().reactor(build()).queued_registrations_max(1).build().unwrap();
    executor.block_on(async {
        let (mut first, _peer) = with_std_peer();
        let (mut second, mut peer) = with_std_peer();
        let error = poll_fn(|context| {
            with_turn(|_| {
                let _ = pin!(first.write(b"a")).poll(context);
                Poll::Ready(match pin!(second.write(b"b")).poll(context) {
                    Poll::Ready(Err(error)) => Some(error.to_string()),
                    _ => None,
                })
            })
            .unwrap()
        })
        .await;
        // Only a ring registers a stream with the first write.
        assert_eq!(error.is_some(), is_on_ring());
        assert!(error.is_none_or(|error| error.contains("queued_registrations_max")));
        turns().await;
        second.write_all(b"c").await.unwrap();
        turns().await;
        let mut received = [0; 2];
        let count = if is_on_ring() { 1 } else { 2 };
        peer.read_exact(&mut received[..count]).unwrap();
        assert_eq!(received[count - 1], b'c');
    });
}

fn of_several_shutdowns_without_a_turn_the_widest_holds(build: Build) {
    run(build, async {
        let (mut ours, mut peer) = with_std_peer();
        ours.write_all(b"a").await.unwrap();
        with_turn(|_| {
            for how in [Shutdown::Write, Shutdown::Both, Shutdown::Write] {
                ours.shutdown_now(how).unwrap();
            }
        })
        .unwrap();
        turns().await;
        assert_eq!(ours.read(&mut [0; 1]).await.unwrap(), 0);
        let mut received = Vec::new();
        peer.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"a");
    });
}

fn a_stream_that_outlives_its_executor_keeps_its_bytes(build: Build) {
    let mut first = executor(build);
    let (mut ours, peer) = first.block_on(async {
        let (mut ours, mut peer) = with_std_peer();
        peer.write_all(b"abc").unwrap();
        ours.write_all(b"queued").await.unwrap();
        assert_eq!(ours.read(&mut [0; 1]).await.unwrap(), 1);
        ours.write_all(b" twice").await.unwrap();
        (ours, peer)
    });
    drop(first);
    let mut peer = peer;
    let mut received = [0; 12];
    peer.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"queued twice", "the end of the executor submits it");
    run(build, async {
        let mut rest = Vec::new();
        let error = loop {
            let mut buffer = [0; 8];
            match ours.read(&mut buffer).await {
                Ok(count) => rest.extend_from_slice(&buffer[..count]),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("dropped"), "{error}");
        assert!(rest == b"bc", "{rest:?}");
        assert!(ours.peer_addr().is_ok());
        let (socket, read_buf) = ours.detach().await.unwrap();
        assert!(read_buf.is_empty());
        let mut ours = TcpStream::from_std(socket).unwrap();
        peer.write_all(b"later").unwrap();
        ours.read_exact(&mut [0; 5]).await.unwrap();
    });
}

fn a_waker_that_panics_costs_no_bytes(build: Build) {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("bomb"));
        }
    }
    let mut executor = executor(build);
    let (mut ours, mut peer) = executor.block_on(async { with_std_peer() });
    let result = catch_unwind(AssertUnwindSafe(|| {
        executor.block_on(async {
            {
                let mut buffer = [0; 1];
                let mut read = pin!(ours.read(&mut buffer));
                let bomb = Waker::from(Arc::new(Bomb));
                assert!(read.as_mut().poll(&mut Context::from_waker(&bomb)).is_pending());
            }
            peer.write_all(b"abc").unwrap();
            many_turns().await;
            unreachable!("the waker panics");
        });
    }));
    assert!(result.is_err());
    executor.block_on(async {
        let mut buffer = [0; 3];
        ours.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"abc");
    });
}

fn a_dropped_tcp_write_has_written_what_it_said(build: Build) {
    run(build, async {
        for polls in 1..8 {
            let (mut ours, mut peer) = with_std_peer();
            peer.set_nonblocking(true).unwrap();
            let bytes = pattern(600_000);
            let reader = spawn(async move {
                let (mut received, mut buffer) = (Vec::new(), [0; 10_000]);
                loop {
                    match peer.read(&mut buffer) {
                        Ok(0) => break received,
                        Ok(count) => received.extend_from_slice(&buffer[..count]),
                        Err(_) => {}
                    }
                    turns().await;
                }
            });
            let mut sent = 0;
            while sent < bytes.len() {
                let part = &bytes[sent..bytes.len().min(sent + 30_000)];
                match at_most(polls, ours.write(part)).await {
                    Some(count) => sent += count.unwrap(),
                    None => turns().await,
                }
                let _ = at_most(polls - 1, ours.flush()).await;
            }
            ours.shutdown().await.unwrap();
            assert!(reader.await.unwrap() == bytes, "after {polls} polls");
        }
    });
}

fn many_streams_that_are_dropped_at_once_leave_the_executor_as_it_was(build: Build) {
    let mut executor = executor(build);
    for _ in 0..3 {
        executor.block_on(async {
            let mut pairs = Vec::new();
            for _ in 0..30 {
                let (mut client, mut server) = connected().await;
                client.write_all(b"hello").await.unwrap();
                server.read_exact(&mut [0; 5]).await.unwrap();
                pairs.push((client, server));
            }
        });
    }
}

fn both_readinesses_are_told_of_a_started_stream(build: Build) {
    run(build, async {
        let (mut ours, mut peer) = with_std_peer();
        ours.write_all(b"x").await.unwrap();
        ours.writable().await.unwrap();
        assert!(poll_now(&mut Box::pin(ours.readable())).is_pending());
        let mut context = Context::from_waker(Waker::noop());
        assert!(ours.poll_ready(Direction::Read, &mut context).is_pending());
        assert!(matches!(ours.poll_ready(Direction::Write, &mut context), Poll::Ready(Ok(()))));
        peer.write_all(b"y").unwrap();
        ours.readable().await.unwrap();
        assert_eq!(ours.read(&mut [0; 2]).await.unwrap(), 1);
        assert!(poll_now(&mut Box::pin(ours.readable())).is_pending());
        drop(peer);
        ours.readable().await.unwrap();
        // A reset, because the peer has not read.
        let _ = ours.read(&mut [0; 2]).await;
        assert_eq!(ours.read(&mut [0; 2]).await.unwrap(), 0);
        ours.readable().await.unwrap();
    });
}

scenarios! {
    a_peer_that_sends_more_than_is_read_is_stopped,
    output_that_the_peer_does_not_read_is_bounded,
    bytes_before_a_failed_write_are_read_and_the_error_is_told_once,
    the_error_of_a_queued_write_is_that_of_flush_or_shutdown,
    a_drop_with_unread_bytes_resets_and_another_ends_the_connection,
    what_was_written_is_sent_before_the_end,
    output_of_a_dropped_stream_goes_to_a_slow_peer,
    closures_of_the_user_are_rejected_after_the_first_read,
    waiters_for_readiness_go_on_when_the_stream_starts,
    where_there_is_no_turn_operations_wait_for_one,
    sockets_that_wait_for_a_turn_are_bounded,
    of_several_shutdowns_without_a_turn_the_widest_holds,
    a_stream_that_outlives_its_executor_keeps_its_bytes,
    a_waker_that_panics_costs_no_bytes,
    a_dropped_tcp_write_has_written_what_it_said,
    many_streams_that_are_dropped_at_once_leave_the_executor_as_it_was,
    both_readinesses_are_told_of_a_started_stream,
}
