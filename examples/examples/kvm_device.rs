//! Two devices of a virtual machine under KVM: the guest's write to a port becomes an event, and
//! the handler's write to an eventfd an interrupt of the guest.
//!
//! It shows:
//! - An ioeventfd is an ordinary descriptor of a handler, and so is an irqfd.
//! - A handler of one device removes the other one while the guest runs: the port first, then the
//!   group. No kick is lost, and none reaches a device that is gone.
//! - A device is paused and resumed by its group: none of its handlers runs meanwhile, and kicks
//!   stay in the eventfd. After the resume it is kicked, as after the restore of a snapshot.
//!
//! Run it with `cargo run --example kvm_device`, and its tests with
//! `cargo test --example kvm_device`. It needs `/dev/kvm` and x86-64.

#[cfg(target_arch = "x86_64")]
#[path = "kvm/machine.rs"]
mod machine;

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("the guest is a program for x86-64");
}

#[cfg(target_arch = "x86_64")]
fn main() -> std::io::Result<()> {
    if let Some(why) = machine::refusal() {
        println!("no virtual machine: {why}");
        return Ok(());
    }
    let seen = devices::run(windlass_examples::builder()?.build()?, 1000)?;
    println!("{seen:?}");
    Ok(())
}

#[cfg(target_arch = "x86_64")]
mod devices {
    use std::{cell::Cell, io, os::fd::OwnedFd, rc::Rc, thread, time::Duration};

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use windlass::{Group, GroupKey, Key, Reactor, Ready, Turn, interest};
    use windlass_examples::StopOnDrop;

    use super::machine::{Machine, machine};

    /// The second device is removed at this kick of the first one.
    const UNPLUG_AT: u64 = 100;

    /// The first device pauses itself after this kick.
    pub(super) const PAUSE_AT: u64 = 200;

    /// How often a paused device looks for kicks.
    const LOOK_EVERY: Duration = Duration::from_millis(1);

    /// What has happened at the end of the guest.
    #[derive(Debug, Default, PartialEq)]
    pub(super) struct Seen {
        /// The kicks that each device has read.
        pub(super) kicks: [u64; 2],
        /// The interrupts of the first device that the guest has counted.
        pub(super) answers: u32,
        /// The kicks of the second device after it was removed.
        pub(super) unclaimed: u32,
        pub(super) pauses: u32,
        pub(super) ran_while_paused: bool,
    }

    /// The descriptors of a device, which the kernel has too.
    struct Wires {
        kick: OwnedFd,
        interrupt: OwnedFd,
    }

    impl Wires {
        fn new() -> io::Result<Self> {
            let wire = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            Ok(Self { kick: wire()?, interrupt: wire()? })
        }

        /// Takes the kicks, and interrupts the guest if there are some.
        fn answer(&self) -> u64 {
            let mut count = [0; 8];
            if rustix::io::read(&self.kick, &mut count).is_err() {
                return 0;
            }
            let one = 1_u64.to_ne_bytes();
            rustix::io::write(&self.interrupt, &one).expect("the kernel takes each at once");
            u64::from_ne_bytes(count)
        }

        fn is_kicked(&self) -> io::Result<bool> {
            let now = Timespec::default();
            Ok(poll(&mut [PollFd::new(&self.kick, PollFlags::IN)], Some(&now))? > 0)
        }
    }

    /// The second device.
    struct Disk {
        wires: Rc<Wires>,
        kicks: Rc<Cell<u64>>,
    }

    /// The first device, which removes the second one.
    struct Net {
        machine: Machine,
        wires: Wires,
        kicks: u64,
        /// Its own group, and the member that is kicked.
        keys: Option<(GroupKey<Net>, Key)>,
        /// While it is paused: how often a kick was found.
        paused: Option<u32>,
        disk: Disk,
        disk_group: GroupKey<Disk>,
        seen: Seen,
    }

    impl Net {
        fn on_kick(&mut self, mut turn: Turn<'_>) {
            self.seen.ran_while_paused |= self.paused.is_some();
            self.kicks += self.wires.answer();
            if self.kicks == UNPLUG_AT {
                self.unplug_disk(&mut turn).expect("the disk is there");
            }
            if self.kicks == PAUSE_AT {
                let (group, _) = self.keys.expect("set when it was registered");
                turn.pause_group(group).expect("it is registered");
                self.paused = Some(0);
                self.seen.pauses += 1;
            }
        }

        /// Resumes the device after a kick has waited for at least one turn.
        fn look(&mut self, mut turn: Turn<'_>) {
            let (Some(found), Some((group, kick))) = (&mut self.paused, self.keys) else { return };
            *found += u32::from(self.wires.is_kicked().expect("an eventfd can be polled"));
            if *found == 2 {
                turn.resume_group(group).expect("it is registered");
                turn.kick(kick, Ready::empty().read()).expect("it waits for reading");
                self.paused = None;
            }
        }

        fn unplug_disk(&mut self, turn: &mut Turn<'_>) -> io::Result<()> {
            let wires = &self.disk.wires;
            self.machine.unplug(1, &wires.kick, &wires.interrupt)?;
            turn.delete_group(self.disk_group)?;
            // Kicks that the guest made before, and whose event has not come yet.
            self.disk.kicks.set(self.disk.kicks.get() + wires.answer());
            Ok(())
        }
    }

    /// Runs a guest of so many rounds to its end.
    pub(super) fn run(mut reactor: Reactor, rounds: u32) -> io::Result<Seen> {
        let (machine, processor) = machine(rounds)?;
        let (net, disk) = (Wires::new()?, Rc::new(Wires::new()?));
        machine.plug(0, &net.kick, &net.interrupt)?;
        machine.plug(1, &disk.kick, &disk.interrupt)?;

        let kicks = Rc::new(Cell::new(0));
        let (disk_kick, net_kick) = (disk.kick.try_clone()?, net.kick.try_clone()?);
        let of_net = Disk { wires: Rc::clone(&disk), kicks: Rc::clone(&kicks) };
        let disk_group = Group::new(Disk { wires: disk, kicks: Rc::clone(&kicks) })
            .fd(interest().read(), disk_kick, |disk: &mut Disk| {
                disk.kicks.set(disk.kicks.get() + disk.wires.answer());
            })
            .register_into(&mut reactor)?
            .group;
        let net = Net {
            machine: machine.clone(),
            wires: net,
            kicks: 0,
            keys: None,
            paused: None,
            disk: of_net,
            disk_group,
            seen: Seen::default(),
        };
        let net = Group::new(net)
            .fd(interest().read(), net_kick, Net::on_kick)
            .register_into(&mut reactor)?;
        let net_group = net.group;
        reactor.group_mut(net_group).expect("just registered").keys =
            Some((net_group, net.members[0]));
        // A timer of the group would be paused with it.
        reactor.every_with(LOOK_EVERY, move |mut turn| {
            turn.with_group(net_group, Net::look).expect("no member runs");
        })?;

        let stop = StopOnDrop(reactor.stop_handle());
        let guest = thread::spawn(move || {
            let _stop = stop;
            processor.run()
        });
        reactor.run()?;
        let unclaimed =
            guest.join().map_err(|_| io::Error::other("the processor has panicked"))??;

        let net = reactor.group_mut(net_group).expect("nobody has removed it");
        let kicks = [net.kicks, kicks.get()];
        Ok(Seen { kicks, answers: machine.answers(0), unclaimed, ..std::mem::take(&mut net.seen) })
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn each_kick_is_answered_while_devices_pause_and_go() {
        if let Some(why) = machine::refusal() {
            eprintln!("skipped here: each_kick_is_answered_while_devices_pause_and_go: {why}");
            return;
        }
        let reactor = windlass_examples::builder().unwrap().build().unwrap();
        let seen = devices::run(reactor, 500).unwrap();
        // The interrupt may have woken the guest, and the guest kicked the second device, before
        // its port was removed.
        assert!(matches!(seen.kicks, [500, 100 | 101]), "{seen:?}");
        let unclaimed = 500 - u32::try_from(seen.kicks[1]).unwrap();
        let expected = devices::Seen {
            kicks: seen.kicks,
            answers: 500,
            unclaimed,
            pauses: 1,
            ran_while_paused: false,
        };
        assert_eq!(seen, expected, "no kick is lost, and none reaches a device that is gone");
        const { assert!(devices::PAUSE_AT < 500) };
    }
}
