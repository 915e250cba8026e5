//! Topics: which connections get a publication, and in which order.

use std::sync::Arc;

use windlass_server::{CloseCode, OutMessage, SubscribeError};
use windlass_ws::deflate::DeflateConfig;

use crate::fixture::{ClientEvent, Fixture, TestHandler, text};

fn chat() -> TestHandler {
    TestHandler::on_message(|connection, data, message| {
        _ = connection.publish_to_others(&data.path, message.to_out())
    })
    .on_open(|connection, data| assert!(connection.subscribe(&data.path).unwrap()))
}

#[test]
fn a_publication_reaches_all_but_its_publisher() {
    let mut fixture = Fixture::new(chat());
    let (mut a, mut b, mut c) =
        (fixture.connect("/x"), fixture.connect("/x"), fixture.connect("/x"));
    let mut other = fixture.connect("/y");
    a.send("one");
    a.send("two");
    b.send("three");
    let mut received = [0; 3].map(|_| fixture.next_event(&mut c));
    received.sort_by_key(|received| format!("{received:?}"));
    assert_eq!(received, [text("one"), text("three"), text("two")]);
    assert_eq!(
        [fixture.next_event(&mut b), fixture.next_event(&mut b)],
        [text("one"), text("two")]
    );
    assert_eq!(fixture.next_event(&mut a), text("three"));
    fixture.expect_nothing(&mut a);
    fixture.expect_nothing(&mut b);
    fixture.expect_nothing(&mut other);
    assert_eq!(fixture.service.stats().published, 3);
    assert_eq!(fixture.service.stats().messages_sent, 6);
}

#[test]
fn a_publication_to_all_keeps_its_order_for_the_publisher() {
    let mut fixture = Fixture::new(
        TestHandler::on_message(|connection, _, message| {
            connection.send("before").unwrap();
            assert_eq!(connection.publish("t", "news"), 1);
            connection.reply_in_place(message).unwrap();
            assert_eq!(connection.publish("t", "more news"), 1);
            connection.send("after").unwrap();
            assert_eq!(connection.publish_to_others("t", "not for me"), 0);
        })
        .on_open(|connection, _| {
            assert!(connection.subscribe("t").unwrap() && !connection.subscribe("t").unwrap())
        }),
    );
    let mut client = fixture.connect("/");
    client.send("reply");
    client.send("reply");
    for _ in 0..2 {
        let received = [(); 5].map(|()| fixture.next_event(&mut client));
        assert_eq!(received, ["before", "news", "reply", "more news", "after"].map(text));
    }
    fixture.expect_nothing(&mut client);
}

#[test]
fn subscriptions_apply_from_call_to_call() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    fixture.with_hub(move |hub| {
        assert_eq!(hub.publish("t", "nobody hears it"), 0);
        assert!(hub.subscribe(id, "t").unwrap() && !hub.subscribe(id, "t").unwrap());
        assert_eq!(hub.publish("t", "one"), 1);
        assert!(hub.unsubscribe(id, "t") && !hub.unsubscribe(id, "t"));
        assert_eq!(hub.publish("t", "two"), 0);
        assert!(hub.subscribe(id, "t").unwrap());
        assert_eq!(hub.publish("t", "three"), 1);
        hub.send(id, "four").unwrap();
        assert_eq!(hub.publish("t", "five"), 1);
        assert_eq!((hub.subscribers("t"), hub.subscribers("u")), (1, 0));
        hub.close(id, CloseCode::NORMAL, "").unwrap();
        assert_eq!(hub.publish("t", "six"), 1, "it is there, but takes no more");
    });
    let received = [(); 5].map(|()| fixture.next_event(&mut client));
    let close = ClientEvent::Close(Some(1000), String::new());
    assert_eq!(received, [text("one"), text("three"), text("four"), text("five"), close]);
}

#[test]
fn a_new_subscriber_does_not_get_earlier_publications() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let (mut a, mut b) = (fixture.connect("/"), fixture.connect("/"));
    let ids = fixture.ids();
    fixture.with_hub(move |hub| {
        assert!(hub.subscribe(ids[0], "t").unwrap());
        assert_eq!(hub.publish("t", "one"), 1);
        assert!(hub.subscribe(ids[1], "t").unwrap());
        assert_eq!(hub.publish("t", "two"), 2);
        assert!(hub.unsubscribe(ids[0], "t"));
        assert_eq!(hub.publish("t", "three"), 1);
    });
    assert_eq!([(); 2].map(|()| fixture.next_event(&mut a)), ["one", "two"].map(text));
    assert_eq!([(); 2].map(|()| fixture.next_event(&mut b)), ["two", "three"].map(text));
    fixture.expect_nothing(&mut a);
    fixture.expect_nothing(&mut b);
}

#[test]
fn topics_are_deleted_with_their_last_subscriber() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let client = fixture.connect("/");
    let _other = fixture.connect("/other");
    let ids = fixture.ids();
    fixture.with_hub(move |hub| {
        for topic in 0..100 {
            assert!(hub.subscribe(ids[0], &topic.to_string()).unwrap());
        }
        assert!(hub.subscribe(ids[1], "7").unwrap());
        assert_eq!(hub.stats().topics, 100);
        for topic in 0..50 {
            assert!(hub.unsubscribe(ids[0], &topic.to_string()));
        }
        assert_eq!(hub.stats().topics, 51);
        // The publication is delivered although its last receiver leaves in the same turn.
        assert_eq!(hub.publish("60", "x"), 1);
    });
    drop(client);
    fixture.until_event("close / Lost");
    assert_eq!(fixture.service.stats().topics, 1);
}

#[test]
fn a_batch_without_receivers_is_not_delivered_to_others() {
    // The last subscriber of a topic closes in the turn of the publication. The slot of its topic
    // is then used by another topic.
    let mut fixture = Fixture::new(TestHandler::echo().on_close(|hub, data, _| {
        if data.path == "/gone" {
            hub.publish("old", "from the closed one");
        }
    }));
    let gone = fixture.connect("/gone");
    let mut stays = fixture.connect("/");
    let ids = fixture.ids();
    let (first, second) = (ids[0], ids[1]);
    fixture.with_hub(move |hub| assert!(hub.subscribe(first, "old").unwrap()));
    drop(gone);
    fixture.until_event("close /gone Lost");
    fixture.with_hub(move |hub| assert!(hub.subscribe(second, "new").unwrap()));
    fixture.expect_nothing(&mut stays);
}

#[test]
fn a_connection_leaves_its_topics_when_it_closes() {
    let mut fixture = Fixture::new(chat());
    let (a, mut b) = (fixture.connect("/x"), fixture.connect("/x"));
    drop(a);
    fixture.until_event("close /x Lost");
    assert_eq!(fixture.with_hub(|hub| hub.publish("/x", "one")), 1);
    assert_eq!(fixture.next_event(&mut b), text("one"));
    b.close(1000, "");
    drop(b);
    fixture.until_event("close /x Peer 1000 \"\"");
    assert_eq!(fixture.with_hub(|hub| hub.publish("/x", "two")), 0);
}

#[test]
fn long_batches_are_delivered_in_parts() {
    let mut fixture = Fixture::new(chat());
    let mut client = fixture.connect("/x");
    let payload = vec![9; 10_000];
    let sent = payload.clone();
    fixture.with_hub(move |hub| {
        for _ in 0..40 {
            assert_eq!(hub.publish("/x", &sent[..]), 1);
        }
    });
    for _ in 0..40 {
        assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(payload.clone()));
    }
}

#[test]
fn receivers_get_compressed_frames_if_they_can_read_them() {
    let config = DeflateConfig::DEFAULT;
    let mut fixture = Fixture::with(chat(), |options| options.deflate = Some(config));
    let mut plain = fixture.connect("/x");
    let mut packed = fixture.connect_with("/x", Some(&config));
    let mut publisher = fixture.connect_with("/x", Some(&config));
    let long = "so long ".repeat(1000);
    let others = long.clone();
    publisher.send("short");
    publisher.send(&*long);
    for client in [&mut plain, &mut packed] {
        assert_eq!([(); 2].map(|()| fixture.next_event(client)), [text("short"), text(&long)]);
    }
    assert!(
        packed.read_bytes < 200 && plain.read_bytes > 8000,
        "{} {}",
        packed.read_bytes,
        plain.read_bytes
    );
    let ids = fixture.ids();
    let prepared = windlass_server::Prepared::new(OutMessage::binary(&[5; 3000]));
    fixture.with_hub(move |hub| {
        for id in ids {
            hub.send(id, &*others).unwrap();
            hub.send_prepared(id, &prepared).unwrap();
        }
    });
    for client in [&mut plain, &mut packed, &mut publisher] {
        assert_eq!(
            [(); 2].map(|()| fixture.next_event(client)),
            [text(&long), ClientEvent::Binary(vec![5; 3000])]
        );
    }
    assert!(publisher.read_bytes < 300, "{}", publisher.read_bytes);
}

#[test]
fn a_name_has_a_maximum_length() {
    for (configured, max) in [(None, 256), (Some(3), 3)] {
        let mut fixture = Fixture::with(TestHandler::echo(), |options| {
            options.topic_len_max = configured.unwrap_or(options.topic_len_max);
        });
        let mut client = fixture.connect("/");
        let id = fixture.ids()[0];
        fixture.with_hub(move |hub| {
            let (fits, long) = ("n".repeat(max), "n".repeat(max + 1));
            assert_eq!(hub.subscribe(id, &long), Err(SubscribeError::TooLong));
            assert_eq!(hub.subscribe(id, &fits), Ok(true));
            assert_eq!(hub.subscribe(id, "$windlass/status"), Err(SubscribeError::Reserved));
            assert_eq!((hub.publish(&long, "nobody"), hub.publish(&fits, "news")), (0, 1));
            assert!(!hub.unsubscribe(id, &long) && hub.stats().topics == 1);
        });
        assert_eq!(fixture.next_event(&mut client), text("news"));
    }
}

#[test]
fn a_topic_keeps_the_name_that_its_first_subscriber_shares() {
    let names: [Arc<str>; 2] = ["shared".into(), "shared".into()];
    let [first, second] = names.clone();
    let mut fixture = Fixture::new(TestHandler::echo().on_open(move |connection, data| {
        let name = if data.path == "/1" { &first } else { &second };
        assert_eq!(connection.subscribe_shared(name), Ok(true));
        assert_eq!(connection.subscribe_shared(name), Ok(false));
    }));
    let (one, _two) = (fixture.connect("/1"), fixture.connect("/2"));
    // The test and the handler have one each.
    let counts = || names.each_ref().map(Arc::strong_count);
    assert!(counts()[0] > 2 && counts()[1] == 2, "{:?}", counts());
    assert_eq!(fixture.with_hub(|hub| hub.publish("shared", "x")), 2);
    drop(one);
    fixture.until_event("close /1 Lost");
    assert!(counts()[0] > 2, "the topic still has a subscriber");
}
