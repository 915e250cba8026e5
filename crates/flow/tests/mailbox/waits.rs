//! Threads that wait for room.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use windlass_flow::{Bounds, Mailbox, PushReason};

use crate::support::{inbox, rejection, scales, spawn_asleep, wait};

/// Drains up to `max` items at a time until `count` items have arrived.
fn receive<T>(inbox: &mut Mailbox<T>, count: usize, max: usize) -> Vec<T> {
    let mut items = Vec::new();
    loop {
        items.extend(inbox.drain(max));
        if items.len() >= count {
            return items;
        }
        wait(inbox.latch());
    }
}

#[test]
fn a_push_waits_for_room_and_goes_on_when_it_comes() {
    let (sender, mut inbox) = inbox(2);
    sender.push(0).unwrap();
    sender.push(1).unwrap();
    thread::scope(|scope| {
        let threads = [
            spawn_asleep(scope, || sender.push(2).unwrap()),
            spawn_asleep(scope, || sender.push_timeout(2, Duration::MAX).unwrap()),
            spawn_asleep(scope, || sender.push_timeout(2, Duration::from_secs(3600)).unwrap()),
        ];
        assert!(threads.iter().all(|thread| !thread.is_finished()), "there is no room");
        assert_eq!(receive(&mut inbox, 5, 1), [0, 1, 2, 2, 2]);
    });
}

#[test]
fn room_comes_at_the_end_of_a_drain_and_wakes_waiting_senders() {
    let (sender, mut inbox) = inbox(1);
    sender.push('a').unwrap();
    thread::scope(|scope| {
        let mut drain = inbox.drain(1);
        let thread = spawn_asleep(scope, || sender.push('b').unwrap());
        assert_eq!(drain.next(), Some('a'));
        assert!(!thread.is_finished(), "the item is in the receiver's hands");
        drop(drain);
        thread.join().unwrap();
    });
    assert!(inbox.drain(9).eq(['b']));
}

#[test]
fn room_given_back_early_wakes_sleeping_senders_at_the_end_of_the_drain() {
    let (sender, mut inbox) = inbox(1);
    sender.push('a').unwrap();
    thread::scope(|scope| {
        let mut drain = inbox.drain(1);
        let thread = spawn_asleep(scope, || sender.push('b').unwrap());
        assert_eq!(drain.next(), Some('a'));
        drain.give_back();
        // Nothing is given back here, because that was done above.
        drop(drain);
        thread.join().unwrap();
    });
    assert!(inbox.drain(9).eq(['b']));
}

#[test]
fn a_large_item_among_small_ones_leaves_no_sender_asleep() {
    let (sender, mut inbox) = scales(Bounds::items(9).bytes(10));
    for round in 1..=4 {
        sender.push(10).unwrap();
        thread::scope(|scope| {
            let big = spawn_asleep(scope, || sender.push(9).unwrap());
            let small = [(); 5].map(|()| spawn_asleep(scope, || sender.push(2).unwrap()));
            let items = receive(&mut inbox, 7, round);
            assert_eq!(items.iter().sum::<usize>(), 10 + 9 + 5 * 2);
            big.join().unwrap();
            small.into_iter().for_each(|small| small.join().unwrap());
        });
        assert!(inbox.is_empty());
        let _ = inbox.latch().awake();
    }
}

#[test]
fn a_push_with_an_end_gives_up_in_time_and_the_item_comes_back() {
    let (sender, mut inbox) = inbox(1);
    sender.push("in".to_owned()).unwrap();
    for timeout in [Duration::ZERO, Duration::from_millis(20)] {
        let start = Instant::now();
        assert_eq!(
            rejection(sender.push_timeout("out".to_owned(), timeout)),
            (PushReason::TimedOut, "out".to_owned())
        );
        let took = start.elapsed();
        assert!(took >= timeout, "it gave up after {took:?}");
        assert!(took < Duration::from_secs(20), "it gave up after {took:?}");
    }
    assert!(inbox.drain(9).eq(["in"]));
    sender.push_timeout("next".to_owned(), Duration::ZERO).unwrap();
    assert!(inbox.drain(9).eq(["next"]));
}

#[test]
fn a_sender_that_gave_up_takes_no_wake_of_another() {
    let (sender, mut inbox) = inbox(1);
    sender.push(0).unwrap();
    thread::scope(|scope| {
        let patient = spawn_asleep(scope, || sender.push(1).unwrap());
        let hasty = [1, 2, 3].map(|ms| {
            scope.spawn({
                let sender = &sender;
                move || rejection(sender.push_timeout(9, Duration::from_millis(ms))).0
            })
        });
        for thread in hasty {
            assert_eq!(thread.join().unwrap(), PushReason::TimedOut);
        }
        assert_eq!(receive(&mut inbox, 2, 9), [0, 1]);
        patient.join().unwrap();
    });
}

#[test]
fn threads_that_come_back_and_those_that_wait_share_the_room() {
    let (sender, mut inbox) = inbox(1);
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for item in 0..20 {
                    sender.push(item).unwrap();
                }
                order.lock().unwrap().push(());
            });
        }
        assert_eq!(receive(&mut inbox, 60, 1).iter().sum::<i32>(), 3 * 190);
    });
    assert_eq!(order.into_inner().unwrap().len(), 3);
}

#[test]
fn the_latch_is_shared_by_several_mailboxes() {
    let latch = Arc::new(windlass_flow::Latch::new().unwrap());
    let (numbers, mut number_inbox) = windlass_flow::mailbox(Bounds::items(1), latch.clone());
    let (words, mut word_inbox) = windlass_flow::mailbox(Bounds::items(1), latch.clone());
    thread::scope(|scope| {
        scope.spawn(|| (0..10).for_each(|number| numbers.push(number).unwrap()));
        scope.spawn(|| (0..10).for_each(|_| words.push("word").unwrap()));
        let mut left = 20;
        while left > 0 {
            left -= number_inbox.drain(9).count() + word_inbox.drain(9).count();
            if left > 0 {
                wait(&latch);
            }
        }
    });
}
