//! The end of a mailbox, from both sides.

use std::{
    sync::Arc,
    task::{Poll, Waker},
    thread,
    time::Duration,
};

use windlass_flow::{Mailbox, PushReason, Sender};

use crate::support::{Count, inbox, kept, poll, rejection, spawn_asleep, wait, woken};

#[test]
fn a_closed_mailbox_can_be_drained_and_takes_no_more_items() {
    for from_the_sender in [true, false] {
        let (sender, mut inbox) = inbox(9);
        sender.try_push(1).unwrap();
        sender.try_push(2).unwrap();
        assert!(woken(&inbox));
        assert!(!sender.is_closed() && !inbox.is_closed());
        if from_the_sender {
            sender.close()
        } else {
            inbox.close()
        }
        assert!(woken(&inbox), "the receiver hears of it");
        assert!(sender.is_closed() && inbox.is_closed() && sender.clone().is_closed());
        assert_eq!(rejection(sender.try_push(3)), (PushReason::Closed, 3));
        assert!(inbox.drain(1).eq([1]));
        sender.close();
        inbox.close();
        assert!(inbox.drain(9).eq([2]));
        assert_eq!(rejection(sender.try_push(3)), (PushReason::Closed, 3), "room opens nothing");
    }
}

#[test]
fn the_last_sender_that_is_dropped_wakes_the_receiver() {
    let (sender, mut inbox) = inbox(9);
    let other = sender.clone();
    other.try_push('x').unwrap();
    assert!(woken(&inbox));
    drop(other);
    assert!(!inbox.is_closed() && !woken(&inbox));
    drop(sender);
    assert!(woken(&inbox));
    assert!(inbox.is_closed());
    assert!(inbox.drain(9).eq(['x']), "what is in stays in");
    // The receiver can create another sender. That opens the mailbox again.
    let another = inbox.sender();
    assert!(!inbox.is_closed() && !another.is_closed());
    another.try_push('y').unwrap();
    assert!(inbox.drain(9).eq(['y']));
}

#[test]
fn a_future_is_a_sender_for_as_long_as_it_lives() {
    let (sender, inbox) = inbox(1);
    let push = sender.push_async(1);
    drop(sender);
    assert!(!inbox.is_closed());
    assert!(!woken(&inbox));
    drop(push);
    assert!(inbox.is_closed());
    assert!(woken(&inbox));
}

#[test]
fn a_receiver_that_waits_hears_that_the_last_sender_is_gone() {
    let (sender, inbox) = inbox::<u8>(1);
    thread::scope(|scope| {
        let waiting = spawn_asleep(scope, || {
            while !inbox.is_closed() {
                wait(inbox.latch());
            }
        });
        drop(sender);
        waiting.join().unwrap();
    });
}

/// Lets two threads and two tasks wait for room, ends the mailbox, and checks that each gets its
/// item back.
fn all_who_wait_hear_of(
    end: impl FnOnce(&Sender<Arc<u32>>, Mailbox<Arc<u32>>) -> Option<Mailbox<Arc<u32>>>,
) {
    let (sender, inbox) = inbox(1);
    let item = Arc::new(0);
    sender.try_push(item.clone()).unwrap();
    let (count, waker) = Count::new();
    let mut tasks = [sender.push_async(item.clone()), sender.push_async(item.clone())];
    for task in &mut tasks {
        assert!(poll(task, &waker).is_pending());
    }
    let still_there = thread::scope(|scope| {
        let threads = [
            spawn_asleep(scope, || rejection(sender.push(item.clone()))),
            spawn_asleep(scope, || rejection(sender.push_timeout(item.clone(), Duration::MAX))),
        ];
        let still_there = end(&sender, inbox);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), (PushReason::Closed, Arc::new(0)));
        }
        still_there
    });
    assert_eq!((count.wakes(), kept(&count)), (2, 0));
    assert!(sender.is_closed());
    for mut task in tasks {
        let Poll::Ready(outcome) = poll(&mut task, &waker) else {
            panic!("it waits for a closed mailbox")
        };
        assert_eq!(rejection(outcome), (PushReason::Closed, Arc::new(0)));
    }
    if let Some(mut inbox) = still_there {
        assert_eq!(inbox.drain(9).count(), 1);
    }
    assert_eq!(Arc::strong_count(&item), 1, "every item has come back or was dropped");
}

#[test]
fn all_waiting_senders_learn_that_a_sender_closes() {
    all_who_wait_hear_of(|sender, inbox| {
        sender.close();
        Some(inbox)
    });
}

#[test]
fn all_waiting_senders_learn_that_the_receiver_closes() {
    all_who_wait_hear_of(|_, inbox| {
        inbox.close();
        Some(inbox)
    });
}

#[test]
fn all_waiting_senders_learn_that_the_receiver_is_dropped() {
    all_who_wait_hear_of(|_, inbox| {
        drop(inbox);
        None
    });
}

#[test]
fn a_dropped_mailbox_drops_its_items() {
    let (sender, mut inbox) = inbox(9);
    let item = Arc::new(());
    for _ in 0..3 {
        sender.try_push(item.clone()).unwrap();
    }
    // One item is out, two are in the receiver's half, one is in the senders' half.
    assert_eq!(inbox.drain(1).count(), 1);
    sender.try_push(item.clone()).unwrap();
    assert_eq!(Arc::strong_count(&item), 4);
    drop(inbox);
    assert_eq!(Arc::strong_count(&item), 1);
    assert!(sender.is_closed());
    assert_eq!(rejection(sender.push(item)).0, PushReason::Closed);
}

#[test]
fn items_may_hold_senders_of_their_own_mailbox() {
    struct Item(#[expect(dead_code, reason = "it is there to be dropped")] Sender<Item>);
    let (sender, inbox) = inbox(9);
    for _ in 0..3 {
        sender.try_push(Item(sender.clone())).unwrap();
    }
    let mut push = sender.push_async(Item(sender.clone()));
    assert!(poll(&mut push, Waker::noop()).is_ready());
    drop(inbox);
    assert_eq!(rejection(sender.try_push(Item(sender.clone()))).0, PushReason::Closed);
}
