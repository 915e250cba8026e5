//! Groups with streams and listeners that are paused and resumed.

use std::{net::TcpStream, os::fd::OwnedFd, sync::Arc, time::Duration};

use windlass::{
    Group, GroupKey, Key, Reactor, Registered, Turn,
    stream::{
        DisconnectReason, GRANULE, Input, Listener, MemberStreamHandler, Stream, StreamOptions,
        Timeout,
    },
};

use crate::{
    Build,
    bed::{HandClock, Log, Slot, drain, idle, readable, ring, run_dry, slot},
    script::{self, quiet, tcp, turn, unix},
    streams_tls_session::{CLOSE, DATA, HELLO, Sessions, contents, record},
};

const PLAIN: StreamOptions = StreamOptions::new();
const SECOND: Duration = Duration::from_secs(1);

/// Notes its callbacks, of which some do more.
#[derive(Default)]
struct Tell {
    on_open: Option<Act>,
    on_data: Option<Act>,
}

type Act = Box<dyn FnMut(&mut Stream<'_>)>;
type Said = Log<String>;

impl MemberStreamHandler<Said> for Tell {
    fn on_open(&mut self, said: &mut Said, stream: &mut Stream<'_>) {
        said.note("open".into());
        self.on_open.iter_mut().for_each(|act| act(stream));
    }

    fn on_data(&mut self, said: &mut Said, stream: &mut Stream<'_>, input: Input<'_>) {
        said.note(String::from_utf8_lossy(&input).into_owned());
        self.on_data.iter_mut().for_each(|act| act(stream));
    }

    fn on_end(&mut self, said: &mut Said, _: &mut Stream<'_>) {
        said.note("end".into());
    }

    fn on_notify(&mut self, said: &mut Said, _: &mut Stream<'_>) {
        said.note("notify".into());
    }

    fn on_full(&mut self, said: &mut Said, _: &mut Stream<'_>) {
        said.note("full".into());
    }

    fn on_drained(&mut self, said: &mut Said, _: &mut Stream<'_>) {
        said.note("drained".into());
    }

    fn on_timeout(&mut self, said: &mut Said, _: &mut Stream<'_>, timeout: Timeout) {
        said.note(format!("{timeout:?}"));
    }

    fn on_close(&mut self, said: &mut Said, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        said.note(format!("{reason}"));
    }
}

fn registered(
    reactor: &mut Reactor,
    options: StreamOptions,
    ours: OwnedFd,
    tell: Tell,
) -> (GroupKey<Said>, Key, Said) {
    let said = Log::new();
    let group = Group::new(said.clone()).stream(options.with_fd(ours), tell);
    let Registered { group, members, .. } = group.register_into(reactor).unwrap();
    (group, members[0], said)
}

/// The same, after it has opened.
fn opened(
    reactor: &mut Reactor,
    options: StreamOptions,
    ours: OwnedFd,
    tell: Tell,
) -> (GroupKey<Said>, Key, Said) {
    let registered = registered(reactor, options, ours, tell);
    run_dry(reactor);
    assert_eq!(registered.2.take(), ["open"]);
    registered
}

/// Runs turns until so many bytes were told, and returns their number.
fn told(reactor: &mut Reactor, said: &Said, count: usize) -> usize {
    let mut got = 0;
    while got < count {
        turn(reactor);
        got += said.take().iter().map(String::len).sum::<usize>();
    }
    got
}

fn input_and_its_end_come_after_the_resume(build: Build) {
    for (ours, mut peer) in script::both_families() {
        let mut reactor = build().build().unwrap();
        let (group, key, said) = opened(&mut reactor, PLAIN, ours, Tell::default());
        // A ring may have received it already.
        peer.write(b"one ");
        reactor.pause_group(group).unwrap();
        reactor.pause_group(group).unwrap();
        quiet(&mut reactor);
        peer.write(b"two ");
        peer.finish();
        reactor.stream(key).unwrap().notify();
        for _ in 0..3 {
            quiet(&mut reactor);
            run_dry(&mut reactor);
        }
        assert_eq!(said.len(), 0);
        reactor.resume_group(group).unwrap();
        reactor.resume_group(group).unwrap();
        let mut told = Vec::new();
        let count = |told: &[String], wanted: &str| told.iter().filter(|it| *it == wanted).count();
        while count(&told, "end") == 0 || count(&told, "notify") == 0 {
            turn(&mut reactor);
            told.extend(said.take());
        }
        quiet(&mut reactor);
        told.extend(said.take());
        assert_eq!((count(&told, "end"), count(&told, "notify")), (1, 1));
        let texts: Vec<_> = told.iter().filter(|text| text.ends_with(' ')).cloned().collect();
        assert_eq!(texts.concat(), "one two ");
        peer.read_all();
    }
}

/// What comes meanwhile fills the buffers of the kernel, and not those of the reactor.
fn a_paused_stream_holds_no_more_than_was_received_before(build: Build) {
    let mut reactor = build().build().unwrap();
    let (ours, mut peer) = unix();
    let (group, _, said) = opened(&mut reactor, PLAIN, ours, Tell::default());
    let bytes = vec![b'x'; 4096];
    let mut sent = peer.write_some(&bytes);
    reactor.pause_group(group).unwrap();
    quiet(&mut reactor);
    for _ in 0..200 {
        sent += peer.write_some(&bytes);
        run_dry(&mut reactor);
    }
    assert_eq!(peer.write_some(&bytes), 0, "the peer must wait");
    assert!(reactor.stream_memory() <= 2 * 4096, "{}", reactor.stream_memory());
    assert_eq!(said.len(), 0);
    reactor.resume_group(group).unwrap();
    assert_eq!(told(&mut reactor, &said, sent), sent);
}

fn a_callback_that_pauses_its_group_is_the_last_one(build: Build) {
    let mut reactor = build().build().unwrap();
    let (ours, mut peer) = tcp();
    let group: Slot<GroupKey<Said>> = slot();
    let pause = {
        let group = group.clone();
        move |stream: &mut Stream<'_>| stream.turn().pause_group(group.get().unwrap()).unwrap()
    };
    let on_open: Act = Box::new(pause.clone());
    let on_data: Act = Box::new(move |stream| {
        stream.notify();
        // More than the watermark and the socket take.
        stream.send(&vec![7; 8 << 20]).unwrap();
        pause(stream);
    });
    let tell = Tell { on_open: Some(on_open), on_data: Some(on_data) };
    let options = PLAIN.output_max(16 << 20).watermarks(10, 1000);
    let with = options.with_fd(ours).with_read_buf(b"before".to_vec());
    let said = Log::new();
    let registered = Group::new(said.clone()).stream(with, tell).register_into(&mut reactor);
    let (paused, key) = registered.map(|it| (it.group, it.members[0])).unwrap();
    group.set(Some(paused));
    quiet(&mut reactor);
    assert_eq!(said.take(), ["open"]);
    reactor.resume_group(paused).unwrap();
    quiet(&mut reactor);
    assert_eq!(said.take(), ["before"]);
    assert!(reactor.stream(key).unwrap().buffered() > 1000);
    reactor.resume_group(paused).unwrap();
    quiet(&mut reactor);
    let mut told = said.take();
    told.sort_unstable();
    assert_eq!(told, ["full", "notify"]);
    // What waits for the socket is written after the resume.
    reactor.pause_group(paused).unwrap();
    for _ in 0..3 {
        peer.read_all();
        quiet(&mut reactor);
    }
    let buffered = reactor.stream(key).unwrap().buffered();
    assert!(buffered > 1000 && said.len() == 0);
    reactor.resume_group(paused).unwrap();
    while said.len() == 0 {
        turn(&mut reactor);
        peer.read_all();
    }
    assert_eq!(said.take(), ["drained"]);
}

fn timeouts_begin_anew_with_the_resume(build: Build) {
    let clock = HandClock::new();
    let mut reactor = build().clock(clock.clone()).build().unwrap();
    let (ours, _peer) = tcp();
    let options = PLAIN.idle_timeout(Some(SECOND));
    let (group, _, said) = opened(&mut reactor, options, ours, Tell::default());
    let after = |reactor: &mut Reactor, time| {
        clock.advance(time);
        quiet(reactor);
        quiet(reactor);
        said.take()
    };
    assert!(after(&mut reactor, SECOND / 2).is_empty());
    reactor.pause_group(group).unwrap();
    assert!(after(&mut reactor, 10 * SECOND).is_empty());
    reactor.resume_group(group).unwrap();
    assert!(after(&mut reactor, Duration::ZERO).is_empty());
    assert!(after(&mut reactor, SECOND / 2).is_empty(), "it begins anew");
    assert_eq!(after(&mut reactor, SECOND / 2 + GRANULE), ["Idle"]);
}

fn a_stream_that_ends_meanwhile_is_told_after_the_resume(build: Build) {
    // Closed by another handler, reset by the peer, and with its group, which is deleted.
    for case in 0..3 {
        let mut reactor = build().build().unwrap();
        let (ours, peer) = tcp();
        let options = PLAIN.linger(Duration::ZERO);
        let (group, key, said) = opened(&mut reactor, options, ours, Tell::default());
        reactor.pause_group(group).unwrap();
        let mut peer = Some(peer);
        match case {
            0 => reactor.stream(key).unwrap().close(),
            1 => peer.take().unwrap().reset(),
            _ => {}
        }
        quiet(&mut reactor);
        run_dry(&mut reactor);
        assert_eq!((said.len(), reactor.stats().subscribers), (0, 1), "{case}");
        match case {
            2 => reactor.delete_group(group).unwrap(),
            _ => reactor.resume_group(group).unwrap(),
        }
        while reactor.stats().subscribers > 0 {
            turn(&mut reactor);
        }
        let told = said.take();
        assert_eq!(told.len(), 1, "{case}: {told:?}");
        assert_eq!(told[0] == "closed", case != 1, "{told:?}");
    }
}

fn a_paused_stream_is_released_with_what_it_has_received(build: Build) {
    let mut reactor = build().build().unwrap();
    let (ours, mut peer) = unix();
    let (group, key, said) = opened(&mut reactor, PLAIN, ours, Tell::default());
    peer.write(b"one");
    reactor.pause_group(group).unwrap();
    quiet(&mut reactor);
    reactor.stream(key).unwrap().send(b"answer").unwrap();
    let released = reactor.stream(key).unwrap().release().unwrap();
    assert_eq!((peer.read_all(), said.len()), (b"answer".to_vec(), 0));
    let mut all = released.read_buf;
    let mut socket = std::os::unix::net::UnixStream::from(released.socket.unwrap());
    if all.len() < 3 {
        socket.set_nonblocking(false).unwrap();
        let mut rest = vec![0; 3 - all.len()];
        std::io::Read::read_exact(&mut socket, &mut rest).unwrap();
        all.extend(rest);
    }
    assert_eq!(all, b"one");
    assert_eq!(reactor.resume_group(group), Err(windlass::NotFound), "the last member has left");
}

fn a_paused_listener_accepts_nothing_and_what_joins_is_paused(build: Build) {
    let mut reactor = build().build().unwrap();
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let said = Log::new();
    let group = Group::new(said.clone())
        .listener(listener, |said: &mut Said, _| {
            said.note("accept".into());
            Some(Tell::default())
        })
        .register_into(&mut reactor)
        .unwrap()
        .group;
    reactor.pause_group(group).unwrap();
    let _client = TcpStream::connect(address).unwrap();
    let (ours, mut peer) = tcp();
    peer.write(b"data");
    let join = move |mut turn: Turn<'_>| {
        let joining = turn.group(group).unwrap();
        joining.stream(PLAIN.with_fd(ours), Tell::default()).register_into(&mut turn).unwrap();
    };
    reactor.defer(join).unwrap();
    quiet(&mut reactor);
    quiet(&mut reactor);
    assert_eq!(said.len(), 0);
    reactor.resume_group(group).unwrap();
    while said.len() < 4 {
        turn(&mut reactor);
    }
    let mut told = said.take();
    told.sort_unstable();
    assert_eq!(told, ["accept", "data", "open", "open"]);
}

/// Both are ready in the same turn, in either order.
fn an_event_that_was_fetched_is_told_once(build: Build) {
    for stream_first in [false, true] {
        let mut reactor = build().build().unwrap();
        let (ours, mut peer) = unix();
        let (group, _, said) = opened(&mut reactor, PLAIN, ours, Tell::default());
        let fd = idle();
        let pause = move |fd: &mut crate::bed::Shared, mut turn: Turn<'_>| {
            drain(fd);
            turn.pause_group(group).unwrap();
        };
        readable().with_fd(fd.clone()).with_handler(pause).register_into(&mut reactor).unwrap();
        run_dry(&mut reactor);
        if stream_first {
            peer.write(b"x");
            ring(&fd);
        } else {
            ring(&fd);
            peer.write(b"x");
        }
        turn(&mut reactor);
        quiet(&mut reactor);
        let before = said.take();
        reactor.resume_group(group).unwrap();
        quiet(&mut reactor);
        let after = said.take();
        assert_eq!([before, after].concat(), ["x"]);
    }
}

/// Its handshake, a record in two parts, and its end. A ring may have received the first half of
/// each before the pause.
fn a_session_goes_on_after_the_resume(build: Build) {
    for (ours, mut peer) in script::both_families() {
        let mut reactor = build().build().unwrap();
        let said: Said = Log::new();
        let socket = PLAIN.with_fd(ours).with_tls(Arc::new(Sessions::Server));
        let group = Group::new(said.clone()).stream(socket, Tell::default());
        let group = group.register_into(&mut reactor).unwrap().group;
        let messages = [record(DATA, b"one "), record(DATA, b"two")].concat();
        let (first, rest) = messages.split_at(messages.len() - 2);
        let (hello, end) = (record(HELLO, b""), record(CLOSE, b""));
        for (bytes, expected) in [(&*hello, "open"), (first, "one "), (rest, "two"), (&*end, "end")]
        {
            let (before, after) = bytes.split_at(bytes.len() / 2);
            peer.write(before);
            reactor.pause_group(group).unwrap();
            peer.write(after);
            quiet(&mut reactor);
            assert_eq!(said.len(), 0, "before {expected}");
            reactor.resume_group(group).unwrap();
            while said.len() == 0 {
                turn(&mut reactor);
            }
            assert_eq!(said.take(), [expected]);
        }
        assert_eq!(contents(&peer.read_all()), [(HELLO, vec![])]);
    }
}

scenarios! {
    input_and_its_end_come_after_the_resume,
    a_paused_stream_holds_no_more_than_was_received_before,
    a_callback_that_pauses_its_group_is_the_last_one,
    timeouts_begin_anew_with_the_resume,
    a_stream_that_ends_meanwhile_is_told_after_the_resume,
    a_paused_stream_is_released_with_what_it_has_received,
    a_paused_listener_accepts_nothing_and_what_joins_is_paused,
    an_event_that_was_fetched_is_told_once,
    a_session_goes_on_after_the_resume,
}
