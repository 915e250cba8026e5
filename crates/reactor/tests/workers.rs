//! Workers: one reactor per thread. They start together and end together.

use windlass_testkit::backend;

use std::{
    collections::HashSet,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use rustix::{
    net::{AddressFamily, SocketType, sockopt},
    thread::{CpuSet, sched_getaffinity},
};
use windlass::{
    Errno, Reactor, Turn, interest,
    stream::{Address, ListenError, ListenOptions, Listener, Worker, Workers},
};

fn builder() -> windlass::Builder {
    Reactor::builder().backend(backend::chosen())
}

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

#[test]
fn each_worker_has_a_thread_and_a_number() {
    let (sender, set_up) = mpsc::channel();
    let running = Workers::new(3)
        .named("hand")
        .start(move |worker| {
            let name = std::thread::current().name().map(str::to_owned);
            sender.send((worker.index, worker.count, worker.cpu, name)).expect("the test listens");
            Ok(builder().build()?)
        })
        .expect("they start");
    let mut workers: Vec<_> = set_up.iter().take(3).collect();
    workers.sort_unstable();
    for (index, worker) in workers.into_iter().enumerate() {
        assert_eq!(worker, (index, 3, None, Some(format!("hand-{index}"))));
    }
    running.stop();
    running.join().expect("a stop is no error");
}

#[test]
fn pinned_workers_may_use_one_processor_each() {
    let allowed = sched_getaffinity(None).expect("it can be asked");
    let (sender, set_up) = mpsc::channel();
    let running = Workers::new(4)
        .pinned(true)
        .start(move |worker| {
            let cpus = sched_getaffinity(None)?;
            let mine: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu)).collect();
            sender.send((worker, mine)).expect("the test listens");
            Ok(builder().build()?)
        })
        .expect("they start");
    for (worker, mine) in set_up.iter().take(4) {
        assert_eq!(mine, [worker.cpu.expect("it is pinned")]);
        assert!(allowed.is_set(mine[0]));
    }
    assert_eq!(
        sched_getaffinity(None).expect("it can be asked"),
        allowed,
        "who starts them is not pinned"
    );
    running.stop();
    running.join().expect("a stop is no error");
}

#[test]
fn one_that_is_stopped_stops_all() {
    let running = Workers::new(3)
        .start(|worker| {
            let mut reactor = builder().build()?;
            if worker.index == 1 {
                reactor
                    .after(Duration::ZERO, |mut turn: Turn<'_, _>| turn.stop())
                    .map_err(io::Error::from)?;
            }
            Ok(reactor)
        })
        .expect("they start");
    running.join().expect("a stop is no error");
}

#[test]
fn a_panic_in_one_stops_all_and_comes_out_of_join() {
    let running = Workers::new(3)
        .start(|worker| {
            let mut reactor = builder().build()?;
            if worker.index == 2 {
                let timer = |_: Turn<'_, Reactor>| std::panic::panic_any("the second is broken");
                reactor.after(Duration::ZERO, timer).map_err(io::Error::from)?;
            }
            Ok(reactor)
        })
        .expect("they start");
    let payload =
        catch_unwind(AssertUnwindSafe(|| running.join())).expect_err("the panic comes out");
    assert_eq!(payload.downcast_ref(), Some(&"the second is broken"));
}

/// Counts the threads that are in their set-up or run. It is dropped when the thread's closure
/// ends.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A set-up whose reactor holds a value until the thread ends. One worker does something else.
fn set_up(
    alive: &Arc<AtomicUsize>,
    odd: fn() -> io::Result<Reactor>,
) -> impl Fn(Worker) -> io::Result<Reactor> + use<> {
    let alive = Arc::clone(alive);
    move |worker| {
        if worker.index == 1 {
            return odd();
        }
        let held = Alive::new(&alive);
        let mut reactor = builder().build()?;
        reactor.before_wait(move |_| drop(Arc::clone(&held.0))).map_err(io::Error::other)?;
        Ok(reactor)
    }
}

#[test]
fn an_error_of_a_set_up_comes_out_and_no_thread_is_left() {
    let alive = Arc::default();
    let refuse = || Err(io::Error::other("no reactor today"));
    let error = Workers::new(3).start(set_up(&alive, refuse)).expect_err("one was refused");
    assert_eq!(error.to_string(), "no reactor today");
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn a_panic_of_a_set_up_comes_out_and_no_thread_is_left() {
    let alive = Arc::default();
    let workers = Workers::new(3);
    let set_up = set_up(&alive, || std::panic::panic_any("no set-up today"));
    let payload =
        catch_unwind(AssertUnwindSafe(|| workers.start(set_up))).expect_err("the panic comes out");
    assert_eq!(payload.downcast_ref(), Some(&"no set-up today"));
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn dropping_them_stops_them() {
    let alive = Arc::default();
    let running =
        Workers::new(2).start(set_up(&alive, || Ok(builder().build()?))).expect("they start");
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    drop(running);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn the_kernel_spreads_connections_over_a_group_of_listeners() {
    const WORKERS: usize = 2;
    let group = ListenOptions::new().tcp_group(local(), WORKERS).expect("there is a free port");
    let listeners = group
        .iter()
        .map(|listener| TcpListener::from(listener.as_fd().try_clone_to_owned().expect("a copy")));
    let listeners: Vec<TcpListener> = listeners.collect();
    drop(group);
    let address = listeners[0].local_addr().expect("it has an address");
    assert!(listeners.iter().all(|listener| listener.local_addr().expect("it has one") == address));
    let listeners = Mutex::new(listeners);
    let running = Workers::new(WORKERS)
        .start(move |worker| {
            let mut reactor = builder().build()?;
            let number = u8::try_from(worker.index).expect("there are two");
            interest()
                .read()
                .with_fd(
                    listeners.lock().expect("nobody panics with it").pop().expect("one for each"),
                )
                .with_handler(move |listener: &mut TcpListener, _: Turn<'_, _>| {
                    if let Ok((mut client, _)) = listener.accept() {
                        client.write_all(&[number]).expect("one byte fits");
                    }
                })
                .register_into(&mut reactor)?;
            Ok(reactor)
        })
        .expect("they start");
    // The kernel distributes by a hash of the ports. All hundred on one worker has probability
    // 2^-99.
    let mut seen = HashSet::new();
    for _ in 0..100 {
        let mut byte = [0];
        TcpStream::connect(address)
            .expect("somebody listens")
            .read_exact(&mut byte)
            .expect("somebody answers");
        seen.insert(byte[0]);
    }
    assert_eq!(seen.len(), WORKERS);
    running.stop();
    running.join().expect("a stop is no error");
}

#[test]
fn an_address_that_is_taken_is_an_error() {
    let taken = TcpListener::bind(local()).expect("there is a free port");
    let address = taken.local_addr().expect("it has an address");
    assert_eq!(
        ListenOptions::new().tcp_group(address, 2).expect_err("it is taken").kind(),
        io::ErrorKind::AddrInUse
    );
}

/// Two programs of one user that both set `SO_REUSEPORT` would share the connections without notice
/// (issue 13).
#[test]
fn a_group_takes_an_address_for_itself() {
    let options = ListenOptions::new();
    let in_use = |address: SocketAddr| {
        let refused = options.tcp_group(address, 2).expect_err("the address is taken");
        let error = refused.get_ref().and_then(|error| error.downcast_ref::<ListenError>());
        assert_eq!(
            error,
            Some(&ListenError { address: Address::Ip(address), errno: Errno::ADDRINUSE })
        );
    };
    let address_of = |listener: &Listener| {
        listener.local_addr().expect("it listens").socket_addr().expect("by TCP")
    };
    let group = options.tcp_group(local(), 2).expect("there is a free port");
    in_use(address_of(&group[0]));
    drop(group);
    let foreign = options.reuse_port(true).tcp(local()).expect("there is a free port");
    in_use(address_of(&foreign));
    // With the option set on both, the port is shared.
    options.reuse_port(true).tcp_group(address_of(&foreign), 2).expect("both ask for it");
}

#[test]
fn of_groups_that_want_an_address_at_the_same_moment_one_has_it() {
    const RIVALS: usize = 4;
    for _ in 0..50 {
        // Bound and not listening. The port is free for sockets with SO_REUSEADDR, and port 0 never
        // yields it.
        let holder =
            rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&holder, true).expect("it can be set");
        rustix::net::bind(&holder, &local()).expect("there is a free port");
        let address = SocketAddr::try_from(rustix::net::getsockname(&holder).expect("bound"))
            .expect("an IP address");
        let start = Barrier::new(RIVALS);
        let claim = || {
            start.wait();
            ListenOptions::new().tcp_group(address, 2)
        };
        let outcomes: Vec<io::Result<Vec<Listener>>> = thread::scope(|scope| {
            let rivals: Vec<_> = (0..RIVALS).map(|_| scope.spawn(claim)).collect();
            rivals.into_iter().map(|rival| rival.join().expect("no panic")).collect()
        });
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
        for refused in outcomes.into_iter().filter_map(Result::err) {
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        }
    }
}

#[test]
fn a_worker_goes_on_after_a_panic_that_its_hook_was_told_of() {
    let (told, panics) = mpsc::channel();
    let told = Mutex::new(told);
    let hook = move |worker: Worker, panic: Box<dyn std::any::Any + Send>| {
        let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
        told.lock()
            .expect("one at a time")
            .send((worker.index, words, std::thread::current().id()))
            .expect("the test listens");
    };
    let (sender, threads) = mpsc::channel();
    let running = Workers::new(2)
        .on_panic(hook)
        .start(move |worker| {
            let mut reactor = builder().build()?;
            if worker.index == 1 {
                let sender = sender.clone();
                let fail = |what: &'static str| move |_: Turn<'_>| std::panic::panic_any(what);
                assert!(reactor.defer(fail("the first")).is_ok());
                assert!(reactor.defer(fail("the second")).is_ok());
                let alive = move |_: Turn<'_>| {
                    sender.send(std::thread::current().id()).expect("the test listens")
                };
                assert!(reactor.defer(alive).is_ok());
            }
            Ok(reactor)
        })
        .expect("they start");
    let patience = Duration::from_secs(20);
    let thread = threads.recv_timeout(patience).expect("it goes on after two panics");
    for words in ["the first", "the second"] {
        let told = panics.recv_timeout(patience).expect("each is told");
        assert_eq!(told, (1, Some(words.to_owned()), thread), "on the worker's own thread");
    }
    running.stop();
    running.join().expect("a panic that was told is no error");
}

#[test]
fn a_panic_of_the_hook_ends_all_workers() {
    let running = Workers::new(2)
        .on_panic(|_, _| std::panic::panic_any("the hook"))
        .start(|worker| {
            let mut reactor = builder().build()?;
            if worker.index == 0 {
                assert!(reactor.defer(|_: Turn<'_>| std::panic::panic_any("the handler")).is_ok());
            }
            Ok(reactor)
        })
        .expect("they start");
    let panic =
        catch_unwind(AssertUnwindSafe(|| running.join())).expect_err("it comes out of join");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the hook"));
}
