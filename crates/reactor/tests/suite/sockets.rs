//! Sockets: half-close, reset, out-of-band data, rejected and completed connects, and a process
//! without free descriptors.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    time::Duration,
};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use windlass::{EmbedReason, Event, Interest, Key, Reactor, Ready, Turn, interest};

use crate::{
    Build,
    bed::{
        Log, NOW, edge, in_own_process, noting, pair, read_some, readable, ready, run_dry, slot,
        tcp_pair,
    },
};

fn note_ready(log: &Log<Ready>) -> impl FnMut(Event) + use<> {
    let log = log.clone();
    move |event: Event| log.note(event.ready())
}

/// Runs turns until one has an event.
fn one_event(reactor: &mut Reactor) {
    assert!(reactor.run_once(None).unwrap() > 0);
}

// mio: half-close.
fn a_peer_that_closes_its_writing_half_can_still_be_written_to(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut theirs) = tcp_pair();
    let noted = log.clone();
    let handler = move |stream: &mut TcpStream, event: Event| {
        noted.note((event.ready(), read_some(stream)));
        stream.write_all(b"late").unwrap();
    };
    let wanted = edge(&reactor, interest().read().read_hangup());
    wanted.with_fd(ours).with_handler(handler).register_into(&mut reactor).unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    one_event(&mut reactor);
    let (came, bytes) = log.take().remove(0);
    assert_eq!(
        (came, bytes),
        (Ready::empty().read().read_hangup(), vec![]),
        "an end, and no hang-up of both halves"
    );
    let mut answer = [0; 4];
    theirs.set_nonblocking(false).unwrap();
    theirs.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"late");
}

fn data_before_the_end_is_read_before_the_end(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut theirs) = pair();
    theirs.write_all(b"last words").unwrap();
    drop(theirs);
    let noted = log.clone();
    let handler = move |stream: &mut UnixStream, event: Event, mut turn: Turn<'_, Reactor>| {
        let bytes = read_some(stream);
        if bytes.is_empty() {
            turn.delete(event.key()).unwrap();
        }
        noted.note(bytes);
    };
    interest().read().with_fd(ours).with_handler(handler).register_into(&mut reactor).unwrap();
    run_dry(&mut reactor);
    assert_eq!(log.take(), [b"last words".to_vec(), vec![]]);
    assert_eq!(reactor.stats().subscribers, 0);
}

// mio: RST.
fn a_reset_connection_reports_error_and_hangup(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, theirs) = tcp_pair();
    let noted = log.clone();
    let handler = move |stream: &mut TcpStream, event: Event| {
        let mut buffer = [0; 8];
        noted.note((event.ready(), stream.read(&mut buffer).map_err(|e| e.kind())));
    };
    edge(&reactor, interest().read())
        .with_fd(ours)
        .with_handler(handler)
        .register_into(&mut reactor)
        .unwrap();
    rustix::net::sockopt::set_socket_linger(&theirs, Some(NOW)).unwrap();
    drop(theirs);
    one_event(&mut reactor);
    let (came, read) = log.take().remove(0);
    assert!(came.has_error() && came.has_hangup() && came.has_read(), "{came:?}");
    assert_eq!(read, Err(io::ErrorKind::ConnectionReset));
}

// mio: HUP.
fn a_connection_closed_in_both_directions_hangs_up(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, theirs) = tcp_pair();
    ours.shutdown(Shutdown::Write).unwrap();
    let wanted = edge(&reactor, interest().read().read_hangup());
    wanted.with_fd(ours).with_handler(note_ready(&log)).register_into(&mut reactor).unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    while !log.take().iter().any(|ready| ready.has_hangup() && ready.has_read_hangup()) {
        one_event(&mut reactor);
    }
}

/// The interest in each manner that the reactor supports.
fn manners(reactor: &Reactor, wanted: Interest) -> [Interest; 3] {
    [wanted, wanted.one_shot(), edge(reactor, wanted)]
}

fn urgent(from: &TcpStream) {
    rustix::net::send(from, b"!", SendFlags::OOB).unwrap();
}

// mio: out-of-band.
fn out_of_band_data_is_priority(build: Build) {
    for (place, is_waited_for) in (0..3).flat_map(|place| [(place, false), (place, true)]) {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let (ours, theirs) = tcp_pair();
        let wanted = manners(&reactor, interest().priority())[place];
        wanted.with_fd(ours).with_handler(note_ready(&log)).register_into(&mut reactor).unwrap();
        if is_waited_for {
            assert_eq!(reactor.run_once(NOW).unwrap(), 0);
        }
        urgent(&theirs);
        let came = reactor.run_once(Duration::from_secs(5)).unwrap();
        assert_eq!(
            (came, log.take()),
            (1, vec![Ready::empty().priority()]),
            "{wanted:?}, {is_waited_for}"
        );
    }
}

fn plain_data_is_no_priority_and_causes_no_turn(build: Build) {
    for place in 0..3 {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let (ours, mut theirs) = tcp_pair();
        let wanted = manners(&reactor, interest().priority())[place];
        wanted.with_fd(ours).with_handler(note_ready(&log)).register_into(&mut reactor).unwrap();
        assert_eq!(reactor.run_once(NOW).unwrap(), 0);
        for _ in 0..3 {
            // It stays unread.
            theirs.write_all(b"x").unwrap();
            let turns = reactor.stats().turns;
            assert_eq!(reactor.run_once(Duration::from_millis(5)).unwrap(), 0, "{wanted:?}");
            assert_eq!((reactor.stats().turns, log.take()), (turns + 1, vec![]), "{wanted:?}");
        }
        urgent(&theirs);
        let came = reactor.run_once(Duration::from_secs(5)).unwrap();
        assert_eq!((came, log.take()), (1, vec![Ready::empty().priority()]), "{wanted:?}");
    }
}

fn plain_data_is_not_told_as_priority_to_who_wants_both(build: Build) {
    for place in 0..3 {
        let mut reactor = build().build().unwrap();
        let log = Log::new();
        let (ours, mut theirs) = tcp_pair();
        let wanted = manners(&reactor, interest().read().priority())[place];
        wanted.with_fd(ours).with_handler(note_ready(&log)).register_into(&mut reactor).unwrap();
        assert_eq!(reactor.run_once(NOW).unwrap(), 0);
        theirs.write_all(b"x").unwrap();
        one_event(&mut reactor);
        assert_eq!(log.take(), [Ready::empty().read()], "{wanted:?}");
    }
}

/// A non-blocking socket whose connect is in progress.
fn connecting(to: std::net::SocketAddr) -> TcpStream {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => socket.into(),
        Err(errno) => panic!("{errno}"),
    }
}

fn a_finished_connect_is_writable(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = connecting(listener.local_addr().unwrap());
    let noted = log.clone();
    let handler = move |stream: &mut TcpStream, event: Event| {
        noted.note((event.ready(), stream.take_error().unwrap().is_none()))
    };
    edge(&reactor, interest().write())
        .with_fd(stream)
        .with_handler(handler)
        .register_into(&mut reactor)
        .unwrap();
    one_event(&mut reactor);
    assert_eq!(log.take(), [(Ready::empty().write(), true)]);
}

fn a_refused_connect_is_an_error(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    // Bound but never listening. A connect is rejected, and no other socket gets the port.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address =
        std::net::SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let ours =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    let noted = log.clone();
    let handler = move |stream: &mut TcpStream, event: Event, mut turn: Turn<'_, Reactor>| {
        let error = stream.take_error().unwrap().map(|e| e.kind());
        noted.note((event.has_error(), error));
        turn.delete(event.key()).unwrap();
    };
    // On loopback the error comes at once: from the call, or before the next wait.
    let outcome = rustix::net::connect(&ours, &address);
    if outcome == Err(rustix::io::Errno::INPROGRESS) {
        interest()
            .write()
            .with_fd(TcpStream::from(ours))
            .with_handler(handler)
            .register_into(&mut reactor)
            .unwrap();
        one_event(&mut reactor);
        assert_eq!(log.take(), [(true, Some(io::ErrorKind::ConnectionRefused))]);
    } else {
        assert_eq!(outcome, Err(rustix::io::Errno::CONNREFUSED));
    }
}

// libuv: connect, then close at once.
fn a_connect_that_is_closed_at_once_is_silent(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = connecting(listener.local_addr().unwrap());
    let wanted = interest().write().read();
    let key =
        wanted.with_fd(stream).with_handler(note_ready(&log)).register_into(&mut reactor).unwrap();
    reactor.delete(key).unwrap();
    assert_eq!((run_dry(&mut reactor), log.len()), (0, 0));
}

fn a_listener_accepts_and_registers_in_its_handler(build: Build) {
    const CLIENTS: usize = 20;
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let noted = log.clone();
    let on_accept = move |listener: &mut TcpListener, mut turn: Turn<'_, Reactor>| {
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            let noted = noted.clone();
            let on_data =
                move |stream: &mut TcpStream, event: Event, mut turn: Turn<'_, Reactor>| {
                    let bytes = read_some(stream);
                    stream.write_all(&bytes).unwrap();
                    noted.note(bytes);
                    turn.delete(event.key()).unwrap();
                };
            interest()
                .read()
                .with_fd(stream)
                .with_handler(on_data)
                .register_into(&mut turn)
                .unwrap();
        }
    };
    edge(&reactor, interest().read())
        .with_fd(listener)
        .with_handler(on_accept)
        .register_into(&mut reactor)
        .unwrap();
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|client| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&[u8::try_from(client).unwrap()]).unwrap();
            stream
        })
        .collect();
    while log.len() < CLIENTS {
        reactor.run_once(None).unwrap();
    }
    for (client, mut stream) in clients.into_iter().enumerate() {
        let mut echo = Vec::new();
        stream.read_to_end(&mut echo).unwrap();
        assert_eq!(echo, [u8::try_from(client).unwrap()]);
    }
    assert_eq!(reactor.stats().subscribers, 1);
}

// polling: many connections.
fn many_streams_talk_at_once(build: Build) {
    const COUNT: usize = 60;
    const ROUNDS: usize = 20;
    let mut reactor = build().events_per_turn(16).build().unwrap();
    let log = Log::new();
    // Each pair sends a byte back and forth. Both ends have the same handler.
    for place in 0..COUNT {
        let (mut a, b) = pair();
        a.write_all(&[0]).unwrap();
        for end in [a, b] {
            let log = log.clone();
            let handler = move |stream: &mut UnixStream| {
                let bytes = read_some(stream);
                log.note(place);
                stream.write_all(&bytes).unwrap();
            };
            readable().with_fd(end).with_handler(handler).register_into(&mut reactor).unwrap();
        }
    }
    while log.len() < COUNT * ROUNDS {
        one_event(&mut reactor);
    }
    let mut served = vec![0; COUNT];
    log.take().into_iter().for_each(|place| served[place] += 1);
    assert!(served.iter().all(|count| *count > 0), "nobody starves: {served:?}");
}

// libuv: the order of closes.
fn handlers_close_each_other_in_any_order(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let other = slot::<Key>();
    let (a, b) = pair();
    for mut end in [a, b] {
        end.write_all(b"x").unwrap();
        let (log, first) = (log.clone(), other.clone());
        let handler = move |event: Event, mut turn: Turn<'_, Reactor>| {
            log.note(());
            let both = [first.get().unwrap(), event.key()];
            for key in both {
                let _ = turn.delete(key);
            }
        };
        let key =
            readable().with_fd(end).with_handler(handler).register_into(&mut reactor).unwrap();
        other.set(other.get().or(Some(key)));
    }
    run_dry(&mut reactor);
    assert_eq!(
        reactor.stats().subscribers,
        0,
        "the second end hears of nothing or of the hang-up: {}",
        log.len()
    );
}

/// Opens every descriptor that the process may have.
fn take_all() -> Vec<std::os::fd::OwnedFd> {
    let mut all = Vec::new();
    loop {
        match rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC) {
            Ok(fd) => all.push(fd),
            Err(errno) => {
                assert_eq!(errno, rustix::io::Errno::MFILE);
                return all;
            }
        }
    }
}

// libuv: emfile.
fn a_process_without_descriptors_keeps_its_loop(build: Build) {
    if !in_own_process(build, "sockets", "a_process_without_descriptors_keeps_its_loop") {
        return;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(64), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let noted = log.clone();
    let on_accept = move |listener: &mut TcpListener| {
        noted.note(listener.accept().map(drop).map_err(|e| e.raw_os_error()))
    };
    interest()
        .read()
        .with_fd(listener)
        .with_handler(on_accept)
        .register_into(&mut reactor)
        .unwrap();
    let fd = ready();
    let others = Log::new();
    noting(&mut reactor, &fd, &others, ());
    let mut all = take_all();

    one_event(&mut reactor);
    assert_eq!(log.take(), [Err(Some(libc::EMFILE))], "the listener's business");
    assert_eq!(others.take().len(), 1, "everybody else is served");
    assert!(matches!(build().build(), Err(windlass::BuildError::Os(windlass::Errno::MFILE))));
    let error = match build().build() {
        Err(error) => io::Error::from(error),
        Ok(_) => unreachable!(),
    };
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    reactor = match reactor.try_embed() {
        Err(e) => {
            let is_refused = e.reactor.backend() == windlass::Backend::Poll;
            assert_eq!(
                e.reason,
                if is_refused {
                    EmbedReason::Unsupported
                } else {
                    EmbedReason::Os(windlass::Errno::MFILE)
                }
            );
            *e.reactor
        }
        Ok(_) => panic!("it needs three descriptors"),
    };
    all.truncate(all.len() - 1);
    one_event(&mut reactor);
    assert_eq!(log.take(), [Ok(())], "with one descriptor it accepts");
}

scenarios! {
    #[cfg_attr(miri, ignore = "Miri's TCP is not the kernel's")]
    a_peer_that_closes_its_writing_half_can_still_be_written_to,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    data_before_the_end_is_read_before_the_end,
    #[cfg_attr(miri, ignore = "Miri's TCP is not the kernel's")]
    a_reset_connection_reports_error_and_hangup,
    #[cfg_attr(miri, ignore = "Miri's TCP is not the kernel's")]
    a_connection_closed_in_both_directions_hangs_up,
    #[cfg_attr(miri, ignore = "Miri's TCP is not the kernel's")]
    out_of_band_data_is_priority,
    #[cfg_attr(miri, ignore = "Miri's TCP is not the kernel's")]
    plain_data_is_no_priority_and_causes_no_turn,
    #[cfg_attr(miri, ignore = "Miri's TCP is not the kernel's")]
    plain_data_is_not_told_as_priority_to_who_wants_both,
    #[cfg_attr(miri, ignore = "Miri's TCP is not the kernel's")]
    a_finished_connect_is_writable,
    #[cfg_attr(miri, ignore = "Miri's TCP is not the kernel's")]
    a_refused_connect_is_an_error,
    #[cfg_attr(miri, ignore = "Miri's TCP is not the kernel's")]
    a_connect_that_is_closed_at_once_is_silent,
    #[cfg_attr(miri, ignore = "Miri's TCP is not the kernel's")]
    a_listener_accepts_and_registers_in_its_handler,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    many_streams_talk_at_once,
    #[cfg_attr(miri, ignore = "Miri's socket pairs cannot be made non-blocking by std")]
    handlers_close_each_other_in_any_order,
    #[cfg_attr(miri, ignore = "Miri has no processes")]
    a_process_without_descriptors_keeps_its_loop,
}
