//! Receivers that do not read: the messages that they get, and those that are dropped.

use windlass_server::{SendError, SlowConsumerPolicy};

use crate::fixture::{Client, ClientEvent, Fixture, TestHandler};

const LEN: usize = 64 << 10;

fn fixture(slow: SlowConsumerPolicy) -> (Fixture, Client) {
    let mut fixture = Fixture::with(TestHandler::on_message(|_, _, _| {}), |options| {
        options.slow = slow;
        options.receiver_buffer_max = 4 * LEN;
    });
    let client = fixture.connect("/");
    let id = fixture.ids()[0];
    fixture.with_hub(move |hub| assert!(hub.subscribe(id, "t").unwrap()));
    (fixture, client)
}

fn message(number: u32) -> Vec<u8> {
    let mut bytes = vec![number as u8; LEN];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Publishes until this many messages were dropped. Returns the number published.
fn publish_until_dropped(fixture: &mut Fixture, count: u64) -> u32 {
    for number in 0.. {
        fixture.with_hub(move |hub| hub.publish("t", &message(number)[..]));
        fixture.settle();
        if fixture.service.stats().dropped >= count {
            return number + 1;
        }
        assert!(number < 10_000, "nothing is ever dropped");
    }
    unreachable!()
}

/// Returns the numbers of the messages that a client receives, of which this is the last. None may
/// follow.
fn numbers(fixture: &mut Fixture, client: &mut Client, last: u32) -> Vec<u32> {
    let mut numbers = Vec::new();
    while numbers.last() != Some(&last) {
        match fixture.next_event(client) {
            ClientEvent::Binary(bytes) => {
                let number = u32::from_be_bytes(*bytes.first_chunk().unwrap());
                assert_eq!(bytes, message(number), "no message is torn");
                numbers.push(number);
            }
            other => panic!("{other:?}"),
        }
    }
    fixture.expect_nothing(client);
    numbers
}

#[test]
fn drop_newest_keeps_the_oldest_messages() {
    let (mut fixture, mut client) = fixture(SlowConsumerPolicy::DropNewest);
    let id = fixture.ids()[0];
    let (mut kept, mut dropped) = (Vec::new(), 0);
    let mut published = 0..10_000;
    while dropped < 10 {
        let number = published.next().expect("something is dropped");
        fixture.with_hub(move |hub| hub.publish("t", &message(number)[..]));
        fixture.settle();
        match fixture.service.stats().dropped {
            // The kernel may take more messages later, when it has time.
            now if now == dropped => kept.push(number),
            now => dropped = now,
        }
    }
    for number in published {
        match fixture.with_hub(move |hub| hub.send(id, &message(number)[..])) {
            Ok(()) => kept.push(number),
            Err(error) => {
                assert_eq!(error, SendError::Full);
                break;
            }
        }
    }
    let stats = fixture.service.stats();
    assert_eq!(stats.dropped, dropped + 1);
    assert_eq!(stats.messages_sent, kept.len() as u64);
    assert!(fixture.with_hub(move |hub| hub.buffered(id)) <= 5 * LEN);
    assert_eq!(kept[..4], [0, 1, 2, 3], "as many as the buffer holds");
    assert_eq!(numbers(&mut fixture, &mut client, *kept.last().unwrap()), kept);
    // A client that reads again gets messages again.
    fixture.with_hub(|hub| hub.publish("t", &message(77)[..]));
    assert_eq!(numbers(&mut fixture, &mut client, 77), [77]);
}

#[test]
fn drop_oldest_keeps_the_newest_messages() {
    let (mut fixture, mut client) = fixture(SlowConsumerPolicy::DropOldest);
    let id = fixture.ids()[0];
    let published = publish_until_dropped(&mut fixture, 50);
    assert_eq!(fixture.with_hub(move |hub| hub.send(id, &message(published)[..])), Ok(()));
    assert!(fixture.with_hub(move |hub| hub.buffered(id)) <= 6 * LEN);
    // The last one was not dropped.
    let received = numbers(&mut fixture, &mut client, published);
    assert!(received.is_sorted());
    assert_eq!(received[0], 0);
    let stats = fixture.service.stats();
    assert_eq!(
        u64::from(published) + 1 - stats.dropped,
        received.len() as u64,
        "each is sent or counted"
    );
    assert_eq!(stats.messages_sent, received.len() as u64);
    // The backlog is empty, and messages take the fast path again.
    fixture.with_hub(|hub| hub.publish("t", &message(77)[..]));
    assert_eq!(numbers(&mut fixture, &mut client, 77), [77]);
    assert_eq!(fixture.with_hub(move |hub| hub.buffered(id)), 0);
}

#[test]
fn evict_closes_the_slow_receiver() {
    let (mut fixture, mut client) = fixture(SlowConsumerPolicy::Evict);
    let mut other = fixture.connect("/other");
    let ids = fixture.ids();
    fixture.with_hub(move |hub| assert!(hub.subscribe(ids[1], "u").unwrap()));
    let published = publish_until_dropped(&mut fixture, 1);
    let id = fixture.ids()[0];
    fixture.until_event("close / Evicted");
    assert_eq!(fixture.with_hub(move |hub| hub.send(id, "x")), Err(SendError::Closed));
    assert_eq!(fixture.with_hub(|hub| hub.publish("t", "x")), 0);
    fixture.with_hub(|hub| hub.publish("u", "others are served"));
    assert_eq!(fixture.next_event(&mut other), ClientEvent::Text("others are served".into()));
    assert_eq!(fixture.service.stats().evicted, 1);
    let mut count = 0;
    let end = loop {
        match fixture.next_event(&mut client) {
            ClientEvent::Binary(_) => count += 1,
            other => break other,
        }
    };
    assert!(count < published);
    assert!(matches!(end, ClientEvent::End(Some(_))), "{end:?}");
}

/// The longest message that is accepted fills `receiver_buffer_max` with its header (issue 13).
#[test]
fn a_frame_that_does_not_fit_is_rejected_even_when_nothing_waits() {
    for slow in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest] {
        let (mut fixture, mut client) = fixture(slow);
        let id = fixture.ids()[0];
        fixture.with_hub(move |hub| {
            assert_eq!(hub.send(id, &vec![3; 4 * LEN - 9][..]), Err(SendError::Full));
            assert_eq!(hub.publish("t", &vec![3; 100 * LEN][..]), 1);
        });
        fixture.settle();
        assert_eq!(
            (fixture.service.stats().dropped, fixture.with_hub(move |hub| hub.buffered(id))),
            (2, 0),
            "{slow:?}"
        );
        fixture.with_hub(move |hub| hub.send(id, &vec![4; 4 * LEN - 10][..])).unwrap();
        assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(vec![4; 4 * LEN - 10]));
        fixture.with_hub(|hub| hub.publish("t", &vec![5; 4 * LEN - 10][..]));
        assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(vec![5; 4 * LEN - 10]));
        assert_eq!(fixture.service.stats().dropped, 2);
    }
}

#[test]
fn a_frame_that_does_not_fit_evicts_with_that_policy() {
    let (mut fixture, mut client) = fixture(SlowConsumerPolicy::Evict);
    let id = fixture.ids()[0];
    assert_eq!(
        fixture.with_hub(move |hub| hub.send(id, &vec![3; 4 * LEN][..])),
        Err(SendError::Full)
    );
    fixture.until_event("close / Evicted");
    assert!(matches!(fixture.next_event(&mut client), ClientEvent::End(_)));
    assert_eq!(fixture.service.stats().evicted, 1);
}

/// A connection's own message is rejected too. The connection is not slow, so it is not evicted.
#[test]
fn a_connections_own_message_that_does_not_fit_is_rejected() {
    for slow in
        [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest, SlowConsumerPolicy::Evict]
    {
        let handler = TestHandler::on_message(|connection, _, _| {
            assert_eq!(connection.send(&vec![1; 4 * LEN][..]), Err(SendError::Full));
            connection.send("and goes on").unwrap();
        });
        let mut fixture = Fixture::with(handler, |options| {
            options.slow = slow;
            options.receiver_buffer_max = 4 * LEN;
        });
        let mut client = fixture.connect("/");
        client.send("go");
        assert_eq!(
            fixture.next_event(&mut client),
            ClientEvent::Text("and goes on".into()),
            "{slow:?}"
        );
    }
}

#[test]
fn a_buffer_too_small_for_the_longest_message_is_rejected_at_start() {
    let mut options = windlass_server::Options::new();
    options.limits.message_max = 5000;
    options.receiver_buffer_max = 5009;
    let mut reactor =
        windlass::Reactor::builder().backend(crate::backend::chosen()).build().unwrap();
    let error = windlass_server::Service::new(TestHandler::echo(), &options, &mut reactor)
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    let text = error.to_string();
    assert!(
        text.contains("receiver_buffer_max") && text.contains("5009") && text.contains("5010"),
        "{text}"
    );
    let address = "127.0.0.1:0".parse().unwrap();
    let error = windlass_server::Server::new(options.clone(), |_| TestHandler::echo())
        .listen(address)
        .start()
        .map(drop);
    assert_eq!(error.unwrap_err().to_string(), text);
    options.receiver_buffer_max = 5010;
    windlass_server::Service::new(TestHandler::echo(), &options, &mut reactor).unwrap();
}

/// The output of this receiver is below the watermarks while its backlog is not empty. The backlog
/// is sent after an event, not by polling.
#[test]
fn a_backlog_does_not_keep_the_loop_awake() {
    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.slow = SlowConsumerPolicy::DropOldest;
        options.receiver_buffer_max = 8 * LEN;
        options.limits.message_max = LEN;
    });
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    // Sends until more bytes wait than the low watermark, and fewer than the high one.
    let (mut sent, large) = (0, vec![7; 3 * LEN]);
    while fixture.with_hub(move |hub| hub.buffered(id)) < 2 * LEN {
        fixture.with_hub(move |hub| hub.send(id, &message(sent)[..])).unwrap();
        fixture.settle();
        sent += 1;
    }
    let expected = large.clone();
    fixture.with_hub(move |hub| hub.send(id, &large[..])).unwrap();
    fixture.settle();
    let before = fixture.reactor.stats().events;
    for _ in 0..100 {
        fixture.turn();
    }
    let events = fixture.reactor.stats().events - before;
    assert!(events < 10, "{events} events, and nothing happens");
    for number in 0..sent {
        assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(message(number)));
    }
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(expected));
    assert_eq!(fixture.service.stats().dropped, 0);
}

/// A receiver that does not read holds at most its buffer, whatever its own echoes and the messages
/// of others add up to.
#[test]
fn waiting_bytes_never_exceed_the_buffer() {
    const MAX: usize = 64 << 10;
    for slow in [SlowConsumerPolicy::DropNewest, SlowConsumerPolicy::DropOldest] {
        let mut fixture = Fixture::with(TestHandler::echo(), |options| {
            options.slow = slow;
            options.receiver_buffer_max = MAX;
            options.limits.message_max = 40 << 10;
        });
        let mut client = fixture.connect("/");
        let id = fixture.ids()[0];
        fixture.with_hub(move |hub| assert!(hub.subscribe(id, "t").unwrap()));
        let frame = client.frame(&vec![9; 40 << 10][..]);
        let mut unsent = Vec::new();
        for round in 0..3000_usize {
            if unsent.is_empty() {
                unsent.clone_from(&frame);
            }
            if let Ok(count) = std::io::Write::write(&mut client.socket, &unsent) {
                unsent.drain(..count);
            }
            fixture.with_hub(move |hub| {
                let message = vec![round as u8; (round * 977) % (40 << 10)];
                let _ = hub.send(id, &message[..]);
                hub.publish("t", &message[..]);
                hub.publish("t", &message[..]);
                let waiting = hub.buffered(id);
                assert!(waiting <= MAX, "{slow:?}, round {round}: {waiting} bytes wait");
            });
            let waiting = fixture.with_hub(move |hub| hub.buffered(id));
            assert!(waiting <= MAX, "{slow:?}, round {round}: {waiting} bytes wait after the turn");
        }
        assert!(fixture.service.stats().dropped > 100, "{slow:?}: it was full");
    }
}

#[test]
fn a_handler_that_sends_too_much_gets_an_error() {
    let handler = TestHandler::on_message(|connection, _, _| {
        let mut sent = 0;
        let rejection = loop {
            match connection.send(&message(sent)[..]) {
                Ok(()) => sent += 1,
                Err(rejection) => break rejection,
            }
            assert!(sent < 100, "it is never rejected");
        };
        assert_eq!((rejection, sent), (SendError::Full, 4));
        // Short messages still fit.
        connection.ping(b"still here").unwrap();
    });
    let mut fixture = Fixture::with(handler, |options| options.receiver_buffer_max = 4 * LEN + 100);
    let mut client = fixture.connect("/");
    client.send("go");
    for number in 0..4 {
        assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(message(number)));
    }
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Ping(b"still here".to_vec()));
}

#[test]
fn received_messages_wait_while_their_answers_wait() {
    // One read brings many short messages with long answers, and the client does not read.
    let handler = TestHandler::on_message(|connection, data, _| {
        let number: u32 = data.path.parse().unwrap();
        data.path = (number + 1).to_string();
        let _ = connection.send(&message(number)[..]);
    })
    .on_upgrade(|_| {
        Ok(windlass_server::http::Accept::new(crate::fixture::ConnData {
            path: "0".into(),
            on_drop: None,
        }))
    });
    let mut fixture = Fixture::with(handler, |options| options.receiver_buffer_max = 16 << 20);
    let mut client = fixture.connect("/");
    let frames: Vec<u8> = (0..1000).flat_map(|_| client.frame("x")).collect();
    client.write(&frames);
    fixture.settle();
    let asked = fixture.service.stats().messages_received;
    let received = numbers(&mut fixture, &mut client, 999);
    assert_eq!(received, (0..1000).collect::<Vec<_>>());
    assert!(asked < 1000, "all was answered at once");
    assert_eq!(fixture.service.stats().dropped, 0);
}

#[test]
fn no_message_overtakes_the_backlog() {
    let (mut fixture, mut client) = fixture(SlowConsumerPolicy::DropOldest);
    let id = fixture.ids()[0];
    let mut published = publish_until_dropped(&mut fixture, 10);
    let mut received = Vec::new();
    // The client stops and continues. Each turn sends a message, also turns in which the stream has
    // room while the backlog is not empty.
    for round in 0..600 {
        let number = published;
        published += 1;
        fixture.with_hub(move |hub| match number % 2 {
            0 => _ = hub.publish("t", &message(number)[..]),
            _ => hub.send(id, &message(number)[..]).unwrap(),
        });
        if round % 60 > 40 {
            while let Some(ClientEvent::Binary(bytes)) = client.poll() {
                received.push(u32::from_be_bytes(*bytes.first_chunk().unwrap()));
            }
        }
    }
    if received.last() != Some(&(published - 1)) {
        received.extend(numbers(&mut fixture, &mut client, published - 1));
    }
    assert!(received.is_sorted(), "{received:?}");
    assert_eq!(u64::from(published) - fixture.service.stats().dropped, received.len() as u64);
}
