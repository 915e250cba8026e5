//! Timeouts, by a clock of the test's.

use std::{io::Write, net::TcpStream, time::Duration};

use windlass_server::{CloseCode, http::Page};

use crate::bed::{Acts, Bed, Client, Got, text};

const SECOND: Duration = Duration::from_secs(1);

/// Everything that a raw connection is sent until its end.
fn all(bed: &mut Bed, socket: TcpStream) -> String {
    let mut client = Client::of(socket, "/", None);
    bed.until(|_| client.raw_end())
}

#[test]
fn a_handshake_has_its_time_and_no_more() {
    let mut bed = Bed::new(Acts::echo());
    let silent = TcpStream::connect(bed.address).unwrap();
    let mut slow = TcpStream::connect(bed.address).unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    bed.settle();
    for _ in 0..8 {
        bed.pass(SECOND);
        slow.write_all(b"X").unwrap();
    }
    assert_eq!(bed.service.stats().connections, 2, "there is time yet");
    bed.pass(5 * SECOND);
    assert_eq!(all(&mut bed, silent), "", "who has asked nothing is told nothing");
    let answer = all(&mut bed, slow);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    bed.settle();
    let stats = bed.service.stats();
    assert_eq!((stats.connections, stats.handshake_timeouts, stats.opened), (0, 2, 0));
}

#[test]
fn a_visitor_of_pages_has_time_for_each() {
    let mut bed = Bed::with(Acts::echo(), |options| {
        options.routes = options.routes.clone().page("/", Page::new("text/plain", "hello"));
    });
    let mut visitor = TcpStream::connect(bed.address).unwrap();
    for _ in 0..4 {
        visitor.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        bed.settle();
        bed.pass(6 * SECOND);
    }
    assert_eq!(bed.service.stats().connections, 1);
    bed.pass(6 * SECOND);
    let answers = all(&mut bed, visitor);
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 4, "{answers}");
    assert!(!answers.contains("408"), "nothing was asked when the time was over: {answers}");
}

/// What is not asked for may be taken for the answer to the next request (issue 13).
#[test]
fn a_visitor_whose_request_came_in_pieces_is_not_told_of_a_timeout() {
    let mut bed = Bed::with(Acts::echo(), |options| {
        options.routes = options.routes.clone().page("/", Page::new("text/plain", "hello"));
    });
    let mut visitor = TcpStream::connect(bed.address).unwrap();
    for piece in ["GET / HTTP/1.1\r\nHo", "st: localhost\r\n\r\n"] {
        visitor.write_all(piece.as_bytes()).unwrap();
        bed.settle();
    }
    bed.pass(15 * SECOND);
    let answers = all(&mut bed, visitor);
    assert!(
        answers.starts_with("HTTP/1.1 200 OK") && answers.matches("HTTP/1.1").count() == 1,
        "{answers}"
    );
    assert_eq!(bed.service.stats().handshake_timeouts, 0);
}

#[test]
fn a_silent_peer_is_asked_and_stays_if_it_answers() {
    let mut bed = Bed::new(Acts::echo());
    let mut client = bed.connect("/");
    for _ in 0..5 {
        bed.pass(29 * SECOND);
        bed.nothing(&mut client);
        bed.pass(3 * SECOND);
        assert_eq!(bed.next(&mut client), Got::Ping(Vec::new()));
        bed.until_noted("pong ");
        bed.notes.borrow_mut().clear();
    }
    assert_eq!(bed.service.stats().pings, 5);
}

#[test]
fn a_peer_that_does_not_answer_is_given_up() {
    let mut bed = Bed::new(Acts::echo());
    let mut client = bed.connect("/");
    client.is_mute = true;
    bed.pass(74 * SECOND);
    assert_eq!(
        [(); 2].map(|()| bed.next(&mut client)),
        [Got::Ping(Vec::new()), Got::Ping(Vec::new())]
    );
    bed.nothing(&mut client);
    bed.pass(4 * SECOND);
    assert_eq!(
        bed.next(&mut client),
        Got::Close(Some(1001), "idle timeout: no data received".into())
    );
    assert_eq!(bed.next(&mut client), Got::End(None));
    drop(client);
    bed.until_noted("close / Idle");
    assert_eq!(bed.service.stats().idle_timeouts, 1);
}

#[test]
fn any_byte_is_a_sign_of_life() {
    let mut bed = Bed::new(Acts::echo());
    let mut client = bed.connect("/");
    let frame = client.frame("a rather long message that comes byte by byte");
    for byte in &frame {
        client.write(&[*byte]);
        bed.settle();
        bed.pass(20 * SECOND);
    }
    assert_eq!(bed.next(&mut client), text("a rather long message that comes byte by byte"));
    assert_eq!(bed.service.stats().pings, 0);
}

#[test]
fn a_life_has_an_end() {
    let mut bed = Bed::with(Acts::echo(), |options| options.lifetime_max = Some(60 * SECOND));
    let mut client = bed.connect("/");
    for _ in 0..6 {
        bed.pass(9 * SECOND);
        client.send("still here");
        assert_eq!(bed.next(&mut client), text("still here"));
    }
    bed.pass(9 * SECOND);
    assert_eq!(
        bed.next(&mut client),
        Got::Close(Some(1001), "connection lifetime exceeded".into())
    );
    drop(client);
    bed.until_noted("close / Lifetime 1001 \"connection lifetime exceeded\"");
}

#[test]
fn a_close_that_is_not_answered_ends_by_itself() {
    let mut bed = Bed::new(Acts::echo());
    let mut client = bed.connect("/");
    client.is_mute = true;
    let id = bed.ids()[0];
    bed.act(move |hub| hub.close(id, CloseCode::NORMAL, "bye").unwrap());
    assert_eq!(bed.next(&mut client), Got::Close(Some(1000), "bye".into()));
    bed.pass(4 * SECOND);
    // What it says meanwhile does not give it more time.
    client.send_raw_after_close();
    bed.pass(500 * SECOND / 1000);
    assert_eq!(bed.service.stats().connections, 1);
    bed.pass(3 * SECOND);
    assert_eq!(bed.service.stats().connections, 0);
    bed.until_noted("close / Local");
}

#[test]
fn many_connections_are_looked_at_over_several_turns() {
    // More places than one turn visits are more than descriptors a test should have: the places are
    // there, the connections are gone.
    let mut bed = Bed::with(Acts::echo(), |options| options.idle_timeout = Some(10 * SECOND));
    let mut clients: Vec<Client> = (0..50).map(|_| bed.connect("/")).collect();
    for client in &mut clients {
        client.is_mute = true;
    }
    bed.pass(13 * SECOND);
    for client in &mut clients {
        assert!(matches!(bed.next(client), Got::Close(Some(1001), _)));
    }
    assert_eq!(bed.service.stats().idle_timeouts, 0, "they are counted when they have gone");
    drop(clients);
    bed.until(|bed| (bed.service.stats().idle_timeouts == 50).then_some(()));
}

#[test]
fn nobody_is_idle_from_whom_nothing_is_read() {
    let acts = Acts::on_message(|connection, _, message| {
        connection.pause();
        let _ = connection.reply_in_place(message);
    });
    let mut bed = Bed::with(acts, |options| options.ping_interval = None);
    let mut client = bed.connect("/");
    let id = bed.ids()[0];
    client.send("pause");
    assert_eq!(bed.next(&mut client), text("pause"));
    bed.pass(200 * SECOND);
    assert_eq!(bed.service.stats().connections, 1);
    // The time counts from when it is read from again.
    assert!(bed.act(move |hub| hub.resume(id)));
    bed.pass(70 * SECOND);
    bed.nothing(&mut client);
    bed.pass(10 * SECOND);
    assert!(matches!(bed.next(&mut client), Got::Close(Some(1001), _)));
}

#[test]
fn a_paused_connection_hears_the_answer_to_its_close() {
    let acts = Acts::on_message(|connection, _, message| {
        connection.pause();
        if message.as_str() == Some("close") {
            connection.close(CloseCode::NORMAL, "").unwrap();
        }
    });
    let mut bed = Bed::new(acts);
    let (mut a, mut b) = (bed.connect("/a"), bed.connect("/b"));
    let ids = bed.ids();
    a.send("close");
    b.send("pause");
    bed.settle();
    bed.act(move |hub| hub.close(ids[1], CloseCode::NORMAL, "").unwrap());
    for client in [&mut a, &mut b] {
        assert_eq!(bed.next(client), Got::Close(Some(1000), String::new()));
        assert_eq!(bed.next(client), Got::End(None));
    }
    bed.until_noted("close /a Local 1000 \"\"");
    bed.until_noted("close /b Local 1000 \"\"");
}

#[test]
fn the_kernels_beat_does_as_well_as_the_clock() {
    // A reactor without a clock of the test's, in real time: a handshake that is not finished, and
    // nothing else that would wake the loop.
    let mut reactor =
        windlass::Reactor::builder().backend(crate::backend::chosen()).build().unwrap();
    let mut options = windlass_server::Options::new();
    options.handshake_timeout = Duration::from_millis(80);
    let listener = options.listener().tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let service = windlass_server::Service::new(Acts::echo(), &options, &mut reactor).unwrap();
    service.listen(listener, &mut reactor).unwrap();
    let began = std::time::Instant::now();
    let _silent = TcpStream::connect(address).unwrap();
    while service.stats().handshake_timeouts == 0 {
        reactor.run_once(Some(20 * SECOND)).unwrap();
        assert!(began.elapsed() < 20 * SECOND, "nothing wakes the loop");
    }
    assert!(began.elapsed() >= Duration::from_millis(80));
}

/// The log is given out at the end of a turn, and the Close frame of a connection whose time is
/// over may be made before that.
#[test]
fn what_was_published_before_a_connections_time_is_over_still_comes() {
    let acts = Acts::on_message(|connection, _, message| match message.as_str() {
        Some("pause") => connection.pause(),
        _ => _ = connection.publish("news", message.to_out()),
    })
    .on_open(|connection, _| _ = connection.subscribe("news"));
    let mut bed = Bed::with(acts, |options| options.lifetime_max = Some(4 * SECOND));
    let mut listener = bed.connect("/");
    bed.pass(2 * SECOND);
    let mut speaker = bed.connect("/");
    let (heard, spoken) = (bed.ids()[0], bed.ids()[1]);
    let (mut sent, mut is_open) = (0_u32, true);
    while is_open {
        let frames = [speaker.frame("pause"), speaker.frame(&*sent.to_string())].concat();
        speaker.write(&frames);
        bed.settle();
        bed.move_clock(Duration::from_millis(100));
        // The speaker is called before a connection that the sweep finds later in this turn. It
        // speaks then, and what it says is given out after that one is called.
        is_open = bed.act(move |hub| hub.resume(spoken) && hub.is_open(heard));
        sent += u32::from(is_open);
        bed.settle();
        assert!(sent < 1000, "its time is never over");
    }
    for number in 0..sent {
        assert_eq!(bed.next(&mut listener), text(&number.to_string()), "of {sent}");
    }
    assert!(matches!(bed.next(&mut listener), Got::Close(Some(1001), _)));
}
