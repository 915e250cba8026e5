//! Timers, wakes, fairness and panics.

use std::{
    cell::RefCell,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
    time::Duration,
};

use windlass::sim::{Faults, Sim, ThreadStep};
use windlass_task::{
    net::{TcpListener, TcpStream},
    spawn,
    time::{interval, now, sleep, timeout},
    yield_now,
};

use crate::tools::{address, again_async, calm, executor, host, whole};

#[test]
fn a_day_passes_at_once() {
    let sim = calm();
    let day = Duration::from_secs(86_400);
    executor(&sim, 1).block_on(async {
        let begin = now();
        sleep(day).await;
        assert!(now() >= begin + day);
    });
    assert!(sim.elapsed() >= day);
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

#[test]
fn sleeps_timeouts_and_intervals_are_never_early() {
    windlass::sim::check(|sim| {
        let kernel = sim.kernel().clone();
        let program = executor(sim, 2).simulate(sim, async move {
            let sleeper = |span| async move {
                let begin = now();
                sleep(span).await;
                assert!(now() >= begin + span, "an early sleep");
                let begin = now();
                timeout(span, std::future::pending::<()>()).await.unwrap_err();
                assert!(now() >= begin + span, "an early timeout");
                let (later, mut limit) = (now() + span * 2, sleep(span));
                // Its timer stays where it is, and fires in vain.
                let _ = poll_once(&mut limit).await;
                limit.reset(later);
                limit.await;
                assert!(now() >= later, "an early sleep that was reset");
            };
            let spans = (0..20).map(|_| Duration::from_nanos(kernel.choose(3_000_000_000)));
            let sleepers: Vec<_> = spans.map(|span| spawn(sleeper(span))).collect();
            let period = Duration::from_millis(7);
            let (mut ticks, begin) = (interval(period), now());
            ticks.tick().await;
            for count in 1..50 {
                ticks.tick().await;
                assert!(now() >= begin + period * count, "an early tick");
            }
            for sleeper in sleepers {
                sleeper.await.unwrap();
            }
        });
        sim.run_until(|| program.has_ended()).unwrap();
        assert!(program.take_result().unwrap().is_ok());
    })
    .seeds(100)
    .faults(Faults::hostile())
    .run();
}

/// A task waits for a count that simulated threads raise. Their wakes come at every point, also
/// while the task registers its waker.
#[test]
fn no_wake_of_another_thread_is_lost() {
    windlass::sim::check(|sim| {
        let (count, wakers) = (Arc::new(AtomicUsize::new(0)), Rc::new(RefCell::new(Vec::new())));
        for _ in 0..3 {
            let (count, wakers) = (Arc::clone(&count), Rc::clone(&wakers));
            let mut left = 20;
            sim.thread(&host(sim, 2), move || {
                count.fetch_add(1, Ordering::SeqCst);
                let wakers: Vec<Waker> = wakers.take();
                wakers.into_iter().for_each(Waker::wake);
                left -= 1;
                if left == 0 {
                    ThreadStep::End
                } else {
                    ThreadStep::After(Duration::from_nanos(900))
                }
            });
        }
        let program = executor(sim, 2).simulate(sim, async move {
            let mut seen = 0;
            while seen < 60 {
                std::future::poll_fn(|context| {
                    let now = count.load(Ordering::SeqCst);
                    if now > seen {
                        seen = now;
                        return Poll::Ready(());
                    }
                    wakers.borrow_mut().push(context.waker().clone());
                    Poll::Pending
                })
                .await;
            }
        });
        sim.run_until(|| program.has_ended()).unwrap();
    })
    .seeds(200)
    .faults(Faults::hostile())
    .run();
}

/// The same for an executor that the test runs: it is the current one of the thread while the
/// simulation runs the others.
#[test]
fn a_wake_reaches_an_executor_that_the_test_runs() {
    let sim = calm();
    let waker: Rc<RefCell<Option<Waker>>> = Rc::default();
    let shared = Rc::clone(&waker);
    sim.thread(&host(&sim, 1), move || match shared.borrow_mut().take() {
        Some(waker) => {
            waker.wake();
            ThreadStep::End
        }
        None => ThreadStep::After(Duration::from_micros(5)),
    });
    let mut polls = 0;
    executor(&sim, 1).block_on(std::future::poll_fn(|context| {
        polls += 1;
        *waker.borrow_mut() = Some(context.waker().clone());
        if polls == 2 { Poll::Ready(()) } else { Poll::Pending }
    }));
}

#[test]
fn a_thread_spawns_futures_in_an_executor() {
    let sim = calm();
    let executor = executor(&sim, 1);
    let (spawner, spawned) = (executor.spawner(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&spawned);
    executor.simulate(&sim, std::future::pending());
    let mut left = 5;
    sim.thread(&host(&sim, 1), move || {
        let counted = Arc::clone(&counted);
        spawner
            .spawn(async move {
                counted.fetch_add(1, Ordering::SeqCst);
            })
            .unwrap();
        left -= 1;
        if left == 0 { ThreadStep::End } else { ThreadStep::Again }
    });
    sim.run_until(|| spawned.load(Ordering::SeqCst) == 5).unwrap();
}

/// Tasks that are always ready take turns with those that wait for sockets and for time.
#[test]
fn no_task_starves() {
    windlass::sim::check(|sim| {
        executor(sim, 2).simulate(sim, async {
            let listener = again_async!(TcpListener::bind(address("10.0.0.2:80")));
            for _ in 0..3 {
                spawn(async {
                    loop {
                        yield_now().await;
                    }
                })
                .detach();
            }
            loop {
                let (mut stream, _) = again_async!(listener.accept());
                spawn(async move {
                    let mut room = [0; 64];
                    while let Ok(count @ 1..) = stream.read(&mut room).await {
                        if stream.write_all(&room[..count]).await.is_err() {
                            break;
                        }
                    }
                })
                .detach();
            }
        });
        let begin = sim.elapsed();
        let client = executor(sim, 3).simulate(sim, async {
            // More often than an executor polls in a turn.
            for _ in 0..200 {
                yield_now().await;
            }
            let mut stream = again_async!(TcpStream::connect(address("10.0.0.2:80")));
            for _ in 0..20 {
                let wrote = stream.write_all(b"ping").await;
                if wrote.is_err() || stream.read_exact(&mut [0; 4]).await.is_err() {
                    break;
                }
            }
        });
        sim.run_until(|| client.has_ended()).unwrap();
        // A stall lasts for a second, a partition for two, and there are few.
        assert!(sim.elapsed() - begin < Duration::from_secs(60));
    })
    .seeds(10)
    .faults(whole(Faults::rough()))
    .run();
}

#[test]
fn the_panic_of_the_future_leaves_the_step() {
    let sim = calm();
    let program =
        executor(&sim, 1).simulate(&sim, async { std::panic::resume_unwind(Box::new(7)) });
    let result = catch_unwind(AssertUnwindSafe(|| sim.run_for(Duration::from_secs(1))));
    assert_eq!(result.unwrap_err().downcast_ref(), Some(&7));
    sim.run_for(Duration::from_secs(1)).unwrap();
    assert!(program.has_ended());
}

#[test]
fn a_stop_of_the_reactor_does_not_end_the_future() {
    let sim = calm();
    let program = executor(&sim, 1).simulate(&sim, async {
        windlass_task::with_turn(|mut turn| turn.stop()).unwrap();
        sleep(Duration::from_secs(1)).await;
    });
    sim.run_until(|| program.has_ended()).unwrap();
    assert!(sim.elapsed() >= Duration::from_secs(1));
    assert!(program.take_result().unwrap().is_ok());
}

fn sim_hash(seed: u64) -> u64 {
    let sim = Sim::new(seed, Faults::hostile());
    let program = executor(&sim, 2).simulate(&sim, async {
        let listener = again_async!(TcpListener::bind(address("10.0.0.2:80")));
        let _ = timeout(Duration::from_secs(3), listener.accept()).await;
    });
    sim.run_until(|| program.has_ended()).unwrap();
    sim.kernel().hash()
}

#[test]
fn a_seed_gives_the_same_trace_again() {
    assert_eq!(sim_hash(7), sim_hash(7));
    assert_ne!(sim_hash(7), sim_hash(8));
}
