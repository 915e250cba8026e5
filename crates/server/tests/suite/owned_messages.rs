//! Messages that a handler has built, passed by value or by reference.

use std::{borrow::Cow, thread};

use windlass_server::{OutMessage, Prepared};

use crate::fixture::{ClientEvent, Fixture, TestHandler, text};

#[test]
fn strings_and_vectors_are_sent_as_they_are() {
    let mut fixture = Fixture::new(
        TestHandler::on_message(|connection, _, message| {
            let kept = vec![4, 5];
            let name = format!("<{}>", message.as_str().unwrap());
            connection.send(&name).unwrap();
            connection.send(Cow::from(&*name)).unwrap();
            connection.send(vec![1, 2, 3]).unwrap();
            connection.send(&kept).unwrap();
            connection.send(b"six").unwrap();
            assert_eq!(kept.len(), 2, "it was only looked at");
            assert_eq!(connection.publish("t", &name), 1);
            assert_eq!(connection.publish("t", name), 1);
        })
        .on_open(|connection, _| assert!(connection.subscribe("t").unwrap())),
    );
    let mut client = fixture.connect("/");
    client.send("one".to_owned());
    let bytes = |bytes: &[u8]| ClientEvent::Binary(bytes.to_vec());
    let expected = [
        text("<one>"),
        text("<one>"),
        bytes(&[1, 2, 3]),
        bytes(&[4, 5]),
        bytes(b"six"),
        text("<one>"),
        text("<one>"),
    ];
    assert_eq!([(); 7].map(|()| fixture.next_event(&mut client)), expected);
}

#[test]
fn owned_messages_go_by_name_and_from_other_threads() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    fixture.with_hub(move |hub| {
        assert!(hub.subscribe(id, "t").unwrap());
        hub.send(id, format!("sent {}", 1)).unwrap();
        assert_eq!(hub.publish("t", format!("published {}", 1)), 1);
    });
    let sender = fixture.service.sender();
    let thread = thread::spawn(move || {
        let kept = String::from("kept");
        sender.send(id, &kept).unwrap();
        sender.try_send(id, kept).unwrap();
        sender.publish("t", format!("published {}", 2)).unwrap();
        sender.try_publish("t", vec![7]).unwrap();
        sender.send_prepared(id, &Prepared::new(String::from("prepared"))).unwrap();
    });
    let expected = ["sent 1", "published 1", "kept", "kept", "published 2"].map(text);
    assert_eq!([(); 5].map(|()| fixture.next_event(&mut client)), expected);
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Binary(vec![7]));
    assert_eq!(fixture.next_event(&mut client), text("prepared"));
    thread.join().unwrap();
}

#[test]
fn messages_are_equal_by_kind_and_payload() {
    let owned: OutMessage<'static> = String::from("same").into();
    assert_eq!(owned, OutMessage::from("same"));
    assert_eq!(
        owned,
        Prepared::new("same").to_out(),
        "text that was validated elsewhere is the same text"
    );
    assert_ne!(owned, OutMessage::from(b"same"));
    assert_eq!(owned.clone().as_bytes(), b"same");
    assert_eq!(format!("{owned:?}"), "OutMessage { is_text: true, len: 4, .. }");
}
