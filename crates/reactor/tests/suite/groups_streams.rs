//! Streams, listeners and connections as members of a group.

use std::{net::TcpStream, os::fd::OwnedFd, time::Duration};

use windlass::{
    AddReason, Group, GroupKey, GroupReason, Key, NotFound, Reactor, Registered, TimerReason, Turn,
    stream::{
        Connector, DisconnectReason, Input, ListenOptions, Listener, ListenerKey,
        MemberStreamHandler, Stream, StreamOptions, Timeout,
    },
};

use crate::{
    Build,
    bed::{Log, NOW, Shared, drain, idle, panic_of, readable, ready},
    script::{Peer, quiet, turn, unix},
};

const LATER: Duration = Duration::from_secs(1000);

/// What all members share.
struct Room {
    log: Log<String>,
    members: Vec<Key>,
}

impl Room {
    fn new(log: &Log<String>) -> Self {
        Self { log: log.clone(), members: Vec::new() }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.log.note("room dropped".into());
    }
}

/// Sends what it receives to all members, and panics if it is told to.
struct Member;

impl MemberStreamHandler<Room> for Member {
    fn on_open(&mut self, room: &mut Room, stream: &mut Stream<'_>) {
        room.members.push(stream.key());
    }

    fn on_data(&mut self, room: &mut Room, stream: &mut Stream<'_>, input: Input<'_>) {
        assert_ne!(&input[..], b"panic");
        for key in &room.members {
            stream.turn().stream(*key).unwrap().send(&input).unwrap();
        }
    }

    fn on_end(&mut self, room: &mut Room, stream: &mut Stream<'_>) {
        room.log.note("end".into());
        stream.close();
    }

    fn on_notify(&mut self, room: &mut Room, _: &mut Stream<'_>) {
        room.log.note("notify".into());
    }

    fn on_timeout(&mut self, room: &mut Room, stream: &mut Stream<'_>, timeout: Timeout) {
        room.log.note(format!("{timeout:?}"));
        stream.abort();
    }

    fn on_close(&mut self, room: &mut Room, key: Key, reason: DisconnectReason, _: Turn<'_>) {
        room.members.retain(|member| *member != key);
        room.log.note(format!("{reason}, {} left", room.members.len()));
    }
}

/// A handler that has no state of its own, and does nothing.
struct Silent;

impl<S> MemberStreamHandler<S> for Silent {
    fn on_data(&mut self, _: &mut S, _: &mut Stream<'_>, _: Input<'_>) {}
}

/// A listener, and a client that connects to it.
fn listener() -> (Listener, impl Fn() -> TcpStream) {
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let connect = move || {
        let client = TcpStream::connect(address).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    };
    (listener, connect)
}

fn room_of(reactor: &mut Reactor, key: GroupKey<Room>) -> &mut Room {
    reactor.group_mut(key).unwrap()
}

/// Runs turns until the room has so many members.
fn until_members(reactor: &mut Reactor, key: GroupKey<Room>, count: usize) {
    while room_of(reactor, key).members.len() != count {
        reactor.run_once(None).unwrap();
    }
}

/// Runs turns until the peer has received these bytes.
fn receive(reactor: &mut Reactor, peer: &mut Peer, wanted: &[u8]) {
    let mut got = Vec::new();
    while got.len() < wanted.len() {
        turn(reactor);
        got.extend(peer.read_all());
    }
    assert_eq!(got, wanted);
}

// One group for everything: the listener, all of its connections, and a timer.
fn a_group_grows_by_the_connections_of_its_listener(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (listener, connect) = listener();
    let registered = Group::new(Room::new(&log))
        .listener(listener, |room: &mut Room, _| (room.members.len() < 3).then_some(Member))
        .register_into(&mut reactor)
        .unwrap();
    let group = registered.group;
    let mut clients: Vec<_> = (0..3).map(|_| Peer::Tcp(connect())).collect();
    until_members(&mut reactor, group, 3);
    let listener = ListenerKey::from_key(registered.members[0]);
    assert_eq!(reactor.listener(listener).unwrap().connections(), 3);
    clients[0].write(b"hello");
    for client in &mut clients {
        receive(&mut reactor, client, b"hello");
    }
    // The state decides about connections, too.
    let rejected = connect();
    while reactor.listener(listener).unwrap().refused() == 0 {
        reactor.run_once(None).unwrap();
    }
    drop(rejected);
    drop(clients.pop());
    until_members(&mut reactor, group, 2);
    assert_eq!(log.take(), ["end", "closed, 2 left"]);
    // Without its listener the group lives until its last connection.
    reactor.remove(listener).unwrap();
    assert_eq!(reactor.listener(listener).err(), Some(NotFound));
    drop(clients.pop());
    until_members(&mut reactor, group, 1);
    assert_eq!(log.take(), ["end", "closed, 1 left"]);
    drop(clients);
    while log.len() < 3 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), ["end", "closed, 0 left", "room dropped"]);
    assert!(reactor.group_mut(group).is_none());
    assert_eq!(reactor.stats().subscribers, 0);
}

fn a_deleted_group_closes_its_streams_and_its_listener(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (listener, connect) = listener();
    let (ours, mut peer) = unix();
    let (fd, options) = (idle(), StreamOptions::new());
    let Registered { group, members } = Group::new(Room::new(&log))
        .listener(listener, |_: &mut Room, _| Some(Member))
        .stream(options.with_fd(ours), Member)
        .fd(readable(), fd.clone(), |_: &mut Room| {})
        .after(LATER, |_: &mut Room| {})
        .register_into(&mut reactor)
        .unwrap();
    let mut client = Peer::Tcp(connect());
    until_members(&mut reactor, group, 2);
    reactor.stream(members[1]).unwrap().send(b"output").unwrap();
    reactor.delete_group(group).unwrap();
    assert_eq!(reactor.delete_group(group), Err(NotFound));
    assert_eq!(reactor.listener(ListenerKey::from_key(members[0])).err(), Some(NotFound));
    assert_eq!((std::rc::Rc::strong_count(&fd), reactor.stats().timers), (1, 0));
    assert_eq!(log.len(), 0, "the streams hold the state");
    // Streams are closed gracefully, so their output arrives.
    receive(&mut reactor, &mut peer, b"output");
    peer.finish();
    client.finish_quietly();
    // The listener is gone, and its connection has sent its end.
    assert_eq!(client.try_read(&mut [0]), Ok(0));
    while log.len() < 3 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), ["closed, 1 left", "closed, 0 left", "room dropped"]);
    assert_eq!(reactor.stats().subscribers, 0);
}

fn a_member_deletes_its_own_group(build: Build) {
    struct Last(GroupKey<Room>);
    impl MemberStreamHandler<Room> for Last {
        fn on_data(&mut self, room: &mut Room, stream: &mut Stream<'_>, _: Input<'_>) {
            stream.turn().delete_group(self.0).unwrap();
            room.log.note("it has the state still".into());
        }
        fn on_close(&mut self, room: &mut Room, _: Key, _: DisconnectReason, mut turn: Turn<'_>) {
            let refused = turn.with_group(self.0, |_, _| ());
            assert_eq!(refused, Err(windlass::GroupStateError::NotFound));
            room.log.note("closed".into());
        }
    }
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let group = Group::new(Room::new(&log)).after(LATER, |_: &mut Room| {});
    let group = group.register_into(&mut reactor).unwrap().group;
    let (ours, mut peer) = unix();
    join(&mut reactor, group, ours, Last(group));
    peer.write(b"now");
    peer.finish();
    while log.len() < 3 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), ["it has the state still", "closed", "room dropped"]);
}

/// Adds a stream to a registered group, in a turn.
fn join(
    reactor: &mut Reactor,
    group: GroupKey<Room>,
    socket: impl Into<OwnedFd>,
    handler: impl MemberStreamHandler<Room>,
) {
    let socket = StreamOptions::new().with_fd(socket);
    let join = move |mut turn: Turn<'_>| {
        turn.group(group).unwrap().stream(socket, handler).register_into(&mut turn).unwrap();
    };
    reactor.defer(join).unwrap();
    turn(reactor);
}

fn streams_join_and_leave_a_group_that_runs(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let group = Group::new(Room::new(&log)).every(LATER, |_: &mut Room| {});
    let Registered { group, members } = group.register_into(&mut reactor).unwrap();
    let mut peers = Vec::new();
    for count in 1..=100 {
        let (ours, peer) = unix();
        join(&mut reactor, group, ours, Member);
        until_members(&mut reactor, group, count);
        peers.push(peer);
    }
    let key = room_of(&mut reactor, group).members[50];
    reactor.stream(key).unwrap().notify();
    turn(&mut reactor);
    assert_eq!(log.take(), ["notify"]);
    // They leave in another order.
    for at in (0..50).rev() {
        drop(peers.remove(2 * at));
        let left = peers.len();
        until_members(&mut reactor, group, left);
    }
    log.take();
    peers[0].write(b"still");
    for peer in &mut peers {
        receive(&mut reactor, peer, b"still");
    }
    reactor.remove(members[0]).unwrap();
    drop(peers);
    while reactor.group_mut(group).is_some() {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take().last().map(String::as_str), Some("room dropped"));
}

fn a_member_connects_and_has_a_timeout(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (listener, _) = listener();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let options = StreamOptions::new().idle_timeout(Some(Duration::from_millis(1)));
    let group = Group::new(Room::new(&log))
        .listener(listener, |room: &mut Room, _| {
            room.log.note("accepted".into());
            Some(Silent)
        })
        .connect(Connector::tcp(address).stream(options), Member);
    let group = group.register_into(&mut reactor).unwrap().group;
    while log.len() < 3 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(log.take(), ["accepted", "Idle", "nothing was received in time, 0 left"]);
    assert!(reactor.group_mut(group).is_some(), "the listener is a member still");
}

fn a_member_that_panics_leaves_the_others_their_state(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = unix();
    let (theirs, mut other) = unix();
    let options = StreamOptions::new();
    let group = Group::new(Room::new(&log))
        .stream(options.with_fd(ours), Member)
        .stream(options.with_fd(theirs), Member);
    let Registered { group, members } = group.register_into(&mut reactor).unwrap();
    until_members(&mut reactor, group, 2);
    peer.write(b"panic");
    panic_of(|| {
        while reactor.stream(members[0]).is_ok() {
            reactor.run_once(None).unwrap();
        }
    });
    quiet(&mut reactor);
    assert_eq!(reactor.stream(members[0]).err(), Some(NotFound));
    // It had no chance to leave the room.
    room_of(&mut reactor, group).members.remove(0);
    other.write(b"well");
    receive(&mut reactor, &mut other, b"well");
}

/// A group of all kinds of members, of which the last one is rejected.
fn refused(log: &Log<String>, socket: OwnedFd, listener: Listener, to: Connector) -> Group<Room> {
    let socket = StreamOptions::new().output_max(7).with_fd(socket).with_read_buf(*b"first ");
    Group::new(Room::new(log))
        .fd(readable(), ready(), |room: &mut Room, fd: &mut Shared| {
            drain(fd);
            room.log.note("event".into());
        })
        .stream(socket, Member)
        .listener(listener, |_: &mut Room, _| Some(Silent))
        .connect(to, Silent)
        .every(NOW, |_: &mut Room| {})
}

fn a_refused_group_comes_back_with_its_streams(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = unix();
    let (waiting, _) = listener();
    let backlog = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = Connector::tcp(backlog.local_addr().unwrap());
    // On a ring it is received at once.
    peer.write(b"second");
    let mut group = refused(&log, ours, waiting, to);
    for _ in 0..2 {
        let error = group.try_register_into(&mut reactor).unwrap_err();
        assert_eq!(error.reason, GroupReason::Timer(4, TimerReason::ZeroPeriod));
        assert_eq!((reactor.stats().subscribers, reactor.stats().timers), (0, 0));
        quiet(&mut reactor);
        assert_eq!(log.len(), 0);
        group = error.group;
    }
    assert!(format!("{group:?}").contains('5'));
    drop(group);
    assert_eq!(log.take(), ["room dropped"]);
    let is_closed = peer.drain().1 != Err(std::io::ErrorKind::WouldBlock);
    assert!(is_closed, "its socket is closed with it");
}

fn a_group_that_came_back_is_registered_whole(build: Build) {
    let mut reactor = build().subscribers_max(3).build().unwrap();
    let log = Log::new();
    let (ours, mut peer) = unix();
    let (waiting, connect) = listener();
    peer.write(b"second");
    let socket = StreamOptions::new().with_fd(ours).with_read_buf(*b"first ");
    let taken = idle();
    let other = readable().with_fd(taken).with_handler(|| {}).register_into(&mut reactor).unwrap();
    let group = Group::new(Room::new(&log))
        .stream(socket, Member)
        .listener(waiting, |_: &mut Room, _| Some(Member))
        .fd(readable(), idle(), |_: &mut Room| {});
    let error = group.try_register_into(&mut reactor).unwrap_err();
    assert_eq!(error.reason, GroupReason::Descriptor(2, AddReason::LimitReached));
    reactor.delete(other).unwrap();
    let Registered { group, members } = error.group.register_into(&mut reactor).unwrap();
    // What was read before, and what was received in the meantime, comes in its order.
    receive(&mut reactor, &mut peer, b"first second");
    let client = connect();
    while reactor.listener(ListenerKey::from_key(members[1])).unwrap().rests() == 0 {
        reactor.run_once(None).unwrap();
    }
    reactor.remove(members[2]).unwrap();
    until_members(&mut reactor, group, 2);
    drop(client);
}

// The listener of a group that a full reactor cannot take.
fn a_stream_of_a_group_is_rejected_with_its_place(build: Build) {
    let mut reactor = build().subscribers_max(1).build().unwrap();
    let log = Log::new();
    let (listener, _) = listener();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let options = StreamOptions::new();
    let of_file = Group::new(Room::new(&log)).stream(options.with_fd(file), Member);
    let refused = of_file.register_into(&mut reactor).unwrap_err();
    assert_eq!(refused, GroupReason::Descriptor(0, AddReason::NotPollable));
    let two = Group::new(Room::new(&log))
        .listener(listener, |_: &mut Room, _| Some(Member))
        .stream(options.with_fd(unix().0), Member);
    let refused = two.register_into(&mut reactor).unwrap_err();
    assert_eq!(refused, GroupReason::Descriptor(1, AddReason::LimitReached));
    let unknown = Connector::unix("x".repeat(200));
    let refused = Group::new(()).connect(unknown, Silent).register_into(&mut reactor).unwrap_err();
    assert!(matches!(refused, GroupReason::Descriptor(0, AddReason::Os(_))), "{refused}");
    let again = ListenOptions::new().connections_max(0).tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let group = Group::new(()).listener(again, |(): &mut (), _| Some(Silent));
    group.register_into(&mut reactor).unwrap();
    assert_eq!(log.take(), ["room dropped", "room dropped"]);
}

scenarios! {
    a_group_grows_by_the_connections_of_its_listener,
    a_deleted_group_closes_its_streams_and_its_listener,
    a_member_deletes_its_own_group,
    streams_join_and_leave_a_group_that_runs,
    a_member_connects_and_has_a_timeout,
    a_member_that_panics_leaves_the_others_their_state,
    a_refused_group_comes_back_with_its_streams,
    a_group_that_came_back_is_registered_whole,
    a_stream_of_a_group_is_rejected_with_its_place,
}
