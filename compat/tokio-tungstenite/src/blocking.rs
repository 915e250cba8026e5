//! A stream with tokio's traits as one with those of the standard library, which says `WouldBlock`
//! where the other is pending.
//!
//! 1. The halves of a split socket are polled by two tasks, and either may read and write: reading
//!    answers pings, and TLS does both for each. A stream keeps one waker for reading and one for
//!    writing.
//! 2. While only one half has been polled, or the same task polls both, the stream gets that task's
//!    waker.
//! 3. When two tasks poll, the stream gets one waker for each direction. It wakes both tasks. Both
//!    are registered at that moment; later each poll registers its own task.
//! 4. A poll that receives registers its task when it uses the stream. A message that was read with
//!    the one before is returned without it.

use std::{
    io::{self, Read, Write},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use atomic_waker::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use windlass_tungstenite::Error;

/// A stream that says `WouldBlock`.
#[derive(Debug)]
pub(crate) struct Blocking<S> {
    stream: S,
    /// The wakers of the last polls, by half.
    wakers: [Option<Waker>; 2],
    /// Whose waker the stream gets.
    woken: Woken,
    /// Made for the first time that two tasks are woken.
    both: Option<Box<Both>>,
}

/// A stream in a poll of one half, whose task waits for what the calls are blocked by.
#[derive(Debug)]
pub(crate) struct Polled<'p, S> {
    stream: &'p mut Blocking<S>,
    half: Half,
    waker: &'p Waker,
}

/// The tasks that the stream wakes.
#[derive(Clone, Copy, Debug)]
enum Woken {
    One(Half),
    Both,
}

/// A waker of two tasks for each direction.
#[derive(Debug, Default)]
struct Both {
    read: Direction,
    write: Direction,
}

/// The tasks that wait for a direction of the stream.
#[derive(Debug)]
struct Direction {
    waiters: Arc<Waiters>,
    /// Wakes them.
    waker: Waker,
}

/// The tasks, by half.
#[derive(Debug, Default)]
struct Waiters([AtomicWaker; 2]);

/// Which half of a socket is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// It receives messages, or makes the handshake.
    Receiver,
    /// It sends messages.
    Sender,
}

impl Half {
    const BOTH: [Self; 2] = [Self::Receiver, Self::Sender];

    fn other(self) -> Self {
        match self {
            Self::Receiver => Self::Sender,
            Self::Sender => Self::Receiver,
        }
    }
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        for waiter in &self.0 {
            waiter.wake();
        }
    }
}

impl Default for Direction {
    fn default() -> Self {
        let waiters = Arc::<Waiters>::default();
        Self { waker: Waker::from(Arc::clone(&waiters)), waiters }
    }
}

impl Both {
    fn register(&self, half: Half, waker: &Waker) {
        for direction in [&self.read, &self.write] {
            direction.waiters.0[half as usize].register(waker);
        }
    }
}

impl<S> Blocking<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, wakers: [None, None], woken: Woken::One(Half::Receiver), both: None }
    }

    /// The task of this half waits for what the next calls are blocked by.
    #[inline]
    pub(crate) fn register(&mut self, half: Half, waker: &Waker) {
        let is_same = |known: &Option<Waker>| known.as_ref().is_some_and(|it| it.will_wake(waker));
        if !is_same(&self.wakers[half as usize]) {
            self.wakers[half as usize] = Some(waker.clone());
        }
        let other = &self.wakers[half.other() as usize];
        if other.is_none() || is_same(other) {
            self.woken = Woken::One(half);
        } else {
            self.register_beside_other(half);
        }
    }

    /// The stream for this poll: the task is registered when the stream is used.
    #[inline]
    pub(crate) fn polled<'p>(&'p mut self, half: Half, waker: &'p Waker) -> Polled<'p, S> {
        Polled { stream: self, half, waker }
    }

    #[inline(never)]
    fn register_beside_other(&mut self, half: Half) {
        let begins = !matches!(self.woken, Woken::Both);
        self.woken = Woken::Both;
        let both = self.both.get_or_insert_default();
        for of in Half::BOTH {
            if let (true, Some(waker)) = (begins || of == half, &self.wakers[of as usize]) {
                both.register(of, waker);
            }
        }
    }

    pub(crate) fn get_ref(&self) -> &S {
        &self.stream
    }

    pub(crate) fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    pub(crate) fn into_inner(self) -> S {
        self.stream
    }

    /// The stream, and the waker for a direction of it. Nobody is woken before the first poll.
    #[inline]
    fn parts(&mut self, direction: fn(&Both) -> &Direction) -> (Pin<&mut S>, &Waker)
    where
        S: Unpin,
    {
        let waker = match (self.woken, &self.both) {
            (Woken::Both, Some(both)) => Some(&direction(both).waker),
            (Woken::Both, None) => None,
            (Woken::One(half), _) => self.wakers[half as usize].as_ref(),
        };
        (Pin::new(&mut self.stream), waker.unwrap_or(Waker::noop()))
    }
}

fn or_would_block<T>(result: Poll<io::Result<T>>) -> io::Result<T> {
    match result {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// The reverse, for the result of a call on such a stream.
#[inline]
pub(crate) fn or_pending<T>(result: Result<T, Error>) -> Poll<Result<T, Error>> {
    match result {
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        result => Poll::Ready(result),
    }
}

impl<S: AsyncRead + Unpin> Read for Blocking<S> {
    #[inline]
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(bytes);
        let (stream, waker) = self.parts(|both| &both.read);
        or_would_block(stream.poll_read(&mut Context::from_waker(waker), &mut buffer))?;
        Ok(buffer.filled().len())
    }
}

impl<S: AsyncWrite + Unpin> Write for Blocking<S> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (stream, waker) = self.parts(|both| &both.write);
        or_would_block(stream.poll_write(&mut Context::from_waker(waker), bytes))
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        let (stream, waker) = self.parts(|both| &both.write);
        or_would_block(stream.poll_flush(&mut Context::from_waker(waker)))
    }
}

impl<S> Polled<'_, S> {
    #[inline]
    fn registered(&mut self) -> &mut Blocking<S> {
        self.stream.register(self.half, self.waker);
        self.stream
    }
}

impl<S: AsyncRead + Unpin> Read for Polled<'_, S> {
    #[inline]
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.registered().read(bytes)
    }
}

impl<S: AsyncWrite + Unpin> Write for Polled<'_, S> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.registered().write(bytes)
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        self.registered().flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wakes by the waker that a direction gets.
    fn wake<S: Unpin>(stream: &mut Blocking<S>, direction: fn(&Both) -> &Direction) {
        stream.parts(direction).1.wake_by_ref();
    }

    fn counts(tasks: [&Arc<Count>; 2]) -> [usize; 2] {
        tasks.map(|count| count.0.swap(0, Ordering::Relaxed))
    }

    const DIRECTIONS: [fn(&Both) -> &Direction; 2] = [|both| &both.read, |both| &both.write];

    #[test]
    fn each_direction_wakes_both_halves() {
        let mut stream = Blocking::new(());
        let (receiver, sender) = (Arc::<Count>::default(), Arc::<Count>::default());
        for direction in DIRECTIONS {
            stream.register(Half::Receiver, &Arc::clone(&receiver).into());
            stream.register(Half::Sender, &Arc::clone(&sender).into());
            wake(&mut stream, direction);
            assert_eq!(counts([&receiver, &sender]), [1, 1]);
            // One that was woken and has not come back is not woken again.
            wake(&mut stream, direction);
            assert_eq!(counts([&receiver, &sender]), [0, 0]);
            stream.register(Half::Receiver, &Arc::clone(&receiver).into());
            wake(&mut stream, direction);
            assert_eq!(counts([&receiver, &sender]), [1, 0]);
        }
    }

    #[test]
    fn the_half_that_waits_is_woken_when_another_task_begins_to_use_the_other_one() {
        let (waits, begins) = (Arc::<Count>::default(), Arc::<Count>::default());
        for half in Half::BOTH {
            for direction in DIRECTIONS {
                let mut stream = Blocking::new(());
                stream.register(half, &Arc::clone(&waits).into());
                stream.register(half.other(), &Arc::clone(&begins).into());
                wake(&mut stream, direction);
                assert_eq!(counts([&waits, &begins]), [1, 1], "{half:?}");
            }
        }
    }

    #[test]
    fn a_poll_registers_its_task_with_each_use_of_the_stream() {
        let uses: [fn(&mut Polled<'_, tokio::io::Empty>); 3] = [
            |polled| assert_eq!(polled.read(&mut [0]).unwrap(), 0),
            |polled| assert_eq!(polled.write(&[0]).unwrap(), 1),
            |polled| polled.flush().unwrap(),
        ];
        for use_it in uses {
            let mut stream = Blocking::new(tokio::io::empty());
            let task = Arc::<Count>::default();
            let waker = Waker::from(Arc::clone(&task));
            let mut polled = stream.polled(Half::Receiver, &waker);
            wake(polled.stream, DIRECTIONS[0]);
            assert_eq!(task.0.load(Ordering::Relaxed), 0, "nothing was used");
            use_it(&mut polled);
            for direction in DIRECTIONS {
                wake(&mut stream, direction);
            }
            assert_eq!(task.0.load(Ordering::Relaxed), 2);
        }
    }

    #[test]
    fn one_task_is_woken_by_its_own_waker() {
        let mut stream = Blocking::new(());
        wake(&mut stream, DIRECTIONS[0]);
        let (first, second) = (Arc::<Count>::default(), Arc::<Count>::default());
        for half in Half::BOTH {
            stream.register(half, &Arc::clone(&first).into());
            for direction in DIRECTIONS {
                wake(&mut stream, direction);
            }
            assert_eq!(counts([&first, &second]), [2, 0]);
        }
        assert!(stream.both.is_none());
        // The socket moves to another task.
        for half in Half::BOTH {
            stream.register(half, &Arc::clone(&second).into());
        }
        for direction in DIRECTIONS {
            wake(&mut stream, direction);
        }
        assert_eq!(counts([&first, &second]), [0, 2]);
    }
}
