//! Models of the mailbox: no item and no wake is lost, order is kept, the bounds hold, and every
//! thread that waits for room continues.
//!
//! Models with three threads, and those that wait often, are bounded, because they would take
//! minutes otherwise. The others run every interleaving.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
};

use loom::{
    future::block_on,
    sync::atomic::{AtomicUsize, Ordering},
    thread::{self, JoinHandle},
};
use windlass_flow::{Bounds, Latch, Mailbox, PushError, PushReason, Sender, weighed_mailbox};

use crate::{bounded, preempted};

/// A mailbox of numbers. The last digit of a number is its weight.
fn inbox(items_max: usize, bytes_max: usize) -> (Sender<usize>, Mailbox<usize>) {
    let bounds = Bounds::items(items_max).bytes(bytes_max);
    weighed_mailbox(bounds, Arc::new(Latch::new().unwrap()), |number| number % 10)
}

/// Drains up to `max` items at a time until `count` items have arrived.
fn receive(inbox: &mut Mailbox<usize>, count: usize, max: usize) -> Vec<usize> {
    let mut items = Vec::new();
    loop {
        items.extend(inbox.drain(max));
        if items.len() >= count {
            return items;
        }
        inbox.latch().wait(None);
    }
}

/// [`bounded`] for the models with three threads, which would take minutes with one more.
fn three_threads(model: impl Fn() + Sync + Send + 'static) {
    preempted(2, model);
}

fn pusher(sender: Sender<usize>, numbers: &'static [usize]) -> JoinHandle<()> {
    thread::spawn(move || numbers.iter().for_each(|number| sender.push(*number).unwrap()))
}

fn rejection(outcome: Result<(), PushError<usize>>) -> (PushReason, usize) {
    let PushError { reason, item, .. } = outcome.unwrap_err();
    (reason, item.into_inner())
}

#[test]
fn room_for_one_and_a_receiver_that_takes_one_at_a_time() {
    bounded(|| {
        let (sender, mut inbox) = inbox(1, 9);
        let thread = pusher(sender, &[10, 20]);
        assert_eq!(receive(&mut inbox, 2, 1), [10, 20]);
        thread.join().unwrap();
        assert!(inbox.is_closed() && inbox.is_empty());
    });
}

#[test]
fn a_receiver_that_takes_one_at_a_time_gets_the_rest() {
    bounded(|| {
        let (sender, mut inbox) = inbox(2, 9);
        let thread = pusher(sender, &[10, 20, 30]);
        // One item for each wake, like a loop that gives other handlers a turn.
        let mut items = Vec::new();
        while items.len() < 3 {
            inbox.latch().wait(None);
            items.extend(inbox.drain(1));
        }
        assert_eq!(items, [10, 20, 30]);
        thread.join().unwrap();
    });
}

#[test]
fn a_receiver_that_takes_all_items_per_wake() {
    bounded(|| {
        let (sender, mut inbox) = inbox(2, 9);
        let thread = pusher(sender, &[10, 20, 30]);
        let mut items = Vec::new();
        while items.len() < 3 {
            inbox.latch().wait(None);
            items.extend(inbox.drain(usize::MAX));
        }
        assert_eq!(items, [10, 20, 30]);
        thread.join().unwrap();
    });
}

/// A push to a non-empty queue wakes nothing, although the earlier push may not have woken the
/// latch yet (protocol 3).
#[test]
fn two_senders_with_room_for_both() {
    three_threads(|| {
        let (sender, mut inbox) = inbox(2, 9);
        let threads = [pusher(sender.clone(), &[10]), pusher(sender, &[20])];
        let mut items = receive(&mut inbox, 2, usize::MAX);
        items.sort_unstable();
        assert_eq!(items, [10, 20]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn two_senders_with_room_for_one_go_on() {
    three_threads(|| {
        let (sender, mut inbox) = inbox(1, 9);
        let threads = [pusher(sender.clone(), &[10]), pusher(sender, &[20])];
        let mut items = receive(&mut inbox, 2, 1);
        items.sort_unstable();
        assert_eq!(items, [10, 20]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn one_that_wants_much_and_one_that_wants_little_go_on() {
    three_threads(|| {
        let (sender, mut inbox) = inbox(9, 3);
        sender.try_push(3).unwrap();
        let threads = [pusher(sender.clone(), &[13]), pusher(sender, &[21])];
        let mut items = receive(&mut inbox, 3, 1);
        items.sort_unstable();
        assert_eq!(items, [3, 13, 21]);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// One drain makes room for both, and no other follows. So each must be woken by it.
#[test]
fn room_for_two_wakes_a_thread_and_a_task() {
    three_threads(|| {
        let (sender, mut inbox) = inbox(2, 9);
        (0..2).for_each(|_| sender.try_push(0).unwrap());
        let task = thread::spawn({
            let sender = sender.clone();
            move || block_on(sender.push_async(10)).unwrap()
        });
        let thread = pusher(sender, &[20]);
        assert!(inbox.drain(usize::MAX).eq([0, 0]));
        task.join().unwrap();
        thread.join().unwrap();
        assert_eq!(inbox.drain(usize::MAX).sum::<usize>(), 30);
    });
}

/// Two drains are too much for [`three_threads`], so there is one preemption less here.
#[test]
fn a_sender_and_a_task_go_on_with_one_room() {
    preempted(1, || {
        let (sender, mut inbox) = inbox(1, 9);
        sender.try_push(0).unwrap();
        let task = thread::spawn({
            let sender = sender.clone();
            move || block_on(sender.push_async(10)).unwrap()
        });
        let thread = pusher(sender, &[20]);
        let mut items = receive(&mut inbox, 3, usize::MAX);
        items.sort_unstable();
        assert_eq!(items, [0, 10, 20]);
        task.join().unwrap();
        thread.join().unwrap();
    });
}

#[test]
fn a_task_waits_for_room_twice() {
    bounded(|| {
        let (sender, mut inbox) = inbox(1, 9);
        sender.try_push(0).unwrap();
        let task = thread::spawn(move || {
            for number in [10, 20] {
                block_on(sender.push_async(number)).unwrap();
            }
        });
        assert_eq!(receive(&mut inbox, 3, 1), [0, 10, 20]);
        task.join().unwrap();
    });
}

/// A future that is polled once and dropped. True if it has pushed its item.
fn dropper(sender: Sender<usize>, item: usize) -> JoinHandle<bool> {
    thread::spawn(move || {
        let mut push = sender.push_async(item);
        let is_ready = Pin::new(&mut push).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert_eq!(push.into_item(), (!is_ready).then_some(item));
        is_ready
    })
}

/// One drain makes room for both, and no other follows.
#[test]
fn a_future_dropped_while_room_for_two_comes_takes_no_wake_of_others() {
    three_threads(|| {
        let (sender, mut inbox) = inbox(2, 9);
        (0..2).for_each(|_| sender.try_push(0).unwrap());
        let dropper = dropper(sender.clone(), 10);
        let task = thread::spawn(move || block_on(sender.push_async(20)).unwrap());
        assert!(inbox.drain(usize::MAX).eq([0, 0]));
        task.join().unwrap();
        let rest = if dropper.join().unwrap() { 30 } else { 20 };
        assert_eq!(inbox.drain(usize::MAX).sum::<usize>(), rest);
    });
}

/// As [`a_sender_and_a_task_go_on_with_one_room`].
#[test]
fn a_future_dropped_while_room_comes_takes_no_wake_of_others() {
    preempted(1, || {
        let (sender, mut inbox) = inbox(1, 9);
        sender.try_push(0).unwrap();
        let dropper = dropper(sender.clone(), 10);
        let task = thread::spawn(move || block_on(sender.push_async(20)).unwrap());
        let mut items = receive(&mut inbox, 2, usize::MAX);
        if dropper.join().unwrap() {
            if !items.contains(&20) || !items.contains(&10) {
                items.extend(receive(&mut inbox, 1, usize::MAX));
            }
            items.retain(|item| *item != 10);
        }
        items.sort_unstable();
        assert_eq!(items, [0, 20]);
        task.join().unwrap();
    });
}

/// Never more than the real number: an item is added after its push, and subtracted before its room
/// is given back.
#[test]
fn the_bound_is_never_passed() {
    three_threads(|| {
        let (sender, mut inbox) = inbox(1, 9);
        let held = Arc::new(AtomicUsize::new(0));
        let threads = [10, 20].map(|number| {
            let (sender, held) = (sender.clone(), held.clone());
            thread::spawn(move || {
                sender.push(number).unwrap();
                // One item, or one below zero if it was subtracted already.
                assert!(held.fetch_add(1, Ordering::SeqCst).wrapping_add(2) < 3);
            })
        });
        let mut count = 0;
        while count < 2 {
            for _ in inbox.drain(usize::MAX) {
                held.fetch_sub(1, Ordering::SeqCst);
                count += 1;
            }
            if count < 2 {
                inbox.latch().wait(None);
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(held.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn room_is_held_until_the_drain_ends() {
    bounded(|| {
        let (sender, mut inbox) = inbox(1, 9);
        sender.try_push(0).unwrap();
        let in_hands = Arc::new(AtomicUsize::new(1));
        let thread = thread::spawn({
            let in_hands = in_hands.clone();
            move || {
                sender.push(10).unwrap();
                assert_eq!(in_hands.load(Ordering::SeqCst), 0);
            }
        });
        let mut drain = inbox.drain(usize::MAX);
        assert_eq!(drain.next(), Some(0));
        in_hands.store(0, Ordering::SeqCst);
        drop(drain);
        assert_eq!(receive(&mut inbox, 1, 1), [10]);
        thread.join().unwrap();
    });
}

#[test]
fn a_thread_that_waits_hears_that_the_mailbox_is_closed() {
    for is_dropped in [false, true] {
        loom::model(move || {
            let (sender, mut inbox) = inbox(1, 9);
            sender.try_push(0).unwrap();
            let thread = thread::spawn(move || {
                assert_eq!(rejection(sender.push(10)), (PushReason::Closed, 10));
            });
            if is_dropped {
                drop(inbox);
            } else {
                inbox.close();
                assert!(inbox.drain(usize::MAX).eq([0]));
            }
            thread.join().unwrap();
        });
    }
}

#[test]
fn a_thread_and_a_task_that_wait_hear_that_a_sender_closes() {
    three_threads(|| {
        let (sender, mut inbox) = inbox(1, 9);
        sender.try_push(0).unwrap();
        let task = thread::spawn({
            let sender = sender.clone();
            move || assert_eq!(rejection(block_on(sender.push_async(10))), (PushReason::Closed, 10))
        });
        let thread = thread::spawn({
            let sender = sender.clone();
            move || assert_eq!(rejection(sender.push(20)), (PushReason::Closed, 20))
        });
        sender.close();
        task.join().unwrap();
        thread.join().unwrap();
        assert!(inbox.drain(usize::MAX).eq([0]));
    });
}

/// An item pushed before the end comes out, and a later one is returned. There is no third case.
#[test]
fn an_item_pushed_while_the_mailbox_is_closed_is_in_or_comes_back() {
    loom::model(|| {
        let (sender, mut inbox) = inbox(1, 9);
        let thread = thread::spawn(move || {
            sender.push(10).map_err(|e| assert_eq!(e.item.into_inner(), 10)).is_ok()
        });
        inbox.close();
        let count = inbox.drain(usize::MAX).count();
        assert_eq!(thread.join().unwrap(), count == 1);
        assert!(inbox.is_empty());
    });
}

#[test]
fn a_receiver_hears_that_the_last_sender_is_gone_and_has_all_of_its_items() {
    three_threads(|| {
        let (sender, mut inbox) = inbox(2, 9);
        let threads = [10, 20].map(|number| {
            let sender = sender.clone();
            thread::spawn(move || sender.try_push(number).unwrap())
        });
        drop(sender);
        let mut items = Vec::new();
        loop {
            let is_last = inbox.is_closed();
            items.extend(inbox.drain(usize::MAX));
            if is_last {
                break;
            }
            inbox.latch().wait(None);
        }
        assert_eq!(items.iter().sum::<usize>(), 30);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_waiting_receiver_learns_that_a_sender_closes() {
    loom::model(|| {
        let (sender, inbox) = inbox(1, 9);
        let thread = thread::spawn({
            let sender = sender.clone();
            move || sender.close()
        });
        while !inbox.is_closed() {
            inbox.latch().wait(None);
        }
        thread.join().unwrap();
        drop(sender);
    });
}

/// A sender that has claimed a place and not filled it holds up the items behind it. Its own wake
/// brings the receiver back.
#[test]
fn items_behind_one_that_is_still_pushed_come_out_after_it() {
    three_threads(|| {
        let (sender, mut inbox) = inbox(3, 9);
        let threads = [pusher(sender.clone(), &[10, 20]), pusher(sender, &[30])];
        let mut items = Vec::new();
        while items.len() < 3 {
            inbox.latch().wait(None);
            items.extend(inbox.drain(usize::MAX));
        }
        let place = |item: usize| items.iter().position(|other| *other == item);
        assert!(place(10) < place(20) && place(30).is_some());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// The queue passes the end of its blocks several times, while the receiver puts them in again.
#[test]
fn blocks_that_the_receiver_puts_in_again_are_those_of_later_items() {
    preempted(2, || {
        let (sender, mut inbox) = inbox(3, 9);
        let thread = pusher(sender, &[10, 20, 30, 40, 50]);
        assert_eq!(receive(&mut inbox, 5, usize::MAX), [10, 20, 30, 40, 50]);
        thread.join().unwrap();
    });
}

/// An item whose place was claimed before the end, and filled after the receiver has passed it.
#[test]
fn an_item_that_is_pushed_while_the_mailbox_is_dropped_comes_back_or_is_dropped() {
    bounded(|| {
        let item = Arc::new(());
        let bounds = Bounds::items(2).bytes(9);
        let latch = Arc::new(Latch::new().unwrap());
        let (sender, inbox) = weighed_mailbox(bounds, latch, |_: &Arc<()>| 1);
        sender.try_push(item.clone()).unwrap();
        let thread = thread::spawn({
            let item = item.clone();
            move || {
                if let Err(e) = sender.try_push(item) {
                    assert_eq!(e.reason, PushReason::Closed);
                }
            }
        });
        drop(inbox);
        thread.join().unwrap();
        assert_eq!(Arc::strong_count(&item), 1, "each item was dropped once");
    });
}

#[test]
fn room_given_back_during_a_drain_is_for_a_sender_that_waits() {
    bounded(|| {
        let (sender, mut inbox) = inbox(1, 9);
        sender.try_push(0).unwrap();
        let thread = pusher(sender, &[10]);
        let mut drain = inbox.drain(usize::MAX);
        assert_eq!(drain.next(), Some(0));
        drain.give_back();
        drop(drain);
        assert_eq!(receive(&mut inbox, 1, 1), [10]);
        thread.join().unwrap();
    });
}

/// Without a lock or a fence between the receiver and the sender.
#[test]
fn a_sender_that_tries_until_there_is_room_reuses_slots_in_order() {
    preempted(2, || {
        let (sender, mut inbox) = inbox(1, 9);
        let thread = thread::spawn(move || {
            for number in [10, 20, 30] {
                while sender.try_push(number).is_err() {
                    thread::yield_now();
                }
            }
        });
        assert_eq!(receive(&mut inbox, 3, usize::MAX), [10, 20, 30]);
        thread.join().unwrap();
    });
}

/// The order of `released` and of its copy alone tells the second sender that the reader has taken
/// a block out of the directory. Room that is given back within a drain comes without a fence. The
/// senders take no lock, and the second one claims without having seen what the first one did.
#[test]
fn two_senders_that_try_once_take_room_given_back_during_a_drain() {
    preempted(2, || {
        let (sender, mut inbox) = inbox(3, 9);
        (0..3).for_each(|_| sender.try_push(0).unwrap());
        let threads = [10, 20].map(|number| {
            let sender = sender.clone();
            thread::spawn(move || sender.try_push(number).is_ok())
        });
        let mut drain = inbox.drain(usize::MAX);
        for _ in 0..3 {
            assert_eq!(drain.next(), Some(0));
            drain.give_back();
        }
        drop(drain);
        let pushed = threads.map(|thread| usize::from(thread.join().unwrap()));
        assert_eq!(inbox.drain(usize::MAX).count(), pushed.iter().sum());
    });
}
