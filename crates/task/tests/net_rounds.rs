//! Connections that are made and cancelled leave neither descriptors nor registrations nor tasks.
//!
//! A program of its own with one test, because it counts the descriptors of the process.

#![deny(unsafe_code)]

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

#[path = "../../reactor/tests/common/rings.rs"]
mod rings;

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
            polls @ 0..=2 => at_most(polls, TcpStream::connect(address)).await,
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

fn run_on(backend: Backend, count: usize) {
    let before = descriptors();
    let mut executor =
        Executor::builder().reactor(Reactor::builder().backend(backend)).build().unwrap();
    let registered = |executor: &mut Executor| {
        executor.block_on(async { with_turn(|turn| turn.stats().subscribers).unwrap() })
    };
    executor.block_on(rounds(20));
    let (open, subscribers) = (descriptors(), registered(&mut executor));
    let (tasks, pages) = (executor.stats().tasks, resident_pages());
    executor.block_on(rounds(count));
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
