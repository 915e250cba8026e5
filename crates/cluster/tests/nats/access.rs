//! Who may connect, and how.

use std::time::Duration;

use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use windlass_cluster::{NatsBus, NatsBusBuilder, NatsEvent};
use windlass_server::bus::BusState;

use crate::{
    jwt,
    node::{Client, Member, Wanted, fast, subject},
    server::{Folder, Nats, until},
};

/// A pair that the documentation of NATS shows.
const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
const KEY: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

fn start(bus: NatsBusBuilder, nats: &Nats) -> Member {
    let mut wanted = Wanted::at(&nats.url());
    wanted.bus = fast(bus);
    wanted.start()
}

pub(crate) fn users_tokens_and_seeds_open_a_server() {
    let nats = Nats::with("authorization { user: chat, password: \"s3 cret@\" }");
    let builder = || NatsBus::builder([nats.url()]);
    let with = |user: &str| format!("nats://{user}@127.0.0.1:{}", nats.port);
    for bus in [
        builder().user_and_password("chat", "s3 cret@"),
        NatsBus::builder([with("chat:s3%20cret%40")]),
    ] {
        let node = start(bus, &nats);
        node.wait_for(BusState::Connected);
        node.end();
    }
    let nats = Nats::with("authorization { token: \"t0ken\" }");
    let with = |user: &str| format!("nats://{user}@127.0.0.1:{}", nats.port);
    for bus in [NatsBus::builder([nats.url()]).token("t0ken"), NatsBus::builder([with("t0ken")])] {
        let node = start(bus, &nats);
        node.wait_for(BusState::Connected);
        node.end();
    }
    let nats = Nats::with(&format!("authorization {{ users: [ {{ nkey: {KEY} }} ] }}"));
    let node = start(NatsBus::builder([nats.url()]).nkey_seed(SEED), &nats);
    node.wait_for(BusState::Connected);
    node.end();
}

/// The JWT says who the user is, and the seed proves it.
pub(crate) fn a_file_of_credentials_opens_a_server() {
    let nats = Nats::with(&jwt::settings());
    let folder = Folder::new("creds");
    let with = |seed| {
        let file = folder.write("user.creds", &jwt::credentials(seed));
        NatsBus::builder([nats.url()]).credentials_file(file)
    };
    let [here, there] = [(); 2].map(|()| {
        let node = start(with(jwt::USER_SEED), &nats);
        node.wait_for(BusState::Connected);
        node
    });
    let mut receiver = Client::of(&there, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    here.client().publish("t", "1");
    assert_eq!(receiver.numbers(1), [1]);
    for bus in [with(SEED), NatsBus::builder([nats.url()])] {
        let stranger = start(bus, &nats);
        let event = stranger.event_when(|event| matches!(event, NatsEvent::ConnectFailed { .. }));
        assert!(event.to_string().contains("Authorization Violation"), "{event}");
        assert_eq!(stranger.stats().connects, 0);
        stranger.end();
    }
    here.end();
    there.end();
}

pub(crate) fn wrong_credentials_are_an_event() {
    let nats = Nats::with("authorization { user: chat, password: secret }");
    let node = start(NatsBus::builder([nats.url()]).user_and_password("chat", "wr0ng"), &nats);
    let event = node.event_when(|event| matches!(event, NatsEvent::ConnectFailed { .. }));
    assert!(event.to_string().contains("Authorization Violation"), "{event}");
    assert!(!event.to_string().contains("wr0ng"), "{event}");
    assert_eq!(node.stats().state, BusState::Connecting);
    node.end();
}

pub(crate) fn a_missing_permission_is_an_event() {
    let permissions = "permissions: { publish: [\"test.>\"], subscribe: [\"other\"] }";
    let users = format!("users: [ {{ user: a, password: b, {permissions} }} ]");
    let folder = Folder::new("log");
    let log = folder.path().join("nats.log");
    let nats = Nats::with(&format!("log_file: {log:?}\ntrace: true\nauthorization {{ {users} }}"));
    // It asks the server for an answer twice a second.
    let bus = NatsBus::builder([nats.url()]).ping_interval(Duration::from_millis(500));
    let node = start(bus.user_and_password("a", "b"), &nats);
    node.wait_for(BusState::Connected);
    let _receiver = Client::of(&node, "t");
    let event = node.event_when(|event| matches!(event, NatsEvent::ServerError { .. }));
    assert!(event.to_string().contains(&subject("t")), "{event}");
    // The question needs no permission.
    let questions = || std::fs::read_to_string(&log).unwrap().matches("[PING]").count();
    until(|| (questions() > 5).then_some(()), || format!("{} questions", questions()));
    let stats = node.stats();
    assert_eq!((stats.state, stats.connects), (BusState::Connected, 1));
    node.end();
}

pub(crate) fn tls_with_certificates_of_both_sides() {
    let folder = Folder::new("tls");
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    folder.write("ca.pem", &authority.pem());
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let params = CertificateParams::new(names).unwrap();
        folder.write(&format!("{name}.pem"), &params.signed_by(&key, &authority).unwrap().pem());
        folder.write(&format!("{name}.key"), &key.serialize_pem());
    }
    let path = |name: &str| folder.path().join(name);
    let nats = Nats::with(&format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        path("server.pem"),
        path("server.key"),
        path("ca.pem")
    ));
    let trusting = || NatsBus::builder([nats.url()]).require_tls().ca_file(path("ca.pem"));
    let stranger = start(trusting(), &nats);
    stranger.event_when(|event| matches!(event, NatsEvent::ConnectFailed { .. }));
    stranger.end();
    let [here, there] = [(); 2].map(|()| {
        let node =
            start(trusting().client_certificate(path("client.pem"), path("client.key")), &nats);
        node.wait_for(BusState::Connected);
        node
    });
    let mut receiver = Client::of(&there, "t");
    nats.wait_for_subscriptions(&subject("t"), 1);
    here.client().publish("t", "1");
    assert_eq!(receiver.numbers(1), [1]);
    here.end();
    there.end();
    // Without TLS, a server that must have it is none.
    let plain = Nats::start();
    let node = start(NatsBus::builder([plain.url()]).require_tls().ca_file(path("ca.pem")), &plain);
    node.event_when(|event| matches!(event, NatsEvent::ConnectFailed { .. }));
    assert_eq!(node.stats().connects, 0);
    node.end();
}
