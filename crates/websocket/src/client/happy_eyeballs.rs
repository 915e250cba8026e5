//! Connects to the first of several addresses that answers (RFC 8305).
//!
//! 1. The families alternate, beginning with that of the resolver's first address (section 4).
//! 2. The next attempt begins when the last one has failed, or after 250 ms (section 5).
//! 3. The first connection wins. The other attempts are dropped.

use std::{
    collections::VecDeque,
    future::Future as _,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::runtime::Runtime;
use crate::timer::Timer as _;

/// The delay between attempts (RFC 8305 section 8).
pub(super) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The most addresses of one name that are tried.
pub(super) const ADDRESSES_MAX: usize = 16;

/// Each address with the error of its attempt.
type Failures = Vec<(SocketAddr, io::Error)>;

/// Attempts to reach one of several addresses.
pub(super) struct Attempts<R: Runtime> {
    runtime: R,
    waiting: VecDeque<SocketAddr>,
    running: Vec<(SocketAddr, R::Connecting)>,
    failed: Failures,
    /// For the delay. `None` if it was not needed yet.
    timer: Option<R::Timer>,
    /// When the next attempt begins.
    next: Duration,
}

impl<R: Runtime> Attempts<R> {
    pub(super) fn new(runtime: R, addresses: &[SocketAddr]) -> Self {
        let waiting = interleaved(addresses);
        let (running, failed) = (Vec::new(), Vec::new());
        Self { runtime, waiting, running, failed, timer: None, next: Duration::ZERO }
    }

    /// The first connection, or all errors.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<R::Stream, Failures>> {
        loop {
            let mut has_failed = false;
            let mut at = 0;
            while let Some((address, attempt)) = self.running.get_mut(at) {
                match Pin::new(attempt).poll(context) {
                    Poll::Ready(Ok(stream)) => {
                        self.running.clear();
                        return Poll::Ready(Ok(stream));
                    }
                    Poll::Ready(Err(error)) => {
                        self.failed.push((*address, error));
                        drop(self.running.remove(at));
                        has_failed = true;
                    }
                    Poll::Pending => at += 1,
                }
            }
            let Some(address) = self.waiting.front().copied() else {
                return match self.running.is_empty() {
                    true => Poll::Ready(Err(std::mem::take(&mut self.failed))),
                    false => Poll::Pending,
                };
            };
            if !self.running.is_empty() && !has_failed {
                let timer = self.timer.get_or_insert_with(|| self.runtime.timer());
                if timer.poll_until(context, self.next).is_pending() {
                    return Poll::Pending;
                }
            }
            self.waiting.pop_front();
            self.running.push((address, self.runtime.connect(address)));
            if !self.waiting.is_empty() {
                let timer = self.timer.get_or_insert_with(|| self.runtime.timer());
                self.next = timer.now().saturating_add(ATTEMPT_DELAY);
            }
        }
    }
}

/// The addresses in the order of the attempts.
fn interleaved(addresses: &[SocketAddr]) -> VecDeque<SocketAddr> {
    let is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut first, mut second): (VecDeque<_>, VecDeque<_>) =
        addresses.iter().partition(|address| address.is_ipv6() == is_v6);
    let mut all = VecDeque::new();
    while all.len() < ADDRESSES_MAX {
        match first.pop_front() {
            Some(address) => {
                all.push_back(address);
                if !second.is_empty() {
                    std::mem::swap(&mut first, &mut second);
                }
            }
            None => break,
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(addresses: &[&str]) -> Vec<String> {
        let addresses: Vec<SocketAddr> =
            addresses.iter().map(|text| text.parse().expect("an address")).collect();
        interleaved(&addresses).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn families_alternate_from_the_resolvers_first() {
        let [a6, b6, c6] = ["[::1]:1", "[::2]:1", "[::3]:1"];
        let [a4, b4] = ["1.1.1.1:1", "1.1.1.2:1"];
        assert_eq!(order(&[a6, b6, c6, a4, b4]), [a6, a4, b6, b4, c6]);
        assert_eq!(order(&[a4, a6, b6, c6]), [a4, a6, b6, c6]);
        assert_eq!(order(&[a4, b4]), [a4, b4]);
        assert!(order(&[]).is_empty());
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        assert_eq!(order(&["1.1.1.1:1"; 40]).len(), ADDRESSES_MAX);
    }
}
