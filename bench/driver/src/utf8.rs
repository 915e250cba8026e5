//! The suite `utf8`: validates text as UTF-8.

use std::hint::black_box;
use std::time::Instant;

use crate::measured::{Error, Measured, counted};
use crate::protocol::{Case, Outcome};
use crate::{alloc, payload};

/// A validator.
pub trait Utf8Subject: 'static {
    /// Returns whether the text is valid. The pieces of the text end at `cuts` and at its end. A
    /// validator without support for pieces takes the whole text, without the cost of joining it.
    fn is_valid(text: &[u8], cuts: &[usize]) -> bool;

    /// Returns whether it supports this number of pieces.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::measured::Unsupported) if it does not.
    fn check_pieces(_pieces: usize) -> Result<(), Error> {
        Ok(())
    }
}

/// Sets up a case of this suite.
pub(crate) fn prepare<S: Utf8Subject>(
    case: &Case,
    _backend: &str,
    idle: bool,
) -> Result<Box<dyn Measured>, Error> {
    let Case::Validate { script, bytes, pieces } = *case else {
        return Err("no case of the suite `utf8`".into());
    };
    S::check_pieces(pieces)?;
    let text = payload::text(script, bytes);
    let cuts = payload::cuts(text.len(), pieces);
    let is_valid = if idle { |_: &[u8], _: &[usize]| true } else { S::is_valid };
    let validate = Validate { text, cuts, is_valid, idle };
    validate.check()?;
    Ok(Box::new(validate))
}

struct Validate {
    text: Vec<u8>,
    cuts: Vec<usize>,
    is_valid: fn(&[u8], &[usize]) -> bool,
    /// It does not read the text, so there is nothing to check.
    idle: bool,
}

impl Validate {
    /// Checks that the text is valid, and invalid with a wrong byte anywhere, or without the last
    /// byte of its last character.
    fn check(&self) -> Result<(), Error> {
        if self.idle {
            return Ok(());
        }
        if !(self.is_valid)(&self.text, &self.cuts) {
            return Err("valid text was refused".into());
        }
        for place in [0, self.text.len() / 3, self.text.len() - 1] {
            let mut wrong = self.text.clone();
            wrong[place] = 0xff;
            if (self.is_valid)(&wrong, &self.cuts) {
                return Err("text with a byte that no text has was accepted".into());
            }
        }
        let mut cut_off = self.text.clone();
        let last = cut_off.len() - 1;
        cut_off[last] = 0xc3;
        if (self.is_valid)(&cut_off, &self.cuts) {
            return Err("text that ends within a character was accepted".into());
        }
        Ok(())
    }
}

impl Measured for Validate {
    fn slice(&mut self, rounds: u64) -> Result<Outcome, Error> {
        let before = alloc::counts();
        let started = Instant::now();
        let mut valid = 0;
        counted(&mut || {
            for _ in 0..rounds {
                valid += u64::from((self.is_valid)(black_box(&self.text), black_box(&self.cuts)));
            }
        });
        let ns = started.elapsed().as_nanos() as u64;
        let allocations = alloc::counts().allocations - before.allocations;
        if valid != rounds {
            return Err(format!("valid text was accepted {valid} times of {rounds}").into());
        }
        self.check()?;
        let gib_per_s =
            rounds as f64 * self.text.len() as f64 / f64::from(1 << 30) / (ns.max(1) as f64 / 1e9);
        let gauges = [("gib_per_s".to_owned(), gib_per_s)].into();
        Ok(Outcome { ns, units: rounds, allocations, gauges, ..Outcome::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Script;

    struct Yes;

    impl Utf8Subject for Yes {
        fn is_valid(_: &[u8], _: &[usize]) -> bool {
            true
        }
    }

    struct Std;

    impl Utf8Subject for Std {
        fn is_valid(text: &[u8], _: &[usize]) -> bool {
            std::str::from_utf8(text).is_ok()
        }
    }

    #[test]
    fn who_accepts_everything_is_found_out() {
        for script in Script::ALL {
            let case = Case::Validate { script, bytes: 64, pieces: 3 };
            assert!(prepare::<Yes>(&case, "", false).is_err());
            assert!(prepare::<Std>(&case, "", false).is_ok());
        }
    }
}
