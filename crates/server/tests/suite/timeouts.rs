//! Timeouts, with a manual clock.

use std::{io::Write, net::TcpStream, time::Duration};

use windlass_server::{CloseCode, Rate, http::Page};

use crate::fixture::{Client, ClientEvent, Fixture, TestHandler, text};

const SECOND: Duration = Duration::from_secs(1);

/// Returns everything that a client without a WebSocket gets until the connection ends.
fn all(fixture: &mut Fixture, socket: TcpStream) -> String {
    let mut client = Client::of(socket, "/", None);
    fixture.until(|_| client.raw_end())
}

#[test]
fn handshakes_end_at_the_handshake_timeout() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let silent = TcpStream::connect(fixture.address).unwrap();
    let mut slow = TcpStream::connect(fixture.address).unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    fixture.until_received("GET / HTTP/1.1\r\n".len());
    fixture.until(|fixture| (fixture.service.stats().connections == 2).then_some(()));
    for _ in 0..8 {
        fixture.advance_time(SECOND);
        slow.write_all(b"X").unwrap();
    }
    assert_eq!(fixture.service.stats().connections, 2, "there is time yet");
    fixture.advance_time(5 * SECOND);
    assert_eq!(all(&mut fixture, silent), "", "who has asked nothing is told nothing");
    let answer = all(&mut fixture, slow);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    fixture.until(|fixture| (fixture.service.stats().connections == 0).then_some(()));
    let stats = fixture.service.stats();
    assert_eq!((stats.handshake_timeouts, stats.opened), (2, 0));
}

#[test]
fn a_visitor_of_pages_has_time_for_each() {
    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.routes = options.routes.clone().page("/", Page::new("text/plain", "hello"));
    });
    let mut visitor = TcpStream::connect(fixture.address).unwrap();
    for number in 1..=4 {
        visitor.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        fixture.until(|fixture| (fixture.service.stats().requests == number).then_some(()));
        fixture.advance_time(6 * SECOND);
    }
    assert_eq!(fixture.service.stats().connections, 1);
    fixture.advance_time(6 * SECOND);
    let answers = all(&mut fixture, visitor);
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 4, "{answers}");
    assert!(!answers.contains("408"), "nothing was asked when the time was over: {answers}");
}

/// A client could take an unrequested response for the answer to its next request (issue 13).
#[test]
fn a_client_whose_request_came_in_pieces_gets_no_timeout_response() {
    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.routes = options.routes.clone().page("/", Page::new("text/plain", "hello"));
    });
    let mut visitor = TcpStream::connect(fixture.address).unwrap();
    for piece in ["GET / HTTP/1.1\r\nHo", "st: localhost\r\n\r\n"] {
        visitor.write_all(piece.as_bytes()).unwrap();
        fixture.until_received(piece.len());
    }
    fixture.advance_time(15 * SECOND);
    let answers = all(&mut fixture, visitor);
    assert!(
        answers.starts_with("HTTP/1.1 200 OK") && answers.matches("HTTP/1.1").count() == 1,
        "{answers}"
    );
    assert_eq!(fixture.service.stats().handshake_timeouts, 0);
}

#[test]
fn a_silent_peer_is_asked_and_stays_if_it_answers() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    for _ in 0..5 {
        fixture.advance_time(29 * SECOND);
        fixture.expect_nothing(&mut client);
        fixture.advance_time(3 * SECOND);
        assert_eq!(fixture.next_event(&mut client), ClientEvent::Ping(Vec::new()));
        fixture.until_event("pong ");
        fixture.events.borrow_mut().clear();
    }
    assert_eq!(fixture.service.stats().pings, 5);
}

#[test]
fn a_peer_that_does_not_answer_is_given_up() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    client.is_mute = true;
    fixture.advance_time(74 * SECOND);
    assert_eq!(
        [(); 2].map(|()| fixture.next_event(&mut client)),
        [ClientEvent::Ping(Vec::new()), ClientEvent::Ping(Vec::new())]
    );
    fixture.expect_nothing(&mut client);
    fixture.advance_time(4 * SECOND);
    assert_eq!(
        fixture.next_event(&mut client),
        ClientEvent::Close(Some(1001), "idle timeout: no data received".into())
    );
    assert_eq!(fixture.next_event(&mut client), ClientEvent::End(None));
    drop(client);
    fixture.until_event("close / Idle");
    assert_eq!(fixture.service.stats().idle_timeouts, 1);
}

#[test]
fn any_received_byte_resets_the_idle_timeout() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    let frame = client.frame("a rather long message that comes byte by byte");
    for byte in &frame {
        client.write(&[*byte]);
        fixture.until_received(1);
        fixture.advance_time(20 * SECOND);
    }
    assert_eq!(
        fixture.next_event(&mut client),
        text("a rather long message that comes byte by byte")
    );
    assert_eq!(fixture.service.stats().pings, 0);
}

#[test]
fn connections_end_at_the_maximum_lifetime() {
    let mut fixture =
        Fixture::with(TestHandler::echo(), |options| options.lifetime_max = Some(60 * SECOND));
    let mut client = fixture.connect("/");
    for _ in 0..6 {
        fixture.advance_time(9 * SECOND);
        client.send("still here");
        assert_eq!(fixture.next_event(&mut client), text("still here"));
    }
    fixture.advance_time(9 * SECOND);
    assert_eq!(
        fixture.next_event(&mut client),
        ClientEvent::Close(Some(1001), "connection lifetime exceeded".into())
    );
    drop(client);
    fixture.until_event("close / Lifetime 1001 \"connection lifetime exceeded\"");
}

#[test]
fn an_unanswered_close_ends_at_the_close_timeout() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let mut client = fixture.connect("/");
    client.is_mute = true;
    let id = fixture.ids()[0];
    fixture.with_hub(move |hub| hub.close(id, CloseCode::NORMAL, "bye").unwrap());
    assert_eq!(fixture.next_event(&mut client), ClientEvent::Close(Some(1000), "bye".into()));
    fixture.advance_time(4 * SECOND);
    // Further messages of the client do not extend its time.
    client.send_raw_after_close();
    fixture.advance_time(500 * SECOND / 1000);
    assert_eq!(fixture.service.stats().connections, 1);
    fixture.advance_time(3 * SECOND);
    assert_eq!(fixture.service.stats().connections, 0);
    fixture.until_event("close / Local");
}

#[test]
fn many_connections_expire_at_the_idle_timeout() {
    // One scan covers 8192 slots, and a test should not have as many descriptors. A unit test in
    // `state/timeouts.rs` scans fewer at a time.
    let mut fixture =
        Fixture::with(TestHandler::echo(), |options| options.idle_timeout = Some(10 * SECOND));
    let mut clients: Vec<Client> = (0..50).map(|_| fixture.connect("/")).collect();
    for client in &mut clients {
        client.is_mute = true;
    }
    fixture.advance_time(13 * SECOND);
    for client in &mut clients {
        assert!(matches!(fixture.next_event(client), ClientEvent::Close(Some(1001), _)));
    }
    assert_eq!(fixture.service.stats().idle_timeouts, 0, "they are counted when they have gone");
    drop(clients);
    fixture.until(|fixture| (fixture.service.stats().idle_timeouts == 50).then_some(()));
}

#[test]
fn a_connection_that_is_not_read_from_is_not_idle() {
    let handler = TestHandler::on_message(|connection, _, message| {
        connection.pause();
        let _ = connection.reply_in_place(message);
    });
    let mut fixture = Fixture::with(handler, |options| options.ping_interval = None);
    let mut client = fixture.connect("/");
    let id = fixture.ids()[0];
    client.send("pause");
    assert_eq!(fixture.next_event(&mut client), text("pause"));
    fixture.advance_time(200 * SECOND);
    assert_eq!(fixture.service.stats().connections, 1);
    // The idle time starts again when reading resumes.
    assert!(fixture.with_hub(move |hub| hub.resume(id)));
    fixture.advance_time(70 * SECOND);
    fixture.expect_nothing(&mut client);
    fixture.advance_time(10 * SECOND);
    assert!(matches!(fixture.next_event(&mut client), ClientEvent::Close(Some(1001), _)));
}

#[test]
fn a_paused_connection_receives_the_answer_to_its_close() {
    let handler = TestHandler::on_message(|connection, _, message| {
        connection.pause();
        if message.as_str() == Some("close") {
            connection.close(CloseCode::NORMAL, "").unwrap();
        }
    });
    let mut fixture = Fixture::new(handler);
    let (mut a, mut b) = (fixture.connect("/a"), fixture.connect("/b"));
    let ids = fixture.ids();
    a.send("close");
    b.send("pause");
    fixture.until(|fixture| (fixture.service.stats().messages_received == 2).then_some(()));
    fixture.with_hub(move |hub| hub.close(ids[1], CloseCode::NORMAL, "").unwrap());
    for client in [&mut a, &mut b] {
        assert_eq!(fixture.next_event(client), ClientEvent::Close(Some(1000), String::new()));
        assert_eq!(fixture.next_event(client), ClientEvent::End(None));
    }
    fixture.until_event("close /a Local 1000 \"\"");
    fixture.until_event("close /b Local 1000 \"\"");
}

#[test]
fn timeouts_work_without_a_custom_clock() {
    // This reactor uses the system's clock. The only thing that can wake its loop is the timeout of
    // an unfinished handshake.
    let mut reactor =
        windlass::Reactor::builder().backend(crate::backend::chosen()).build().unwrap();
    let mut options = windlass_server::Options::new();
    options.handshake_timeout = Duration::from_millis(80);
    let listener = options.listener().tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let service =
        windlass_server::Service::new(TestHandler::echo(), &options, &mut reactor).unwrap();
    service.listen(listener, &mut reactor).unwrap();
    let began = std::time::Instant::now();
    let _silent = TcpStream::connect(address).unwrap();
    while service.stats().handshake_timeouts == 0 {
        reactor.run_once(Some(20 * SECOND)).unwrap();
        assert!(began.elapsed() < 20 * SECOND, "nothing wakes the loop");
    }
    assert!(began.elapsed() >= Duration::from_millis(80));
}

/// The publish batch is delivered at the end of a turn. The Close frame of an expired connection
/// may be written before that.
#[test]
fn publications_before_the_end_of_the_lifetime_are_delivered() {
    let handler = TestHandler::on_message(|connection, _, message| match message.as_str() {
        Some("pause") => connection.pause(),
        _ => _ = connection.publish_to_others("news", message.to_out()),
    })
    .on_open(|connection, _| _ = connection.subscribe("news"));
    let mut fixture = Fixture::with(handler, |options| options.lifetime_max = Some(4 * SECOND));
    let mut listener = fixture.connect("/");
    fixture.advance_time(2 * SECOND);
    let mut speaker = fixture.connect("/");
    let (heard, spoken) = (fixture.ids()[0], fixture.ids()[1]);
    let (mut sent, mut is_open) = (0_u32, true);
    while is_open {
        let frames = [speaker.frame("pause"), speaker.frame(&*sent.to_string())].concat();
        speaker.write(&frames);
        // The last message of the round before, and the one that pauses.
        let received = 2 * u64::from(sent) + 1;
        fixture
            .until(|fixture| (fixture.service.stats().messages_received == received).then_some(()));
        fixture.move_clock(Duration::from_millis(100));
        // The speaker is called in this turn before a connection that the timeout scan finds later.
        // It publishes a message, which is delivered after that connection was called.
        is_open = fixture.with_hub(move |hub| hub.resume(spoken) && hub.is_open(heard));
        sent += u32::from(is_open);
        fixture.settle();
        assert!(sent < 1000, "its time is never over");
    }
    for number in 0..sent {
        assert_eq!(fixture.next_event(&mut listener), text(&number.to_string()), "of {sent}");
    }
    assert!(matches!(fixture.next_event(&mut listener), ClientEvent::Close(Some(1001), _)));
}

/// No clock of Linux that the reactor reads goes back. One that an application gives may.
#[test]
fn a_clock_that_jumps_ends_no_connection_early_and_gives_no_messages_for_nothing() {
    const HOUR: Duration = Duration::from_secs(3600);
    let mut fixture = Fixture::with(TestHandler::echo(), |options| {
        options.idle_timeout = Some(Duration::from_secs(10));
        options.ping_interval = None;
        options.rates.messages = Some(Rate::new(1, HOUR).with_burst(8));
    });
    let mut client = fixture.connect("/");
    let mut say = |fixture: &mut Fixture, number: u8| {
        client.send(number.to_string().as_str());
        fixture.next_event(&mut client)
    };
    for number in 0..4 {
        assert_eq!(say(&mut fixture, number), text(&number.to_string()));
        match number {
            0 => fixture.turn_clock_back(HOUR),
            1 => fixture.jump_clock(2 * HOUR),
            2 => fixture.turn_clock_back(2 * HOUR),
            _ => {}
        }
    }
    assert_eq!(fixture.service.stats().connections, 1);
    // A clock that goes on from there is one as before.
    let begin = fixture.service.stats().messages_received;
    fixture.advance_time(Duration::from_secs(5));
    assert_eq!(fixture.service.stats().connections, 1);
    // Four have been taken of eight, and at most two have come back in two hours.
    let mut more = 4;
    let closed = loop {
        match say(&mut fixture, more) {
            ClientEvent::Close(Some(1008), reason) => break reason,
            event => assert_eq!(event, text(&more.to_string())),
        }
        more += 1;
        assert!(more <= 10, "{more} messages");
    };
    assert!(closed.starts_with("too many messages"), "{closed}");
    assert!(fixture.service.stats().messages_received > begin);
}
