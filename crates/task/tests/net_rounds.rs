//! Connections that are made and cancelled leave neither descriptors nor registrations nor tasks.
//!
//! A program of its own with one test, because it counts the descriptors of the process.

#![deny(unsafe_code)]

use windlass_testkit::rings;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use windlass::{Backend, Reactor};
use windlass_task::{
    Executor,
    net::{TcpListener, TcpStream},
    spawn, with_turn,
};

/// Rounds of the long run.
const MANY: usize = 100_000;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Resident pages, from statm of proc(5).
fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Polls a future at most `count` times, and drops it.
async fn at_most(count: usize, future: impl Future) {
    let mut future = pin!(future);
    let mut left = count;
    poll_fn(|context| {
        if left == 0 || future.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        left -= 1;
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Connects, and cancels the connect, a read, or the task that reads, at several points.
async fn rounds(count: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = spawn(async move {
        loop {
            // Also connections that were cancelled before.
            let Ok((mut stream, _)) = listener.accept().await else { continue };
            at_most(2, stream.read(&mut [0; 8])).await;
        }
    });
    for round in 0..count {
        match round % 4 {
            // By this address a connect waits for an event.
            polls @ 0..=2 => at_most(polls, TcpStream::connect(("0.0.0.0", address.port()))).await,
            _ => {
                let mut stream = TcpStream::connect(address).await.unwrap();
                // No states of closed connections, which would use up the ports.
                stream.set_linger(Some(std::time::Duration::ZERO)).unwrap();
                let task = spawn(async move { stream.read(&mut [0; 8]).await });
                windlass_task::yield_now().await;
                task.abort();
                drop(task.await);
            }
        }
    }
    acceptor.abort();
    drop(acceptor.await);
}

async fn memory_of_streams() -> usize {
    with_turn(|mut turn| turn.stream_memory()).unwrap()
}

/// One side of a connection, with every operation of a stream.
async fn session(mut stream: TcpStream, speaks_first: bool) -> std::io::Result<()> {
    // No states of closed connections, which would use up the ports.
    stream.set_linger(Some(std::time::Duration::ZERO))?;
    let mut buffer = [0; 256];
    if speaks_first {
        stream.write_all(&[1; 100]).await?;
        stream.flush().await?;
    }
    stream.peek(&mut buffer).await?;
    stream.read_exact(&mut buffer[..100]).await?;
    stream.write_all(&[2; 100]).await?;
    let (mut read, mut write) = stream.into_split();
    write.shutdown().await?;
    read.stream().readable().await?;
    let _ = read.read(&mut buffer).await?;
    let stream = read.reunite(write).map_err(|_| std::io::ErrorKind::Other)?;
    drop(stream.detach().await?);
    Ok(())
}

/// How many polls a session takes at most; a session with more is not cancelled.
const POLLS: usize = 14;

/// Sessions that are cancelled after k polls on one side and after l on the other, for every k and
/// l. So each waits somewhere when it is cancelled, or is done.
async fn cancelled_sessions(count: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = spawn(async move {
        let mut round = 0;
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            at_most(round % POLLS, session(stream, false)).await;
            round += 1;
        }
    });
    for round in 0..count {
        at_most(round / POLLS % POLLS + 1, async {
            let stream = TcpStream::connect(address).await?;
            session(stream, true).await
        })
        .await;
    }
    acceptor.abort();
    drop(acceptor.await);
}

fn run_on(backend: Backend, count: usize) {
    run_rounds(backend, count, rounds);
    run_rounds(backend, count, cancelled_sessions);
}

fn run_rounds(backend: Backend, count: usize, rounds: impl AsyncFn(usize)) {
    let before = descriptors();
    let mut executor =
        Executor::builder().reactor(Reactor::builder().backend(backend)).build().unwrap();
    let registered = |executor: &mut Executor| {
        executor.block_on(async { with_turn(|turn| turn.stats().subscribers).unwrap() })
    };
    executor.block_on(rounds(POLLS * POLLS));
    let (open, subscribers) = (descriptors(), registered(&mut executor));
    let (tasks, pages) = (executor.stats().tasks, resident_pages());
    executor.block_on(rounds(count));
    assert_eq!(executor.block_on(memory_of_streams()), 0, "{backend}: memory of streams");
    assert_eq!(descriptors(), open, "{backend}: descriptors");
    assert_eq!(registered(&mut executor), subscribers, "{backend}: registrations");
    assert_eq!(executor.stats().tasks, tasks, "{backend}: tasks");
    // Freed memory stays with the allocator: a leak of each round would be far more.
    // AddressSanitizer keeps freed blocks aside, and finds leaks itself. `cargo xtask ci` sets the
    // variable.
    if std::env::var_os("WINDLASS_SANITIZED").is_none() {
        let grown = resident_pages().saturating_sub(pages);
        assert!(grown < 200 + count / 200, "{backend}: {grown} pages for {count} rounds");
    }
    drop(executor);
    assert_eq!(descriptors(), before, "{backend}: descriptors after the executor's end");
}

fn on_all_backends(count: usize) {
    run_on(Backend::Epoll, count);
    run_on(Backend::Poll, count);
    if rings::are_to_be_had("net_rounds: the rounds on a ring") {
        run_on(Backend::Uring, count);
    }
}

#[test]
fn cancelled_connections_leave_nothing() {
    on_all_backends(2_000);
}

#[test]
#[ignore = "takes a minute: run it alone, in release"]
fn a_hundred_thousand_cancelled_connections_leave_nothing() {
    on_all_backends(MANY);
}
