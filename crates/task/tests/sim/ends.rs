//! The end of an executor, and of a process, loses no bytes silently.

use std::{
    cell::RefCell,
    io,
    rc::Rc,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use windlass::sim::{Faults, Sim};
use windlass_task::{
    net::{TcpListener, TcpStream},
    spawn,
    time::sleep,
    yield_now,
};

use windlass_testkit::ends::{bytes_of, check};

use crate::tools::{address, again_async, executor, whole};

/// All streams here have the bytes of one direction of one connection.
pub(crate) const ONE: (u8, u8) = (0, 0);

/// Reads until the end or an error, and waits before each read.
pub(crate) async fn read_all(stream: &mut TcpStream, pause: Duration) -> (usize, io::Result<()>) {
    let (mut done, mut room) = (0, [0; 4096]);
    loop {
        if !pause.is_zero() {
            sleep(pause).await;
        }
        match stream.read(&mut room).await {
            Ok(0) => return (done, Ok(())),
            Ok(count) => {
                check(ONE, done, &room[..count]);
                done += count;
            }
            Err(error) => return (done, Err(error)),
        }
    }
}

const CLIENTS: usize = 3;

/// A server that writes to each of its clients and ends. A client reads everything, or an error.
/// Returns how many clients read everything, and whether the server has ended.
pub(crate) fn ends_after_writes(sim: &Sim, is_mortal: bool) -> (usize, bool) {
    let len = 1 + usize::try_from(sim.kernel().choose(60_000)).unwrap();
    let written: Rc<RefCell<Vec<usize>>> = Rc::default();
    let noted = Rc::clone(&written);
    let alive = Rc::new(());
    let of_server = Rc::clone(&alive);
    let server = executor(sim, 2).simulate(sim, async move {
        let listener = again_async!(TcpListener::bind(address("10.0.0.2:80")));
        let mut tasks = Vec::new();
        for _ in 0..CLIENTS {
            let (mut stream, _) = again_async!(listener.accept());
            let (noted, alive) = (Rc::clone(&noted), Rc::clone(&of_server));
            tasks.push(spawn(async move {
                let mut at = 0;
                while at < len {
                    let part = bytes_of(ONE, at, len - at);
                    let Ok(count) = stream.write(&part).await else { break };
                    at += count;
                }
                noted.borrow_mut().push(at);
                // The end of the executor drops it, with whatever it holds.
                std::future::pending::<()>().await;
                drop((stream, alive));
            }));
        }
        while noted.borrow().len() < CLIENTS {
            yield_now().await;
        }
    });
    server.set_mortal(is_mortal);
    let ends = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&ends);
    let client = executor(sim, 3).simulate(sim, async move {
        let tasks: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let ends = Rc::clone(&noted);
                spawn(async move {
                    for _ in 0..20 {
                        let Ok(mut stream) = TcpStream::connect(address("10.0.0.2:80")).await
                        else {
                            yield_now().await;
                            continue;
                        };
                        let end = read_all(&mut stream, Duration::ZERO).await;
                        ends.borrow_mut().push(end);
                        break;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    // If a client has given up, the server waits for it, and the others for the server.
    let _ = sim.run_until(|| client.has_ended() && server.has_ended());
    if server.has_ended() {
        assert_eq!(Rc::strong_count(&alive), 1, "a task is still there");
    }
    for (count, end) in ends.borrow().iter() {
        // A process that is killed ends its connections with what its kernel has: a part.
        let is_whole = *count == len || is_mortal;
        assert!(end.is_err() || is_whole, "{count} of {len} bytes before a clean end");
    }
    let whole = ends.borrow().iter().filter(|(count, end)| *count == len && end.is_ok()).count();
    (whole, server.has_ended())
}

#[test]
fn an_executor_that_ends_loses_no_bytes_silently() {
    let sim = Sim::new(1, Faults::calm());
    assert_eq!(ends_after_writes(&sim, false), (CLIENTS, true));
    windlass::sim::check(|sim| _ = ends_after_writes(sim, false))
        .seeds(150)
        .faults(whole(Faults::hostile()))
        .run();
}

/// Its sockets are closed before its tasks are dropped.
#[test]
fn a_process_that_is_killed_drops_its_tasks() {
    let killed = AtomicUsize::new(0);
    windlass::sim::check(|sim| {
        let (whole, has_ended) = ends_after_writes(sim, true);
        killed.fetch_add(usize::from(has_ended && whole < CLIENTS), Ordering::Relaxed);
    })
    .seeds(100)
    .faults(Faults { process_end: 20_000, ..whole(Faults::hostile()) })
    .run();
    assert!(killed.into_inner() > 0);
}

#[test]
fn a_dropped_executor_reads_nothing_more_and_resets() {
    let sim = Sim::new(1, Faults::calm());
    let server = executor(&sim, 2).simulate(&sim, async {
        let listener = TcpListener::bind(address("10.0.0.2:80")).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 1]).await.unwrap();
    });
    let client = executor(&sim, 3).simulate(&sim, async {
        let mut stream = TcpStream::connect(address("10.0.0.2:80")).await.unwrap();
        stream.write_all(b"two bytes are unread").await.unwrap();
        let error = stream.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    });
    sim.run_until(|| client.has_ended()).unwrap();
    assert!(server.has_ended() && server.take_result().unwrap().is_ok());
}
