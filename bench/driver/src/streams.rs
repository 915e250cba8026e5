//! The suite `streams`: bytes that other code than a stream's handler sends to it.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use crate::alloc;
use crate::measured::{Error, Measured, counted};
use crate::protocol::{Case, Outcome};

/// A reactor with byte streams.
pub trait StreamSubject: Sized + 'static {
    /// Creates one on the named backend, with these sockets as its streams.
    ///
    /// # Errors
    ///
    /// If it does not have this backend, or if the kernel returns an error.
    fn new(backend: &str, sockets: Vec<UnixStream>) -> Result<Self, Error>;

    /// Sends the bytes to each stream, and takes a turn that does not wait. The bytes have left
    /// when it returns.
    ///
    /// # Errors
    ///
    /// If a stream rejects them, or if the wait fails.
    fn send_to_all(&mut self, bytes: &[u8]) -> Result<(), Error>;
}

/// Rounds between two reads of the other ends, whose sockets can hold as much. So few that the
/// kernel never rejects bytes, and more than are counted.
const READ_EVERY: u64 = 32;

/// Sets up a case of this suite.
pub(crate) fn prepare<S: StreamSubject>(
    case: &Case,
    backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    let Case::StreamWrites { streams, bytes } = *case else {
        return Err("no case of the suite `streams`".into());
    };
    if idle {
        return Err("a write cannot be idle".into());
    }
    let mut ends = Vec::new();
    let mut sockets = Vec::new();
    for _ in 0..streams {
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        sockets.push(ours);
        ends.push(theirs);
    }
    let subject = S::new(backend, sockets)?;
    Ok(Box::new(Writes { subject, ends, bytes: (0..=u8::MAX).cycle().take(bytes).collect() }))
}

struct Writes<S> {
    subject: S,
    /// The other ends of the streams.
    ends: Vec<UnixStream>,
    bytes: Vec<u8>,
}

impl<S: StreamSubject> Writes<S> {
    fn run(&mut self, rounds: u64) -> Result<(), Error> {
        for round in 1..=rounds {
            self.subject.send_to_all(&self.bytes)?;
            if round % READ_EVERY == 0 {
                self.check(READ_EVERY)?;
            }
        }
        Ok(())
    }

    /// Reads the other ends, and checks that each has got the bytes of so many rounds.
    fn check(&mut self, rounds: u64) -> Result<(), Error> {
        let mut buffer = vec![0; self.bytes.len() * READ_EVERY as usize + 1];
        for end in &mut self.ends {
            let mut len = 0;
            loop {
                match end.read(&mut buffer[len..]) {
                    Ok(0) => return Err("a stream was closed, or got too much".into()),
                    Ok(count) => len += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
            let is_whole = len as u64 == rounds * self.bytes.len() as u64;
            if !is_whole || buffer[..len].chunks(self.bytes.len()).any(|got| got != self.bytes) {
                return Err("a stream has not got the bytes that were sent".into());
            }
        }
        Ok(())
    }
}

impl<S: StreamSubject> Measured for Writes<S> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let before = alloc::counts();
        let started = Instant::now();
        let mut result = Ok(());
        counted(&mut || result = self.run(rounds));
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        result?;
        self.check(rounds % READ_EVERY)?;
        let units = rounds * self.ends.len() as u64;
        Ok(Outcome { ns, units, turns: rounds, allocations, ..Outcome::default() })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Sends all bytes, or one too few.
    struct Plain(Vec<UnixStream>, usize);

    impl StreamSubject for Plain {
        fn new(backend: &str, sockets: Vec<UnixStream>) -> Result<Self, Error> {
            Ok(Self(sockets, usize::from(backend == "lossy")))
        }

        fn send_to_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
            let less = self.1;
            Ok(self.0.iter_mut().try_for_each(|end| end.write_all(&bytes[less..]))?)
        }
    }

    #[test]
    fn bytes_that_are_missing_fail_the_check() {
        let case = Case::StreamWrites { streams: 3, bytes: 20 };
        for rounds in [1, READ_EVERY, 2 * READ_EVERY + 1] {
            assert!(prepare::<Plain>(&case, "", false).unwrap().slice(rounds).is_ok());
            assert!(prepare::<Plain>(&case, "lossy", false).unwrap().slice(rounds).is_err());
        }
    }
}
