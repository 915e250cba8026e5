//! The suite `unmask`: unmasks a payload with a key.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use crate::measured::{Error, Measured, counted};
use crate::payload;
use crate::protocol::{Case, Outcome};
use crate::random::Random;

/// An implementation of unmasking.
pub trait UnmaskSubject: Sized + 'static {
    /// Creates one for payloads of a length.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::measured::Unsupported) if the library has no such function.
    fn new(bytes: usize) -> Result<Self, Error>;

    /// Unmasks `buffer[payload]`, and returns the offset of the result. The 64 bytes before and
    /// after the payload may be overwritten.
    fn unmask(&mut self, buffer: &mut [u8], payload: Range<usize>, key: [u8; 4]) -> usize;

    /// True if it unmasks; false if it only shows the speed of memory.
    const UNMASKS: bool = true;
}

/// Number of free bytes before and after the payload.
const ROOM: usize = 64;

const KEY: [u8; 4] = [0x6d, 0xb6, 0xb2, 0x80];

/// Does nothing, to measure the workload's own cost.
struct Nothing;

impl UnmaskSubject for Nothing {
    const UNMASKS: bool = false;

    fn new(_: usize) -> Result<Self, Error> {
        Ok(Self)
    }

    fn unmask(&mut self, _: &mut [u8], payload: Range<usize>, _: [u8; 4]) -> usize {
        payload.start
    }
}

/// Sets up a case of this suite.
pub(crate) fn prepare<S: UnmaskSubject>(
    case: &Case,
    _backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    let Case::Unmask { bytes, offset } = *case else {
        return Err("no case of the suite `unmask`".into());
    };
    if idle {
        return Ok(Box::new(Unmask::<Nothing>::new(bytes, offset)?));
    }
    Ok(Box::new(Unmask::<S>::new(bytes, offset)?))
}

struct Unmask<S> {
    subject: S,
    buffer: Vec<u8>,
    payload: Range<usize>,
}

impl<S: UnmaskSubject> Unmask<S> {
    fn new(bytes: usize, offset: usize) -> Result<Self, Error> {
        let buffer = vec![0; bytes + offset + 3 * ROOM];
        let start = ROOM + buffer[ROOM..].as_ptr().align_offset(64) + offset;
        let mut unmask = Self { subject: S::new(bytes)?, buffer, payload: start..start + bytes };
        unmask.check()?;
        Ok(unmask)
    }

    fn check(&mut self) -> Result<(), Error> {
        let plain = payload::content(crate::protocol::Content::Binary, self.payload.len());
        let masked = plain.iter().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key);
        self.buffer[self.payload.clone()]
            .iter_mut()
            .zip(masked)
            .for_each(|(place, byte)| *place = byte);
        // The surroundings of the payload are not measured.
        Random::new(9).fill(&mut self.buffer[..self.payload.start]);
        let start = self.subject.unmask(&mut self.buffer, self.payload.clone(), KEY);
        if S::UNMASKS && self.buffer[start..start + plain.len()] != plain {
            return Err("what was unmasked is not what was masked".into());
        }
        Ok(())
    }
}

impl<S: UnmaskSubject> Measured for Unmask<S> {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let started = Instant::now();
        counted(&mut || run(self, rounds));
        let ns = started.elapsed().as_nanos() as u64;
        self.check()?;
        let bytes = rounds as f64 * self.payload.len() as f64;
        let gib_per_s = bytes / f64::from(1 << 30) / (ns.max(1) as f64 / 1e9);
        Ok(Outcome {
            ns,
            units: rounds,
            gauges: [("gib_per_s".to_owned(), gib_per_s)].into(),
            ..Outcome::default()
        })
    }
}

/// The measured loop. Unmasking an unmasked payload masks it again and takes the same time.
#[inline(never)]
fn run<S: UnmaskSubject>(unmask: &mut Unmask<S>, rounds: u64) {
    for _ in 0..rounds {
        let start =
            unmask.subject.unmask(&mut unmask.buffer, unmask.payload.clone(), black_box(KEY));
        black_box(unmask.buffer[start..].as_ptr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leaves the last byte unchanged.
    struct Forgetful;

    impl UnmaskSubject for Forgetful {
        fn new(_: usize) -> Result<Self, Error> {
            Ok(Self)
        }

        fn unmask(&mut self, buffer: &mut [u8], payload: Range<usize>, key: [u8; 4]) -> usize {
            let end = payload.end - 1;
            buffer[payload.start..end]
                .iter_mut()
                .zip(key.iter().cycle())
                .for_each(|(byte, key)| *byte ^= key);
            payload.start
        }
    }

    #[test]
    fn a_forgotten_byte_is_found() {
        assert!(Unmask::<Forgetful>::new(20, 8).is_err());
    }

    #[test]
    fn the_payload_lies_where_it_was_asked_for() {
        let unmask = Unmask::<Nothing>::new(20, 8).unwrap();
        assert_eq!(unmask.buffer[unmask.payload.start..].as_ptr().addr() % 64, 8);
        assert!(unmask.buffer.len() >= unmask.payload.end + ROOM);
    }
}
