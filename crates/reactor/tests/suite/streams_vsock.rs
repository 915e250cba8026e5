//! Streams over vsock. Those that need a connection use the loopback, or are skipped.

use std::{io::ErrorKind, os::fd::AsFd as _, time::Duration};

use windlass::{
    Errno,
    stream::{Address, Connector, DisconnectReason, Listener, StreamOptions},
    vsock::{self, VsockAddr},
};
use windlass_testkit::vsock::has_loopback;

use crate::{
    Build,
    bed::Log,
    script::{Said, Script, until, until_subscribers},
};

const ANYWHERE: VsockAddr = VsockAddr { cid: VsockAddr::CID_ANY, port: VsockAddr::PORT_ANY };

/// A listener, and its address for the loopback. `None` if the kernel lacks vsock.
fn listener(test: &str) -> Option<(Listener, VsockAddr)> {
    let listener = match Listener::vsock(ANYWHERE) {
        Err(error) if error.to_string().contains(&Errno::AFNOSUPPORT.to_string()) => {
            eprintln!("skipped here: {test}: {error}");
            return None;
        }
        listener => listener.unwrap(),
    };
    let address = listener.local_addr().unwrap();
    let VsockAddr { cid, port } = address.vsock_addr().unwrap();
    assert_eq!((cid, address.socket_addr(), address.path()), (VsockAddr::CID_ANY, None, None));
    assert_ne!(port, VsockAddr::PORT_ANY);
    assert_eq!(address.to_string(), format!("vsock:any:{port}"));
    Some((listener, VsockAddr { cid: VsockAddr::CID_LOCAL, port }))
}

#[test]
fn a_listener_has_an_address_that_no_other_gets() {
    let Some((_listener, at)) = listener("streams_vsock::a_listener_has_an_address") else {
        return;
    };
    let error = Listener::vsock(VsockAddr { cid: VsockAddr::CID_ANY, ..at }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let text = format!("cannot listen on vsock:any:{}: ", at.port);
    assert!(error.to_string().starts_with(&text), "{error}");
}

#[test]
fn options_of_sockets_are_set_and_read() {
    let Some((listener, _)) = listener("streams_vsock::options_of_sockets") else { return };
    let socket = listener.as_fd();
    assert_eq!(vsock::buffer_size(socket).unwrap(), 256 << 10);
    for bytes in [1 << 20, 64 << 10] {
        vsock::set_buffer_size(socket, bytes).unwrap();
        assert_eq!(vsock::buffer_size(socket).unwrap(), bytes);
    }
    assert_eq!(vsock::connect_timeout(socket).unwrap(), Duration::from_secs(2));
    let longest = Duration::from_millis(5500);
    vsock::set_connect_timeout(socket, longest).unwrap();
    assert_eq!(vsock::connect_timeout(socket).unwrap(), longest);
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(vsock::buffer_size(&tcp).is_err() && vsock::set_buffer_size(&tcp, 1).is_err());
    assert!(vsock::connect_timeout(&tcp).is_err());
}

/// Where no connection succeeds, the timeout is that of the connector. Elsewhere the connection is
/// refused.
fn a_connection_without_a_listener_fails_in_time(build: Build) {
    let Some((_, at)) = listener("streams_vsock::a_connection_without_a_listener") else { return };
    // Nobody listens there: other tests have ports that are free.
    let at = VsockAddr { port: 1, ..at };
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let connector = Connector::vsock(at).timeout(Some(Duration::from_millis(100)));
    let key = connector.connect(Script::new(&log), &mut reactor).unwrap();
    // The kernel's limit comes later, also if that of the connector is longer than its default.
    let kernels = vsock::connect_timeout(reactor.stream(key).unwrap()).unwrap();
    assert_eq!(kernels, Duration::from_millis(1100));
    until(&mut reactor, &log, 2);
    let said = log.take();
    let Said::Close(reason) = said[0] else { panic!("{said:?}") };
    let refused = DisconnectReason::Connect(Errno::CONNRESET);
    assert!(reason == DisconnectReason::ConnectTimeout || reason == refused, "{reason}");
}

fn bytes_go_both_ways_over_the_loopback(build: Build) {
    if !has_loopback("streams_vsock::bytes_go_both_ways_over_the_loopback") {
        return;
    }
    let (listener, at) = listener("streams_vsock").unwrap();
    let mut reactor = build().build().unwrap();
    let (log, ours) = (Log::new(), Log::new());
    let peer = Log::new();
    let accepting = (log.clone(), peer.clone());
    let accept = move |from: &windlass::stream::Peer<'_>| {
        accepting.1.note(from.address().clone());
        Some(Script::echo(&accepting.0))
    };
    let listening = listener.register(accept, &mut reactor).unwrap();
    // More than the socket's buffer has room for, so that output waits.
    let bytes = vec![b'x'; 1 << 20];
    let sent = bytes.clone();
    let script = Script::new(&ours).on_open(move |stream| stream.send(&sent).unwrap());
    let options = StreamOptions::new().linger(Duration::from_secs(20));
    let key = Connector::vsock(at).stream(options).connect(script, &mut reactor).unwrap();
    let mut got = 0;
    while got < bytes.len() {
        reactor.run_once(None).unwrap();
        for said in ours.take() {
            match said {
                Said::Open | Said::Full | Said::Drained => {}
                Said::Data(bytes) => got += bytes.len(),
                other => panic!("{other:?}"),
            }
        }
    }
    let mut stream = reactor.stream(key).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), Address::Vsock(at));
    assert_eq!(peer.take(), [stream.local_addr().unwrap()]);
    stream.close();
    until_subscribers(&mut reactor, 1);
    assert!(ours.take().contains(&Said::Close(DisconnectReason::Closed)));
    reactor.remove(listening).unwrap();
}

scenarios! {
    a_connection_without_a_listener_fails_in_time,
    bytes_go_both_ways_over_the_loopback,
}
