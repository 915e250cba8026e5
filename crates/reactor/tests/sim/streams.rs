//! Streams, listeners and connectors on simulated sockets.

use std::{
    io::{Read, Write},
    time::Duration,
};

use windlass::{
    Errno, Group, Key, Turn,
    fd_passing::SendFdsError,
    sim::{Faults, Fd, Sim},
    stream::{
        Address, Connector, DisconnectReason, Input, Listener, MemberStreamHandler, Peer, Stream,
        StreamHandler, StreamOptions,
    },
    vsock::VsockAddr,
};

use crate::tools::{Echo, Log, Said, address, calm, listen};

#[test]
fn an_echo_serves_the_test() {
    let sim = calm();
    let mut server = sim.reactor().unwrap();
    let log = Log::new();
    listen(&mut server, address("127.0.0.1:80"), &log);
    sim.spawn(server);
    let mut client = sim.connect(address("127.0.0.1:80")).unwrap();
    for text in [&b"hello"[..], b"again"] {
        client.write_all(text).unwrap();
        let mut answer = [0; 5];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, text);
    }
    client.shutdown_write().unwrap();
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
    drop(client);
    sim.run_until(|| log.len() == 5).unwrap();
    assert_eq!(
        log.take(),
        [
            Said::Open,
            Said::Data(b"hello".to_vec()),
            Said::Data(b"again".to_vec()),
            Said::End,
            Said::Close(DisconnectReason::Closed),
        ]
    );
}

#[test]
fn both_ends_in_one_reactor_that_the_test_runs() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let log = Log::new();
    listen(&mut reactor, address("127.0.0.1:80"), &log);
    struct Client(Log<Vec<u8>>);
    impl StreamHandler for Client {
        fn on_open(&mut self, stream: &mut Stream<'_>) {
            assert_eq!(stream.peer_addr().unwrap(), Address::Ip(address("127.0.0.1:80")));
            stream.send(&[7; 1_000_000]).unwrap();
            stream.finish();
        }
        fn on_data(&mut self, _: &mut Stream<'_>, input: Input<'_>) {
            self.0.note(input.to_vec());
        }
        fn on_close(&mut self, _: Key, reason: DisconnectReason, mut turn: Turn<'_>) {
            assert_eq!(reason, DisconnectReason::Closed);
            turn.stop();
        }
    }
    let received = Log::new();
    let client = Client(received.clone());
    let roomy = StreamOptions::new().output_max(2_000_000);
    Connector::tcp(address("127.0.0.1:80")).stream(roomy).connect(client, &mut reactor).unwrap();
    reactor.run().unwrap();
    let received = received.take().concat();
    assert!(received.len() == 1_000_000 && received.iter().all(|byte| *byte == 7));
}

#[test]
fn descriptors_and_vsock_are_not_simulated() {
    struct Client;
    impl StreamHandler for Client {
        fn on_open(&mut self, stream: &mut Stream<'_>) {
            let with_fds = stream.send_with_fds(b"never", &[rustix::stdio::stdin()]);
            assert_eq!(with_fds, Err(SendFdsError::Os(Errno::OPNOTSUPP).into()));
            stream.send(b"hello").unwrap();
        }
        fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
            assert_eq!((&input[..], stream.received_fds()), (&b"hello"[..], 0));
            stream.turn().stop();
        }
    }
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let at = address("127.0.0.1:80");
    listen(&mut reactor, at, &Log::new());
    let carrying = StreamOptions::new().fds_max(1);
    Connector::tcp(at).stream(carrying).connect(Client, &mut reactor).unwrap();
    reactor.run().unwrap();
    let refused = Connector::vsock(VsockAddr { cid: 2, port: 9 }).connect(Client, &mut reactor);
    assert_eq!(refused, Err(Errno::AFNOSUPPORT.into()));
    let refused = Listener::vsock(VsockAddr { cid: 2, port: 9 }).unwrap_err();
    assert!(refused.to_string().contains(&Errno::AFNOSUPPORT.to_string()), "{refused}");
}

#[test]
fn unix_sockets_connect_by_path() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let listener = Listener::unix("/run/echo").unwrap();
    assert_eq!(listener.local_addr().unwrap(), Address::Unix(Some("/run/echo".into())));
    listener.with_handler(move |_| Some(Echo(noted.clone()))).register_into(&mut reactor).unwrap();
    struct Client;
    impl StreamHandler for Client {
        fn on_open(&mut self, stream: &mut Stream<'_>) {
            stream.send(b"hello").unwrap();
        }
        fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
            assert_eq!(&input[..], b"hello");
            stream.turn().stop();
        }
    }
    Connector::unix("/run/echo").connect(Client, &mut reactor).unwrap();
    reactor.run().unwrap();
    assert_eq!(log.take(), [Said::Open, Said::Data(b"hello".to_vec())]);
}

#[test]
fn a_connection_to_nobody_is_refused() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let log = Log::new();
    struct Client(Log<DisconnectReason>);
    impl StreamHandler for Client {
        fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
        fn on_close(&mut self, _: Key, reason: DisconnectReason, mut turn: Turn<'_>) {
            self.0.note(reason);
            turn.stop();
        }
    }
    let client = Client(log.clone());
    Connector::tcp(address("127.0.0.1:81")).connect(client, &mut reactor).unwrap();
    reactor.run().unwrap();
    assert_eq!(log.take(), [DisconnectReason::Connect(Errno::CONNREFUSED)]);
    let error = sim.connect(address("127.0.0.1:81")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_reset_is_an_error_on_both_sides() {
    let sim = calm();
    let mut server = sim.reactor().unwrap();
    let log = Log::new();
    listen(&mut server, address("127.0.0.1:80"), &log);
    sim.spawn(server);
    let mut client = sim.connect(address("127.0.0.1:80")).unwrap();
    client.write_all(b"x").unwrap();
    // The end of a connection with unread input would be a reset by itself.
    client.read_exact(&mut [0; 1]).unwrap();
    client.reset_on_drop();
    drop(client);
    sim.run_until(|| log.len() == 3).unwrap();
    let said = log.take();
    assert_eq!(said[2], Said::Close(DisconnectReason::Error(Errno::CONNRESET)));
}

#[test]
fn a_reactor_that_ends_closes_its_connections() {
    let sim = calm();
    let mut server = sim.reactor().unwrap();
    let log = Log::new();
    listen(&mut server, address("127.0.0.1:80"), &log);
    let mut client = {
        let stop = server.stop_handle();
        let running = sim.spawn(server);
        let client = sim.connect(address("127.0.0.1:80")).unwrap();
        sim.run_until(|| log.len() == 1).unwrap();
        stop.stop();
        sim.run_until(|| running.has_ended()).unwrap();
        client
    };
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
    sim.connect(address("127.0.0.1:80")).unwrap_err();
}

#[test]
fn an_idle_timeout_passes_in_virtual_time() {
    let sim = calm();
    let mut server = sim.reactor().unwrap();
    let log = Log::new();
    let noted = log.clone();
    let idle = StreamOptions::new().idle_timeout(Some(Duration::from_secs(3600)));
    let options = windlass::stream::ListenOptions::new().stream(idle);
    let listener = options.tcp(address("127.0.0.1:80")).unwrap();
    listener.with_handler(move |_| Some(Echo(noted.clone()))).register_into(&mut server).unwrap();
    sim.spawn(server);
    let mut client = sim.connect(address("127.0.0.1:80")).unwrap();
    let begin = sim.elapsed();
    let ended = client.read(&mut [0; 8]);
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert!(sim.elapsed() - begin >= Duration::from_secs(3600));
    sim.run_until(|| log.len() == 2).unwrap();
    assert_eq!(log.take(), [Said::Open, Said::Close(DisconnectReason::IdleTimeout)]);
}

#[test]
fn simulated_sockets_have_no_descriptor() {
    let sim = calm();
    let mut server = sim.reactor().unwrap();
    let listener = Listener::tcp(address("127.0.0.1:80")).unwrap();
    let as_fd = std::panic::AssertUnwindSafe(|| {
        std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&listener))
    });
    std::panic::catch_unwind(as_fd).unwrap_err();
    let log = Log::new();
    listener.with_handler(move |_| Some(Echo(log.clone()))).register_into(&mut server).unwrap();
}

/// The time that the closure asks for is longer than the pause after a failure.
#[test]
fn a_rest_is_not_shortened_if_the_connection_cannot_be_registered() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let (kernel, log) = (sim.kernel().clone(), Log::new());
    let (times, begin) = (log.clone(), sim.now());
    let listener = Listener::tcp(address("10.0.0.1:80")).unwrap();
    let accept = move |peer: &Peer<'_>| {
        times.note(kernel.now_ns());
        peer.rest_listener(Duration::from_secs(10));
        // The connection that was accepted: its local port is that of the listener.
        let is_accepted = |fd: &Fd| {
            let local = kernel.local_addr(*fd).ok().and_then(|address| address.inet());
            kernel.peer_addr(*fd).is_ok() && local.is_some_and(|address| address.port() == 80)
        };
        let accepted = (0..64).filter_map(|slot| kernel.fd_at(slot)).find(is_accepted).unwrap();
        kernel.close(accepted).unwrap();
        Some(Echo(Log::new()))
    };
    listener.with_handler(accept).register_into(&mut reactor).unwrap();
    sim.spawn(reactor);
    let _clients = [(); 2].map(|()| sim.connect(address("10.0.0.1:80")).unwrap());
    sim.run_until(|| log.len() == 2).unwrap();
    assert!(sim.now() - begin >= Duration::from_secs(10));
}

#[test]
fn a_paused_group_is_told_nothing_and_loses_nothing() {
    struct Note;
    impl MemberStreamHandler<Log<Vec<u8>>> for Note {
        fn on_data(&mut self, log: &mut Log<Vec<u8>>, _: &mut Stream<'_>, input: Input<'_>) {
            log.note(input.to_vec());
        }
        fn on_end(&mut self, log: &mut Log<Vec<u8>>, stream: &mut Stream<'_>) {
            log.note(b"end".to_vec());
            stream.close();
        }
    }
    struct Quiet;
    impl StreamHandler for Quiet {
        fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
    }
    for seed in 0..30 {
        let sim = Sim::new(seed, Faults::calm());
        let mut reactor = sim.reactor().unwrap();
        let (at, log) = (address("127.0.0.1:80"), Log::new());
        let listener = Listener::tcp(at).unwrap();
        let group = Group::new(log.clone()).listener(listener, |_: &mut Log<_>, _| Some(Note));
        let group = group.register_into(&mut reactor).unwrap().group;
        let client = Connector::tcp(at).connect(Quiet, &mut reactor).unwrap();
        for round in 0..10 {
            reactor.pause_group(group).unwrap();
            let bytes = [round; 3000];
            reactor.stream(client).unwrap().send(&bytes).unwrap();
            for _ in 0..20 {
                reactor.run_once(Duration::from_millis(1)).unwrap();
            }
            assert_eq!(log.len(), 0, "{seed}");
            reactor.resume_group(group).unwrap();
            let mut received = Vec::new();
            while received.len() < bytes.len() {
                reactor.run_once(None).unwrap();
                received.extend(log.take().concat());
            }
            assert_eq!(received, bytes, "{seed}");
        }
        reactor.pause_group(group).unwrap();
        reactor.stream(client).unwrap().finish();
        for _ in 0..20 {
            reactor.run_once(Duration::from_millis(1)).unwrap();
        }
        assert_eq!(log.len(), 0, "{seed}");
        reactor.resume_group(group).unwrap();
        while log.len() == 0 {
            reactor.run_once(None).unwrap();
        }
        assert_eq!(log.take(), [b"end"], "{seed}");
    }
}
