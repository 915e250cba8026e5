//! Takes connections from a listener, as many as there may be.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    rc::Rc,
};

use rustix::io::Errno;
use windlass::{Event, Key, ReactorOps, Turn, interest};

use crate::{echo::Echo, server::Server};

/// How many connections one event accepts at most, so that a flood of them does not keep those that are there waiting. The
/// listener is level-triggered: what is left is reported again.
const ACCEPTS_PER_EVENT_MAX: usize = 64;

/// What can be accepted from: a listener, or a test's script.
pub(crate) trait Accept {
    /// A connection, which does not block.
    type Stream: Read + Write + AsFd + 'static;

    /// Takes the next connection, without waiting.
    fn accept_stream(&mut self) -> io::Result<Self::Stream>;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    fn accept_stream(&mut self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        // Without it an echo waits for the acknowledgement of the one before. It fails only for a connection that is
        // broken, and then reading says so.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

/// What an error of accept(2) asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nobody waits: wait for the next event.
    Drained,
    /// The one that waited is gone or forbidden: take the next.
    Next,
    /// There is no descriptor or no memory for it, or nobody knows: wait for better times.
    Pause,
}

fn verdict(error: &io::Error) -> Verdict {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN) => Verdict::Drained,
        // accept(2), "Error handling": the network's errors of the new connection come out of accept.
        Some(
            Errno::INTR
            | Errno::CONNABORTED
            | Errno::PERM
            | Errno::NETDOWN
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::OPNOTSUPP
            | Errno::NETUNREACH,
        ) => Verdict::Next,
        _ => Verdict::Pause,
    }
}

/// The listener's handler.
pub(crate) fn on_ready<A: Accept, R: ReactorOps>(
    server: &Rc<Server>,
    listener: &mut A,
    event: Event,
    mut turn: Turn<'_, R>,
) {
    for _ in 0..ACCEPTS_PER_EVENT_MAX {
        if server.is_full() {
            return server.pause(event.key(), &mut turn);
        }
        match listener.accept_stream() {
            Ok(stream) => {
                if let Err(error) = register(server, stream, &mut turn) {
                    return server.pause_for_a_while(event.key(), &error, &mut turn);
                }
            }
            Err(error) => match verdict(&error) {
                Verdict::Drained => return,
                Verdict::Next => {}
                Verdict::Pause => return server.pause_for_a_while(event.key(), &error, &mut turn),
            },
        }
    }
}

/// Registers a connection. One that the reactor refuses is closed: it comes back in the error and is dropped.
fn register<S: Read + Write + AsFd + 'static, R: ReactorOps>(
    server: &Rc<Server>,
    stream: S,
    turn: &mut Turn<'_, R>,
) -> io::Result<Key> {
    let mut echo = Echo::new(Rc::clone(server));
    let key = interest()
        .read()
        .with_fd(stream)
        .with_handler(move |stream: &mut S, event: Event, turn: Turn<'_, R>| echo.on_ready(stream, event, turn))
        .register_into(turn)?;
    server.connection_opened();
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{echo::End, server::RETRY_AFTER};
    use std::collections::VecDeque;
    use windlass::{AddError, AddReason, Interest, MockReactor, Schedule, Subscription, Tick, Timer, turn};

    const LISTENER: u64 = 7;
    const RETRY: u64 = 8;

    /// A listener that does what its script says, and then has nobody waiting.
    struct Script(VecDeque<io::Result<()>>);

    impl Script {
        fn new(steps: impl IntoIterator<Item = io::Result<()>>) -> Self {
            Self(steps.into_iter().collect())
        }
    }

    impl Accept for Script {
        type Stream = std::fs::File;

        fn accept_stream(&mut self) -> io::Result<Self::Stream> {
            self.0.pop_front().unwrap_or(Err(Errno::AGAIN.into()))?;
            std::fs::File::open("/dev/null")
        }
    }

    fn readable() -> Event {
        Event::new(Key::from_bits(LISTENER), interest().read(), windlass::Ready::empty().read())
    }

    fn expect_added(mock: &mut MockReactor, times: usize) {
        mock.expect_add_cell().times(times).returning(|subscription: Subscription<MockReactor>| {
            assert_eq!(subscription.interest(), interest().read());
            Ok(Key::from_bits(9))
        });
    }

    fn expect_listener_modified(mock: &mut MockReactor, to: Interest) {
        mock.expect_modify()
            .withf(move |key, interest| *key == Key::from_bits(LISTENER) && *interest == to)
            .times(1)
            .returning(|_, _| Ok(()));
    }

    #[test]
    fn accepts_until_nobody_waits_and_skips_those_who_left() {
        let server = Rc::new(Server::new(10, 16));
        let mut listener = Script::new([Ok(()), Err(Errno::CONNABORTED.into()), Err(Errno::INTR.into()), Ok(())]);
        let mut mock = MockReactor::new();
        expect_added(&mut mock, 2);
        on_ready(&server, &mut listener, readable(), turn!(mock));
        assert_eq!(server.counts().accepted, 2);
    }

    #[test]
    fn one_event_accepts_a_bounded_number() {
        let server = Rc::new(Server::new(1000, 16));
        let mut listener = Script::new((0..100).map(|_| Ok(())));
        let mut mock = MockReactor::new();
        expect_added(&mut mock, ACCEPTS_PER_EVENT_MAX);
        on_ready(&server, &mut listener, readable(), turn!(mock));
        assert_eq!(listener.0.len(), 100 - ACCEPTS_PER_EVENT_MAX);
    }

    #[test]
    fn a_full_server_pauses_and_resumes_when_a_connection_closes() {
        let server = Rc::new(Server::new(2, 16));
        let mut listener = Script::new((0..3).map(|_| Ok(())));
        let mut mock = MockReactor::new();
        expect_added(&mut mock, 2);
        expect_listener_modified(&mut mock, interest());
        on_ready(&server, &mut listener, readable(), turn!(mock));
        assert_eq!(listener.0.len(), 1, "the third waits in the backlog");

        let mut mock = MockReactor::new();
        expect_listener_modified(&mut mock, interest().read());
        server.connection_closed(End::Finished, &mut turn!(mock));
        assert_eq!(server.counts().open, 1);
    }

    #[test]
    fn without_descriptors_it_pauses_and_a_timer_resumes() {
        let server = Rc::new(Server::new(10, 16));
        let mut listener = Script::new([Err(Errno::MFILE.into())]);
        let timer: Rc<std::cell::RefCell<Option<Timer<MockReactor>>>> = Rc::default();
        let started = Rc::clone(&timer);
        let mut mock = MockReactor::new();
        mock.expect_start_timer().times(1).returning_st(move |timer| {
            assert_eq!(timer.schedule(), Schedule::After(RETRY_AFTER));
            started.replace(Some(timer));
            Ok(Key::from_bits(RETRY))
        });
        expect_listener_modified(&mut mock, interest());
        on_ready(&server, &mut listener, readable(), turn!(mock));

        let mut timer = timer.take().expect("a timer was started");
        let tick = Tick { key: Key::from_bits(RETRY), deadline: std::time::Instant::now(), missed: 0 };
        let mut mock = MockReactor::new();
        mock.expect_cancel().withf(|key| *key == Key::from_bits(RETRY)).times(1).returning(|_| Ok(()));
        expect_listener_modified(&mut mock, interest().read());
        timer.fire(tick, turn!(mock));
        // It has resumed already: another call does nothing.
        timer.fire(tick, turn!(MockReactor::new()));
    }

    #[test]
    fn a_connection_that_the_reactor_refuses_is_not_counted() {
        let server = Rc::new(Server::new(10, 16));
        let mut mock = MockReactor::new();
        mock.expect_add_cell()
            .times(1)
            .returning(|subscription| Err(AddError::new(AddReason::Os(Errno::NOSPC), subscription)));
        mock.expect_start_timer().times(1).returning(|_| Ok(Key::from_bits(RETRY)));
        expect_listener_modified(&mut mock, interest());
        on_ready(&server, &mut Script::new([Ok(())]), readable(), turn!(mock));
        assert_eq!(server.counts().accepted, 0);
        assert_eq!(server.counts().accepting_paused, 1);
    }

    #[test]
    fn errors_of_the_process_pause_and_errors_of_a_connection_do_not() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::INVAL] {
            assert_eq!(verdict(&errno.into()), Verdict::Pause, "{errno}");
        }
        assert_eq!(verdict(&Errno::CONNABORTED.into()), Verdict::Next);
        assert_eq!(verdict(&Errno::AGAIN.into()), Verdict::Drained);
        assert_eq!(verdict(&io::ErrorKind::Other.into()), Verdict::Pause);
    }
}
