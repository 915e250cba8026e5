//! Streams with TLS at the limits of time and of buffers.

use std::time::Duration;

use windlass::stream::{GRANULE, StreamOptions};

use crate::{
    Build,
    bed::{HandClock, Log, run_dry},
    pattern::bytes,
    script::{Said, Script, both_families, quiet, turn, unix},
    streams_tls::{open, plaintext_of, register},
    streams_tls_session::{CLOSE, DATA, HELLO, Sessions, record},
};

const SECOND: Duration = Duration::from_secs(1);

fn the_idle_timeout_ends_with_the_session(build: Build) {
    for is_due in [false, true] {
        for (ours, mut peer) in both_families() {
            let clock = HandClock::new();
            let mut reactor = build().clock(clock.clone()).build().unwrap();
            let log = Log::new();
            let options = StreamOptions::new().idle_timeout(Some(SECOND));
            let script = Script::new(&log).on_end(|_| {});
            register(&mut reactor, options, ours, Sessions::Server, script);
            peer.write(&record(HELLO, b""));
            run_dry(&mut reactor);
            assert_eq!(log.take(), [Said::Open]);
            if is_due {
                // The end comes in the turn in which the timeout is due.
                clock.advance(SECOND + GRANULE);
            }
            peer.write(&record(CLOSE, b""));
            quiet(&mut reactor);
            clock.advance(3 * SECOND);
            quiet(&mut reactor);
            assert_eq!(log.take(), [Said::End]);
        }
    }
}

fn records_in_a_buffer_of_more_than_64_kib_are_decrypted_in_one_turn(build: Build) {
    let mut reactor = build().ring_buffers(2, 256 << 10).build().unwrap();
    let (ours, mut peer) = unix();
    let log = Log::new();
    open(&mut reactor, ours, &mut peer, Script::new(&log));
    log.take();
    let plaintext = bytes(0, 100_000);
    let records: Vec<u8> =
        plaintext.chunks(16 << 10).flat_map(|piece| record(DATA, piece)).collect();
    peer.write(&records);
    assert_eq!(turn(&mut reactor), 1, "all of it is in one buffer");
    let said = log.take();
    assert_eq!(said.len(), 2, "a call of the handler gets 64 KiB at most");
    assert!(plaintext_of(&said) == plaintext);
}

scenarios! {
    the_idle_timeout_ends_with_the_session,
    records_in_a_buffer_of_more_than_64_kib_are_decrypted_in_one_turn
        except [epoll "a receive takes 64 KiB at most", poll "a receive takes 64 KiB at most"],
}
