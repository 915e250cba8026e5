//! Real clients, each as a process. Those that this machine lacks are skipped, with the reason.

use std::{
    io::Write as _,
    net::SocketAddr,
    process::{Command, Output},
    sync::mpsc,
    thread,
};

use hyper::service::service_fn;
use windlass_http::{HttpServer, IntoHttpService};
use windlass_task::{Executor, cancel::Cancel, net::TcpListener};

use crate::{
    scenarios::Build,
    tools::{BoxError, answer},
};

/// Runs a server of hyper on a thread of its own while a closure runs.
fn with_server(build: Build, clients: impl FnOnce(SocketAddr)) {
    with_service(build, || service_fn(answer), clients);
}

/// The same with another service, which is made on the server's thread.
fn with_service<S, Kind>(
    build: Build,
    service: impl FnOnce() -> S + Send + 'static,
    clients: impl FnOnce(SocketAddr),
) where
    S: IntoHttpService<Kind> + 'static,
    S::Body: hyper::body::Body<Data: 'static, Error: Into<BoxError>> + 'static,
    S::Error: Into<BoxError>,
    S::Future: 'static,
{
    let (started, is_started) = mpsc::sync_channel(1);
    let server = thread::spawn(move || {
        Executor::builder().reactor(build()).build().unwrap().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stop = Cancel::new();
            started.send((listener.local_addr().unwrap(), stop.clone())).unwrap();
            let until = async { stop.cancelled().await };
            HttpServer::new().serve_until(listener, service(), until).await.unwrap();
        });
    });
    let (address, stop) = is_started.recv().unwrap();
    clients(address);
    stop.cancel();
    server.join().unwrap();
}

/// Runs a program. `None` if it is missing, which is written as a skipped test.
fn output(test: &str, program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            skip(test, &format!("there is no program {program}"));
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

fn skip(test: &str, why: &str) {
    let line = format!("skipped here: {test}: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(err));
    String::from_utf8_lossy(out).into_owned()
}

fn curl_is_answered_by_both_versions(build: Build) {
    with_server(build, |address| {
        let url = format!("http://{address}/");
        let echo = format!("http://{address}/echo");
        let test = concat!(module_path!(), "::curl_is_answered_by_both_versions");
        // Twice, so that the connection is used again.
        let twice = ["-sS", "-m", "30", "--http1.1", "-w", "%{num_connects}", &url, &url];
        let Some(old) = output(test, "curl", &twice) else { return };
        assert_eq!(said(&old), "hello1hello0");
        let new = ["-sS", "-m", "30", "--http2-prior-knowledge", "-w", "%{http_version}", &url];
        if let Some(new) = output(test, "curl", &new) {
            // A curl without HTTP/2 says so.
            if new.status.success() {
                assert_eq!(said(&new), "hello2");
            }
        }
        let chunked = ["-sS", "-m", "30", "-H", "Transfer-Encoding: chunked", "-d", "body", &echo];
        assert_eq!(said(&output(test, "curl", &chunked).unwrap()), "body");
    });
}

/// The module http.client is strict about lengths and chunks.
fn python_is_answered(build: Build) {
    const SCRIPT: &str = "
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], timeout=30)
for round in range(20):
    connection.request('GET', '/')
    response = connection.getresponse()
    assert (response.status, response.read()) == (200, b'hello')
    body = b'p' * (1 + round * 5003)
    connection.request('POST', '/echo', body)
    assert connection.getresponse().read() == body
    pieces = [b'a', b'bc' * 1000, b'd']
    connection.request('POST', '/echo', iter(pieces), encode_chunked=True,
                       headers={'Transfer-Encoding': 'chunked'})
    assert connection.getresponse().read() == b''.join(pieces)
print('done')
";
    with_server(build, |address| {
        let test = concat!(module_path!(), "::python_is_answered");
        let arguments = ["-c", SCRIPT, &address.to_string()];
        let Some(output) = output(test, "python3", &arguments) else { return };
        assert_eq!(said(&output).trim(), "done");
    });
}

/// `h2load` of nghttp2, with both versions.
fn h2load_sees_no_errors(address: SocketAddr) {
    let url = format!("http://{address}/");
    let test = concat!(module_path!(), "::load_generators_see_no_errors");
    for version in [&[][..], &["--h1"]] {
        let arguments = [&["-n", "1000", "-c", "10", "-m", "5"][..], version, &[&url]].concat();
        let Some(output) = output(test, "h2load", &arguments) else { return };
        let said = said(&output);
        assert!(said.contains("1000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
    }
}

fn load_generators_see_no_errors(build: Build) {
    with_server(build, |address| {
        h2load_sees_no_errors(address);
        let url = format!("http://{address}/");
        let test = concat!(module_path!(), "::load_generators_see_no_errors");
        let Some(output) = output(test, "wrk", &["-t1", "-c16", "-d1s", &url]) else { return };
        let said = said(&output);
        assert!(said.contains("requests in") && !said.contains("Socket errors"), "{said}");
    });
}

fn load_generators_see_no_errors_of_axum(build: Build) {
    let router = || axum::Router::new().route("/", axum::routing::get(async || "hello"));
    with_service(build, router, h2load_sees_no_errors);
}

/// h11 is a strict parser of what the server sends, also of what no client may rely on.
fn h11_finds_no_violation(build: Build) {
    const SCRIPT: &str = r#"
import sys
try:
    import h11
except ImportError:
    print('missing')
    sys.exit()
import socket
host, port = sys.argv[1].rsplit(':', 1)

def connect():
    return h11.Connection(our_role=h11.CLIENT), socket.create_connection((host, int(port)), 30)

def read(connection, stream, piece=65536):
    body, head = b'', None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(stream.recv(piece))
        elif isinstance(event, h11.InformationalResponse):
            yield event
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            yield head, body
            return
        else:
            raise AssertionError(event)

def ask(connection, stream, method, target, headers=(), body=None, piece=65536):
    request = h11.Request(method=method, target=target, headers=[('Host', 'here'), *headers])
    stream.sendall(connection.send(request))
    if body:
        for part in body:
            stream.sendall(connection.send(h11.Data(data=part)))
    stream.sendall(connection.send(h11.EndOfMessage()))
    return list(read(connection, stream, piece))[-1]

connection, stream = connect()
for piece in (1, 7, 65536):
    head, body = ask(connection, stream, 'GET', '/', piece=piece)
    assert (head.status_code, head.http_version, body) == (200, b'1.1', b'hello'), head
    connection.start_next_cycle()
    head, body = ask(connection, stream, 'HEAD', '/', piece=piece)
    assert (head.status_code, body) == (200, b''), head
    assert dict(head.headers)[b'content-length'] == b'5', head
    connection.start_next_cycle()
    parts = [b'x' * 70000, b'y', b'z' * 3]
    chunked = [('Transfer-Encoding', 'chunked')]
    head, body = ask(connection, stream, 'POST', '/echo', chunked, parts, piece)
    assert body == b''.join(parts)
    connection.start_next_cycle()
    length = [('Content-Length', '70004')]
    head, body = ask(connection, stream, 'POST', '/echo', length, parts, piece)
    assert body == b''.join(parts)
    connection.start_next_cycle()
    head, body = ask(connection, stream, 'DELETE', '/missing', piece=piece)
    assert head.status_code == 404, head
    connection.start_next_cycle()

# The body follows after 100 Continue.
expect = [('Content-Length', '4'), ('Expect', '100-continue')]
request = h11.Request(method='POST', target='/collect', headers=[('Host', 'here'), *expect])
stream.sendall(connection.send(request))
events = read(connection, stream)
assert next(events).status_code == 100
stream.sendall(connection.send(h11.Data(data=b'body')) + connection.send(h11.EndOfMessage()))
assert next(events)[1] == b'body'
connection.start_next_cycle()

# Two requests in one segment, the second of which ends the connection.
one = connection.send(h11.Request(method='GET', target='/', headers=[('Host', 'here')]))
connection.send(h11.EndOfMessage())
stream.sendall(one + b'GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n')
assert list(read(connection, stream))[-1][1] == b'hello'
rest = connection.trailing_data[0]
second = h11.Connection(our_role=h11.CLIENT)
close = [('Host', 'here'), ('Connection', 'close')]
second.send(h11.Request(method='GET', target='/', headers=close))
second.send(h11.EndOfMessage())
if rest:
    second.receive_data(rest)
head, body = list(read(second, stream))[-1]
assert (body, dict(head.headers)[b'connection']) == (b'hello', b'close')
assert stream.recv(1) == b''

# HTTP/1.0 has no chunks: the end of the connection is that of the body.
stream = socket.create_connection((host, int(port)), 30)
stream.sendall(b'POST /echo HTTP/1.0\r\nContent-Length: 3\r\n\r\nold')
answer = b''
while part := stream.recv(65536):
    answer += part
head, body = answer.split(b'\r\n\r\n', 1)
assert head.startswith(b'HTTP/1.0 200') and b'chunked' not in head and body == b'old', answer
print('done')
"#;
    with_server(build, |address| {
        let test = concat!(module_path!(), "::h11_finds_no_violation");
        // The package of a distribution belongs to its own Python.
        for program in ["python3", "/usr/bin/python3"] {
            let Some(output) = output(test, program, &["-c", SCRIPT, &address.to_string()]) else {
                return;
            };
            match said(&output).trim() {
                "missing" => {}
                said => return assert_eq!(said, "done"),
            }
        }
        skip(test, "there is no package h11 for Python");
    });
}

/// Go's net/http, on connections that it keeps.
fn go_is_answered(build: Build) {
    const PROGRAM: &str = r#"
package main
import ("bytes"; "fmt"; "io"; "net/http"; "os")
func main() {
    for round := 0; round < 50; round++ {
        sent := bytes.Repeat([]byte("g"), 1+round*3001)
        response, err := http.Post(os.Args[1]+"echo", "text/plain", bytes.NewReader(sent))
        if err != nil { panic(err) }
        back, err := io.ReadAll(response.Body)
        if err != nil { panic(err) }
        response.Body.Close()
        if !bytes.Equal(back, sent) { panic("the body is another one") }
    }
    fmt.Println("done")
}
"#;
    with_server(build, |address| {
        let test = concat!(module_path!(), "::go_is_answered");
        let file = std::env::temp_dir().join(format!("windlass-http-{}.go", address.port()));
        std::fs::write(&file, PROGRAM).unwrap();
        let url = format!("http://{address}/");
        let output = output(test, "go", &["run", file.to_str().unwrap(), &url]);
        std::fs::remove_file(&file).unwrap();
        if let Some(output) = output {
            assert_eq!(said(&output).trim(), "done");
        }
    });
}

scenarios! {
    curl_is_answered_by_both_versions,
    python_is_answered,
    load_generators_see_no_errors,
    load_generators_see_no_errors_of_axum,
    h11_finds_no_violation,
    #[ignore = "compiles a program for some ten seconds: run it with --ignored"]
    go_is_answered,
}
