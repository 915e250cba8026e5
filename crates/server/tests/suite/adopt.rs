//! Connections whose upgrade another server has answered.

use std::net::{TcpListener, TcpStream};

use windlass::AddReason;
use windlass_server::Upgraded;
use windlass_ws::{
    deflate::DeflateConfig,
    handshake::{AcceptOptions, HeadLimits, Request},
};

use crate::fixture::{Client, ClientEvent, ConnData, Fixture, TestHandler, text};

/// Returns a listener that stands for the other server, and its address.
fn accepted() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn data(path: &str) -> ConnData {
    ConnData { path: path.into(), on_drop: None }
}

#[test]
fn the_prefix_of_an_adoption_follows_on_open() {
    let handler = TestHandler::echo().on_open(|connection, _| {
        assert_eq!(connection.protocol().as_deref(), Some("chess"));
        connection.send("welcome").unwrap();
    });
    let mut fixture = Fixture::new(handler);
    let (listener, address) = accepted();
    let mut client = Client::begin(address, "/", None);
    let (server, _) = listener.accept().unwrap();
    client.send("early");
    // The other server answers. It has read a part of the first message together with the request.
    let mut received = vec![0; 4096];
    let mut len = 0;
    while !received[..len].ends_with(b"\r\n\r\n")
        && !received[..len].windows(4).any(|end| end == b"\r\n\r\n")
    {
        len += std::io::Read::read(&mut &server, &mut received[len..]).unwrap();
    }
    let (request, used) = Request::parse(&received[..len], &HeadLimits::DEFAULT).unwrap().unwrap();
    let mut answer = Vec::new();
    request.upgrade().unwrap().accept(&AcceptOptions::DEFAULT, &mut answer).unwrap();
    std::io::Write::write_all(&mut &server, &answer).unwrap();
    let read_buf = received[used..len].to_vec();
    let upgraded = Upgraded::new(data("/adopted")).protocol("chess");
    let id = fixture.service.adopt(server, read_buf, upgraded, &mut fixture.reactor).unwrap();
    assert_eq!(fixture.events(), [""; 0], "nothing is called before the call has returned");
    fixture.until(|_| client.is_open().then_some(()));
    assert_eq!([(); 2].map(|()| fixture.next_event(&mut client)), [text("welcome"), text("early")]);
    assert_eq!(fixture.ids(), [id]);
    fixture.with_hub(move |hub| hub.send(id, "by name").unwrap());
    assert_eq!(fixture.next_event(&mut client), text("by name"));
    client.close(1000, "");
    drop(client);
    fixture.until_event("close /adopted Peer 1000 \"\"");
    assert_eq!(fixture.service.stats().connections, 0);
}

#[test]
fn an_id_is_valid_before_on_open() {
    let mut fixture = Fixture::new(
        TestHandler::echo().on_open(|connection, _| connection.send("opened").unwrap()),
    );
    let (listener, address) = accepted();
    let client = TcpStream::connect(address).unwrap();
    let (server, _) = listener.accept().unwrap();
    let id =
        fixture.service.adopt(server, [], Upgraded::new(data("/")), &mut fixture.reactor).unwrap();
    let service = fixture.service.clone();
    let deferred = move |mut turn: windlass::Turn<'_>| {
        let mut hub = service.hub(&mut turn);
        assert!(hub.is_open(id));
        assert!(hub.subscribe(id, "t").unwrap());
        assert_eq!(hub.publish("t", "published"), 1);
    };
    assert!(fixture.reactor.defer(deferred).is_ok());
    let mut client = Client::of(client, "/", None);
    client.open_at_once();
    let mut received = [(); 2].map(|()| fixture.next_event(&mut client));
    received.sort_by_key(|received| format!("{received:?}"));
    assert_eq!(received, [text("opened"), text("published")]);
}

#[test]
fn adopted_connections_use_their_agreement() {
    let config = DeflateConfig::DEFAULT;
    let mut fixture = Fixture::with(TestHandler::echo(), |options| options.deflate = Some(config));
    let (listener, address) = accepted();
    let mut client = Client::begin(address, "/", Some(&config));
    let (server, _) = listener.accept().unwrap();
    let mut received = vec![0; 4096];
    let len = std::io::Read::read(&mut &server, &mut received).unwrap();
    let (request, _) = Request::parse(&received[..len], &HeadLimits::DEFAULT).unwrap().unwrap();
    let mut answer = Vec::new();
    let accept = AcceptOptions::DEFAULT.deflate(Some(&config));
    let accepted = request.upgrade().unwrap().accept(&accept, &mut answer).unwrap();
    std::io::Write::write_all(&mut &server, &answer).unwrap();
    let upgraded = Upgraded::new(data("/")).deflate(accepted.deflate);
    fixture.service.adopt(server, [], upgraded, &mut fixture.reactor).unwrap();
    fixture.until(|_| client.is_open().then_some(()));
    let long = "so long ".repeat(1000);
    client.send(&*long);
    assert_eq!(fixture.next_event(&mut client), text(&long));
    assert!(client.read_bytes < 1000, "{}", client.read_bytes);
}

#[test]
fn a_rejected_adoption_returns_the_socket_and_the_data() {
    let mut fixture = Fixture::new(TestHandler::echo());
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let rejected = fixture
        .service
        .try_adopt(file, [], Upgraded::new(data("/file")), &mut fixture.reactor)
        .unwrap_err();
    assert_eq!(rejected.reason, AddReason::NotPollable);
    assert_eq!(rejected.subscriber.1.path, "/file");
    assert_eq!(fixture.service.stats().connections, 0);
    let service = fixture.service.clone();
    let drain = move |mut turn: windlass::Turn<'_>| {
        service.drain(std::time::Duration::ZERO, &mut turn, |_| {})
    };
    assert!(fixture.reactor.defer(drain).is_ok());
    fixture.turn();
    let (listener, address) = accepted();
    let _client = TcpStream::connect(address).unwrap();
    let (server, _) = listener.accept().unwrap();
    let rejected = fixture
        .service
        .try_adopt(server, [], Upgraded::new(data("/late")), &mut fixture.reactor)
        .unwrap_err();
    assert_eq!((rejected.reason, &*rejected.subscriber.1.path), (AddReason::LimitReached, "/late"));
    fixture.settle();
    assert_eq!(fixture.events(), [""; 0]);
    let _ = ClientEvent::End(None);
}
