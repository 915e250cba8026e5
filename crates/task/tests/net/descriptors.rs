//! `AsyncFd`: readiness and registration.

use std::{
    cell::{Cell, RefCell},
    fs::File,
    future::poll_fn,
    io::{ErrorKind, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::net::UnixStream,
    },
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use windlass_task::{
    AsyncFd,
    Direction::{Read as Reading, Write as Writing},
    block_on, spawn, with_turn, yield_now,
};

use crate::{
    counting_waker::CountingWaker,
    scenarios::Build,
    tools::{executor, poll_now, run, turns},
};

fn pair() -> (AsyncFd<UnixStream>, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    (AsyncFd::new(here).unwrap(), there)
}

fn subscribers() -> usize {
    with_turn(|turn| turn.stats().subscribers).unwrap()
}

fn take(fd: &AsyncFd<UnixStream>, room: usize) -> std::io::Result<Vec<u8>> {
    let mut buffer = vec![0; room];
    fd.try_io(Reading, |mut stream| stream.read(&mut buffer)).map(|count| {
        buffer.truncate(count);
        buffer
    })
}

fn readiness_is_kept_until_an_operation_would_block(build: Build) {
    run(build, async {
        let (fd, mut there) = pair();
        assert_eq!(take(&fd, 1).unwrap_err().kind(), ErrorKind::WouldBlock, "no edge yet");
        there.write_all(b"hello").unwrap();
        fd.readable().await.unwrap();
        fd.readable().await.unwrap();
        // A short read says nothing about an unknown descriptor.
        assert_eq!(take(&fd, 3).unwrap(), b"hel");
        assert_eq!(take(&fd, 16).unwrap(), b"lo");
        assert!(matches!(poll_now(&mut Box::pin(fd.readable())), Poll::Ready(Ok(()))));
        assert_eq!(take(&fd, 16).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(poll_now(&mut Box::pin(fd.readable())).is_pending());
        let again = spawn(async move { there.write_all(b"again").map(|()| there) });
        fd.readable().await.unwrap();
        assert_eq!(take(&fd, 16).unwrap(), b"again");
        again.await.unwrap().unwrap();
    });
}

fn an_edge_before_the_operation_is_kept(build: Build) {
    run(build, async {
        let (fd, mut there) = pair();
        // Without edges a wait must ask first.
        assert!(poll_now(&mut Box::pin(fd.readable())).is_pending());
        there.write_all(b"x").unwrap();
        let mut turns = 0;
        while take(&fd, 1).is_err() {
            turns += 1;
            assert!(turns < 1000, "the edge is lost");
            yield_now().await;
        }
    });
}

fn all_futures_of_a_direction_are_woken_and_one_waiter_of_poll_ready(build: Build) {
    run(build, async {
        let (fd, mut there) = pair();
        let wakers: Vec<_> = (0..5).map(|_| Arc::new(CountingWaker::default())).collect();
        let mut futures: Vec<_> = (0..3).map(|_| Box::pin(fd.readable())).collect();
        for (future, waker) in futures.iter_mut().zip(&wakers) {
            let waker = Waker::from(Arc::clone(waker));
            assert!(future.as_mut().poll_with(&waker).is_pending());
        }
        for waker in &wakers[3..] {
            let waker = Waker::from(Arc::clone(waker));
            assert!(fd.poll_ready(Reading, &mut Context::from_waker(&waker)).is_pending());
        }
        drop(futures.remove(1));
        assert_eq!(Arc::strong_count(&wakers[1]), 1, "dropped with its future");
        there.write_all(b"x").unwrap();
        fd.readable().await.unwrap();
        let counts: Vec<_> = wakers.iter().map(|waker| waker.count()).collect();
        assert_eq!(counts, [1, 0, 1, 0, 1]);
    });
}

trait PollWith: Future {
    fn poll_with(self: std::pin::Pin<&mut Self>, waker: &Waker) -> Poll<Self::Output>
    where
        Self: Sized,
    {
        self.poll(&mut Context::from_waker(waker))
    }
}
impl<F: Future> PollWith for F {}

fn both_directions_are_waited_for_independently(build: Build) {
    run(build, async {
        let (fd, mut there) = pair();
        fd.writable().await.unwrap();
        // Fills the other end's queue.
        let chunk = [7; 4096];
        let mut sent = 0;
        while let Ok(count) = fd.try_io(Writing, |mut stream| stream.write(&chunk)) {
            sent += count;
        }
        let fd = Rc::new(fd);
        let (reading, writing) = (Rc::clone(&fd), Rc::clone(&fd));
        let reader = spawn(async move { reading.readable().await });
        let writer = spawn(async move { writing.writable().await });
        turns().await;
        there.write_all(b"x").unwrap();
        reader.await.unwrap().unwrap();
        assert!(!writer.is_finished());
        let mut drained = vec![0; sent];
        there.read_exact(&mut drained).unwrap();
        writer.await.unwrap().unwrap();
    });
}

fn async_io_tries_again_after_would_block(build: Build) {
    run(build, async {
        let (fd, mut there) = pair();
        let tries = Cell::new(0);
        there.write_all(b"x").unwrap();
        let mut buffer = [0; 8];
        let read = fd.async_io(Reading, |mut stream| {
            tries.set(tries.get() + 1);
            let count = stream.read(&mut buffer)?;
            if tries.get() == 1 {
                // Says so for a reason of its own.
                return Err(ErrorKind::WouldBlock.into());
            }
            Ok(count)
        });
        let write = async {
            while tries.get() == 0 {
                yield_now().await;
            }
            there.write_all(b"more").unwrap();
        };
        let (count, ()) = crate::tools::both(read, write).await;
        assert_eq!((count.unwrap(), tries.get()), (4, 2));
    });
}

fn a_hangup_is_not_cleared_by_a_closure(build: Build) {
    run(build, async {
        let (fd, there) = pair();
        drop(there);
        fd.readable().await.unwrap();
        let rejected = fd.try_io(Reading, |_| Err::<(), _>(ErrorKind::WouldBlock.into()));
        assert_eq!(rejected.unwrap_err().kind(), ErrorKind::WouldBlock);
        fd.clear_ready(Reading);
        fd.readable().await.unwrap();
        assert_eq!(take(&fd, 8).unwrap(), b"");
    });
}

fn a_rejected_registration_returns_the_value_at_once(build: Build) {
    run(build, async {
        let before = subscribers();
        let error = AsyncFd::try_new(File::open("/proc/self/exe").unwrap()).unwrap_err();
        assert_eq!(error.reason.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.value.metadata().unwrap().is_file());
        assert_eq!(subscribers(), before);
    });
    let error = AsyncFd::new(UnixStream::pair().unwrap().0).unwrap_err();
    assert!(error.to_string().contains("no executor"), "{error}");
}

fn where_there_is_no_turn_a_registration_is_queued(build: Build) {
    run(build, async {
        let queue = || {
            with_turn(|_| (pair(), AsyncFd::new(File::open("/proc/self/exe").unwrap()).unwrap()))
        };
        let ((fd, mut there), rejected) = queue().unwrap();
        there.write_all(b"x").unwrap();
        fd.readable().await.unwrap();
        let error = rejected.readable().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        // Queued and dropped in the same turn: never registered.
        let before = subscribers();
        with_turn(|_| drop(pair())).unwrap();
        turns().await;
        assert_eq!(subscribers(), before);
    });
}

/// Looks at the reactor when it is dropped.
struct Watched(UnixStream, Rc<Cell<Option<usize>>>);

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // It is open still.
        rustix::io::fcntl_getfd(&self.0).unwrap();
        self.1.set(with_turn(|turn| turn.stats().subscribers).or(Some(usize::MAX)));
    }
}

fn dropping_ends_the_registration_before_the_value(build: Build) {
    run(build, async {
        let before = subscribers();
        let seen = Rc::new(Cell::new(None));
        let watched = || {
            let stream = UnixStream::pair().unwrap().0;
            AsyncFd::new(Watched(stream, Rc::clone(&seen))).unwrap()
        };
        let fd = watched();
        assert_eq!(subscribers(), before + 1);
        drop(fd);
        assert_eq!(seen.take(), Some(before));
        // Where there is no turn, both are queued.
        let fd = watched();
        with_turn(|_| drop(fd)).unwrap();
        assert_eq!(seen.get(), None, "the value waits for the end of its registration");
        turns().await;
        assert!(seen.get().is_some());
        assert_eq!(subscribers(), before);
    });
}

fn a_number_that_is_used_again_at_once_is_another_source(build: Build) {
    run(build, async {
        for round in 0..20 {
            let (first, mut old) = pair();
            let number = first.as_raw_fd();
            old.write_all(b"old").unwrap();
            if round % 2 == 0 {
                first.readable().await.unwrap();
            }
            let (here, mut there) = UnixStream::pair().unwrap();
            here.set_nonblocking(true).unwrap();
            let inner = first.into_inner();
            // Other tests open descriptors meanwhile, so the number is taken over by dup3(2).
            let mut inner = std::os::fd::OwnedFd::from(inner);
            rustix::io::dup3(&here, &mut inner, rustix::io::DupFlags::CLOEXEC).unwrap();
            let second = AsyncFd::new(UnixStream::from(inner)).unwrap();
            assert_eq!(second.as_raw_fd(), number);
            assert!(poll_now(&mut Box::pin(second.readable())).is_pending());
            turns().await;
            assert!(poll_now(&mut Box::pin(second.readable())).is_pending(), "not the old one's");
            there.write_all(b"new").unwrap();
            second.readable().await.unwrap();
            assert_eq!(take(&second, 8).unwrap(), b"new");
        }
        // The end of the old registration is queued, and the new one comes first.
        let (first, _old) = pair();
        let inner = with_turn(|_| first.into_inner()).unwrap();
        let (second, mut there) = (AsyncFd::new(inner).unwrap(), _old);
        there.write_all(b"x").unwrap();
        second.readable().await.unwrap();
    });
}

fn the_end_of_the_executor_wakes_waiters_with_an_error(build: Build) {
    let mut first = executor(build);
    let (fd, mut there) = first.block_on(async { pair() });
    run(build, async move {
        let fd = Rc::new(fd);
        let waiting = Rc::clone(&fd);
        let task = spawn(async move { waiting.readable().await });
        let with_poll = Rc::clone(&fd);
        let other = spawn(poll_fn(move |context| with_poll.poll_ready(Reading, context)));
        turns().await;
        assert!(!task.is_finished());
        drop(first);
        let error = task.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("dropped"), "{error}");
        other.await.unwrap().unwrap_err();
        there.write_all(b"x").unwrap();
        fd.readable().await.unwrap_err();
        // The value is usable without the reactor.
        let mut fd = Rc::into_inner(fd).unwrap().into_inner();
        let mut buffer = [0; 1];
        fd.read_exact(&mut buffer).unwrap();
    });
}

fn sockets_may_be_dropped_after_their_executor_and_outside_of_it(build: Build) {
    let mut first = executor(build);
    let (kept, _there) = first.block_on(async { pair() });
    let (outside, mut there) = first.block_on(async { pair() });
    // Outside of `block_on`: the next run closes it.
    drop(outside);
    first.block_on(yield_now());
    assert_eq!(there.read(&mut [0; 1]).unwrap(), 0);
    drop(first);
    drop(kept);
    block_on(async {});
}

fn destructors_of_futures_may_drop_and_make_sockets_at_the_end(build: Build) {
    struct AtDrop(Rc<RefCell<Vec<bool>>>, Option<AsyncFd<UnixStream>>);
    impl Drop for AtDrop {
        fn drop(&mut self) {
            self.1.take();
            let (here, _there) = UnixStream::pair().unwrap();
            self.0.borrow_mut().push(AsyncFd::new(here).is_ok());
        }
    }
    let made = Rc::new(RefCell::new(Vec::new()));
    let mut first = executor(build);
    let (fd, mut there) = first.block_on(async { pair() });
    let at_drop = AtDrop(Rc::clone(&made), Some(fd));
    first
        .spawn(async move {
            let at_drop = at_drop;
            at_drop.1.as_ref().unwrap().readable().await.unwrap();
        })
        .detach();
    first.block_on(yield_now());
    drop(first);
    assert_eq!(made.take(), [true]);
    assert_eq!(there.read(&mut [0; 1]).unwrap(), 0);
}

scenarios! {
    readiness_is_kept_until_an_operation_would_block,
    an_edge_before_the_operation_is_kept,
    all_futures_of_a_direction_are_woken_and_one_waiter_of_poll_ready,
    both_directions_are_waited_for_independently,
    async_io_tries_again_after_would_block,
    a_hangup_is_not_cleared_by_a_closure,
    a_rejected_registration_returns_the_value_at_once,
    where_there_is_no_turn_a_registration_is_queued,
    dropping_ends_the_registration_before_the_value,
    a_number_that_is_used_again_at_once_is_another_source,
    the_end_of_the_executor_wakes_waiters_with_an_error,
    sockets_may_be_dropped_after_their_executor_and_outside_of_it,
    destructors_of_futures_may_drop_and_make_sockets_at_the_end,
}
