//! Callbacks of streams that panic.

use std::{cell::Cell, io::ErrorKind, rc::Rc};

use windlass::{Key, Reactor, Turn, stream::StreamOptions};

use crate::{
    Build,
    bed::{HandClock, Log, NOW, noting, panic_of, ready, run_dry, slot},
    script::{Peer, Said, Script, open, tcp, turn, unix},
    streams_ends::stuff,
};

const PLAIN: StreamOptions = StreamOptions::new();

/// The callback that panics, and the action that causes it.
struct Panic {
    name: &'static str,
    options: StreamOptions,
    script: fn(Script) -> Script,
    provoke: fn(&mut Reactor, Key, &mut Peer, &HandClock),
}

fn poke(_: &mut Reactor, _: Key, peer: &mut Peer, _: &HandClock) {
    peer.write(b"?");
}

fn panics() -> Vec<Panic> {
    let idle = PLAIN.idle_timeout(Some(std::time::Duration::from_secs(1)));
    vec![
        Panic {
            name: "open",
            options: PLAIN,
            script: |s| s.on_open(|_| panic!("open")),
            provoke: |_, _, _, _| {},
        },
        Panic {
            name: "data",
            options: PLAIN,
            script: |s| s.on_data(|_, _| panic!("data")),
            provoke: poke,
        },
        Panic {
            name: "end",
            options: PLAIN,
            script: |s| s.on_end(|_| panic!("end")),
            provoke: |_, _, peer, _| peer.finish(),
        },
        Panic {
            name: "full",
            options: PLAIN,
            script: |s| {
                s.on_data(|stream, _| assert!(stuff(stream) > 0)).on_full(|_| panic!("full"))
            },
            provoke: poke,
        },
        Panic {
            name: "drained",
            options: PLAIN.watermarks(0, 10),
            script: |s| {
                s.on_data(|stream, _| assert!(stuff(stream) > 0)).on_drained(|_| panic!("drained"))
            },
            provoke: |reactor, _, peer, _| {
                peer.write(b"?");
                turn(reactor);
                while !peer.read_all().is_empty() {}
            },
        },
        Panic {
            name: "timeout",
            options: idle,
            script: |s| s.on_timeout(|_| panic!("timeout")),
            provoke: |reactor, _, _, clock| {
                turn(reactor);
                clock.advance(std::time::Duration::from_secs(2));
                turn(reactor);
            },
        },
        Panic {
            name: "close",
            options: PLAIN,
            script: |s| s.on_close(|_, _| panic!("close")),
            provoke: |reactor, key, _, _| reactor.stream(key).unwrap().abort(),
        },
    ]
}

fn a_panic_of_any_callback_resets_its_stream_and_harms_no_other(build: Build) {
    for Panic { name, options, script, provoke } in panics() {
        let clock = HandClock::new();
        let mut reactor = build().clock(clock.clone()).build().unwrap();
        let (log, others) = (Log::new(), Log::new());
        let (ours, mut other) = tcp();
        open(&mut reactor, PLAIN, ours, Script::echo(&others));
        let (ours, mut peer) = tcp();
        let key = options.register(ours, script(Script::new(&log)), &mut reactor).unwrap();
        let fd = ready();
        let events = Log::new();
        noting(&mut reactor, &fd, &events, ());
        let said = panic_of(|| {
            if name != "open" {
                turn(&mut reactor);
            }
            provoke(&mut reactor, key, &mut peer, &clock);
            for _ in 0..100 {
                turn(&mut reactor);
            }
        });
        assert_eq!(said, name);
        assert!(reactor.stream(key).is_err(), "{name}");
        assert_eq!(peer.drain().1, Err(ErrorKind::ConnectionReset), "{name}");
        other.write(b"alive?");
        run_dry(&mut reactor);
        assert_eq!(other.read_all(), b"alive?", "{name}");
        assert_eq!(log.take().last(), Some(&Said::Dropped), "{name}");
        let told = log.take().iter().any(|said| matches!(said, Said::Close(_)));
        assert!(!told, "{name}: a handler that has panicked is not called again");
        assert_eq!((events.len(), reactor.stats().subscribers), (1, 2), "{name}");
    }
}

fn a_panic_gives_the_buffer_back(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let address = Rc::new(Cell::new(0));
    let (mut seen, mut taken) = (Vec::new(), Vec::new());
    for bad in [false, true, false] {
        let (ours, mut peer) = tcp();
        let noted = address.clone();
        let script = Script::new(&log).on_data(move |_, input| {
            noted.set(input.as_ptr().addr());
            assert!(!bad, "bad");
        });
        open(&mut reactor, PLAIN, ours, script);
        peer.write(b"?");
        if bad {
            assert_eq!(panic_of(|| run_dry(&mut reactor)), "bad");
            // If the memory were freed, this allocation would reuse it.
            taken.push(vec![0u8; 64 << 10]);
        } else {
            run_dry(&mut reactor);
        }
        seen.push(address.get());
    }
    assert!(seen.iter().all(|address| *address == seen[0]), "one buffer for all: {seen:?}");
}

fn a_panic_keeps_what_others_were_sent(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::new();
    let target = slot::<Key>();
    let (ours, mut peer) = tcp();
    let to = target.clone();
    let script = Script::new(&log).on_data(move |stream, _| {
        stream.turn().stream(to.get().unwrap()).unwrap().send(b"kept").unwrap();
        panic!("bad");
    });
    open(&mut reactor, PLAIN, ours, script);
    let (ours, mut other) = tcp();
    target.set(Some(open(&mut reactor, PLAIN, ours, Script::new(&log))));
    peer.write(b"?");
    assert_eq!(panic_of(|| reactor.run_once(None)), "bad");
    assert_eq!(other.read_all(), b"");
    reactor.run_once(NOW).unwrap();
    assert_eq!(other.read_all(), b"kept");
}

/// Rule 8: the next turn writes what was gathered.
fn output_beside_a_closure_that_panics_goes_out_with_the_next_turn(build: Build) {
    let mut reactor = build().build().unwrap();
    let (ours, mut peer) = unix();
    let key = open(&mut reactor, PLAIN, ours, Script::new(&Log::new()));
    reactor
        .defer(move |mut turn: Turn<'_>| turn.stream(key).unwrap().send(b"kept").unwrap())
        .unwrap();
    reactor.defer(|_: Turn<'_>| panic!("bad")).unwrap();
    assert_eq!(panic_of(|| reactor.run_once(None)), "bad");
    assert_eq!(peer.read_all(), b"");
    reactor.stream(key).unwrap().send(b", too").unwrap();
    assert_eq!(peer.read_all(), b"");
    turn(&mut reactor);
    assert_eq!(peer.read_all(), b"kept, too");
}

scenarios! {
    #[cfg_attr(miri, ignore = "sockets")]
    a_panic_of_any_callback_resets_its_stream_and_harms_no_other,
    #[cfg_attr(miri, ignore = "sockets")]
    a_panic_gives_the_buffer_back except [uring "a ring has a pool of buffers: see rings.rs"],
    #[cfg_attr(miri, ignore = "sockets")]
    a_panic_keeps_what_others_were_sent,
    output_beside_a_closure_that_panics_goes_out_with_the_next_turn,
}
