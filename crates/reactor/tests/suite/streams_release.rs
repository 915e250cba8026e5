//! Streams whose socket belongs to the handler, and the end of a stream without the end of its
//! connection.

use std::{
    cell::RefCell,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    rc::Rc,
    time::{Duration, Instant},
};

use windlass::{
    AddReason, Key, Reactor, Turn,
    stream::{DisconnectReason, Input, Stream, StreamHandler, StreamOptions, StreamWriteError},
};

use crate::{
    Build,
    bed::{NOW, pair, run_dry},
};

#[derive(Default)]
struct Heard {
    bytes: Vec<u8>,
    closed: Vec<DisconnectReason>,
    released: Vec<bool>,
}

struct Owner {
    socket: Rc<TcpStream>,
    heard: Rc<RefCell<Heard>>,
    pauses: bool,
}

impl AsFd for Owner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl StreamHandler for Owner {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        let mut heard = self.heard.borrow_mut();
        heard.bytes.extend_from_slice(&input);
        heard.released.push(stream.release().is_some());
        if self.pauses {
            stream.pause();
        }
    }

    fn on_end(&mut self, _: &mut Stream<'_>) {}

    fn on_close(&mut self, _: Key, reason: DisconnectReason, _: Turn<'_>) {
        self.heard.borrow_mut().closed.push(reason);
    }
}

/// Sends what it received without giving up the input, and then changes the input.
struct Overwrites(Rc<TcpStream>);

impl AsFd for Overwrites {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl StreamHandler for Overwrites {
    fn on_data(&mut self, stream: &mut Stream<'_>, mut input: Input<'_>) {
        assert_eq!(stream.send_some(&input).unwrap(), input.len());
        input.fill(b'!');
    }
}

fn a_handler_may_change_an_input_that_it_has_sent(build: Build) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let socket = Rc::new(listener.accept().unwrap().0);
    let mut reactor = build().build().unwrap();
    StreamOptions::new().register_lent(Overwrites(socket), &mut reactor).unwrap();
    peer.write_all(b"hello").unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut received = [0; 5];
    while peer.read_exact(&mut received).is_err() {
        reactor.run_once(Duration::from_millis(10)).unwrap();
    }
    assert_eq!(&received, b"hello");
}

/// A descriptor that stands for a directory, as safe code can have it.
struct Directory;

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        rustix::fs::ABS
    }
}

impl StreamHandler for Directory {
    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

/// The complement of its number once was taken for an own socket, which was then closed.
fn a_lent_descriptor_with_a_negative_number_is_rejected(build: Build) {
    let mut reactor = build().build().unwrap();
    let error = StreamOptions::new().register_lent(Directory, &mut reactor).err().unwrap();
    assert_eq!(error, AddReason::BadDescriptor);
    assert_eq!(reactor.stats().subscribers, 0);
}

struct Bed {
    reactor: Reactor,
    socket: Rc<TcpStream>,
    peer: TcpStream,
    heard: Rc<RefCell<Heard>>,
    key: Key,
}

fn bed(build: Build, pauses: bool) -> Bed {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_nodelay(true).unwrap();
    let socket = Rc::new(listener.accept().unwrap().0);
    let heard = Rc::default();
    let mut reactor = build().build().unwrap();
    let owner = Owner { socket: Rc::clone(&socket), heard: Rc::clone(&heard), pauses };
    let options = StreamOptions::new().output_max(8 << 10);
    let key = options.register_lent(owner, &mut reactor).unwrap();
    run_dry(&mut reactor);
    Bed { reactor, socket, peer, heard, key }
}

fn a_released_stream_returns_what_was_not_delivered(build: Build) {
    for (pauses, turns) in [(false, 0), (false, 1), (true, 0), (true, 1), (true, 3)] {
        let Bed { mut reactor, socket, mut peer, heard, key } = bed(build, pauses);
        let mut expected = Vec::new();
        for round in 0..4_u8 {
            peer.write_all(&[round; 3000]).unwrap();
            expected.extend_from_slice(&[round; 3000]);
            if round < 3 {
                for _ in 0..turns {
                    reactor.run_once(NOW).unwrap();
                }
            }
        }
        let subscribers = reactor.stats().subscribers;
        let released = reactor.stream(key).unwrap().release().unwrap();
        assert!(released.socket.is_none() && released.error.is_none());
        assert_eq!(reactor.stats().subscribers, subscribers - 1);
        reactor.stream(key).unwrap_err();
        assert_eq!(Rc::strong_count(&socket), 1, "the handler is dropped");
        let mut received = heard.borrow().bytes.clone();
        received.extend_from_slice(&released.read_buf);
        // The connection goes on without the reactor.
        let mut rest = vec![0; expected.len() - received.len()];
        (&*socket).read_exact(&mut rest).unwrap();
        received.extend_from_slice(&rest);
        assert!(received == expected, "{pauses} {turns}");
        (&*socket).write_all(b"answer").unwrap();
        peer.read_exact(&mut [0; 6]).unwrap();
        run_dry(&mut reactor);
        assert!(heard.borrow().closed.is_empty(), "no callback follows");
        assert!(heard.borrow().released.iter().all(|done| !done), "not in its own callback");
    }
}

fn an_own_socket_is_returned_and_output_is_sent_before(build: Build) {
    let (ours, mut theirs) = pair();
    struct Ignore;
    impl StreamHandler for Ignore {
        fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
    }
    let mut reactor = build().build().unwrap();
    let key = StreamOptions::new().register(ours, Ignore, &mut reactor).unwrap();
    run_dry(&mut reactor);
    let mut stream = reactor.stream(key).unwrap();
    stream.send(b"gathered").unwrap();
    let socket = stream.release().unwrap().socket.unwrap();
    let mut received = [0; 8];
    theirs.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"gathered");
    drop(socket);
    assert_eq!(theirs.read(&mut received).unwrap(), 0);
}

fn releases_do_not_mix_the_bytes_of_streams_in_one_buffer(build: Build) {
    const STREAMS: usize = 40;
    let mut reactor = build().build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut beds = Vec::new();
    for _ in 0..STREAMS {
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.set_nodelay(true).unwrap();
        let socket = Rc::new(listener.accept().unwrap().0);
        let heard: Rc<RefCell<Heard>> = Rc::default();
        let owner = Owner { socket: Rc::clone(&socket), heard: Rc::clone(&heard), pauses: false };
        let key = StreamOptions::new().register_lent(owner, &mut reactor).unwrap();
        beds.push((socket, peer, heard, key));
    }
    run_dry(&mut reactor);
    for (number, (_, peer, ..)) in beds.iter_mut().enumerate() {
        peer.write_all(&vec![number as u8; 100 + number]).unwrap();
    }
    // Every other one, while the completions of all are under way.
    for (number, (socket, _, heard, key)) in beds.iter().enumerate() {
        if number % 2 == 0 {
            let read_buf = reactor.stream(*key).unwrap().release().unwrap().read_buf;
            let mut rest = vec![0; 100 + number - read_buf.len()];
            (&**socket).read_exact(&mut rest).unwrap();
            assert!(read_buf.iter().chain(&rest).all(|byte| *byte == number as u8), "{number}");
            assert!(heard.borrow().bytes.is_empty());
        }
    }
    let kept = || beds.iter().enumerate().filter(|(number, _)| number % 2 == 1);
    let begin = Instant::now();
    while kept().any(|(number, (_, _, heard, _))| heard_len(heard) < 100 + number) {
        assert!(begin.elapsed() < Duration::from_secs(20), "bytes are missing");
        reactor.run_once(Duration::from_millis(100)).unwrap();
    }
    run_dry(&mut reactor);
    for (number, (_, _, heard, _)) in kept() {
        assert_eq!(heard.borrow().bytes, vec![number as u8; 100 + number]);
    }
    // A wait does not sleep beside what the released ones have left behind.
    beds[1].1.write_all(b"more").unwrap();
    while heard_len(&beds[1].2) < 105 {
        assert!(reactor.run_once(Duration::from_secs(20)).unwrap() > 0);
    }
}

fn heard_len(heard: &Rc<RefCell<Heard>>) -> usize {
    heard.borrow().bytes.len()
}

fn the_reactor_does_not_close_a_lent_socket(build: Build) {
    let Bed { mut reactor, socket, peer, heard, key } = bed(build, false);
    reactor.stream(key).unwrap().close_after_output();
    run_dry(&mut reactor);
    assert_eq!(heard.borrow().closed, [DisconnectReason::Closed]);
    assert!(socket.local_addr().is_ok() && Rc::strong_count(&socket) == 1);
    drop(peer);
    let Bed { reactor, socket, mut peer, .. } = bed(build, false);
    drop(reactor);
    assert_eq!(Rc::strong_count(&socket), 1);
    peer.write_all(b"x").unwrap();
    (&*socket).read_exact(&mut [0; 1]).unwrap();
}

fn some_is_sent_as_far_as_there_is_room(build: Build) {
    let Bed { mut reactor, socket, mut peer, key, .. } = bed(build, false);
    let bytes: Vec<u8> = (0..20 << 20).map(|place: u32| (place % 251) as u8).collect();
    let mut sent = 0;
    let error = loop {
        match reactor.stream(key).unwrap().send_some(&bytes[sent..]) {
            Ok(count) => {
                assert!((1..=8 << 10).contains(&count), "{count}");
                sent += count;
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error, StreamWriteError::Full);
    let mut stream = reactor.stream(key).unwrap();
    assert_eq!((stream.buffered(), stream.send_now()), (8 << 10, 8 << 10));
    assert_eq!(stream.send_some(&[]), Ok(0));
    let mut received = vec![0; sent];
    let reader = std::thread::spawn(move || {
        peer.read_exact(&mut received).unwrap();
        (received, peer)
    });
    while reactor.stream(key).unwrap().buffered() > 0 {
        reactor.run_once(Duration::from_secs(20)).unwrap();
    }
    let (received, _peer) = reader.join().unwrap();
    assert!(received == bytes[..sent]);
    let mut stream = reactor.stream(key).unwrap();
    stream.finish();
    assert_eq!(stream.send_some(b"late"), Err(StreamWriteError::Closed));
    drop(socket);
}

scenarios! {
    a_handler_may_change_an_input_that_it_has_sent,
    a_lent_descriptor_with_a_negative_number_is_rejected,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    a_released_stream_returns_what_was_not_delivered,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    an_own_socket_is_returned_and_output_is_sent_before,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    releases_do_not_mix_the_bytes_of_streams_in_one_buffer,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    the_reactor_does_not_close_a_lent_socket,
    #[cfg_attr(miri, ignore = "needs sockets of the internet")]
    some_is_sent_as_far_as_there_is_room,
}
