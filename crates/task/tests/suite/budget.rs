//! Fairness: at most 61 polls between two looks at the reactor, and 32 operations a poll.

use std::{
    cell::Cell,
    future::{Future, pending, poll_fn},
    os::unix::net::UnixStream,
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use tokio::sync::mpsc;
use windlass::interest;
use windlass_task::{
    Executor,
    budget::{consume, cooperative, has_remaining, poll_proceed},
    spawn, stats,
    time::{sleep, timeout},
    with_turn, yield_now,
};

use crate::tools::{Flag, block_on, builder, executor};

#[test]
fn a_poll_does_32_operations() {
    block_on(async {
        let done = Rc::new(Cell::new(0));
        let count = Rc::clone(&done);
        let task = spawn(async move {
            loop {
                poll_fn(poll_proceed).await.made_progress();
                count.set(count.get() + 1);
            }
        });
        for polls in 1..5 {
            yield_now().await;
            assert_eq!(done.get(), 32 * polls);
        }
        task.abort();
        assert_eq!(stats().unwrap().budget_exhausted, 4);
    });
}

#[test]
fn an_operation_without_progress_is_given_back() {
    block_on(async {
        poll_fn(|context| {
            for _ in 0..100 {
                assert!(poll_proceed(context).is_ready(), "the permission was dropped unused");
            }
            for _ in 0..32 {
                let Poll::Ready(proceed) = poll_proceed(context) else { panic!("too early") };
                proceed.made_progress();
            }
            assert!(!has_remaining());
            assert!(poll_proceed(context).is_pending());
            Poll::Ready(())
        })
        .await;
        yield_now().await;
        assert!(has_remaining(), "each poll has a budget of its own");
    });
    assert!(has_remaining(), "there is no budget outside of an executor");
}

#[test]
fn ready_join_handles_keep_to_the_budget() {
    block_on(async {
        let tasks: Vec<_> = (0..40).map(|_| spawn(async {})).collect();
        yield_now().await;
        let before = stats().unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        let after = stats().unwrap();
        assert_eq!(after.budget_exhausted - before.budget_exhausted, 1);
    });
}

#[test]
fn a_turn_polls_at_most_61_tasks() {
    let mut executor = executor();
    for _ in 0..200 {
        executor
            .spawn(async {
                loop {
                    yield_now().await;
                }
            })
            .detach();
    }
    let turns = |executor: &mut Executor| executor.with_turn(|turn| turn.stats().turns);
    let (polls, before) = (executor.stats().polls, turns(&mut executor));
    let rounds: u64 = if cfg!(miri) { 10 } else { 100 };
    executor.block_on(async move {
        for _ in 0..rounds {
            yield_now().await;
        }
    });
    let (polls, turns) = (executor.stats().polls - polls, turns(&mut executor) - before);
    assert!(polls >= 200 * rounds, "{polls}");
    // One turn more for the polls that are left at the end.
    assert!(polls <= 61 * (turns + 1), "{polls} polls in {turns} turns");
    assert!(turns <= polls / 61 + 3, "{polls} polls in {turns} turns");
}

#[test]
fn tasks_that_are_always_ready_starve_neither_timers_nor_descriptors_nor_each_other() {
    let mut executor = executor();
    executor.block_on(async {
        for _ in 0..100 {
            drop(spawn(async {
                loop {
                    poll_fn(poll_proceed).await.made_progress();
                }
            }));
        }
        let (timer, readable) = (Flag::default(), Flag::default());
        let (here, there) = UnixStream::pair().unwrap();
        with_turn(|mut turn| {
            let timer = timer.clone();
            turn.after_with(Duration::from_millis(1), move |_| timer.set()).unwrap();
            let readable = readable.clone();
            let interest = interest().read();
            // Miri knows edge-triggered registrations alone, and ppoll(2) has none.
            let interest = if cfg!(miri) { interest.edge_triggered() } else { interest };
            interest
                .with_fd(here)
                .with_handler(move |_: &mut UnixStream| readable.set())
                .register_into(&mut turn)
                .unwrap();
        })
        .unwrap();
        // The end of the other side is readable. Miri cannot write to a socket.
        drop(there);
        timer.wait().await;
        readable.wait().await;
        let other = spawn(async {});
        other.await.unwrap();
        drop(spawn(pending::<()>()));
    });
}

#[test]
fn settings_change_the_limits() {
    let mut executor = builder().polls_per_turn(0).operations_per_poll(2).build().unwrap();
    executor.block_on(async {
        for _ in 0..6 {
            poll_fn(poll_proceed).await.made_progress();
        }
        assert_eq!(stats().unwrap().budget_exhausted, 2);
    });
}

/// A channel of another crate that is never empty: whoever receives sends again.
struct NeverEmpty(mpsc::UnboundedSender<()>, mpsc::UnboundedReceiver<()>);

impl NeverEmpty {
    fn new() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        sender.send(()).unwrap();
        Self(sender, receiver)
    }

    async fn receive(&mut self) {
        self.1.recv().await.unwrap();
        self.0.send(()).unwrap();
    }
}

#[test]
fn a_future_of_another_crate_does_not_count() {
    block_on(async {
        let mut channel = NeverEmpty::new();
        let before = stats().unwrap();
        for _ in 0..1000 {
            channel.receive().await;
        }
        let after = stats().unwrap();
        assert_eq!((after.polls, after.budget_exhausted), (before.polls, before.budget_exhausted));
    });
}

#[test]
fn a_future_that_is_made_cooperative_counts_and_starves_nothing() {
    block_on(async {
        let task = spawn(async {
            let mut channel = NeverEmpty::new();
            loop {
                cooperative(channel.receive()).await;
            }
        });
        sleep(Duration::from_millis(1)).await;
        let before = stats().unwrap();
        yield_now().await;
        let after = stats().unwrap();
        assert_eq!(after.budget_exhausted - before.budget_exhausted, 1, "by each of its polls");
        task.abort();
    });
}

#[test]
fn a_pending_future_that_is_made_cooperative_does_not_count() {
    block_on(async {
        let flag = Flag::default();
        let mut waiting = pin!(cooperative(flag.wait()));
        poll_fn(|context| {
            for _ in 0..100 {
                assert!(waiting.as_mut().poll(context).is_pending());
            }
            assert!(has_remaining());
            flag.set();
            waiting.as_mut().poll(context)
        })
        .await;
    });
}

#[test]
fn a_loop_that_consumes_the_budget_starves_nothing_and_keeps_its_time_limit() {
    block_on(async {
        let other = spawn(async { sleep(Duration::from_millis(1)).await });
        let mut channel = NeverEmpty::new();
        let endless = async {
            loop {
                channel.receive().await;
                consume().await;
            }
        };
        timeout(Duration::from_millis(5), endless).await.unwrap_err();
        other.await.unwrap();
    });
}
