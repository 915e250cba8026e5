use super::*;
use crate::load::{
    exchange::ExchangeState,
    fan_out::Role,
    payload::PayloadPool,
    results::LoadResults,
    schedule::{LoadSchedule, MessageSequence, Nanos, SendRate},
};

const PLAIN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n\
     5;name=\"x\"\r\nHello\r\n08\r\n, World!\r\n0\r\nTrailer: 1\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 204 No Content\r\n\r\n";
const EARLY: &str = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
const MISSING: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone";

/// Three requests are in flight on a connection that sends six. Passes the text in pieces of this
/// length.
fn read(text: &str, piece: usize, body_size: Option<u64>) -> (Result<(), Fault>, LoadResults) {
    let schedule = LoadSchedule { rate: SendRate::FullSpeed, window: 0..Nanos::MAX, depth: 3 };
    let mut state = ExchangeState::with(schedule, PayloadPool::new(1, None, false));
    let mut role = Role::Echo;
    let mut sequence = MessageSequence::new(5, 3, 6);
    let mut exchange = Exchange::new(&mut sequence, &mut role, &mut state, 0);
    while exchange.next_is_due() {}
    let resource = Resource { host: "localhost".to_owned(), path: "/".to_owned() };
    let setup = HttpSetup::new(&resource, &[], body_size, 3);
    let mut responses = Responses::default();
    let mut exchange = Exchange::new(&mut sequence, &mut role, &mut state, 7);
    let result = text
        .as_bytes()
        .chunks(piece)
        .try_for_each(|piece| responses.read(piece, &setup, &mut exchange));
    (result, state.results)
}

fn fault(text: &str) -> (FaultKind, String) {
    // A head is parsed again with every piece, so long ones have long pieces.
    let shortest = 1 + text.len() / 100;
    let [one, two, all] = [shortest, 2 * shortest, text.len()].map(|piece| {
        let fault = read(text, piece, None).0.expect_err(text);
        (fault.kind, fault.text)
    });
    assert_eq!(one, all, "it is the same however it is cut");
    assert_eq!(two, all, "it is the same however it is cut");
    all
}

#[test]
fn the_request_has_path_and_host() {
    let resource = Resource { host: "[::1]:80".to_owned(), path: "/a?b".to_owned() };
    let text =
        String::from_utf8(HttpSetup::new(&resource, &[], None, 0).request).expect("it is text");
    assert!(text.starts_with("GET /a?b HTTP/1.1\r\nHost: [::1]:80\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\n"));
}

#[test]
fn responses_are_found_however_they_are_cut() {
    for (text, bytes, messages) in [
        ([PLAIN, PLAIN, PLAIN].concat(), 39, 3),
        ([CHUNKED, EARLY, PLAIN, EMPTY].concat(), 26, 3),
        ([EARLY, EARLY, EMPTY, CHUNKED].concat(), 13, 2),
    ] {
        for piece in 1..=text.len() {
            let (result, results) = read(&text, piece, None);
            result.unwrap_or_else(|fault| panic!("{piece} {text}: {fault:?}"));
            assert_eq!((results.messages, results.body_bytes), (messages, bytes), "{piece} {text}");
            assert_eq!(results.latency.max(), 7);
        }
    }
}

#[test]
fn other_statuses_are_counted_and_are_no_correct_answers() {
    let (result, results) = read(&[MISSING, PLAIN, MISSING].concat(), 9, Some(13));
    result.expect("the length of an error's body does not matter");
    assert_eq!(results.messages, 1);
    assert_eq!(results.other_statuses().collect::<Vec<_>>(), [(404, 2)]);
}

#[test]
fn the_length_of_bodies_is_compared() {
    assert!(read(&[PLAIN, CHUNKED].concat(), 5, Some(13)).0.is_ok());
    let fault = read(&[PLAIN, EMPTY].concat(), 5, Some(13)).0.expect_err("it is empty");
    assert_eq!(fault.kind, FaultKind::WrongContent);
    assert_eq!(fault.text, "the body of response 2 has 0 bytes instead of 13 (--body-size)");
}

#[test]
fn nothing_is_read_after_the_last_response() {
    for last in [
        PLAIN.replace("\r\n\r\n", "\r\nConnection: foo, Close\r\n\r\n"),
        PLAIN.replace("HTTP/1.1", "HTTP/1.0"),
    ] {
        for piece in [1, 7, 1000] {
            let (result, results) = read(&[PLAIN, &last, "nonsense"].concat(), piece, None);
            result.unwrap_or_else(|fault| panic!("{piece}: {fault:?}"));
            assert_eq!(results.messages, 2);
        }
    }
    let kept = PLAIN.replace("HTTP/1.1 200 OK", "HTTP/1.0 200 OK\r\nConnection: Keep-Alive");
    let (result, results) = read(&[&*kept, PLAIN].concat(), 7, None);
    assert!(result.is_ok());
    assert_eq!(results.messages, 2);
}

#[test]
fn informational_responses_are_few() {
    let few = EARLY.repeat(3);
    assert!(read(&[&*few, PLAIN, &few, EMPTY].concat(), 7, None).0.is_ok(), "before each response");
    let (kind, text) = fault(&[PLAIN, &few, EARLY].concat());
    let words = "response 2 follows more than 3 informational ones (1xx); --informational-max";
    assert_eq!((kind, text.starts_with(words)), (FaultKind::Protocol, true), "{text}");
}

#[test]
fn a_server_with_tls_is_told_apart() {
    let head = |status: &str, length: u32| {
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n")
    };
    let alert = "\u{15}\u{3}\u{3}\0\u{2}\u{2}F".to_owned();
    let words = "This port speaks TLS: yes";
    for text in [alert, head("400 Bad Request", 25) + words] {
        let (kind, said) = match read(&text, text.len(), None).0 {
            Err(fault) => (fault.kind, fault.text),
            Ok(()) => panic!("{text}"),
        };
        assert_eq!(kind, FaultKind::Protocol);
        assert_eq!(said, "the server speaks TLS on this port: use https://");
    }
    // A page may have these words.
    let page = head("200 OK", 25) + words;
    assert!(read(&page, page.len(), None).0.is_ok());
}

#[test]
fn what_is_no_response_is_a_fault() {
    let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
    let chunked = |chunks: &str| head("Transfer-Encoding: chunked") + chunks;
    for (text, words) in [
        ("hello\r\n\r\n".to_owned(), "response 1 is no HTTP/1.1: "),
        ("HTTP/2.0 200 OK\r\n\r\n".to_owned(), "response 1 is no HTTP/1.1: "),
        (head("Server: x"), "response 1 has neither Content-Length nor"),
        (head("Content-Length: -1"), "response 1 has a malformed Content-Length"),
        (head("Content-Length: 99999999999999999999"), "response 1 has a malformed"),
        (head("Content-Length: 1\r\nContent-Length: 2"), "response 1 has two different"),
        (head("Content-Length: 1\r\nTransfer-Encoding: chunked"), "response 1 has both"),
        (head("Transfer-Encoding: gzip, chunked"), "response 1 has a Transfer-Encoding other"),
        (head("Transfer-Encoding: x\r\nTransfer-Encoding: x"), "response 1 has two fields"),
        ("HTTP/1.1 101 Switching\r\n\r\n".to_owned(), "response 1 switches the protocol"),
        (PLAIN.to_owned() + &chunked("x\r\n"), "response 2 has a chunk without a size"),
        (chunked("fffffffffffffffff\r\n"), "response 1 has a chunk without a size"),
        (chunked("1\r\nab\r\n"), "response 1 has a chunk longer than its size"),
        (chunked("1\n"), "response 1 has a line of chunks without CR LF"),
        (chunked(&"1".repeat(LINE_BYTES_MAX + 1)), "response 1 has a line of chunks of more than"),
        (chunked("0\r\n") + &"a: b\r\n".repeat(101), "response 1 has more than 100 trailer fields"),
        (head(&"a: b\r\n".repeat(101)), "response 1 has more than 100 header fields"),
        (head(&format!("a: {}", "x".repeat(HEAD_BYTES_MAX))), "response 1 has a head of more than"),
    ] {
        let (kind, found) = fault(&text);
        assert_eq!(kind, FaultKind::Protocol, "{found}");
        assert!(found.starts_with(words), "{found}");
    }
}

#[test]
fn bytes_without_a_request_are_additional() {
    let text = [PLAIN, PLAIN, PLAIN, "x"].concat();
    let (result, results) = read(&text, text.len(), None);
    let fault = result.expect_err("nothing was due");
    assert_eq!((fault.kind, results.messages), (FaultKind::Additional, 3));
    assert_eq!(fault.text, "1 byte came although none was due");
}
