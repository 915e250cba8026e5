//! The times at which messages are sent: as fast as answers arrive, or on a fixed schedule.
//!
//! **Coordinated omission.** Suppose a client sends the next message only after the last answer. If
//! the server stalls for a second, this client measures the stall once, although all messages of
//! that second would have had to wait. At a fixed rate every message therefore has a moment at
//! which it is due, independent of the server. If a message has to wait for room (`--depth`), that
//! wait is part of its latency. Due messages that could not be sent before the end count with the
//! time that they have waited by then.

use std::ops::Range;

/// Nanoseconds on the clock that all workers share.
pub(crate) type Nanos = u64;

/// Moments at a fixed rate, assigned to the connections in turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FixedRate {
    /// The moment of the first message.
    pub(crate) origin: Nanos,
    /// Nanoseconds between consecutive moments, over all connections.
    pub(crate) interval: f64,
    /// Number of connections that share the rate.
    pub(crate) connections: u64,
}

impl FixedRate {
    /// Returns when a connection's message of this number is due.
    pub(crate) fn moment(&self, connection: u64, number: u64) -> Nanos {
        let index = number as f64 * self.connections as f64 + connection as f64;
        self.origin.saturating_add((index * self.interval) as Nanos)
    }

    /// Returns the number of messages of a connection that are due before this moment.
    pub(crate) fn due_before(&self, connection: u64, moment: Nanos) -> u64 {
        let Some(span) = moment.checked_sub(self.origin) else { return 0 };
        let guess = (span as f64 / self.interval - connection as f64) / self.connections as f64;
        // The division may have a rounding error; `moment` decides.
        let mut due = (guess.max(0.0) as u64).saturating_sub(1);
        while self.moment(connection, due) < moment {
            due += 1;
        }
        due
    }
}

/// Determines when a connection sends its next message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SendRate {
    /// As soon as there is room.
    FullSpeed,
    /// When it is due, or as soon after that as there is room.
    Fixed(FixedRate),
}

/// The plan that all connections follow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadSchedule {
    pub(crate) rate: SendRate,
    /// Messages due in this time are measured. Earlier ones are warm-up, and none are sent after
    /// it.
    pub(crate) window: Range<Nanos>,
    /// Maximum number of unanswered messages of a connection.
    pub(crate) depth: u64,
}

impl LoadSchedule {
    /// Before the start: no messages are sent.
    pub(crate) const WAITING: Self =
        Self { rate: SendRate::FullSpeed, window: Nanos::MAX..Nanos::MAX, depth: 0 };
}

/// The sent and answered messages of one connection, by number.
#[derive(Debug)]
pub(crate) struct MessageSequence {
    connection: u64,
    sent: u64,
    answered: u64,
    /// Number of measured messages that may still be sent.
    left: u64,
    /// Number of messages after which the connection ends, to be opened again.
    sent_max: u64,
    is_stopped: bool,
    /// When each unanswered message was due: message `n` is at index `n % depth`.
    moments: Box<[Nanos]>,
}

impl MessageSequence {
    /// Creates the sequence of the connection with this number, which sends at most `quota`
    /// measured messages.
    pub(crate) fn new(connection: u64, depth: u64, quota: u64) -> Self {
        Self {
            connection,
            sent: 0,
            answered: 0,
            left: quota,
            sent_max: u64::MAX,
            is_stopped: false,
            moments: vec![0; depth as usize].into(),
        }
    }

    /// Sets how many messages may be sent from now on, until the next call.
    pub(crate) fn allow(&mut self, messages: u64) {
        self.sent_max = self.sent.saturating_add(messages);
    }

    /// Returns whether none may be sent before the next call of [`allow`](Self::allow).
    pub(crate) const fn is_exhausted(&self) -> bool {
        self.sent >= self.sent_max
    }

    /// Returns the number of the connection.
    pub(crate) const fn connection(&self) -> u64 {
        self.connection
    }

    /// Returns the maximum number of unanswered messages.
    pub(crate) const fn depth(&self) -> u64 {
        self.moments.len() as u64
    }

    /// Returns the number of messages sent, which is the number of the next one.
    pub(crate) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the number of messages answered, which is the number of the next expected answer.
    pub(crate) const fn answered(&self) -> u64 {
        self.answered
    }

    /// Returns the number of messages sent but not answered.
    pub(crate) const fn outstanding(&self) -> u64 {
        self.sent - self.answered
    }

    /// Returns the number of a message to send now, if there is one, and counts it as sent.
    #[inline]
    pub(crate) fn next(&mut self, schedule: &LoadSchedule, now: Nanos) -> Option<u64> {
        let moment = self.due_moment(schedule, now)?;
        if schedule.window.contains(&moment) {
            self.left -= 1;
        }
        let number = self.sent;
        self.moments[(number % self.depth()) as usize] = moment;
        self.sent += 1;
        Some(number)
    }

    /// Returns whether there is a message to send now.
    pub(crate) fn is_due(&self, schedule: &LoadSchedule, now: Nanos) -> bool {
        self.due_moment(schedule, now).is_some()
    }

    /// Returns when the next message was due, if it is to be sent now.
    #[inline]
    fn due_moment(&self, schedule: &LoadSchedule, now: Nanos) -> Option<Nanos> {
        if self.outstanding() >= schedule.depth || self.is_exhausted() {
            return None;
        }
        let moment = self.moment(schedule, now);
        let is_due = moment <= now && moment < schedule.window.end;
        (is_due && !self.has_sent_all(schedule, moment)).then_some(moment)
    }

    /// Notes the answer to the oldest unanswered message. Returns its latency if it is measured.
    ///
    /// Call this only while a message is unanswered.
    #[inline]
    pub(crate) fn answer(&mut self, schedule: &LoadSchedule, now: Nanos) -> Option<Nanos> {
        debug_assert!(self.outstanding() > 0, "nothing was asked");
        let moment = self.moments[(self.answered % self.depth()) as usize];
        self.answered += 1;
        (moment >= schedule.window.start).then(|| now.saturating_sub(moment))
    }

    /// Returns whether nothing more will be sent. A connection stays open until the end of the
    /// window, even if idle.
    pub(crate) fn is_over(&self, schedule: &LoadSchedule, now: Nanos) -> bool {
        now >= schedule.window.end || self.has_sent_all(schedule, self.moment(schedule, now))
    }

    /// Stops sending, whatever the schedule says. Returns the messages that were due in the window
    /// and are still waiting, if there are any.
    pub(crate) fn stop(&mut self, schedule: &LoadSchedule) -> Option<Unsent> {
        self.is_stopped = true;
        let SendRate::Fixed(rate) = &schedule.rate else { return None };
        let end = schedule.window.end;
        let first = self.sent.max(rate.due_before(self.connection, schedule.window.start));
        let count = rate.due_before(self.connection, end).saturating_sub(first).min(self.left);
        let wait = |number| end - rate.moment(self.connection, number);
        (count > 0).then(|| Unsent {
            count,
            longest: wait(first),
            shortest: wait(first + count - 1),
        })
    }

    /// Returns when the next message is due, if a fixed rate says so and there is room for it.
    pub(crate) fn next_moment(&self, schedule: &LoadSchedule) -> Option<Nanos> {
        let SendRate::Fixed(_) = schedule.rate else { return None };
        let moment = self.moment(schedule, 0);
        let is_to_come = moment < schedule.window.end && !self.has_sent_all(schedule, moment);
        (is_to_come && self.outstanding() < schedule.depth).then_some(moment)
    }

    /// Returns when the next message is due.
    fn moment(&self, schedule: &LoadSchedule, now: Nanos) -> Nanos {
        match &schedule.rate {
            SendRate::FullSpeed => now,
            SendRate::Fixed(rate) => rate.moment(self.connection, self.sent),
        }
    }

    /// Returns whether all its messages are sent, apart from the time: the next one would be too
    /// many.
    fn has_sent_all(&self, schedule: &LoadSchedule, moment: Nanos) -> bool {
        self.is_stopped || (self.left == 0 && moment >= schedule.window.start)
    }
}

/// Messages that were due but not sent, evenly spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unsent {
    pub(crate) count: u64,
    pub(crate) longest: Nanos,
    pub(crate) shortest: Nanos,
}

impl Unsent {
    /// Maximum number of values recorded for one connection. Beyond that, several messages share
    /// one value.
    const STEPS_MAX: u64 = 1000;

    /// The waiting times, each with the number of messages that it stands for.
    pub(crate) fn waits(self) -> impl Iterator<Item = (Nanos, u64)> {
        let steps = self.count.min(Self::STEPS_MAX);
        let span = (self.longest - self.shortest) as f64;
        (0..steps).map(move |step| {
            let (from, to) = (self.count * step / steps, self.count * (step + 1) / steps);
            let middle = (from + to - 1) as f64 / 2.0;
            let share = if self.count > 1 { middle / (self.count - 1) as f64 } else { 0.0 };
            (self.longest - (span * share) as Nanos, to - from)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three connections, with a message every 10 ns, starting at 100.
    const RATE: FixedRate = FixedRate { origin: 100, interval: 10.0, connections: 3 };

    fn fixed(window: Range<Nanos>, depth: u64) -> LoadSchedule {
        LoadSchedule { rate: SendRate::Fixed(RATE), window, depth }
    }

    fn full(window: Range<Nanos>, depth: u64) -> LoadSchedule {
        LoadSchedule { rate: SendRate::FullSpeed, window, depth }
    }

    #[test]
    fn moments_are_dealt_in_turns() {
        let moments: Vec<Nanos> = (0..2)
            .flat_map(|number| (0..3).map(move |connection| RATE.moment(connection, number)))
            .collect();
        assert_eq!(moments, [100, 110, 120, 130, 140, 150]);
    }

    #[test]
    fn what_is_due_agrees_with_the_moments_whatever_the_rate() {
        for interval in [0.3, 1.0, 10.0, 333.333_333, 1e9 / 7.0, 1e10] {
            let rate = FixedRate { interval, ..RATE };
            for connection in 0..3 {
                for number in [0, 1, 2, 10, 999_999, 123_456_789] {
                    let moment = rate.moment(connection, number);
                    assert!(rate.due_before(connection, moment) <= number, "{interval} {number}");
                    assert!(
                        rate.due_before(connection, moment + 1) > number,
                        "{interval} {number}"
                    );
                }
                assert_eq!(rate.due_before(connection, 0), 0);
                assert_eq!(rate.due_before(connection, 100), 0);
            }
        }
    }

    #[test]
    fn at_full_pace_there_are_as_many_outstanding_as_may_be() {
        let schedule = full(1000..2000, 2);
        let mut sequence = MessageSequence::new(0, 2, u64::MAX);
        assert_eq!(
            [1000, 1000, 1000].map(|now| sequence.next(&schedule, now)),
            [Some(0), Some(1), None]
        );
        assert_eq!(sequence.answer(&schedule, 1500), Some(500));
        assert_eq!(sequence.next(&schedule, 1500), Some(2));
        assert_eq!((sequence.outstanding(), sequence.answered(), sequence.sent()), (2, 1, 3));
        assert_eq!(
            sequence.answer(&schedule, 2500),
            Some(1500),
            "what was sent in time counts, however late the answer"
        );
        assert_eq!(sequence.answer(&schedule, 2500), Some(1000));
        assert!(sequence.is_over(&schedule, 2500) && !sequence.is_over(&schedule, 1999));
        assert_eq!(sequence.next(&schedule, 2500), None);
        assert_eq!(sequence.stop(&schedule), None, "nobody has asked for more");
    }

    #[test]
    fn warming_up_is_neither_measured_nor_counted() {
        let schedule = full(1000..Nanos::MAX, 1);
        let mut sequence = MessageSequence::new(0, 1, 1);
        assert_eq!(sequence.next(&schedule, 10), Some(0));
        assert_eq!(sequence.answer(&schedule, 1200), None);
        assert!(!sequence.is_over(&schedule, 1200), "the one that is measured is yet to come");
        assert_eq!(sequence.next(&schedule, 1200), Some(1));
        assert_eq!(sequence.answer(&schedule, 1300), Some(100));
        assert!(sequence.is_over(&schedule, 1300));
        assert_eq!(sequence.next(&schedule, 1300), None);
    }

    #[test]
    fn a_connection_without_a_part_in_the_messages_sends_none() {
        let sequence = MessageSequence::new(0, 1, 0);
        assert!(sequence.is_over(&full(1000..Nanos::MAX, 1), 1000));
        assert!(sequence.is_over(&fixed(100..Nanos::MAX, 1), 100));
        assert!(!sequence.is_over(&full(1000..Nanos::MAX, 1), 999), "but it warms up");
    }

    #[test]
    fn no_more_is_sent_on_a_connection_than_is_allowed() {
        let schedule = full(1000..2000, 2);
        let mut sequence = MessageSequence::new(0, 2, 5);
        sequence.allow(1);
        assert_eq!([1000, 1000].map(|now| sequence.next(&schedule, now)), [Some(0), None]);
        assert!(sequence.is_exhausted() && !sequence.is_over(&schedule, 1000));
        sequence.answer(&schedule, 1500);
        assert!(!sequence.is_due(&schedule, 1500));
        sequence.allow(u64::MAX);
        assert_eq!([1500, 1500].map(|now| sequence.next(&schedule, now)), [Some(1), Some(2)]);
    }

    #[test]
    fn before_the_start_nothing_is_sent_and_nothing_is_over() {
        let mut sequence = MessageSequence::new(0, 1, 5);
        assert_eq!(sequence.next(&LoadSchedule::WAITING, 1), None);
        assert!(!sequence.is_over(&LoadSchedule::WAITING, 1));
    }

    #[test]
    fn at_a_fixed_rate_latency_counts_from_the_intended_moment() {
        let schedule = fixed(100..1000, 1);
        let mut sequence = MessageSequence::new(1, 1, u64::MAX);
        assert_eq!(sequence.next(&schedule, 109), None, "its moment is 110");
        assert_eq!(sequence.next(&schedule, 115), Some(0));
        // The server stalls until 200. The messages of 140 and 170 have to wait, and so count from
        // the moments when they were due.
        assert_eq!(sequence.next(&schedule, 170), None, "there is no room");
        assert_eq!(sequence.answer(&schedule, 200), Some(90));
        assert_eq!(sequence.next(&schedule, 200), Some(1));
        assert_eq!(sequence.answer(&schedule, 205), Some(65));
        assert_eq!(sequence.next(&schedule, 205), Some(2));
        assert_eq!(sequence.answer(&schedule, 207), Some(37));
        assert_eq!(sequence.next(&schedule, 207), Some(3), "it was due at 200");
        assert_eq!(sequence.answer(&schedule, 208), Some(8));
        assert_eq!(
            sequence.next(&schedule, 208),
            None,
            "the backlog is done: the next one is due at 230"
        );
        assert_eq!(sequence.next(&schedule, 990), Some(4));
        assert!(
            !sequence.is_over(&schedule, 999),
            "the next one would come too late, but the window is open"
        );
        assert!(sequence.is_over(&schedule, 1000));
    }

    #[test]
    fn what_could_not_be_sent_counts_with_what_it_has_waited() {
        let schedule = fixed(100..200, 1);
        let mut sequence = MessageSequence::new(0, 1, u64::MAX);
        assert_eq!(sequence.next(&schedule, 100), Some(0));
        // The messages of 130, 160 and 190 were not sent.
        let unsent = sequence.stop(&schedule).expect("the server did not answer");
        assert_eq!(unsent, Unsent { count: 3, longest: 70, shortest: 10 });
        assert_eq!(unsent.waits().collect::<Vec<_>>(), [(70, 1), (40, 1), (10, 1)]);
        assert_eq!(sequence.answer(&schedule, 300), Some(200));
        assert_eq!(
            sequence.next(&schedule, 300),
            None,
            "they were counted, so they must not be sent"
        );
        assert!(sequence.is_over(&schedule, 300));
        assert_eq!(
            MessageSequence::new(0, 1, 2).stop(&schedule).map(|unsent| unsent.count),
            Some(2),
            "no more were asked for"
        );
        let measured = MessageSequence::new(0, 1, u64::MAX).stop(&fixed(150..200, 1));
        assert_eq!(measured.map(|unsent| unsent.count), Some(2), "100 and 130 were to warm up");
    }

    #[test]
    fn waits_of_many_unsent_messages_share_values() {
        let unsent = Unsent { count: 25_000_007, longest: 9_000_000_000, shortest: 0 };
        let waits: Vec<(Nanos, u64)> = unsent.waits().collect();
        assert_eq!(waits.len() as u64, Unsent::STEPS_MAX);
        assert_eq!(waits.iter().map(|(_, count)| count).sum::<u64>(), unsent.count);
        assert!(waits.is_sorted_by(|one, next| one.0 > next.0));
        let mean = waits.iter().map(|(wait, count)| *wait as f64 * *count as f64).sum::<f64>()
            / unsent.count as f64;
        assert!((mean / 4.5e9 - 1.0).abs() < 1e-6, "{mean}");
        let one = Unsent { count: 1, longest: 7, shortest: 7 };
        assert_eq!(one.waits().collect::<Vec<_>>(), [(7, 1)]);
    }
}
