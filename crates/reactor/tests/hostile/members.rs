//! Streams and listeners of a group whose handlers and destructors panic, and delete each other and
//! their group, at every point.

use std::{
    cell::{Cell, RefCell},
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use windlass::{
    Group, GroupKey, GroupReason, GroupStateError, Key, NotFound, Reactor, Registered, TimerReason,
    Turn, interest,
    stream::{
        Connector, DisconnectReason, Input, Listener, ListenerKey, MemberStreamHandler, Peer,
        Stream, StreamOptions, Timeout, TlsDecrypted, TlsFailure, TlsPhase, TlsSession,
        TlsSessionFactory,
    },
};

use crate::{
    Build,
    child::survives,
    tools::{caught, ready},
};

const LATER: Duration = Duration::from_secs(1_000_000);

/// Where a member's handler does its worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Accept,
    Open,
    Data,
    End,
    Full,
    Drained,
    Notify,
    Timeout,
    Close,
    HandlerDrop,
}

const PLACES: [At; 10] = [
    At::Accept,
    At::Open,
    At::Data,
    At::End,
    At::Full,
    At::Drained,
    At::Notify,
    At::Timeout,
    At::Close,
    At::HandlerDrop,
];

/// What it does there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Borrow,
    DeleteGroup,
    /// Another group takes the place of the deleted one.
    ReplaceGroup,
    RemoveAll,
    ReleaseAll,
    AbortAll,
    Join,
    KeepJoin,
    Panic,
    DeleteAndPanic,
    RemoveAndPanic,
}

const ACTS: [Act; 11] = [
    Act::Borrow,
    Act::DeleteGroup,
    Act::ReplaceGroup,
    Act::RemoveAll,
    Act::ReleaseAll,
    Act::AbortAll,
    Act::Join,
    Act::KeepJoin,
    Act::Panic,
    Act::DeleteAndPanic,
    Act::RemoveAndPanic,
];

/// What a test knows of its group.
#[derive(Default)]
struct World {
    plan: Cell<Option<(At, Act)>>,
    group: Cell<Option<GroupKey<State>>>,
    members: RefCell<Vec<Key>>,
    kept: RefCell<Option<Group<State>>>,
    runs: Cell<u32>,
    handlers: Cell<u32>,
    states: Cell<u32>,
}

/// The state. A second borrower would find or leave another mark.
struct State {
    mark: u32,
    world: Rc<World>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.world.states.set(self.world.states.get() - 1);
    }
}

struct Handler(Rc<World>);

impl Handler {
    fn new(world: &Rc<World>) -> Self {
        world.handlers.set(world.handlers.get() + 1);
        Self(Rc::clone(world))
    }

    /// A callback.
    fn at(&self, at: At, state: &mut State, turn: Turn<'_>, own: Key) {
        let mark = state.mark + 1;
        state.mark = mark;
        if self.0.plan.get().is_some_and(|(place, _)| place == at) {
            let (_, act) = self.0.plan.take().unwrap();
            self.0.runs.set(self.0.runs.get() + 1);
            act.run(&self.0, turn, own);
        }
        assert_eq!(state.mark, mark, "another handler had the state");
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.0.handlers.set(self.0.handlers.get() - 1);
        if self.0.plan.get().is_some_and(|(place, _)| place == At::HandlerDrop) {
            self.0.plan.set(None);
            self.0.runs.set(self.0.runs.get() + 1);
            panic!("the destructor of a handler");
        }
    }
}

impl MemberStreamHandler<State> for Handler {
    fn on_data(&mut self, state: &mut State, stream: &mut Stream<'_>, _: Input<'_>) {
        let key = stream.key();
        self.at(At::Data, state, stream.turn(), key);
    }

    fn on_open(&mut self, state: &mut State, stream: &mut Stream<'_>) {
        let key = stream.key();
        self.0.members.borrow_mut().push(key);
        self.at(At::Open, state, stream.turn(), key);
    }

    fn on_end(&mut self, state: &mut State, stream: &mut Stream<'_>) {
        let key = stream.key();
        self.at(At::End, state, stream.turn(), key);
        stream.close();
    }

    fn on_full(&mut self, state: &mut State, stream: &mut Stream<'_>) {
        let key = stream.key();
        self.at(At::Full, state, stream.turn(), key);
    }

    fn on_drained(&mut self, state: &mut State, stream: &mut Stream<'_>) {
        let key = stream.key();
        self.at(At::Drained, state, stream.turn(), key);
    }

    fn on_notify(&mut self, state: &mut State, stream: &mut Stream<'_>) {
        let key = stream.key();
        self.at(At::Notify, state, stream.turn(), key);
    }

    fn on_timeout(&mut self, state: &mut State, stream: &mut Stream<'_>, _: Timeout) {
        let key = stream.key();
        self.at(At::Timeout, state, stream.turn(), key);
        stream.abort();
    }

    fn on_close(&mut self, state: &mut State, key: Key, _: DisconnectReason, turn: Turn<'_>) {
        self.at(At::Close, state, turn, key);
    }
}

impl Act {
    fn run(self, world: &Rc<World>, mut turn: Turn<'_>, own: Key) {
        let group = world.group.get().unwrap();
        let borrow = |turn: &mut Turn<'_>| turn.with_group(group, |state, _| state.mark = 0);
        let is_known = match borrow(&mut turn).unwrap_err() {
            GroupStateError::Borrowed => true,
            error => {
                assert_eq!(error, GroupStateError::NotFound);
                false
            }
        };
        let delete = |turn: &mut Turn<'_>| {
            assert_eq!(turn.delete_group(group).is_ok(), is_known);
            assert_eq!(borrow(turn), Err(GroupStateError::NotFound));
            assert_eq!(turn.group(group).map(drop).unwrap_err(), NotFound);
        };
        let members = world.members.borrow().clone();
        match self {
            Self::Borrow => {
                // By way of another group's state, too.
                let other = Group::new(1_u32).after(LATER, |_: &mut u32| {});
                let other = other.register_into(&mut turn).unwrap().group;
                let nested = |_: &mut u32, mut turn: Turn<'_>| {
                    borrow(&mut turn).unwrap_err();
                    assert!(turn.with_group(other, |_, _| ()).is_err());
                };
                turn.with_group(other, nested).unwrap();
                // Later it succeeds, and leaves a mark.
                let later = move |mut turn: Turn<'_>| {
                    let _ = turn.with_group(group, |state, _| state.mark += 1000);
                };
                turn.defer(later).unwrap();
            }
            Self::DeleteGroup => delete(&mut turn),
            Self::ReplaceGroup => {
                delete(&mut turn);
                world.states.set(world.states.get() + 1);
                let state = State { mark: 0, world: Rc::clone(world) };
                let group = Group::new(state).after(LATER, |_: &mut State| {});
                let group = group.register_into(&mut turn).unwrap().group;
                turn.with_group(group, |state, _| state.mark = 7).unwrap();
                world.group.set(Some(group));
            }
            Self::RemoveAll | Self::RemoveAndPanic => {
                for key in members.into_iter().chain([own]) {
                    let _ = turn.remove(key);
                }
                borrow(&mut turn).unwrap_err();
                assert!(self == Self::RemoveAll, "deliberate");
            }
            Self::ReleaseAll => {
                for key in members {
                    if let Ok(mut stream) = turn.stream(key) {
                        assert_eq!(stream.release().is_none(), key == own);
                    }
                }
                borrow(&mut turn).unwrap_err();
            }
            Self::AbortAll => {
                for key in members {
                    let _ = turn.stream(key).map(|mut stream| stream.abort());
                }
                delete(&mut turn);
            }
            Self::Join | Self::KeepJoin => {
                let Ok(joining) = turn.group(group) else { return };
                let (ours, theirs) = UnixStream::pair().unwrap();
                let joining = joining
                    .stream(StreamOptions::new().with_fd(ours), Handler::new(world))
                    .after(LATER, |_: &mut State| {});
                if self == Self::KeepJoin {
                    delete(&mut turn);
                    let refused = joining.try_register_into(&mut turn).unwrap_err();
                    assert_eq!(refused.reason, GroupReason::NotFound);
                    world.kept.replace(Some(refused.group));
                } else {
                    let keys = joining.register_into(&mut turn).unwrap().members;
                    // Its end comes at once.
                    drop(theirs);
                    turn.remove(keys[1]).unwrap();
                }
                borrow(&mut turn).unwrap_err();
            }
            Self::Panic => panic!("deliberate"),
            Self::DeleteAndPanic => {
                delete(&mut turn);
                panic!("deliberate");
            }
        }
    }
}

fn group(world: &Rc<World>, sockets: [OwnedFd; 2], listener: Listener) -> Group<State> {
    world.states.set(world.states.get() + 1);
    let options = StreamOptions::new()
        .watermarks(0, 1000)
        .idle_timeout(Some(Duration::from_secs(100)))
        .linger(Duration::from_secs(10));
    let own = Rc::clone(world);
    let accept = move |state: &mut State, _: &Peer<'_>| {
        state.mark += 1;
        if let Some((At::Accept, _)) = own.plan.get() {
            own.plan.set(None);
            own.runs.set(own.runs.get() + 1);
            panic!("deliberate");
        }
        Some(Handler::new(&own))
    };
    let mut group = Group::new(State { mark: 0, world: Rc::clone(world) })
        .listener(listener, accept)
        .fd(interest().read().one_shot(), ready(), |state: &mut State| state.mark += 1)
        .every(Duration::from_secs(30), |state: &mut State| state.mark += 1);
    for socket in sockets {
        group = group.stream(options.with_fd(socket), Handler::new(world));
    }
    group
}

/// Runs turns. Panics that are expected leave it.
fn turns(reactor: &mut Reactor) -> usize {
    (0..6).filter(|_| caught(|| reactor.run_once(Duration::ZERO).unwrap()).is_err()).count()
}

/// One program: everything that can happen to members, with one deed in it.
fn attack(build: Build, at: At, act: Act) {
    let world = Rc::new(World::default());
    let time = Rc::new(Cell::new(Instant::now()));
    let clock = Rc::clone(&time);
    let mut reactor = build().clock(move || clock.get()).build().unwrap();
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let [(one, first), (other, second)] = [(); 2].map(|()| UnixStream::pair().unwrap());
    let mut peers = [first, second];
    peers.iter().for_each(|peer| peer.set_nonblocking(true).unwrap());
    let ours = [one.into(), other.into()];
    let registered = group(&world, ours, listener).register_into(&mut reactor).unwrap();
    let Registered { group, members } = registered;
    world.group.set(Some(group));
    world.members.borrow_mut().extend([members[0], members[1], members[2]]);
    world.plan.set(Some((at, act)));
    let (mut panics, mut client) = (0, None);
    for step in 0..8 {
        match step {
            0 => client = Some(TcpStream::connect(address).unwrap()),
            1 => peers.iter_mut().for_each(|peer| drop(peer.write(b"data"))),
            2 => {
                for key in &members[3..] {
                    if let Ok(mut stream) = reactor.stream(*key) {
                        stream.notify();
                        let _ = stream.send(&[0; 400_000]);
                    }
                }
            }
            3 | 4 => {
                let mut buffer = vec![0; 400_000];
                for peer in &mut peers {
                    while matches!(peer.read(&mut buffer), Ok(1..)) {
                        panics += turns(&mut reactor);
                    }
                }
            }
            5 => drop(peers[0].shutdown(Shutdown::Write)),
            6 => time.set(time.get() + Duration::from_secs(200)),
            // One of the ends.
            _ => drop(client.take()),
        }
        panics += turns(&mut reactor);
    }
    if let Some(state) = world.group.get().and_then(|key| reactor.group_mut(key)) {
        state.mark += 1;
    }
    // Whatever is left.
    if let Some(group) = world.group.get() {
        panics += usize::from(caught(|| reactor.delete_group(group)).is_err());
        panics += turns(&mut reactor);
    }
    panics += usize::from(caught(|| drop(reactor)).is_err());
    drop(world.kept.take());
    let is_loud = matches!(act, Act::Panic | Act::DeleteAndPanic | Act::RemoveAndPanic);
    assert_eq!((world.runs.get(), panics), (1, usize::from(is_loud)), "{at:?} {act:?}");
    assert_eq!((world.handlers.get(), world.states.get()), (0, 0), "{at:?} {act:?}");
}

fn members_attack_each_other_at_every_point(build: Build) {
    for at in PLACES {
        // A destructor has no turn, and neither has the closure of a listener.
        let has_turn = at != At::Accept && at != At::HandlerDrop;
        for act in ACTS.into_iter().filter(|act| has_turn || *act == Act::Panic) {
            attack(build, at, act);
        }
    }
}

/// Connections that wait in the backlog of a group that is deleted, and whose place another group
/// takes, join neither.
fn a_deleted_group_accepts_nothing_and_its_place_is_not_joined(build: Build) {
    struct Ends(Rc<Cell<Option<GroupKey<u32>>>>);
    impl MemberStreamHandler<u32> for Ends {
        fn on_data(&mut self, _: &mut u32, _: &mut Stream<'_>, _: Input<'_>) {}
        fn on_open(&mut self, count: &mut u32, stream: &mut Stream<'_>) {
            *count += 1;
            let mut turn = stream.turn();
            let Some(group) = self.0.take() else { return };
            turn.delete_group(group).unwrap();
            let next = Group::new(0).after(LATER, |_: &mut u32| {});
            self.0.set(Some(next.register_into(&mut turn).unwrap().group));
        }
    }
    let mut reactor = build().build().unwrap();
    let listener = Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let clients: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    let slot = Rc::new(Cell::new(None));
    let own = Rc::clone(&slot);
    let accept = move |_: &mut u32, _: &Peer<'_>| Some(Ends(Rc::clone(&own)));
    let group = Group::new(0).listener(listener, accept).register_into(&mut reactor).unwrap();
    slot.set(Some(group.group));
    let is_deleted = |reactor: &mut Reactor| reactor.group_mut(group.group).is_none();
    while !is_deleted(&mut reactor) {
        reactor.run_once(None).unwrap();
    }
    let key = ListenerKey::from_key(group.members[0]);
    assert_eq!(reactor.listener(key).err(), Some(NotFound));
    let next = slot.take().unwrap();
    drop(clients);
    while reactor.stats().subscribers > 0 {
        reactor.run_once(None).unwrap();
    }
    assert_eq!(reactor.group_mut(next), Some(&mut 0));
    // It has one member.
    reactor.delete_group(next).unwrap();
    assert!(reactor.group_mut(next).is_none());
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a destructor");
    }
}

impl MemberStreamHandler<Bomb> for Bomb {
    fn on_data(&mut self, _: &mut Bomb, _: &mut Stream<'_>, _: Input<'_>) {}
}

impl TlsSession for Bomb {
    fn decrypt(&mut self, _: &mut [u8], _: &mut Vec<u8>) -> TlsDecrypted {
        TlsDecrypted::new(0, 0, TlsPhase::Handshake)
    }
    fn encrypt(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), TlsFailure> {
        Ok(())
    }
    fn close_notify(&mut self, _: &mut Vec<u8>) {}
}

#[derive(Debug)]
struct Bombs;

impl TlsSessionFactory for Bombs {
    fn new_session(&self) -> Box<dyn TlsSession> {
        Box::new(Bomb)
    }
}

/// A group of members that all panic when they are dropped. The last one is rejected, if it has to.
fn bombs(is_rejected: bool) -> Group<Bomb> {
    let listener = || Listener::tcp(([127, 0, 0, 1], 0).into()).unwrap();
    let to = listener().local_addr().unwrap().socket_addr().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let options = StreamOptions::new();
    let bomb = Bomb;
    let accept = move |_: &mut Bomb, _: &Peer<'_>| {
        let _ = &bomb;
        None::<Bomb>
    };
    Group::new(Bomb)
        .stream(options.with_fd(ours).with_tls(Arc::new(Bombs)), Bomb)
        .stream(options.with_fd(theirs), Bomb)
        .listener(listener(), accept)
        .connect(Connector::tcp(to).with_tls(Arc::new(Bombs)), Bomb)
        .every(if is_rejected { Duration::ZERO } else { LATER }, |_: &mut Bomb| {})
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot make these sockets")]
fn members_that_panic_when_they_are_dropped_do_not_abort() {
    survives("members::members_that_panic_when_they_are_dropped_do_not_abort", || {
        assert!(caught(|| drop(bombs(false))).is_err());
        let mut reactor = crate::builder().build().unwrap();
        // Sessions that were made are kept with the group.
        let error = caught(|| bombs(true).try_register_into(&mut reactor)).unwrap().unwrap_err();
        assert_eq!(error.reason, GroupReason::Timer(4, TimerReason::ZeroPeriod));
        assert_eq!(reactor.stats().subscribers, 0);
        assert!(caught(|| drop(error)).is_err());
        let registered = caught(|| bombs(false).register_into(&mut reactor)).unwrap().unwrap();
        assert!(caught(|| reactor.delete_group(registered.group)).is_err());
        while reactor.stats().subscribers > 0 {
            let _ = caught(|| reactor.run_once(None));
        }
        caught(|| bombs(false).register_into(&mut reactor)).unwrap().unwrap();
        assert!(caught(|| drop(reactor)).is_err());
    });
}

scenarios! {
    #[cfg_attr(miri, ignore = "Miri cannot make these sockets")]
    members_attack_each_other_at_every_point,
    #[cfg_attr(miri, ignore = "Miri cannot make these sockets")]
    a_deleted_group_accepts_nothing_and_its_place_is_not_joined,
}
