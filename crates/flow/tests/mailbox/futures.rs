//! Tasks that wait for room.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
    thread,
};

use windlass_flow::{Bounds, Push, PushReason};

use crate::{
    hooks::Hooks,
    support::{Count, block_on, inbox, kept, poll, rejection, scales, spawn_asleep, wait, woken},
};

/// Polls a future that must be ready.
fn ready<T>(push: &mut Push<T>) -> Result<(), windlass_flow::PushError<T>> {
    match poll(push, Waker::noop()) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn nothing_is_pushed_before_the_poll_and_room_is_taken_at_once() {
    let (sender, mut inbox) = inbox(1);
    let mut push = sender.push_async('a');
    assert!(inbox.is_empty() && !woken(&inbox));
    ready(&mut push).unwrap();
    assert!(woken(&inbox));
    assert!(inbox.drain(9).eq(['a']));
}

#[test]
fn a_future_waits_for_room_and_is_woken_when_it_comes() {
    let (sender, mut inbox) = inbox(1);
    sender.try_push(0).unwrap();
    let (count, waker) = Count::new();
    let mut push = sender.push_async(1);
    for _ in 0..3 {
        assert!(poll(&mut push, &waker).is_pending());
        assert_eq!((count.wakes(), kept(&count)), (0, 1), "one waker a future");
    }
    assert_eq!(inbox.len(), 1);
    let mut drain = inbox.drain(9);
    assert_eq!(drain.next(), Some(0));
    assert_eq!(count.wakes(), 0, "the item is in the receiver's hands");
    drop(drain);
    assert_eq!((count.wakes(), kept(&count)), (1, 0));
    assert!(!woken(&inbox) || inbox.is_empty());
    assert!(poll(&mut push, &waker).is_ready());
    assert!(woken(&inbox));
    assert!(inbox.drain(9).eq([1]));
    assert_eq!((count.wakes(), kept(&count)), (1, 0));
}

#[test]
fn a_drain_that_takes_nothing_wakes_no_sender() {
    let (sender, mut inbox) = inbox(1);
    sender.try_push(0).unwrap();
    let (count, waker) = Count::new();
    let mut push = sender.push_async(1);
    assert!(poll(&mut push, &waker).is_pending());
    drop(inbox.drain(9));
    assert_eq!((count.wakes(), kept(&count)), (0, 1));
}

#[test]
fn a_future_dropped_while_it_waits_leaves_no_waker_and_no_item() {
    let (sender, mut inbox) = inbox(1);
    sender.try_push(Arc::new(())).unwrap();
    let item = Arc::new(());
    let wakers = [(); 3].map(|()| Count::new());
    let mut waiting: Vec<_> = wakers.iter().map(|_| sender.push_async(item.clone())).collect();
    for (push, (_, waker)) in waiting.iter_mut().zip(&wakers) {
        assert!(poll(push, waker).is_pending());
    }
    drop(waiting.remove(1));
    assert_eq!(wakers.each_ref().map(|(count, _)| kept(count)), [1, 0, 1]);
    assert_eq!(Arc::strong_count(&item), 3);
    assert_eq!(inbox.drain(9).count(), 1);
    assert_eq!(wakers.each_ref().map(|(count, _)| count.wakes()), [1, 0, 1]);
    drop(waiting);
    assert_eq!(Arc::strong_count(&item), 1);
    assert!(inbox.is_empty());
    sender.try_push(item).unwrap();
}

#[test]
fn all_waiting_senders_are_woken_and_wait_again_without_room() {
    let (sender, mut inbox) = scales(Bounds::items(9).bytes(4));
    sender.try_push(4).unwrap();
    let (count, waker) = Count::new();
    let mut big = sender.push_async(4);
    let mut small = sender.push_async(1);
    assert!(poll(&mut big, &waker).is_pending());
    assert!(poll(&mut small, &waker).is_pending());
    inbox.drain(9).for_each(drop);
    assert_eq!((count.wakes(), kept(&count)), (2, 0));
    assert!(poll(&mut small, &waker).is_ready());
    assert!(poll(&mut big, &waker).is_pending());
    assert_eq!(kept(&count), 1);
    inbox.drain(9).for_each(drop);
    assert_eq!(count.wakes(), 3);
    assert!(poll(&mut big, &waker).is_ready());
}

#[test]
fn the_item_can_be_taken_back_until_it_is_gone() {
    let (sender, mut inbox) = inbox(1);
    assert_eq!(sender.push_async(0).into_item(), Some(0), "before the first poll");
    sender.try_push(0).unwrap();
    let (count, waker) = Count::new();
    let mut push = sender.push_async(1);
    assert!(poll(&mut push, &waker).is_pending());
    assert_eq!(push.into_item(), Some(1), "while it waits");
    assert_eq!(kept(&count), 0);
    assert!(inbox.drain(9).eq([0]));
    assert_eq!(count.wakes(), 0);
    let mut push = sender.push_async(2);
    ready(&mut push).unwrap();
    assert_eq!(push.into_item(), None, "it has been pushed");
    inbox.close();
    let mut push = sender.push_async(3);
    assert_eq!(rejection(ready(&mut push)), (PushReason::Closed, 3));
    assert_eq!(push.into_item(), None, "the error had it");
}

#[test]
fn the_task_that_polled_last_is_woken_and_no_other() {
    let (sender, mut inbox) = inbox(1);
    sender.try_push(0).unwrap();
    let (first, first_waker) = Count::new();
    let (second, second_waker) = Count::new();
    let mut push = sender.push_async(1);
    assert!(poll(&mut push, &first_waker).is_pending());
    assert!(poll(&mut push, &second_waker).is_pending());
    assert_eq!((kept(&first), kept(&second)), (0, 1));
    inbox.drain(9).for_each(drop);
    assert_eq!((first.wakes(), second.wakes()), (0, 1));
    thread::scope(|scope| scope.spawn(move || ready(&mut push).unwrap()).join().unwrap());
    assert!(inbox.drain(9).eq([1]));
}

#[test]
#[should_panic(expected = "polled after it was ready")]
fn a_poll_after_success_panics() {
    let (sender, _inbox) = inbox(9);
    let mut push = sender.push_async(1);
    ready(&mut push).unwrap();
    let _ = ready(&mut push);
}

#[test]
#[should_panic(expected = "polled after it was ready")]
fn a_poll_after_an_error_panics() {
    let (sender, _inbox) = inbox(0);
    let mut push = sender.push_async(1);
    rejection(ready(&mut push));
    let _ = ready(&mut push);
}

#[test]
fn room_that_comes_while_the_waker_is_cloned_is_taken() {
    let (sender, inbox) = inbox(1);
    sender.try_push(0).unwrap();
    let inbox = Arc::new(Mutex::new(inbox));
    let hooks = Arc::new(Hooks {
        on_clone: Box::new({
            let inbox = inbox.clone();
            move || assert!(inbox.lock().unwrap().drain(9).eq([0]))
        }),
        ..Hooks::default()
    });
    let mut push = sender.push_async(1);
    assert!(poll(&mut push, &hooks.waker()).is_ready());
    assert_eq!(Arc::strong_count(&hooks), 1, "no waker is left behind");
    let mut inbox = inbox.lock().unwrap();
    assert!(woken(&inbox));
    assert!(inbox.drain(9).eq([1]));
}

#[test]
fn a_mailbox_closed_while_the_waker_is_cloned_is_closed() {
    let (sender, _inbox) = inbox(1);
    sender.try_push(0).unwrap();
    let hooks = Arc::new(Hooks {
        on_clone: Box::new({
            let sender = sender.clone();
            move || sender.close()
        }),
        ..Hooks::default()
    });
    let Poll::Ready(outcome) = poll(&mut sender.push_async(1), &hooks.waker()) else {
        panic!("it waits")
    };
    assert_eq!(rejection(outcome), (PushReason::Closed, 1));
    assert_eq!(Arc::strong_count(&hooks), 1);
}

#[test]
fn a_waker_may_use_the_mailbox_wherever_it_is_called() {
    let (sender, mut inbox) = inbox(1);
    sender.try_push(0).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let hook = || -> Box<dyn Fn() + Send + Sync> {
        let (sender, calls) = (sender.clone(), calls.clone());
        Box::new(move || {
            // Under the lock this would never return.
            let _ = sender.try_push(9);
            drop(sender.clone());
            calls.fetch_add(1, Ordering::SeqCst);
        })
    };
    let hooks = Arc::new(Hooks { on_clone: hook(), on_wake: hook(), on_drop: hook() });
    let mut push = sender.push_async(1);
    // The waker is cloned. It is cloned again and the first clone is dropped. It is woken. It is
    // dropped with the future.
    assert!(poll(&mut push, &hooks.waker()).is_pending());
    assert!(poll(&mut push, &hooks.waker()).is_pending());
    let before = calls.load(Ordering::SeqCst);
    assert!(inbox.drain(9).eq([0]));
    assert_eq!(calls.load(Ordering::SeqCst), before + 1);
    assert!(poll(&mut push, &hooks.waker()).is_pending(), "the waker took the room");
    drop(push);
    assert!(inbox.drain(9).eq([9]));
    assert!(inbox.is_empty());
}

#[test]
fn a_future_that_is_never_polled_again_blocks_no_other() {
    let (sender, mut inbox) = inbox(1);
    sender.try_push(0).unwrap();
    let (count, waker) = Count::new();
    let mut push = sender.push_async(1);
    assert!(poll(&mut push, &waker).is_pending());
    assert!(inbox.drain(9).eq([0]));
    assert_eq!((count.wakes(), kept(&count)), (1, 0));
    sender.try_push(2).unwrap();
    assert!(inbox.drain(9).eq([2]));
    drop(push);
}

#[test]
fn a_future_runs_on_any_executor() {
    let (sender, mut inbox) = inbox(1);
    sender.try_push(0).unwrap();
    thread::scope(|scope| {
        let task = spawn_asleep(scope, || {
            block_on(async {
                for item in 1..50 {
                    sender.push_async(item).await.unwrap();
                }
            });
        });
        let mut next = 0;
        while next < 50 {
            for item in inbox.drain(1) {
                assert_eq!(item, next);
                next += 1;
            }
            if next < 50 {
                wait(inbox.latch());
            }
        }
        task.join().unwrap();
    });
}
