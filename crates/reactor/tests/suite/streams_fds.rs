//! Descriptors in streams over Unix sockets.

use std::os::{fd::OwnedFd, unix::net::UnixStream};

use rustix::{
    event::PollFlags,
    io::FdFlags,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use windlass::{
    Key, Reactor,
    fd_passing::{FDS_MAX, RecvFdsError, SendFdsError, recv_with_fds, send_all_with_fds},
    stream::{DisconnectReason, StreamFdsError, StreamOptions, StreamWriteError},
};

use crate::{
    Build,
    bed::{Log, NOW, in_own_process, pair, panic_of, run_dry},
    fd_passing::{Sent, all_closed, fds, sent},
    script::{Peer, Said, Script, await_conditions, fill, open, quiet, tcp, turn, until},
};

const CARRIES: StreamOptions = StreamOptions::new().fds_max(4);

/// A reactor with an open stream, and its peer.
fn connected(build: Build, options: StreamOptions, script: Script) -> (Reactor, Key, UnixStream) {
    let (ours, theirs) = pair();
    let mut reactor = build().build().unwrap();
    let key = open(&mut reactor, options, ours.into(), script);
    (reactor, key, theirs)
}

/// What the peer reads, and at which bytes descriptors came. Reads so many bytes at a time.
#[derive(Default)]
struct Reading {
    bytes: usize,
    fds: Vec<(usize, OwnedFd)>,
}

impl Reading {
    fn read(&mut self, peer: &UnixStream, step: usize) -> Result<Vec<u8>, RecvFdsError> {
        let mut buffer = vec![0; step];
        let (count, fds) = recv_with_fds(peer, &mut buffer, FDS_MAX)?;
        self.fds.extend(fds.into_iter().map(|fd| (self.bytes, fd)));
        self.bytes += count;
        buffer.truncate(count);
        Ok(buffer)
    }
}

/// Whether these are the descriptors, each received in the read that has the byte of that number.
fn are(received: Vec<(usize, OwnedFd)>, step: usize, sent: &mut [Sent], at: &[usize]) -> bool {
    received.len() == at.len()
        && received.into_iter().zip(sent).zip(at).all(|(((read_at, fd), sent), at)| {
            (read_at..read_at + step).contains(at) && sent.is(fd)
        })
}

fn a_handler_takes_the_descriptors_with_their_first_byte(build: Build) {
    let log = Log::new();
    let taken = Log::new();
    let script = Script::new(&log).on_data({
        let taken = taken.clone();
        move |stream, _| {
            let count = stream.received_fds();
            let fds = stream.take_fds();
            assert_eq!((fds.len(), stream.received_fds()), (count, 0));
            fds.into_iter().for_each(|fd| taken.note(fd));
        }
    });
    let (mut reactor, _, peer) = connected(build, CARRIES, script);
    let mut sent = sent(3);
    for (bytes, fds) in [
        (&b"plain "[..], vec![]),
        (b"one ", vec![sent[0].fd()]),
        (b"two", vec![sent[1].fd(), sent[2].fd()]),
    ] {
        send_all_with_fds(&peer, bytes, &fds).unwrap();
    }
    quiet(&mut reactor);
    let said = log.take();
    assert_eq!(said, [Said::Open, Said::data(b"plain one "), Said::data(b"two")]);
    for (fd, sent) in taken.take().into_iter().zip(&mut sent) {
        assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
        assert!(sent.is(fd));
    }
    assert!(all_closed(&mut sent), "each was taken once");
}

fn output_keeps_the_place_of_its_descriptors(build: Build) {
    for step in [1, 2, 5, 64] {
        let (mut reactor, key, peer) = connected(build, CARRIES, Script::new(&Log::new()));
        let mut sent = sent(3);
        let mut stream = reactor.stream(key).unwrap();
        stream.send(b"before").unwrap();
        stream.send_with_fds(b"one", &fds(&sent[..1])).unwrap();
        stream.send(b"between").unwrap();
        stream.send_with_fds(b"two", &fds(&sent[1..])).unwrap();
        stream.send_with_fds(b"none", &[]).unwrap();
        assert_eq!(stream.buffered_fds(), 0, "written at once");
        turn(&mut reactor);
        let (mut reading, mut got) = (Reading::default(), Vec::new());
        while let Ok(bytes) = reading.read(&peer, step) {
            got.extend(bytes);
        }
        assert_eq!(got, b"beforeonebetweentwonone");
        assert!(are(reading.fds, step, &mut sent, &[6, 16, 16]), "read {step} at a time");
        assert!(all_closed(&mut sent), "sent once");
    }
}

fn descriptors_wait_for_a_full_socket_in_their_place(build: Build) {
    for (step, is_full) in [(7, true), (1 << 16, true), (1 << 16, false)] {
        let (mut reactor, key, peer) = connected(build, CARRIES, Script::new(&Log::new()));
        let filled = if is_full { fill(&mut reactor, key) } else { 0 };
        let mut sent = sent(4);
        let mut stream = reactor.stream(key).unwrap();
        stream.send(b"a").unwrap();
        // Longer than the socket has room for, so that its parts go at different times.
        let long = vec![b'b'; 700_000];
        stream.send_with_fds(&long, &fds(&sent[..2])).unwrap();
        // If the socket has accepted a part, they have gone with it.
        assert_eq!(stream.buffered_fds(), if is_full { 2 } else { 0 });
        stream.send_with_fds(b"c", &fds(&sent[2..3])).unwrap();
        stream.send(&long).unwrap();
        stream.send_with_fds(b"d", &fds(&sent[3..])).unwrap();
        assert_eq!(stream.buffered_fds(), if is_full { 4 } else { 2 });
        sent.iter_mut().for_each(|sent| assert!(sent.is_open(), "the stream has duplicates"));
        let (mut reading, mut got) = (Reading::default(), Vec::new());
        let all = filled + 3 + 2 * long.len();
        while got.len() < all {
            match reading.read(&peer, step) {
                Ok(bytes) => got.extend(bytes),
                Err(_) => drop(reactor.run_once(NOW).unwrap()),
            }
        }
        let mut expected = vec![7; filled];
        expected.extend([b"a", &long[..], b"c", &long[..], b"d"].concat());
        assert!(got == expected);
        let (b, c, d) = (filled + 1, filled + 1 + long.len(), all - 1);
        assert!(are(reading.fds, step, &mut sent, &[b, b, c, d]), "read {step} at a time");
        assert_eq!(reactor.stream(key).unwrap().buffered_fds(), 0);
        assert!(all_closed(&mut sent), "sent once");
    }
}

fn what_is_rejected_is_not_sent(build: Build) {
    let (mut reactor, key, peer) =
        connected(build, CARRIES.output_max(1 << 20), Script::new(&Log::new()));
    let mut sent = sent(1);
    let fd = sent[0].fd();
    let mut stream = reactor.stream(key).unwrap();
    assert_eq!(stream.send_with_fds(b"x", &[fd; 5]), Err(StreamFdsError::AboveMax));
    assert_eq!(stream.send_with_fds(b"", &[fd]), Err(SendFdsError::NoBytes.into()));
    let full = StreamFdsError::Write(StreamWriteError::Full);
    assert_eq!(stream.send_with_fds(&vec![0; (1 << 20) + 1], &[fd]), Err(full));
    let bad = stream.send_with_fds(b"x", &[rustix::fs::CWD]);
    assert_eq!(bad, Err(SendFdsError::Os(windlass::Errno::BADF).into()));
    turn(&mut reactor);
    assert!(recv_with_fds(&peer, &mut [0; 9], FDS_MAX).is_err(), "nothing has come");
    // With as many as may be waiting, the next are rejected.
    fill(&mut reactor, key);
    let mut stream = reactor.stream(key).unwrap();
    stream.send_with_fds(b"x", &[fd; 3]).unwrap();
    assert_eq!(stream.send_with_fds(b"x", &[fd; 2]), Err(StreamFdsError::LimitReached));
    stream.send_with_fds(b"x", &[fd]).unwrap();
    assert_eq!((stream.buffered_fds(), stream.buffered()), (4, 2));
    stream.close();
    let closed = StreamFdsError::Write(StreamWriteError::Closed);
    assert_eq!(stream.send_with_fds(b"x", &[fd]), Err(closed));
    stream.discard();
    assert_eq!(stream.send_with_fds(b"x", &[fd]), Err(closed));
    quiet(&mut reactor);

    let many = StreamOptions::new().fds_max(1000);
    let (mut reactor, key, _peer) = connected(build, many, Script::new(&Log::new()));
    let sent_now = reactor.stream(key).unwrap().send_with_fds(b"x", &vec![fd; FDS_MAX + 1]);
    assert_eq!(sent_now, Err(SendFdsError::TooMany.into()));
    let key = open(&mut reactor, many, tcp().0, Script::new(&Log::new()));
    let sent_now = reactor.stream(key).unwrap().send_with_fds(b"x", &[fd]);
    assert_eq!(sent_now, Err(SendFdsError::NotUnix.into()));
    assert!(all_closed(&mut sent), "nothing has kept a duplicate");
}

fn a_stream_without_fds_max_carries_none(build: Build) {
    let log = Log::new();
    let (mut reactor, key, peer) = connected(build, StreamOptions::new(), Script::new(&log));
    let mut sent = sent(1);
    let rejected = reactor.stream(key).unwrap().send_with_fds(b"x", &fds(&sent));
    assert_eq!(rejected, Err(StreamFdsError::AboveMax));
    send_all_with_fds(&peer, b"with", &fds(&sent)).unwrap();
    quiet(&mut reactor);
    assert_eq!(log.take(), [Said::Open, Said::data(b"with")]);
    assert!(all_closed(&mut sent), "by the kernel");
}

fn a_peer_that_sends_more_than_fds_max_is_disconnected(build: Build) {
    for taken in [true, false] {
        let log = Log::new();
        let script = Script::new(&log).on_data(move |stream, _| {
            if taken {
                stream.take_fds();
            }
        });
        let (mut reactor, _, peer) = connected(build, CARRIES, script);
        let mut sent = sent(8);
        send_all_with_fds(&peer, b"four", &fds(&sent[..4])).unwrap();
        let next = if taken { &sent[3..] } else { &sent[7..] };
        send_all_with_fds(&peer, b"more", &fds(next)).unwrap();
        quiet(&mut reactor);
        let close = Said::Close(DisconnectReason::TooManyFds);
        assert_eq!(log.take(), [Said::Open, Said::data(b"four"), close, Said::Dropped]);
        assert!(all_closed(&mut sent));
        await_conditions(&peer, PollFlags::HUP);
        assert!(matches!(recv_with_fds(&peer, &mut [0], 0), Ok((0, _))), "its end of the stream");
    }
}

fn a_message_without_all_of_its_descriptors_ends_the_stream(build: Build) {
    if !in_own_process(
        build,
        "streams_fds",
        "a_message_without_all_of_its_descriptors_ends_the_stream",
    ) {
        return;
    }
    let log = Log::new();
    let (mut reactor, _, peer) = connected(build, CARRIES, Script::new(&log));
    let mut sent = sent(4);
    send_all_with_fds(&peer, b"cut", &fds(&sent)).unwrap();
    // Room for two of the four. The numbers of the process are dense.
    let free = std::os::fd::AsRawFd::as_raw_fd(&peer.try_clone().unwrap());
    let before = getrlimit(Resource::Nofile);
    let current = Some(u64::try_from(free).unwrap() + 2);
    setrlimit(Resource::Nofile, Rlimit { current, ..before }).unwrap();
    run_dry(&mut reactor);
    setrlimit(Resource::Nofile, before).unwrap();
    let close = Said::Close(DisconnectReason::FdsTruncated);
    assert_eq!(log.take(), [Said::Open, close, Said::Dropped]);
    assert!(all_closed(&mut sent));
}

/// The stream once watched a socket for room, although nothing waited for it: its loop did not
/// sleep again.
fn descriptors_that_cannot_be_kept_leave_nothing_waiting(build: Build) {
    if !in_own_process(
        build,
        "streams_fds",
        "descriptors_that_cannot_be_kept_leave_nothing_waiting",
    ) {
        return;
    }
    let (mut reactor, key, mut peer) = connected(build, CARRIES, Script::new(&Log::new()));
    fill(&mut reactor, key);
    let sent = sent(1);
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
    let rejected = reactor.stream(key).unwrap().send_with_fds(b"x", &fds(&sent));
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(matches!(rejected, Err(StreamFdsError::Send(SendFdsError::Os(_)))), "{rejected:?}");
    let mut buffer = vec![0; 1 << 20];
    while std::io::Read::read(&mut peer, &mut buffer).is_ok() {}
    // It panics if the loop spins.
    quiet(&mut reactor);
    reactor.stream(key).unwrap().send_with_fds(b"x", &fds(&sent)).unwrap();
    assert_eq!(recv_with_fds(&peer, &mut buffer, 1).unwrap().1.len(), 1);
}

fn a_peer_that_closes_leaves_what_it_has_sent(build: Build) {
    let log = Log::new();
    let taken = Log::new();
    let script = Script::new(&log).on_data({
        let taken = taken.clone();
        move |stream, _| stream.take_fds().into_iter().for_each(|fd| taken.note(fd))
    });
    let (mut reactor, _, peer) = connected(build, CARRIES, script);
    let mut sent = sent(1);
    send_all_with_fds(&peer, b"last", &fds(&sent)).unwrap();
    drop(peer);
    until(&mut reactor, &log, 5);
    let close = Said::Close(DisconnectReason::Closed);
    assert_eq!(log.take(), [Said::Open, Said::data(b"last"), Said::End, close, Said::Dropped]);
    assert!(sent[0].is(taken.take().remove(0)));
}

/// Ways to end a stream.
type End = fn(&mut Reactor, Key);

const ENDS: [End; 3] = [
    |reactor, key| reactor.stream(key).unwrap().abort(),
    |reactor, key| reactor.stream(key).unwrap().discard(),
    |reactor, key| {
        reactor.stream(key).unwrap().notify();
        assert_eq!(panic_of(|| while turn(reactor) > 0 {}), "expected");
    },
];

fn descriptors_end_with_their_stream(build: Build) {
    for (number, end) in ENDS.into_iter().map(Some).chain([None]).enumerate() {
        let script = Script::new(&Log::new()).on_notify(|_| panic!("expected"));
        let (mut reactor, key, peer) = connected(build, CARRIES, script);
        let mut sent = sent(2);
        send_all_with_fds(&peer, b"not taken", &fds(&sent[..1])).unwrap();
        quiet(&mut reactor);
        fill(&mut reactor, key);
        let mut stream = reactor.stream(key).unwrap();
        stream.send_with_fds(b"not read", &fds(&sent[1..])).unwrap();
        assert_eq!((stream.received_fds(), stream.buffered_fds()), (1, 1));
        assert!(sent[0].is_open() && sent[1].is_open());
        match end {
            Some(end) => end(&mut reactor, key),
            None => drop(core::mem::replace(&mut reactor, build().build().unwrap())),
        }
        // `discard` does not wait for the end of the turn.
        if number != 1 {
            quiet(&mut reactor);
        }
        assert!(all_closed(&mut sent), "end {number}");
    }
}

fn a_closed_stream_discards_descriptors(build: Build) {
    let log = Log::new();
    let (mut reactor, key, peer) = connected(build, CARRIES, Script::new(&log));
    reactor.stream(key).unwrap().close();
    quiet(&mut reactor);
    let mut sent = sent(6);
    send_all_with_fds(&peer, b"late", &fds(&sent)).unwrap();
    quiet(&mut reactor);
    assert!(all_closed(&mut sent));
    assert_eq!(log.take(), [Said::Open], "it waits for the end of the peer");
    Peer::Unix(peer).finish();
    quiet(&mut reactor);
    let close = Said::Close(DisconnectReason::Closed);
    assert_eq!(log.take(), [close, Said::Dropped]);
}

fn a_paused_stream_receives_none(build: Build) {
    let log = Log::new();
    let (mut reactor, key, peer) = connected(build, CARRIES, Script::new(&log));
    reactor.stream(key).unwrap().pause();
    quiet(&mut reactor);
    let sent = sent(1);
    send_all_with_fds(&peer, b"x", &fds(&sent)).unwrap();
    quiet(&mut reactor);
    let mut stream = reactor.stream(key).unwrap();
    assert_eq!(stream.received_fds(), 0);
    stream.resume();
    quiet(&mut reactor);
    assert_eq!(reactor.stream(key).unwrap().received_fds(), 1);
    assert_eq!(log.take(), [Said::Open, Said::data(b"x")]);
}

fn a_released_stream_returns_its_descriptors(build: Build) {
    let (mut reactor, key, peer) = connected(build, CARRIES, Script::new(&Log::new()));
    let mut sent = sent(2);
    send_all_with_fds(&peer, b"not taken", &fds(&sent[..1])).unwrap();
    quiet(&mut reactor);
    fill(&mut reactor, key);
    let mut stream = reactor.stream(key).unwrap();
    stream.send(b"ab").unwrap();
    stream.send_with_fds(b"cd", &fds(&sent[1..])).unwrap();
    let mut released = stream.release().unwrap();
    assert_eq!((released.unsent, released.fds.len()), (b"abcd".to_vec(), 1));
    assert!(sent[0].is(released.fds.remove(0)));
    let (at, mut unsent) = released.unsent_fds.remove(0);
    assert_eq!((at, unsent.len(), released.unsent_fds.len()), (2, 1, 0));
    assert!(sent[1].is(unsent.remove(0)) && all_closed(&mut sent));
}

scenarios! {
    a_handler_takes_the_descriptors_with_their_first_byte,
    output_keeps_the_place_of_its_descriptors,
    descriptors_wait_for_a_full_socket_in_their_place,
    what_is_rejected_is_not_sent,
    a_stream_without_fds_max_carries_none,
    a_peer_that_sends_more_than_fds_max_is_disconnected,
    a_message_without_all_of_its_descriptors_ends_the_stream,
    descriptors_that_cannot_be_kept_leave_nothing_waiting,
    a_peer_that_closes_leaves_what_it_has_sent,
    descriptors_end_with_their_stream,
    a_closed_stream_discards_descriptors,
    a_paused_stream_receives_none,
    a_released_stream_returns_its_descriptors,
}
