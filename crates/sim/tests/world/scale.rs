use std::time::Instant;

use windlass_sim::{Faults, Kernel};

use crate::echo::{self, Plan};

const PLAN: Plan =
    Plan { hosts: 10, connections: 10, messages: 10, bytes_max: 100, pause_ns: 1_000_000 };

fn cost(idle_hosts: u32) -> (u64, u64) {
    let kernel = Kernel::new(1, Faults::calm());
    let idle: Vec<_> =
        (0..idle_hosts).map(|index| kernel.host(echo::address(1_000 + index))).collect();
    // Their links exist too.
    for host in &idle {
        kernel.heal(kernel.host(echo::address(0)), *host);
    }
    let tally = echo::run(&kernel, PLAN);
    assert_eq!(tally.done, 100);
    (kernel.steps(), kernel.events())
}

#[test]
fn idle_hosts_and_links_take_no_step() {
    let (steps, events) = cost(0);
    let (with_idle, events_with_idle) = cost(5_000);
    assert_eq!(steps, with_idle);
    assert_eq!(events + 5_000, events_with_idle);
}

/// `cargo test --release -p windlass-sim --test world -- --ignored --nocapture`
#[test]
#[ignore = "measures time"]
fn a_thousand_hosts_run_a_virtual_minute() {
    let plan = Plan {
        hosts: 1_000,
        connections: 10,
        messages: 60,
        bytes_max: 200,
        pause_ns: 1_000_000_000,
    };
    for (name, faults) in [("calm", Faults::calm()), ("rough", Faults::rough())] {
        let (kernel, start) = (Kernel::new(1, faults), Instant::now());
        let tally = echo::run(&kernel, plan);
        let time = start.elapsed();
        let rate = kernel.events() as f64 / time.as_secs_f64();
        println!(
            "{name}: {tally:?}, {} s virtual, {time:?}, {} steps, {rate:.0} events/s",
            kernel.now_ns() / 1_000_000_000,
            kernel.steps(),
        );
    }
}
