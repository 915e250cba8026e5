//! Threads that meet: spawned on the other processor, waited for with an end.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::affinity;
use crate::measured::{Error, Unsupported};

/// Longest wait for another thread. None takes a hundredth of it, but on a machine that is stopped
/// for a while.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Refuses where two threads would have to share a processor: one that spins would keep the other
/// from running.
pub(crate) fn check_processors() -> Result<(), Error> {
    if affinity::has_two_processors() {
        Ok(())
    } else {
        Err(Unsupported("needs two processors").into())
    }
}

/// A thread on the other processor, always the same one. Its errors come as text, for they cannot
/// be sent.
pub(crate) fn opposite<T: Send + 'static>(
    body: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> JoinHandle<Result<T, String>> {
    std::thread::spawn(move || {
        affinity::pin_opposite();
        body().map_err(|error| error.to_string())
    })
}

/// What a thread has come to.
pub(crate) fn join<T>(thread: JoinHandle<Result<T, String>>) -> Result<T, Error> {
    match thread.join() {
        Ok(result) => Ok(result?),
        Err(_) => Err("a thread panicked".into()),
    }
}

/// Spins until the condition holds; an error if it never does, which is how a lost wake shows. It
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
    /// The thread with this number (gettid(2)).
    pub(crate) fn new(thread: u32) -> io::Result<Self> {
        File::open(format!("/proc/self/task/{thread}/stat")).map(Self)
    }

    /// Spins until the thread sleeps in the kernel. The only system call is pread64(2), which
    /// nothing measured makes, so that it can be left out when calls are counted.
    pub(crate) fn wait_until_asleep(&self) -> Result<(), Error> {
        wait_until("sleep of the loop", || {
            let mut text = [0; 256];
            let length = self.0.read_at(&mut text, 0).unwrap_or(0);
            is_asleep(&text[..length])
        })
    }
}

/// Whether the state in `/proc/PID/stat` is `S`; the name before it is in brackets and may hold
/// anything (proc_pid_stat(5)).
fn is_asleep(stat: &[u8]) -> bool {
    let end = stat.iter().rposition(|&byte| byte == b')');
    end.and_then(|end| stat.get(end + 2)) == Some(&b'S')
}

/// On cache lines of its own (two, for processors fetch them in pairs), so that threads that write
/// beside it do not slow it.
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
