//! The closing handshake (RFC 6455 sections 5.5.1 and 7.1).

use windlass_ws::{CloseCode, End, FrameSendError, MessageRef};

use crate::fixture::{Handler, Seen, Session, close_payload, masked, plain, text, unmasked};

#[test]
fn the_peers_close_is_answered_with_the_same_and_ends_it() {
    for (payload, code, reason) in [
        (vec![], None, ""),
        (close_payload(1000, ""), Some(1000), ""),
        (close_payload(3000, &"r".repeat(123)), Some(3000), &*"r".repeat(123)),
    ] {
        let mut session = Session::server(Handler::Echo);
        session
            .feed(&[masked(0x81, b"bye"), masked(0x88, &payload), masked(0x81, b"late")].concat());
        assert_eq!(session.seen, [text("bye"), Seen::Close(code, reason.to_owned())]);
        assert_eq!(session.output, [plain(0x81, b"bye"), plain(0x88, &payload)].concat());
        assert_eq!(session.end, Some(End::Closed));
    }
}

#[test]
fn after_our_close_messages_come_until_the_peers() {
    let mut session = Session::server(Handler::Echo);
    let sent =
        session.engine.close(CloseCode::GOING_AWAY, "restart", &mut session.scratch).unwrap();
    assert_eq!(sent, plain(0x88, &close_payload(1001, "restart")));
    assert!(session.engine.is_closing());
    assert_eq!(session.engine.end(), None);
    let long = vec![7; 200];
    for (first, payload) in
        [(0x81, &b"still here"[..]), (0x89, b"ping"), (0x82, &long), (0x01, b"a"), (0x80, b"b")]
    {
        session.feed(&masked(first, payload));
    }
    let seen = [text("still here"), Seen::Ping(b"ping".to_vec()), Seen::Binary(long), text("ab")];
    assert_eq!(session.seen, seen, "everything still arrives");
    assert!(session.output.is_empty(), "nothing follows our Close frame: no echo, no pong");
    session.feed(&masked(0x88, &close_payload(1001, "")));
    assert_eq!(session.seen.last(), Some(&Seen::Close(Some(1001), String::new())));
    assert!(session.output.is_empty(), "and no second one");
    assert_eq!(session.end, Some(End::Closed));
}

#[test]
fn a_reply_after_a_close_in_the_same_pass_is_rejected() {
    for role in [Session::server as fn(Handler) -> Session, Session::client] {
        let mut session = role(Handler::Silent);
        let is_client =
            session.engine.send(MessageRef::Text(""), &mut session.scratch).unwrap().len() > 2;
        let make = if is_client { plain } else { masked };
        let mut input =
            [make(0x81, b"one"), make(0x82, b"two"), make(0x81, "drei ü".as_bytes())].concat();
        let mut pass = session.engine.process(&mut input, &mut session.scratch);
        let Some(windlass_ws::EngineEvent::Text(message)) = pass.next() else { panic!("no text") };
        let (_, mut outbox) = message.split();
        outbox.close(CloseCode::NORMAL, "").unwrap();
        assert_eq!(outbox.send(MessageRef::Text("x")), Err(FrameSendError::Closed));
        assert_eq!(outbox.close(CloseCode::NORMAL, ""), Err(FrameSendError::Closed));
        let Some(windlass_ws::EngineEvent::Binary(message)) = pass.next() else {
            panic!("no bytes")
        };
        assert_eq!(message.reply(), Err(FrameSendError::Closed));
        let Some(windlass_ws::EngineEvent::Text(message)) = pass.next() else { panic!("no text") };
        assert_eq!(message.reply(), Err(FrameSendError::Closed));
        assert!(pass.next().is_none());
        assert_eq!(pass.ping(b""), Err(FrameSendError::Closed));
        assert_eq!(pass.pong(b""), Err(FrameSendError::Closed));
        let outcome = pass.finish();
        assert_eq!(outcome.end, None, "the peer has not answered");
        let output: Vec<u8> = session.scratch.output(&outcome, &input).flatten().copied().collect();
        assert_eq!(unmasked(&output), [(0x88, close_payload(1000, ""))]);
    }
}

#[test]
fn invalid_close_codes_are_rejected_and_send_nothing() {
    let mut session = Session::server(Handler::Silent);
    let (engine, scratch) = (&mut session.engine, &mut session.scratch);
    assert_eq!(engine.ping(&[0; 126], scratch), Err(FrameSendError::TooLong));
    assert_eq!(engine.pong(&[0; 126], scratch), Err(FrameSendError::TooLong));
    assert_eq!(
        engine.close(CloseCode::NORMAL, &"x".repeat(124), scratch),
        Err(FrameSendError::TooLong)
    );
    for code in [0, 999, 1004, 1005, 1006, 1015, 2999, 5000] {
        assert_eq!(
            engine.close(CloseCode::new(code), "", scratch),
            Err(FrameSendError::BadCloseCode)
        );
    }
    assert!(!engine.is_closing());
    assert_eq!(engine.ping(&[1; 125], scratch).unwrap(), plain(0x89, &[1; 125]));
    assert_eq!(engine.close(CloseCode::NORMAL, &"x".repeat(123), scratch).unwrap().len(), 127);
}

#[test]
fn a_close_between_fragments_and_in_pieces_is_a_close() {
    let bytes = [masked(0x01, b"half"), masked(0x88, &close_payload(1000, "enough"))].concat();
    let session = Session::server(Handler::Echo).feed_all(bytes.chunks(3));
    assert_eq!(session.seen, [Seen::Close(Some(1000), "enough".to_owned())]);
    assert_eq!(session.output, plain(0x88, &close_payload(1000, "enough")));
    assert_eq!(session.engine.buffered(), 0);
}

#[test]
fn our_close_may_have_no_code() {
    let mut session = Session::server(Handler::Echo);
    assert_eq!(session.engine.close_without_code(&mut session.scratch), Ok(&[0x88, 0][..]));
    let again = session.engine.close_without_code(&mut session.scratch);
    assert_eq!(again, Err(FrameSendError::Closed));
    session.feed(&masked(0x88, b""));
    assert_eq!(session.end, Some(End::Closed));
    assert!(session.output.is_empty(), "the peer's Close frame is the answer");
}
