//! Several workers, and threads that send: what holds across them.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use windlass_server::{Options, Server};

use crate::{
    backend::chosen,
    bed::{Bed, Log, Subject, options},
    peer::{BINARY, CLOSE, Frame, Peer, upgrade},
};

#[test]
fn what_threads_send_to_a_connection_comes_whole_and_each_threads_in_order() {
    const THREADS: u32 = 4;
    const MESSAGES: u32 = 2000;
    let mut options = options();
    options.receiver_buffer_max = 64 << 20;
    // A queue that is full now and then, so that senders wait.
    options.sender_bounds = windlass_flow::Bounds::items(64).bytes(1 << 20);
    let mut bed = Bed::new(&options);
    let mut peer = bed.open("/sink");
    let (id, sender) = (bed.last_opened(), bed.service.sender());
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let sender = sender.clone();
            thread::spawn(move || {
                for number in 0..MESSAGES {
                    let message = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                    sender.send(id, &message[..]).expect("the connection is open");
                }
            })
        })
        .collect();
    let mut next = [0; THREADS as usize];
    for _ in 0..THREADS * MESSAGES {
        let frame = bed.frame(&mut peer);
        let word = |at: usize| {
            u32::from_be_bytes(frame.payload[at..at + 4].try_into().expect("four bytes"))
        };
        assert_eq!((frame.first, word(4)), (BINARY, next[word(0) as usize]), "thread {}", word(0));
        next[word(0) as usize] += 1;
    }
    threads.into_iter().for_each(|thread| thread.join().expect("it has sent all"));
    assert_eq!(peer.received(), b"");
    drop(peer);
    bed.expect_empty();
}

#[test]
fn who_sends_to_a_connection_or_service_that_is_gone_is_told_and_waits_for_nothing() {
    let mut bed = Bed::new(&options());
    let peer = bed.open("/sink");
    let (id, sender) = (bed.last_opened(), bed.service.sender());
    drop(peer);
    bed.until_connections(0);
    // The name is looked up by the service: a queue is no promise.
    let _ = sender.try_send(id, "nobody is there");
    bed.settle();
    let waiting = thread::spawn({
        let sender = sender.clone();
        move || while sender.send(id, "nobody is there").is_ok() {}
    });
    drop(bed);
    waiting.join().expect("it was told");
    assert!(sender.send(id, "nobody is there").is_err());
}

/// A peer that is driven without a reactor of the test's.
fn wait<T>(peer: &mut Peer, mut look: impl FnMut(&mut Peer) -> Option<T>) -> T {
    let start = std::time::Instant::now();
    loop {
        if let Some(found) = look(peer) {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it does not come");
        peer.wait(Duration::from_millis(100));
    }
}

fn open(address: SocketAddr, path: &str) -> Peer {
    let mut peer = Peer::connect(address);
    peer.send(&upgrade(path, ""));
    let head = wait(&mut peer, Peer::head);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    peer
}

fn serve(options: Options) -> (windlass_server::Running, SocketAddr) {
    let server =
        Server::new(options, |_| Subject(Log::default().into())).workers(3).backend(chosen());
    let running = server.listen(([127, 0, 0, 1], 0).into()).start().expect("there is a free port");
    let address = running.addresses()[0].socket_addr().expect("an IP address");
    (running, address)
}

#[test]
fn a_room_over_all_workers_hears_each_speaker_whole_and_in_order() {
    const PEERS: usize = 12;
    const MESSAGES: u32 = 300;
    let mut options = options();
    options.receiver_buffer_max = 64 << 20;
    let (running, address) = serve(options);
    let mut peers: Vec<Peer> = (0..PEERS).map(|_| open(address, "/room")).collect();
    thread::scope(|scope| {
        for (index, peer) in peers.iter_mut().enumerate() {
            scope.spawn(move || {
                let mut next = [0; PEERS];
                next[index] = MESSAGES;
                let mut said = 0;
                while said < MESSAGES || next != [MESSAGES; PEERS] {
                    if said < MESSAGES {
                        peer.send_frame(
                            BINARY,
                            [(index as u32).to_be_bytes(), said.to_be_bytes()].concat(),
                        );
                        said += 1;
                    }
                    let frame =
                        if said < MESSAGES { peer.frame() } else { Some(wait(peer, Peer::frame)) };
                    let Some(frame) = frame else { continue };
                    let word = |at: usize| {
                        u32::from_be_bytes(
                            frame.payload[at..at + 4].try_into().expect("four bytes"),
                        )
                    };
                    let speaker = word(0) as usize;
                    assert_eq!(word(4), next[speaker], "{index} hears {speaker}");
                    next[speaker] += 1;
                }
            });
        }
    });
    let stats = running.stats();
    assert_eq!((stats.dropped, stats.lost_between_workers), (0, 0));
    running.drain(Duration::from_secs(60));
    for peer in &mut peers {
        assert_eq!(wait(peer, Peer::frame).close_code(), 1001);
        peer.send_frame(CLOSE, 1001_u16.to_be_bytes());
    }
    drop(peers);
    running.join().expect("the workers end in peace");
}

#[test]
fn connections_are_counted_over_all_workers_and_listeners() {
    const MOST: usize = 5;
    let mut options = options();
    options.connections_max = MOST;
    let running = Server::new(options, |_| Subject(Log::default().into()))
        .workers(3)
        .backend(chosen())
        .listen(([127, 0, 0, 1], 0).into())
        .listen(([127, 0, 0, 1], 0).into())
        .start()
        .expect("the workers start");
    let address = |at: usize| running.addresses()[at % 2].socket_addr().expect("an IP address");
    let mut waiting: Vec<Peer> = (0..20)
        .map(|at| {
            let mut peer = Peer::connect(address(at));
            peer.send(&upgrade("/echo", ""));
            peer
        })
        .collect();
    let mut served = Vec::new();
    let start = Instant::now();
    while !waiting.is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{} wait and {} are served",
            waiting.len(),
            served.len()
        );
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for mut peer in waiting {
            if peer.head().is_some() { now.push(peer) } else { later.push(peer) }
        }
        waiting = later;
        served.append(&mut now);
        assert!(served.len() <= MOST, "{} at once", served.len());
        if served.len() == MOST {
            // All the room is used, wherever it is; this one's is for whoever waits, wherever he
            // does.
            drop(served.swap_remove(0));
        }
        thread::yield_now();
    }
    drop(served);
    running.drain(Duration::from_secs(60));
    running.join().expect("the workers end in peace");
}

#[test]
fn connections_per_address_are_counted_over_all_workers() {
    let mut options = options();
    options.connections_per_address_max = Some(5);
    let (running, address) = serve(options);
    let mut peers = Vec::new();
    let mut taken = 0;
    for _ in 0..20 {
        let mut peer = Peer::connect(address);
        peer.send(&upgrade("/echo", ""));
        taken += usize::from(wait(&mut peer, |peer| match peer.head() {
            Some(_) => Some(true),
            None => peer.has_ended().then_some(false),
        }));
        peers.push(peer);
    }
    assert_eq!(taken, 5);
    peers.retain_mut(|peer| !peer.has_ended());
    assert_eq!(peers.len(), 5);
    for peer in &mut peers {
        peer.send_frame(BINARY, b"hello");
        assert_eq!(wait(peer, Peer::frame), Frame::new(BINARY, b"hello"));
    }
    drop(peers);
    running.drain(Duration::from_secs(60));
    running.join().expect("the workers end in peace");
}
