//! Bad parts. Each is rejected with its reason and returned, or can only stall this process.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    io::Errno,
    time::{TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime},
};
use windlass_flow::{CounterParts, EventCounter, PartsReason, ReadError, WriteError};

const PAGE_LEN: usize = 4096;
/// The offsets of the fields in the page.
const MAGIC: u64 = 0;
const VERSION: u64 = 8;
const FLAGS: u64 = 12;
const WORD: u64 = 64;

fn shared(maximum: u32) -> EventCounter {
    EventCounter::builder().maximum(maximum).shared(true).build().unwrap()
}

fn parts() -> CounterParts {
    shared(10).into_parts().unwrap()
}

/// The reason why the parts are rejected. All of them are returned.
fn rejection(parts: CounterParts) -> PartsReason {
    let error = EventCounter::from_parts(parts).unwrap_err();
    for fd in [&error.given.page, &error.given.reader, &error.given.writer] {
        assert!(rustix::io::fcntl_getfd(fd).is_ok(), "it is open");
    }
    error.reason
}

/// A memfd with these seals and the beginning of a good page.
fn page(len: usize, seals: SealFlags) -> OwnedFd {
    let mut bytes = vec![0; PAGE_LEN];
    assert_eq!(rustix::io::pread(&parts().page, &mut bytes, 0), Ok(PAGE_LEN));
    let memfd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memfd, len as u64).unwrap();
    let len = len.min(PAGE_LEN);
    assert_eq!(rustix::io::pwrite(&memfd, &bytes[..len], 0), Ok(len));
    fcntl_add_seals(&memfd, seals).unwrap();
    memfd
}

fn with_page(page: OwnedFd) -> PartsReason {
    rejection(CounterParts { page, ..parts() })
}

/// The rejection of a good page after this was written into it.
fn scribbled(at: u64, bytes: &[u8]) -> PartsReason {
    let parts = parts();
    assert_eq!(rustix::io::pwrite(&parts.page, bytes, at), Ok(bytes.len()));
    rejection(parts)
}

#[test]
fn good_parts_make_a_counter_of_the_same_state() {
    let counter = EventCounter::builder()
        .maximum(9)
        .initial(4)
        .semaphore(true)
        .nonblocking(true)
        .shared(true);
    let counter = counter.build().unwrap();
    let again = EventCounter::from_parts(counter.clone().into_parts().unwrap()).unwrap();
    assert_eq!((again.maximum(), again.count(), again.is_semaphore()), (Ok(9), Ok(4), true));
    assert!(again.is_shared() && !again.is_nonblocking());
    // The last clone gives its own descriptors away, and the counter continues to exist in them.
    drop(again);
    let again = EventCounter::from_parts(counter.into_parts().unwrap()).unwrap();
    assert_eq!(again.read(), Ok(1));
    assert_eq!(again.count(), Ok(3));
}

#[test]
fn a_longer_page_and_a_page_with_less_seals_than_ours_will_do() {
    for (len, seals) in
        [(PAGE_LEN, SealFlags::SHRINK), (3 * PAGE_LEN, SealFlags::SHRINK | SealFlags::SEAL)]
    {
        let counter =
            EventCounter::from_parts(CounterParts { page: page(len, seals), ..parts() }).unwrap();
        assert_eq!(counter.maximum(), Ok(10));
    }
}

#[test]
fn a_counter_between_threads_has_no_parts() {
    let counter = EventCounter::new(3).unwrap();
    counter.write(1).unwrap();
    let reader = counter.reader().unwrap();
    let error = counter.into_parts().unwrap_err();
    assert_eq!(error.reason, PartsReason::NotShared);
    drop(reader);
    let error = error.given.into_parts().unwrap_err();
    assert_eq!(error.reason, PartsReason::NotShared);
    assert_eq!(error.given.count(), Ok(1), "the counter is unharmed");
    assert_eq!(error.given.reader().unwrap().try_read(), Ok(1));
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_page_that_could_be_cut_off_is_rejected() {
    assert_eq!(with_page(page(PAGE_LEN, SealFlags::empty())), PartsReason::NotSealed);
    assert_eq!(
        with_page(page(PAGE_LEN, SealFlags::GROW | SealFlags::SEAL)),
        PartsReason::NotSealed
    );
    for other in [std::fs::File::open("/proc/self/exe").unwrap().into(), pipe().0, eventfd_of(0)] {
        assert_eq!(with_page(other), PartsReason::NotSealed);
    }
}

#[test]
fn a_page_of_ours_cannot_be_cut_off() {
    let parts = parts();
    assert_eq!(ftruncate(&parts.page, 0), Err(Errno::PERM));
    assert_eq!(ftruncate(&parts.page, 1 << 20), Err(Errno::PERM));
    assert_eq!(fcntl_add_seals(&parts.page, SealFlags::WRITE), Err(Errno::PERM));
}

#[test]
fn a_short_page_is_rejected() {
    for len in [0, 1, 128, PAGE_LEN - 1] {
        assert_eq!(with_page(page(len, SealFlags::SHRINK)), PartsReason::TooSmall);
    }
}

#[test]
fn a_page_that_may_not_be_written_is_rejected_by_the_kernel() {
    assert!(matches!(
        with_page(page(PAGE_LEN, SealFlags::SHRINK | SealFlags::WRITE)),
        PartsReason::Os(_)
    ));
}

#[test]
fn a_page_of_other_content_is_rejected() {
    let zeros = memfd_create("zeros", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&zeros, PAGE_LEN as u64).unwrap();
    fcntl_add_seals(&zeros, SealFlags::SHRINK).unwrap();
    assert_eq!(with_page(zeros), PartsReason::WrongMagic);
    assert_eq!(scribbled(MAGIC, b"w"), PartsReason::WrongMagic);
    assert_eq!(scribbled(VERSION, &2u32.to_ne_bytes()), PartsReason::WrongVersion);
    assert_eq!(scribbled(VERSION, &0u32.to_ne_bytes()), PartsReason::WrongVersion);
}

#[test]
fn an_impossible_page_is_rejected() {
    let word =
        |maximum: u32, count: u32| ((u64::from(maximum) << 32) + u64::from(count)).to_ne_bytes();
    assert_eq!(scribbled(WORD, &word(0, 0)), PartsReason::Corrupt);
    assert_eq!(scribbled(WORD, &word(3, 4)), PartsReason::Corrupt);
    assert_eq!(scribbled(WORD, &word(0, u32::MAX)), PartsReason::Corrupt);
    assert_eq!(scribbled(FLAGS, &2u32.to_ne_bytes()), PartsReason::Corrupt);
    assert_eq!(scribbled(FLAGS, &u32::MAX.to_ne_bytes()), PartsReason::Corrupt);
}

#[test]
fn a_hole_punched_into_the_page_is_corrupt_and_no_signal() {
    let counter = shared(10);
    let sent = counter.clone().into_parts().unwrap();
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&sent.page, punch, 0, PAGE_LEN as u64).unwrap();
    assert_eq!(counter.read(), Err(ReadError::Corrupt));
    assert_eq!(counter.write(1), Err(WriteError::Corrupt));
    assert_eq!(io::Error::from(counter.try_read().unwrap_err()).kind(), io::ErrorKind::InvalidData);
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)
        .unwrap()
}

fn eventfd_of(count: u32) -> OwnedFd {
    eventfd(count, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn timerfd() -> OwnedFd {
    timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
        .unwrap()
}

/// Expires once, now.
fn at(tv_nsec: i64) -> rustix::time::Itimerspec {
    let it_value = rustix::time::Timespec { tv_sec: 0, tv_nsec };
    rustix::time::Itimerspec { it_interval: rustix::time::Timespec::default(), it_value }
}

/// A timerfd that is readable.
fn expired() -> OwnedFd {
    let fd = timerfd();
    timerfd_settime(&fd, TimerfdTimerFlags::empty(), &at(1)).unwrap();
    rustix::event::poll(&mut [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)], None)
        .unwrap();
    fd
}

/// Descriptors that are not timerfds. Each is non-blocking, and open for reading and writing if
/// possible.
fn strangers() -> Vec<(&'static str, OwnedFd)> {
    let (read_end, write_end) = pipe();
    let (socket, peer) = io_socketpair();
    let hung_up = pipe().1;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap().into();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    rustix::fs::fcntl_setfl(&epoll, OFlags::NONBLOCK).unwrap();
    vec![
        ("read end", read_end),
        ("write end", write_end),
        ("write end without a reader, where a write would raise SIGPIPE", hung_up),
        ("socket", socket),
        ("other socket", peer),
        ("file", file),
        ("device", rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).unwrap()),
        (
            "directory",
            rustix::fs::open("/", OFlags::RDONLY | OFlags::NONBLOCK, rustix::fs::Mode::empty())
                .unwrap(),
        ),
        ("eventfd", eventfd_of(0)),
        ("epoll", epoll),
        ("memfd", page(PAGE_LEN, SealFlags::SHRINK)),
    ]
}

fn io_socketpair() -> (OwnedFd, OwnedFd) {
    let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    (a.into(), b.into())
}

#[test]
fn only_a_timerfd_is_accepted_as_a_side() {
    for (name, fd) in strangers() {
        let again = fd.try_clone().unwrap();
        assert_eq!(
            rejection(CounterParts { reader: fd, ..parts() }),
            PartsReason::NotATimerFd,
            "{name}"
        );
        assert_eq!(
            rejection(CounterParts { writer: again, ..parts() }),
            PartsReason::NotATimerFd,
            "{name}"
        );
    }
}

#[test]
fn a_descriptor_rejected_as_a_side_is_not_read() {
    let (socket, peer) = io_socketpair();
    assert_eq!(rustix::io::write(&peer, b"x"), Ok(1));
    let error = EventCounter::from_parts(CounterParts { reader: socket, ..parts() }).unwrap_err();
    assert_eq!(error.reason, PartsReason::NotATimerFd);
    assert_eq!(rustix::io::read(&error.given.reader, &mut [0; 8]), Ok(1));
}

/// Calls every operation that does not wait forever. None may panic or hang, whatever it returns.
fn use_all(counter: &EventCounter) {
    for _ in 0..3 {
        let sides = (counter.reader().unwrap(), counter.writer().unwrap());
        for n in [1, 2] {
            let _ = counter.try_write(n);
            let _ = sides.1.write_timeout(n, Duration::from_millis(1));
        }
        counter.signal().unwrap();
        let _ = counter.set_maximum(20);
        assert!(sides.0.as_fd().try_clone_to_owned().is_ok());
        let _ = counter.try_read();
        let _ = counter.read_timeout(Duration::from_millis(1));
    }
}

#[test]
fn an_odd_timerfd_as_a_side_stalls_at_worst() {
    let of = |clock, flags| timerfd_create(clock, flags).unwrap();
    // One that reports clock changes, one that blocks, and one that has expired.
    let canceled = || {
        let fd = of(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC);
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&fd, flags, &at(1)).unwrap();
        fd
    };
    let blocking = || of(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC);
    let odd: [&dyn Fn() -> OwnedFd; 3] = [&canceled, &blocking, &expired];
    for odd in odd {
        use_all(&EventCounter::from_parts(CounterParts { reader: odd(), ..parts() }).unwrap());
        use_all(&EventCounter::from_parts(CounterParts { writer: odd(), ..parts() }).unwrap());
    }
}

#[test]
fn parts_that_do_not_belong_together_stall_at_worst() {
    let (one, two) = (parts(), parts());
    let mixed = CounterParts { page: one.page, reader: two.reader, writer: one.writer };
    use_all(&EventCounter::from_parts(mixed).unwrap());
    let same = timerfd();
    let twice = CounterParts { reader: same.try_clone().unwrap(), writer: same, page: two.page };
    use_all(&EventCounter::from_parts(twice).unwrap());
    let swapped = parts();
    use_all(
        &EventCounter::from_parts(CounterParts {
            reader: swapped.writer,
            writer: swapped.reader,
            ..swapped
        })
        .unwrap(),
    );
}

#[test]
fn garbage_in_the_page_in_use_is_an_error() {
    let counter = shared(10);
    let (sides, again) = (
        (counter.reader().unwrap(), counter.writer().unwrap()),
        counter.clone().into_parts().unwrap(),
    );
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..2000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Any value anywhere after the header. The word is chosen more often.
        let at = if state % 3 == 0 { WORD } else { WORD + (state >> 8) % 60 };
        rustix::io::pwrite(&again.page, &state.to_ne_bytes(), at).unwrap();
        let known = |word: Result<u32, _>| word.is_ok_and(|n| n > 0);
        match counter.try_write(1) {
            Ok(()) => assert!(known(counter.maximum())),
            Err(error) => assert_ne!(error, WriteError::Zero),
        }
        let _ =
            (sides.0.try_read(), sides.1.try_write(3), counter.signal(), counter.set_maximum(7));
        let _ = (counter.is_overflowed(), counter.count(), format!("{counter:?}"));
    }
    rustix::io::pwrite(&again.page, &[0; 8], WORD).unwrap();
    assert_eq!(counter.count(), Err(windlass_flow::Corrupt));
}
