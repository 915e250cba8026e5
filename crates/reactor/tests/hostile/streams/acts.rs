//! The actions of a random program of streams.

use std::{
    io::IoSlice,
    net::{TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    rc::Rc,
    time::Duration,
};

use rustix::net::sockopt;
use windlass::{
    Reactor, Turn,
    stream::{
        Connector, Input, ListenOptions, SharedBytes, Stream, StreamOptions, StreamWriteError,
    },
};

use super::world::{Peer, World, bytes};

/// The highest number of streams in a program.
const STREAMS_MAX: usize = 40;

fn milliseconds(world: &World, below: usize) -> Duration {
    Duration::from_millis(world.index(below) as u64)
}

pub(crate) fn options(world: &World) -> StreamOptions {
    let mut options = StreamOptions::new().linger(Duration::from_secs(3600));
    if world.one_in(2) {
        options = options
            .watermarks(world.index(20_000), world.index(60_000))
            .output_max(1 + world.index(200_000));
    }
    if world.one_in(3) {
        options = options.idle_timeout(Some(milliseconds(world, 400)));
    }
    if world.one_in(3) {
        options = options.write_stall_timeout(Some(milliseconds(world, 400)));
    }
    options
}

/// Records the outcome of a call that sends `len` bytes.
fn note(world: &World, id: usize, len: usize, outcome: Result<(), StreamWriteError>) {
    world.with(id, |record| match outcome {
        Ok(()) => {
            assert!(
                !record.closing && !record.finished,
                "stream {id} takes output after its end: {record:?}"
            );
            record.sent += len;
        }
        Err(StreamWriteError::Full) => {}
        Err(_) => assert!(record.closing || record.finished || record.lost, "{record:?}"),
    });
}

fn send(world: &World, stream: &mut Stream<'_>, id: usize, len: usize) {
    let data = bytes(id, 0, world.with(id, |record| record.sent), len);
    let outcome = match world.index(5) {
        0 => stream.send_shared(&SharedBytes::new(&data)),
        4 => stream.write_shared(&SharedBytes::new(&data)).map(drop),
        1 => {
            let mut pieces = vec![IoSlice::new(&[])];
            let size = 1 + world.index(len.max(1));
            // Sometimes more pieces than one system call takes.
            let size = if world.one_in(4) { len / 1500 + 1 } else { size };
            for piece in data.chunks(size) {
                pieces.push(IoSlice::new(piece));
            }
            stream.send_vectored(&pieces)
        }
        _ => stream.send(&data),
    };
    note(world, id, len, outcome);
}

/// Sends a part of the input, after overwriting it with the expected bytes.
pub(crate) fn reply(world: &World, stream: &mut Stream<'_>, id: usize, input: &mut Input<'_>) {
    let len = world.index(input.len() + 1);
    let data = bytes(id, 0, world.with(id, |record| record.sent), len);
    input[..len].copy_from_slice(&data);
    note(world, id, len, stream.send(&input[..len]));
}

/// The same with [`Stream::reply`], which takes the input.
pub(crate) fn reply_all(world: &World, stream: &mut Stream<'_>, id: usize, mut input: Input<'_>) {
    let start = world.index(input.len() + 1);
    let len = input.len() - start;
    let data = bytes(id, 0, world.with(id, |record| record.sent), len);
    input[start..].copy_from_slice(&data);
    let outcome = stream.reply(input, start..);
    note(world, id, len, outcome);
}

/// An action on this stream.
pub(crate) fn poke(world: &World, stream: &mut Stream<'_>, id: usize) {
    match world.index(25) {
        24 => stream.notify(),
        0..=7 => send(world, stream, id, world.index(400)),
        8..=10 => send(world, stream, id, world.index(60_000)),
        11 | 12 => {
            stream.pause();
            world.with(id, |record| record.paused = true);
        }
        13..=16 => {
            stream.resume();
            world.with(id, |record| record.paused = false);
        }
        17 if world.one_in(3) => {
            stream.finish();
            world.with(id, |record| record.finished = true);
        }
        18 if world.one_in(3) => {
            stream.close();
            world.with(id, |record| record.closing = true);
        }
        19 if world.one_in(5) => {
            stream.abort();
            world.with(id, |record| (record.closing, record.aborted) = (true, true));
        }
        20 => stream.set_watermarks(world.index(20_000), world.index(60_000)),
        21 => stream.set_idle_timeout(world.one_in(2).then(|| milliseconds(world, 300))),
        22 => stream.set_write_stall_timeout(world.one_in(2).then(|| milliseconds(world, 300))),
        23 if world.one_in(4) => {
            stream.set_linger(Duration::ZERO);
            world.with(id, |record| record.hasty = true);
        }
        _ => {}
    }
}

/// An action in a stream's callback: on the stream, on itself by its key, or elsewhere.
pub(crate) fn act(world: &Rc<World>, stream: &mut Stream<'_>, id: usize) {
    match world.index(5) {
        0..=2 => poke(world, stream, id),
        3 => {
            let key = stream.key();
            let mut turn = stream.turn();
            let mut again = turn.stream(key).unwrap();
            poke(world, &mut again, id);
        }
        _ => elsewhere(world, &mut stream.turn()),
    }
}

/// An action in any handler.
pub(crate) fn elsewhere(world: &Rc<World>, turn: &mut Turn<'_>) {
    match world.index(12) {
        0..=5 => another(world, turn),
        6 | 7 => begin(world, turn),
        8 => {
            let mine = Rc::clone(world);
            let _ = turn.defer(move |mut turn: Turn<'_>| elsewhere(&mine, &mut turn));
        }
        9 => {
            let mine = Rc::clone(world);
            let delay = milliseconds(world, 100);
            let _ = turn.after(delay, move |mut turn: Turn<'_>| another(&mine, &mut turn));
        }
        10 => listen(world, turn),
        _ => {
            let count = world.listeners.borrow().len();
            if count == 0 {
                return;
            }
            let (key, _) = world.listeners.borrow()[world.index(count)];
            let Ok(mut listening) = turn.listener(key) else { return };
            match world.index(6) {
                0 => listening.pause(),
                1 if world.one_in(3) => listening.delete(),
                _ => listening.resume(),
            }
        }
    }
}

/// An action on any stream whose key is known.
fn another(world: &Rc<World>, turn: &mut Turn<'_>) {
    let count = world.count();
    if count == 0 {
        return;
    }
    let id = world.index(count);
    let Some((key, is_over)) = world.with(id, |record| Some((record.key?, record.is_over())))
    else {
        return;
    };
    match turn.stream(key) {
        Ok(mut stream) => {
            assert!(!is_over, "stream {id} is over");
            poke(world, &mut stream, id);
        }
        Err(_) => assert!(is_over, "stream {id} is not found"),
    }
}

/// A connected pair whose first end has a small send buffer.
fn pair(world: &World) -> (OwnedFd, Peer) {
    let (ours, peer): (OwnedFd, _) = if world.one_in(2) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (ours.into(), Peer::Unix(theirs))
    } else {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (listener.accept().unwrap().0.into(), Peer::Tcp(theirs))
    };
    sockopt::set_socket_send_buffer_size(&ours, 1 + world.index(60_000)).unwrap();
    (ours, peer)
}

/// Starts another stream: registered, adopted, accepted or connected.
fn begin(world: &Rc<World>, turn: &mut Turn<'_>) {
    if world.count() >= STREAMS_MAX {
        return;
    }
    match world.index(4) {
        0 => {
            let to = Connector::tcp(world.sink.local_addr().unwrap())
                .stream(options(world))
                .timeout(None);
            let handler = world.handler(None, 0);
            let id = handler.id;
            if let Ok(key) = to.connect(handler, turn) {
                world.with(id, |record| record.key = Some(key));
            }
        }
        1 => {
            let count = world.listeners.borrow().len();
            if count > 0 {
                let (_, to) = world.listeners.borrow()[world.index(count)];
                // The listener may have been deleted.
                if let Ok(peer) = TcpStream::connect(to) {
                    peer.set_nonblocking(true).unwrap();
                    let port = peer.local_addr().unwrap().port();
                    world.waiting.borrow_mut().push((port, peer));
                }
            }
        }
        _ => {
            let (ours, peer) = pair(world);
            let prefix = if world.one_in(3) { world.index(70_000) } else { 0 };
            let handler = world.handler(Some(peer), prefix);
            let id = handler.id;
            let key = options(world).adopt(ours, bytes(id, 1, 0, prefix), handler, turn);
            if let Ok(key) = key {
                world.with(id, |record| record.key = Some(key));
            }
        }
    }
}

/// Starts another listener, whose closure rejects or panics sometimes.
fn listen(world: &Rc<World>, turn: &mut Turn<'_>) {
    if world.listeners.borrow().len() >= 3 {
        return;
    }
    let listener = ListenOptions::new()
        .stream(options(world))
        .connections_max(1 + world.index(4))
        .accepts_per_event(1 + world.index(3))
        .tcp(([127, 0, 0, 1], 0).into())
        .unwrap();
    let address = listener.local_addr().unwrap().socket_addr().unwrap();
    let mine = Rc::clone(world);
    let accept = move |peer: &windlass::stream::Peer<'_>| {
        let port = peer.address().socket_addr().unwrap().port();
        let mut waiting = mine.waiting.borrow_mut();
        let place = waiting.iter().position(|(waiting, _)| *waiting == port).unwrap();
        let (_, peer) = waiting.swap_remove(place);
        drop(waiting);
        mine.maybe_panic(10);
        if mine.one_in(5) {
            return None;
        }
        Some(mine.handler(Some(Peer::Tcp(peer)), 0))
    };
    if let Ok(key) = listener.register(accept, turn) {
        world.listeners.borrow_mut().push((key, address));
    }
}

/// Actions between two turns.
pub(crate) fn between_turns(world: &Rc<World>, reactor: &mut Reactor) {
    // Matches the connections of connectors when both ends are known.
    while let Ok((peer, from)) = world.sink.accept() {
        peer.set_nonblocking(true).unwrap();
        world.accepted.borrow_mut().push((from.port(), peer));
    }
    let mut accepted = world.accepted.borrow_mut();
    for record in
        world.records.borrow_mut().iter_mut().filter(|record| record.peer.is_none() && !record.lost)
    {
        if let Some(place) = accepted.iter().position(|(port, _)| record.port == Some(*port)) {
            record.peer = Some(Peer::Tcp(accepted.swap_remove(place).1));
        }
    }
    drop(accepted);
    for id in 0..world.count() {
        world.let_peer_act(id);
    }
    if world.one_in(3) {
        world.pass(milliseconds(world, 150));
    }
    let mine = Rc::clone(world);
    match world.index(3) {
        0 => drop(reactor.defer(move |mut turn: Turn<'_>| elsewhere(&mine, &mut turn))),
        1 => {
            let count = world.count();
            if count > 0 {
                let id = world.index(count);
                let key = world.with(id, |record| record.key);
                if let Some(mut stream) = key.and_then(|key| reactor.stream(key).ok()) {
                    poke(world, &mut stream, id);
                }
            }
        }
        _ => {}
    }
}
