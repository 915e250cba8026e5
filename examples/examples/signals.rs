//! Signals as events, and a graceful stop.
//!
//! It shows:
//! - A `SignalSet` is a descriptor like any other. Reading it returns the pending signals, each
//!   once.
//! - It blocks its signals for the thread that creates it. Create it before other threads start, so
//!   that they inherit the blocked signals. The kernel may deliver a signal to a thread that does
//!   not block it, which ends the process.
//! - After `turn.stop()` the turn ends before `run` returns: deferred closures still run.
//! - The members of a group share one state: here the signals and the work.
//!
//! Run it with `cargo run --example signals`, then press Ctrl-C, or send SIGHUP and SIGTERM with
//! kill(1). Run its tests with `cargo test --example signals`.

use std::{io, time::Duration};

use windlass::{Group, Reactor, ReactorOps, Registered, Signal, SignalSet, Turn};

#[derive(Debug, Default, PartialEq, Eq)]
struct Daemon {
    jobs_done: u64,
    reloads: u64,
    last_words: Option<Signal>,
}

impl Daemon {
    fn on_signals<R: ReactorOps>(&mut self, signals: &mut SignalSet, mut turn: Turn<'_, R>) {
        let received = match signals.read() {
            Ok(received) => received,
            Err(error) => {
                eprintln!("cannot read signals: {error}");
                return turn.stop();
            }
        };
        // One read may return HUP and TERM. Both are handled.
        if received.contains(Signal::HUP) {
            self.reloads += 1;
            println!("SIGHUP: configuration reloaded");
        }
        if let Some(signal) =
            received.iter().find(|signal| [Signal::INT, Signal::TERM].contains(signal))
        {
            self.last_words = Some(signal);
            println!("{signal:?}: stopping");
            turn.stop();
        }
    }

    fn work(&mut self) {
        self.jobs_done += 1;
    }
}

fn start(reactor: &mut Reactor, work_every: Duration) -> io::Result<Registered<Daemon>> {
    let signals = SignalSet::new([Signal::HUP, Signal::INT, Signal::TERM])?;
    let registered = Group::new(Daemon::default())
        .signals(signals, Daemon::on_signals)
        .every(work_every, Daemon::work)
        .register_into(reactor)?;
    Ok(registered)
}

fn main() -> io::Result<()> {
    let mut reactor = windlass_examples::builder()?.build()?;
    let daemon = start(&mut reactor, Duration::from_millis(500))?;
    println!("working as process {}", std::process::id());
    reactor.run()?;
    println!("left behind: {:?}", reactor.group_mut(daemon.group));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal as Raw, raise};

    /// raise(3) sends a signal to this thread only. A signal to the process would be delivered to
    /// the main thread of the test harness.
    fn raised(signals: &[Raw]) -> (Reactor, Registered<Daemon>) {
        let mut reactor = windlass_examples::builder().unwrap().build().unwrap();
        let daemon = start(&mut reactor, Duration::from_millis(1)).unwrap();
        signals.iter().for_each(|signal| raise(*signal).unwrap());
        (reactor, daemon)
    }

    #[test]
    fn both_stopping_signals_stop() {
        for (raw, signal) in [(Raw::SIGINT, Signal::INT), (Raw::SIGTERM, Signal::TERM)] {
            let (mut reactor, daemon) = raised(&[raw]);
            reactor.run().unwrap();
            assert_eq!(reactor.group_mut(daemon.group).unwrap().last_words, Some(signal));
        }
    }

    #[test]
    fn a_reload_is_not_hidden_by_a_stop() {
        let (mut reactor, daemon) = raised(&[Raw::SIGHUP, Raw::SIGHUP, Raw::SIGTERM]);
        reactor.run().unwrap();
        let daemon = reactor.group_mut(daemon.group).unwrap();
        assert_eq!((daemon.reloads, daemon.last_words), (1, Some(Signal::TERM)));
    }

    #[test]
    fn a_reload_alone_goes_on_working() {
        let (mut reactor, daemon) = raised(&[Raw::SIGHUP]);
        while reactor.group_mut(daemon.group).unwrap().jobs_done == 0 {
            reactor.run_once(None).unwrap();
        }
        let daemon = reactor.group_mut(daemon.group).unwrap();
        assert_eq!((daemon.reloads, daemon.last_words), (1, None));
    }
}
