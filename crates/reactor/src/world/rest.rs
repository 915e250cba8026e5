//! Output that a process still sends when its programs have ended. A real process waits for that in
//! the destructor of a program, where a program of a simulation cannot wait.

use std::time::Duration;

use windlass_sim::{PollEvent, PollSet, mask};

use super::{Host, Next, Program, SimFd};

/// So many objects are looked at in one step.
const EVENTS: usize = 16;

/// Sends until there is nothing left, or the time is over.
struct Rest<F> {
    host: Host,
    set: PollSet,
    until_ns: u64,
    send: F,
}

impl<F: FnMut() -> bool> Program for Rest<F> {
    fn step(&mut self) -> Next {
        // What it reports does not matter: an object that is ready again is reported again.
        let _ = self.set.wait(&mut [PollEvent::default(); EVENTS]);
        let goes_on = (self.send)();
        match self.until_ns.saturating_sub(self.host.kernel().now_ns()) {
            left @ 1.. if goes_on => Next::After(Duration::from_nanos(left)),
            _ => Next::Ends,
        }
    }
}

impl Host {
    /// Calls a closure when one of the objects may be writable, until it returns false, but for no
    /// longer than `longest`. Then it is dropped; at the end of the simulation too.
    #[doc(hidden)]
    pub fn send_rest<'o>(
        &self,
        objects: impl Iterator<Item = &'o SimFd>,
        longest: Duration,
        send: impl FnMut() -> bool + 'static,
    ) {
        let world = self.world();
        if world.has_ended() {
            return;
        }
        let actor = world.kernel().actor(self.id(), "rest");
        let set = world.kernel().poll_set(actor);
        for object in objects {
            // One that was closed is not waited for.
            let _ = object.call(|_, fd| set.add(fd, mask::OUT, 0));
        }
        let until_ns = world.after(longest);
        let rest = Rest { host: self.clone(), set, until_ns, send };
        world.add(self.id(), actor, Box::new(rest));
    }
}
