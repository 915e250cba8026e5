//! The results of one worker or of all workers.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::{
    fault::{Fault, FaultKind},
    schedule::{Nanos, Unsent},
};

/// Upper bound of distinguishable latencies: an hour.
const LATENCY_MAX: Nanos = 3_600_000_000_000;

/// Significant decimal digits of a latency.
const DIGITS: u8 = 3;

/// Number of faults that are described in words.
const TEXTS_MAX: usize = 8;

/// Counts and latencies.
#[derive(Debug)]
pub(crate) struct LoadResults {
    /// Connections opened, handshake included.
    pub(crate) opened: u64,
    /// Connections opened again, because an HTTP server had ended them between two responses.
    pub(crate) reconnects: u64,
    /// Messages sent in the measured time and answered correctly.
    pub(crate) messages: u64,
    /// Messages answered correctly, but sent during the warm-up.
    pub(crate) warm_up: u64,
    /// Messages that were due in the measured time and not sent.
    pub(crate) unsent: u64,
    /// Messages sent but not answered, or answered wrongly.
    pub(crate) unanswered: u64,
    /// Messages that publishers have sent in the measured time.
    pub(crate) published: u64,
    /// Deliveries to receivers that did not come, came again, or came after a later message.
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    /// Time of the answer to the last measured message.
    pub(crate) last_answer: Nanos,
    /// End of the measured time; 0 unless the clock or a signal ended it.
    pub(crate) ended: Nanos,
    /// Latencies of `messages` and `unsent`, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// Bytes of the bodies of HTTP responses.
    pub(crate) body_bytes: u64,
    /// Numbers of HTTP responses with a status other than 2xx, of which there are at most 800.
    other_statuses: BTreeMap<u16, u64>,
    faults: [u64; FaultKind::ALL.len()],
    texts: Vec<String>,
    cpu: Option<[CpuSample; 2]>,
}

/// CPU time that the process has used up to a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuSample {
    pub(crate) at: Nanos,
    pub(crate) cpu: Nanos,
}

impl LoadResults {
    pub(crate) fn new() -> Self {
        Self {
            opened: 0,
            reconnects: 0,
            messages: 0,
            warm_up: 0,
            unsent: 0,
            unanswered: 0,
            published: 0,
            lost: 0,
            duplicated: 0,
            reordered: 0,
            last_answer: 0,
            ended: 0,
            latency: Histogram::new_with_bounds(1, LATENCY_MAX, DIGITS)
                .expect("the bounds make sense"),
            body_bytes: 0,
            other_statuses: BTreeMap::new(),
            faults: [0; FaultKind::ALL.len()],
            texts: Vec::new(),
            cpu: None,
        }
    }

    /// Counts a message that was answered correctly.
    #[inline]
    pub(crate) fn answered(&mut self, latency: Option<Nanos>, now: Nanos) {
        match latency {
            Some(latency) => {
                self.messages += 1;
                self.last_answer = now;
                self.latency.saturating_record(latency);
            }
            None => self.warm_up += 1,
        }
    }

    /// Counts an HTTP response with a status other than 2xx.
    #[cold]
    pub(crate) fn other_status(&mut self, status: u16, is_measured: bool, now: Nanos) {
        *self.other_statuses.entry(status).or_default() += 1;
        if is_measured {
            self.last_answer = now;
        }
    }

    /// The statuses other than 2xx that occurred, with their counts.
    pub(crate) fn other_statuses(&self) -> impl Iterator<Item = (u16, u64)> {
        self.other_statuses.iter().map(|(&status, &count)| (status, count))
    }

    /// Counts messages that were not sent in time.
    pub(crate) fn unsent(&mut self, unsent: Unsent) {
        self.unsent += unsent.count;
        for (wait, count) in unsent.waits() {
            self.latency.saturating_record_n(wait, count);
        }
    }

    /// Counts a failed connection and its unanswered messages.
    pub(crate) fn fault(&mut self, connection: u64, fault: Fault, unanswered: u64) {
        self.unanswered += unanswered;
        self.faults[fault.kind as usize] += 1;
        if self.texts.len() < TEXTS_MAX {
            self.texts.push(format!("connection {}: {}", connection + 1, fault.text));
        }
    }

    /// Notes the CPU time used so far, in the measured time.
    pub(crate) fn sample_cpu(&mut self, sample: CpuSample) {
        let [first, _] = self.cpu.unwrap_or([sample; 2]);
        self.cpu = Some([first, sample]);
    }

    /// Returns this process's CPU use in the measured time: 1 is one full CPU. `None` if the time
    /// was too short to tell.
    pub(crate) fn cpu_share(&self) -> Option<f64> {
        let [first, last] = self.cpu?;
        (last.at > first.at).then(|| (last.cpu - first.cpu) as f64 / (last.at - first.at) as f64)
    }

    /// Number of connections that had a fault.
    pub(crate) fn failed(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// The kinds of faults that occurred, with their counts.
    pub(crate) fn faults(&self) -> impl Iterator<Item = (FaultKind, u64)> {
        FaultKind::ALL
            .into_iter()
            .map(|kind| (kind, self.faults[kind as usize]))
            .filter(|(_, count)| *count > 0)
    }

    /// Descriptions of the first faults.
    pub(crate) fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Adds the results of another worker.
    pub(crate) fn add(&mut self, other: &Self) {
        self.opened += other.opened;
        self.reconnects += other.reconnects;
        self.messages += other.messages;
        self.warm_up += other.warm_up;
        self.unsent += other.unsent;
        self.unanswered += other.unanswered;
        self.published += other.published;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.last_answer = self.last_answer.max(other.last_answer);
        self.ended = self.ended.max(other.ended);
        self.body_bytes += other.body_bytes;
        for (status, count) in other.other_statuses() {
            *self.other_statuses.entry(status).or_default() += count;
        }
        self.latency.add(&other.latency).expect("all have the same bounds");
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, count)| *sum += count);
        let room = TEXTS_MAX - self.texts.len();
        self.texts.extend(other.texts.iter().take(room).cloned());
        self.cpu = self.cpu.or(other.cpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_have_measured_is_added_up() {
        let mut one = LoadResults::new();
        one.opened = 2;
        one.answered(Some(1_000), 5_000);
        one.answered(None, 6_000);
        one.sample_cpu(CpuSample { at: 100, cpu: 10 });
        one.sample_cpu(CpuSample { at: 300, cpu: 160 });
        let mut other = LoadResults::new();
        other.opened = 3;
        (one.reconnects, other.reconnects) = (5, 6);
        (one.published, other.published, one.lost, other.lost) = (1, 2, 3, 4);
        (one.duplicated, other.duplicated, one.reordered, other.reordered) = (5, 6, 7, 8);
        other.answered(Some(3_000), 7_000);
        other.unsent(Unsent { count: 2, longest: 9_000, shortest: 8_000 });
        other.fault(4, Fault::new(FaultKind::Lost, "late"), 6);
        one.add(&other);
        assert_eq!(
            (one.opened, one.messages, one.warm_up, one.unsent, one.unanswered),
            (5, 2, 1, 2, 6)
        );
        assert_eq!((one.reconnects, one.published, one.lost), (11, 3, 7));
        assert_eq!((one.duplicated, one.reordered), (11, 15));
        assert_eq!((one.last_answer, one.failed(), one.latency.len()), (7_000, 1, 4));
        assert_eq!(one.faults().collect::<Vec<_>>(), [(FaultKind::Lost, 1)]);
        assert_eq!(one.texts(), ["connection 5: late"]);
        assert_eq!(one.cpu_share(), Some(0.75));
        assert_eq!(other.cpu_share(), None);
    }

    #[test]
    fn only_the_first_faults_are_described_and_all_are_counted() {
        let mut results = LoadResults::new();
        for connection in 0..100 {
            results.fault(connection, Fault::new(FaultKind::Connect, "refused"), 0);
        }
        let mut total = LoadResults::new();
        total.add(&results);
        total.add(&results);
        assert_eq!((total.failed(), total.texts().len()), (200, TEXTS_MAX));
    }

    #[test]
    fn a_latency_beyond_all_bounds_is_the_longest() {
        let mut results = LoadResults::new();
        results.answered(Some(Nanos::MAX), 1);
        assert!(results.latency.max() >= LATENCY_MAX);
    }
}
