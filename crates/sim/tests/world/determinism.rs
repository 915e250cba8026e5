use windlass_sim::{Faults, Kernel, check};

use crate::echo::{self, Plan};

const PLAN: Plan =
    Plan { hosts: 4, connections: 3, messages: 4, bytes_max: 2_000, pause_ns: 100_000 };

/// The hash of all traces of 20 seeds with hostile faults: the same in every build and on every
/// machine. It changes with each change of what the kernel does.
const HASH: u64 = 0x31a09b8818981520;

fn property(kernel: &mut Kernel) {
    echo::run(kernel, PLAN);
}

#[test]
fn two_runs_of_a_seed_are_the_same() {
    check(property).faults(Faults::hostile()).seeds(30).twice().run();
}

#[test]
fn the_hash_is_that_of_all_builds_and_machines() {
    let outcome =
        |threads| check(property).faults(Faults::hostile()).seeds(20).threads(threads).outcome();
    assert_eq!(outcome(1).hash, outcome(3).hash, "the number of threads is in the hash");
    assert_eq!(outcome(2).hash, HASH, "{:#x}", outcome(2).hash);
}

#[test]
fn a_recorded_run_is_the_run_of_its_seed() {
    for seed in 0..10 {
        let first = Kernel::new(seed, Faults::hostile());
        first.record_choices();
        echo::run(&first, PLAN);
        let second = Kernel::replay(&first.case(), Faults::hostile());
        echo::run(&second, PLAN);
        assert_eq!(first.hash(), second.hash(), "seed {seed}");
    }
}

#[test]
fn seeds_differ() {
    let hash = |seed| {
        let kernel = Kernel::new(seed, Faults::calm());
        echo::run(&kernel, PLAN);
        kernel.hash()
    };
    assert_ne!(hash(1), hash(2));
}
