//! The echo test of the page.

use std::{
    io::Write as _,
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use tungstenite::Message;

use crate::{chromium::Browser, devtools::Devtools, harness::Server, page::Page};

impl Page {
    /// Fills in the form of the run, and starts it with the Enter key.
    fn start_run(&self, bytes: u32, in_flight: u32, seconds: u32) {
        for (field, value) in [("#size", bytes), ("#depth", in_flight), ("#seconds", seconds)] {
            self.fill(field, &value.to_string());
        }
        self.0.press("Enter");
    }

    /// Waits for the end of the run, and returns its text.
    fn wait_run(&self) -> String {
        self.0.wait("document.querySelector('#start').textContent === 'Start'");
        self.text("#run-text")
    }
}

pub(crate) fn an_echo_run_counts_what_it_has_verified(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "");
    for (bytes, in_flight) in [(64, 16), (0, 1), (7, 300), (70_001, 4)] {
        // The result of an earlier run is not taken for that of this one.
        page.0.evaluate("document.querySelector('#run-text').textContent = ''");
        page.start_run(bytes, in_flight, 1);
        page.0.wait("document.querySelector('#run-text').textContent.startsWith('Done')");
        assert_eq!(
            page.wait_run(),
            "Done, every byte verified",
            "{bytes} bytes, {in_flight} in flight"
        );
        assert!(page.number("#verified") > 0);
        assert!(page.number("#rate") > 0);
        for latency in ["#p50", "#p99"] {
            let text = page.text(latency);
            let milliseconds: f64 = text.trim_end_matches(" ms").parse().expect("a latency");
            assert!((0.0..60_000.0).contains(&milliseconds), "{text}");
        }
        let extensions = page.text("#deflate");
        assert!(extensions.contains("permessage-deflate"), "{extensions}");
        let points = page.0.evaluate("document.querySelector('#graph .line').points.numberOfItems");
        assert!(points.as_u64().is_some_and(|points| points >= 2), "the graph has {points} points");
    }
    assert_eq!(devtools.complaints(), [""; 0]);
}

pub(crate) fn an_echo_run_can_be_stopped(browser: &Browser) {
    let server = Server::start(&["--deflate", "off"]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "");
    page.start_run(64, 16, 600);
    page.0.wait("document.querySelector('#graph .line').points.numberOfItems > 1");
    assert_eq!(page.text("#start"), "Stop");
    page.0.evaluate("document.querySelector('#start').focus()");
    page.0.press("Space");
    assert_eq!(page.wait_run(), "Done, every byte verified");
    assert!(page.number("#verified") > 0);
    assert_eq!(page.text("#deflate"), "none: the server agreed to no extension");
    assert_eq!(devtools.complaints(), [""; 0]);
}

pub(crate) fn an_invalid_run_does_not_start(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "");
    for (bytes, in_flight, seconds) in
        [(1_048_577, 1, 1), (64, 0, 1), (64, 1, 0), (1_048_576, 65, 1)]
    {
        page.start_run(bytes, in_flight, seconds);
        assert_eq!(page.text("#run-text"), "Ready", "{bytes} bytes, {in_flight} in flight");
    }
    assert_eq!(devtools.complaints(), [""; 0]);
}

pub(crate) fn the_command_that_measures_the_server_is_shown(browser: &Browser) {
    let server = Server::start(&[]);
    let devtools = browser.connect();
    let page = Page::open(&devtools, server.address, "");
    page.fill("#size", "20");
    page.fill("#seconds", "1");
    let command = page.text("#command");
    let expected = format!(
        "windlass load ws://{}/echo --connections 100 --size 20 --depth 16 --duration 1",
        server.address
    );
    assert_eq!(command, expected);
    let words: Vec<_> = command.split(' ').skip(1).collect();
    let output = crate::harness::windlass(&words).output().expect("the program starts");
    assert!(output.status.success(), "{output:?}");
}

pub(crate) fn a_wrong_byte_ends_the_run(browser: &Browser) {
    fn wrong_at(at: usize, number: usize, mut bytes: Vec<u8>) -> Vec<Vec<u8>> {
        bytes[at] ^= u8::from(number == 100);
        vec![bytes]
    }
    // The page compares words, and at the end single bytes.
    for wrong in
        [|number, bytes| wrong_at(2, number, bytes), |number, bytes| wrong_at(60, number, bytes)]
    {
        assert_eq!(run_against(browser, wrong), "Message 100 came back wrong.");
    }
}

pub(crate) fn a_lost_message_ends_the_run(browser: &Browser) {
    let lost = |number: usize, bytes: Vec<u8>| if number == 50 { vec![] } else { vec![bytes] };
    assert_eq!(run_against(browser, lost), "Message 50 came back wrong.");
}

pub(crate) fn a_doubled_message_ends_the_run(browser: &Browser) {
    let doubled = |number: usize, bytes: Vec<u8>| {
        if number == 50 { vec![bytes.clone(), bytes] } else { vec![bytes] }
    };
    assert_eq!(run_against(browser, doubled), "Message 51 came back wrong.");
}

/// Runs an echo test with 61 bytes, 16 in flight, against a server that answers with the result of
/// this function of a message and its number.
fn run_against(browser: &Browser, answers: fn(usize, Vec<u8>) -> Vec<Vec<u8>>) -> String {
    let devtools: Devtools = browser.connect();
    let page = Page(devtools.open(&format!("http://{}/", dishonest_server(answers))));
    page.start_run(61, 16, 600);
    page.wait_run()
}

/// Serves the page, and echoes with faults. Its threads end with the process.
fn dishonest_server(answers: fn(usize, Vec<u8>) -> Vec<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(stream, answers));
        }
    });
    address
}

fn serve(mut stream: TcpStream, answers: fn(usize, Vec<u8>) -> Vec<Vec<u8>>) {
    const PAGE: &str = include!("../../src/page/parts.in");
    // A browser sends a request in one piece.
    let mut head = [0; 4096];
    let length = stream.peek(&mut head).unwrap_or_default();
    if !String::from_utf8_lossy(&head[..length]).contains("Upgrade: websocket") {
        let length = PAGE.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n"
        );
        // Unread bytes of the request would make closing a reset.
        let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(PAGE.as_bytes()));
        return;
    }
    let Ok(mut socket) = tungstenite::accept(stream) else { return };
    let mut number = 0;
    while let Ok(message) = socket.read() {
        if let Message::Binary(bytes) = message {
            number += 1;
            for answer in answers(number, bytes.to_vec()) {
                if socket.send(Message::binary(answer)).is_err() {
                    return;
                }
            }
        }
    }
}
