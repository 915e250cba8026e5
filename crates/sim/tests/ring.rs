//! Completions: requests, cancellation, overflow, and the objects that requests hold.

use rustix::io::Errno;
use windlass_sim::{
    ActorId, Completion, Faults, Fd, HostId, Kernel, Ring, RingRequest, Step, mask,
};

fn calm(faults: Faults) -> (Kernel, HostId, ActorId) {
    let kernel = Kernel::new(1, faults);
    let host = kernel.host([10, 0, 0, 1].into());
    let actor = kernel.actor(host, "loop");
    assert_eq!(kernel.step(), Step::Run(actor));
    (kernel, host, actor)
}

fn reap(ring: &Ring) -> Vec<Completion> {
    let mut out = Vec::new();
    ring.reap(&mut out);
    out
}

fn recv(fd: Fd, multishot: bool) -> RingRequest {
    RingRequest::Recv { fd, max: 100, multishot }
}

#[test]
fn a_receive_waits_for_bytes_and_wakes_its_actor() {
    let (kernel, host, actor) = calm(Faults::calm());
    let ring = kernel.ring(actor, 8);
    let (one, two) = kernel.socketpair(host).expect("a pair");
    ring.submit(7, recv(one, false));
    kernel.park(actor, None);
    assert!(!ring.is_ready());
    assert_eq!(kernel.step(), Step::Quiet);
    kernel.send(two, b"hello").expect("room");
    assert_eq!(kernel.step(), Step::Run(actor));
    let completions = reap(&ring);
    assert_eq!(completions.len(), 1);
    assert_eq!((completions[0].user_data, completions[0].result), (7, 5));
    assert_eq!((completions[0].bytes.as_slice(), completions[0].more), (&b"hello"[..], false));
    kernel.send(two, b"again").expect("room");
    assert!(!ring.is_ready());
}

#[test]
fn a_multishot_receive_goes_on_until_the_end_of_the_stream() {
    let (kernel, host, actor) = calm(Faults::calm());
    let ring = kernel.ring(actor, 8);
    let (one, two) = kernel.socketpair(host).expect("a pair");
    ring.submit(7, recv(one, true));
    kernel.send(two, b"a").expect("room");
    kernel.send(two, b"b").expect("room");
    kernel.close(two).expect("it is open");
    let completions: Vec<_> = reap(&ring).iter().map(|c| (c.result, c.more)).collect();
    assert_eq!(completions, [(1, true), (1, true), (0, false)]);
}

#[test]
fn a_send_takes_a_full_buffer_in_parts() {
    let (kernel, host, actor) = calm(Faults::calm());
    let ring = kernel.ring(actor, 8);
    let (one, two) = kernel.socketpair(host).expect("a pair");
    kernel.set_buffers(one, 1_000).expect("a socket");
    ring.submit(7, RingRequest::Send { fd: one, bytes: vec![5; 2_500] });
    let mut bytes = [0; 4_096];
    let mut total = 0;
    while let Ok(count) = kernel.recv(two, &mut bytes) {
        total += count;
    }
    assert_eq!(total, 2_500);
    assert_eq!(reap(&ring)[0].result, 2_500);
}

#[test]
fn a_poll_reports_edges() {
    let (kernel, host, actor) = calm(Faults::calm());
    let ring = kernel.ring(actor, 8);
    let counter = kernel.eventfd(host, 0, false).expect("a counter");
    ring.submit(7, RingRequest::Poll { fd: counter, mask: mask::IN, multishot: true });
    let signal = || kernel.write(counter, &1_u64.to_ne_bytes()).expect("room");
    signal();
    signal();
    kernel.read(counter, &mut [0; 8]).expect("a count");
    let completions = reap(&ring);
    let expected = mask::IN as i32;
    assert!(completions.iter().all(|completion| completion.result == expected && completion.more));
    assert_eq!(completions.len(), 2);
}

#[test]
fn a_closed_descriptor_stays_open_while_a_request_holds_it() {
    let (kernel, host, actor) = calm(Faults::calm());
    let ring = kernel.ring(actor, 8);
    let (one, two) = kernel.socketpair(host).expect("a pair");
    ring.submit(7, recv(one, false));
    kernel.close(one).expect("it is open");
    let error = kernel.send(one, b"x").expect_err("it is closed");
    assert_eq!(Errno::from_io_error(&error), Some(Errno::BADF));
    // No FIN yet: the peer can still send.
    assert_eq!(kernel.poll(two).expect("it is open"), mask::OUT);
    kernel.send(two, b"last").expect("room");
    assert_eq!(reap(&ring)[0].bytes, b"last");
    assert_ne!(kernel.poll(two).expect("it is open") & mask::HUP, 0);
}

#[test]
fn a_cancelled_request_completes_once() {
    let (kernel, host, actor) = calm(Faults::calm());
    let ring = kernel.ring(actor, 8);
    let (one, _two) = kernel.socketpair(host).expect("a pair");
    ring.submit(7, recv(one, false));
    ring.cancel(7).expect("it waits");
    assert_eq!(reap(&ring)[0].result, -Errno::CANCELED.raw_os_error());
    let error = ring.cancel(7).expect_err("it is over");
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOENT));
    ring.submit(8, recv(Fd::from_raw(99), false));
    assert_eq!(reap(&ring)[0].result, -Errno::BADF.raw_os_error());
}

#[test]
fn a_cancellation_in_a_race_comes_after_the_bytes_or_late() {
    let (kernel, host, actor) = calm(Faults { cancel_race: 1_000_000, ..Faults::calm() });
    let ring = kernel.ring(actor, 8);
    for sends in [true, false] {
        let (one, two) = kernel.socketpair(host).expect("a pair");
        ring.submit(7, recv(one, false));
        let error = ring.cancel(7).expect_err("a race");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::ALREADY));
        assert!(!ring.is_ready());
        if sends {
            kernel.send(two, b"x").expect("room");
        }
        kernel.park(actor, None);
        assert_eq!(kernel.step(), Step::Run(actor));
        let result = if sends { 1 } else { -Errno::CANCELED.raw_os_error() };
        let results: Vec<i32> = reap(&ring).iter().map(|c| c.result).collect();
        assert_eq!(results, [result]);
    }
    kernel.park(actor, None);
    assert_eq!(kernel.step(), Step::Quiet);
    assert!(!ring.is_ready());
}

#[test]
fn what_is_late_comes_at_once_for_who_waits_for_it() {
    let faults = Faults { cancel_race: 1_000_000, late_completion: 1_000_000, ..Faults::calm() };
    let (kernel, host, actor) = calm(faults);
    let ring = kernel.ring(actor, 8);
    let (one, two) = kernel.socketpair(host).expect("a pair");
    ring.submit(7, recv(one, false));
    kernel.send(two, b"x").expect("room");
    ring.submit(8, recv(one, false));
    ring.cancel(8).expect_err("a race");
    ring.submit(9, recv(one, false));
    assert!(!ring.is_ready());
    ring.settle();
    let results: Vec<_> = reap(&ring).iter().map(|c| (c.user_data, c.result)).collect();
    assert_eq!(results, [(7, 1), (8, -Errno::CANCELED.raw_os_error())]);
    // They have woken the actor. The third one was neither late nor cancelled.
    kernel.park(actor, None);
    assert_eq!(kernel.step(), Step::Run(actor));
    kernel.park(actor, None);
    assert_eq!(kernel.step(), Step::Quiet);
    assert!(!ring.is_ready());
}

#[test]
fn a_late_completion_has_its_bytes() {
    let (kernel, host, actor) = calm(Faults { late_completion: 1_000_000, ..Faults::calm() });
    let ring = kernel.ring(actor, 8);
    let (one, two) = kernel.socketpair(host).expect("a pair");
    ring.submit(7, recv(one, false));
    kernel.send(two, b"x").expect("room");
    assert!(!ring.is_ready());
    let error = ring.cancel(7).expect_err("it is done");
    assert_eq!(Errno::from_io_error(&error), Some(Errno::ALREADY));
    kernel.park(actor, None);
    assert_eq!(kernel.step(), Step::Run(actor));
    assert!(kernel.now_ns() > 0);
    assert_eq!(reap(&ring)[0].bytes, b"x");
}

#[test]
fn an_overflow_loses_nothing_and_ends_multishot_requests() {
    let (kernel, host, actor) = calm(Faults::calm());
    let ring = kernel.ring(actor, 2);
    let (one, two) = kernel.socketpair(host).expect("a pair");
    ring.submit(7, recv(one, true));
    for byte in 0..5 {
        kernel.send(two, &[byte]).expect("room");
    }
    let mut out = Vec::new();
    assert!(ring.reap(&mut out));
    assert!(!ring.reap(&mut out));
    let got: Vec<(u8, bool)> = out.iter().map(|c| (c.bytes[0], c.more)).collect();
    assert_eq!(got, [(0, true), (1, true), (2, false)]);
    ring.submit(8, recv(one, false));
    assert_eq!(reap(&ring)[0].bytes, [3, 4]);
}

#[test]
fn the_end_of_a_ring_lets_go_of_its_descriptors() {
    let (kernel, host, actor) = calm(Faults::calm());
    let ring = kernel.ring(actor, 2);
    let (one, two) = kernel.socketpair(host).expect("a pair");
    ring.submit(7, recv(one, true));
    kernel.close(one).expect("it is open");
    drop(ring);
    assert_ne!(kernel.poll(two).expect("it is open") & mask::HUP, 0);
}

#[test]
#[should_panic(expected = "completions overflow: reap them")]
fn completions_that_nobody_reaps_are_bounded() {
    let kernel = Kernel::new(1, Faults::calm());
    let host = kernel.host([10, 0, 0, 1].into());
    let ring = kernel.ring(kernel.actor(host, "lazy"), 8);
    let fd = kernel.eventfd(host, 1, false).expect("no fault");
    for _ in 0..=65_544 {
        ring.submit(1, RingRequest::Poll { fd, mask: mask::IN, multishot: false });
    }
}

#[test]
fn an_actor_that_has_ended_has_no_requests() {
    let (kernel, host, actor) = calm(Faults::calm());
    let ring = kernel.ring(actor, 8);
    let (one, two) = kernel.socketpair(host).expect("a pair");
    ring.submit(7, recv(one, false));
    assert!(!ring.has_ended());
    kernel.end(actor);
    assert!(ring.has_ended());
    let _ = kernel.send(two, b"late");
    assert!(reap(&ring).is_empty() && !ring.is_ready());
}
