//! `windlass load http://`: good servers, bad ones, and real ones.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread,
};

use super::{
    bad_server::{BadServer, read_request},
    runs::{Loaded, load},
};
use crate::harness::{Running, Server, WAIT_MAX};

const PLAIN: &str = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
     5\r\nHello\r\n8;x=y\r\n, World!\r\n0\r\nA: b\r\n\r\n";

fn http(server: &BadServer) -> String {
    server.tcp().replace("tcp:", "http:") + "/page?a=b"
}

/// Twenty requests, at most four of them in flight.
fn load_at(server: &BadServer) -> Loaded {
    let counts = ["--connections", "1", "--messages", "20", "--depth", "4", "--timeout", "30"];
    load(&[&[&*http(server)], &counts[..]].concat())
}

/// A server that answers each request of one connection with a text, until there is none.
fn answering(mut response: impl FnMut(u64) -> Option<String> + Send + 'static) -> BadServer {
    BadServer::start(move |mut socket| {
        for number in 1.. {
            let mut first = [0];
            // A client without a fault ends its requests, one with a fault resets the connection.
            let Ok(1) = socket.peek(&mut first) else { return };
            read_request(&mut socket);
            let Some(response) = response(number) else { return };
            let _ = socket.write_all(response.as_bytes());
        }
    })
}

#[test]
fn a_good_server_has_no_faults() {
    let server = answering(|number| {
        let response = if number % 2 == 0 { PLAIN } else { CHUNKED };
        Some(response.to_owned())
    });
    let loaded = load_at(&server);
    assert_eq!(loaded.expect_clean().verified(), 20);
    let json = loaded.json();
    assert_eq!(json["parameters"]["content"], "http");
    assert_eq!(json["parameters"]["size_bytes"], serde_json::Value::Null);
    assert_eq!(json["other_statuses"], serde_json::json!({}));
    let bytes = loaded.number("/bytes_per_s") * loaded.number("/elapsed_s");
    assert!((bytes - 20.0 * 13.0).abs() < 1e-6, "{bytes}");
    server.join();
}

#[test]
fn requests_name_path_and_host_and_are_pipelined() {
    let (told, heard) = channel();
    let server = BadServer::start(move |mut socket| {
        let mut requests = vec![0; 4 * 1024];
        let mut length = 0;
        // Four requests arrive before the first response.
        while requests[..length].windows(4).filter(|end| end == b"\r\n\r\n").count() < 4 {
            length += socket.read(&mut requests[length..]).expect("the client asks");
        }
        told.send(String::from_utf8(requests[..length].to_vec()).expect("text")).expect("heard");
        socket.write_all(PLAIN.repeat(4).as_bytes()).expect("the client waits");
        for _ in 4..20 {
            read_request(&mut socket);
            socket.write_all(PLAIN.as_bytes()).expect("the client waits");
        }
    });
    let host = server.tcp().replace("tcp://", "");
    assert_eq!(load_at(&server).expect_clean().verified(), 20);
    let requests = heard.recv().expect("it has told");
    assert!(requests.starts_with(&format!("GET /page?a=b HTTP/1.1\r\nHost: {host}\r\n")));
    server.join();
}

#[test]
fn other_statuses_are_counted_by_their_number() {
    let server = answering(|number| {
        Some(match number {
            5 | 6 => PLAIN.replace("200 OK", "503 Busy"),
            7 => "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned(),
            _ => PLAIN.to_owned(),
        })
    });
    let loaded = load_at(&server);
    assert_eq!((loaded.status, &*loaded.errors, loaded.verified()), (Some(1), "", 17));
    let json = loaded.json();
    assert_eq!(json["other_statuses"], serde_json::json!({ "304": 1, "503": 2 }));
    assert_eq!(json["is_clean"], false);
    server.join();
}

#[test]
fn the_report_for_people_speaks_of_requests() {
    let server = answering(|number| {
        Some(if number == 3 { PLAIN.replace("200", "404") } else { PLAIN.to_owned() })
    });
    let arguments = ["--connections", "1", "--messages", "5", "--rate", "1000"];
    let loaded = super::runs::Load::start(&[&[&*http(&server)], &arguments[..]].concat()).wait();
    for words in ["1 connections, GET, 1 outstanding", " requests/s", "not 2xx     404: 1"] {
        assert!(loaded.output.contains(words), "{words}: {loaded:?}");
    }
    assert!(loaded.output.contains("from the intended moment"), "{loaded:?}");
    server.join();
}

#[test]
fn a_body_of_another_length() {
    let other = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHello";
    let server = answering(move |number| Some(if number == 3 { other } else { PLAIN }.to_owned()));
    let loaded =
        load(&[&http(&server), "--connections", "1", "--messages", "20", "--body-size", "13"]);
    let words = "the body of response 3 has 5 bytes instead of 13 (--body-size)";
    assert_eq!(loaded.expect_fault("wrong_content", words).verified(), 2);
    server.join();
}

#[test]
fn bad_responses_are_faults() {
    let big = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    for (response, kind, words) in [
        ("SSH-2.0-OpenSSH_9.2\r\n", "protocol", "response 3 is no HTTP/1.1: "),
        (&*big, "protocol", "response 3 has a head of more than 16384 bytes"),
        ("HTTP/1.1 200 OK\r\n\r\n", "protocol", "response 3 has neither Content-Length nor"),
        (&CHUNKED.replace("8;x", "7;x"), "protocol", "response 3 has a chunk longer"),
        (&PLAIN.replace("13", "12"), "protocol", "response 4 is no HTTP/1.1: "),
    ] {
        let response = response.to_owned();
        let server = answering(move |number| {
            Some(if number == 3 { response.clone() } else { PLAIN.to_owned() })
        });
        load_at(&server).expect_fault(kind, words);
        server.join();
    }
}

#[test]
fn a_connection_that_ends_within_a_response() {
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello";
    let server = BadServer::start(move |mut socket| {
        for response in [PLAIN, PLAIN, cut] {
            read_request(&mut socket);
            socket.write_all(response.as_bytes()).expect("the client waits");
        }
        // The client's requests are read, so that the end is no reset.
        read_request(&mut socket);
        read_request(&mut socket);
        read_request(&mut socket);
    });
    let loaded = load_at(&server);
    assert_eq!(loaded.expect_fault("closed_early", "the server has disconnected").verified(), 2);
    server.join();
}

#[test]
fn a_server_that_does_not_answer() {
    let server = BadServer::start(|mut socket| while let Ok(1..) = socket.read(&mut [0; 1024]) {});
    let loaded =
        load(&[&http(&server), "--connections", "1", "--messages", "3", "--timeout", "0.2"]);
    loaded.expect_fault("lost", "no answer to message 1 within 0.2 s");
    assert!(!loaded.errors.contains("/echo"), "an HTTP server does not echo: {loaded:?}");
    server.join();
}

/// A server with a thread for each connection.
fn threads() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it has an address");
    let serve = |mut socket: TcpStream| {
        let reader = BufReader::new(socket.try_clone().expect("it can be cloned"));
        for line in reader.lines() {
            let Ok(line) = line else { return };
            if line.is_empty() && socket.write_all(CHUNKED.as_bytes()).is_err() {
                return;
            }
        }
    };
    thread::spawn(move || {
        for socket in listener.incoming() {
            thread::spawn(move || serve(socket.expect("it is accepted")));
        }
    });
    format!("http://{address}/")
}

#[test]
fn many_connections_and_workers() {
    let url = threads();
    for rate in [&[][..], &["--rate", "20000"]] {
        let counts = ["--connections", "20", "--workers", "2", "--messages", "1000"];
        let loaded =
            load(&[&[&*url, "--body-size", "13", "--depth", "8"], &counts[..], rate].concat());
        assert_eq!(loaded.expect_clean().verified(), 1000);
        let is_corrected = loaded.json()["latency"]["corrected_for_coordinated_omission"].clone();
        assert_eq!(is_corrected, !rate.is_empty());
    }
}

#[test]
fn the_page_of_windlass_serve() {
    let server = Server::start(&[]);
    let url = format!("http://{}/", server.address);
    let loaded = load(&[&url, "--connections", "2", "--messages", "40"]);
    assert_eq!(loaded.expect_clean().verified(), 40);
    assert!(loaded.number("/bytes_per_s") > 0.0, "the page has a length: {loaded:?}");
    server.stop_cleanly();
}

#[test]
fn a_server_of_python() {
    let program = "import http.server, socketserver\n\
         class H(http.server.SimpleHTTPRequestHandler):\n    \
             protocol_version = 'HTTP/1.1'\n    \
             def do_GET(self):\n        \
                 self.send_response(200)\n        \
                 self.send_header('Content-Length', '13')\n        \
                 self.end_headers()\n        \
                 self.wfile.write(b'Hello, World!')\n    \
             def log_message(self, *_): pass\n\
         s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H)\n\
         print(s.server_address[1], flush=True)\n\
         s.serve_forever()\n";
    let mut command = Command::new("python3");
    command.args(["-c", program]).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        return eprintln!("skipped here: a_server_of_python: there is no python3");
    };
    let output = child.stdout.take().expect("piped");
    let _running = Running(child);
    let lines = crate::harness::lines_of(output);
    let port = lines.recv_timeout(WAIT_MAX).expect("it prints its port");
    let url = format!("http://127.0.0.1:{port}/");
    for depth in ["1", "3"] {
        let arguments = ["--connections", "3", "--messages", "60", "--body-size", "13"];
        let loaded = load(&[&[&*url, "--depth", depth], &arguments[..]].concat());
        assert_eq!(loaded.expect_clean().verified(), 60);
    }
}
