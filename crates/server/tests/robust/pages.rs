//! Requests that are not upgrades, over sockets.

use std::time::Duration;

use windlass_server::http::{Origins, Page, Routes};

use crate::{
    fixture::{Fixture, options},
    raw_client::{RawClient, upgrade},
};

const PAGE: &str = "<!doctype html><title>A page</title>";
const GET: &[u8] = b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n";

pub(crate) fn routes() -> Routes {
    let large: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    Routes::new()
        .page("/page", Page::html(PAGE))
        .page("/large", Page::new("application/octet-stream", large))
        .upgrade("/echo")
}

fn fixture() -> Fixture {
    let mut options = options();
    options.routes = routes();
    Fixture::new(&options)
}

/// Reads a response: its head, and a body of the length that the head states.
fn response(fixture: &mut Fixture, client: &mut RawClient) -> (String, Vec<u8>) {
    let head = fixture.head(client);
    let len = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .map_or(0, |len| len.parse().unwrap());
    let body = fixture.until("a body", |_| client.bytes(len));
    (head, body)
}

#[test]
pub(crate) fn pages_and_an_upgrade_share_a_connection() {
    let mut fixture = fixture();
    let mut client = RawClient::connect(fixture.address);
    for _ in 0..3 {
        client.send(GET);
        let (head, body) = response(&mut fixture, &mut client);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body == PAGE.as_bytes(), "{head}");
    }
    let mut client = fixture.handshake(client, "/echo");
    fixture.exchange(&mut client, b"hello");
    assert_eq!((fixture.stats().requests, fixture.stats().opened), (3, 1));
}

#[test]
pub(crate) fn pipelined_requests_are_answered_in_order_however_they_are_cut() {
    let mut fixture = fixture();
    let requests = [
        GET,
        b"HEAD /page HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n",
        GET,
    ]
    .concat();
    let mut all = requests.clone();
    all.extend_from_slice(&upgrade("/echo", ""));
    all.extend_from_slice(&crate::raw_client::masked(crate::raw_client::TEXT, b"hello"));
    for step in [1, 7, 50, all.len()] {
        let mut client = RawClient::connect(fixture.address);
        for piece in all.chunks(step) {
            client.send(piece);
            fixture.settle();
        }
        assert_eq!(response(&mut fixture, &mut client).1, PAGE.as_bytes());
        let head = fixture.head(&mut client);
        assert!(head.contains("\r\nContent-Length: 36\r\n"), "{head}");
        let (head, body) = response(&mut fixture, &mut client);
        assert!(head.starts_with("HTTP/1.1 404 ") && body == b"there is nothing here\n", "{head}");
        assert_eq!(response(&mut fixture, &mut client).1, PAGE.as_bytes());
        let head = fixture.head(&mut client);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert_eq!(fixture.frame(&mut client).text(), "hello");
    }
}

#[test]
pub(crate) fn the_last_response_says_close_and_later_requests_are_not_read() {
    let mut fixture = fixture();
    for last in [
        &b"GET /page HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"[..],
        b"GET /page HTTP/1.0\r\n\r\n",
        b"POST /page HTTP/1.1\r\nHost: localhost\r\nContent-Length: 47\r\n\r\n",
        b"GET /page HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        let mut client = RawClient::connect(fixture.address);
        client.send(&[GET, last, GET].concat());
        response(&mut fixture, &mut client);
        let (head, _) = response(&mut fixture, &mut client);
        assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
        assert_eq!(fixture.read_to_end(client), b"", "{head}");
    }
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_client_that_does_not_read_gets_few_pages() {
    let mut fixture = fixture();
    let mut client = RawClient::with_small_window(fixture.address);
    let request = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n";
    client.send(&request.repeat(100));
    let mut count = 0;
    loop {
        let (head, body) = response(&mut fixture, &mut client);
        assert!(head.starts_with("HTTP/1.1 200 ") && body.len() == 4_000_000, "{head}");
        count += 1;
        if head.contains("\r\nConnection: close\r\n") {
            break;
        }
        assert!(count < 10, "the server keeps without bound what its client does not read");
    }
    fixture.read_to_end(client);
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_client_that_half_closes_after_its_request_gets_the_page() {
    let mut fixture = fixture();
    let mut client = RawClient::connect(fixture.address);
    client.send(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.finish();
    assert_eq!(response(&mut fixture, &mut client).1.len(), 4_000_000);
    assert!(fixture.closes_in_order(client));
    fixture.expect_empty();
}

/// The close timeout applies to clients that only have to close the connection.
#[test]
pub(crate) fn a_slow_client_has_as_long_for_its_last_page_as_other_output_may_wait() {
    for (seconds, is_whole) in [(50, true), (61, false)] {
        let mut options = options();
        options.routes = routes();
        options.write_stall_timeout = Some(Duration::from_secs(60));
        let mut fixture = Fixture::new(&options);
        let mut client = RawClient::with_small_window(fixture.address);
        client.send(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        fixture.until("the request", |fixture| (fixture.stats().requests == 1).then_some(()));
        fixture.settle();
        fixture.advance(Duration::from_secs(seconds));
        assert_eq!(fixture.stats().connections, u64::from(is_whole), "after {seconds} s");
        let head = fixture.head(&mut client);
        assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
        assert_eq!(fixture.read_to_end(client).len() == 4_000_000, is_whole, "after {seconds} s");
        fixture.expect_empty();
    }
}

#[test]
pub(crate) fn pages_of_other_hosts_may_not_connect() {
    let mut fixture = fixture();
    let answer = |fixture: &mut Fixture, origin: &str| {
        let mut client = RawClient::connect(fixture.address);
        client.send(&upgrade("/echo", &format!("Origin: {origin}\r\n")));
        response(fixture, &mut client)
    };
    assert!(answer(&mut fixture, "http://localhost").0.starts_with("HTTP/1.1 101 "));
    let (head, body) = answer(&mut fixture, "https://evil.example");
    assert!(
        head.starts_with("HTTP/1.1 403 ") && head.contains("\r\nConnection: close\r\n"),
        "{head}"
    );
    let text = String::from_utf8(body).expect("text");
    assert!(text.contains("add https://evil.example to the server's list of origins"), "{text}");
    assert_eq!((fixture.stats().opened, fixture.stats().rejected), (1, 1));
    let mut options = options();
    options.origins = Origins::parse(&["https://good.example"]).expect("an origin");
    let mut fixture = Fixture::new(&options);
    assert!(answer(&mut fixture, "https://good.example").0.starts_with("HTTP/1.1 101 "));
    assert!(answer(&mut fixture, "http://localhost").0.starts_with("HTTP/1.1 403 "));
}

#[test]
pub(crate) fn a_rejection_of_the_application_is_sent_and_closes_the_connection() {
    let mut fixture = Fixture::new(&options());
    let mut client = RawClient::connect(fixture.address);
    client.send(&upgrade("/forbidden", ""));
    let (head, body) = response(&mut fixture, &mut client);
    assert!(head.starts_with("HTTP/1.1 403 ") && body == b"not you\n", "{head}");
    assert!(fixture.closes_in_order(client));
    assert_eq!((fixture.stats().opened, fixture.stats().rejected), (0, 1));
    fixture.expect_empty();
}

#[test]
pub(crate) fn a_connection_has_so_many_requests_and_the_last_answer_says_so() {
    let mut fixture = fixture();
    let mut client = RawClient::connect(fixture.address);
    client.send(&GET.repeat(150));
    for number in 1..=100 {
        let (head, body) = response(&mut fixture, &mut client);
        assert!(head.starts_with("HTTP/1.1 200 ") && body == PAGE.as_bytes(), "{head}");
        assert_eq!(head.contains("\r\nConnection: close\r\n"), number == 100, "{number}");
    }
    assert_eq!(fixture.read_to_end(client), b"");
    fixture.expect_empty();
}
