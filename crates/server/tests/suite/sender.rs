//! The service as other threads use it.

use std::{thread, time::Duration};

use windlass_flow::Bounds;
use windlass_server::{CloseCode, ConnectionId, Prepared, SenderError};

use crate::fixture::{ClientEvent, Fixture, TestHandler, text};

#[test]
fn messages_of_a_thread_keep_their_order() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    fixture.with_hub(move |hub| assert!(hub.subscribe(id, "t").unwrap()));
    let sender = fixture.service.sender();
    let thread = thread::spawn(move || {
        let prepared = Prepared::new("prepared");
        for round in 0..200 {
            sender.send(id, &*format!("sent {round}")).unwrap();
            sender.publish("t", &*format!("published {round}")).unwrap();
            sender.send_prepared(id, &prepared).unwrap();
        }
        sender.close(id, CloseCode::new(4000), "done").unwrap();
        // These calls have no effect, because the connection is closing.
        sender.send(id, "late").unwrap();
        sender.close(id, CloseCode::NO_STATUS, "").unwrap();
    });
    for round in 0..200 {
        let received = [(); 3].map(|()| fixture.next_event(&mut client));
        assert_eq!(
            received,
            [text(&format!("sent {round}")), text(&format!("published {round}")), text("prepared")]
        );
    }
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Close(Some(4000), "done".into()));
    assert_eq!(fixture.next_event(&mut client), ClientEvent::End(None));
    thread.join().unwrap();
}

#[test]
fn a_full_queue_says_so_and_a_wait_on_its_own_thread_is_an_error() {
    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.sender_bounds = Bounds::items(4).bytes(1000)
    });
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    let sender = fixture.service.sender();
    for _ in 0..4 {
        sender.send(id, "x").unwrap();
    }
    assert_eq!(sender.try_send(id, "x"), Err(SenderError::Full));
    assert_eq!(sender.try_publish("t", "x"), Err(SenderError::Full));
    assert_eq!(sender.try_close(id, CloseCode::NORMAL, ""), Err(SenderError::Full));
    assert_eq!(sender.try_send_prepared(id, &Prepared::new("x")), Err(SenderError::Full));
    assert_eq!(sender.send(id, "x"), Err(SenderError::WouldDeadlock));
    assert_eq!(sender.publish("t", "x"), Err(SenderError::WouldDeadlock));
    assert_eq!(sender.try_send(id, &[0; 1000][..]), Err(SenderError::TooLarge));
    assert_eq!(sender.send(id, &[0; 1000][..]), Err(SenderError::TooLarge));
    for _ in 0..4 {
        assert_eq!(fixture.next_event(&mut client), text("x"));
    }
    sender.try_send(id, "again").unwrap();
    assert_eq!(fixture.next_event(&mut client), text("again"));
}

#[test]
fn waiting_senders_get_room() {
    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.sender_bounds = Bounds::items(4);
        options.sender_messages_per_turn = 3;
    });
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let sender = fixture.service.sender();
            thread::spawn(move || {
                for number in 0..100 {
                    sender.send(id, &*format!("{thread} {number}")).unwrap();
                }
            })
        })
        .collect();
    let mut next = [0; 4];
    for _ in 0..400 {
        let ClientEvent::Text(received) = fixture.next_event(&mut client) else {
            panic!("not text")
        };
        let (thread, number) = received.split_once(' ').unwrap();
        let next = &mut next[thread.parse::<usize>().unwrap()];
        assert_eq!(number, next.to_string());
        *next += 1;
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_service_that_is_gone_is_closed() {
    let fixture = Fixture::new(TestHandler::echo());
    let sender = fixture.service.sender();
    let nobody = ConnectionId::from_bits(u64::MAX);
    assert_eq!(sender.send(nobody, "x"), Err(SenderError::Closed), "there is no such worker");
    let waiting = fixture.service.sender();
    drop(fixture);
    assert_eq!(sender.publish("t", "x"), Err(SenderError::Closed));
    assert_eq!(waiting.try_send(ConnectionId::from_bits(0), "x"), Err(SenderError::Closed));
}

#[test]
fn a_burst_is_taken_over_several_turns() {
    let mut fixture =
        Fixture::with(TestHandler::echo(), |options| options.sender_messages_per_turn = 2);
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    let sender = fixture.service.sender();
    for number in 0..10 {
        sender.send(id, &*number.to_string()).unwrap();
    }
    fixture.turn();
    let sent = fixture.service.stats().messages_sent;
    assert!(sent <= 2, "{sent} in one turn");
    for number in 0..10 {
        assert_eq!(fixture.next_event(&mut client), text(&number.to_string()));
    }
    fixture.advance_time(Duration::from_millis(100));
}
