//! Sockets of each kind, their addresses and options, signals and other descriptors.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    net::Shutdown,
    os::{linux::net::SocketAddrExt as _, unix::net::SocketAddr},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use windlass::{Backend, Reactor, Signal, sim::Faults};
use windlass_task::{
    AsyncFd, Direction, Executor,
    net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream},
    signal::Signals,
    spawn,
    time::{now, sleep},
};

use crate::tools::{address, again_async, calm, executor, host};

#[test]
fn addresses_are_those_of_the_hosts() {
    let sim = calm();
    executor(&sim, 2).simulate(&sim, async {
        let listener = TcpListener::bind("0.0.0.0:80").await.unwrap();
        assert_eq!(listener.local_addr().unwrap(), address("0.0.0.0:80"));
        let (stream, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, stream.peer_addr().unwrap());
        assert_eq!(peer.ip(), address("10.0.0.3:0").ip());
        assert_eq!(stream.local_addr().unwrap(), address("10.0.0.2:80"));
        std::future::pending().await
    });
    let client = executor(&sim, 3).simulate(&sim, async {
        let stream = TcpStream::connect("10.0.0.2:80").await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_keepalive(Some((Duration::from_secs(1), Duration::from_secs(1)))).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address("10.0.0.2:80"));
        let error = TcpStream::connect("10.0.0.2:81").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(stream.take_error().unwrap().is_none());
    });
    sim.run_until(|| client.has_ended()).unwrap();
}

/// Its sockets and its time are of the simulation, as those of the reactor.
#[test]
fn an_executor_with_the_backend_alone_is_in_the_simulation_of_its_thread() {
    let sim = calm();
    let reactor = Reactor::builder().backend(Backend::Sim);
    let built = sim.at(&host(&sim, 2), || Executor::builder().reactor(reactor).build());
    let server = built.unwrap().simulate(&sim, async {
        let begin = now();
        sleep(Duration::from_secs(3600)).await;
        assert!(now() - begin >= Duration::from_secs(3600));
        let listener = TcpListener::bind("10.0.0.2:80").await.unwrap();
        listener.accept().await.unwrap();
    });
    let client = executor(&sim, 3).simulate(&sim, async {
        sleep(Duration::from_secs(3601)).await;
        TcpStream::connect("10.0.0.2:80").await.unwrap();
    });
    sim.run_until(|| client.has_ended() && server.has_ended()).unwrap();
    assert!(server.take_result().unwrap().is_ok() && client.take_result().unwrap().is_ok());
}

/// A spurious event says nothing of a connect.
#[test]
fn a_connect_waits_for_its_result_although_events_are_spurious() {
    windlass::sim::check(|sim| {
        let _server = executor(sim, 2);
        let client = executor(sim, 3).simulate(sim, async {
            let begin = now();
            let error = TcpStream::connect("10.0.0.2:81").await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            // There and back.
            assert!(now() - begin >= Duration::from_micros(100));
        });
        sim.run_until(|| client.has_ended()).unwrap();
    })
    .seeds(50)
    .faults(Faults { spurious_event: 500_000, extra_run: 500_000, ..Faults::calm() })
    .run();
}

#[test]
fn a_zero_linger_resets() {
    let sim = calm();
    executor(&sim, 2).simulate(&sim, async {
        let listener = TcpListener::bind("10.0.0.2:80").await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_zero_linger().unwrap();
    });
    let client = executor(&sim, 3).simulate(&sim, async {
        let mut stream = TcpStream::connect("10.0.0.2:80").await.unwrap();
        let mut room = [0; 1];
        assert_eq!(
            stream.read(&mut room).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
    });
    sim.run_until(|| client.has_ended()).unwrap();
}

#[test]
fn bytes_are_peeked_and_read_without_a_wait() {
    let sim = calm();
    let program = executor(&sim, 2).simulate(&sim, async {
        let (mut here, there) = UnixStream::pair().unwrap();
        assert_eq!(there.try_read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        here.write_all(b"hello").await.unwrap();
        there.readable().await.unwrap();
        let mut room = [0; 8];
        assert_eq!(there.try_read(&mut room).unwrap(), 5);
        assert_eq!(there.try_write(b"back").unwrap(), 4);
        here.shutdown_now(Shutdown::Write).unwrap();
        let listener = TcpListener::bind("127.0.0.1:80").await.unwrap();
        let mut client = TcpStream::connect("127.0.0.1:80").await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        client.write_all(b"twice").await.unwrap();
        for _ in 0..2 {
            assert_eq!(server.peek(&mut room).await.unwrap(), 5);
        }
        assert_eq!(server.read(&mut room).await.unwrap(), 5);
        assert_eq!(&room[..5], b"twice");
    });
    sim.run_until(|| program.has_ended()).unwrap();
}

#[test]
fn paths_and_abstract_names_belong_to_a_host() {
    let sim = calm();
    let name = SocketAddr::from_abstract_name("a name").unwrap();
    let bound = name.clone();
    executor(&sim, 2).simulate(&sim, async move {
        let listener = UnixListener::bind_addr(&bound).unwrap();
        assert_eq!(listener.local_addr().unwrap().as_abstract_name(), Some(&b"a name"[..]));
        let twice = UnixListener::bind_addr(&bound).err().map(|error| error.kind());
        assert_eq!(twice, Some(io::ErrorKind::AddrInUse));
        let (stream, peer) = listener.accept().await.unwrap();
        assert!(peer.is_unnamed());
        drop(stream);
        std::future::pending().await
    });
    sim.run_for(Duration::from_millis(1)).unwrap();
    let of_other = name.clone();
    let other = executor(&sim, 3).simulate(&sim, async move {
        UnixStream::connect_addr(&of_other).await.unwrap_err();
    });
    let client = executor(&sim, 2).simulate(&sim, async move {
        let mut stream = UnixStream::connect_addr(&name).await.unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    });
    sim.run_until(|| client.has_ended() && other.has_ended()).unwrap();
}

/// A datagram comes as it was sent, at most twice.
#[test]
fn datagrams_are_lost_or_doubled_but_never_changed() {
    windlass::sim::check(|sim| {
        let received: Rc<RefCell<BTreeMap<u8, usize>>> = Rc::default();
        let noted = Rc::clone(&received);
        executor(sim, 2).simulate(sim, async move {
            let socket = again_async!(UdpSocket::bind("10.0.0.2:53"));
            let mut room = [0; 64];
            loop {
                let (count, from) = socket.recv_from(&mut room).await.unwrap();
                assert_eq!(from.ip(), address("10.0.0.3:0").ip());
                assert_eq!(count, usize::from(room[0]));
                assert!(room[..count].iter().all(|found| *found == room[0]));
                *noted.borrow_mut().entry(room[0]).or_default() += 1;
                let _ = socket.send_to(&room[..count], from).await;
            }
        });
        let client = executor(sim, 3).simulate(sim, async move {
            let socket = Rc::new(again_async!(UdpSocket::bind("10.0.0.3:0")));
            again_async!(socket.connect("10.0.0.2:53"));
            let reader = Rc::clone(&socket);
            spawn(async move {
                let mut room = Vec::with_capacity(64);
                loop {
                    room.clear();
                    let count = reader.recv_buf(&mut room).await.unwrap();
                    assert_eq!(count, usize::from(room[0]));
                }
            })
            .detach();
            for number in 1..40 {
                let _ = socket.send(&vec![number; usize::from(number)]).await;
                sleep(Duration::from_micros(100)).await;
            }
            sleep(Duration::from_secs(5)).await;
        });
        sim.run_until(|| client.has_ended()).unwrap();
        assert!(received.borrow().values().all(|times| *times <= 2));
        assert!(!received.borrow().is_empty());
    })
    .seeds(100)
    .faults(Faults::hostile())
    .run();
}

#[test]
fn a_signal_reaches_the_listeners_of_its_host_alone() {
    let sim = calm();
    let log: Rc<RefCell<Vec<u8>>> = Rc::default();
    for (name, last) in [(1, 2), (2, 2), (3, 3)] {
        let log = Rc::clone(&log);
        executor(&sim, last).simulate(&sim, async move {
            let mut signals = Signals::new([Signal::TERM]).unwrap();
            assert_eq!(signals.recv().await.unwrap(), Signal::TERM);
            log.borrow_mut().push(name);
        });
    }
    sim.run_for(Duration::from_millis(1)).unwrap();
    sim.raise(&host(&sim, 2), Signal::TERM);
    sim.run_for(Duration::from_secs(1)).unwrap();
    log.borrow_mut().sort_unstable();
    assert_eq!(*log.borrow(), [1, 2]);
}

#[test]
fn eventfds_and_latches_are_awaited() {
    let sim = calm();
    let (counter, latch) = (sim.eventfd(0).unwrap(), Arc::new(windlass::latch().unwrap()));
    latch.rearm();
    let (writer, waker) = (counter.clone(), Arc::clone(&latch));
    let program = executor(&sim, 1).simulate(&sim, async move {
        let counter = AsyncFd::new(counter).unwrap();
        let mut count = [0; 8];
        counter.async_io(Direction::Read, |fd| fd.read(&mut count)).await.unwrap();
        assert_eq!(u64::from_ne_bytes(count), 3);
        let watch = AsyncFd::new(Arc::clone(&latch)).unwrap();
        watch.readable().await.unwrap();
        assert!(latch.awake());
    });
    sim.run_for(Duration::from_millis(1)).unwrap();
    writer.write(&3u64.to_ne_bytes()).unwrap();
    sim.run_for(Duration::from_millis(1)).unwrap();
    assert!(!program.has_ended());
    waker.wake();
    sim.run_until(|| program.has_ended()).unwrap();
}
