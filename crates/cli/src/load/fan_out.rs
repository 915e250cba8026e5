//! Fan-out (`--publishers`): the first connections publish, and the others receive.
//!
//! 1. Each message begins with a mark: its run, its publisher and its number. The schedule says
//!    when that number was due, and the pool has the bytes after the mark.
//! 2. A room is the path of a target. Targets with the same path are one room, on several servers.
//! 3. A publisher that ends notes how many messages it has published. A receiver ends when it has
//!    them all, or `--timeout` after the last publisher has ended. The missing ones are lost.
//! 4. Only messages that were due in the measured time count.

use std::{
    collections::{HashMap, VecDeque},
    fmt::Write as _,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use windlass_ws::MessageRef;

use super::{
    fault::{Answer, Fault, FaultKind},
    payload::PayloadPool,
    plan::{LoadPlan, nanos},
    results::LoadResults,
    run_state::RunClock,
    schedule::{FixedRate, LoadSchedule, MessageSequence, Nanos, SendRate},
    target::{Protocol, Target},
};

/// Length of a mark in bytes, which is the minimum length of a message.
pub(crate) const MARK_LEN: usize = 32;

/// Buffered output of a publisher above which it sends nothing: the high watermark of its stream,
/// which says when there is room again.
pub(crate) const BUFFERED_MAX: usize = 256 << 10;

/// Maximum number of gaps that a receiver remembers of each publisher. Messages in older gaps count
/// as lost, and as duplicated if they come after all.
const GAPS_MAX: usize = 1024;

/// Maximum number of connections times publishers, so that [`Deliveries`] take at most 600 MB.
pub(crate) const DELIVERIES_MAX: u64 = 10_000_000;

/// State that all connections of a run share.
#[derive(Debug)]
pub(crate) struct FanOut {
    clock: RunClock,
    /// It tells the messages of this run from those of others.
    run: u32,
    /// By target: its room.
    rooms: Vec<usize>,
    schedule: OnceLock<(FixedRate, Nanos)>,
    /// By publisher: one more than the number of its messages, when it publishes no more.
    published: Vec<AtomicU64>,
    publishing: AtomicUsize,
    /// When the last publisher has ended.
    ended: AtomicU64,
    /// Time for which missing messages are awaited after that.
    limit: Nanos,
}

/// What a connection does with messages.
#[derive(Debug)]
pub(crate) enum Role {
    /// Each message that it sends comes back.
    Echo,
    Publisher(Arc<FanOut>),
    Receiver(Box<Receiver>),
}

/// The received messages of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    shared: Arc<FanOut>,
    room: usize,
    /// By publisher.
    deliveries: Vec<Deliveries>,
}

/// The received messages of one publisher.
#[derive(Debug, Default)]
struct Deliveries {
    /// The number after the highest one received, if there is one.
    next: Option<u64>,
    /// Lower numbers that have not come, the lowest first.
    gaps: VecDeque<Range<u64>>,
    /// Messages in forgotten gaps.
    lost: u64,
}

/// Room for a message with its mark.
#[derive(Debug, Default)]
pub(crate) struct MarkedMessage {
    text: String,
    bytes: Vec<u8>,
}

/// How a message arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    InOrder,
    /// After one with a higher number.
    Late,
    Again,
}

/// Returns the room of each target: the first target with the same path.
pub(crate) fn rooms(targets: &[Target]) -> Vec<usize> {
    let mut first = HashMap::new();
    let room = |(index, target): (usize, &Target)| {
        let path = match &target.protocol {
            Protocol::WebSocket(resource) => Some(resource.path.clone()),
            _ => None,
        };
        *first.entry(path).or_insert(index)
    };
    targets.iter().enumerate().map(room).collect()
}

impl FanOut {
    /// The state of a run, if it has publishers.
    pub(crate) fn new(plan: &LoadPlan, clock: RunClock) -> Option<Arc<Self>> {
        let publishers = plan.args.publishers?;
        let mut run = [0; 4];
        getrandom::fill(&mut run).expect("the kernel gives random bytes");
        Some(Arc::new(Self {
            clock,
            run: u32::from_ne_bytes(run),
            rooms: rooms(&plan.args.targets),
            schedule: OnceLock::new(),
            published: (0..publishers).map(|_| AtomicU64::new(0)).collect(),
            publishing: AtomicUsize::new(publishers as usize),
            ended: AtomicU64::new(0),
            limit: nanos(plan.args.timeout),
        }))
    }

    /// Returns the room of a connection: that of its target.
    fn room_of(&self, connection: usize) -> usize {
        self.rooms[connection % self.rooms.len()]
    }

    /// Notes the schedule, before the first message is published.
    pub(crate) fn begin(&self, schedule: &LoadSchedule) {
        if let SendRate::Fixed(rate) = schedule.rate {
            self.schedule.get_or_init(|| (rate, schedule.window.start));
        }
    }

    /// Returns whether no publisher will publish more.
    pub(crate) fn has_ended(&self) -> bool {
        self.publishing.load(Acquire) == 0
    }

    /// Notes that a publisher publishes no more.
    pub(crate) fn publisher_ended(&self, sequence: &MessageSequence) {
        let (publisher, published) = (sequence.connection() as usize, sequence.sent() + 1);
        if self.published[publisher].swap(published, Relaxed) == 0 {
            self.ended.fetch_max(self.clock.now(), Relaxed);
            // Whoever sees that the last one has ended sees what all have noted.
            self.publishing.fetch_sub(1, Release);
        }
    }

    /// Writes the mark of a message over its first bytes, in a copy.
    pub(crate) fn mark<'a>(
        &self,
        publisher: u64,
        number: u64,
        message: MessageRef<'_>,
        copy: &'a mut MarkedMessage,
    ) -> MessageRef<'a> {
        let MarkedMessage { text, bytes } = copy;
        text.clear();
        // Writing to a string does not fail.
        let _ = write!(text, "{:08x}{publisher:08x}{number:016x}", self.run);
        match message {
            MessageRef::Text(content) => {
                text.push_str(&content[MARK_LEN..]);
                MessageRef::Text(text)
            }
            MessageRef::Binary(content) => {
                bytes.clear();
                bytes.extend_from_slice(text.as_bytes());
                bytes.extend_from_slice(&content[MARK_LEN..]);
                MessageRef::Binary(bytes)
            }
        }
    }

    /// Returns the publisher and the number of a message of this run.
    fn read_mark(&self, message: &[u8]) -> Option<(usize, u64)> {
        let mark = str::from_utf8(message.get(..MARK_LEN)?).ok()?;
        if !mark.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let field = |range: Range<usize>| u64::from_str_radix(&mark[range], 16).ok();
        let (run, publisher, number) = (field(0..8)?, field(8..16)? as usize, field(16..32)?);
        let is_ours = run == u64::from(self.run) && publisher < self.published.len();
        is_ours.then_some((publisher, number))
    }
}

impl Role {
    pub(crate) fn new(connection: u32, shared: Option<&Arc<FanOut>>) -> Self {
        let Some(shared) = shared.cloned() else { return Self::Echo };
        let publishers = shared.published.len();
        if (connection as usize) < publishers {
            return Self::Publisher(shared);
        }
        let deliveries = (0..publishers).map(|_| Deliveries::default()).collect();
        let room = shared.room_of(connection as usize);
        Self::Receiver(Box::new(Receiver { shared, room, deliveries }))
    }

    pub(crate) fn is_receiver(&self) -> bool {
        matches!(self, Self::Receiver(_))
    }

    /// Returns whether another message may be sent beside so much buffered output. Messages of an
    /// echo have room by `--depth`.
    pub(crate) fn has_room(&self, buffered: impl FnOnce() -> usize) -> bool {
        match self {
            Self::Echo => true,
            Self::Publisher(_) => buffered() <= BUFFERED_MAX,
            Self::Receiver(_) => false,
        }
    }

    /// Notes that a connection publishes or receives no more.
    pub(crate) fn end(&mut self, sequence: &MessageSequence, results: &mut LoadResults) {
        match self {
            Self::Echo => {}
            Self::Publisher(shared) => shared.publisher_ended(sequence),
            Self::Receiver(receiver) => results.lost += receiver.missing(),
        }
    }
}

impl Receiver {
    /// Returns whether nothing more is awaited.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        let shared = &self.shared;
        shared.has_ended()
            && (self.missing() == 0 || now > shared.ended.load(Relaxed) + shared.limit)
    }

    /// Number of messages that were published, as far as their publishers have ended, and have not
    /// come.
    fn missing(&self) -> u64 {
        let Some(&(rate, start)) = self.shared.schedule.get() else { return 0 };
        let publishers = self.deliveries.iter().enumerate();
        let missing = publishers.map(|(publisher, deliveries)| {
            let published = self.shared.published[publisher].load(Relaxed).saturating_sub(1);
            let first = rate.due_before(publisher as u64, start);
            match self.shared.room_of(publisher) == self.room {
                true => deliveries.missing(first, published),
                false => 0,
            }
        });
        missing.sum()
    }

    /// Handles a message.
    ///
    /// # Errors
    ///
    /// The fault, unless it is one that this run has published in the room.
    pub(crate) fn take(
        &mut self,
        message: Answer<'_>,
        pool: &PayloadPool,
        results: &mut LoadResults,
        now: Nanos,
    ) -> Result<(), Fault> {
        let wrong = |text: &str| Err(Fault::new(FaultKind::WrongContent, text));
        let (Some((publisher, number)), Some(&(rate, start))) =
            (self.shared.read_mark(message.bytes), self.shared.schedule.get())
        else {
            return wrong("a message came that this run has not published");
        };
        if self.shared.room_of(publisher) != self.room {
            return wrong("a message came that was published in another room");
        }
        let moment = rate.moment(publisher as u64, number);
        if moment > now {
            return wrong("a message came before it was published");
        }
        let expected = &pool.bytes(publisher as u64, number)[MARK_LEN..];
        if message.bytes[MARK_LEN..] != *expected || message.is_text != pool.is_text() {
            let text = format!("message {} of publisher {} is changed", number + 1, publisher + 1);
            return wrong(&text);
        }
        if moment < start {
            results.warm_up += 1;
            return Ok(());
        }
        let first = || rate.due_before(publisher as u64, start);
        match self.deliveries[publisher].take(number, first) {
            Arrival::Again => {
                results.duplicated += 1;
                return Ok(());
            }
            Arrival::Late => results.reordered += 1,
            Arrival::InOrder => {}
        }
        results.answered(Some(now.saturating_sub(moment)), now);
        Ok(())
    }
}

impl Deliveries {
    /// Notes a message. `first` is the number of the first one that counts.
    fn take(&mut self, number: u64, first: impl FnOnce() -> u64) -> Arrival {
        let next = *self.next.get_or_insert_with(first);
        if number >= next {
            if number > next {
                self.gaps.push_back(next..number);
            }
            if self.gaps.len() > GAPS_MAX {
                let gap = self.gaps.pop_front().unwrap_or_default();
                self.lost += gap.end - gap.start;
            }
            self.next = Some(number + 1);
            return Arrival::InOrder;
        }
        let Some(at) = self.gaps.iter().position(|gap| gap.contains(&number)) else {
            return Arrival::Again;
        };
        let Range { start, end } = self.gaps.remove(at).unwrap_or_default();
        for rest in [number + 1..end, start..number] {
            if !rest.is_empty() {
                self.gaps.insert(at, rest);
            }
        }
        Arrival::Late
    }

    /// Number of messages from `first` to before `end` that have not come.
    fn missing(&self, first: u64, end: u64) -> u64 {
        let gaps: u64 = self.gaps.iter().map(|gap| gap.end - gap.start).sum();
        self.lost + gaps + end.saturating_sub(self.next.unwrap_or(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(deliveries: &mut Deliveries, numbers: &[u64]) -> Vec<Arrival> {
        numbers.iter().map(|&number| deliveries.take(number, || 10)).collect()
    }

    #[test]
    fn lost_late_and_doubled_messages_are_told_apart() {
        use Arrival::{Again, InOrder, Late};
        let mut deliveries = Deliveries::default();
        assert_eq!(deliveries.missing(10, 15), 5, "nothing has come");
        assert_eq!(taken(&mut deliveries, &[10, 11, 11, 10]), [InOrder, InOrder, Again, Again]);
        assert_eq!(deliveries.missing(10, 12), 0);
        // 12 to 17 are missing, then all but 13 and 16 come.
        assert_eq!(taken(&mut deliveries, &[18, 15]), [InOrder, Late]);
        assert_eq!(taken(&mut deliveries, &[12, 17, 14, 15]), [Late, Late, Late, Again]);
        assert_eq!((deliveries.missing(10, 19), deliveries.missing(10, 21)), (2, 4));
        assert_eq!(taken(&mut deliveries, &[13, 16, 19]), [Late, Late, InOrder]);
        assert_eq!((deliveries.missing(10, 20), deliveries.gaps.len()), (0, 0));
        // The first ones are lost.
        let mut deliveries = Deliveries::default();
        taken(&mut deliveries, &[13]);
        assert_eq!(deliveries.missing(10, 14), 3);
    }

    #[test]
    fn gaps_are_bounded_and_nothing_lost_is_forgotten() {
        let mut deliveries = Deliveries::default();
        let gaps = GAPS_MAX as u64 + 100;
        let odd: Vec<u64> = (0..gaps).map(|at| 11 + 2 * at).collect();
        taken(&mut deliveries, &odd);
        assert_eq!(
            (deliveries.gaps.len(), deliveries.missing(10, 10 + 2 * gaps)),
            (GAPS_MAX, gaps)
        );
    }
}
