//! Random programs of one thread against a naive model.

use std::{collections::VecDeque, sync::Arc, task::Poll};

use proptest::prelude::*;
use windlass_flow::{Bounds, Mailbox, Push, PushReason, Sender, weighed_mailbox};

use crate::support::{Count, kept, poll, rejection};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    number: usize,
    bytes: usize,
}

#[derive(Clone, Debug)]
enum Op {
    TryPush(usize),
    PushAsync(usize),
    Poll(usize),
    DropFuture(usize),
    IntoItem(usize),
    /// The owner takes the latch's wake, and then some items of a drain.
    Turn(usize, usize),
    ForgetDrain(usize),
    Close(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..6_usize).prop_map(Op::TryPush),
        4 => (0..6_usize).prop_map(Op::PushAsync),
        5 => (0..8_usize).prop_map(Op::Poll),
        1 => (0..8_usize).prop_map(Op::DropFuture),
        1 => (0..8_usize).prop_map(Op::IntoItem),
        6 => (0..5_usize, 0..5_usize).prop_map(|(max, taken)| Op::Turn(max, taken)),
        1 => (0..3_usize).prop_map(Op::ForgetDrain),
        1 => any::<bool>().prop_map(Op::Close),
    ]
}

/// A future and its expected state.
struct Waiting {
    push: Push<Item>,
    item: Item,
    count: Arc<Count>,
    waker: std::task::Waker,
    /// Its waker is registered in the mailbox.
    is_registered: bool,
    wakes: usize,
}

/// The mailbox and its model.
struct Pair {
    sender: Sender<Item>,
    inbox: Mailbox<Item>,
    bounds: Bounds,
    items: VecDeque<Item>,
    /// Items taken by forgotten drains.
    forgotten: Vec<Item>,
    /// Whether a forgotten drain has left items without a wake.
    is_quiet: bool,
    is_closed: bool,
    futures: Vec<Waiting>,
    next: usize,
}

impl Pair {
    fn new(bounds: Bounds) -> Self {
        let latch = Arc::new(windlass_flow::Latch::new().unwrap());
        let (sender, inbox) = weighed_mailbox(bounds, latch, |item: &Item| item.bytes);
        let (items, forgotten, futures) = Default::default();
        Self {
            sender,
            inbox,
            bounds,
            items,
            forgotten,
            is_quiet: false,
            is_closed: false,
            futures,
            next: 0,
        }
    }

    fn item(&mut self, bytes: usize) -> Item {
        self.next += 1;
        Item { number: self.next, bytes }
    }

    /// The expected result of pushing this item.
    fn outcome(&mut self, item: Item) -> Result<(), (PushReason, Item)> {
        let held = || self.items.iter().chain(&self.forgotten);
        let reason = if self.is_closed {
            PushReason::Closed
        } else if item.bytes > self.bounds.bytes_max || self.bounds.items_max == 0 {
            PushReason::TooLarge
        } else if held().count() + 1 > self.bounds.items_max
            || held().map(|item| item.bytes).sum::<usize>() + item.bytes > self.bounds.bytes_max
        {
            PushReason::Full
        } else {
            self.items.push_back(item);
            return Ok(());
        };
        Err((reason, item))
    }

    /// The waiting futures were woken, and their wakers are no longer registered.
    fn all_are_woken(&mut self) {
        for future in &mut self.futures {
            future.wakes += usize::from(std::mem::take(&mut future.is_registered));
        }
    }

    fn poll(&mut self, index: usize) {
        let mut future = self.futures.swap_remove(index);
        let outcome = poll(&mut future.push, &future.waker);
        match (self.outcome(future.item), outcome) {
            (Err((PushReason::Full, _)), Poll::Pending) => {
                future.is_registered = true;
                self.futures.push(future);
            }
            (want, Poll::Ready(outcome)) => {
                assert_eq!(outcome.map_err(|e| (e.reason, e.item.into_inner())), want);
                assert_eq!(future.push.into_item(), None);
                assert_eq!(kept(&future.count), 0);
            }
            (want, Poll::Pending) => panic!("pending instead of {want:?}"),
        }
    }

    fn run(&mut self, op: &Op) {
        let pick = |index: usize, len: usize| (len > 0).then(|| index % len);
        match *op {
            Op::TryPush(bytes) => {
                let item = self.item(bytes);
                let outcome = self.sender.try_push(item);
                match self.outcome(item) {
                    Ok(()) => outcome.unwrap(),
                    Err(want) => assert_eq!(rejection(outcome), want),
                }
            }
            Op::PushAsync(bytes) => {
                let item = self.item(bytes);
                let (count, waker) = Count::new();
                let push = self.sender.push_async(item);
                self.futures.push(Waiting {
                    push,
                    item,
                    count,
                    waker,
                    is_registered: false,
                    wakes: 0,
                });
                self.poll(self.futures.len() - 1);
            }
            Op::Poll(index) => {
                if let Some(index) = pick(index, self.futures.len()) {
                    self.poll(index);
                }
            }
            Op::DropFuture(index) => {
                if let Some(index) = pick(index, self.futures.len()) {
                    let future = self.futures.swap_remove(index);
                    drop(future.push);
                    assert_eq!((future.count.wakes(), kept(&future.count)), (future.wakes, 0));
                }
            }
            Op::IntoItem(index) => {
                if let Some(index) = pick(index, self.futures.len()) {
                    let future = self.futures.swap_remove(index);
                    assert_eq!(future.push.into_item(), Some(future.item));
                    assert_eq!(kept(&future.count), 0);
                }
            }
            Op::Turn(max, taken) => self.turn(max, taken),
            Op::ForgetDrain(taken) => {
                let mut drain = self.inbox.drain(usize::MAX);
                let out: Vec<Item> = drain.by_ref().take(taken).collect();
                std::mem::forget(drain);
                let want: Vec<Item> = self.items.drain(..taken.min(self.items.len())).collect();
                assert_eq!(out, want);
                self.forgotten.extend(out);
                self.is_quiet = true;
            }
            Op::Close(by_the_sender) => {
                if by_the_sender {
                    self.sender.close()
                } else {
                    self.inbox.close()
                }
                self.is_closed = true;
                self.all_are_woken();
                assert!(self.inbox.latch().is_woken());
            }
        }
    }

    fn turn(&mut self, max: usize, taken: usize) {
        let _ = self.inbox.latch().awake();
        let out: Vec<Item> = self.inbox.drain(max).take(taken).collect();
        let want: Vec<Item> = self.items.drain(..taken.min(max).min(self.items.len())).collect();
        assert_eq!(out, want);
        let had_room_to_give = !self.forgotten.is_empty() || !out.is_empty();
        self.forgotten.clear();
        self.is_quiet = false;
        if had_room_to_give {
            self.all_are_woken();
        }
        assert_eq!(
            self.inbox.latch().is_woken(),
            !self.items.is_empty(),
            "awake exactly if something is left"
        );
    }

    fn check(&self) {
        assert_eq!(self.inbox.len(), self.items.len());
        assert_eq!(self.inbox.is_empty(), self.items.is_empty());
        assert_eq!(
            (self.inbox.is_closed(), self.sender.is_closed()),
            (self.is_closed, self.is_closed)
        );
        assert!(
            self.is_quiet || self.items.is_empty() || self.inbox.latch().is_woken(),
            "items, and an owner asleep"
        );
        for future in &self.futures {
            assert_eq!(kept(&future.count), usize::from(future.is_registered));
            assert_eq!(future.count.wakes(), future.wakes);
        }
    }
}

proptest! {
    // Miri is slow, and must not write a file of failures.
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { windlass_testkit::random::cases(500) },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn random_programs_behave_as_the_naive_model(
        items_max in 0..5_usize,
        bytes_max in 0..12_usize,
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut pair = Pair::new(Bounds { items_max, bytes_max });
        for op in &ops {
            pair.run(op);
            pair.check();
        }
    }
}
