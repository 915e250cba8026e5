//! TLS with servers that nats-server cannot be.

use windlass_cluster::{NatsBus, NatsBusBuilder, NatsEvent};
use windlass_server::bus::BusState;
use windlass_testkit::certificates::certificate;

use crate::{
    batch::publish,
    fake::Fake,
    hostile::end,
    node::{Member, Wanted, fast},
};

fn start(server: &Fake, bus: NatsBusBuilder) -> Member {
    let mut wanted = Wanted::at(&server.url());
    wanted.bus = fast(bus);
    wanted.start()
}

/// The server waits for TLS, and so says nothing to a client that waits for it.
pub(crate) fn tls_may_come_first() {
    let server = Fake::tls_first();
    let builder = || NatsBus::builder([server.url()]).ca_file(certificate("ca.pem"));
    let node = start(&server, builder());
    assert!(server.accept().is_err());
    node.event_when(|event| matches!(event, NatsEvent::ConnectFailed { .. }));
    assert_eq!(node.stats().connects, 0);
    node.end();
    let node = start(&server, builder().tls_first());
    // The attempts of the node before end first.
    let mut peer = (0..20).find_map(|_| server.accept().ok()).expect("TLS is first");
    node.wait_for(BusState::Connected);
    publish(&node, ["a"].into_iter(), 10);
    assert_eq!(peer.publication().as_deref(), Some("a"));
    let end = std::thread::spawn(move || peer.publication());
    node.end();
    assert_eq!(end.join().unwrap(), None);
}

/// `openssl req -x509` makes such a certificate, which is also that of an authority.
pub(crate) fn the_given_certificate_may_be_that_of_the_server() {
    let server = Fake::tls_first_as("own");
    let builder =
        |trusted| NatsBus::builder([server.url()]).tls_first().ca_file(certificate(trusted));
    let node = start(&server, builder("own.pem"));
    let peer = server.accept().unwrap();
    node.wait_for(BusState::Connected);
    peer.cut();
    node.event_when(|event| matches!(event, NatsEvent::Disconnected { .. }));
    node.end();
    let node = start(&server, builder("ca.pem"));
    assert!(server.accept().is_err());
    let event = node.event_when(|event| matches!(event, NatsEvent::ConnectFailed { .. }));
    assert!(event.to_string().contains("is that of an authority; trust it itself"), "{event}");
    end(node, server);
}

pub(crate) fn credentials_are_not_sent_without_the_tls_that_is_wanted() {
    let server = Fake::start();
    let builder = NatsBus::builder([server.url()]).token("secret").ca_file(certificate("ca.pem"));
    let node = start(&server, builder);
    let mut peer = server.accept_silently();
    peer.send("INFO {}\r\n");
    assert!(peer.line().is_err(), "it has ended the connection");
    let event = node.event_when(|event| matches!(event, NatsEvent::ConnectFailed { .. }));
    assert!(event.to_string().contains("TLS is required"), "{event}");
    end(node, server);
}
