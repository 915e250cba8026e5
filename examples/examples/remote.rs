//! A loop that owns the counts of words, and other threads that count them.
//!
//! It shows:
//! - `Remote::post` runs a closure on the loop's thread and does not wait for it. `try_post` does
//!   not wait for space in the queue either, and returns the closure if the queue is full. `call`
//!   waits for the closure's result.
//! - Closures get a `Turn`. With it another thread can start timers, register listeners and send on
//!   streams.
//! - State of the loop needs no lock. It can be a thread-local of the loop's thread.
//! - The queue is bounded (`Builder::remote_max`). Producers that are too fast wait for the loop.
//! - After the reactor's end calls return an error with the rejected closure.
//!
//! Run it with `cargo run --example remote`, and its tests with `cargo test --example remote`.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    error::Error,
    io,
    net::{SocketAddr, TcpStream},
    thread,
};

use windlass::{
    Builder, Reactor, Remote,
    stream::{Input, Listener, Stream, StreamHandler},
};

thread_local! {
    /// The number of occurrences of each word. It belongs to the loop's thread, which runs the
    /// closures below.
    static COUNTS: RefCell<BTreeMap<String, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Counts the words of a text on any thread. The loop only adds.
fn count(text: &str, remote: &Remote) -> io::Result<()> {
    for word in text.split_whitespace() {
        let word = word.to_lowercase();
        // This waits while the queue is full.
        remote.post(move |_| {
            COUNTS.with_borrow_mut(|counts| *counts.entry(word).or_default() += 1)
        })?;
    }
    Ok(())
}

/// Returns the current counts, including earlier posts of this thread: closures of one thread run
/// in order.
fn counts(remote: &Remote) -> io::Result<BTreeMap<String, u64>> {
    Ok(remote.call(|_| COUNTS.with_borrow(Clone::clone))?)
}

/// Sends the counts to every client.
struct Report;

impl StreamHandler for Report {
    fn on_open(&mut self, stream: &mut Stream<'_>) {
        let report = COUNTS.with_borrow(|counts| {
            counts.iter().map(|(word, count)| format!("{count} {word}\n")).collect::<String>()
        });
        let _ = stream.send(report.as_bytes());
        stream.close();
    }

    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

/// Makes the loop listen at an address, and returns its address.
fn listen(remote: &Remote, address: SocketAddr) -> io::Result<SocketAddr> {
    let listener = Listener::tcp(address)?;
    let address = listener.local_addr()?.socket_addr().unwrap_or(address);
    // The outer error is that of the call, the inner one that of the registration.
    remote.call(move |mut turn| {
        let registration = listener.with_handler(|_| Some(Report));
        registration.register_into(&mut turn).map_err(io::Error::from)
    })??;
    Ok(address)
}

/// Runs a loop on this thread, and `work` on another until it returns.
fn run<T: Send>(builder: Builder, work: impl FnOnce(&Remote) -> T + Send) -> io::Result<T> {
    let mut reactor: Reactor = builder.build()?;
    let remote = reactor.remote();
    thread::scope(|scope| {
        let worker = scope.spawn(move || {
            /// Ends the loop, also if the work panics.
            struct Stop<'r>(&'r Remote);
            impl Drop for Stop<'_> {
                fn drop(&mut self) {
                    self.0.stop();
                }
            }
            let _stop = Stop(&remote);
            work(&remote)
        });
        reactor.run()?;
        worker.join().map_err(|_| io::Error::other("a worker has panicked"))
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let texts = ["the loop owns the counts", "the threads count", "and the loop adds"];
    let report = run(windlass_examples::builder()?, |remote| {
        thread::scope(|scope| {
            let threads = texts.map(|text| scope.spawn(move || count(text, remote)));
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("counting does not panic"))
        })?;
        println!("{} words", counts(remote)?.values().sum::<u64>());
        let address = listen(remote, "127.0.0.1:0".parse().expect("an address"))?;
        io::read_to_string(TcpStream::connect(address)?)
    })??;
    print!("{report}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, time::Duration};
    use windlass::{CallError, PostReason, Turn};

    fn builder() -> Builder {
        windlass_examples::builder().unwrap()
    }

    #[test]
    fn no_word_is_lost_however_short_the_queue_is() {
        let counted = run(builder().remote_max(2), |remote| {
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| count(&"one two Two ".repeat(500), remote).unwrap());
                }
            });
            counts(remote).unwrap()
        });
        assert_eq!(
            counted.unwrap(),
            BTreeMap::from([("one".to_owned(), 2000), ("two".to_owned(), 4000)])
        );
    }

    #[test]
    fn a_listener_that_another_thread_has_registered_answers() {
        let report = run(builder(), |remote| {
            count("b a b", remote).unwrap();
            let address = listen(remote, "127.0.0.1:0".parse().unwrap()).unwrap();
            io::read_to_string(TcpStream::connect(address).unwrap()).unwrap()
        });
        assert_eq!(report.unwrap(), "1 a\n2 b\n");
    }

    #[test]
    fn a_full_queue_gives_the_closure_back_and_a_call_need_not_wait_for_ever() {
        run(builder().remote_max(1), |remote| {
            // The loop is busy until this thread releases it, so no queued closure runs.
            let (go, gone) = mpsc::channel::<()>();
            let (begin, begun) = mpsc::channel();
            remote
                .post(move |_| {
                    begin.send(()).unwrap();
                    gone.recv().unwrap_err();
                })
                .unwrap();
            begun.recv().unwrap();
            // The running closure counts, too, so the queue is full.
            let refused = remote.try_post(|_| {}).unwrap_err();
            assert_eq!(refused.reason, PostReason::Full);
            let late = remote.call_timeout(Duration::from_millis(1), |_| {});
            assert!(
                matches!(late, Err(CallError::TimedOut(Some(_)))),
                "it has not begun, and never will"
            );
            drop(go);
            remote.call(|_| {}).unwrap();
        })
        .unwrap();
    }

    #[test]
    fn a_reactor_that_is_gone_says_so() {
        let remote = run(builder(), Remote::clone).unwrap();
        let name = String::from("comes back");
        let refused = remote.try_post(move |_: Turn<'_>| drop(name)).unwrap_err();
        assert_eq!(refused.reason, PostReason::Closed);
        assert_eq!(counts(&remote).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
