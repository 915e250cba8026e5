//! How many may connect.

use windlass_server::Options;

use crate::{
    bed::{Bed, options},
    peer::{Peer, upgrade},
};

fn with(change: impl FnOnce(&mut Options)) -> Bed {
    let mut options = options();
    change(&mut options);
    Bed::new(&options)
}

/// Whether the server takes it. Who is refused is closed without a word.
fn is_taken(bed: &mut Bed, peer: &mut Peer) -> bool {
    peer.send(&upgrade("/echo", ""));
    bed.until("an answer or the end", |_| match peer.head() {
        Some(head) => Some(head.starts_with("HTTP/1.1 101 ")),
        None => peer.has_ended().then_some(false),
    })
}

#[test]
fn an_address_has_no_more_connections_than_it_may_and_others_have_theirs() {
    let mut bed = with(|options| options.connections_per_address_max = Some(3));
    let mut of_second: Vec<Peer> = Vec::new();
    for count in 0..5 {
        let mut peer = Peer::from(2, bed.address);
        assert_eq!(is_taken(&mut bed, &mut peer), count < 3);
        of_second.push(peer);
    }
    for _ in 0..3 {
        let mut peer = Peer::from(3, bed.address);
        assert!(is_taken(&mut bed, &mut peer));
        of_second.push(peer);
    }
    assert_eq!(bed.stats().connections, 6);
    bed.exchange(&mut of_second[0], b"hello");
    drop(of_second);
    bed.expect_empty();
}

#[test]
fn every_way_of_leaving_gives_the_place_back() {
    let mut bed = with(|options| {
        options.connections_per_address_max = Some(1);
        options.handshake_timeout = std::time::Duration::from_secs(10);
    });
    let leaves: [fn(&mut Bed, Peer); 8] = [
        |_, peer| drop(peer),
        |_, peer| peer.reset(),
        |_, mut peer| peer.finish(),
        |bed, mut peer| {
            peer.send(&upgrade("/forbidden", ""));
            assert!(bed.head(&mut peer).starts_with("HTTP/1.1 403 "));
        },
        |bed, mut peer| {
            peer.send(b"\0");
            assert!(bed.head(&mut peer).starts_with("HTTP/1.1 400 "));
        },
        |bed, peer| {
            bed.pass(std::time::Duration::from_secs(12));
            drop(peer);
        },
        |bed, peer| {
            let mut peer = bed.shake(peer, "/echo");
            peer.send_frame(crate::peer::CLOSE, b"");
            assert_eq!(bed.frame(&mut peer).payload, b"");
            assert!(bed.end(peer));
        },
        |bed, peer| {
            let mut peer = bed.shake(peer, "/echo");
            peer.send(b"\xff\xff");
            assert_eq!(bed.frame(&mut peer).close_code(), 1002);
        },
    ];
    for (index, leave) in leaves.into_iter().enumerate() {
        let peer = Peer::from(2, bed.address);
        bed.until_connections(1);
        let mut second = Peer::from(2, bed.address);
        assert!(!is_taken(&mut bed, &mut second), "way {index}: one is there");
        leave(&mut bed, peer);
        bed.until_connections(0);
    }
    let mut last = Peer::from(2, bed.address);
    assert!(is_taken(&mut bed, &mut last));
}

#[test]
fn no_more_than_so_many_are_served_at_once_and_the_others_wait_for_them() {
    const COUNT: usize = 12;
    let mut bed = with(|options| options.connections_max = 3);
    let peers: Vec<Peer> = (0..COUNT).map(|_| Peer::connect(bed.address)).collect();
    bed.until_connections(3);
    for (index, peer) in peers.into_iter().enumerate() {
        // Those that wait are taken in the order in which they came.
        let mut peer = bed.shake(peer, "/echo");
        bed.exchange(&mut peer, &[index as u8]);
        assert!(bed.stats().connections <= 3);
    }
    bed.until("all have come and gone", |bed| (bed.stats().closed == COUNT as u64).then_some(()));
    bed.expect_empty();
}

#[test]
fn an_ipv6_loopback_is_one_address() {
    let mut options = options();
    options.connections_per_address_max = Some(2);
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        // Without IPv6 on the machine, what is one address is shown by the unit tests alone.
        eprintln!("no IPv6 here");
        return;
    }
    let mut bed = Bed::at(&options, "[::1]:0".parse().expect("an address"));
    let taken: Vec<(bool, Peer)> = (0..4)
        .map(|_| {
            let mut peer = Peer::connect(bed.address);
            (is_taken(&mut bed, &mut peer), peer)
        })
        .collect();
    assert_eq!(
        taken.iter().map(|(is_taken, _)| *is_taken).collect::<Vec<_>>(),
        [true, true, false, false]
    );
}
