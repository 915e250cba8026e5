//! Sockets that a child of fork(2) shares with its parent, and a process without descriptors.

use std::{
    cell::RefCell,
    error::Error as _,
    future::Future,
    io::{Read, Write},
    net::{TcpListener, TcpStream as StdStream},
    os::{fd::AsRawFd, unix::net::UnixStream as StdUnix},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
    time::Duration,
};

use rustix::{
    net::sockopt,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use windlass::Backend;
use windlass_task::{
    Executor,
    net::{IntoStdError, OwnedReadHalf, OwnedWriteHalf, TcpStream, UnixStream},
    with_turn, yield_now,
};

use crate::{
    children::executor,
    tools::{fork, in_child, leave, reap},
};

pub(crate) async fn turns() {
    let count = || with_turn(|turn| turn.stats().turns).unwrap();
    let end = count() + 2;
    while count() < end {
        yield_now().await;
    }
}

pub(crate) fn with_peer() -> (TcpStream, StdStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = StdStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_nodelay(true).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (TcpStream::from_std(listener.accept().unwrap().0).unwrap(), peer)
}

/// Streams of a parent, and their peers.
struct Streams {
    /// It has bytes that were received and not read.
    unread: TcpStream,
    tcp: (OwnedReadHalf<TcpStream>, OwnedWriteHalf<TcpStream>),
    unix: (OwnedReadHalf<UnixStream>, OwnedWriteHalf<UnixStream>),
    tcp_peers: [StdStream; 2],
    unix_peer: StdUnix,
}

impl Streams {
    async fn new() -> Self {
        let (mut unread, mut first) = with_peer();
        first.write_all(b"ab").unwrap();
        assert_eq!(unread.read(&mut [0; 1]).await.unwrap(), 1);
        let (mut tcp, second) = with_peer();
        tcp.write_all(b"x").await.unwrap();
        turns().await;
        (&second).read_exact(&mut [0; 1]).unwrap();
        let (ours, unix_peer) = StdUnix::pair().unwrap();
        unix_peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let unix = UnixStream::from_std(ours).unwrap().into_split();
        Self { unread, tcp: tcp.into_split(), unix, tcp_peers: [first, second], unix_peer }
    }

    /// Checks that all connections go on in both directions.
    async fn assert_work(mut self) {
        assert_eq!(sockopt::socket_linger(&self.unread).unwrap(), None);
        self.unread.read_exact(&mut [0; 1]).await.unwrap();
        let [mut first, mut second] = self.tcp_peers;
        let mut buffer = [0; 2];
        self.unread.write_all(b"un").await.unwrap();
        self.tcp.1.write_all(b"tc").await.unwrap();
        self.unix.1.write_all(b"ux").await.unwrap();
        turns().await;
        first.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"un");
        second.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"tc");
        self.unix_peer.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"ux");
        first.write_all(b"12").unwrap();
        second.write_all(b"34").unwrap();
        self.unix_peer.write_all(b"56").unwrap();
        self.unread.read_exact(&mut buffer).await.unwrap();
        self.tcp.0.read_exact(&mut buffer).await.unwrap();
        self.unix.0.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"56");
    }
}

pub(crate) fn streams_dropped_by_a_child_are_the_parents_still(backend: Backend) {
    for executor_first in [false, true] {
        let mut parent = executor(backend);
        let streams = parent.block_on(Streams::new());
        match fork() {
            None => leave(catch_unwind(AssertUnwindSafe(|| {
                if executor_first {
                    drop(parent);
                    drop(streams);
                } else {
                    drop(streams);
                    drop(parent);
                }
            }))),
            Some(child) => reap(child),
        }
        parent.block_on(streams.assert_work());
    }
}

pub(crate) fn streams_dropped_in_a_task_that_forked_are_the_parents_still(backend: Backend) {
    let mut parent = executor(backend);
    parent.block_on(async {
        let streams = Streams::new().await;
        match fork() {
            None => leave(catch_unwind(AssertUnwindSafe(|| {
                // There is a turn, which is the parent's.
                with_turn(|_| ()).unwrap();
                drop(streams);
            }))),
            Some(child) => reap(child),
        }
        streams.assert_work().await;
    });
}

/// The kernel still receives for the parent.
pub(crate) fn a_child_cannot_detach_a_stream_that_receives(backend: Backend) {
    let mut parent = executor(backend);
    let (ours, mut peer) = parent.block_on(async {
        let (mut ours, peer) = with_peer();
        ours.write_all(b"x").await.unwrap();
        turns().await;
        (ours, peer)
    });
    peer.read_exact(&mut [0; 1]).unwrap();
    let is_on_ring = backend == Backend::Uring;
    let mut both = Some((parent, ours));
    in_child(|| {
        let (parent, ours) = both.take().unwrap();
        drop(parent);
        let ours = match ours.into_std() {
            Ok(_) => return assert!(!is_on_ring),
            Err(error) => error.stream,
        };
        assert!(is_on_ring);
        let error = executor(backend).block_on(ours.detach()).unwrap_err();
        assert!(error.to_string().contains("fork(2)"), "{error}");
    });
    let (mut parent, mut ours) = both.unwrap();
    peer.write_all(b"y").unwrap();
    parent.block_on(async { ours.read_exact(&mut [0; 1]).await.unwrap() });
}

thread_local! {
    static STREAM: RefCell<Option<TcpStream>> = const { RefCell::new(None) };
    static RESULT: RefCell<Option<Result<StdStream, IntoStdError>>> = const { RefCell::new(None) };
}

/// Takes the socket out of a stream, in the callback that says that the stream has ended.
struct TakesSocket;

impl Wake for TakesSocket {
    fn wake(self: Arc<Self>) {
        let result = STREAM.take().map(TcpStream::into_std);
        RESULT.set(result);
    }
}

pub(crate) fn a_process_without_descriptors_keeps_a_stream_whose_socket_it_cannot_take(
    backend: Backend,
) {
    let mut executor: Executor = executor(backend);
    executor.block_on(async {
        let (mut ours, peer) = with_peer();
        {
            let mut buffer = [0; 1];
            let read = pin!(ours.read(&mut buffer));
            let waker = Waker::from(Arc::new(TakesSocket));
            assert!(read.poll(&mut Context::from_waker(&waker)).is_pending());
        }
        STREAM.set(Some(ours));
        turns().await;
        let limit = getrlimit(Resource::Nofile);
        // The lowest number that is free. poll(2) rejects more descriptors than the limit.
        let free = peer.try_clone().unwrap().as_raw_fd();
        let current = Some(free.try_into().unwrap());
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
        while RESULT.with_borrow(Option::is_none) {
            yield_now().await;
        }
        let result = RESULT.take().unwrap();
        setrlimit(Resource::Nofile, limit).unwrap();
        turns().await;
        match result {
            Ok(_) => assert!(backend != Backend::Uring, "its handler has another reference"),
            Err(error) => {
                let source =
                    error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
                let errno = source.and_then(std::io::Error::raw_os_error);
                assert_eq!(errno, Some(rustix::io::Errno::MFILE.raw_os_error()), "{error}");
                drop(error.stream.into_std().unwrap());
            }
        }
    });
}
