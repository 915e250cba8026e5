//! A task is one allocation, and a wake and a poll are none. Neither are sleeps and time limits. A
//! connection is two.
//!
//! It is a separate program because it replaces the global allocator. The allocator counts the
//! requests of the test's own thread, because the harness runs another thread.

use windlass_testkit::alloc::{Counting, calls_of_thread};

use std::{
    cell::Cell,
    future::{Future, pending, poll_fn},
    io::{Read, Write},
    net::TcpStream as StdStream,
    pin::Pin,
    sync::mpsc,
    task::{Poll, Waker},
    thread,
    time::Duration,
};

use windlass::{Backend, BuildError, Reactor};
use windlass_task::{
    Executor,
    net::{TcpListener, TcpStream},
    spawn,
    time::{Sleep, now, sleep, timeout},
    with_turn, yield_now,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = calls_of_thread();
    let result = run();
    (calls_of_thread() - before, result)
}

#[test]
fn a_task_is_one_allocation_and_wakes_and_polls_are_none() {
    let mut executor = Executor::new().unwrap();
    // Turns have allocated what they need.
    executor.block_on(yield_now());
    executor.block_on(async {
        let (count, task) = allocations(|| spawn(async { [0u64; 100] }));
        assert_eq!(count, 1, "a spawn");

        let before = calls_of_thread();
        assert_eq!(task.await.unwrap(), [0; 100]);
        assert_eq!(calls_of_thread() - before, 0, "a poll, its output, and the wake of a handle");

        let before = calls_of_thread();
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(calls_of_thread() - before, 0, "a hundred wakes and polls");
    });
}

#[test]
fn sleeps_and_time_limits_allocate_nothing() {
    let mut executor = Executor::new().unwrap();
    executor.block_on(async {
        // The tables of the reactor and of the executor.
        sleep(Duration::from_millis(1)).await;
        let mut kept = Vec::with_capacity(100);
        let round = async |kept: &mut Vec<Sleep>| {
            for _ in 0..100 {
                let mut long = sleep(Duration::from_secs(3600));
                poll_fn(|context| {
                    assert!(Pin::new(&mut long).poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                long.reset(now() + Duration::from_secs(60));
                long.reset(now() + Duration::from_secs(7200));
                kept.push(long);
            }
            let mut limited = timeout(Duration::from_micros(1), pending::<()>());
            assert!(Pin::new(&mut limited).await.is_err());
            assert!(timeout(Duration::from_secs(60), yield_now()).await.is_ok());
            kept.clear();
        };
        // A hundred at once, which the tables keep room for.
        round(&mut kept).await;
        let before = calls_of_thread();
        round(&mut kept).await;
        assert_eq!(calls_of_thread() - before, 0);
    });
}

/// Connections whose allocations are counted, and those before them.
const CONNECTIONS: usize = 40;
const WARM: usize = 20;

/// A table may grow meanwhile.
const GROWTHS_MAX: usize = 4;

/// An executor on each backend that this machine has.
fn executors() -> impl Iterator<Item = (Backend, Executor)> {
    [Backend::Epoll, Backend::Uring, Backend::Poll].into_iter().filter_map(|backend| {
        let reactor = Reactor::builder().backend(backend);
        match Executor::builder().reactor(reactor).build() {
            Ok(executor) => Some((backend, executor)),
            Err(BuildError::Ring(error)) => {
                eprintln!("no ring here: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    })
}

async fn turns() {
    let count = || with_turn(|turn| turn.stats().turns).unwrap();
    let end = count() + 2;
    while count() < end {
        yield_now().await;
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets that accept")]
fn a_connection_that_is_accepted_answered_and_dropped_is_two_allocations() {
    for (backend, mut executor) in executors() {
        executor.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut count = 0;
            for round in 0..WARM + CONNECTIONS {
                let mut client = StdStream::connect(address).unwrap();
                client.write_all(&[1; 64]).unwrap();
                let before = calls_of_thread();
                let mut server = listener.accept().await.unwrap().0;
                assert_eq!(server.read(&mut [0; 256]).await.unwrap(), 64);
                server.write_all(&[2; 64]).await.unwrap();
                drop(server);
                // The stream ends with the round.
                turns().await;
                if round >= WARM {
                    count += calls_of_thread() - before;
                }
                assert_eq!(client.read(&mut [0; 256]).unwrap(), 64);
            }
            // The socket's state and its registration.
            let expected = 2 * CONNECTIONS..=2 * CONNECTIONS + GROWTHS_MAX;
            assert!(expected.contains(&count), "{backend:?}: {count}");
        });
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sockets that accept")]
fn a_connect_that_waits_adds_a_registration_on_a_ring() {
    for (backend, mut executor) in executors() {
        executor.block_on(async {
            let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
            let address = listener.local_addr().unwrap();
            let mut count = 0;
            for round in 0..WARM + CONNECTIONS {
                let before = calls_of_thread();
                let mut client = TcpStream::connect(address).await.unwrap();
                client.write_all(&[1; 64]).await.unwrap();
                drop(client);
                turns().await;
                if round >= WARM {
                    count += calls_of_thread() - before;
                }
                drop(listener.accept().unwrap());
            }
            let each = if backend == Backend::Uring { 4 } else { 2 };
            let expected = each * CONNECTIONS..=each * CONNECTIONS + GROWTHS_MAX;
            assert!(expected.contains(&count), "{backend:?}: {count}");
        });
    }
}

#[test]
fn a_wake_of_another_thread_allocates_nothing_there_and_here() {
    let mut executor = Executor::new().unwrap();
    executor.block_on(yield_now());
    let (sender, receiver) = mpsc::sync_channel::<Option<Waker>>(1);
    let (answers, is_answered) = mpsc::sync_channel::<usize>(1);
    let thread = thread::spawn(move || {
        while let Ok(Some(waker)) = receiver.recv() {
            let (count, ()) = allocations(|| {
                let other = waker.clone();
                other.wake();
                waker.wake_by_ref();
                drop(waker);
            });
            answers.send(count).unwrap();
        }
    });
    executor.block_on(async {
        drop(spawn(pending::<()>()));
        for round in 0..10 {
            let mut is_first = true;
            let before = Cell::new(0);
            poll_fn(|context| {
                if std::mem::take(&mut is_first) {
                    sender.send(Some(context.waker().clone())).unwrap();
                    before.set(calls_of_thread());
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
            // The first wakes may make the channel allocate.
            if round > 1 {
                assert_eq!(calls_of_thread() - before.get(), 0, "the side of the executor");
            }
            assert_eq!(is_answered.recv().unwrap(), 0, "the side of the waker");
        }
    });
    sender.send(None).unwrap();
    thread.join().unwrap();
}
