//! Tests a client: the suite is the server, and the client echoes its messages. The client of the
//! engine has a blocking socket.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use windlass_ws::{
    Config, Engine, EngineEvent, EngineLimits, Scratch,
    deflate::{Compressor, DeflateConfig},
    handshake::{ClientRequest, HeadLimits, HeadReader},
};

use super::suite::{AGENT, Job, MESSAGE_MAX, SILENCE_MAX};
use super::verdict::Outcomes;
use crate::process::Process;

/// Maximum time until the suite listens.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Time between two attempts to connect until then.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Maximum number of ports to try. Another program may take a port before the suite does.
const PORTS_MAX: usize = 5;

/// Runs the cases of a part: starts the suite's server, requests each case, and stops the server.
/// `echo` is the client under test, which gets a path of the suite's server.
pub(super) fn play(
    job: &Job<'_>,
    echo: impl Fn(SocketAddr, &str) -> Result<()>,
) -> Result<Outcomes> {
    let (mut process, address) = start(job)?;
    let run = || -> Result<()> {
        let count = ask(address, "/getCaseCount")?
            .context("the suite does not say how many cases there are")?;
        ensure!(
            count == job.cases.len().to_string(),
            "the suite has {count} cases, {} were asked for",
            job.cases.len()
        );
        for index in 1..=job.cases.len() {
            echo(address, &format!("/runCase?case={index}&agent={AGENT}"))
                .with_context(|| format!("case {}", job.cases[index - 1]))?;
        }
        ask(address, &format!("/updateReports?agent={AGENT}"))?;
        Ok(())
    };
    let outcome = run();
    ensure!(process.is_running()?, "the suite's server has ended");
    process.stop()?;
    outcome.and_then(|()| job.read_index())
}

/// Starts the suite's server. It needs a port number, and another program may take a free port
/// before it listens.
fn start(job: &Job<'_>) -> Result<(Process, SocketAddr)> {
    for _ in 0..PORTS_MAX {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut process = job.play_server(address)?;
        if listens(&mut process, address)? {
            return Ok((process, address));
        }
    }
    bail!(
        "the suite's server listens on none of {PORTS_MAX} ports; its log is in {}",
        job.folder.display()
    )
}

/// Waits until the process listens. Returns false if it ended first.
fn listens(process: &mut Process, address: SocketAddr) -> Result<bool> {
    let start = Instant::now();
    while start.elapsed() < WAIT_MAX {
        if !process.is_running()? {
            return Ok(false);
        }
        match TcpStream::connect(address) {
            Ok(_) => return process.is_running(),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error).context("cannot connect to the suite"),
        }
        // sleep: no event tells that another program listens.
        thread::sleep(RETRY_AFTER);
    }
    bail!("the suite's server does not listen after {WAIT_MAX:?}")
}

/// Returns the text that the suite sends on `path` before it closes.
fn ask(address: SocketAddr, path: &str) -> Result<Option<String>> {
    let mut answer = None;
    session(address, path, |event| {
        if let EngineEvent::Text(text) = event {
            answer = Some(text.as_str().to_owned());
        }
    })?;
    Ok(answer)
}

/// Echoes every message on `path` with the engine, until the suite closes.
pub(super) fn echo(address: SocketAddr, path: &str) -> Result<()> {
    session(address, path, |event| {
        // A reply fails after the Close frame, and then the suite does not wait for it.
        let _ = match event {
            EngineEvent::Text(text) => text.reply(),
            EngineEvent::Binary(bytes) => bytes.reply(),
            _ => Ok(()),
        };
    })
}

/// The compression of the client. The suite's server asks for every parameter in turn, so the
/// client supports all of them.
pub(super) fn wishes() -> DeflateConfig {
    let mut wishes = DeflateConfig::DEFAULT;
    wishes.compressor = Compressor::Dedicated;
    wishes.threshold = 0;
    wishes
}

/// Runs a connection from its handshake to its end, and calls `on_event` for each event.
fn session(
    address: SocketAddr,
    path: &str,
    mut on_event: impl FnMut(EngineEvent<'_>),
) -> Result<()> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    let mut buffer = vec![0; 64 << 10];
    let mut scratch = Scratch::new();
    let (mut engine, first) = shake_hands(&mut socket, address, path, &mut buffer)?;
    let mut range = first;
    loop {
        let received = &mut buffer[range];
        let mut pass = engine.process(received, &mut scratch);
        while let Some(event) = pass.next() {
            on_event(event);
        }
        let outcome = pass.finish();
        for piece in scratch.output(&outcome, received) {
            match socket.write_all(piece) {
                // The suite sometimes disconnects before it has read all frames.
                Err(error) if is_gone(&error) => return Ok(()),
                written => written.context("cannot write")?,
            }
        }
        if outcome.end.is_some() {
            return finish(io::copy(&mut socket, &mut io::sink()));
        }
        range = match socket.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => 0..count,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error).context("cannot read"),
        };
    }
}

/// Returns the engine after the handshake, and the offset of the first frames in the buffer.
fn shake_hands(
    socket: &mut TcpStream,
    address: SocketAddr,
    path: &str,
    buffer: &mut [u8],
) -> Result<(Engine, std::ops::Range<usize>)> {
    let mut key = [0; 16];
    entropy(&mut key);
    let (host, wishes) = (address.to_string(), wishes());
    let request = ClientRequest::new(&host, path, key).deflate(&wishes);
    let mut out = Vec::new();
    request.write(&mut out)?;
    socket.write_all(&out)?;
    let mut head = HeadReader::new(HeadLimits::DEFAULT);
    loop {
        let count = socket.read(buffer)?;
        ensure!(count > 0, "the suite closes within its handshake");
        let Some((response, used)) = head.response(&buffer[..count])? else { continue };
        let mut limits = EngineLimits::DEFAULT;
        (limits.frame_max, limits.message_max) = (MESSAGE_MAX, MESSAGE_MAX);
        let config = Arc::new(Config::client(entropy).with_limits(limits));
        let engine = match request.check(response)?.deflate {
            Some(agreement) => Engine::with_deflate(&config, &agreement, &wishes),
            None => Engine::new(&config),
        };
        return Ok((engine, used..count));
    }
}

/// The end of a connection, of which everything was read: the server closes TCP first (RFC 6455
/// section 7.1.1).
pub(super) fn finish(rest: io::Result<u64>) -> Result<()> {
    match rest {
        Err(error) if !is_gone(&error) => Err(error).context("the suite does not close"),
        _ => Ok(()),
    }
}

/// Whether the suite has disconnected.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// Fills masking keys and the key of the handshake.
fn entropy(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel gives random bytes");
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_ws::handshake::AcceptOptions;

    /// Starts a server for one connection. It sends a message and a Close frame, and returns the
    /// received bytes.
    fn serve(listener: &TcpListener) -> Vec<String> {
        let (mut socket, _) = listener.accept().expect("the client connects");
        let mut buffer = vec![0; 4096];
        let mut head = HeadReader::new(HeadLimits::DEFAULT);
        let count = socket.read(&mut buffer).expect("the request comes");
        let (request, _) =
            head.request(&buffer[..count]).expect("it is right").expect("it is whole");
        let mut answer = Vec::new();
        let upgrade = request.upgrade().expect("it is an upgrade");
        upgrade.accept(&AcceptOptions::DEFAULT, &mut answer).expect("nothing is chosen");
        // The first frames are sent with the response.
        answer.extend_from_slice(b"\x81\x05hello\x88\x02\x03\xe8");
        socket.write_all(&answer).expect("the client reads");
        let (mut engine, mut scratch) = (Engine::new(&Arc::new(Config::server())), Scratch::new());
        let mut texts = Vec::new();
        loop {
            let count = socket.read(&mut buffer).expect("the client answers");
            let mut pass = engine.process(&mut buffer[..count], &mut scratch);
            while let Some(event) = pass.next() {
                match event {
                    EngineEvent::Text(text) => texts.push(text.to_string()),
                    EngineEvent::Close(_) => return texts,
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn messages_are_echoed_up_to_the_close_frame() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let address = listener.local_addr().expect("it is bound");
        let server = thread::spawn(move || serve(&listener));
        echo(address, "/").expect("the session is clean");
        assert_eq!(server.join().expect("no panic"), ["hello"]);
    }

    #[test]
    fn an_answer_is_the_text_before_the_close_frame() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let address = listener.local_addr().expect("it is bound");
        let server = thread::spawn(move || serve(&listener));
        assert_eq!(ask(address, "/").expect("the session is clean").as_deref(), Some("hello"));
        assert!(server.join().expect("no panic").is_empty());
    }
}
