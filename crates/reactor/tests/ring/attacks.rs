//! Attacks on a ring with requests in flight: fork(2), and a reactor that is never dropped.
//! AddressSanitizer runs them too.

#![allow(unsafe_code, reason = "fork(2) and waitpid(2) in the middle of a turn")]

use std::{
    cell::Cell,
    io::{ErrorKind, Read as _, Write as _},
    os::unix::net::UnixStream,
    rc::Rc,
};

use windlass::{
    Builder, Key, Reactor, Turn,
    stream::{Input, SharedBytes, Stream, StreamHandler, StreamOptions},
};

use crate::{
    memory::placed,
    tools::{NOW, builder, run_dry},
};

/// Echoes its input. Then it calls a closure, while the answers are queued.
struct Echo<F>(F);

impl<F: FnMut() + 'static> StreamHandler for Echo<F> {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        // In a child of fork(2) the call is rejected.
        let _ = stream.reply(input, ..);
        (self.0)();
    }
}

fn echo(reactor: &mut Reactor, then: impl FnMut() + 'static) -> (Key, UnixStream) {
    let (ours, peer) = UnixStream::pair().unwrap();
    for end in [&ours, &peer] {
        end.set_nonblocking(true).unwrap();
    }
    let key = StreamOptions::new().register(ours, Echo(then), reactor).unwrap();
    run_dry(reactor);
    (key, peer)
}

fn drain(peer: &mut UnixStream) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match peer.read(&mut buffer) {
            Ok(0) => return all,
            Ok(count) => all.extend_from_slice(&buffer[..count]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return all,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Forks in a handler while answers of other streams are queued. The child ends its turn, tries
/// another one, and drops the reactor.
fn fork_with_answers_queued(builder: Builder) {
    const STREAMS: usize = 6;
    let mut reactor = builder.build().unwrap();
    let pid = Rc::new(Cell::new(None));
    let mut peers: Vec<_> = (0..STREAMS)
        .map(|place| {
            let pid = pid.clone();
            let fork = move || {
                if place == STREAMS / 2 {
                    // SAFETY: this process has one thread, so the child may call any function
                    // (fork(2)).
                    pid.set(Some(unsafe { libc::fork() }));
                }
            };
            echo(&mut reactor, fork).1
        })
        .collect();
    for (peer, byte) in peers.iter_mut().zip(1..) {
        peer.write_all(&[byte; 3000]).unwrap();
    }
    while pid.get().is_none() {
        reactor.run_once(NOW).unwrap();
    }
    let pid = pid.get().unwrap();
    if pid == 0 {
        let errno = reactor.run_once(NOW).map_err(|e| e.raw_os_error());
        drop(reactor);
        // SAFETY: the child ends here without destructors or exit handlers, so it releases none of
        // the parent's resources.
        unsafe { libc::_exit(i32::from(errno != Err(Some(libc::ESTALE)))) };
    }
    let mut status = 0;
    // SAFETY: the status is valid for writes throughout the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    (0..30).for_each(|_| _ = reactor.run_once(NOW).unwrap());
    // Each answer arrives once, with the requested bytes.
    for (peer, byte) in peers.iter_mut().zip(1..) {
        assert_eq!(drain(peer), [byte; 3000]);
        peer.write_all(&[byte; 10]).unwrap();
    }
    run_dry(&mut reactor);
    for (peer, byte) in peers.iter_mut().zip(1..) {
        assert_eq!(drain(peer), [byte; 10], "the parent's works as before");
    }
}

pub(crate) fn a_child_of_fork_neither_sends_nor_takes_what_is_queued() {
    fork_with_answers_queued(builder());
    for stalls in 1..8 {
        // Includes requests that are in the submission queue and that the kernel has not taken.
        fork_with_answers_queued(builder().ring_stalls(stalls));
    }
}

/// The reactor is never dropped, so its requests, buffers and bytes to send stay valid.
pub(crate) fn a_leaked_reactor_does_no_harm() {
    let mut kept = Vec::new();
    for round in 0..20u8 {
        let mut reactor = builder().ring_stalls(u32::from(round % 4)).build().unwrap();
        let mut peers: Vec<_> = (0..4).map(|_| echo(&mut reactor, || ())).collect();
        for (_, peer) in &mut peers {
            peer.write_all(&[round; 2000]).unwrap();
        }
        // Received and answered in some rounds, still in flight in others.
        if round % 2 == 0 {
            reactor.run_once(NOW).unwrap();
        }
        for (key, _) in &peers {
            let _ = reactor.stream(*key).unwrap().send_shared(&SharedBytes::new(&[round; 9000]));
        }
        std::mem::forget(reactor);
        for (_, peer) in &mut peers {
            let _ = peer.write(&[round; 2000]);
            drain(peer);
        }
        kept.extend(peers);
    }
    // Another ring of the same thread, and allocations that may reuse memory.
    let mut reactor = builder().build().unwrap();
    let (_, mut peer) = echo(&mut reactor, || ());
    for byte in 0..50 {
        let noise: Vec<Vec<u8>> = (0..50).map(|size| vec![byte; size * 100]).collect();
        peer.write_all(&[byte; 1000]).unwrap();
        run_dry(&mut reactor);
        assert_eq!(drain(&mut peer), [byte; 1000]);
        drop(noise);
    }
    drop(kept);
    // LeakSanitizer runs at a normal exit, and this test leaks on purpose. SAFETY: `_exit` ends the
    // process, which runs only this test.
    unsafe { libc::_exit(0) };
}

/// The kernel takes no requests, for example for lack of memory. Then a deletion waits for a second
/// without success.
pub(crate) fn a_dead_cells_memory_is_kept_while_the_kernel_has_not_let_go() {
    let mut reactor = builder().ring_stalls(u32::MAX).build().unwrap();
    let (victim, place) = placed(&mut reactor);
    // From here on its poll is in the submission queue.
    run_dry(&mut reactor);
    reactor.defer(move |mut turn: Turn<'_>| turn.delete(victim).unwrap()).map_err(drop).unwrap();
    reactor.run_once(NOW).unwrap();
    let newcomers: Vec<_> = (0..8).map(|_| placed(&mut reactor)).collect();
    assert!(newcomers.iter().all(|(_, other)| *other != place), "the kernel may still name it");
    run_dry(&mut reactor);
    // The memory is leaked, because the request is still in flight (rule 2). LeakSanitizer must not
    // report it. SAFETY: `_exit` ends the process, which runs only this test.
    unsafe { libc::_exit(0) };
}
