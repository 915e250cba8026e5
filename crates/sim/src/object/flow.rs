//! One direction of a stream: the bytes that its reader can have, and those in flight.
//!
//! 1. `bytes` holds all bytes in order. The first `arrived` can be read; `segments` has the lengths
//!    and arrival times of the rest, and the end of the stream or a reset behind them.
//! 2. Arrival times never decrease, so nothing is reordered.
//! 3. `scheduled` is the time of the earliest pending delivery. A task at another time is stale.

use std::collections::VecDeque;

/// A piece in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Data(usize),
    Fin,
    Rst,
}

/// The contents of a delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) bytes: usize,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
}

/// Memory that an empty queue keeps.
const KEPT_BYTES: usize = 4096;

/// One direction of a stream.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    bytes: VecDeque<u8>,
    arrived: usize,
    /// Lengths of the writes that have arrived, for a Unix stream: its writer learns of room when
    /// one has been read whole.
    records: Option<VecDeque<usize>>,
    segments: VecDeque<(u64, Segment)>,
    scheduled_ns: Option<u64>,
    /// Since when a cut of the link has held it.
    held_since_ns: Option<u64>,
    capacity: usize,
    fin_arrived: bool,
    /// Bytes at the front that the reader has seen: they cannot arrive again.
    peeked: usize,
}

impl Flow {
    /// An empty direction that holds at most `capacity` bytes.
    pub(crate) fn new(capacity: usize, has_records: bool) -> Self {
        Self { capacity, records: has_records.then(VecDeque::new), ..Self::default() }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// The number of bytes that can be read.
    pub(crate) fn arrived(&self) -> usize {
        self.arrived
    }

    /// The number of bytes in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.bytes.len() - self.arrived
    }

    /// How many bytes a write can take.
    pub(crate) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.bytes.len())
    }

    /// Whether the writer is told that there is room: a third of all for TCP, as
    /// `sk_stream_is_writeable` says, and three quarters for Unix, as `unix_writable` says.
    pub(crate) fn is_writable(&self) -> bool {
        match self.records {
            None => self.room() > 0 && self.room() >= self.bytes.len() / 2,
            Some(_) => self.bytes.len() * 4 <= self.capacity,
        }
    }

    pub(crate) fn fin_arrived(&self) -> bool {
        self.fin_arrived
    }

    /// When the last segment arrives.
    pub(crate) fn last_ns(&self) -> u64 {
        self.segments.back().map_or(0, |(at_ns, _)| *at_ns)
    }

    /// Adds bytes of a write.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Makes a write of `bytes` arrive at a time.
    pub(crate) fn send(&mut self, at_ns: u64, segment: Segment) {
        let at_ns = at_ns.max(self.last_ns());
        match (self.segments.back_mut(), segment) {
            (Some((last_ns, Segment::Data(last))), Segment::Data(more)) if *last_ns == at_ns => {
                *last += more;
            }
            _ => self.segments.push_back((at_ns, segment)),
        }
    }

    /// Makes a write arrive at once.
    pub(crate) fn arrive(&mut self, bytes: usize) {
        self.arrived += bytes;
        if let Some(records) = &mut self.records {
            records.push_back(bytes);
        }
    }

    pub(crate) fn arrive_fin(&mut self) {
        self.fin_arrived = true;
    }

    /// The time for which a delivery must be scheduled now, if it is earlier than one that is.
    pub(crate) fn schedule(&mut self) -> Option<u64> {
        let (at_ns, _) = self.segments.front()?;
        if self.scheduled_ns.is_some_and(|scheduled_ns| scheduled_ns <= *at_ns) {
            return None;
        }
        self.scheduled_ns = Some(*at_ns);
        Some(*at_ns)
    }

    /// Whether a delivery that comes now is the scheduled one. It is no longer scheduled then.
    pub(crate) fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = self.scheduled_ns.is_some_and(|scheduled_ns| scheduled_ns <= now_ns);
        if is_due {
            self.scheduled_ns = None;
        }
        is_due
    }

    /// Moves what is in flight to a later time.
    pub(crate) fn postpone(&mut self, to_ns: u64) {
        for (at_ns, _) in &mut self.segments {
            *at_ns = (*at_ns).max(to_ns);
        }
    }

    /// Moves what is in flight to an earlier time.
    pub(crate) fn hurry(&mut self, to_ns: u64) {
        self.held_since_ns = None;
        for (at_ns, _) in &mut self.segments {
            *at_ns = (*at_ns).min(to_ns);
        }
    }

    /// The link is cut. Returns since when this has held the flow.
    pub(crate) fn hold(&mut self, now_ns: u64) -> u64 {
        *self.held_since_ns.get_or_insert(now_ns)
    }

    /// Whether anything is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        !self.segments.is_empty()
    }

    /// Takes everything whose time has come.
    pub(crate) fn deliver(&mut self, now_ns: u64) -> Delivered {
        let mut delivered = Delivered::default();
        while let Some((at_ns, segment)) = self.segments.front().copied() {
            if at_ns > now_ns {
                break;
            }
            self.segments.pop_front();
            match segment {
                Segment::Data(bytes) => delivered.bytes += bytes,
                Segment::Fin => delivered.fin = true,
                Segment::Rst => delivered.rst = true,
            }
        }
        self.arrived += delivered.bytes;
        self.fin_arrived |= delivered.fin;
        delivered
    }

    /// Drops what was just delivered, as if it had not come.
    pub(crate) fn reject(&mut self, delivered: Delivered) {
        self.fin_arrived &= !delivered.fin;
        self.arrived -= delivered.bytes;
        self.purge();
    }

    /// The last bytes that have arrived, but that the reader has not seen, arrive again later.
    pub(crate) fn withdraw(&mut self, bytes: usize, at_ns: u64) {
        let bytes = bytes.min(self.arrived - self.peeked.min(self.arrived));
        debug_assert!(!self.fin_arrived, "the end was seen");
        if bytes > 0 {
            self.arrived -= bytes;
            self.segments.push_front((at_ns, Segment::Data(bytes)));
            self.postpone(at_ns);
        }
    }

    /// How many bytes have arrived that the reader has not seen.
    pub(crate) fn withdrawable(&self) -> usize {
        if self.fin_arrived { 0 } else { self.arrived.saturating_sub(self.peeked) }
    }

    /// Copies bytes without taking them. They count as seen.
    pub(crate) fn peek(&mut self, out: &mut [u8]) -> usize {
        let count = out.len().min(self.arrived);
        self.peeked = self.peeked.max(count);
        let (front, back) = self.bytes.as_slices();
        let first = count.min(front.len());
        out[..first].copy_from_slice(&front[..first]);
        out[first..count].copy_from_slice(&back[..count - first]);
        count
    }

    /// Takes bytes. The second is true if the writer of a Unix stream may learn of room.
    pub(crate) fn take(&mut self, out: &mut [u8]) -> (usize, bool) {
        let count = self.peek(out);
        self.bytes.drain(..count);
        self.arrived -= count;
        self.peeked = 0;
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEPT_BYTES);
        }
        (count, self.take_records(count))
    }

    /// Whether a whole write was read, or there is no record of them.
    fn take_records(&mut self, mut count: usize) -> bool {
        let Some(records) = &mut self.records else { return count > 0 };
        let mut is_whole = false;
        while let Some(first) = records.front_mut() {
            if *first > count {
                *first -= count;
                break;
            }
            count -= *first;
            records.pop_front();
            is_whole = true;
        }
        is_whole
    }

    /// Drops all that is in flight. What has arrived stays.
    pub(crate) fn purge(&mut self) {
        self.bytes.truncate(self.arrived);
        self.segments.clear();
    }

    /// Drops the last bytes in flight, so that `keep` of them stay, and all behind them.
    pub(crate) fn cut(&mut self, keep: usize) {
        let mut left = keep;
        self.segments.retain_mut(|(_, segment)| match segment {
            Segment::Data(bytes) => {
                *bytes = left.min(*bytes);
                left -= *bytes;
                *bytes > 0
            }
            Segment::Fin | Segment::Rst => false,
        });
        self.bytes.truncate(self.arrived + keep);
    }

    /// Drops what has arrived: its reader is gone.
    pub(crate) fn discard(&mut self) {
        self.bytes.drain(..self.arrived);
        self.arrived = 0;
        self.peeked = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(text: &str) -> Flow {
        let mut flow = Flow::new(100, false);
        flow.push(text.as_bytes());
        flow
    }

    fn read(flow: &mut Flow, max: usize) -> String {
        let mut out = vec![0; max];
        let (count, _) = flow.take(&mut out);
        String::from_utf8(out[..count].to_vec()).expect("text")
    }

    #[test]
    fn bytes_can_be_read_once_they_have_arrived() {
        let mut flow = flow("abcdef");
        flow.send(10, Segment::Data(2));
        flow.send(5, Segment::Data(4));
        assert_eq!(flow.last_ns(), 10);
        flow.send(20, Segment::Fin);
        assert_eq!(flow.schedule(), Some(10));
        assert_eq!(flow.schedule(), None);
        assert!(!flow.is_due(9) && flow.is_due(10) && !flow.is_due(10));
        assert_eq!(flow.deliver(10), Delivered { bytes: 6, ..Delivered::default() });
        assert_eq!(read(&mut flow, 4), "abcd");
        assert_eq!(flow.schedule(), Some(20));
        assert!(flow.deliver(20).fin && flow.fin_arrived());
        assert_eq!(read(&mut flow, 9), "ef");
    }

    #[test]
    fn withdrawn_bytes_arrive_again_before_all_others() {
        let mut flow = flow("abcdefg");
        flow.arrive(5);
        flow.send(3, Segment::Data(2));
        assert_eq!(read(&mut flow, 1), "a");
        flow.withdraw(2, 9);
        assert_eq!((flow.arrived(), flow.in_flight(), flow.last_ns()), (2, 4, 9));
        assert_eq!(read(&mut flow, 9), "bc");
        assert_eq!(flow.deliver(8), Delivered::default());
        assert_eq!(flow.deliver(9).bytes, 4);
        assert_eq!(read(&mut flow, 9), "defg");
    }

    #[test]
    fn what_is_rejected_has_not_come() {
        let mut flow = flow("abcdefg");
        flow.arrive(2);
        flow.send(3, Segment::Data(2));
        flow.send(4, Segment::Fin);
        flow.send(5, Segment::Data(3));
        let delivered = flow.deliver(4);
        flow.reject(delivered);
        assert_eq!((flow.arrived(), flow.in_flight(), flow.fin_arrived()), (2, 0, false));
        assert_eq!(read(&mut flow, 9), "ab");
    }

    #[test]
    fn bytes_that_were_seen_are_not_withdrawn() {
        let mut flow = flow("abcdef");
        flow.arrive(6);
        assert_eq!(flow.peek(&mut [0; 4]), 4);
        assert_eq!(flow.withdrawable(), 2);
        flow.withdraw(6, 9);
        assert_eq!(flow.arrived(), 4);
    }

    #[test]
    fn a_cut_keeps_the_first_bytes_in_flight() {
        let mut flow = flow("abcdef");
        flow.arrive(1);
        flow.send(3, Segment::Data(2));
        flow.send(4, Segment::Data(3));
        flow.send(5, Segment::Fin);
        flow.cut(3);
        assert_eq!((flow.in_flight(), flow.last_ns()), (3, 4));
        assert_eq!(flow.deliver(9), Delivered { bytes: 3, ..Delivered::default() });
        assert_eq!(read(&mut flow, 9), "abcd");
    }

    #[test]
    fn a_unix_writer_learns_of_room_when_a_whole_write_was_read() {
        let mut flow = Flow::new(100, true);
        flow.push(b"abcdef");
        flow.arrive(4);
        flow.arrive(2);
        assert_eq!(flow.take(&mut [0; 3]), (3, false));
        assert_eq!(flow.take(&mut [0; 2]), (2, true));
        assert_eq!(flow.take(&mut [0; 2]), (1, true));
    }

    #[test]
    fn room_is_reported_later_than_it_exists() {
        let mut flow = Flow::new(9, false);
        flow.push(&[0; 7]);
        assert_eq!((flow.room(), flow.is_writable()), (2, false));
        flow.arrive(7);
        flow.take(&mut [0; 1]);
        assert!(flow.is_writable());
    }
}
