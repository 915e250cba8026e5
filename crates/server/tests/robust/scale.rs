//! More connections than usual, and fewer descriptors than needed.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    fixture::{Fixture, options},
    own_process::{descriptors, is_own_process, live_bytes},
    raw_client::{BINARY, Frame, RawClient},
};

const MANY: usize = 5000;

/// Raises the limit of descriptors as far as the system allows.
pub(crate) fn allow_descriptors(needed: usize) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    assert!(
        maximum.is_none_or(|maximum| maximum >= needed as u64),
        "the system allows {maximum:?} descriptors of {needed}"
    );
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .expect("up to the maximum it may be raised");
}

#[test]
fn five_thousand_at_once_are_all_served_and_leave_nothing_behind() {
    if !is_own_process("scale::five_thousand_at_once_are_all_served_and_leave_nothing_behind") {
        return;
    }
    allow_descriptors(2 * MANY + 100);
    let mut fixture = Fixture::new(&options());
    let before = descriptors();
    let mut memory = Vec::with_capacity(3);
    // The first round lets tables grow.
    for round in 0..3_u32 {
        let mut clients = Vec::with_capacity(MANY);
        while clients.len() < MANY {
            // At most as many as fit into the kernel's backlog.
            clients.extend((0..1000).map(|_| RawClient::connect(fixture.address)));
            fixture.settle();
        }
        for client in &mut clients {
            client.send(&crate::raw_client::upgrade("/room", ""));
        }
        for client in &mut clients {
            let head = fixture.head(client);
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        }
        assert_eq!(fixture.stats().connections, MANY as u64);
        // Several clients send a message in turn, and all others receive it.
        for speaker in [0, 1, MANY / 2, MANY - 1] {
            let said = [round.to_be_bytes(), (speaker as u32).to_be_bytes()].concat();
            clients[speaker].send_frame(BINARY, &said);
            for (index, client) in
                clients.iter_mut().enumerate().filter(|(index, _)| *index != speaker)
            {
                assert_eq!(
                    fixture.frame(client),
                    Frame::new(BINARY, &said),
                    "{index} hears {speaker}"
                );
            }
        }
        // They disconnect in every way.
        for (index, mut client) in clients.into_iter().enumerate() {
            match index % 3 {
                0 => client.finish(),
                1 => client.reset(),
                _ => client.send_frame(crate::raw_client::CLOSE, b"\x03\xe8"),
            }
        }
        fixture.until_connections(0);
        fixture.settle();
        assert_eq!(descriptors(), before, "descriptors after round {round}");
        fixture.log.forget();
        memory.push(live_bytes());
    }
    // The kernel decides how the bytes are cut, and so which buffers are kept. One byte for each
    // connection would be more.
    assert!(memory[2] < memory[1] + MANY, "bytes after each round: {memory:?}");
}

#[test]
fn without_descriptors_accepting_pauses_and_goes_on_when_there_are_some() {
    if !is_own_process(
        "scale::without_descriptors_accepting_pauses_and_goes_on_when_there_are_some",
    ) {
        return;
    }
    let mut fixture = Fixture::new(&options());
    let mut witness = fixture.open("/echo");
    let before = getrlimit(Resource::Nofile);
    // Room for 40 clients and 10 of their connections.
    setrlimit(
        Resource::Nofile,
        Rlimit { current: Some(descriptors() as u64 + 50), maximum: before.maximum },
    )
    .unwrap();
    let mut clients: Vec<RawClient> =
        (0..40).map(|_| RawClient::connect(fixture.address)).collect();
    let is_resting = |fixture: &mut Fixture| {
        fixture.reactor.listener(fixture.listener).expect("it is registered").is_resting()
    };
    fixture.until("accepting pauses", |fixture| is_resting(fixture).then_some(()));
    fixture.settle();
    let there = fixture.stats().connections;
    assert!((5..20).contains(&there), "{there}");
    // The loop does not spin on connections that it cannot accept. It serves the existing ones.
    let turns = (0..1000)
        .filter(|_| fixture.reactor.run_once(std::time::Duration::ZERO).unwrap() > 0)
        .count();
    assert!(turns < 10, "{turns} of 1000 turns had something to do");
    fixture.exchange(&mut witness, b"hello");
    for client in &mut clients {
        client.send(&crate::raw_client::upgrade("/echo", ""));
    }
    fixture.until("ten answers", |fixture| (fixture.stats().opened == there).then_some(()));
    // Only time passes, and descriptors are available again.
    setrlimit(Resource::Nofile, before).unwrap();
    fixture.advance_time(std::time::Duration::from_secs(1));
    for client in &mut clients {
        let head = fixture.head(client);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    }
    assert_eq!(fixture.stats().connections, 41);
    fixture.exchange(&mut witness, b"hello");
    drop((clients, witness));
    fixture.expect_empty();
}

#[test]
fn without_descriptors_a_connection_that_closes_makes_room_for_one_that_waits() {
    if !is_own_process(
        "scale::without_descriptors_a_connection_that_closes_makes_room_for_one_that_waits",
    ) {
        return;
    }
    let mut fixture = Fixture::new(&options());
    let before = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit { current: Some(descriptors() as u64 + 50), maximum: before.maximum },
    )
    .unwrap();
    // A closed client frees two descriptors, and one of them serves the next waiting client.
    // Waiting clients are accepted in the order in which they connected.
    let clients: Vec<RawClient> = (0..40).map(|_| RawClient::connect(fixture.address)).collect();
    for (index, client) in clients.into_iter().enumerate() {
        let mut client = fixture.handshake(client, "/echo");
        fixture.exchange(&mut client, &[index as u8]);
    }
    assert_eq!(fixture.stats().opened, 40);
    fixture.expect_empty();
}
