//! The rates of each connection's messages. Connections without one cost nothing here: they lack
//! [`HAS_RATE`](crate::table::HAS_RATE).

use core::cell::Cell;
use std::time::{Duration, Instant};

use super::connection_rates::RateExceeded;
use crate::api::{Bucket, Limit, Rate, RateLimits};

#[derive(Clone, Copy, Default)]
struct Buckets {
    messages: Bucket,
    bytes: Bucket,
}

pub(crate) struct MessageRates {
    messages: Cell<Option<Rate>>,
    bytes: Cell<Option<Rate>>,
    /// Of each connection, by its index.
    buckets: Cell<Vec<Buckets>>,
    /// The time at which the count of nanoseconds begins.
    begin: Cell<Option<Instant>>,
    now_ns: Cell<u64>,
}

impl MessageRates {
    pub(super) fn new(limits: &RateLimits) -> Self {
        Self {
            messages: Cell::new(limits.messages),
            bytes: Cell::new(limits.message_bytes),
            buckets: Cell::default(),
            begin: Cell::new(None),
            now_ns: Cell::new(0),
        }
    }

    /// Changes the rates. A connection that has opened without one goes on without.
    pub(crate) fn set(&self, limits: &RateLimits) {
        self.messages.set(limits.messages);
        self.bytes.set(limits.message_bytes);
    }

    /// A connection opens. Returns false if its messages have no rate.
    pub(crate) fn open(&self, index: u32) -> bool {
        if self.messages.get().is_none() && self.bytes.get().is_none() {
            return false;
        }
        let (mut buckets, index) = (self.buckets.take(), index as usize);
        buckets.resize(buckets.len().max(index + 1), Buckets::default());
        buckets[index] = Buckets::default();
        self.buckets.set(buckets);
        true
    }

    /// Notes the time of a turn, before messages are counted in it.
    pub(crate) fn set_now(&self, now: Instant) {
        let begin = self.begin.get().unwrap_or(now);
        self.begin.set(Some(begin));
        self.now_ns.set(now.saturating_duration_since(begin).as_nanos() as u64);
    }

    /// Counts a message of a connection that has a rate.
    pub(crate) fn count(&self, index: u32, len: usize) -> Result<(), RateExceeded> {
        let mut all = self.buckets.take();
        let counted = self.count_in(&mut all[index as usize], len);
        self.buckets.set(all);
        counted
    }

    fn count_in(&self, buckets: &mut Buckets, len: usize) -> Result<(), RateExceeded> {
        let now_ns = self.now_ns.get();
        let exceeded = |limit, rate| move |wait: Duration| RateExceeded { limit, rate, wait };
        if let Some(rate) = self.messages.get() {
            let taken = rate.take(&mut buckets.messages, now_ns, 1);
            taken.map_err(exceeded(Limit::MessageRate, rate))?;
        }
        if let Some(rate) = self.bytes.get() {
            let taken = rate.take(&mut buckets.bytes, now_ns, len as u64);
            taken.map_err(exceeded(Limit::MessageByteRate, rate))?;
        }
        Ok(())
    }
}
