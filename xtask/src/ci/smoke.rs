//! Starts the programs and uses them once, as a newcomer would.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::command::Cmd;
use crate::output::Output;
use crate::stage::Stage;
use crate::tally::Tally;

/// The time limit for an answer of a started program. It is built before.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time limit for the first line of a program that cargo starts. Cargo may wait for the lock of
/// the target folder, which a stage of another lane holds while it compiles.
const START_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Starts the server, gets its page, echoes a WebSocket message, and stops it gracefully.
pub(super) fn serve(root: &Path) -> Stage {
    let root = root.to_path_buf();
    Stage::inspect("serve", move || {
        // The same command, because `cargo build` unites the features of other packages.
        build(&root, &["run", "--release", "--quiet", "--", "--version"])?;
        // On Unix, `cargo run` becomes the program that it runs. So the child's id is that of the
        // server.
        let server = Cmd::cargo(["run", "--release", "--quiet", "--", "serve"])
            .args(["--listen", "127.0.0.1:0"]);
        echo_once(&root, &server)?;
        Ok(Vec::new())
    })
}

fn build(root: &Path, arguments: &[&str]) -> Result<()> {
    Cmd::cargo(arguments.iter().copied())
        .run(root, Some(super::LIMIT), &mut Tally::default(), &mut Output::Live)
        .map_err(anyhow::Error::msg)?;
    Ok(())
}

/// A started program in its own process group. If the stage ends early, the group is killed.
struct Running {
    child: Child,
    group: Pid,
    /// False once it has been reaped, because its id may then be reused.
    waited: bool,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let child = command.process_group(0).spawn()?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(Self { group: group.context("the program has no id")?, child, waited: false })
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        self.waited = true;
        Ok(self.child.wait()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.waited {
            // The stage has failed already. A second panic would hide the first.
            let _ = kill_process_group(self.group, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

fn echo_once(root: &Path, server: &Cmd) -> Result<()> {
    println!("$ {server}");
    let (output, writer) = std::io::pipe()?;
    let mut command = server.build(root);
    command.stderr(writer.try_clone()?).stdout(writer);
    let mut running = Running::start(&mut command).context("the server cannot be started")?;
    // The reader sees the end of the output only if no writing end is open in this process.
    drop(command);
    let lines = lines_of(output);
    let address = announced_address(&lines, START_LIMIT)?;
    page(address)?;
    exchange(address)?;
    kill_process(running.group, Signal::TERM)?;
    // The end of its output is the end of the program. Waiting for it can have a limit.
    loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(_line) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("the server did not stop on SIGTERM within the time limit")
            }
        }
    }
    let status = running.wait()?;
    ensure!(status.success(), "after SIGTERM the server left with {status}");
    Ok(())
}

/// Reads lines in a thread, so that waiting for one can have a limit.
fn lines_of(output: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            println!("{line}");
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn announced_address(lines: &mpsc::Receiver<String>, limit: Duration) -> Result<SocketAddr> {
    loop {
        let line =
            lines.recv_timeout(limit).context("the server named no address it listens on")?;
        if let Some(address) = address_in(&line) {
            return Ok(address);
        }
    }
}

/// The first address in the line whose port is not 0.
fn address_in(line: &str) -> Option<SocketAddr> {
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | ':');
    line.split(|c: char| !is_part(c))
        .filter_map(|word| word.trim_matches(['.', ':']).parse::<SocketAddr>().ok())
        .find(|address| address.port() != 0)
}

/// The handshake of RFC 6455 section 1.3.
const REQUEST: &str = "GET /echo HTTP/1.1\r\nHost: localhost\r\n\
    Upgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
const ANSWER: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

const PAGE_REQUEST: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Checks the page that a browser gets.
fn page(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(PAGE_REQUEST.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the server did not send its page")?;
    let is_page = answer.starts_with("HTTP/1.1 200 ") && answer.trim_end().ends_with("</html>");
    ensure!(is_page, "the server did not send its page but: {answer}");
    Ok(())
}

/// Echoes one message of 65 536 bytes.
fn exchange(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(REQUEST.as_bytes())?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).context("the server did not answer the handshake")?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).context("the answer is no text")?;
    let is_answer = head.starts_with("HTTP/1.1 101 ") && head.contains(ANSWER);
    ensure!(is_answer, "the server did not accept the handshake: {head}");

    let payload: Vec<u8> = (0..=u8::MAX).cycle().take(65_536).collect();
    let length = [&[127][..], &payload.len().to_be_bytes()].concat();
    // One binary message. The client's frame is masked (section 5.3) with a key of zeros, which
    // leaves the payload unchanged.
    let sent = [&[0x82, length[0] | 0x80][..], &length[1..], &[0; 4], &payload].concat();
    let expected = [&[0x82][..], &length, &payload].concat();
    let mut writer = stream.try_clone()?;
    // The buffers of both sides may be smaller than the message. So it is written while the answer
    // is read.
    let sending = std::thread::spawn(move || writer.write_all(&sent));
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received).context("the server did not echo")?;
    let written = sending.join().map_err(|_| anyhow::anyhow!("writer panicked"))?;
    written.context("the server did not take what was sent")?;
    ensure!(received == expected, "the server echoed other bytes");
    Ok(())
}

/// Runs the first suite of the benchmark program and checks its report. `peers` are options that
/// select peers; building all of them takes minutes.
pub(super) fn bench(name: &'static str, peers: &'static [&'static str], root: &Path) -> Stage {
    let root = root.to_path_buf();
    Stage::inspect(name, move || {
        let directory = root.join("target/ci");
        std::fs::create_dir_all(&directory)?;
        let json = directory.join("bench.json");
        let path = json.to_str().context("the path is not UTF-8")?;
        let run = [
            "run",
            "--release",
            "-p",
            "windlass-bench",
            "--",
            "dispatch",
            "--quick",
            "--json",
            path,
        ];
        build(&root, &[&run, peers].concat())?;
        let text = std::fs::read_to_string(&json).context("the benchmark wrote no JSON")?;
        Ok(wrong_in(&serde_json::from_str(&text)?))
    })
}

/// The defects of a benchmark report. `bench/README.md` describes its format.
fn wrong_in(report: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for field in ["version", "git", "kernel", "cpu", "cores", "date", "quick"] {
        if report["meta"].get(field).is_none() {
            wrong.push(format!("meta has no `{field}`"));
        }
    }
    if !report["skipped"].is_array() {
        wrong.push("`skipped` is no list".to_owned());
    }
    let results = report["results"].as_array().map_or(&[][..], Vec::as_slice);
    if results.is_empty() {
        wrong.push("there are no results".to_owned());
    }
    for (index, result) in results.iter().enumerate() {
        for field in ["suite", "case", "impl", "backend", "version"] {
            if !result[field].is_string() {
                wrong.push(format!("result {index} has no `{field}`"));
            }
        }
        let metrics = result["metrics"].as_object();
        if metrics.is_none_or(serde_json::Map::is_empty) {
            wrong.push(format!("result {index} has no metrics"));
        }
        for (name, metric) in metrics.into_iter().flatten() {
            let ordered = ["low", "median", "high"].map(|part| metric[part].as_f64());
            let [Some(low), Some(median), Some(high)] = ordered else {
                wrong.push(format!("result {index}: `{name}` lacks a number"));
                continue;
            };
            if !(low <= median && median <= high) {
                wrong.push(format!("result {index}: `{name}` is out of order"));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::net::TcpListener;

    fn report() -> Value {
        json!({
            "meta": {
                "version": "0.1.0", "git": "x", "kernel": "6", "cpu": "c", "cores": 2,
                "date": "d", "quick": true,
            },
            "results": [{
                "suite": "dispatch", "case": "one", "params": {},
                "impl": "windlass", "backend": "epoll", "version": "0.1.0",
                "metrics": {"ns_per_event": {"median": 2.0, "low": 1.0, "high": 3.0}},
            }],
            "skipped": [],
        })
    }

    #[test]
    fn a_whole_report_is_in_order() {
        assert_eq!(wrong_in(&report()), Vec::<String>::new());
    }

    #[test]
    fn each_missing_part_is_found() {
        let mut broken = report();
        broken["results"][0]["metrics"]["ns_per_event"]["low"] = json!(2.5);
        assert_eq!(wrong_in(&broken).len(), 1);
        broken["results"][0]["metrics"] = json!({});
        assert_eq!(wrong_in(&broken).len(), 1);
        broken["results"] = json!([]);
        assert_eq!(wrong_in(&broken).len(), 1);
        assert!(wrong_in(&json!({})).len() >= 9);
    }

    #[test]
    fn the_address_is_found_in_the_announcement() {
        let found = |line: &str| address_in(line).map(|address| address.to_string());
        let announced = found("windlass: echo on 127.0.0.1:40123.");
        assert_eq!(announced.as_deref(), Some("127.0.0.1:40123"));
        assert_eq!(found("at tcp://127.0.0.1:7/"), Some("127.0.0.1:7".to_owned()));
        assert_eq!(found("version 1.2.3, asked for 127.0.0.1:0"), None);
    }

    /// A program that announces `address` as its own, and exits with `status` on SIGTERM.
    fn announcer(address: SocketAddr, status: i32) -> Cmd {
        let script = format!(
            "trap 'kill $!; exit {status}' TERM; \
             sleep 1000 >/dev/null 2>&1 & echo at {address}; wait"
        );
        Cmd::new("sh").args(["-c", &script])
    }

    /// A server for one page and one connection. It answers with `change` of the received bytes.
    fn server(change: fn(&mut [u8])) -> SocketAddr {
        server_with_page("<!doctype html></html>\n", change)
    }

    fn server_with_page(page: &'static str, change: fn(&mut [u8])) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let address = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the stage connects");
            stream.read_exact(&mut [0; PAGE_REQUEST.len()]).expect("the request comes");
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{page}")
                .expect("it is taken");
            drop(stream);
            let (mut stream, _) = listener.accept().expect("the stage connects");
            stream.read_exact(&mut [0; REQUEST.len()]).expect("the request comes");
            let answer = format!(
                "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: {ANSWER}\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).expect("it is taken");
            let mut frame = vec![0; 14 + 65_536];
            stream.read_exact(&mut frame).expect("a frame comes");
            change(&mut frame[14..]);
            frame.drain(10..14);
            frame[1] &= 0x7f;
            stream.write_all(&frame).expect("it is taken");
            // Waits until the stage has finished.
            let _ = stream.read(&mut [0]);
        });
        address
    }

    #[test]
    fn a_server_that_echoes_and_stops_passes() {
        let address = server(|_| {});
        echo_once(Path::new("."), &announcer(address, 0)).expect("all is well");
    }

    #[test]
    fn a_server_that_leaves_with_a_failure_is_found() {
        let address = server(|_| {});
        let error = echo_once(Path::new("."), &announcer(address, 3)).expect_err("status 3");
        assert!(error.to_string().contains("after SIGTERM"), "{error}");
    }

    #[test]
    fn a_server_that_echoes_other_bytes_is_found() {
        let address = server(|bytes| bytes[0] ^= 1);
        let error = echo_once(Path::new("."), &announcer(address, 0)).expect_err("other bytes");
        assert!(error.to_string().contains("other bytes"), "{error}");
    }

    #[test]
    fn a_server_without_a_page_is_found() {
        let address = server_with_page("there is nothing here", |_| {});
        let error = echo_once(Path::new("."), &announcer(address, 0)).expect_err("no page");
        assert!(error.to_string().contains("its page"), "{error}");
    }

    #[test]
    fn a_server_that_ends_at_once_is_found() {
        let error = echo_once(Path::new("."), &Cmd::new("true")).expect_err("it never listens");
        assert!(error.to_string().contains("named no address"), "{error}");
    }
}
