//! Real clients, each as a process. Those that this machine lacks are skipped, with the reason.

use std::{
    io::Write as _,
    net::SocketAddr,
    process::{Command, Output},
    sync::mpsc,
    thread,
};

use hyper::service::service_fn;
use windlass_http::HttpServer;
use windlass_task::{Executor, cancel::Cancel, net::TcpListener};

use crate::{scenarios::Build, tools::answer};

/// Runs a server on a thread of its own while a closure runs.
fn with_server(build: Build, clients: impl FnOnce(SocketAddr)) {
    let (started, is_started) = mpsc::sync_channel(1);
    let server = thread::spawn(move || {
        Executor::builder().reactor(build()).build().unwrap().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stop = Cancel::new();
            started.send((listener.local_addr().unwrap(), stop.clone())).unwrap();
            let until = async { stop.cancelled().await };
            HttpServer::new().serve_until(listener, service_fn(answer), until).await.unwrap();
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
            let line = format!("skipped here: {test}: there is no program {program}\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
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

/// `h2load` of nghttp2, and `wrk`.
fn load_generators_see_no_errors(build: Build) {
    with_server(build, |address| {
        let url = format!("http://{address}/");
        let test = concat!(module_path!(), "::load_generators_see_no_errors");
        for version in [&[][..], &["--h1"]] {
            let arguments = [&["-n", "2000", "-c", "10", "-m", "5"][..], version, &[&url]].concat();
            let Some(output) = output(test, "h2load", &arguments) else { break };
            let said = said(&output);
            assert!(said.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
        }
        let Some(output) = output(test, "wrk", &["-t1", "-c16", "-d1s", &url]) else { return };
        let said = said(&output);
        assert!(said.contains("requests in") && !said.contains("Socket errors"), "{said}");
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
    #[ignore = "compiles a program for some ten seconds: run it with --ignored"]
    go_is_answered,
}
