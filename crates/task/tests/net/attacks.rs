//! Wakers and destructors that do with a TCP stream what they must not be able to break.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    io::{ErrorKind, Read, Write},
    net::TcpStream as StdStream,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use rustix::net::sockopt;
use windlass_task::{
    Executor, block_on,
    net::{OwnedReadHalf, OwnedWriteHalf, TcpStream},
    spawn, with_turn,
};

use crate::{
    leak::leak,
    read_buffers::with_std_peer,
    scenarios::Build,
    tools::{executor, pattern, run, turns},
};

/// What the waker does with the streams of [`HELD`].
type Attack = fn(&mut Vec<TcpStream>);

thread_local! {
    static HELD: RefCell<Vec<TcpStream>> = const { RefCell::new(Vec::new()) };
    static WAKES: Cell<u32> = const { Cell::new(0) };
}

struct Attacks(Attack);

impl Wake for Attacks {
    fn wake(self: Arc<Self>) {
        WAKES.set(WAKES.get() + 1);
        let mut held = HELD.take();
        (self.0)(&mut held);
        HELD.with_borrow_mut(|streams| streams.append(&mut held));
    }
}

fn context_of(waker: &Waker) -> Context<'_> {
    Context::from_waker(waker)
}

/// Polls a read without a value, and drops it.
fn poll_read(stream: &mut TcpStream, waker: &Waker) -> Poll<std::io::Result<usize>> {
    let mut buffer = [0; 4];
    let read = pin!(stream.read(&mut buffer));
    read.poll(&mut context_of(waker))
}

fn reset(peer: StdStream) {
    sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
    drop(peer);
}

const ATTACKS: [Attack; 7] = [
    Vec::clear,
    |held| held.drain(..).for_each(|stream| drop(stream.into_split().1)),
    |held| held.drain(..).for_each(|stream| drop(stream.into_std())),
    |held| {
        for stream in held {
            let _ = poll_read(stream, Waker::noop());
            let mut write = pin!(stream.write(&[1; 100_000]));
            let _ = write.as_mut().poll(&mut context_of(Waker::noop()));
        }
    },
    |held| {
        held.iter().for_each(|stream| _ = stream.shutdown_now(std::net::Shutdown::Both));
    },
    |held| {
        held.clear();
        resume_unwind(Box::new("waker"));
    },
    |held| {
        // An executor inside of a handler.
        assert!(catch_unwind(|| block_on(async {})).is_err());
        held.clear();
    },
];

fn subscribers(executor: &mut Executor) -> usize {
    executor.block_on(async { with_turn(|turn| turn.stats().subscribers).unwrap() })
}

/// A foreign waker runs inside of the callbacks of the reactor.
fn wakers_that_use_or_drop_the_stream_leave_the_executor_as_it_was(build: Build) {
    for attack in ATTACKS {
        for event in 0..4 {
            let mut executor = executor(build);
            let before = subscribers(&mut executor);
            WAKES.set(0);
            let waker = Waker::from(Arc::new(Attacks(attack)));
            let attacked = catch_unwind(AssertUnwindSafe(|| {
                executor.block_on(async {
                    let (mut ours, mut peer) = with_std_peer();
                    let (other, _other_peer) = with_std_peer();
                    assert!(poll_read(&mut ours, &waker).is_pending());
                    turns().await;
                    HELD.set(vec![ours, other]);
                    match event {
                        0 => peer.write_all(b"data").unwrap(),
                        1 => reset(peer),
                        2 => peer.shutdown(std::net::Shutdown::Write).unwrap(),
                        _ => {
                            peer.write_all(b"data").unwrap();
                            reset(peer);
                        }
                    }
                    while WAKES.get() == 0 {
                        turns().await;
                    }
                    turns().await;
                });
            }));
            drop(attacked);
            assert!(WAKES.get() > 0);
            executor.block_on(async {
                HELD.take();
                turns().await;
                // The executor works.
                let (mut ours, mut peer) = with_std_peer();
                peer.write_all(b"x").unwrap();
                assert_eq!(ours.read(&mut [0; 1]).await.unwrap(), 1);
            });
            executor.block_on(turns());
            assert_eq!(subscribers(&mut executor), before);
        }
    }
}

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// Panics when it is dropped for the last time.
struct DropBomb;

impl Wake for DropBomb {
    fn wake(self: Arc<Self>) {}
}

impl Drop for DropBomb {
    fn drop(&mut self) {
        if !thread::panicking() {
            resume_unwind(Box::new("drop"));
        }
    }
}

fn wakers_that_panic_when_dropped_do_not_keep_streams_from_their_ends(build: Build) {
    const COUNT: usize = 10;
    let mut executor = executor(build);
    let before = subscribers(&mut executor);
    let mut peers = Vec::new();
    let mut streams = Vec::new();
    executor.block_on(async {
        for _ in 0..COUNT {
            let (mut ours, peer) = with_std_peer();
            let waker = Waker::from(Arc::new(DropBomb));
            // The stream has the last reference.
            assert!(poll_read(&mut ours, &waker).is_pending());
            drop(waker);
            turns().await;
            streams.push(ours);
            peers.push(peer);
        }
    });
    // Of each pair, both are dropped in one round.
    while !streams.is_empty() {
        let pair = streams.drain(..2);
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            executor.block_on(async {
                for stream in pair {
                    let dropped = catch_unwind(AssertUnwindSafe(|| drop(stream)));
                    PANICS.set(PANICS.get() + u32::from(dropped.is_err()));
                }
                turns().await;
            });
        }));
        PANICS.set(PANICS.get() + u32::from(dropped.is_err()));
        executor.block_on(turns());
    }
    assert!(PANICS.take() as usize >= COUNT / 2, "the destructors run");
    assert_eq!(subscribers(&mut executor), before);
    drop(executor);
    for mut peer in peers {
        assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
    }
}

/// Drops the streams of [`HELD`] when it is dropped for the last time.
struct DropsHeld;

impl Wake for DropsHeld {
    fn wake(self: Arc<Self>) {}
}

impl Drop for DropsHeld {
    fn drop(&mut self) {
        drop(HELD.take());
    }
}

/// A ring ends the dropped streams of a round together, which runs the destructors of wakers.
fn a_stream_that_is_dropped_while_others_end_is_ended_too(build: Build) {
    let mut executor = executor(build);
    let before = subscribers(&mut executor);
    let mut peers = executor.block_on(async {
        let ((mut first, first_peer), (mut second, second_peer)) =
            (with_std_peer(), with_std_peer());
        let waker = Waker::from(Arc::new(DropsHeld));
        // The stream has the last reference.
        assert!(poll_read(&mut first, &waker).is_pending());
        drop(waker);
        assert!(poll_read(&mut second, Waker::noop()).is_pending());
        turns().await;
        HELD.set(vec![second]);
        drop(first);
        turns().await;
        turns().await;
        [first_peer, second_peer]
    });
    assert!(HELD.take().is_empty(), "the destructor has run");
    assert_eq!(subscribers(&mut executor), before);
    for peer in &mut peers {
        assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
    }
}

fn a_stream_may_be_used_and_dropped_in_another_executor(build: Build) {
    for ends_first in [false, true] {
        let mut own = executor(build);
        let mut peers = Vec::new();
        let mut streams = Vec::new();
        own.block_on(async {
            for _ in 0..3 {
                let (mut ours, mut peer) = with_std_peer();
                peer.write_all(b"ab").unwrap();
                assert_eq!(ours.read(&mut [0; 1]).await.unwrap(), 1);
                streams.push(ours);
                peers.push(peer);
            }
        });
        let mut own = Some(own);
        if ends_first {
            own = None;
        }
        run(build, async {
            // Its own executor does not run, so nothing comes.
            assert!(poll_read(&mut streams[0], Waker::noop()).is_ready() || !ends_first);
            drop(streams);
        });
        if let Some(mut own) = own {
            own.block_on(turns());
        }
        for mut peer in peers {
            let mut received = Vec::new();
            // With unread bytes it is reset, else it ends.
            match peer.read_to_end(&mut received) {
                Ok(count) => assert_eq!(count, 0),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
    }
}

thread_local! {
    static LATE_FIRST: RefCell<Option<TcpStream>> = const { RefCell::new(None) };
    static LATE_EXECUTOR: RefCell<Option<Executor>> = const { RefCell::new(None) };
    static LATE_LAST: RefCell<Option<(OwnedReadHalf<TcpStream>, OwnedWriteHalf<TcpStream>)>> =
        const { RefCell::new(None) };
}

/// Destructors of thread-local variables run in any order.
fn streams_and_executors_may_end_with_their_thread(build: Build) {
    for order in 0..3 {
        let peers = thread::spawn(move || {
            // The first use decides on the order of the destructors.
            match order {
                0 => LATE_EXECUTOR.with(|_| LATE_FIRST.with(|_| LATE_LAST.with(|_| ()))),
                1 => LATE_FIRST.with(|_| LATE_EXECUTOR.with(|_| LATE_LAST.with(|_| ()))),
                _ => LATE_FIRST.with(|_| LATE_LAST.with(|_| LATE_EXECUTOR.with(|_| ()))),
            }
            let mut executor = executor(build);
            let peers = executor.block_on(async {
                let (mut first, first_peer) = with_std_peer();
                let (mut last, last_peer) = with_std_peer();
                first.write_all(b"first").await.unwrap();
                last.write_all(b"last").await.unwrap();
                let task = spawn(async { std::future::pending::<()>().await });
                LATE_FIRST.set(Some(first));
                LATE_LAST.set(Some(last.into_split()));
                task.detach();
                [first_peer, last_peer]
            });
            LATE_EXECUTOR.set(Some(executor));
            peers
        })
        .join()
        .unwrap();
        for (mut peer, expected) in peers.into_iter().zip([&b"first"[..], b"last"]) {
            let mut received = Vec::new();
            peer.read_to_end(&mut received).unwrap();
            assert_eq!(received, expected, "{order}");
        }
    }
}

fn a_leaked_stream_does_not_outlive_its_executors_reactor(build: Build) {
    let mut executor = executor(build);
    let mut peer = executor.block_on(async {
        let (mut ours, peer) = with_std_peer();
        ours.write_all(b"queued").await.unwrap();
        leak(ours);
        peer
    });
    drop(executor);
    // It is sent, and the connection stays open.
    peer.read_exact(&mut [0; 6]).unwrap();
    peer.set_nonblocking(true).unwrap();
    let error = peer.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    peer.write_all(b"unheard").unwrap();
}

fn a_task_that_is_aborted_in_a_write_has_sent_a_prefix(build: Build) {
    run(build, async {
        for rests in 0..6 {
            let (mut ours, mut peer) = with_std_peer();
            let bytes = pattern(1 << 20);
            let expected = bytes.clone();
            let task = spawn(async move { ours.write_all(&bytes).await });
            peer.set_nonblocking(true).unwrap();
            let (mut received, mut buffer) = (Vec::new(), [0; 5000]);
            for _ in 0..rests {
                if let Ok(count) = peer.read(&mut buffer) {
                    received.extend_from_slice(&buffer[..count]);
                }
                turns().await;
            }
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            loop {
                match peer.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => received.extend_from_slice(&buffer[..count]),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                turns().await;
            }
            assert!(expected.starts_with(&received), "{rests}: {}", received.len());
        }
    });
}

scenarios! {
    a_leaked_stream_does_not_outlive_its_executors_reactor,
    a_task_that_is_aborted_in_a_write_has_sent_a_prefix,
    wakers_that_use_or_drop_the_stream_leave_the_executor_as_it_was,
    wakers_that_panic_when_dropped_do_not_keep_streams_from_their_ends,
    a_stream_that_is_dropped_while_others_end_is_ended_too,
    a_stream_may_be_used_and_dropped_in_another_executor,
    streams_and_executors_may_end_with_their_thread,
}
