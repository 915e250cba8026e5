//! The first of two futures.

use std::{
    cell::Cell,
    future::{pending, poll_fn, ready},
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use windlass_task::{
    Either,
    budget::poll_proceed,
    race, spawn, stats,
    time::{sleep, timeout},
    yield_now,
};

use crate::tools::{Drops, Flag, block_on};

#[test]
fn the_first_that_is_ready_wins_and_the_other_is_dropped() {
    let drops = Drops::default();
    block_on(async {
        let never = || {
            let token = drops.token();
            async move {
                let _token = token;
                pending::<()>().await;
            }
        };
        let later = async {
            yield_now().await;
            5
        };
        assert_eq!(race(never(), later).await, Either::Second(5));
        assert_eq!(drops.count(), 1);
        assert_eq!(race(yield_now(), never()).await, Either::First(()));
        assert_eq!(drops.count(), 2);
        assert_eq!(race(ready(1), ready(2)).await.into_inner(), 1);
    });
}

#[test]
fn a_future_that_is_passed_by_reference_can_go_on() {
    block_on(async {
        let flag = Flag::default();
        let mut waiting = pin!(flag.wait());
        assert_eq!(race(yield_now(), &mut waiting).await, Either::First(()));
        flag.set();
        waiting.await;
    });
}

#[test]
fn both_wake_the_task() {
    block_on(async {
        for winner in [0, 1] {
            let flags = [Flag::default(), Flag::default()];
            let [one, other] = flags.clone();
            let task = spawn(async move { race(one.wait(), other.wait()).await });
            yield_now().await;
            flags[winner].set();
            let output = task.await.unwrap();
            assert_eq!(matches!(output, Either::Second(())), winner == 1);
        }
    });
}

#[test]
fn the_futures_take_turns_at_being_polled_first() {
    block_on(async {
        let order = Rc::new(Cell::new(0));
        let note = |digit: u32| {
            let order = Rc::clone(&order);
            poll_fn(move |context| {
                order.set(order.get() * 10 + digit);
                context.waker().wake_by_ref();
                if order.get() > 9_999_999 { Poll::Ready(()) } else { Poll::Pending }
            })
        };
        assert_eq!(race(note(1), note(2)).await, Either::First(()));
        assert_eq!(order.get(), 12_211_221);
    });
}

/// It uses up the budget of each poll in which it is first.
#[test]
fn a_busy_future_does_not_starve_the_other() {
    block_on(async {
        let busy = || async {
            loop {
                poll_fn(poll_proceed).await.made_progress();
            }
        };
        let span = Duration::from_millis(1);
        assert_eq!(race(busy(), sleep(span)).await, Either::<(), _>::Second(()));
        assert_eq!(race(sleep(span), busy()).await, Either::<_, ()>::First(()));
        timeout(span, race(busy(), busy())).await.unwrap_err();
        assert!(stats().unwrap().budget_exhausted > 0);
    });
}
