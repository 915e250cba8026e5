//! Runs a reactor, and a server, under the filters of `docs/syscalls`. After start-up they need no
//! other calls.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use windlass_testkit::{rings, seccomp};

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitStatus,
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::event::{EventfdFlags, eventfd};
use seccompiler::{TargetArch, compile_from_json};
use windlass::{
    Backend, Event, Key, Reactor, Turn, interest,
    stream::{Connector, DisconnectReason, Input, Listener, Stream, StreamHandler},
};
use windlass_server::{
    Connection, Handler, Message, Options, Server,
    http::{Accept, Reject, UpgradeRequest},
};

/// Puts the process under the filter of the part `reactor` and more parts, without a call.
fn confine(backend: Backend, more: &[&str], forbidden: Option<&str>) {
    let name = match backend {
        Backend::Epoll => "epoll",
        Backend::Poll => "poll",
        _ => "uring",
    };
    seccomp::confine(name, &[&["reactor"], more].concat(), forbidden);
}

struct Echo;

impl Handler for Echo {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        let _ = connection.reply_in_place(message);
    }
}

/// Runs the server in the confined process until its standard input is closed.
fn serve(backend: Backend, forbidden: Option<&str>) {
    let address = "127.0.0.1:0".parse().expect("an address");
    let running = Server::new(Options::new(), |_| Echo)
        .backend(backend)
        .listen(address)
        .start()
        .expect("it starts");
    confine(running.backend(), &[], forbidden);
    println!("\nlistening on {}", running.addresses()[0]);
    let _ = std::io::stdin().read(&mut [0]);
    running.drain(Duration::from_secs(5));
    running.join().expect("it ends well");
}

/// Sends back what it gets, and stops the reactor at the end of the connection.
struct Back;

impl StreamHandler for Back {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        stream.send(&input).expect("there is room for a line");
    }

    fn on_close(&mut self, _: Key, _: DisconnectReason, mut turn: Turn<'_>) {
        turn.stop();
    }
}

/// A connection of the reactor to itself, which ends when it is made.
struct Own;

impl StreamHandler for Own {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        stream.finish();
    }

    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

/// Runs a reactor in the confined process: eventfds that come, change and go, timers, posts of
/// another thread, a handler that panics, a connection to itself, and one from outside. It ends
/// with that one.
fn react(backend: Backend, forbidden: Option<&str>) {
    let mut reactor = Reactor::builder().backend(backend).build().expect("it is built");
    let listener = Listener::tcp("127.0.0.1:0".parse().expect("an address")).expect("it listens");
    let address = listener.local_addr().expect("it has one").socket_addr().expect("of TCP");
    let remote = reactor.remote();
    let (begin, begun) = mpsc::channel::<()>();
    let (is_started, started) = mpsc::channel::<()>();
    let poster = thread::spawn(move || {
        is_started.send(()).expect("it is awaited");
        begun.recv().expect("it begins");
        (0..100).for_each(|_| remote.post(|_| {}).expect("the loop runs"));
    });
    // The start of a thread takes calls of its own.
    started.recv().expect("it starts");
    confine(reactor.backend(), &["connections"], forbidden);
    begin.send(()).expect("the thread waits");
    listener.with_handler(|_| Some(Back)).register_into(&mut reactor).expect("it is registered");
    let eventfd = || eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    for _ in 0..3 {
        let fd = eventfd().expect("a descriptor is left");
        let again = |fd: &mut OwnedFd, event: Event, mut turn: Turn<'_>| {
            // A spurious wake-up.
            let Ok(8) = rustix::io::read(&*fd, &mut [0; 8]) else { return };
            turn.modify(event.key(), interest()).expect("it is registered");
            turn.after_with(Duration::from_micros(300), move |mut turn| {
                turn.delete(event.key()).expect("it is registered");
            })
            .expect("a timer is left");
        };
        interest().read().with_fd(fd).with_handler(again).register_into(&mut reactor).expect("new");
    }
    reactor.after(Duration::from_secs(3600), || {}).expect("a timer is left");
    let own = Listener::tcp("127.0.0.1:0".parse().expect("an address")).expect("it listens");
    let to = own.local_addr().expect("it has one").socket_addr().expect("of TCP");
    own.with_handler(|_| Some(Own)).register_into(&mut reactor).expect("it is registered");
    Connector::tcp(to).connect(Own, &mut reactor).expect("it begins");
    reactor.after(Duration::ZERO, || panic!("a handler panics")).expect("a timer is left");
    assert!(catch_unwind(AssertUnwindSafe(|| reactor.run())).is_err());
    println!("\nlistening on {address}");
    reactor.run().expect("it runs");
    poster.join().expect("it has posted");
}

/// Talks to the reactor.
fn talk_to_reactor(address: &str) -> std::io::Result<()> {
    let mut client = TcpStream::connect(address)?;
    client.set_read_timeout(Some(Duration::from_secs(20)))?;
    client.write_all(b"hello")?;
    let mut came = [0; 5];
    client.read_exact(&mut came)?;
    assert_eq!(&came, b"hello");
    Ok(())
}

/// Talks to the server: a short and a long message, a second client that disconnects without a
/// request, and a Close frame.
fn talk(address: &str) -> std::io::Result<()> {
    let mut client = TcpStream::connect(address)?;
    client.set_read_timeout(Some(Duration::from_secs(20)))?;
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    client.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(client.try_clone()?);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(reader.read_line(&mut line)? > 0, "the head ends");
    }
    drop(TcpStream::connect(address)?);
    for length in [5usize, 100_000] {
        // A final text frame, masked with zeros (RFC 6455 section 5.2).
        let mut frame = vec![0x81];
        let mut expected = vec![0x81];
        if length < 126 {
            frame.push(0x80 | u8::try_from(length).expect("short"));
            expected.push(u8::try_from(length).expect("short"));
        } else {
            frame.push(0xff);
            expected.push(0x7f);
            frame.extend((length as u64).to_be_bytes());
            expected.extend((length as u64).to_be_bytes());
        }
        frame.extend([0; 4]);
        frame.resize(frame.len() + length, b'x');
        expected.resize(expected.len() + length, b'x');
        client.write_all(&frame)?;
        let mut came = vec![0; expected.len()];
        reader.read_exact(&mut came)?;
        assert!(came == expected, "what was sent comes back");
    }
    client.write_all(&[0x88, 0x80, 0, 0, 0, 0])?;
    reader.read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Runs `confined` in its own process and talks to it. Returns whether it has answered, and how it
/// has ended; `None` in that process.
fn run(
    test: &str,
    confined: impl FnOnce(),
    talk: impl FnOnce(&str) -> std::io::Result<()>,
) -> Option<(bool, ExitStatus)> {
    if seccomp::is_to_be_confined() {
        confined();
        return None;
    }
    let (mut child, mut output) = seccomp::start(test);
    let address = seccomp::line_after(&mut output, "listening on ");
    let talked = address.is_some_and(|address| talk(&address).is_ok());
    drop(child.stdin.take());
    let rest: Vec<String> = output.lines().map_while(Result::ok).collect();
    let end = child.wait_with_output().expect("it is ours");
    println!("{}: {rest:?}\n{}", end.status, String::from_utf8_lossy(&end.stderr));
    Some((talked, end.status))
}

/// Runs a program on a backend, in a test of this name.
macro_rules! confined {
    ($($name:ident: $program:ident on $backend:ident, $talk:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let backend = Backend::$backend;
                if backend != Backend::Uring || rings::are_to_be_had(stringify!($name)) {
                    let outcome = run(stringify!($name), || $program(backend, None), $talk);
                    assert!(outcome.is_none_or(|(talked, status)| talked && status.success()));
                }
            }
        )*
    };
}

confined! {
    a_server_on_epoll_needs_no_other_calls: serve on Epoll, talk;
    a_server_on_poll_needs_no_other_calls: serve on Poll, talk;
    a_server_on_a_ring_needs_no_other_calls: serve on Uring, talk;
    a_reactor_on_epoll_needs_no_other_calls: react on Epoll, talk_to_reactor;
    a_reactor_on_poll_needs_no_other_calls: react on Poll, talk_to_reactor;
    a_reactor_on_a_ring_needs_no_other_calls: react on Uring, talk_to_reactor;
}

// The filter is in force: a forbidden call kills the process.
#[test]
fn a_forbidden_system_call_kills_the_process() {
    let test = "a_forbidden_system_call_kills_the_process";
    let outcome = run(test, || serve(Backend::Epoll, Some("accept4")), talk);
    if let Some((_, status)) = outcome {
        assert_eq!(status.signal(), Some(rustix::process::Signal::SYS.as_raw()));
    }
}

#[test]
fn each_list_is_a_filter() {
    for backend in ["epoll", "uring", "poll"] {
        let processors = [("x86_64", TargetArch::x86_64), ("aarch64", TargetArch::aarch64)];
        for (name, processor) in processors {
            let list = seccomp::list(backend, name).to_string();
            let filters = compile_from_json(list.as_bytes(), processor).expect("a filter");
            assert!(filters["reactor"].len() > 30, "{backend} on {name}");
        }
    }
}
