//! TCP streams on a ring: by completion, with the code that they have on the kernel's ring.

use std::{
    cell::{Cell, RefCell},
    io::{self, ErrorKind},
    rc::Rc,
    time::Duration,
};

use windlass::{
    Reactor,
    sim::{Faults, Sim},
};
use windlass_task::{
    Executor, ExecutorBuilder,
    net::{TcpListener, TcpStream},
    spawn,
    time::{sleep, timeout},
    with_turn, yield_now,
};
use windlass_testkit::{
    ends::{bytes_of, check},
    faults::again,
};

use crate::{
    ends::{ONE, ends_after_writes, read_all},
    tools::{address, again_async, calm, executor, host, whole},
};

/// Sockets that hold little, so that output waits.
fn narrow(faults: Faults) -> Faults {
    Faults { buffer_min: 1_000, buffer_max: 4_000, ..faults }
}

/// An executor on a ring at the host 10.0.0.2.
fn on_ring(sim: &Sim, settings: impl Fn(ExecutorBuilder) -> ExecutorBuilder) -> Executor {
    sim.set_ring(true);
    let reactor = || Reactor::builder().sim(&host(sim, 2));
    again(|| settings(Executor::builder().reactor(reactor())).build())
}

/// A client without a ring, which receives only what it reads. It waits for `pause` before each
/// read. Returns what it has read, and its end.
type Outcome = Rc<RefCell<Option<(usize, io::Result<()>)>>>;

fn slow_client(sim: &Sim, pause: Duration) -> Outcome {
    sim.set_ring(false);
    let outcome = Outcome::default();
    let noted = Rc::clone(&outcome);
    executor(sim, 3).simulate(sim, async move {
        let mut end = (0, Err(ErrorKind::TimedOut.into()));
        // The server may not listen yet.
        for _ in 0..1_000 {
            let connect = TcpStream::connect("10.0.0.2:80");
            if let Ok(Ok(mut stream)) = timeout(Duration::from_secs(60), connect).await {
                end = read_all(&mut stream, pause).await;
                break;
            }
            yield_now().await;
        }
        *noted.borrow_mut() = Some(end);
    });
    outcome
}

#[test]
fn streams_go_by_completion_on_a_ring_alone() {
    for has_ring in [false, true] {
        let sim = calm();
        sim.set_ring(has_ring);
        let client = executor(&sim, 2).simulate(&sim, async move {
            let buffers = || with_turn(|turn| turn.stats().buffer_bytes).unwrap();
            let listener = TcpListener::bind("127.0.0.1:80").await.unwrap();
            let mut client = TcpStream::connect("127.0.0.1:80").await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            client.write_all(b"hello").await.unwrap();
            let mut room = [0; 5];
            assert_eq!(server.peek(&mut room).await.unwrap(), 5);
            server.read_exact(&mut room).await.unwrap();
            assert_eq!(&room, b"hello");
            assert_eq!(buffers() > 0, has_ring, "the pool of the ring");
            let error = io::Error::from(server.into_std().unwrap_err());
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(client.read(&mut room).await.unwrap(), 0);
        });
        sim.run_until(|| client.has_ended()).unwrap();
        assert!(client.take_result().unwrap().is_ok());
    }
}

#[test]
fn an_executor_that_ends_loses_no_bytes_silently() {
    windlass::sim::check(|sim| {
        sim.set_ring(true);
        ends_after_writes(sim, false);
    })
    .seeds(150)
    .faults(whole(Faults::hostile()))
    .run();
    let sim = Sim::new(1, narrow(Faults::calm()));
    sim.set_ring(true);
    assert_eq!(ends_after_writes(&sim, false), (3, true));
}

/// Writes, and drops the stream at once. The executor goes on, or ends too.
fn dropped(sim: &Sim, len: usize, pause: Duration, goes_on: bool) -> (usize, io::Result<()>) {
    let short = Duration::from_secs(1);
    let server = on_ring(sim, |settings| settings.drop_timeout(short).drain_timeout(short));
    server.simulate(sim, async move {
        let listener = again_async!(TcpListener::bind(address("10.0.0.2:80")));
        let (mut stream, _) = again_async!(listener.accept());
        let _ = stream.write_all(&bytes_of(ONE, 0, len)).await;
        drop(stream);
        if goes_on {
            std::future::pending::<()>().await;
        }
    });
    let outcome = slow_client(sim, pause);
    sim.run_until(|| outcome.borrow().is_some()).unwrap();
    outcome.take().unwrap()
}

/// It takes ten seconds, and there is progress in each.
#[test]
fn a_dropped_stream_sends_its_output_as_long_as_the_peer_reads() {
    windlass::sim::check(|sim| {
        let (count, end) = dropped(sim, 60_000, Duration::from_millis(700), true);
        assert_eq!((count, end.map_err(|error| error.kind())), (60_000, Ok(())));
        assert!(sim.elapsed() > Duration::from_secs(10));
    })
    .seeds(5)
    .faults(narrow(Faults::calm()))
    .run();
}

#[test]
fn a_peer_that_does_not_read_gets_a_reset_and_no_end() {
    for goes_on in [true, false] {
        let sim = Sim::new(1, narrow(Faults::calm()));
        let (count, end) = dropped(&sim, 60_000, Duration::from_secs(5), goes_on);
        assert_eq!(end.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
        assert!(count < 60_000);
    }
}

#[test]
fn a_dropped_stream_is_whole_or_reset() {
    windlass::sim::check(|sim| {
        let len = usize::try_from(sim.kernel().choose(60_000)).unwrap();
        let pause = Duration::from_micros(sim.kernel().choose(100_000));
        let goes_on = sim.kernel().choose(2) == 0;
        let (count, end) = dropped(sim, len, pause, goes_on);
        assert!(end.is_err() || count == len, "{count} of {len} bytes before a clean end");
    })
    .seeds(100)
    .faults(narrow(whole(Faults::rough())))
    .run();
}

/// A stream with a linger of zero and output that its slow peer has no room for. It is dropped in
/// the future, outside, or after the end of the executor. Returns what the peer has read.
fn discarded(sim: &Sim, when: u64) -> (usize, io::Result<()>) {
    let hour = Duration::from_secs(3600);
    let mut server = on_ring(sim, |settings| settings.drop_timeout(hour).drain_timeout(hour));
    let listener = server.block_on(async { again_async!(TcpListener::bind("10.0.0.2:80")) });
    let outcome = slow_client(sim, Duration::from_millis(700));
    let stream = server.block_on(async {
        let (mut stream, _) = again_async!(listener.accept());
        // A client that gets the reset while it connects tries again.
        drop(listener);
        stream.set_zero_linger().unwrap();
        let _ = stream.write_all(&bytes_of(ONE, 0, 60_000)).await;
        if when > 0 {
            return Some(stream);
        }
        drop(stream);
        sleep(Duration::from_secs(60)).await;
        None
    });
    if when == 1 {
        drop(stream);
        drop(server);
    } else {
        drop(server);
        // For this long, the end of the executor sends the output of others.
        sim.run_for(Duration::from_secs(60)).unwrap();
        drop(stream);
    }
    sim.run_until(|| outcome.borrow().is_some()).unwrap();
    outcome.take().unwrap()
}

#[test]
fn a_drop_with_a_linger_of_zero_discards_the_output() {
    windlass::sim::check(|sim| {
        let (count, end) = discarded(sim, 0);
        assert!(end.is_err() && count < 20_000, "{count} bytes and {end:?}");
    })
    .seeds(40)
    .faults(narrow(whole(Faults::rough())))
    .run();
}

#[test]
fn the_end_of_an_executor_sends_no_output_that_a_drop_discards() {
    windlass::sim::check(|sim| {
        let when = 1 + sim.kernel().choose(2);
        let (count, end) = discarded(sim, when);
        assert!(end.is_err() && count < 20_000, "{count} bytes and {end:?}");
    })
    .seeds(40)
    .faults(narrow(whole(Faults::rough())))
    .run();
}

/// A stream that outlives its executor. The end of the executor sends the output, or leaves it to
/// `detach` in another one.
fn outlived(sim: &Sim, len: usize, drains: bool) {
    let longest = if drains { Duration::from_secs(3600) } else { Duration::ZERO };
    let mut first = on_ring(sim, |settings| settings.drain_timeout(longest));
    let listener = first.block_on(async { again_async!(TcpListener::bind("10.0.0.2:80")) });
    let outcome = slow_client(sim, Duration::from_millis(1));
    let stream = first.block_on(async {
        let (mut stream, _) = again_async!(listener.accept());
        let wrote = stream.write_all(&bytes_of(ONE, 0, len)).await;
        wrote.map(|()| stream)
    });
    drop((listener, first));
    let Ok(mut stream) = stream else { return };
    let mut second = on_ring(sim, |settings| settings);
    let error = second.block_on(async {
        let mut room = [0; 1];
        assert!(stream.read(&mut room).await.is_err(), "its executor has ended");
        if drains {
            sleep(Duration::from_secs(600)).await;
        }
        // A simulated socket has no descriptor.
        stream.detach().await.map(drop).unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    sim.run_until(|| outcome.borrow().is_some()).unwrap();
    let (count, end) = outcome.take().unwrap();
    assert_eq!((count, end.map_err(|error| error.kind())), (len, Ok(())));
}

#[test]
fn the_output_of_a_stream_that_outlives_its_executor_is_sent() {
    for drains in [true, false] {
        outlived(&Sim::new(1, narrow(Faults::calm())), 50_000, drains);
        windlass::sim::check(|sim| {
            let len = usize::try_from(sim.kernel().choose(60_000)).unwrap();
            outlived(sim, len, drains);
        })
        .seeds(40)
        .faults(narrow(whole(Faults::rough())))
        .run();
    }
}

/// More than a read buffer holds, so that receives are cancelled and begin again, for a reader
/// that gives up many of its reads. Then it drops the stream, or the peer does.
fn cancelled(sim: &Sim, len: usize) {
    sim.kernel().set_time_max(3_600_000_000_000);
    let server = on_ring(sim, |settings| settings);
    server.simulate(sim, async move {
        let listener = again_async!(TcpListener::bind(address("10.0.0.2:80")));
        let (mut stream, _) = again_async!(listener.accept());
        let _ = stream.write_all(&bytes_of(ONE, 0, len)).await;
    });
    let kernel = sim.kernel().clone();
    let done = Rc::new(Cell::new(0));
    let noted = Rc::clone(&done);
    let client = executor(sim, 3).simulate(sim, async move {
        let mut stream = again_async!(TcpStream::connect("10.0.0.2:80"));
        loop {
            let mut room = vec![0; 1 + usize::try_from(kernel.choose(40_000)).unwrap()];
            let patience = Duration::from_nanos(kernel.choose(100_000));
            let count = match timeout(patience, stream.read(&mut room)).await {
                Ok(Ok(0)) => break,
                Ok(Ok(count)) => count,
                Ok(Err(error)) => panic!("{error}"),
                Err(_) => {
                    sleep(Duration::from_micros(kernel.choose(5_000))).await;
                    continue;
                }
            };
            check(ONE, noted.get(), &room[..count]);
            noted.set(noted.get() + count);
        }
    });
    sim.run_until(|| client.has_ended()).unwrap();
    assert_eq!(done.get(), len);
}

#[test]
fn reads_that_are_cancelled_lose_no_byte() {
    cancelled(&Sim::new(1, Faults::calm()), 500_000);
    windlass::sim::check(|sim| {
        let len = usize::try_from(sim.kernel().choose(300_000)).unwrap();
        cancelled(sim, len);
    })
    .seeds(50)
    .faults(whole(Faults::rough()))
    .run();
}

/// The end of an executor cancels what is in flight: no task is left, and nobody reads a part as
/// the whole.
#[test]
fn an_executor_ends_with_operations_in_flight() {
    windlass::sim::check(|sim| {
        sim.set_ring(true);
        let alive = Rc::new(());
        let (of_server, kernel) = (Rc::clone(&alive), sim.kernel().clone());
        let server = executor(sim, 2).simulate(sim, async move {
            let listener = again_async!(TcpListener::bind(address("10.0.0.2:80")));
            spawn(async move {
                loop {
                    let (mut stream, _) = again_async!(listener.accept());
                    let alive = Rc::clone(&of_server);
                    spawn(async move {
                        let mut room = [0; 100];
                        while let Ok(count @ 1..) = stream.read(&mut room).await {
                            if stream.write_all(&room[..count]).await.is_err() {
                                break;
                            }
                        }
                        drop(alive);
                    })
                    .detach();
                }
            })
            .detach();
            sleep(Duration::from_nanos(kernel.choose(3_000_000))).await;
        });
        let client = executor(sim, 3).simulate(sim, async move {
            for _ in 0..4 {
                let connect = TcpStream::connect("10.0.0.2:80");
                let Ok(Ok(mut stream)) = timeout(Duration::from_secs(60), connect).await else {
                    continue;
                };
                let (mut sent, mut got) = (0_u8, 0_u8);
                while sent < 200 && stream.write_all(&[sent]).await.is_ok() {
                    sent += 1;
                    let mut room = [0; 100];
                    let read = stream.read(&mut room);
                    let Ok(Ok(count @ 1..)) = timeout(Duration::from_secs(60), read).await else {
                        break;
                    };
                    for found in &room[..count] {
                        assert_eq!(*found, got, "lost, reordered or invented");
                        got += 1;
                    }
                }
                assert!(got <= sent);
            }
        });
        sim.run_until(|| client.has_ended() && server.has_ended()).unwrap();
        assert_eq!(Rc::strong_count(&alive), 1, "a task is still there");
    })
    .seeds(100)
    .faults(whole(Faults::hostile()))
    .run();
}
