//! Messages between workers.

use std::{
    future::{Future, poll_fn},
    os::unix::net::UnixStream,
    pin::pin,
    sync::{Arc, Barrier, mpsc},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use windlass_task::{
    AsyncFd, Executor, PushReason, WorkerContext, block_on, spawn, with_turn, yield_now,
};

use crate::{builder, leak::leak, reactor};

type Numbers = WorkerContext<u32>;

/// The registration waits for a turn, and the reactor rejects it then.
#[test]
fn a_queue_whose_registration_fails_is_closed() {
    let (taken, is_taken) = mpsc::channel();
    let is_sent = Arc::new(Barrier::new(2));
    let sent = Arc::clone(&is_sent);
    let workers = builder(1)
        .executor(|| Executor::builder().reactor(reactor().subscribers_max(1)))
        .start(move |worker: Numbers| {
            let (taken, is_sent) = (taken.clone(), Arc::clone(&is_sent));
            async move {
                is_sent.wait();
                let _other = AsyncFd::new(UnixStream::pair().unwrap().0).unwrap();
                let mut inbox = with_turn(|_| worker.take_inbox().unwrap()).unwrap();
                taken.send(()).unwrap();
                // What was accepted is still received.
                let mut all = Vec::new();
                while let Some(number) = inbox.recv().await {
                    all.push(number);
                }
                worker.stopped().await;
                all
            }
        })
        .unwrap();
    let handle = workers.handle();
    handle.try_send(0, 0).unwrap();
    sent.wait();
    is_taken.recv().unwrap();
    let mut accepted = vec![0];
    let deadline = Instant::now() + Duration::from_secs(20);
    let rejected = loop {
        match handle.try_send(0, 1) {
            Ok(()) => accepted.push(1),
            Err(error) if error.reason == PushReason::Closed => break error,
            Err(_) => {}
        }
        assert!(Instant::now() < deadline, "nobody receives, and senders are not told");
        thread::yield_now();
    };
    assert_eq!(rejected.item.into_inner(), 1);
    workers.stop();
    assert_eq!(workers.join().remove(0).unwrap(), accepted);
}

/// Receives until the queue is closed.
async fn receive_all(worker: Numbers) -> Vec<u32> {
    let mut inbox = worker.take_inbox().unwrap();
    let mut all = Vec::new();
    while let Some(number) = inbox.recv().await {
        all.push(number);
    }
    all
}

#[test]
fn messages_of_one_thread_come_in_their_order_and_a_stop_loses_none() {
    let workers = builder(3).start(receive_all).unwrap();
    let handle = workers.handle();
    for number in 0..300 {
        handle.try_send(number as usize % 3, number).unwrap();
    }
    // Nothing is received after this that was not sent before.
    workers.stop();
    let all: Vec<_> = workers.join().into_iter().map(Result::unwrap).collect();
    for (index, numbers) in all.iter().enumerate() {
        assert!(numbers.iter().copied().eq((0..300).filter(|n| *n as usize % 3 == index)));
    }
}

#[test]
fn a_full_queue_gives_the_message_back_and_send_waits_for_room() {
    let (open, is_open) = mpsc::channel::<()>();
    let is_open = std::sync::Mutex::new(is_open);
    let workers = builder(1)
        .inbox_len_max(2)
        .start(move |worker: Numbers| {
            // The thread waits here, so that nothing is received.
            is_open.lock().unwrap().recv().unwrap();
            receive_all(worker)
        })
        .unwrap();
    let handle = workers.handle();
    handle.try_send(0, 1).unwrap();
    handle.try_send(0, 2).unwrap();
    let full = handle.try_send(0, 3).unwrap_err();
    assert_eq!((full.reason, full.item.into_inner()), (PushReason::Full, 3));
    block_on(async {
        let mut send = pin!(handle.send(0, 3));
        poll_fn(|context| {
            assert!(send.as_mut().poll(context).is_pending(), "there is no room");
            Poll::Ready(())
        })
        .await;
        open.send(()).unwrap();
        send.await.unwrap();
    });
    workers.stop();
    assert_eq!(workers.join().remove(0).unwrap(), [1, 2, 3]);
}

#[test]
fn workers_flood_each_other_through_small_queues_and_lose_nothing() {
    const COUNT: u32 = 2000;
    let workers = builder(2)
        .inbox_len_max(4)
        .start(|worker: Numbers| async move {
            let mut inbox = worker.take_inbox().unwrap();
            let (handle, other) = (worker.handle().clone(), 1 - worker.index());
            // A task of its own, because two workers that only send wait for each other.
            let sending = spawn(async move {
                for number in 0..COUNT {
                    handle.send(other, number).await.unwrap();
                }
            });
            for number in 0..COUNT {
                assert_eq!(inbox.recv().await, Some(number));
            }
            sending.await.unwrap();
            worker.stopped().await;
            inbox.recv().await
        })
        .unwrap();
    workers.stop_after_all_have_sent();
    for end in workers.join() {
        assert_eq!(end.unwrap(), None);
    }
}

trait StopAfter {
    fn stop_after_all_have_sent(&self);
}

impl<T: Send + 'static> StopAfter for windlass_task::Workers<T, u32> {
    /// A stop closes the queues, so it waits until the sending tasks have come and gone. Beside
    /// them there are the worker's task and its supervisor.
    fn stop_after_all_have_sent(&self) {
        let handle = self.handle();
        block_on(async {
            let is_sending = |stats: &windlass_task::WorkerStats| {
                stats.executor.spawned < 3 || stats.executor.tasks > 2
            };
            while handle.stats().await.iter().any(is_sending) {
                yield_now().await;
            }
        });
        self.stop();
    }
}

#[test]
fn a_receive_that_is_dropped_after_any_number_of_polls_loses_no_message() {
    let workers = builder(1)
        .start(|worker: Numbers| async move {
            let mut inbox = worker.take_inbox().unwrap();
            let mut received = Vec::new();
            let mut round = 0;
            while received.len() < 100 {
                round += 1;
                let mut left = round % 4;
                let mut recv = pin!(inbox.recv());
                let number = poll_fn(|context| {
                    if left == 0 {
                        return Poll::Ready(None);
                    }
                    left -= 1;
                    match recv.as_mut().poll(context) {
                        Poll::Pending if left == 0 => Poll::Ready(None),
                        poll => poll,
                    }
                })
                .await;
                received.extend(number);
                yield_now().await;
            }
            received
        })
        .unwrap();
    let handle = workers.handle();
    for number in 0..100 {
        block_on(handle.send(0, number)).unwrap();
    }
    assert!(workers.join().remove(0).unwrap().into_iter().eq(0..100));
}

#[test]
fn an_inbox_is_taken_once_and_tells_how_many_messages_wait() {
    let workers = builder(1)
        .start(|worker: Numbers| async move {
            let mut inbox = worker.take_inbox().unwrap();
            let again = worker.take_inbox().unwrap_err();
            assert_eq!(again.to_string(), "the inbox of worker 0 was taken already");
            assert_eq!((inbox.len(), inbox.is_empty(), inbox.try_recv()), (0, true, None));
            for number in 5..8 {
                worker.handle().try_send(0, number).unwrap();
            }
            assert_eq!((inbox.len(), inbox.try_recv()), (3, Some(5)));
            inbox.close();
            let closed = worker.handle().try_send(0, 9).unwrap_err();
            assert_eq!((closed.reason, closed.item.into_inner()), (PushReason::Closed, 9));
            assert_eq!((inbox.recv().await, inbox.recv().await), (Some(6), Some(7)));
            assert_eq!(inbox.recv().await, None);
        })
        .unwrap();
    workers.join().remove(0).unwrap();
}

#[test]
fn messages_that_nobody_receives_are_dropped_with_their_worker() {
    let token = Arc::new(());
    let workers = builder(1)
        .start(|worker: WorkerContext<Arc<()>>| async move { worker.stopped().await })
        .unwrap();
    let handle = workers.handle();
    handle.try_send(0, Arc::clone(&token)).unwrap();
    workers.stop();
    workers.join().remove(0).unwrap();
    assert!(handle.is_finished(0));
    assert_eq!(Arc::strong_count(&token), 1);
    let late = block_on(handle.send(0, Arc::clone(&token))).unwrap_err();
    assert_eq!(late.reason, PushReason::Closed);
}

#[test]
fn a_worker_that_ends_closes_its_queue_although_it_has_leaked_it() {
    let workers = builder(1)
        .inbox_len_max(1)
        .start(|worker: WorkerContext<u8>| async move { leak(worker) })
        .unwrap();
    let handle = workers.handle();
    workers.join().remove(0).unwrap();
    let rejected = handle.try_send(0, 1).unwrap_err();
    assert_eq!((rejected.reason, rejected.item.into_inner()), (PushReason::Closed, 1));
}

#[test]
fn futures_are_spawned_on_a_worker_of_choice() {
    let workers = builder(2)
        .name("chosen")
        .start(|worker: WorkerContext| async move { worker.stopped().await })
        .unwrap();
    let handle = workers.handle();
    let (sender, receiver) = mpsc::channel();
    for index in [1, 0, 1] {
        let sender = sender.clone();
        let name = move || std::thread::current().name().map(str::to_owned);
        handle.spawner(index).spawn(async move { sender.send(name()).unwrap() }).unwrap();
        assert_eq!(receiver.recv().unwrap().unwrap(), format!("chosen-{index}"));
    }
    workers.stop();
    assert!(workers.join().iter().all(Result::is_ok));
}

/// A question of one worker, and the place of the answer.
#[derive(Clone, Default)]
struct Question(Arc<std::sync::Mutex<(bool, Option<std::task::Waker>)>>);

impl Question {
    fn answer(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(std::task::Waker::wake);
    }

    async fn answered(&self) {
        poll_fn(|context| {
            let mut state = self.0.lock().unwrap();
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// compio's `remote_wake_livelock`: wakes in both directions at the same time, more than any queue
/// holds.
#[test]
fn many_tasks_of_two_workers_ask_each_other_at_the_same_time() {
    const ASKING: u32 = 128;
    const ROUNDS: u32 = 20;
    let workers = builder(2)
        .inbox_len_max(8)
        .start(|worker: WorkerContext<Question>| async move {
            let mut inbox = worker.take_inbox().unwrap();
            let other = 1 - worker.index();
            let asking: Vec<_> = (0..ASKING)
                .map(|_| {
                    let handle = worker.handle().clone();
                    spawn(async move {
                        for _ in 0..ROUNDS {
                            let question = Question::default();
                            handle.send(other, question.clone()).await.unwrap();
                            question.answered().await;
                        }
                    })
                })
                .collect();
            for _ in 0..ASKING * ROUNDS {
                let question = inbox.recv().await.unwrap();
                spawn(async move { question.answer() }).detach();
            }
            for task in asking {
                task.await.unwrap();
            }
        })
        .unwrap();
    assert!(workers.join().iter().all(Result::is_ok));
}
