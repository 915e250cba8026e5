//! A device with four descriptors and one state: a simple model of a virtio block device in a VMM.
//!
//! It shows:
//! - A `Group` has one state and several members. Each member has its own handler, and each handler
//!   gets `&mut Device`. No mutex, no `Rc<RefCell<..>>` and no look-up of the descriptor is needed.
//! - Timers can be members, too. The timer here flushes written sectors.
//! - Deleting the group drops all members and then the state, also if a member deletes it.
//! - `group_mut` gives access to the state from outside, between turns.
//!
//! The guest (here a thread, or the test) puts requests into a queue that both sides share, and
//! writes to an eventfd. The device puts the answers into the same queue and raises its interrupt,
//! another eventfd. It does not raise the interrupt again before the guest has acknowledged it, as
//! a guest without message-signalled interrupts needs it.
//!
//! Run it with `cargo run --example block_device`, and its tests with
//! `cargo test --example block_device`.

use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::event::{EventfdFlags, eventfd};
use windlass::{Group, ProgressWatch, Reactor, Registered, Turn, interest};

/// Interval at which written sectors are flushed.
const FLUSH_EVERY: Duration = Duration::from_millis(5);

type Sector = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Read(usize),
    Write(usize, Sector),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Read(Sector),
    Written,
    OutOfRange,
}

/// The memory that guest and device share; in a VMM this is guest memory.
#[derive(Clone, Default)]
struct Queue(Arc<Mutex<(VecDeque<Request>, VecDeque<Answer>)>>);

impl Queue {
    fn with<T>(&self, run: impl FnOnce(&mut VecDeque<Request>, &mut VecDeque<Answer>) -> T) -> T {
        let mut both = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (requests, answers) = &mut *both;
        run(requests, answers)
    }
}

/// The descriptors between guest and device. `try_clone` duplicates them for the other side.
struct Wires {
    kick: OwnedFd,
    acknowledge: OwnedFd,
    resize: OwnedFd,
    power_off: OwnedFd,
    interrupt: OwnedFd,
}

impl Wires {
    fn new() -> io::Result<Self> {
        let wire = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            kick: wire()?,
            acknowledge: wire()?,
            resize: wire()?,
            power_off: wire()?,
            interrupt: wire()?,
        })
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            kick: self.kick.try_clone()?,
            acknowledge: self.acknowledge.try_clone()?,
            resize: self.resize.try_clone()?,
            power_off: self.power_off.try_clone()?,
            interrupt: self.interrupt.try_clone()?,
        })
    }
}

/// Adds to an eventfd.
fn signal(wire: &OwnedFd, count: u64) {
    rustix::io::write(wire, &count.to_ne_bytes()).expect("its counter is far from full");
}

/// Takes the value of an eventfd; 0 if it has none.
fn drain(wire: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(wire, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

/// The state that all members share.
struct Device {
    queue: Queue,
    interrupt: OwnedFd,
    cache: Vec<Sector>,
    /// The flushed sectors: the file of the device.
    stored: Vec<Sector>,
    is_raised: bool,
    has_news: bool,
    flushes: u64,
}

impl Device {
    fn new(queue: Queue, interrupt: OwnedFd, sectors: usize) -> Self {
        let (cache, stored) = (vec![0; sectors], vec![0; sectors]);
        Self { queue, interrupt, cache, stored, is_raised: false, has_news: false, flushes: 0 }
    }

    /// The guest has put requests into the queue.
    fn on_kick(&mut self, kick: &mut OwnedFd) {
        drain(kick);
        let cache = &mut self.cache;
        let count = self.queue.with(|requests, answers| {
            answers.extend(requests.drain(..).map(|request| serve(cache, request)));
            answers.len()
        });
        self.has_news |= count > 0;
        self.raise();
    }

    /// The guest has acknowledged the interrupt. Answers since then need another one.
    fn on_acknowledge(&mut self, acknowledge: &mut OwnedFd) {
        drain(acknowledge);
        self.is_raised = false;
        self.raise();
    }

    fn raise(&mut self) {
        if self.has_news && !self.is_raised {
            signal(&self.interrupt, 1);
            self.is_raised = true;
            self.has_news = false;
        }
    }

    /// The host has enlarged the disk by this many sectors.
    fn on_resize(&mut self, resize: &mut OwnedFd) {
        let sectors = self.cache.len() + usize::try_from(drain(resize)).unwrap_or(0);
        self.cache.resize(sectors, 0);
        self.has_news = true;
        self.raise();
    }

    /// Handles the flush timer.
    fn flush(&mut self) {
        if self.stored != self.cache {
            self.stored.clone_from(&self.cache);
            self.flushes += 1;
        }
    }
}

fn serve(cache: &mut [Sector], request: Request) -> Answer {
    match request {
        Request::Read(place) => {
            cache.get(place).map_or(Answer::OutOfRange, |sector| Answer::Read(*sector))
        }
        Request::Write(place, value) => cache.get_mut(place).map_or(Answer::OutOfRange, |sector| {
            *sector = value;
            Answer::Written
        }),
    }
}

/// Registers the device: four descriptors, a timer, one state.
fn plug_in(reactor: &mut Reactor, device: Device, wires: Wires) -> io::Result<Registered<Device>> {
    let Wires { kick, acknowledge, resize, power_off, interrupt: _ } = wires;
    let registered = Group::new(device)
        .with_name("disk0")
        .fd(interest().read(), kick, Device::on_kick)
        .with_member_name("disk0 kick")
        .fd(interest().read(), acknowledge, Device::on_acknowledge)
        .fd(interest().read(), resize, Device::on_resize)
        .fd(
            interest().read(),
            power_off,
            |device: &mut Device, power_off: &mut OwnedFd, mut turn: Turn<'_, _>| {
                drain(power_off);
                device.flush();
                turn.stop();
            },
        )
        .every(FLUSH_EVERY, Device::flush)
        .register_into(reactor)?;
    Ok(registered)
}

fn main() -> io::Result<()> {
    let (queue, wires) = (Queue::default(), Wires::new()?);
    let guest = (queue.clone(), wires.try_clone()?);
    let watch = ProgressWatch::new(100, |stuck, _| eprintln!("it does nothing: {stuck:?}"));
    let mut reactor = windlass_examples::builder()?.progress_watch(watch).build()?;
    let device = plug_in(&mut reactor, Device::new(queue, wires.interrupt.try_clone()?, 8), wires)?;
    for one in reactor.registrations() {
        println!("{:?} {:?}: {}", one.kind, one.fd, one.name.unwrap_or("without a name"));
    }
    let guest = std::thread::spawn(move || run_guest(&guest.0, &guest.1));
    reactor.run()?;
    guest.join().expect("the guest does not panic")?;
    if let Some(device) = reactor.group_mut(device.group) {
        println!("stored: {:?}, flushed {} times", device.stored, device.flushes);
    }
    Ok(())
}

/// Acts as the driver of a guest: writes, waits for the interrupt, acknowledges it, and reads back.
fn run_guest(queue: &Queue, wires: &Wires) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    for place in 0..4 {
        queue.with(|requests, _| {
            requests.extend([Request::Write(place, place as u64 + 100), Request::Read(place)])
        });
        signal(&wires.kick, 1);
        poll(&mut [PollFd::new(&wires.interrupt, PollFlags::IN)], None)?;
        drain(&wires.interrupt);
        signal(&wires.acknowledge, 1);
        println!("the guest got {:?}", queue.with(|_, answers| std::mem::take(answers)));
    }
    signal(&wires.power_off, 1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        reactor: Reactor,
        device: Registered<Device>,
        queue: Queue,
        wires: Wires,
    }

    fn bench() -> Bench {
        let (queue, wires) = (Queue::default(), Wires::new().unwrap());
        let mut reactor = windlass_examples::builder().unwrap().build().unwrap();
        let device = Device::new(queue.clone(), wires.interrupt.try_clone().unwrap(), 8);
        let device = plug_in(&mut reactor, device, wires.try_clone().unwrap()).unwrap();
        Bench { reactor, device, queue, wires }
    }

    impl Bench {
        fn request(&mut self, request: Request) {
            self.queue.with(|requests, _| requests.push_back(request));
            signal(&self.wires.kick, 1);
            self.reactor.run_once(Duration::ZERO).unwrap();
        }

        fn answers(&self) -> VecDeque<Answer> {
            self.queue.with(|_, answers| std::mem::take(answers))
        }
    }

    #[test]
    fn every_member_has_the_same_state() {
        let mut bench = bench();
        bench.request(Request::Write(3, 7));
        bench.request(Request::Read(3));
        bench.request(Request::Read(8));
        assert_eq!(bench.answers(), [Answer::Written, Answer::Read(7), Answer::OutOfRange]);
        signal(&bench.wires.resize, 1);
        bench.reactor.run_once(Duration::ZERO).unwrap();
        bench.request(Request::Read(8));
        assert_eq!(bench.answers(), [Answer::Read(0)]);
    }

    #[test]
    fn the_interrupt_is_not_raised_again_before_it_is_acknowledged() {
        let mut bench = bench();
        bench.request(Request::Read(0));
        bench.request(Request::Read(1));
        assert_eq!(drain(&bench.wires.interrupt), 1);
        signal(&bench.wires.acknowledge, 1);
        assert_eq!(bench.reactor.run_once(Duration::ZERO).unwrap(), 1);
        assert_eq!(drain(&bench.wires.interrupt), 1, "the second answer was not forgotten");
        signal(&bench.wires.acknowledge, 1);
        bench.reactor.run_once(Duration::ZERO).unwrap();
        assert_eq!(drain(&bench.wires.interrupt), 0);
    }

    #[test]
    fn the_timer_flushes() {
        let mut bench = bench();
        bench.request(Request::Write(1, 9));
        while bench.reactor.group_mut(bench.device.group).unwrap().flushes == 0 {
            bench.reactor.run_once(None).unwrap();
        }
        assert_eq!(bench.reactor.group_mut(bench.device.group).unwrap().stored[1], 9);
    }

    #[test]
    fn unplugging_closes_all_of_it() {
        let mut bench = bench();
        let before = bench.reactor.stats();
        bench.reactor.delete_group(bench.device.group).unwrap();
        let after = bench.reactor.stats();
        assert_eq!((before.subscribers - after.subscribers, before.timers - after.timers), (4, 1));
        assert!(bench.reactor.group_mut(bench.device.group).is_none());
        assert_eq!(Arc::strong_count(&bench.queue.0), 1, "the state went with its members");
    }

    #[test]
    fn a_guest_thread_is_served_until_it_powers_off() {
        let Bench { mut reactor, device, queue, wires } = bench();
        let guest = std::thread::spawn(move || run_guest(&queue, &wires));
        reactor.run().unwrap();
        guest.join().unwrap().unwrap();
        assert_eq!(reactor.group_mut(device.group).unwrap().stored[..4], [100, 101, 102, 103]);
    }
}
