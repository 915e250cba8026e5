//! Limits on the number of connections.

use windlass_server::Options;

use crate::{
    fixture::{Fixture, options},
    raw_client::{RawClient, upgrade},
};

fn with(change: impl FnOnce(&mut Options)) -> Fixture {
    let mut options = options();
    change(&mut options);
    Fixture::new(&options)
}

/// Returns whether the server accepts the client. A rejected client is closed without a response.
fn is_taken(fixture: &mut Fixture, client: &mut RawClient) -> bool {
    client.send(&upgrade("/echo", ""));
    fixture.until("an answer or the end", |_| match client.head() {
        Some(head) => Some(head.starts_with("HTTP/1.1 101 ")),
        None => client.has_ended().then_some(false),
    })
}

#[test]
pub(crate) fn an_address_has_no_more_connections_than_it_may_and_others_have_theirs() {
    let mut fixture = with(|options| options.connections_per_address_max = Some(3));
    let mut of_second: Vec<RawClient> = Vec::new();
    for count in 0..5 {
        let mut client = RawClient::from(2, fixture.address);
        assert_eq!(is_taken(&mut fixture, &mut client), count < 3);
        of_second.push(client);
    }
    for _ in 0..3 {
        let mut client = RawClient::from(3, fixture.address);
        assert!(is_taken(&mut fixture, &mut client));
        of_second.push(client);
    }
    assert_eq!(fixture.stats().connections, 6);
    fixture.exchange(&mut of_second[0], b"hello");
    drop(of_second);
    fixture.expect_empty();
}

#[test]
pub(crate) fn every_kind_of_disconnect_returns_the_permit() {
    let mut fixture = with(|options| {
        options.connections_per_address_max = Some(1);
        options.handshake_timeout = std::time::Duration::from_secs(10);
    });
    let leaves: [fn(&mut Fixture, RawClient); 8] = [
        |_, client| drop(client),
        |_, client| client.reset(),
        |_, mut client| client.finish(),
        |fixture, mut client| {
            client.send(&upgrade("/forbidden", ""));
            assert!(fixture.head(&mut client).starts_with("HTTP/1.1 403 "));
        },
        |fixture, mut client| {
            client.send(b"\0");
            assert!(fixture.head(&mut client).starts_with("HTTP/1.1 400 "));
        },
        |fixture, client| {
            fixture.advance_time(std::time::Duration::from_secs(12));
            drop(client);
        },
        |fixture, client| {
            let mut client = fixture.handshake(client, "/echo");
            client.send_frame(crate::raw_client::CLOSE, b"");
            assert_eq!(fixture.frame(&mut client).payload, b"");
            assert!(fixture.closes_in_order(client));
        },
        |fixture, client| {
            let mut client = fixture.handshake(client, "/echo");
            client.send(b"\xff\xff");
            assert_eq!(fixture.frame(&mut client).close_code(), 1002);
        },
    ];
    for (index, leave) in leaves.into_iter().enumerate() {
        let client = RawClient::from(2, fixture.address);
        fixture.until_connections(1);
        let mut second = RawClient::from(2, fixture.address);
        assert!(!is_taken(&mut fixture, &mut second), "way {index}: one is there");
        leave(&mut fixture, client);
        fixture.until_connections(0);
    }
    let mut last = RawClient::from(2, fixture.address);
    assert!(is_taken(&mut fixture, &mut last));
}

#[test]
pub(crate) fn no_more_than_so_many_are_served_at_once_and_the_others_wait_for_them() {
    const COUNT: usize = 12;
    let mut fixture = with(|options| options.connections_max = 3);
    let clients: Vec<RawClient> = (0..COUNT).map(|_| RawClient::connect(fixture.address)).collect();
    fixture.until_connections(3);
    for (index, client) in clients.into_iter().enumerate() {
        // Waiting clients are accepted in the order in which they connected.
        let mut client = fixture.handshake(client, "/echo");
        fixture.exchange(&mut client, &[index as u8]);
        assert!(fixture.stats().connections <= 3);
    }
    fixture.until("all have come and gone", |fixture| {
        (fixture.stats().closed == COUNT as u64).then_some(())
    });
    fixture.expect_empty();
}

#[test]
pub(crate) fn an_ipv6_loopback_is_one_address() {
    let mut options = options();
    options.connections_per_address_max = Some(2);
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        // Without IPv6 on the machine, only the unit tests show how IPv6 addresses are counted.
        eprintln!("no IPv6 here");
        return;
    }
    let mut fixture = Fixture::at(&options, "[::1]:0".parse().expect("an address"));
    let taken: Vec<(bool, RawClient)> = (0..4)
        .map(|_| {
            let mut client = RawClient::connect(fixture.address);
            (is_taken(&mut fixture, &mut client), client)
        })
        .collect();
    assert_eq!(
        taken.iter().map(|(is_taken, _)| *is_taken).collect::<Vec<_>>(),
        [true, true, false, false]
    );
}
