//! Output that streams were given, and that their sockets have not accepted: it outlives the
//! stream, and the executor.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream as StdStream},
    sync::mpsc,
    task::Poll,
    thread,
    time::Duration,
};

use windlass_task::{Executor, net::TcpStream, spawn, with_turn};

use crate::{
    inboxes::{is_on_ring, with_std_peer},
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
    let mut bytes = pattern(2 << 20);
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
            if received.len() > sent.len() - (48 << 10) && std::mem::take(&mut waits) {
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

scenarios! {
    output_that_outlives_its_executor_comes_along,
    the_end_of_an_executor_sends_what_was_written,
    a_dropped_stream_waits_for_a_peer_that_goes_on_reading,
    a_dropped_stream_whose_peer_does_not_read_is_reset,
    an_executor_without_time_for_output_resets,
    a_stream_with_output_that_outlives_its_executor_ends_by_a_reset,
    a_direction_that_ends_after_its_output_does_so_after_the_executor,
}
