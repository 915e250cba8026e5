use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use windlass_sim::{
    Fault, Faults, HostId, Kernel, RingRequest, SimAddr, SocketKind, ThreadNext, Threads, check,
    mask,
};

use crate::echo::{self, Plan, Tally};

const PLAN: Plan =
    Plan { hosts: 3, connections: 2, messages: 5, bytes_max: 3_000, pause_ns: 200_000 };

#[test]
fn without_faults_every_connection_is_served() {
    let kernel = Kernel::new(1, Faults::calm());
    let all = Tally { done: 6, failed: 0, messages: 30 };
    assert_eq!(echo::run(&kernel, PLAN), all);
    assert!(Fault::ALL.iter().all(|fault| kernel.fault_count(*fault) == 0));
}

#[test]
fn rough_faults_lose_no_byte_and_no_connection() {
    let property = |kernel: &mut Kernel| {
        let tally = echo::run(kernel, PLAN);
        assert_eq!((tally.done, tally.failed), (6, 0), "a connection is lost");
    };
    check(property).faults(Faults::rough()).seeds(300).run();
}

#[test]
fn hostile_faults_invent_and_reorder_no_byte() {
    static LOST: AtomicU64 = AtomicU64::new(0);
    let property = |kernel: &mut Kernel| {
        let tally = echo::run(kernel, PLAN);
        assert_eq!(tally.done + tally.failed, 6, "a connection has no end");
        LOST.fetch_add(tally.failed as u64, Ordering::Relaxed);
    };
    check(property).faults(Faults::hostile()).seeds(300).run();
    assert!(LOST.load(Ordering::Relaxed) > 10, "nothing is lost");
}

/// A ring, datagrams and a process that may end, beside the echo server.
fn others(kernel: &Kernel) {
    let (host, other) = (kernel.host(echo::address(1)), kernel.host(echo::address(2)));
    let mut threads = Threads::new(kernel);
    let actor = kernel.actor(host, "ring");
    kernel.set_mortal(actor, true);
    let ring = kernel.ring(actor, 64);
    let Ok((one, two)) = kernel.socketpair(host) else { return };
    let mut left = 30;
    threads.insert(actor, move |kernel: &Kernel| {
        let mut completions = Vec::new();
        ring.reap(&mut completions);
        ring.submit(1, RingRequest::Recv { fd: one, max: 10, multishot: false });
        _ = kernel.send(two, b"x");
        ring.submit(2, RingRequest::Poll { fd: one, mask: mask::HUP, multishot: false });
        _ = ring.cancel(2);
        left -= 1;
        if left == 0 {
            ThreadNext::Done
        } else {
            ThreadNext::Park(Some(kernel.now_ns() + 1_000_000))
        }
    });
    let mut left = 30;
    threads.spawn(host, "datagrams", move |kernel| {
        if let Ok(fd) = kernel.socket(host, SocketKind::Udp) {
            let to = SimAddr::from((kernel.address_of(other), 53));
            match kernel.send_to(fd, b"x", &to) {
                Ok(count) => assert_eq!(count, 1),
                Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::NOBUFS)),
            }
            kernel.close(fd).expect("it is open");
        }
        left -= 1;
        if left == 0 { ThreadNext::Done } else { ThreadNext::Again }
    });
    threads.run();
    drop(threads);
    _ = reset(kernel, host, other);
}

/// A connection that is reset while bytes are under way.
fn reset(kernel: &Kernel, host: HostId, other: HostId) -> std::io::Result<()> {
    let listener = kernel.socket(other, SocketKind::Tcp)?;
    let to = SimAddr::from((kernel.address_of(other), 81));
    kernel.bind(listener, &to)?;
    kernel.listen(listener, 1)?;
    let client = kernel.socket(host, SocketKind::Tcp)?;
    _ = kernel.connect(client, &to);
    _ = kernel.step();
    let (server, _) = kernel.accept(listener)?;
    kernel.set_reset_on_close(server, true)?;
    kernel.send(server, b"lost")?;
    kernel.close(server)
}

#[test]
fn every_fault_happens() {
    static COUNTS: [AtomicU64; Fault::ALL.len()] = [const { AtomicU64::new(0) }; Fault::ALL.len()];
    let property = |kernel: &mut Kernel| {
        echo::run(kernel, PLAN);
        others(kernel);
        for (fault, count) in Fault::ALL.iter().zip(&COUNTS) {
            count.fetch_add(kernel.fault_count(*fault), Ordering::Relaxed);
        }
    };
    check(property).faults(Faults::hostile()).seeds(400).run();
    for (fault, count) in Fault::ALL.iter().zip(&COUNTS) {
        assert!(count.load(Ordering::Relaxed) > 0, "{fault} never happens");
    }
}

#[test]
fn a_call_that_is_repeated_is_not_interrupted_for_ever() {
    let kernel = Kernel::new(1, Faults { interrupted: 1_000_000, ..Faults::calm() });
    let host = kernel.host([10, 0, 0, 1].into());
    let fd = kernel.eventfd(host, 7, false).expect("no other fault");
    let (mut count, mut times) = ([0; 8], 0);
    while let Err(error) = kernel.read(fd, &mut count) {
        assert_eq!(Errno::from_io_error(&error), Some(Errno::INTR));
        times += 1;
        assert!(times <= 64, "for ever");
    }
    assert_eq!((u64::from_ne_bytes(count), times), (7, 64));
}
