//! The terminal: its mode while keys are read, and what comes from it.
//!
//! 1. The mode changes while a [`KeyMode`] lives. Its destructor restores it, also when a panic
//!    unwinds.
//! 2. Signals that would end or stop the program are received here. The program restores the mode
//!    before it ends or stops.

use std::{
    io::{self, Read as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::sys::signal::{self, SigSet};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr},
};
use windlass::{Signal, SignalSet};

/// Keys come at once and are not shown.
#[derive(Debug)]
struct KeyMode {
    terminal: OwnedFd,
    before: Termios,
}

impl KeyMode {
    fn begin(terminal: BorrowedFd<'_>) -> io::Result<Self> {
        let terminal = terminal.try_clone_to_owned()?;
        let before = tcgetattr(&terminal)?;
        let mut mode = before.clone();
        // Output and signals stay as they are.
        mode.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(&terminal, OptionalActions::Now, &mode)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for KeyMode {
    fn drop(&mut self) {
        // The terminal may have gone.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// What has come from the terminal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Came {
    Keys(String),
    /// The time is over, or the program was stopped and goes on.
    Nothing,
    /// A signal ends the program, or the terminal has gone.
    End,
}

/// The terminal of a program that reads keys.
#[derive(Debug)]
pub(super) struct Terminal {
    mode: Option<KeyMode>,
    signals: SignalSet,
}

impl Terminal {
    pub(super) fn open() -> io::Result<Self> {
        let signals = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::TSTP];
        // The signals first: none may come between.
        let signals = SignalSet::new(signals)?;
        Ok(Self { mode: Some(KeyMode::begin(io::stdin().as_fd())?), signals })
    }

    /// Waits for keys, at most until that time.
    pub(super) fn wait(&mut self, until: Instant) -> io::Result<Came> {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
        let [keys, signals] = {
            let stdin = io::stdin();
            let (input, end) = (PollFlags::IN | PollFlags::HUP, PollFlags::IN);
            let mut fds = [PollFd::new(&stdin, input), PollFd::new(&self.signals, end)];
            match poll(&mut fds, Some(&left)) {
                Err(rustix::io::Errno::INTR) => return Ok(Came::Nothing),
                result => result?,
            };
            fds.map(|fd| !fd.revents().is_empty())
        };
        if signals {
            return self.receive();
        }
        if !keys {
            return Ok(Came::Nothing);
        }
        let mut buffer = [0; 256];
        match io::stdin().lock().read(&mut buffer) {
            Ok(0) | Err(_) => Ok(Came::End),
            Ok(count) => Ok(Came::Keys(String::from_utf8_lossy(&buffer[..count]).into_owned())),
        }
    }

    fn receive(&mut self) -> io::Result<Came> {
        let received = self.signals.read()?;
        if received.iter().any(|signal| signal != Signal::TSTP) {
            return Ok(Came::End);
        }
        self.mode = None;
        // The shell continues the program later. If there is none (an orphaned process group), the
        // default action does nothing, and SIGSTOP would stop the program for ever.
        let stop = SigSet::from(signal::SIGTSTP);
        stop.thread_unblock()?;
        let raised = signal::raise(signal::SIGTSTP);
        stop.thread_block()?;
        raised?;
        self.mode = Some(KeyMode::begin(io::stdin().as_fd())?);
        Ok(Came::Nothing)
    }
}

/// The time of the next read.
pub(super) fn next_read(interval: u16) -> Instant {
    Instant::now() + Duration::from_secs(interval.into())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use rustix::pty::{OpenptFlags, grantpt, openpt, unlockpt};

    use super::*;

    #[test]
    fn a_panic_restores_the_mode() {
        let shown = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&shown).unwrap();
        unlockpt(&shown).unwrap();
        let modes = || tcgetattr(&shown).unwrap().local_modes;
        let before = modes();
        assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _mode = KeyMode::begin(shown.as_fd()).unwrap();
            assert_eq!(modes(), before - LocalModes::ICANON - LocalModes::ECHO);
            // Without the hook, which would print it.
            resume_unwind(Box::new("as asked"));
        }));
        assert!(panicked.is_err());
        assert_eq!(modes(), before);
    }
}
