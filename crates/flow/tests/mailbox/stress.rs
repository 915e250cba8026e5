//! Many threads at once: no item is lost, order is kept, the bounds hold, and no thread sleeps
//! forever.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use windlass_flow::{Bounds, Latch, Mailbox, PushError, PushReason, Sender, weighed_mailbox};

use crate::support::{block_on, wait};

const BOUNDS: Bounds = Bounds::items(4).bytes(16);

struct Item {
    sender: usize,
    number: usize,
    bytes: usize,
    live: Arc<AtomicI64>,
}

impl Drop for Item {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The occupied room. Never more than the real value: items are added after their push, and
/// subtracted before their room is given back.
#[derive(Default)]
struct Held {
    items: AtomicI64,
    bytes: AtomicI64,
}

impl Held {
    fn add(&self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap();
        assert!(
            self.items.fetch_add(1, Ordering::SeqCst) < i64::try_from(BOUNDS.items_max).unwrap()
        );
        let before = self.bytes.fetch_add(bytes, Ordering::SeqCst);
        assert!(before + bytes <= i64::try_from(BOUNDS.bytes_max).unwrap());
    }

    fn take_off(&self, bytes: usize) {
        self.items.fetch_sub(1, Ordering::SeqCst);
        self.bytes.fetch_sub(i64::try_from(bytes).unwrap(), Ordering::SeqCst);
    }
}

/// A way to push that returns when the mailbox has taken the item or is closed.
type PushBy = fn(&Sender<Item>, Item) -> Result<(), PushError<Item>>;

fn by_trying(sender: &Sender<Item>, mut item: Item) -> Result<(), PushError<Item>> {
    loop {
        match sender.try_push(item) {
            Err(e) if e.reason == PushReason::Full => item = e.item.into_inner(),
            outcome => return outcome,
        }
        thread::yield_now();
    }
}

fn by_the_clock(sender: &Sender<Item>, mut item: Item) -> Result<(), PushError<Item>> {
    loop {
        match sender.push_timeout(item, Duration::from_micros(20)) {
            Err(e) if e.reason == PushReason::TimedOut => item = e.item.into_inner(),
            outcome => return outcome,
        }
    }
}

const WAYS: [PushBy; 4] =
    [Sender::push, by_the_clock, |sender, item| block_on(sender.push_async(item)), by_trying];

struct Run {
    inbox: Mailbox<Item>,
    held: Arc<Held>,
    live: Arc<AtomicI64>,
    senders: Vec<thread::JoinHandle<usize>>,
}

impl Run {
    /// Starts senders of `count` items each. Each thread returns how many items the mailbox has
    /// taken.
    fn start(senders: usize, count: usize, way: impl Fn(usize) -> PushBy) -> Self {
        let (sender, inbox) =
            weighed_mailbox(BOUNDS, Arc::new(Latch::new().unwrap()), |item: &Item| item.bytes);
        let (held, live) = (Arc::new(Held::default()), Arc::new(AtomicI64::new(0)));
        let start = |index: usize| {
            let (sender, held, live, push) =
                (sender.clone(), held.clone(), live.clone(), way(index));
            thread::spawn(move || {
                for number in 0..count {
                    // From zero up to the whole mailbox.
                    let bytes = (number * 7 + index) % (BOUNDS.bytes_max + 1);
                    live.fetch_add(1, Ordering::SeqCst);
                    match push(&sender, Item { sender: index, number, bytes, live: live.clone() }) {
                        Ok(()) => held.add(bytes),
                        Err(e) => {
                            assert_eq!(
                                (e.reason, e.item.into_inner().number),
                                (PushReason::Closed, number)
                            );
                            return number;
                        }
                    }
                }
                count
            })
        };
        let senders = (0..senders).map(start).collect();
        Self { inbox, held, live, senders }
    }

    /// Drains once. Returns how many items have arrived in total.
    fn drain(&mut self, max: usize, next: &mut [usize]) -> usize {
        let mut count = 0;
        for item in self.inbox.drain(max) {
            assert_eq!(item.number, next[item.sender], "sender {} is out of order", item.sender);
            next[item.sender] += 1;
            self.held.take_off(item.bytes);
            count += 1;
        }
        count
    }
}

/// Runs until all senders are gone, and checks that every item has arrived.
fn everything_comes(senders: usize, count: usize, max: usize, way: impl Fn(usize) -> PushBy) {
    let mut run = Run::start(senders, count, way);
    let mut next = vec![0; senders];
    loop {
        // All items pushed before the last sender was dropped are in the mailbox.
        let is_last = run.inbox.is_closed();
        while run.drain(max, &mut next) > 0 {}
        if is_last {
            break;
        }
        wait(run.inbox.latch());
    }
    assert_eq!(next, vec![count; senders]);
    assert!(run.senders.into_iter().all(|sender| sender.join().unwrap() == count));
    assert_eq!(run.live.load(Ordering::SeqCst), 0);
}

#[test]
#[cfg_attr(miri, ignore = "long loops")]
fn one_sender_each_way() {
    for way in WAYS {
        everything_comes(1, 20_000, 3, |_| way);
    }
}

#[test]
#[cfg_attr(miri, ignore = "long loops")]
fn three_senders_the_same_way() {
    for way in WAYS {
        everything_comes(3, 5_000, 2, |_| way);
    }
}

#[test]
#[cfg_attr(miri, ignore = "long loops")]
fn three_senders_that_wait_three_ways() {
    everything_comes(3, 10_000, 1, |index| WAYS[index]);
}

#[test]
#[cfg_attr(miri, ignore = "long loops")]
fn eight_senders_all_ways() {
    everything_comes(8, 4_000, 1, |index| WAYS[index % WAYS.len()]);
    everything_comes(8, 4_000, usize::MAX, |index| WAYS[index % WAYS.len()]);
}

#[test]
#[cfg_attr(miri, ignore = "long loops")]
fn an_end_in_the_middle_leaves_no_item_and_no_thread() {
    let dropped = AtomicUsize::new(0);
    for round in 0..60 {
        let mut run = Run::start(8, usize::MAX, |index| WAYS[(index + round) % WAYS.len()]);
        let mut next = vec![0; 8];
        let mut came = 0;
        while came < round * 10 {
            wait(run.inbox.latch());
            came += run.drain(2, &mut next);
        }
        let Run { mut inbox, live, senders, .. } = run;
        if round % 2 == 0 {
            drop(inbox);
        } else {
            inbox.close();
            inbox.drain(usize::MAX).for_each(|item| next[item.sender] += 1);
        }
        for (index, sender) in senders.into_iter().enumerate() {
            let pushed = sender.join().unwrap();
            assert!(pushed >= next[index]);
            dropped.fetch_add(pushed - next[index], Ordering::SeqCst);
            assert!(round % 2 == 0 || pushed == next[index], "a closed mailbox keeps what is in");
        }
        assert_eq!(live.load(Ordering::SeqCst), 0);
    }
    // In each even round the mailbox was dropped with its items, up to four.
    assert!(dropped.into_inner() <= 30 * BOUNDS.items_max);
}
