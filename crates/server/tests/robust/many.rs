//! More connections than usual, and fewer descriptors than needed.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    bed::{Bed, options},
    own_process::{descriptors, is_own_process, live_bytes},
    peer::{BINARY, Frame, Peer},
};

const MANY: usize = 5000;

/// Allows as many descriptors as the system does.
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
    if !is_own_process("many::five_thousand_at_once_are_all_served_and_leave_nothing_behind") {
        return;
    }
    allow_descriptors(2 * MANY + 100);
    let mut bed = Bed::new(&options());
    let before = descriptors();
    let mut memory = Vec::with_capacity(3);
    // The first round lets tables grow.
    for round in 0..3_u32 {
        let mut peers = Vec::with_capacity(MANY);
        while peers.len() < MANY {
            // No more than the kernel's backlog takes.
            peers.extend((0..1000).map(|_| Peer::connect(bed.address)));
            bed.settle();
        }
        for peer in &mut peers {
            peer.send(&crate::peer::upgrade("/room", ""));
        }
        for peer in &mut peers {
            let head = bed.head(peer);
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        }
        assert_eq!(bed.stats().connections, MANY as u64);
        // Each says something in turn, and all others hear it.
        for speaker in [0, 1, MANY / 2, MANY - 1] {
            let said = [round.to_be_bytes(), (speaker as u32).to_be_bytes()].concat();
            peers[speaker].send_frame(BINARY, &said);
            for (index, peer) in peers.iter_mut().enumerate().filter(|(index, _)| *index != speaker)
            {
                assert_eq!(bed.frame(peer), Frame::new(BINARY, &said), "{index} hears {speaker}");
            }
        }
        // They leave in every way.
        for (index, mut peer) in peers.into_iter().enumerate() {
            match index % 3 {
                0 => peer.finish(),
                1 => peer.reset(),
                _ => peer.send_frame(crate::peer::CLOSE, b"\x03\xe8"),
            }
        }
        bed.until_connections(0);
        bed.settle();
        assert_eq!(descriptors(), before, "descriptors after round {round}");
        bed.log.forget();
        memory.push(live_bytes());
    }
    // Which buffers are kept may depend on how the kernel has cut the bytes; a byte of each
    // connection would be more.
    assert!(memory[2] < memory[1] + MANY, "bytes after each round: {memory:?}");
}

#[test]
fn without_descriptors_accepting_pauses_and_goes_on_when_there_are_some() {
    if !is_own_process("many::without_descriptors_accepting_pauses_and_goes_on_when_there_are_some")
    {
        return;
    }
    let mut bed = Bed::new(&options());
    let mut witness = bed.open("/echo");
    let before = getrlimit(Resource::Nofile);
    // Room for 40 clients and 10 of their connections.
    setrlimit(
        Resource::Nofile,
        Rlimit { current: Some(descriptors() as u64 + 50), maximum: before.maximum },
    )
    .unwrap();
    let mut peers: Vec<Peer> = (0..40).map(|_| Peer::connect(bed.address)).collect();
    let is_resting =
        |bed: &mut Bed| bed.reactor.listener(bed.listener).expect("it is registered").is_resting();
    bed.until("accepting pauses", |bed| is_resting(bed).then_some(()));
    bed.settle();
    let there = bed.stats().connections;
    assert!((5..20).contains(&there), "{there}");
    // The loop does not spin on what it cannot accept, and serves who is there.
    let turns =
        (0..1000).filter(|_| bed.reactor.run_once(std::time::Duration::ZERO).unwrap() > 0).count();
    assert!(turns < 10, "{turns} of 1000 turns had something to do");
    bed.exchange(&mut witness, b"hello");
    for peer in &mut peers {
        peer.send(&crate::peer::upgrade("/echo", ""));
    }
    bed.until("ten answers", |bed| (bed.stats().opened == there).then_some(()));
    // Nothing but time passes, and there are descriptors again.
    setrlimit(Resource::Nofile, before).unwrap();
    bed.pass(std::time::Duration::from_secs(1));
    for peer in &mut peers {
        let head = bed.head(peer);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    }
    assert_eq!(bed.stats().connections, 41);
    bed.exchange(&mut witness, b"hello");
    drop((peers, witness));
    bed.expect_empty();
}

#[test]
fn without_descriptors_a_connection_that_closes_makes_room_for_one_that_waits() {
    if !is_own_process(
        "many::without_descriptors_a_connection_that_closes_makes_room_for_one_that_waits",
    ) {
        return;
    }
    let mut bed = Bed::new(&options());
    let before = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit { current: Some(descriptors() as u64 + 50), maximum: before.maximum },
    )
    .unwrap();
    // Of each closed client's two descriptors one is free for the next that waits; those that wait
    // are accepted in the order in which they came.
    let peers: Vec<Peer> = (0..40).map(|_| Peer::connect(bed.address)).collect();
    for (index, peer) in peers.into_iter().enumerate() {
        let mut peer = bed.shake(peer, "/echo");
        bed.exchange(&mut peer, &[index as u8]);
    }
    assert_eq!(bed.stats().opened, 40);
    bed.expect_empty();
}
