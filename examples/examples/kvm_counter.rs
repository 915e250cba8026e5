//! A bounded `EventCounter` behind the eventfds of a virtual machine.
//!
//! The kernel adds to an ioeventfd and reads an irqfd, so both are eventfd(2): it cannot use an
//! `EventCounter`, which has no descriptor that it could add to. The counter stands behind them,
//! between the loop and the thread that does the work.
//!
//! It shows:
//! - The ioeventfd is in semaphore mode: a read takes one kick. The handler adds to the counter
//!   first and takes the kick then, so kicks for which there is no room stay with the kernel.
//! - While the counter is full, the loop watches for room (`EventCounter::writer`) and not for
//!   kicks.
//! - The worker waits in `EventCounter::read`, and answers by the irqfd.
//!
//! Run it with `cargo run --example kvm_counter`, and its tests with
//! `cargo test --example kvm_counter`. The virtual machine needs `/dev/kvm` and x86-64.

#[cfg(target_arch = "x86_64")]
#[path = "kvm/machine.rs"]
mod machine;

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rustix::event::{EventfdFlags, eventfd};
use windlass::{Event, Group, GroupKey, Key, Reactor, Turn, interest};
use windlass_examples::StopOnDrop;
use windlass_flow::{CounterWriter, EventCounter, WriteError};

/// The most requests that wait for the worker, plus one.
const REQUESTS_MAX: u32 = 4;

fn wire(flags: EventfdFlags) -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | flags)?)
}

/// The loop's side.
struct Gate {
    requests: EventCounter,
    kick: Option<Key>,
    room: Option<Key>,
    /// How often there was no room.
    pauses: u64,
}

impl Gate {
    fn on_kick(&mut self, kick: &mut OwnedFd, event: Event, mut turn: Turn<'_>) {
        match self.requests.try_write(1) {
            Ok(()) => {
                rustix::io::read(kick, &mut [0; 8]).expect("there is a kick, and only one reader");
            }
            Err(WriteError::WouldBlock) => {
                self.pauses += 1;
                self.kick = Some(event.key());
                turn.modify(event.key(), interest()).expect("it is registered");
                self.watch_room(true, &mut turn);
            }
            Err(error) => panic!("the counter is this process's own: {error}"),
        }
    }

    fn on_room(&mut self, _: &mut CounterWriter, mut turn: Turn<'_>) {
        self.watch_room(false, &mut turn);
        if let Some(kick) = self.kick.take() {
            turn.modify(kick, interest().read()).expect("it is registered");
        }
    }

    fn watch_room(&mut self, is_watched: bool, turn: &mut Turn<'_>) {
        let interest = if is_watched { interest().write() } else { interest() };
        turn.modify(self.room.expect("it is set after the registration"), interest)
            .expect("it is registered");
    }
}

/// Moves kicks to a counter.
fn register(
    reactor: &mut Reactor,
    requests: EventCounter,
    kick: OwnedFd,
) -> io::Result<GroupKey<Gate>> {
    let writer = requests.writer()?;
    let registered = Group::new(Gate { requests, kick: None, room: None, pauses: 0 })
        .fd(interest().read(), kick, Gate::on_kick)
        .fd(interest(), writer, Gate::on_room)
        .register_into(reactor)?;
    let gate = reactor.group_mut(registered.group).expect("it was just registered");
    gate.room = registered.members.get(1).copied();
    Ok(registered.group)
}

/// Serves so many kicks by interrupts, or fewer if the reactor is stopped. Returns how often the
/// counter was full.
fn serve(mut reactor: Reactor, kick: OwnedFd, interrupt: OwnedFd, total: u64) -> io::Result<u64> {
    let requests = EventCounter::new(REQUESTS_MAX)?;
    let gate = register(&mut reactor, requests.clone(), kick)?;
    let stop = StopOnDrop(reactor.stop_handle());
    let has_ended = Arc::new(AtomicBool::new(false));
    let (of_worker, to_worker) = (Arc::clone(&has_ended), requests.clone());
    let worker = thread::spawn(move || {
        let _stop = stop;
        let mut left = total;
        while left > 0 {
            let count = requests.read().map_err(io::Error::other)?;
            if of_worker.load(Ordering::Acquire) {
                break;
            }
            for _ in 0..count {
                // The kernel reads it at once.
                rustix::io::write(&interrupt, &1_u64.to_ne_bytes())?;
            }
            left -= u64::from(count);
        }
        io::Result::Ok(())
    });
    let run = reactor.run();
    has_ended.store(true, Ordering::Release);
    // The worker may wait for requests.
    to_worker.signal().map_err(io::Error::other)?;
    worker.join().map_err(|_| io::Error::other("the worker has panicked"))??;
    run?;
    Ok(reactor.group_mut(gate).map_or(0, |gate| gate.pauses))
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("the guest is a program for x86-64");
}

#[cfg(target_arch = "x86_64")]
fn main() -> io::Result<()> {
    match machine::refusal() {
        Some(why) => println!("no virtual machine: {why}"),
        None => {
            let answers = with_guest(windlass_examples::builder()?.build()?, 1000)?;
            println!("the guest got {answers} interrupts");
        }
    }
    Ok(())
}

/// Serves a guest of so many rounds. Returns the interrupts that it has counted.
#[cfg(target_arch = "x86_64")]
fn with_guest(reactor: Reactor, rounds: u32) -> io::Result<u32> {
    let (machine, processor) = machine::machine(rounds)?;
    let (kick, interrupt) = (wire(EventfdFlags::SEMAPHORE)?, wire(EventfdFlags::empty())?);
    let ends = (kick.try_clone()?, interrupt.try_clone()?);
    machine.plug(0, &kick, &interrupt)?;
    let stop = StopOnDrop(reactor.stop_handle());
    let guest = thread::spawn(move || {
        let _stop = stop;
        processor.run()
    });
    serve(reactor, kick, interrupt, rounds.into())?;
    guest.join().map_err(|_| io::Error::other("the processor has panicked"))??;
    machine.unplug(0, &ends.0, &ends.1)?;
    Ok(machine.answers(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn reactor() -> Reactor {
        windlass_examples::builder().unwrap().build().unwrap()
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_guest_gets_each_answer() {
        if let Some(why) = machine::refusal() {
            eprintln!("skipped here: a_guest_gets_each_answer: {why}");
            return;
        }
        assert_eq!(with_guest(reactor(), 500).unwrap(), 500);
    }

    /// Nobody but this test reads the interrupts, as the kernel would.
    #[test]
    fn kicks_without_room_stay_with_the_kernel() {
        let kick = wire(EventfdFlags::SEMAPHORE).unwrap();
        let interrupt = wire(EventfdFlags::empty()).unwrap();
        rustix::io::write(&kick, &1000_u64.to_ne_bytes()).unwrap();
        let (left, answers) = (kick.try_clone().unwrap(), interrupt.try_clone().unwrap());
        serve(reactor(), kick, interrupt, 1000).unwrap();
        let mut count = [0; 8];
        rustix::io::read(answers, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1000);
        assert!(rustix::io::read(left, &mut count).is_err(), "no kick is left");
    }

    #[test]
    fn a_worker_that_fails_ends_the_loop() {
        let kick = wire(EventfdFlags::SEMAPHORE).unwrap();
        rustix::io::write(&kick, &1_u64.to_ne_bytes()).unwrap();
        let read_only = std::fs::File::open("/dev/null").unwrap();
        let error = serve(reactor(), kick, read_only.into(), 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(windlass::Errno::BADF.raw_os_error()));
    }

    /// As after a guest that fails.
    #[test]
    fn a_stop_ends_a_worker_that_waits() {
        let reactor = reactor();
        reactor.stop_handle().stop();
        let [kick, interrupt] = [(); 2].map(|()| wire(EventfdFlags::empty()).unwrap());
        assert_eq!(serve(reactor, kick, interrupt, 1).unwrap(), 0);
    }

    #[test]
    fn a_full_counter_takes_no_kick() {
        let mut reactor = reactor();
        let kick = wire(EventfdFlags::SEMAPHORE).unwrap();
        rustix::io::write(&kick, &10_u64.to_ne_bytes()).unwrap();
        let left = kick.try_clone().unwrap();
        let requests = EventCounter::new(REQUESTS_MAX).unwrap();
        let gate = register(&mut reactor, requests.clone(), kick).unwrap();
        while reactor.run_once(Duration::ZERO).unwrap() > 0 {}
        assert_eq!(requests.count().unwrap(), REQUESTS_MAX - 1);
        assert_eq!(reactor.group_mut(gate).unwrap().pauses, 1);
        requests.read().unwrap();
        while reactor.run_once(Duration::ZERO).unwrap() > 0 {}
        assert_eq!(requests.count().unwrap(), REQUESTS_MAX - 1);
        let kicks = std::iter::from_fn(|| rustix::io::read(&left, &mut [0; 8]).ok());
        assert_eq!(kicks.count() as u32, 10 - 2 * (REQUESTS_MAX - 1));
    }
}
