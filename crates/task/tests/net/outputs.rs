//! Output that streams were given, and that their sockets have not accepted: it outlives the
//! stream, and the executor.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream as StdStream},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::mpsc,
    task::Poll,
    thread,
    time::Duration,
};

use rustix::event::{EventfdFlags, eventfd};
use windlass::{Backend, Turn};
use windlass_task::{AsyncFd, Executor, net::TcpStream, spawn, with_turn};

use crate::{
    acknowledged::until_acknowledged,
    read_buffers::{is_on_ring, with_std_peer},
    scenarios::Build,
    tools::{HandClock, at_most, pattern, poll_now, run, turns},
};

const SECOND: Duration = Duration::from_secs(1);

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

fn subscribers() -> usize {
    with_turn(|turn| turn.stats().subscribers).unwrap()
}

/// An executor whose dropped streams wait for a second of this clock.
fn dropping(build: Build, clock: &HandClock) -> Executor {
    let reactor = build().clock(clock.clone());
    Executor::builder().reactor(reactor).drop_timeout(SECOND).build().unwrap()
}

/// Writes until the stream accepts nothing more. Returns what it has accepted.
async fn fill(ours: &mut TcpStream) -> Vec<u8> {
    let mut bytes = pattern(512 << 10);
    let mut sent = 0;
    let mut waits = 0;
    // What the kernel has passed on meanwhile makes room once more.
    while waits < 3 {
        match at_most(1, ours.write(&bytes[sent..])).await {
            Some(count) => (sent, waits) = (sent + count.unwrap(), 0),
            None => waits += 1,
        }
        turns().await;
    }
    assert_ne!(sent, bytes.len(), "it is never full");
    bytes.truncate(sent);
    bytes
}

/// Reads to the end, in another thread.
fn reads_all(mut peer: StdStream) -> thread::JoinHandle<std::io::Result<Vec<u8>>> {
    thread::spawn(move || {
        let mut received = Vec::new();
        peer.read_to_end(&mut received).map(|_| received)
    })
}

/// An executor whose end waits so long for the output of its streams.
fn draining(build: Build, longest: Duration) -> Executor {
    Executor::builder().reactor(build()).drain_timeout(longest).build().unwrap()
}

/// A stream with output, which outlives its executor. Its peer and what it was given.
fn outliving(build: Build) -> (TcpStream, StdStream, Vec<u8>) {
    draining(build, Duration::ZERO).block_on(async {
        let (mut ours, peer) = with_std_peer();
        let sent = fill(&mut ours).await;
        (ours, peer, sent)
    })
}

fn output_that_outlives_its_executor_comes_along(build: Build) {
    let (ours, peer, sent) = outliving(build);
    let reader = reads_all(peer);
    let mut socket = run(build, async { ours.detach().await.unwrap().0 });
    socket.set_nonblocking(false).unwrap();
    socket.write_all(b"the tail").unwrap();
    drop(socket);
    let received = reader.join().unwrap().unwrap();
    assert!(received == [&sent[..], b"the tail"].concat(), "{} of {}", received.len(), sent.len());
}

fn the_end_of_an_executor_sends_what_was_written(build: Build) {
    for how in ["in the future", "in a task", "outside"] {
        let (may_read, reads) = mpsc::channel::<()>();
        let mut first = draining(build, LONG);
        let (kept, reader, sent) = first.block_on(async move {
            let (mut ours, mut peer) = with_std_peer();
            let sent = fill(&mut ours).await;
            let reader = thread::spawn(move || {
                let mut received = Vec::new();
                // Until the executor ends.
                reads.recv().unwrap_err();
                peer.read_to_end(&mut received).map(|_| received)
            });
            let mut kept = None;
            match how {
                "in the future" => drop(ours),
                "in a task" => spawn(async move {
                    std::future::pending::<()>().await;
                    drop(ours);
                })
                .detach(),
                _ => kept = Some(ours),
            }
            spawn(async move {
                let _may_read = may_read;
                std::future::pending::<()>().await;
            })
            .detach();
            turns().await;
            (kept, reader, sent)
        });
        drop(first);
        drop(kept);
        let received = reader.join().unwrap().unwrap();
        assert!(received == sent, "{how}: {} of {}", received.len(), sent.len());
    }
}

fn a_dropped_stream_waits_for_a_peer_that_goes_on_reading(build: Build) {
    let clock = HandClock::default();
    let mut executor = dropping(build, &clock);
    executor.block_on(async {
        let (mut ours, mut peer) = with_std_peer();
        let before = subscribers();
        let sent = fill(&mut ours).await;
        let mut waits = is_on_ring();
        drop(ours);
        turns().await;
        clock.advance(SECOND * 9 / 10);
        turns().await;
        peer.set_nonblocking(true).unwrap();
        let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match peer.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => received.extend_from_slice(&buffer[..count]),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    turns().await;
                }
            }
            // More than the kernel had, so the socket has accepted some.
            if received.len() + (48 << 10) > sent.len() && std::mem::take(&mut waits) {
                assert_eq!(subscribers(), before + 1);
                clock.advance(SECOND * 9 / 10);
                turns().await;
            }
            if subscribers() == before {
                // The kernel has the rest, and no time limit ends it.
                clock.advance(1000 * SECOND);
                turns().await;
            }
        }
        assert!(received == sent, "{} of {}", received.len(), sent.len());
    });
}

/// On a ring. On other backends the kernel has all of the output.
fn a_dropped_stream_whose_peer_does_not_read_is_reset(build: Build) {
    for how in ["in time", "at once", "by its linger"] {
        let clock = HandClock::default();
        let mut executor = if how == "at once" {
            Executor::builder().reactor(build()).drop_timeout(Duration::ZERO).build().unwrap()
        } else {
            dropping(build, &clock)
        };
        executor.block_on(async {
            let (mut ours, peer) = with_std_peer();
            let sent = fill(&mut ours).await;
            let before = subscribers();
            let is_on_ring = is_on_ring();
            if how == "by its linger" {
                ours.set_linger(Some(Duration::ZERO)).unwrap();
            }
            drop(ours);
            turns().await;
            if how == "in time" && is_on_ring {
                assert_eq!(subscribers(), before, "it waits");
                clock.advance(SECOND * 9 / 10);
                turns().await;
                assert_eq!(subscribers(), before, "it waits");
                // The kernel may have accepted something after the drop.
                for _ in 0..2 {
                    clock.advance(SECOND + Duration::from_millis(50));
                    turns().await;
                }
            }
            assert_eq!(subscribers(), before - 1, "{how}");
            let is_reset = is_on_ring || how == "by its linger";
            match reads_all(peer).join().unwrap() {
                Ok(received) => assert!(!is_reset && received == sent, "{how}"),
                Err(error) => {
                    assert!(is_reset && error.kind() == ErrorKind::ConnectionReset, "{how}")
                }
            }
        });
    }
}

/// On a ring a stream that was dropped waits for its peer. What that sends may be received with the
/// executor's end alone.
fn a_stream_with_unread_bytes_is_reset_although_its_output_is_sent(build: Build) {
    for is_dropped_before in [true, false] {
        let mut executor = draining(build, LONG);
        let peer = executor.block_on(async {
            let (mut ours, mut peer) = with_std_peer();
            peer.write_all(b"x").unwrap();
            assert_eq!(ours.read(&mut [0; 1]).await.unwrap(), 1);
            fill(&mut ours).await;
            // Its end fetches what a ring has completed.
            let other = AsyncFd::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()).unwrap();
            spawn(async move { other.readable().await }).detach();
            turns().await;
            let mut ours = Some(ours);
            if is_dropped_before {
                ours = None;
                turns().await;
            }
            peer.write_all(b"never read").unwrap();
            if ours.is_some() || is_on_ring() {
                // Elsewhere it has reset the connection.
                until_acknowledged(&peer);
            }
            peer
        });
        let reader = reads_all(peer);
        drop(executor);
        let error = reader.join().unwrap().map(|received| received.len()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// Nor does the executor's end wait for a stream that its drop resets.
fn the_end_of_an_executor_does_not_wait_for_a_stream_that_is_reset(build: Build) {
    for when in ["in the future", "in a handler", "outside", "after the end", "option"] {
        let builder = Executor::builder().reactor(build()).drain_timeout(Duration::MAX);
        let longest = if when == "option" { Duration::ZERO } else { LONG };
        let mut executor = builder.drop_timeout(longest).build().unwrap();
        let (ours, peer) = executor.block_on(async {
            let (mut ours, peer) = with_std_peer();
            fill(&mut ours).await;
            if when != "option" {
                ours.set_linger(Some(Duration::ZERO)).unwrap();
            }
            ((when != "in the future").then_some(ours), peer)
        });
        let mut ours = Some(ours);
        if when == "in a handler" {
            let ours = ours.take();
            let defer = |mut turn: Turn<'_>| turn.defer(move |_: Turn<'_>| drop(ours)).is_ok();
            assert!(executor.with_turn(defer));
        } else if when == "outside" {
            ours = None;
        }
        let is_on_ring = executor.with_turn(|turn| turn.stats().backend) == Backend::Uring;
        drop(executor);
        drop(ours);
        match reads_all(peer).join().unwrap() {
            Ok(_) => assert!(!is_on_ring && when == "option"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{when}"),
        }
    }
}

/// Output that could not be sent never looks like a complete stream.
fn an_executor_without_time_for_output_resets(build: Build) {
    for longest in [Duration::ZERO, Duration::from_millis(20)] {
        let mut executor = draining(build, longest);
        let (peer, sent, is_on_ring) = executor.block_on(async {
            let (mut ours, peer) = with_std_peer();
            let sent = fill(&mut ours).await;
            (peer, sent, is_on_ring())
        });
        drop(executor);
        match reads_all(peer).join().unwrap() {
            Ok(received) => assert!(!is_on_ring && received == sent),
            Err(error) => assert!(is_on_ring && error.kind() == ErrorKind::ConnectionReset),
        }
    }
}

/// The output that outlives the executor is not forgotten, whatever becomes of the stream.
fn a_stream_with_output_that_outlives_its_executor_ends_by_a_reset(build: Build) {
    for how in ["drop", "write half", "detach is dropped", "detach without an executor", "into_std"]
    {
        let (mut ours, peer, sent) = outliving(build);
        let is_on_ring = run(build, async { is_on_ring() });
        if is_on_ring {
            let error = ours.shutdown_now(Shutdown::Write).unwrap_err();
            assert!(error.to_string().contains("was dropped"), "{error}");
            run(build, async {
                assert!(ours.flush().await.is_err() && ours.shutdown().await.is_err());
            });
        }
        match how {
            "drop" => drop(ours),
            "write half" => drop(ours.into_split().1),
            "detach is dropped" => run(build, async {
                assert!(is_on_ring == at_most(1, ours.detach()).await.is_none());
            }),
            "into_std" => match ours.into_std() {
                Ok(socket) => assert!(!is_on_ring, "{socket:?}"),
                Err(error) => assert!(error.to_string().contains("detach"), "{error}"),
            },
            _ => match poll_now(&mut Box::pin(ours.detach())) {
                Poll::Ready(Ok(_)) => assert!(!is_on_ring),
                Poll::Ready(Err(error)) => {
                    let text = error.to_string();
                    assert!(text.starts_with("65536 bytes of output"), "{text}");
                    assert!(text.contains("no executor runs"), "{text}");
                }
                Poll::Pending => panic!("nothing would wake it"),
            },
        }
        match reads_all(peer).join().unwrap() {
            Ok(received) => assert!(!is_on_ring && received == sent, "{how}"),
            Err(error) => {
                assert!(is_on_ring && error.kind() == ErrorKind::ConnectionReset, "{how}: {error}")
            }
        }
    }
}

/// The end that was asked for follows the output, also when the executor has ended meanwhile.
fn a_direction_that_ends_after_its_output_does_so_after_the_executor(build: Build) {
    let (may_read, reads) = mpsc::channel::<()>();
    let mut executor = draining(build, LONG);
    let (read_half, reader, sent) = executor.block_on(async {
        let (mut ours, mut peer) = with_std_peer();
        let sent = fill(&mut ours).await;
        let reader = thread::spawn(move || {
            let mut received = Vec::new();
            reads.recv().unwrap_err();
            peer.read_to_end(&mut received).map(|_| received)
        });
        let (read_half, write_half) = ours.into_split();
        drop(write_half);
        (read_half, reader, sent)
    });
    drop(may_read);
    drop(executor);
    assert!(reader.join().unwrap().unwrap() == sent);
    drop(read_half);
}

/// Whatever ends a stream, and however its peer reads: it gets all of the output, or a reset.
fn every_end_of_a_stream_is_complete_or_a_reset(build: Build) {
    let hows = ["drop", "shutdown", "shutdown now", "halves", "executor", "kept", "detach"];
    for how in hows {
        for peer_reads in ["promptly", "slowly", "at last"] {
            // It takes a second each.
            if peer_reads == "slowly" && !matches!(how, "drop" | "shutdown" | "executor") {
                continue;
            }
            let limit = if peer_reads == "at last" { Duration::from_millis(10) } else { LONG };
            let builder = Executor::builder().reactor(build());
            let mut executor = builder.drop_timeout(limit).drain_timeout(limit).build().unwrap();
            let (may_read, reads) = mpsc::channel::<()>();
            let (kept, reader, sent, is_on_ring) = executor.block_on(async {
                let (mut ours, mut peer) = with_std_peer();
                let sent = fill(&mut ours).await;
                let reader = thread::spawn(move || {
                    if peer_reads == "at last" {
                        reads.recv().unwrap_err();
                    }
                    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
                    loop {
                        match peer.read(&mut buffer) {
                            Ok(0) => return (received, None),
                            Ok(count) => received.extend_from_slice(&buffer[..count]),
                            Err(error) => return (received, Some(error.kind())),
                        }
                        if peer_reads == "slowly" {
                            // sleep: longer than a slow writer needs to find room
                            thread::sleep(Duration::from_micros(300));
                        }
                    }
                });
                let mut kept = None;
                match how {
                    "drop" => drop(ours),
                    "shutdown" => drop(at_most(1, ours.shutdown()).await),
                    "shutdown now" => ours.shutdown_now(Shutdown::Write).unwrap(),
                    "halves" => drop(ours.into_split()),
                    "executor" => spawn(async move {
                        std::future::pending::<()>().await;
                        drop(ours);
                    })
                    .detach(),
                    "kept" => kept = Some(ours),
                    _ => drop(at_most(1, ours.detach()).await),
                }
                turns().await;
                (kept, reader, sent, is_on_ring())
            });
            drop(executor);
            drop(kept);
            drop(may_read);
            let (received, error) = reader.join().unwrap();
            let is_whole = received == sent;
            // The kernel has all of it, or the peer reads.
            let must_be_whole = !is_on_ring || peer_reads != "at last";
            match error {
                None => assert!(is_whole, "{how}, {peer_reads}: {}", received.len()),
                Some(error) => assert!(
                    error == ErrorKind::ConnectionReset && !must_be_whole,
                    "{how}, {peer_reads}: {error}"
                ),
            }
        }
    }
}

/// Rule 8 of the core: output that is gathered stays, although a closure of the turn panics.
fn output_beside_a_panic_is_not_lost(build: Build) {
    for has_a_turn in [true, false] {
        let mut executor = draining(build, LONG);
        let mut peer = None;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            executor.block_on(async {
                let (mut ours, other) = with_std_peer();
                peer = Some(other);
                // The second is gathered on a ring, where the first is queued.
                ours.write_all(b"first, ").await.unwrap();
                ours.write_all(b"second").await.unwrap();
                with_turn(|mut turn| {
                    turn.defer(|_: Turn<'_>| resume_unwind(Box::new("the closure"))).unwrap();
                });
                std::future::pending::<()>().await;
            })
        }));
        assert!(panicked.is_err());
        if has_a_turn {
            executor.block_on(turns());
        } else {
            drop(executor);
        }
        let mut received = Vec::new();
        peer.unwrap().read_to_end(&mut received).unwrap();
        assert_eq!(received, b"first, second");
    }
}

scenarios! {
    output_that_outlives_its_executor_comes_along,
    the_end_of_an_executor_sends_what_was_written,
    a_dropped_stream_waits_for_a_peer_that_goes_on_reading,
    a_dropped_stream_whose_peer_does_not_read_is_reset,
    a_stream_with_unread_bytes_is_reset_although_its_output_is_sent,
    the_end_of_an_executor_does_not_wait_for_a_stream_that_is_reset,
    an_executor_without_time_for_output_resets,
    a_stream_with_output_that_outlives_its_executor_ends_by_a_reset,
    a_direction_that_ends_after_its_output_does_so_after_the_executor,
    every_end_of_a_stream_is_complete_or_a_reset,
    output_beside_a_panic_is_not_lost,
}
