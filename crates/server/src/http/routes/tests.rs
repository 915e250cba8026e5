//! Tests every combination of request properties against the rules in plain words, and connections
//! with several requests.

use proptest::prelude::*;
use windlass_ws::handshake::{HeadLimits, HeadReader};

use super::*;

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const PAGE: &str = "<!doctype html>";
const DATE: &str = "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n";

/// A page at `/` and at `/both`; upgrades on `/both`, `/echo` and below `/chat/`.
fn routes() -> Routes {
    Routes::new()
        .page("/", Page::html(PAGE))
        .page("/both", Page::html(PAGE))
        .upgrade("/both")
        .upgrade("/echo")
        .upgrade("/chat/*")
        .requests_max(10)
        .waiting_bytes_max(1000)
}

fn fresh() -> Served {
    Served { requests: 0, waiting_bytes: 0, now: SystemTime::UNIX_EPOCH }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Nothing,
    WebSocket,
    /// An upgrade without a key.
    BadWebSocket,
    Other,
}

/// The relevant properties of a request.
#[derive(Clone, Copy, Debug)]
struct Case {
    method: &'static str,
    path: &'static str,
    wants: Wants,
    is_http_1_0: bool,
    has_body: bool,
    says_close: bool,
}

impl Case {
    fn head(&self) -> String {
        let Self { method, path, .. } = self;
        let mut head =
            format!("{method} {path} HTTP/1.{}\r\nHost: a\r\n", u8::from(!self.is_http_1_0));
        let upgrade = match self.wants {
            Wants::Nothing => None,
            Wants::WebSocket | Wants::BadWebSocket => Some("websocket"),
            Wants::Other => Some("h2c"),
        };
        if let Some(upgrade) = upgrade {
            head += &format!(
                "Upgrade: {upgrade}\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            );
        }
        if self.wants == Wants::WebSocket {
            head += &format!("Sec-WebSocket-Key: {KEY}\r\n");
        }
        if self.says_close {
            head += "Connection: keep-alive , Close\r\n";
        }
        if self.has_body {
            head += "Content-Length: 3\r\n";
        }
        head + "\r\n"
    }

    /// The expected status (101 for an upgrade), and whether the connection ends, by the table in
    /// the documentation.
    fn expected(&self, served: &Served) -> (u16, bool) {
        let is_page = ["/", "/both", "/both?q"].contains(&self.path);
        let takes_upgrades =
            ["/both", "/both?q", "/echo", "/chat/", "/chat/a/b"].contains(&self.path);
        let asks = self.method == "GET"
            && !self.is_http_1_0
            && matches!(self.wants, Wants::WebSocket | Wants::BadWebSocket);
        let ends = self.is_http_1_0
            || self.has_body
            || self.says_close
            || served.requests >= 9
            || served.waiting_bytes >= 1000;
        match (takes_upgrades, asks) {
            (true, true) if self.wants == Wants::WebSocket && !self.has_body => (101, false),
            (true, true) => (400, true),
            (false, true) => (404, true),
            (true, false) if !is_page => match self.method {
                "GET"
                    if self.is_http_1_0
                        && self.wants != Wants::Nothing
                        && self.wants != Wants::Other =>
                {
                    (505, true)
                }
                "GET" => (426, true),
                "BREW" => (501, true),
                _ => (405, true),
            },
            _ if self.method == "BREW" => (501, ends),
            _ if !is_page => (404, ends),
            _ if !["GET", "HEAD"].contains(&self.method) => (405, ends),
            _ if self.has_body => (400, true),
            _ => (200, ends),
        }
    }
}

/// A response as a client parses it: status, headers, body, and total length.
#[derive(Debug)]
struct Response {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Response {
    /// Takes a response from the front, by its Content-Length.
    fn take(bytes: &mut &[u8], method: &str) -> Self {
        let end = bytes.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
        let head = core::str::from_utf8(&bytes[..end]).expect("text").to_owned();
        let status = head[9..12].parse().expect("a status");
        let len = if method == "HEAD" || status == 304 {
            0
        } else {
            header(&head, "Content-Length").unwrap().parse().unwrap()
        };
        let body = bytes[end..end + len].to_vec();
        *bytes = &bytes[end + len..];
        Self { status, head, body }
    }

    fn says_close(&self) -> bool {
        header(&self.head, "Connection").is_some_and(|value| value.ends_with("close"))
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Answers one head. Returns `None` for an upgrade.
fn answer(routes: &Routes, head: &str, served: &Served) -> Option<(Response, bool)> {
    let (request, _) = Request::parse(head.as_bytes(), &HeadLimits::DEFAULT)
        .expect("well-formed")
        .expect("complete");
    // The response to the previous request.
    let before = b"HTTP/1.1 200 OK\r\n\r\n";
    let mut out = before.to_vec();
    let ends = match routes.answer(&request, served, &mut out) {
        Next::Upgrade(_) => {
            assert_eq!(out, before);
            return None;
        }
        Next::Request => false,
        Next::Close => true,
    };
    let mut rest = out.strip_prefix(before).expect("it is kept");
    let response = Response::take(&mut rest, request.method());
    assert!(rest.is_empty(), "one response: {:?}", rest.escape_ascii());
    Some((response, ends))
}

#[test]
fn every_combination() {
    let mut count = 0;
    let both = [false, true];
    for method in ["GET", "HEAD", "POST", "OPTIONS", "BREW"] {
        for path in [
            "/",
            "/both",
            "/both?q",
            "/echo",
            "/chat/",
            "/chat/a/b",
            "/chat",
            "/nothing",
            "/echo/",
            "/Echo",
            "/%65cho",
        ] {
            for wants in [Wants::Nothing, Wants::WebSocket, Wants::BadWebSocket, Wants::Other] {
                for (is_http_1_0, has_body, says_close) in both
                    .into_iter()
                    .flat_map(|a| both.into_iter().flat_map(move |b| both.map(|c| (a, b, c))))
                {
                    for (requests, waiting_bytes) in
                        [(0, 0), (8, 999), (9, 0), (u32::MAX, 0), (0, 1000), (0, usize::MAX)]
                    {
                        let case = Case { method, path, wants, is_http_1_0, has_body, says_close };
                        let served = Served { requests, waiting_bytes, ..fresh() };
                        judge(&case, &served);
                        count += 1;
                    }
                }
            }
        }
    }
    assert_eq!(count, 5 * 11 * 4 * 8 * 6);
}

fn judge(case: &Case, served: &Served) {
    let expected = case.expected(served);
    let Some((response, ends)) = answer(&routes(), &case.head(), served) else {
        assert_eq!(expected.0, 101, "{case:?} {served:?}");
        return;
    };
    assert_eq!((response.status, ends), expected, "{case:?} {served:?}");
    assert_eq!(response.says_close(), ends, "{case:?}: {}", response.head);
    match response.status {
        200 => {
            assert_eq!(response.body, if case.method == "HEAD" { b"" } else { PAGE.as_bytes() });
            assert_eq!(header(&response.head, "Content-Length"), Some("15"));
            assert_eq!(header(&response.head, "Content-Type"), Some("text/html; charset=utf-8"));
        }
        405 => {
            assert!(header(&response.head, "Allow").is_some_and(|allow| allow.starts_with("GET")))
        }
        426 => assert_eq!(header(&response.head, "Upgrade"), Some("websocket")),
        _ => {}
    }
    assert_eq!(response.body.is_empty(), case.method == "HEAD", "{case:?}");
    assert!(header(&response.head, "Content-Length").is_some());
}

#[test]
fn errors_are_plain_text_with_a_date() {
    let (response, _) =
        answer(&routes(), "GET /<script> HTTP/1.1\r\nHost: a\r\n\r\n", &fresh()).unwrap();
    assert_eq!(
        response.head,
        "HTTP/1.1 404 Not Found\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         Content-Type: text/plain; charset=utf-8\r\n\
         X-Content-Type-Options: nosniff\r\nContent-Length: 22\r\n\r\n"
    );
    assert_eq!(response.body, b"there is nothing here\n");
}

#[test]
fn without_pages_it_answers_as_the_handshake_does() {
    for head in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n",
        "OPTIONS /a HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        "BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.0\r\nUpgrade: websocket\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 8\r\n\r\n",
    ] {
        let (request, _) = Request::parse(head.as_bytes(), &HeadLimits::DEFAULT).unwrap().unwrap();
        let (mut out, mut expected) = (b"kept".to_vec(), b"kept".to_vec());
        assert!(
            matches!(Routes::default().answer(&request, &fresh(), &mut out), Next::Close),
            "{head}"
        );
        request.upgrade().unwrap_err().write(&mut expected);
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out.matches(DATE).count(), 1, "{head}: {out}");
        assert_eq!(out.replace(DATE, "").as_bytes(), expected, "{head}");
    }
}

/// RFC 9110 section 9.3.7: the request is about the server, and the response has no body.
#[test]
fn options_asterisk_lists_the_methods() {
    for routes in [Routes::new(), Routes::everywhere(), routes()] {
        for (rest, is_last) in
            [("", false), ("Connection: close\r\n", true), ("Content-Length: 1\r\n", true)]
        {
            let head = format!("OPTIONS * HTTP/1.1\r\nHost: a\r\n{rest}\r\n");
            let (request, _) =
                Request::parse(head.as_bytes(), &HeadLimits::DEFAULT).unwrap().unwrap();
            let mut out = Vec::new();
            let next = routes.answer(&request, &fresh(), &mut out);
            assert_eq!(matches!(next, Next::Close), is_last, "{rest}");
            let close = if is_last { "Connection: close\r\n" } else { "" };
            let expected = format!(
                "HTTP/1.1 204 No Content\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
                 Allow: GET, HEAD, OPTIONS\r\n\
                 {close}\r\n"
            );
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}

#[test]
fn patterns_are_whole_paths_or_beginnings_up_to_a_slash() {
    let takes = |pattern: &str, path: &str| Routes::new().upgrade(pattern).takes_upgrades(path);
    assert!(takes("/a", "/a") && !takes("/a", "/ab") && !takes("/a", "/a/") && !takes("/a", "/"));
    assert!(
        takes("/a/*", "/a/")
            && takes("/a/*", "/a/b/c")
            && !takes("/a/*", "/a")
            && !takes("/a/*", "/ab")
    );
    assert!(takes("*", "/") && takes("*", "/a") && takes("/*", "/") && takes("/*", "/a/b"));
    assert!(!Routes::new().takes_upgrades("/"));
}

#[test]
fn a_pattern_or_path_that_is_none_is_a_mistake() {
    let message = |run: fn() -> Routes| {
        let panic = std::panic::catch_unwind(run).expect_err("it panics");
        panic.downcast_ref::<String>().expect("a text").clone()
    };
    for run in [
        (|| Routes::new().upgrade("")) as fn() -> Routes,
        || Routes::new().upgrade("a"),
        || Routes::new().upgrade("/a*"),
        || Routes::new().upgrade("/*/a"),
        || Routes::new().upgrade("/a?b"),
        || Routes::new().upgrade("/a b"),
        || Routes::new().upgrade("/\u{e4}"),
    ] {
        assert!(message(run).starts_with("an upgrade path is"));
    }
    assert!(message(|| Routes::new().page("a", Page::html(""))).starts_with("a page's path"));
    assert!(message(|| Routes::new().page("/a#b", Page::html(""))).starts_with("a page's path"));
    let header = message(|| Routes::new().page("/a", Page::html("").header("X", "\n")));
    assert_eq!(
        header,
        "the page at /a cannot be sent: a header value contains a control character"
    );
}

#[test]
fn the_last_page_at_a_path_counts() {
    let routes = Routes::new().page("/", Page::html("a")).page("/", Page::html("b"));
    assert_eq!(
        answer(&routes, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", &fresh()).unwrap().0.body,
        b"b"
    );
}

#[test]
fn a_page_may_be_below_a_path_and_the_nearest_one_counts() {
    let routes = Routes::new()
        .page("/a/*", Page::html("gone"))
        .page("/a/*", Page::html("a"))
        .page("/a/b/*", Page::html("b"))
        .page("/a/b/c", Page::html("c"))
        .upgrade("/a/*")
        .not_found("look at /a/");
    let body = |path: &str| {
        let (response, _) =
            answer(&routes, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"), &fresh()).unwrap();
        String::from_utf8(response.body).unwrap()
    };
    for (path, expected) in [
        ("/a/", "a"),
        ("/a/x/y?z", "a"),
        ("/a/b", "a"),
        ("/a/b/", "b"),
        ("/a/b/x", "b"),
        ("/a/b/c", "c"),
        ("/a/b/c/d", "b"),
        ("/a", "look at /a/\n"),
        ("/ab", "look at /a/\n"),
    ] {
        assert_eq!(body(path), expected, "{path}");
    }
}

#[test]
fn at_least_one_request_is_answered() {
    let routes = routes().requests_max(0);
    let (response, ends) = answer(&routes, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", &fresh()).unwrap();
    assert_eq!((response.status, ends), (200, true));
}

/// Answers all requests in these bytes, split in two, as a server does, until the connection ends.
fn connection(routes: &Routes, bytes: &[u8], cut: usize) -> (Vec<u8>, bool) {
    let mut reader = HeadReader::new(HeadLimits::DEFAULT);
    let (mut out, mut served) = (Vec::new(), fresh());
    for mut piece in [&bytes[..cut], &bytes[cut..]] {
        while !piece.is_empty() {
            let Some((request, used)) = reader.request(piece).expect("well-formed") else { break };
            match routes.answer(&request, &served, &mut out) {
                Next::Upgrade(_) | Next::Close => return (out, true),
                Next::Request => {}
            }
            served.requests += 1;
            piece = &piece[used..];
        }
    }
    (out, false)
}

proptest! {
    /// Pipelined requests are answered one by one, in order, at every split, and none after the
    /// last one.
    #[test]
    fn pipelined_requests_are_answered_in_order(
        chosen in proptest::collection::vec(
            (0..4_usize, 0..3_usize, any::<bool>(), 0..20_u8),
            1..15,
        ),
        cut in any::<proptest::sample::Index>(),
    ) {
        let cases: Vec<Case> = chosen
            .into_iter()
            .map(|(method, path, unchanged, close)| Case {
                method: ["GET", "HEAD", "POST", "BREW"][method],
                path: ["/", "/both", "/nothing"][path],
                wants: if unchanged { Wants::Other } else { Wants::Nothing },
                is_http_1_0: false,
                has_body: false,
                says_close: close == 0,
            })
            .collect();
        let bytes: String = cases.iter().map(Case::head).collect();
        let (out, has_ended) = connection(&routes(), bytes.as_bytes(), cut.index(bytes.len()));
        let (mut rest, mut ended) = (&out[..], false);
        for (index, case) in cases.iter().enumerate() {
            if ended {
                break;
            }
            let expected = case.expected(&Served { requests: index as u32, ..fresh() });
            let response = Response::take(&mut rest, case.method);
            prop_assert_eq!((response.status, response.says_close()), expected);
            ended = expected.1;
        }
        prop_assert!(rest.is_empty());
        prop_assert_eq!(ended, has_ended);
    }

    /// Every well-formed request has one response.
    #[test]
    fn no_request_panics(
        method in "[A-Z!]{1,7}",
        path in "[!-~]{0,8}",
        headers in proptest::collection::vec(
            ("(Upgrade|Connection|If-None-Match|Content-Length|Origin|X)", "[ -~]{0,12}"),
            0..4,
        ),
    ) {
        let mut head = format!("{method} /{path} HTTP/1.1\r\nHost: a\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        if let Ok(Some((request, _))) = Request::parse(head.as_bytes(), &HeadLimits::DEFAULT) {
            let mut out = Vec::new();
            let next = routes().answer(&request, &fresh(), &mut out);
            if !matches!(next, Next::Upgrade(_)) {
                let mut rest = &out[..];
                Response::take(&mut rest, request.method());
                prop_assert!(rest.is_empty());
            }
        }
    }
}
