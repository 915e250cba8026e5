//! The number of system calls of tasks. The parent counts them with ptrace(2) in a child.

use std::{
    cell::RefCell,
    future::poll_fn,
    io::{Read, Write},
    net::{SocketAddr, TcpStream as StdStream},
    rc::Rc,
    task::{Poll, Waker},
};

use windlass::Backend;
use windlass_task::{
    net::{TcpListener, TcpStream},
    spawn, with_turn, yield_now,
};

use crate::{
    children::executor,
    ptrace::{Call, mark, results_between_marks},
    sockets::{turns, with_peer},
};

const WAITS: [i64; 5] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_io_uring_enter,
];

/// The allocator's.
const OF_MEMORY: [i64; 4] = [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_madvise, libc::SYS_brk];

fn count(calls: &[Call], which: &[i64]) -> usize {
    calls.iter().filter(|call| which.contains(&call.number)).count()
}

/// The calls of the first span. `None` where tracing is forbidden, which is said.
fn traced(body: impl FnOnce()) -> Option<Vec<Call>> {
    let spans = results_between_marks(body);
    if spans.is_none() {
        eprintln!("nobody may be traced here");
    }
    spans.map(|mut spans| spans.swap_remove(0))
}

pub(crate) fn request_and_response_find_no_empty_socket(backend: Backend) {
    const ROUNDS: usize = 20;
    let body = || {
        executor(backend).block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let mut server = listener.accept().await.unwrap().0;
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            // It reads on after each answer.
            let echo = spawn(async move {
                let mut buffer = [0; 256];
                loop {
                    assert_eq!(server.read(&mut buffer).await.unwrap(), 64);
                    server.write_all(&[2; 64]).await.unwrap();
                }
            });
            let mut buffer = [0; 256];
            for round in 0..ROUNDS + 3 {
                if round == 3 {
                    turns().await;
                    mark();
                }
                client.write_all(&[1; 64]).await.unwrap();
                assert_eq!(client.read(&mut buffer).await.unwrap(), 64);
            }
            mark();
            echo.abort();
        });
        mark();
    };
    let Some(calls) = traced(body) else { return };
    let eagain = -i64::from(libc::EAGAIN);
    assert!(calls.iter().all(|call| call.result != eagain), "{calls:?}");
    let (sends, receives) =
        (count(&calls, &[libc::SYS_sendto]), count(&calls, &[libc::SYS_recvfrom]));
    let own = if backend == Backend::Uring { 0 } else { 2 * ROUNDS };
    assert_eq!((sends, receives), (own, own), "{calls:?}");
    // One for each direction.
    let waits = count(&calls, &WAITS);
    assert!(waits <= 2 * ROUNDS + 2, "{calls:?}");
    // poll(2) has no set in the kernel, so the backend looks whether the number is open.
    let checks = count(&calls, &[libc::SYS_fcntl]);
    assert!(checks <= if backend == Backend::Poll { 2 * ROUNDS } else { 0 }, "{calls:?}");
    let all = sends + receives + waits + checks + count(&calls, &OF_MEMORY);
    assert_eq!(calls.len(), all, "{calls:?}");
}

pub(crate) fn a_turn_without_input_makes_one_wait(backend: Backend) {
    let body = || {
        executor(backend).block_on(async {
            // A socket that is registered, and quiet.
            let (mut ours, peer) = with_peer();
            ours.write_all(b"x").await.unwrap();
            turns().await;
            let now = || with_turn(|turn| turn.stats().turns).unwrap();
            let end = now() + 20;
            mark();
            while now() < end {
                yield_now().await;
            }
            mark();
            drop(peer);
        });
        mark();
    };
    let Some(calls) = traced(body) else { return };
    let waits = count(&calls, &WAITS);
    assert!((0..=20).contains(&waits), "{calls:?}");
    assert!(backend == Backend::Uring || waits == 20, "{calls:?}");
    assert_eq!(calls.len(), waits + count(&calls, &OF_MEMORY), "{calls:?}");
}

/// Two tasks that wake each other.
pub(crate) fn a_local_wake_makes_no_system_call(backend: Backend) {
    const ROUNDS: usize = 25;
    let body = || {
        executor(backend).block_on(async {
            let wakers: Rc<[RefCell<Option<Waker>>; 2]> = Rc::default();
            let task = |own: usize| {
                let wakers = Rc::clone(&wakers);
                let mut left = ROUNDS;
                poll_fn(move |context| {
                    *wakers[own].borrow_mut() = Some(context.waker().clone());
                    if let Some(waker) = wakers[1 - own].take() {
                        waker.wake();
                    }
                    left -= 1;
                    if left == 0 { Poll::Ready(()) } else { Poll::Pending }
                })
            };
            turns().await;
            let (one, other) = (spawn(task(0)), spawn(task(1)));
            mark();
            one.await.unwrap();
            mark();
            drop(other);
        });
        mark();
    };
    let Some(calls) = traced(body) else { return };
    // A round of the executor may have ended.
    assert!(count(&calls, &WAITS) <= 1, "{calls:?}");
    assert_eq!(calls.len(), count(&calls, &WAITS) + count(&calls, &OF_MEMORY), "{calls:?}");
}

pub(crate) fn streams_that_are_dropped_together_take_one_submission(backend: Backend) {
    const STREAMS: usize = 200;
    let body = || {
        executor(backend).block_on(async {
            let (mut streams, mut peers) = (Vec::new(), Vec::new());
            for _ in 0..STREAMS {
                let (mut ours, mut peer) = with_peer();
                ours.write_all(b"x").await.unwrap();
                turns().await;
                peer.read_exact(&mut [0; 1]).unwrap();
                streams.push(ours);
                peers.push(peer);
            }
            mark();
            drop(streams);
            turns().await;
            mark();
            for mut peer in peers {
                assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
            }
        });
        mark();
    };
    let Some(calls) = traced(body) else { return };
    assert_eq!(count(&calls, &[libc::SYS_close]), STREAMS);
    let enters = count(&calls, &[libc::SYS_io_uring_enter]);
    // Those of the turns, and one that ends all receives.
    assert!(enters <= 4, "{enters} calls for {STREAMS} streams");
}

/// The number of calls that submit for this many connections of `one`, after three that are not
/// counted. `None` where tracing is forbidden.
fn submissions(
    backend: Backend,
    connections: usize,
    one: impl AsyncFn(&TcpListener, SocketAddr),
) -> Option<usize> {
    let body = || {
        executor(backend).block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            for round in 0..connections + 3 {
                if round == 3 {
                    mark();
                }
                one(&listener, address).await;
            }
            mark();
        });
        mark();
    };
    Some(count(&traced(body)?, &[libc::SYS_io_uring_enter]))
}

/// Accepts a connection, reads its request, answers and ends.
async fn answer_one(listener: &TcpListener) {
    let mut server = listener.accept().await.unwrap().0;
    assert_eq!(server.read(&mut [0; 256]).await.unwrap(), 64);
    server.write_all(&[2; 64]).await.unwrap();
}

pub(crate) fn a_connection_that_is_answered_and_dropped_cancels_nothing(backend: Backend) {
    const CONNECTIONS: usize = 20;
    let one = async |listener: &TcpListener, address| {
        let mut client = StdStream::connect(address).unwrap();
        client.write_all(&[1; 64]).unwrap();
        answer_one(listener).await;
        // The stream ends with the round.
        turns().await;
        client.read_exact(&mut [0; 64]).unwrap();
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    };
    let Some(enters) = submissions(backend, CONNECTIONS, one) else { return };
    // One each, and a few if bytes come late. A receive that is cancelled takes one more.
    assert!(enters <= CONNECTIONS * 3 / 2, "{enters} calls");
}

/// The connection, the request with its answer, and the ends. Sends that are withdrawn when their
/// stream ends leave nothing to submit.
pub(crate) fn a_connection_between_two_tasks_makes_three_submissions(backend: Backend) {
    const CONNECTIONS: usize = 20;
    let one = async |listener: &TcpListener, address| {
        let client = spawn(async move {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(&[1; 64]).await.unwrap();
            client.read(&mut [0; 256]).await.unwrap()
        });
        answer_one(listener).await;
        assert_eq!(client.await.unwrap(), 64);
        turns().await;
    };
    let Some(enters) = submissions(backend, CONNECTIONS, one) else { return };
    assert!(enters < CONNECTIONS * 7 / 2, "{enters} calls");
}
