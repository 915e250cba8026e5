//! The most common calls: registration of sockets, timer closures, stream queries.

use std::{
    io::{self, Write as _},
    net::TcpStream,
    os::fd::AsRawFd as _,
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{
    AddReason, Backend, Key, Reactor, Schedule, TimerReason, Turn,
    stream::{
        Connector, DisconnectReason, Input, Listener, Peer, Stream, StreamHandler, StreamOptions,
    },
};

use crate::{
    Build,
    bed::{Log, NOW, run_dry},
    script::{Said, Script, tcp, until},
};

/// Records the keys with which it was opened and closed.
struct Keys(Log<(&'static str, Key)>);

impl StreamHandler for Keys {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.0.note(("open", stream.key()));
    }

    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}

    fn on_close(&mut self, key: Key, _: DisconnectReason, mut turn: Turn<'_>) {
        assert!(turn.stream(key).is_err(), "it is stale");
        self.0.note(("close", key));
    }
}

fn listen(
    reactor: &mut Reactor,
    accept: impl Fn() -> Option<Keys> + 'static,
) -> std::net::SocketAddr {
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let to = listener.local_addr().unwrap().socket_addr().unwrap();
    listener.with_handler(move |_| accept()).register_into(reactor).unwrap();
    to
}

fn on_close_is_told_the_key_of_every_kind_of_stream(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    // Registered, and aborted by this end.
    let (ours, _peer) = tcp();
    let key = StreamOptions::new()
        .with_fd(ours)
        .with_handler(Keys(log.clone()))
        .register_into(&mut reactor)
        .unwrap();
    run_dry(&mut reactor);
    reactor.stream(key).unwrap().abort();
    run_dry(&mut reactor);
    assert_eq!(log.take(), [("open", key), ("close", key)]);
    // Accepted, and closed by the peer.
    let noted = log.clone();
    let to = listen(&mut reactor, move || Some(Keys(noted.clone())));
    drop(TcpStream::connect(to).unwrap());
    while log.len() < 2 {
        reactor.run_once(None).unwrap();
    }
    let [opened, closed] = log.take()[..] else { panic!("two entries") };
    assert_eq!((opened.0, closed.0, opened.1), ("open", "close", closed.1));
    assert_ne!(closed.1, key);
    // Never connected.
    let missing =
        std::env::temp_dir().join(format!("windlass-forms-{}-{:p}", std::process::id(), &log));
    let key = Connector::unix(missing).connect(Keys(log.clone()), &mut reactor).unwrap();
    run_dry(&mut reactor);
    assert_eq!(log.take(), [("close", key)]);
}

fn a_stream_is_asked_through_a_shared_reference(build: Build) {
    fn facts(stream: &Stream<'_>) -> (usize, bool, bool, StreamOptions) {
        (stream.buffered(), stream.is_full(), stream.is_paused(), stream.options())
    }
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, _peer) = tcp();
    let options = StreamOptions::new().watermarks(1, 10);
    let script = Script::new(&log).on_open(move |stream| {
        assert_eq!(facts(stream), (0, false, false, options));
        stream.send(b"twelve bytes").unwrap();
        stream.pause();
        assert_eq!(facts(stream), (12, false, true, options), "it is only gathered");
    });
    let key = options.with_fd(ours).with_handler(script).register_into(&mut reactor).unwrap();
    until(&mut reactor, &log, 1);
    run_dry(&mut reactor);
    assert_eq!(facts(&reactor.stream(key).unwrap()), (0, false, true, options));
    // More than the socket takes, because the peer does not read.
    reactor.stream(key).unwrap().send(&vec![0; 8 << 20]).unwrap();
    run_dry(&mut reactor);
    let (buffered, is_full, ..) = facts(&reactor.stream(key).unwrap());
    assert!(buffered > 10 && is_full, "{buffered} bytes wait");
}

fn sockets_are_registered_as_descriptors_are(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    // Into a reactor, with bytes that other code has read before.
    let (ours, mut peer) = tcp();
    let key = StreamOptions::new()
        .with_fd(ours)
        .with_read_buf(*b"first")
        .with_handler(Script::echo(&log))
        .register_into(&mut reactor)
        .unwrap();
    until(&mut reactor, &log, 2);
    assert_eq!(log.take(), [Said::Open, Said::data(b"first")]);
    assert_eq!(peer.read_all(), b"first");
    assert_eq!(reactor.stream(key).unwrap().key(), key);
    // Into a turn: a listener, and a stream.
    let (ours, mut peer) = tcp();
    let (noted, listener) = (log.clone(), Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap());
    let to = listener.local_addr().unwrap().socket_addr().unwrap();
    let start = move |mut turn: Turn<'_>| {
        let script = Script::echo(&noted);
        StreamOptions::new().with_fd(ours).with_handler(script).register_into(&mut turn).unwrap();
        let accept = move |_: &Peer<'_>| Some(Script::echo(&noted));
        listener.with_handler(accept).register_into(&mut turn).unwrap();
    };
    reactor.defer(start).unwrap();
    until(&mut reactor, &log, 1);
    let mut client = TcpStream::connect(to).unwrap();
    client.write_all(b"accepted").unwrap();
    peer.write(b"given");
    until(&mut reactor, &log, 4);
    let said = log.take();
    assert!(
        said.contains(&Said::data(b"given")) && said.contains(&Said::data(b"accepted")),
        "{said:?}"
    );
    assert_eq!(peer.read_all(), b"given");
}

fn an_embedded_reactor_takes_sockets_in_the_same_form(build: Build) {
    let mut guest = build().build().unwrap().embed().unwrap();
    let log = Log::new();
    let (ours, mut peer) = tcp();
    let script = Script::echo(&log);
    StreamOptions::new().with_fd(ours).with_handler(script).register_into(&mut guest).unwrap();
    guest.run_once(NOW).unwrap();
    peer.write(b"hello");
    while log.len() < 2 {
        guest.run_once(None).unwrap();
    }
    assert_eq!(log.take(), [Said::Open, Said::data(b"hello")]);
}

fn a_refused_socket_comes_back_whole(build: Build) {
    let mut reactor = build().subscribers_max(1).build().unwrap();
    let log = Log::new();
    let (first, _peer) = tcp();
    StreamOptions::new()
        .with_fd(first)
        .with_handler(Script::new(&log))
        .register_into(&mut reactor)
        .unwrap();
    let (ours, mut peer) = tcp();
    let number = ours.as_raw_fd();
    let options = StreamOptions::new().output_max(7);
    let refused = options.with_fd(ours).with_read_buf(*b"kept").with_handler(Script::echo(&log));
    let e = refused.try_register_into(&mut reactor).unwrap_err();
    assert_eq!(e.reason, AddReason::LimitReached);
    let again = e.subscriber;
    // The returned value can be used with another reactor.
    let mut other = build().build().unwrap();
    let key = again.register_into(&mut other).unwrap();
    assert_eq!(other.stream(key).unwrap().options(), options);
    log.take();
    until(&mut other, &log, 2);
    assert_eq!(log.take(), [Said::Open, Said::data(b"kept")]);
    assert_eq!(peer.read_all(), b"kept");
    assert_eq!(std::os::fd::AsFd::as_fd(&other.stream(key).unwrap()).as_raw_fd(), number);
    // It can also be taken apart.
    let (ours, _peer) = tcp();
    let refused = options
        .with_fd(ours)
        .with_handler(Script::new(&log))
        .try_register_into(&mut reactor)
        .unwrap_err();
    let (with_fd, handler): (_, Script) = refused.subscriber.into_parts();
    let parts = with_fd.into_parts();
    assert_eq!((parts.options, parts.read_buf), (options, vec![]));
    rustix::io::fcntl_getfd(&parts.socket).expect("it is open");
    drop(handler);
    // The same for a listener.
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let to = listener.local_addr().unwrap();
    let noted = log.clone();
    let accept = move |_: &Peer<'_>| Some(Script::new(&noted));
    let e = listener.with_handler(accept).try_register_into(&mut reactor).unwrap_err();
    assert_eq!(e.reason, AddReason::LimitReached);
    let (listener, accept) = e.subscriber.into_parts();
    assert_eq!(listener.local_addr().unwrap(), to);
    drop(accept);
}

fn a_timers_closure_needs_no_types_where_it_takes_the_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (first, second, third) = (log.clone(), log.clone(), log.clone());
    // These closures have no type annotations.
    reactor
        .after_with(Duration::from_nanos(1), move |turn| first.note(("after", turn.stats().timers)))
        .unwrap();
    reactor.at_with(Instant::now(), move |_| second.note(("at", 0))).unwrap();
    let mut beats = 0;
    reactor
        .every_with(Duration::from_nanos(1), move |mut turn| {
            beats += 1;
            let noted = third.clone();
            if beats == 3 {
                // The same in a turn.
                turn.after_with(NOW, move |mut turn| {
                    noted.note(("inner", 0));
                    turn.stop();
                })
                .unwrap();
            }
        })
        .unwrap();
    reactor.run().unwrap();
    let mut said: Vec<_> = log.take().into_iter().map(|(name, _)| name).collect();
    said.sort_unstable();
    assert_eq!(said, ["after", "at", "inner"]);
    // A closure without parameters has no types to infer, so it uses `after`.
    let noted = log.clone();
    reactor.after(NOW, move || noted.note(("none", 0))).unwrap();
    reactor.run_once(None).unwrap();
    assert!(log.take().contains(&("none", 0)));
    // A rejected closure is dropped, or returned with all its captures.
    let witness = Rc::new(());
    let kept = witness.clone();
    let e = reactor.every_with(NOW, move |_| drop(kept.clone())).unwrap_err();
    assert_eq!((e, Rc::strong_count(&witness)), (TimerReason::ZeroPeriod, 1));
    let kept = witness.clone();
    let closure = move |_: Turn<'_>| drop(kept.clone());
    let e = reactor.try_start(Schedule::Every(NOW), closure).unwrap_err();
    assert_eq!((e.reason, Rc::strong_count(&witness)), (TimerReason::ZeroPeriod, 2));
    let e: io::Error = e.into();
    assert_eq!((e.kind(), Rc::strong_count(&witness)), (io::ErrorKind::InvalidInput, 1));
}

fn an_embedded_reactor_has_a_number_for_loops_that_ask_for_one(build: Build) {
    let mut guest = build().build().unwrap().embed().unwrap();
    assert_eq!(guest.as_raw_fd(), std::os::fd::AsFd::as_fd(&guest).as_raw_fd());
    assert_ne!(guest.with(|reactor| reactor.backend()), Backend::Poll);
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    on_close_is_told_the_key_of_every_kind_of_stream,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stream_is_asked_through_a_shared_reference,
    #[cfg_attr(miri, ignore = "sockets")]
    sockets_are_registered_as_descriptors_are,
    #[cfg_attr(miri, ignore = "sockets")]
    an_embedded_reactor_takes_sockets_in_the_same_form
        except [poll "a wait of poll(2) has no descriptor"],
    #[cfg_attr(miri, ignore = "sockets")]
    a_refused_socket_comes_back_whole,
    a_timers_closure_needs_no_types_where_it_takes_the_turn,
    an_embedded_reactor_has_a_number_for_loops_that_ask_for_one
        except [poll "a wait of poll(2) has no descriptor"],
}
