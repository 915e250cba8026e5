//! Threads on other processors, and waits with a time limit.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::affinity;
use crate::measured::{Error, Unsupported};

/// Maximum time to wait for another thread. A wait is a hundred times shorter unless the machine
/// stops for a while.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Returns an error if two threads would share a processor, because a spinning one would keep the
/// other from running.
pub(crate) fn check_processors() -> Result<(), Error> {
    if affinity::has_two_processors() {
        Ok(())
    } else {
        Err(Unsupported("needs two processors").into())
    }
}

/// Starts a thread on the other processor, always the same one. It returns its error as text,
/// because errors cannot be sent.
pub(crate) fn opposite<T: Send + 'static>(
    body: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> JoinHandle<Result<T, String>> {
    std::thread::spawn(move || {
        affinity::pin_opposite();
        body().map_err(|error| error.to_string())
    })
}

/// Returns the result of a thread.
pub(crate) fn join<T>(thread: JoinHandle<Result<T, String>>) -> Result<T, Error> {
    match thread.join() {
        Ok(result) => Ok(result?),
        Err(_) => Err("a thread panicked".into()),
    }
}

/// Spins until the condition holds. Returns an error if it never does, which shows a lost wake. It
/// makes no system call, so that those of the measured code can be counted.
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) -> Result<(), Error> {
    let started = Instant::now();
    for spins in 0_u64.. {
        if condition() {
            return Ok(());
        }
        std::hint::spin_loop();
        if spins % 1024 == 1023 && started.elapsed() > WAIT_MAX {
            break;
        }
    }
    Err(format!("no {what} within {} s", WAIT_MAX.as_secs()).into())
}

/// Another thread of this process, as the kernel sees it.
pub(crate) struct Watched(File);

impl Watched {
    /// Opens the state of the thread with this number (gettid(2)).
    pub(crate) fn new(thread: u32) -> io::Result<Self> {
        File::open(format!("/proc/self/task/{thread}/stat")).map(Self)
    }

    /// Spins until the thread sleeps in the kernel. The only system call is pread64(2), which no
    /// measured code makes, so it can be excluded from counts.
    pub(crate) fn wait_until_asleep(&self) -> Result<(), Error> {
        wait_until("sleep of the loop", || {
            let mut text = [0; 256];
            let length = self.0.read_at(&mut text, 0).unwrap_or(0);
            is_asleep(&text[..length])
        })
    }
}

/// Returns whether the state in `/proc/PID/stat` is `S`. The name before it is in brackets and may
/// contain any character (proc_pid_stat(5)).
fn is_asleep(stat: &[u8]) -> bool {
    let end = stat.iter().rposition(|&byte| byte == b')');
    end.and_then(|end| stat.get(end + 2)) == Some(&b'S')
}

/// Puts a value on cache lines of its own, so that writes of other threads beside it do not slow
/// it. It takes two lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn the_state_stands_after_the_name_whatever_that_is() {
        assert!(is_asleep(b"12 (a) S 1 2"));
        assert!(is_asleep(b"12 (a) R (b) S 1 2"));
        assert!(!is_asleep(b"12 (S) R 1 2"));
        assert!(!is_asleep(b""));
    }

    #[test]
    fn a_thread_that_waits_is_found_asleep() {
        let (told, number_of) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            told.send(affinity::thread_number()).unwrap();
            assert!(ended.recv().is_err());
        });
        let watched = Watched::new(number_of.recv().unwrap()).unwrap();
        watched.wait_until_asleep().unwrap();
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn an_error_of_a_thread_is_its_text() {
        let thread = opposite(|| -> Result<(), Error> { Err("lost".into()) });
        assert_eq!(join(thread).unwrap_err().to_string(), "lost");
    }
}
