//! Faults that are planted in small protocols: the runner finds, replays and shrinks them.

use std::cell::RefCell;

use windlass_sim::{Case, CheckOutcome, Fault, Faults, Kernel, ThreadNext, Threads, check};

/// A cache that is filled from a store in two steps. A write to the store between the steps makes
/// the cache stale: the fault. Writes are rare, so one seed in a thousand hits the gap.
fn cache(kernel: &mut Kernel) {
    let shared = RefCell::new((0_i64, None));
    let (mut loaded, mut reads, mut turns) = (None, 0, 0);
    let host = kernel.host([10, 0, 0, 1].into());
    let mut threads = Threads::new(kernel);
    threads.spawn(host, "writer", |kernel| {
        if kernel.chance(100) {
            let (store, cached) = &mut *shared.borrow_mut();
            *store += 1;
            *cached = None;
            kernel.note("write", *store);
        }
        turns += 1;
        if turns == 20 { ThreadNext::Done } else { ThreadNext::Again }
    });
    threads.spawn(host, "reader", |kernel| {
        let (store, cached) = &mut *shared.borrow_mut();
        let Some(value) = loaded.take() else {
            loaded = Some(*store);
            kernel.note("load", *store);
            return ThreadNext::Again;
        };
        *cached = Some(value);
        assert_eq!(*cached, Some(*store), "the cache is stale");
        reads += 1;
        if reads == 20 { ThreadNext::Done } else { ThreadNext::Again }
    });
    threads.run();
}

fn find(threads: usize) -> CheckOutcome {
    check(cache).faults(Faults::calm()).seeds(20_000).threads(threads).outcome()
}

#[test]
fn a_fault_that_one_seed_in_a_thousand_finds_is_found_replayed_and_shrunk() {
    let failure = find(2).failure.expect("it is found");
    let seed = failure.seed.expect("a seed");
    assert!(seed > 100, "seed {seed}: it is too easy to find");
    assert!(failure.message.contains("the cache is stale"), "{failure}");
    // The write is left, and the order that puts it into the gap of a load.
    assert!(failure.case.weight() <= 3, "{failure}");
    assert!(failure.trace.to_string().contains("note load"), "{failure}");
    // The text of the report replays it.
    let text = failure.case.to_string();
    let case: Case = text.parse().expect("a case");
    let again = check(cache).faults(Faults::calm()).replay(&case).expect("it fails again");
    assert_eq!(again.trace.hash, failure.trace.hash);
    assert!(failure.to_string().contains(&format!("WINDLASS_SIM_CASE='{text}'")), "{failure}");
    assert!(failure.to_string().contains(&format!("WINDLASS_SIM_SEED={seed}")), "{failure}");
}

#[test]
fn the_lowest_seed_is_reported_whatever_the_number_of_threads() {
    let seeds = [1, 2, 5].map(|threads| find(threads).failure.and_then(|failure| failure.seed));
    assert!(seeds[0].is_some() && seeds.iter().all(|seed| *seed == seeds[0]), "{seeds:?}");
}

/// A sender that takes an interrupted write for one that has been made.
fn careless_sender(kernel: &mut Kernel) {
    let host = kernel.host([10, 0, 0, 1].into());
    let Ok((sender, receiver)) = kernel.socketpair(host) else { return };
    let mut received = Vec::new();
    let mut threads = Threads::new(kernel);
    let mut next = 0_u8;
    threads.spawn(host, "sender", move |kernel| {
        // The fault: the outcome is not looked at.
        let _: std::io::Result<usize> = kernel.send(sender, &[next]);
        next += 1;
        if next == 30 {
            kernel.close(sender).expect("it is open");
            return ThreadNext::Done;
        }
        ThreadNext::Again
    });
    threads.spawn(host, "receiver", |kernel| {
        let mut byte = [0];
        match kernel.recv(receiver, &mut byte) {
            Ok(0) => return ThreadNext::Done,
            Ok(_) => received.push(byte[0]),
            Err(_) => {}
        }
        ThreadNext::Park(Some(kernel.now_ns() + 1_000))
    });
    threads.run();
    drop(threads);
    assert!(received.iter().copied().eq(0..30), "a byte is lost");
}

#[test]
fn one_fault_of_many_is_left() {
    let faults = Faults { interrupted: 20_000, ..Faults::rough() };
    let failure = check(careless_sender).faults(faults).outcome().failure.expect("it is found");
    assert_eq!(failure.case.faults(), 1, "{failure}");
    assert_eq!(failure.faults.len(), 1, "{failure}");
    assert!(matches!(failure.faults[0].0, Fault::Interrupted | Fault::WouldBlock), "{failure}");
}

#[test]
fn what_is_not_deterministic_is_reported() {
    use std::sync::atomic::{AtomicI64, Ordering};
    static CALLS: AtomicI64 = AtomicI64::new(0);
    let property = |kernel: &mut Kernel| {
        kernel.note("call", CALLS.fetch_add(1, Ordering::Relaxed));
    };
    let failure = check(property).seeds(3).twice().outcome().failure.expect("it is found");
    assert!(failure.message.contains("not deterministic"), "{failure}");
}

#[test]
#[should_panic(expected = "replay the whole run with WINDLASS_SIM_SEED=0")]
fn a_failing_run_panics_with_its_report() {
    windlass_sim::Check::new(|_| 7, |seven| assert_eq!(*seven, 8)).seeds(10).run();
}

#[test]
fn a_shrunk_run_fails_at_the_same_place() {
    let property = |kernel: &mut Kernel| {
        let value = kernel.choose(100);
        assert!(value <= 50, "great");
        assert!(value == 0, "small");
    };
    let great = |seed: &u64| Kernel::new(*seed, Faults::calm()).choose(100) > 50;
    let seed = (0..).find(great).expect("one");
    let check = check(property).first_seed(seed).seeds(1);
    let failure = check.outcome().failure.expect("it fails");
    assert!(failure.message.starts_with("great"), "{failure}");
    assert_eq!(failure.case.to_string(), "workload=0:51");
}
