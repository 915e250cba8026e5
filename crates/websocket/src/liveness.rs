//! The limits of time of one connection, by the transport's timer.

use std::time::Duration;

use crate::{TimeLimit, config::Settings};

/// The moments that the limits count from.
pub(crate) struct Liveness {
    /// `None` without a timer: all limits are off.
    times: Option<Box<Times>>,
}

struct Times {
    opened: Duration,
    /// Something was received.
    read: Duration,
    /// A message was received.
    message: Duration,
    /// A ping was sent, and nothing received since.
    ping: Option<Duration>,
    /// The closing handshake began.
    closing: Option<Duration>,
}

/// What is to be done at a moment.
pub(crate) enum Due {
    Ping,
    Limit(TimeLimit),
}

impl Liveness {
    pub(crate) fn new(_: &Settings, now: Option<Duration>) -> Self {
        let times = now.map(|now| {
            Box::new(Times { opened: now, read: now, message: now, ping: None, closing: None })
        });
        Self { times }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.times.is_some()
    }

    pub(crate) fn note_read(&mut self, now: Option<Duration>) {
        if let (Some(times), Some(now)) = (&mut self.times, now) {
            times.read = now;
            times.ping = None;
        }
    }

    /// A message was in what was read last.
    pub(crate) fn note_message(&mut self) {
        if let Some(times) = &mut self.times {
            times.message = times.read;
        }
    }

    pub(crate) fn note_ping(&mut self, now: Option<Duration>) {
        if let (Some(times), Some(now)) = (&mut self.times, now) {
            times.ping = Some(now);
        }
    }

    pub(crate) fn note_closing(&mut self, now: Option<Duration>) {
        if let (Some(times), Some(now)) = (&mut self.times, now) {
            times.closing.get_or_insert(now);
        }
    }

    /// The limit that was over when the last bytes were read, for a peer that always sends: reading
    /// never waits for it, so nothing waits for the timer.
    #[inline]
    pub(crate) fn passed(&self, settings: &Settings) -> Option<TimeLimit> {
        let times = self.times.as_ref()?;
        let (since, limit, kind) = match times.closing {
            Some(closing) => (closing, settings.close_timeout, TimeLimit::Close),
            None => (times.opened, settings.lifetime_max?, TimeLimit::Lifetime),
        };
        (times.read >= since.saturating_add(limit)).then_some(kind)
    }

    /// The next moment at which something is due.
    pub(crate) fn next(&self, settings: &Settings) -> Option<(Duration, Due)> {
        let times = self.times.as_ref()?;
        if let Some(closing) = times.closing {
            let deadline = closing.saturating_add(settings.close_timeout);
            return Some((deadline, Due::Limit(TimeLimit::Close)));
        }
        let ping = settings.ping_interval.map(|interval| match times.ping {
            Some(ping) => {
                (ping.saturating_add(settings.answer_timeout), Due::Limit(TimeLimit::Answer))
            }
            None => (times.read.saturating_add(interval), Due::Ping),
        });
        let limit = |since: Duration, limit: Option<Duration>, kind| {
            limit.map(|limit| (since.saturating_add(limit), Due::Limit(kind)))
        };
        let idle = limit(times.message, settings.idle_timeout, TimeLimit::Idle);
        let lifetime = limit(times.opened, settings.lifetime_max, TimeLimit::Lifetime);
        [ping, idle, lifetime].into_iter().flatten().min_by_key(|(deadline, _)| *deadline)
    }
}
