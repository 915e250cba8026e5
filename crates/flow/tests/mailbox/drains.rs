//! Which items a drain returns, and when their room is free again.

use windlass_flow::{Bounds, PushReason};

use crate::support::{inbox, rejection, scales, woken};

#[test]
fn items_come_out_in_the_order_in_which_they_went_in() {
    let (sender, mut inbox) = inbox(7);
    let other = sender.clone();
    let (mut next_in, mut next_out) = (0, 0);
    for round in 1..50 {
        while (if next_in % 2 == 0 { &sender } else { &other }).try_push(next_in).is_ok() {
            next_in += 1;
        }
        // A rejected item is pushed again in the next round.
        for item in inbox.drain(round % 9) {
            assert_eq!(item, next_out);
            next_out += 1;
        }
    }
    assert!(next_out > 100);
}

#[test]
fn a_drain_with_a_limit_leaves_the_rest_first_and_keeps_the_owner_awake() {
    let (sender, mut inbox) = inbox(9);
    for item in 0..5 {
        sender.try_push(item).unwrap();
    }
    assert!(woken(&inbox));
    assert!(inbox.drain(2).eq([0, 1]));
    assert!(woken(&inbox), "three are left");
    sender.try_push(5).unwrap();
    assert!(!woken(&inbox), "the drain's wake was for this item too");
    assert_eq!(inbox.len(), 4);
    assert!(inbox.drain(3).eq([2, 3, 4]));
    assert!(woken(&inbox), "one is left");
    assert!(inbox.drain(3).eq([5]));
    assert!(!woken(&inbox), "nothing is left");
    assert!(inbox.is_empty());
}

#[test]
fn a_drain_that_is_not_used_up_leaves_the_rest() {
    let (sender, mut inbox) = inbox(9);
    for item in 0..4 {
        sender.try_push(item).unwrap();
    }
    assert!(woken(&inbox));
    drop(inbox.drain(9));
    assert!(woken(&inbox), "all four are left");
    assert_eq!(inbox.drain(9).next(), Some(0));
    assert!(woken(&inbox));
    assert_eq!(inbox.drain(0).next(), None);
    assert!(woken(&inbox), "a drain for no items leaves all of them");
    assert!(inbox.drain(9).eq([1, 2, 3]));
    assert!(!woken(&inbox));
}

#[test]
fn only_a_push_to_an_empty_queue_wakes() {
    let (sender, mut inbox) = inbox(9);
    assert!(!woken(&inbox));
    sender.try_push('a').unwrap();
    assert!(woken(&inbox));
    sender.try_push('b').unwrap();
    assert!(!woken(&inbox), "the first one's wake is for both");
    assert!(inbox.drain(9).eq(['a', 'b']));
    assert!(!woken(&inbox));
    sender.push('c').unwrap();
    assert!(woken(&inbox));
    inbox.drain(9).for_each(drop);
    sender.push_timeout('d', std::time::Duration::MAX).unwrap();
    assert!(woken(&inbox));
    inbox.drain(9).for_each(drop);
    assert_eq!(inbox.drain(9).next(), None);
    assert!(!woken(&inbox), "there was nothing to leave behind");
    let _ = rejection(scales(Bounds::items(0)).0.try_push(1));
}

#[test]
fn items_held_by_the_receiver_keep_their_room_until_the_drain_ends() {
    let (sender, mut inbox) = scales(Bounds::items(3).bytes(10));
    for item in [5, 1, 4] {
        sender.try_push(item).unwrap();
    }
    let mut drain = inbox.drain(2);
    assert_eq!(drain.next(), Some(5));
    assert_eq!(rejection(sender.try_push(0)), (PushReason::Full, 0));
    assert_eq!(drain.next(), Some(1));
    assert_eq!(drain.next(), None);
    assert_eq!(rejection(sender.try_push(0)), (PushReason::Full, 0));
    drop(drain);
    assert_eq!(
        rejection(sender.try_push(7)),
        (PushReason::Full, 7),
        "4 are in, and 10 is the most"
    );
    sender.try_push(6).unwrap();
    sender.try_push(0).unwrap();
    assert_eq!(rejection(sender.try_push(0)), (PushReason::Full, 0));
    assert_eq!(inbox.len(), 3);
}

#[test]
fn room_given_back_early_is_that_of_the_items_returned_so_far() {
    let (sender, mut inbox) = scales(Bounds::items(3).bytes(10));
    for item in [5, 1, 4] {
        sender.try_push(item).unwrap();
    }
    let mut drain = inbox.drain(3);
    drain.give_back();
    assert_eq!(rejection(sender.try_push(0)), (PushReason::Full, 0));
    assert_eq!(drain.next(), Some(5));
    assert_eq!(drain.next(), Some(1));
    drain.give_back();
    assert_eq!(rejection(sender.try_push(7)), (PushReason::Full, 7), "4 are in");
    sender.try_push(6).unwrap();
    sender.try_push(0).unwrap();
    assert_eq!(rejection(sender.try_push(0)), (PushReason::Full, 0), "three are in");
    assert_eq!(drain.next(), Some(4));
    assert_eq!(drain.next(), None, "the others came later");
    drop(drain);
    assert_eq!(inbox.len(), 2);
    assert!(inbox.drain(3).eq([6, 0]));
    sender.try_push(10).unwrap();
}

#[test]
fn an_item_pushed_during_a_drain_wakes_the_owner_again() {
    let (sender, mut inbox) = inbox(3);
    for round in 0..3 {
        sender.try_push(round).unwrap();
        assert!(inbox.latch().awake());
        let mut drain = inbox.drain(99);
        assert_eq!(drain.next(), Some(round));
        sender.try_push(10 + round).unwrap();
        assert_eq!(drain.next(), None, "it was not there when the drain came to look");
        drop(drain);
        assert!(inbox.latch().awake());
        assert!(inbox.drain(99).eq([10 + round]));
        assert!(!inbox.latch().is_woken());
    }
}

#[test]
fn a_drain_takes_the_items_left_by_another_and_then_later_ones() {
    let (sender, mut inbox) = inbox(6);
    for item in 0..3 {
        sender.try_push(item).unwrap();
    }
    assert!(inbox.drain(1).eq([0]));
    sender.try_push(3).unwrap();
    assert!(inbox.latch().awake(), "items are left");
    assert!(inbox.drain(99).eq([1, 2, 3]));
    assert!(!inbox.latch().is_woken() && inbox.is_empty());
}

#[test]
fn a_forgotten_drain_gives_its_room_back_at_the_next_one() {
    let (sender, mut inbox) = scales(Bounds::items(3).bytes(6));
    for item in [1, 2, 3] {
        sender.try_push(item).unwrap();
    }
    for left in [2, 1] {
        let mut drain = inbox.drain(1);
        assert!(drain.next().is_some());
        std::mem::forget(drain);
        assert_eq!(inbox.len(), left);
        assert_eq!(
            rejection(sender.try_push(0)),
            (PushReason::Full, 0),
            "its room is not free yet"
        );
    }
    assert!(inbox.drain(9).eq([3]), "what it has not taken is still there");
    sender.try_push(6).unwrap();
    sender.try_push(0).unwrap();
    sender.try_push(0).unwrap();
    assert!(inbox.drain(9).eq([6, 0, 0]));
    assert!(inbox.is_empty());
}

#[test]
fn the_ends_show_their_state_and_not_the_items() {
    struct Plain;
    let (sender, inbox) = inbox(2);
    sender.try_push(Plain).unwrap();
    assert_eq!(
        format!("{inbox:?}"),
        format!(
            "Mailbox {{ bounds: Bounds {{ items_max: 2, bytes_max: {} }}, len: 1 }}",
            usize::MAX
        )
    );
    assert!(format!("{sender:?}").starts_with("Sender { bounds: "));
    assert_eq!(format!("{:?}", sender.push_async(Plain)), "Push { is_waiting: false, .. }");
    assert_eq!(format!("{:?}", inbox.latch()), "Latch { is_woken: true, .. }");
}
