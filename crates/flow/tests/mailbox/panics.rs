//! User code panics wherever the mailbox calls it. No item is lost, every waiting thread is woken,
//! and the mailbox continues to work.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use windlass_flow::{Bounds, Latch, PushReason, weighed_mailbox};

use crate::{
    expected_panics::caught,
    hooks::Hooks,
    support::{Count, inbox, kept, poll, rejection, spawn_asleep, woken},
};

/// Runs `run`, which must panic, and returns the message of the panic.
fn panic_of<R>(run: impl FnOnce() -> R) -> String {
    let Err(payload) = caught(run) else { panic!("it did not panic") };
    (*payload.downcast::<&str>().expect("a plain message")).to_owned()
}

fn panicking(message: &'static str) -> Box<dyn Fn() + Send + Sync> {
    Box::new(move || std::panic::panic_any(message))
}

/// Panics once after it was armed. So the test can drop its own wakers without a panic.
fn panicking_once(
    is_armed: &Arc<AtomicBool>,
    message: &'static str,
) -> Box<dyn Fn() + Send + Sync> {
    let is_armed = is_armed.clone();
    Box::new(move || {
        if is_armed.swap(false, Ordering::SeqCst) {
            std::panic::panic_any(message);
        }
    })
}

/// An item that counts its drops, and panics in its destructor if told to.
struct Bomb {
    is_armed: Arc<AtomicBool>,
    dropped: Arc<AtomicUsize>,
}

impl Bomb {
    fn new() -> Self {
        Self { is_armed: Arc::new(AtomicBool::new(true)), dropped: Arc::default() }
    }
}

impl Clone for Bomb {
    fn clone(&self) -> Self {
        Self { is_armed: self.is_armed.clone(), dropped: self.dropped.clone() }
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
        if self.is_armed.load(Ordering::SeqCst) {
            std::panic::panic_any("bomb");
        }
    }
}

#[test]
fn a_waker_that_panics_when_it_is_woken_keeps_no_other_from_it() {
    let (sender, mut inbox) = inbox(2);
    sender.try_push(0).unwrap();
    sender.try_push(1).unwrap();
    assert!(woken(&inbox));
    let bad = Arc::new(Hooks { on_wake: panicking("wake"), ..Hooks::default() });
    let (count, waker) = Count::new();
    let wakers = [&bad.waker(), &waker, &bad.waker(), &waker];
    let mut tasks = [(); 4].map(|()| sender.push_async(9));
    for (task, waker) in tasks.iter_mut().zip(wakers) {
        assert!(poll(task, waker).is_pending());
    }
    thread::scope(|scope| {
        let pusher = spawn_asleep(scope, || sender.push(2).unwrap());
        assert_eq!(panic_of(|| assert!(inbox.drain(1).eq([0]))), "wake");
        pusher.join().unwrap();
    });
    assert_eq!((count.wakes(), kept(&count)), (2, 0));
    assert_eq!(Arc::strong_count(&bad), 3, "the test's own two wakers are left");
    assert!(woken(&inbox), "one was left");
    drop(tasks);
    assert!(inbox.drain(9).eq([1, 2]));
    sender.try_push(3).unwrap();
    sender.try_push(4).unwrap();
    assert_eq!(rejection(sender.try_push(5)), (PushReason::Full, 5));
}

#[test]
fn a_mailbox_is_closed_although_a_waker_panics() {
    for is_dropped in [false, true] {
        let (sender, inbox) = inbox(1);
        let item = Arc::new(());
        sender.try_push(item.clone()).unwrap();
        let bad = Arc::new(Hooks { on_wake: panicking("wake"), ..Hooks::default() });
        let (count, waker) = Count::new();
        let mut tasks = [(); 2].map(|()| sender.push_async(item.clone()));
        assert!(poll(&mut tasks[0], &bad.waker()).is_pending());
        assert!(poll(&mut tasks[1], &waker).is_pending());
        if is_dropped {
            assert_eq!(panic_of(|| drop(inbox)), "wake");
            assert_eq!(Arc::strong_count(&item), 3, "what was in it is dropped");
        } else {
            assert_eq!(panic_of(|| sender.close()), "wake");
            assert!(woken(&inbox));
        }
        assert!(sender.is_closed());
        assert_eq!(count.wakes(), 1);
    }
}

#[test]
fn a_waker_that_panics_when_it_is_cloned_costs_a_poll_and_not_the_item() {
    let (sender, mut inbox) = inbox(1);
    sender.try_push(0).unwrap();
    let bad = Arc::new(Hooks { on_clone: panicking("clone"), ..Hooks::default() });
    let mut push = sender.push_async(1);
    let (count, waker) = Count::new();
    assert!(poll(&mut push, &waker).is_pending());
    assert_eq!(panic_of(|| poll(&mut push, &bad.waker())), "clone");
    assert_eq!(kept(&count), 0);
    assert!(poll(&mut push, &waker).is_pending(), "it can be polled again");
    assert!(inbox.drain(9).eq([0]));
    assert!(poll(&mut push, &waker).is_ready());
    assert!(inbox.drain(9).eq([1]));
    sender.try_push(2).unwrap();
    let mut push = sender.push_async(3);
    assert_eq!(panic_of(|| poll(&mut push, &bad.waker())), "clone");
    assert_eq!(push.into_item(), Some(3));
}

#[test]
fn a_waker_that_panics_when_it_is_dropped_costs_a_poll_and_not_the_item() {
    let (sender, mut inbox) = inbox(1);
    sender.try_push(0).unwrap();
    let is_armed = Arc::new(AtomicBool::new(false));
    let bad = Arc::new(Hooks { on_drop: panicking_once(&is_armed, "drop"), ..Hooks::default() });
    let (_, waker) = Count::new();
    let mut push = sender.push_async(1);
    assert!(poll(&mut push, &bad.waker()).is_pending());
    is_armed.store(true, Ordering::SeqCst);
    assert_eq!(panic_of(|| poll(&mut push, &waker)), "drop");
    assert_eq!(Arc::strong_count(&bad), 1);
    assert!(poll(&mut push, &waker).is_pending());
    assert_eq!(push.into_item(), Some(1));
    let mut push = sender.push_async(2);
    assert!(poll(&mut push, &bad.waker()).is_pending());
    is_armed.store(true, Ordering::SeqCst);
    assert_eq!(panic_of(|| drop(push)), "drop");
    assert!(inbox.drain(9).eq([0]));
    sender.try_push(3).unwrap();
    assert_eq!(Arc::strong_count(&bad), 1);
}

/// The waker is cloned while the mailbox is closed. So the clone is dropped again.
#[test]
fn a_waker_that_panics_when_it_turns_out_not_to_be_needed_costs_not_the_item() {
    let (sender, _inbox) = inbox(1);
    sender.try_push(0).unwrap();
    let is_armed = Arc::new(AtomicBool::new(false));
    let bad = Arc::new(Hooks {
        on_clone: Box::new({
            let (sender, is_armed) = (sender.clone(), is_armed.clone());
            move || {
                sender.close();
                is_armed.store(true, Ordering::SeqCst);
            }
        }),
        on_drop: panicking_once(&is_armed, "drop"),
        ..Hooks::default()
    });
    let mut push = sender.push_async(1);
    assert_eq!(panic_of(|| poll(&mut push, &bad.waker())), "drop");
    assert_eq!(push.into_item(), Some(1));
}

#[test]
fn a_future_whose_waker_and_whose_item_panic_when_dropped_ends_with_one_panic() {
    for is_taken_back in [false, true] {
        let (sender, mut inbox) = inbox(1);
        let bomb = Bomb::new();
        bomb.is_armed.store(false, Ordering::SeqCst);
        sender.try_push(bomb.clone()).unwrap();
        let is_armed = Arc::new(AtomicBool::new(false));
        let bad =
            Arc::new(Hooks { on_drop: panicking_once(&is_armed, "drop"), ..Hooks::default() });
        let mut push = sender.push_async(bomb.clone());
        assert!(poll(&mut push, &bad.waker()).is_pending());
        is_armed.store(true, Ordering::SeqCst);
        bomb.is_armed.store(true, Ordering::SeqCst);
        // Two panics at once would abort the process here.
        if is_taken_back {
            assert_eq!(panic_of(|| push.into_item()), "drop");
        } else {
            assert_eq!(panic_of(|| drop(push)), "drop");
        }
        assert_eq!(bomb.dropped.load(Ordering::SeqCst), 1);
        bomb.is_armed.store(false, Ordering::SeqCst);
        assert_eq!(inbox.drain(9).count(), 1);
        drop(sender);
        assert!(inbox.is_closed(), "the future's sender went with it");
    }
}

#[test]
fn a_dropped_mailbox_drops_every_item_although_they_panic() {
    let (sender, mut inbox) = inbox(9);
    let bomb = Bomb::new();
    for _ in 0..3 {
        sender.try_push(bomb.clone()).unwrap();
    }
    // One item is held by the test, two are in the receiver's half, two in the senders' half.
    let in_hands = inbox.drain(1).next();
    for _ in 0..2 {
        sender.try_push(bomb.clone()).unwrap();
    }
    assert_eq!(panic_of(|| drop(inbox)), "bomb");
    assert_eq!(bomb.dropped.load(Ordering::SeqCst), 4);
    bomb.is_armed.store(false, Ordering::SeqCst);
    drop(in_hands);
    assert_eq!(rejection(sender.try_push(bomb)).0, PushReason::Closed);
}

#[test]
fn a_mailbox_dropped_in_a_panic_does_not_end_the_process() {
    let (sender, inbox) = inbox(9);
    let bomb = Bomb::new();
    sender.try_push(bomb.clone()).unwrap();
    sender.try_push(bomb.clone()).unwrap();
    let outcome = panic_of(move || {
        let _inbox = inbox;
        std::panic::panic_any("first");
    });
    assert_eq!(outcome, "first");
    assert_eq!(bomb.dropped.load(Ordering::SeqCst), 2);
    bomb.is_armed.store(false, Ordering::SeqCst);
}

#[test]
fn a_receiver_that_panics_over_an_item_gives_its_room_back() {
    let (sender, mut inbox) = inbox(2);
    sender.try_push(0).unwrap();
    sender.try_push(1).unwrap();
    assert!(woken(&inbox));
    let bad = Arc::new(Hooks { on_wake: panicking("wake"), ..Hooks::default() });
    let (count, waker) = Count::new();
    let mut tasks = [(); 2].map(|()| sender.push_async(2));
    assert!(poll(&mut tasks[0], &bad.waker()).is_pending());
    assert!(poll(&mut tasks[1], &waker).is_pending());
    let message = panic_of(|| {
        for item in inbox.drain(9) {
            // The waker panics during this panic.
            if item == 0 {
                std::panic::panic_any("receiver");
            }
        }
    });
    assert_eq!(message, "receiver");
    assert_eq!(count.wakes(), 1);
    assert!(woken(&inbox), "one was left");
    assert_eq!(inbox.len(), 1);
    assert!(poll(&mut tasks[1], &waker).is_ready());
    assert!(inbox.drain(9).eq([1, 2]));
}

#[test]
fn an_item_that_cannot_be_weighed_is_not_pushed() {
    fn weigh(item: &Bomb) -> usize {
        if item.dropped.load(Ordering::SeqCst) == 0 { std::panic::panic_any("weigh") } else { 1 }
    }
    let (sender, mut inbox) =
        weighed_mailbox(Bounds::items(1), Arc::new(Latch::new().unwrap()), weigh);
    let pushes: [fn(&windlass_flow::Sender<Bomb>, Bomb); 4] = [
        |sender, item| drop(sender.try_push(item)),
        |sender, item| drop(sender.push(item)),
        |sender, item| drop(sender.push_timeout(item, std::time::Duration::MAX)),
        |sender, item| drop(sender.push_async(item)),
    ];
    for push in pushes {
        let bomb = Bomb::new();
        bomb.is_armed.store(false, Ordering::SeqCst);
        assert_eq!(panic_of(|| push(&sender, bomb.clone())), "weigh");
        assert_eq!(bomb.dropped.load(Ordering::SeqCst), 1);
        assert!(inbox.is_empty() && !woken(&inbox));
        sender.try_push(bomb).unwrap();
        assert_eq!(inbox.drain(9).count(), 1);
        assert!(woken(&inbox));
    }
}
