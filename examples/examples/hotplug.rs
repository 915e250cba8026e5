//! Devices that other threads add, look at and remove while the loop runs: what programs use
//! event-manager's subscribers and its `RemoteEndpoint` for.
//!
//! It shows:
//! - A device is a `Group`: each descriptor has a handler of its own, so no handler looks up which
//!   descriptor an event is of.
//! - `Remote::call` takes a new device to the loop's thread and returns its key, with which later
//!   calls reach the state, or remove the device.
//! - A handler stops the loop by its `Turn`, and other threads by `Remote::stop`.
//!
//! Run it with `cargo run --example hotplug`, and its tests with `cargo test --example hotplug`.

use std::{error::Error, io, os::fd::OwnedFd, thread};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use windlass::{Group, GroupKey, Reactor, Registered, Remote, Turn, interest};

/// The state of a device, which its handlers share.
struct Device {
    /// Raised for each kick.
    interrupt: OwnedFd,
    kicks: u64,
}

impl Device {
    fn on_kick(&mut self, kick: &mut OwnedFd) {
        self.kicks += drain(kick);
        signal(&self.interrupt);
    }

    /// The guest turns the machine off: the loop ends.
    fn on_power_off(&mut self, power_off: &mut OwnedFd, mut turn: Turn<'_>) {
        drain(power_off);
        turn.stop();
    }
}

/// Adds to an eventfd.
fn signal(wire: &OwnedFd) {
    rustix::io::write(wire, &1_u64.to_ne_bytes()).expect("its counter is far from full");
}

/// Takes the value of an eventfd; 0 if it has none.
fn drain(wire: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(wire, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

/// The guest's ends of a device's descriptors.
struct Guest {
    kick: OwnedFd,
    power_off: OwnedFd,
    interrupt: OwnedFd,
}

/// Waits until the device answers.
fn await_interrupt(guest: &Guest) -> io::Result<()> {
    poll(&mut [PollFd::new(&guest.interrupt, PollFlags::IN)], None)?;
    drain(&guest.interrupt);
    Ok(())
}

/// Adds a device to the loop of another thread.
fn plug(remote: &Remote) -> io::Result<(GroupKey<Device>, Guest)> {
    let wire = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let guest = Guest { kick: wire()?, power_off: wire()?, interrupt: wire()? };
    let device = Device { interrupt: guest.interrupt.try_clone()?, kicks: 0 };
    let (kick, power_off) = (guest.kick.try_clone()?, guest.power_off.try_clone()?);
    // The outer error is that of the call, the inner one that of the registration.
    let registered: Registered<Device> = remote.call(move |mut turn| {
        Group::new(device)
            .fd(interest().read(), kick, Device::on_kick)
            .fd(interest().read(), power_off, Device::on_power_off)
            .register_into(&mut turn)
    })??;
    Ok((registered.group, guest))
}

/// Looks at a device of the loop's thread.
fn kicks(remote: &Remote, device: GroupKey<Device>) -> io::Result<u64> {
    Ok(remote.call(move |mut turn| turn.with_group(device, |device, _| device.kicks))??)
}

/// Removes a device. Its descriptors are closed, and none of its handlers runs again.
fn unplug(remote: &Remote, device: GroupKey<Device>) -> io::Result<()> {
    Ok(remote.call(move |mut turn| turn.delete_group(device))??)
}

/// Runs the loop on this thread, and `control` on another until it returns.
fn run<T: Send>(
    mut reactor: Reactor,
    control: impl FnOnce(&Remote) -> io::Result<T> + Send,
) -> io::Result<T> {
    let remote = reactor.remote();
    thread::scope(|scope| {
        let control = scope.spawn(move || {
            let result = control(&remote);
            remote.stop();
            result
        });
        reactor.run()?;
        control.join().map_err(|_| io::Error::other("the thread of the control has panicked"))?
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let total = run(windlass_examples::builder()?.build()?, |remote| {
        let (one, guest) = plug(remote)?;
        let (two, _) = plug(remote)?;
        signal(&guest.kick);
        await_interrupt(&guest)?;
        unplug(remote, two)?;
        kicks(remote, one)
    })?;
    println!("the device was kicked {total} time");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reactor() -> Reactor {
        windlass_examples::builder().unwrap().build().unwrap()
    }

    #[test]
    fn a_device_serves_its_guest_while_others_come_and_go() {
        let served = run(reactor(), |remote| {
            let (device, guest) = plug(remote)?;
            for _ in 0..10 {
                let (other, idle) = plug(remote)?;
                signal(&guest.kick);
                await_interrupt(&guest)?;
                unplug(remote, other)?;
                signal(&idle.kick);
                assert_eq!(kicks(remote, other).unwrap_err().kind(), io::ErrorKind::NotFound);
            }
            kicks(remote, device)
        });
        assert_eq!(served.unwrap(), 10);
    }

    #[test]
    fn a_guest_that_powers_off_ends_the_loop() {
        let mut reactor = reactor();
        let remote = reactor.remote();
        let guest = thread::spawn(move || {
            let (_, guest) = plug(&remote).unwrap();
            signal(&guest.power_off);
        });
        reactor.run().unwrap();
        guest.join().unwrap();
    }
}
