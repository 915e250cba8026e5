//! Which items the bounds admit.

use std::{
    cell::RefCell,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
    time::Duration,
};

use windlass_flow::{Bounds, Latch, Mailbox, Push, PushReason, Sender, weighed_mailbox};

use crate::support::{inbox, poll, rejection, scales};

#[test]
fn the_bound_admits_its_number_of_items_and_the_next_is_returned() {
    let (sender, mut inbox) = inbox(3);
    for item in ["a", "b", "c"] {
        sender.try_push(item.to_owned()).unwrap();
    }
    assert_eq!(rejection(sender.try_push("d".to_owned())), (PushReason::Full, "d".to_owned()));
    assert_eq!(inbox.len(), 3);
    assert!(inbox.drain(9).eq(["a", "b", "c"]));
    sender.try_push("d".to_owned()).unwrap();
    assert_eq!(inbox.len(), 1);
}

#[test]
fn bytes_fill_to_the_last_one() {
    let (sender, mut inbox) = scales(Bounds::items(100).bytes(10));
    sender.try_push(6).unwrap();
    assert_eq!(rejection(sender.try_push(5)), (PushReason::Full, 5));
    sender.try_push(4).unwrap();
    assert_eq!(rejection(sender.try_push(1)), (PushReason::Full, 1));
    assert!(inbox.drain(1).eq([6]));
    assert_eq!(rejection(sender.try_push(7)), (PushReason::Full, 7));
    sender.try_push(6).unwrap();
    assert!(inbox.drain(9).eq([4, 6]));
    sender.try_push(10).unwrap();
}

#[test]
fn a_weightless_item_fits_into_a_mailbox_full_of_bytes() {
    let (sender, inbox) = scales(Bounds::items(3).bytes(5));
    sender.try_push(5).unwrap();
    sender.try_push(0).unwrap();
    sender.try_push(0).unwrap();
    assert_eq!(rejection(sender.try_push(0)), (PushReason::Full, 0), "the count is a bound still");
    assert_eq!(inbox.len(), 3);
}

#[test]
fn an_item_that_can_never_fit_is_rejected_at_once_by_every_push() {
    let (sender, _inbox) = scales(Bounds::items(3).bytes(5));
    for _ in 0..2 {
        let want = (PushReason::TooLarge, 6);
        assert_eq!(rejection(sender.try_push(6)), want);
        assert_eq!(rejection(sender.push(6)), want);
        assert_eq!(rejection(sender.push_timeout(6, Duration::MAX)), want);
        let Poll::Ready(outcome) = poll(&mut sender.push_async(6), Waker::noop()) else {
            panic!("it waits")
        };
        assert_eq!(rejection(outcome), want);
        // Once more with a full mailbox.
        let _ = sender.try_push(5);
    }
}

#[test]
fn a_mailbox_for_no_items_or_no_bytes_is_an_error_and_no_wait() {
    let (sender, _inbox) = inbox(0);
    assert_eq!(rejection(sender.push('x')), (PushReason::TooLarge, 'x'));
    let (sender, mut inbox) = scales(Bounds::items(2).bytes(0));
    assert_eq!(rejection(sender.push(1)), (PushReason::TooLarge, 1));
    sender.try_push(0).unwrap();
    assert!(inbox.drain(9).eq([0]));
}

#[test]
fn the_largest_weight_there_is_does_not_overflow() {
    let (sender, mut inbox) = scales(Bounds::items(usize::MAX));
    sender.try_push(usize::MAX - 1).unwrap();
    assert_eq!(rejection(sender.try_push(2)), (PushReason::Full, 2));
    assert_eq!(rejection(sender.try_push(usize::MAX)), (PushReason::Full, usize::MAX));
    sender.try_push(1).unwrap();
    sender.try_push(0).unwrap();
    assert_eq!(inbox.drain(9).count(), 3);
    sender.try_push(usize::MAX).unwrap();
}

#[test]
fn an_item_is_weighed_once() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    /// The weight grows with each call.
    fn weigh((): &()) -> usize {
        ASKED.fetch_add(1, Ordering::Relaxed) + 1
    }
    let (sender, mut inbox) =
        weighed_mailbox(Bounds::items(9).bytes(3), Arc::new(Latch::new().unwrap()), weigh);
    sender.try_push(()).unwrap();
    sender.try_push(()).unwrap();
    assert_eq!(inbox.drain(9).count(), 2);
    assert_eq!(ASKED.load(Ordering::Relaxed), 2);
    // Item 3 fits only if the room of 1 + 2 was given back exactly.
    sender.try_push(()).unwrap();
    let mut waiting = sender.push_async(());
    assert!(matches!(poll(&mut waiting, Waker::noop()), Poll::Ready(Err(_))), "4 is too large");
    assert_eq!(ASKED.load(Ordering::Relaxed), 4);
}

#[test]
fn weighing_an_item_may_use_the_mailbox() {
    thread_local! {
        static SENDER: RefCell<Option<Sender<usize>>> = const { RefCell::new(None) };
    }
    /// Pushes another item before each heavier one. Under the lock this would never return.
    fn weigh(item: &usize) -> usize {
        SENDER.with_borrow(|sender| {
            sender.as_ref().map_or(0, |sender| usize::from(sender.try_push(item - 1).is_ok()))
        })
    }
    let (sender, mut inbox) =
        weighed_mailbox(Bounds::items(9), Arc::new(Latch::new().unwrap()), |item| {
            if *item == 0 { 0 } else { weigh(item) }
        });
    SENDER.set(Some(sender.clone()));
    sender.try_push(2).unwrap();
    sender.push(1).unwrap();
    assert!(poll(&mut sender.push_async(0), Waker::noop()).is_ready());
    assert!(inbox.drain(9).eq([0, 1, 2, 0, 1, 0]));
    SENDER.set(None);
}

#[test]
fn closed_is_reported_before_other_reasons() {
    let (sender, inbox) = scales(Bounds::items(1).bytes(5));
    sender.try_push(5).unwrap();
    inbox.close();
    assert_eq!(rejection(sender.try_push(9)), (PushReason::Closed, 9));
    assert_eq!(rejection(sender.push(1)), (PushReason::Closed, 1));
    assert_eq!(rejection(sender.push_timeout(1, Duration::ZERO)), (PushReason::Closed, 1));
}

#[test]
fn errors_tell_the_reason_and_become_io_errors() {
    struct Plain;
    let (sender, _inbox) = inbox(1);
    sender.try_push(Plain).unwrap();
    let error = sender.try_push(Plain).unwrap_err();
    assert_eq!(format!("{error}"), "the mailbox is full");
    assert_eq!(
        format!("{error:?}"),
        "PushError(Full)",
        "an item that is not `Debug` is no hindrance"
    );
    for (reason, kind) in [
        (PushReason::Full, io::ErrorKind::WouldBlock),
        (PushReason::TimedOut, io::ErrorKind::TimedOut),
        (PushReason::TooLarge, io::ErrorKind::InvalidInput),
        (PushReason::Closed, io::ErrorKind::BrokenPipe),
    ] {
        let error = io::Error::from(reason);
        assert_eq!(error.kind(), kind);
        assert_eq!(error.to_string(), reason.to_string());
    }
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn ends_go_to_other_threads_as_their_items_allow() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    fn is_unpin<T: Unpin>() {}
    // `Cell` is `Send` but not `Sync`. A mailbox moves items and never shares them.
    type Item = std::cell::Cell<u8>;
    is_send::<Sender<Item>>();
    is_sync::<Sender<Item>>();
    is_send::<Mailbox<Item>>();
    is_send::<windlass_flow::Drain<'_, Item>>();
    is_sync::<Mailbox<u8>>();
    is_send::<Push<Item>>();
    is_unpin::<Push<std::marker::PhantomPinned>>();
    is_send::<Latch>();
    is_sync::<Latch>();
}
