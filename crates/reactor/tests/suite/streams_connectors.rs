//! Connectors.

use std::net::{SocketAddr, TcpListener};

use windlass::{
    AddReason, Errno, Reactor,
    stream::{Address, Connector, DisconnectReason, Listener},
};

use crate::{
    Build,
    bed::{Log, run_dry},
    script::{Said, Script, until},
    streams_listeners::{OwnPath, address, anywhere, echoing},
};

fn a_connector_connects_and_sends_what_was_sent_before(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, ours) = (Log::new(), Log::new());
    let listener = Listener::tcp(anywhere()).unwrap();
    let to = address(&listener);
    listener.register(echoing(&log), &mut reactor).unwrap();
    let script = Script::new(&ours).on_open(|stream| stream.send(b"then").unwrap());
    let key = Connector::tcp(to).connect(script, &mut reactor).unwrap();
    reactor.stream(key).unwrap().send(b"first ").unwrap();
    let mut got = Vec::new();
    while got.len() < 10 {
        reactor.run_once(None).unwrap();
        for said in ours.take() {
            match said {
                Said::Open => assert_eq!(got, b""),
                Said::Data(bytes) => got.extend(bytes),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(got, b"first then");
    let stream = reactor.stream(key).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), Address::Ip(to));
}

/// A port without a listener: it was assigned a moment ago and closed.
fn nobody() -> SocketAddr {
    TcpListener::bind(anywhere()).unwrap().local_addr().unwrap()
}

fn a_refused_connection_is_told_after_the_call(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let missing = OwnPath::new();
    let cases = [
        (Connector::tcp(nobody()), Errno::CONNREFUSED),
        (Connector::unix(&missing.0), Errno::NOENT),
        (Connector::tcp(([255, 255, 255, 255], 9).into()), Errno::NETUNREACH),
    ];
    for (connector, errno) in cases {
        let key = connector.connect(Script::new(&log), &mut reactor).unwrap();
        assert_eq!(log.take(), []);
        reactor.stream(key).unwrap().send(b"never").ok();
        until(&mut reactor, &log, 2);
        let said = log.take();
        let Said::Close(DisconnectReason::Connect(told)) = said[0] else { panic!("{said:?}") };
        assert!(told == errno || (errno == Errno::NETUNREACH && told == Errno::ACCESS), "{told}");
        assert_eq!(said[1], Said::Dropped);
    }
    let long = "x".repeat(200);
    let e = Connector::unix(long).connect(Script::new(&log), &mut reactor).err().unwrap();
    assert_eq!(e, AddReason::Os(Errno::NAMETOOLONG));
}

fn a_stream_that_is_ended_before_it_is_connected_never_opens(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let listener = TcpListener::bind(anywhere()).unwrap();
    let to = listener.local_addr().unwrap();
    let ends: [(fn(&mut Reactor, windlass::Key), DisconnectReason); 2] = [
        (|reactor, key| reactor.stream(key).unwrap().abort(), DisconnectReason::Aborted),
        (|reactor, key| reactor.stream(key).unwrap().close(), DisconnectReason::Closed),
    ];
    for (end, reason) in ends {
        let key = Connector::tcp(to).connect(Script::new(&log), &mut reactor).unwrap();
        end(&mut reactor, key);
        run_dry(&mut reactor);
        assert_eq!(log.take(), [Said::Close(reason), Said::Dropped]);
    }
}

/// What has come and what was acknowledged is known when the peer's next bytes are there.
fn the_kernel_counts_the_bytes_of_tcp(build: Build) {
    let mut reactor = build().build().unwrap();
    let (log, path) = (Log::new(), OwnPath::new());
    let listener = Listener::tcp(anywhere()).unwrap();
    let to = address(&listener);
    listener.register(echoing(&log), &mut reactor).unwrap();
    Listener::unix(&path.0).unwrap().register(echoing(&log), &mut reactor).unwrap();
    let mut connect = |connector: Connector| {
        let own = Log::new();
        let key = connector.connect(Script::new(&own), &mut reactor).unwrap();
        reactor.stream(key).unwrap().send(b"hello").unwrap();
        until(&mut reactor, &own, 2);
        reactor.stream(key).unwrap().tcp_bytes()
    };
    let bytes = connect(Connector::tcp(to)).unwrap();
    assert_eq!(bytes.received, 5);
    // The kernel may count the SYN of the side that has connected.
    assert!((5..=6).contains(&bytes.acked), "{bytes:?}");
    let unix = connect(Connector::unix(&path.0)).unwrap_err();
    assert_eq!(unix.raw_os_error(), Some(Errno::OPNOTSUPP.raw_os_error()));
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    a_connector_connects_and_sends_what_was_sent_before,
    #[cfg_attr(miri, ignore = "sockets")]
    a_refused_connection_is_told_after_the_call,
    #[cfg_attr(miri, ignore = "sockets")]
    a_stream_that_is_ended_before_it_is_connected_never_opens,
    #[cfg_attr(miri, ignore = "sockets")]
    the_kernel_counts_the_bytes_of_tcp,
}
