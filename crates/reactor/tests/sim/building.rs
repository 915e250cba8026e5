//! The backend is chosen with a host, and rejects what does not exist in a simulation.

use std::{
    cell::RefCell,
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Mutex,
};

use windlass::{
    AddReason, Backend, BuildError, EmbedReason, Group, GroupReason, Interest, Reactor, interest,
    sim::{Faults, Sim, SimFd},
    stream::{Input, ListenOptions, Listener, Stream, StreamHandler, StreamOptions, Workers},
};

use crate::tools::{Echo, Log, Said, address, calm};

const READABLE: Interest = interest().read();

struct Ignore;
impl StreamHandler for Ignore {
    fn on_data(&mut self, _: &mut Stream<'_>, _: Input<'_>) {}
}

#[test]
fn the_backend_needs_a_simulation() {
    let of_the_thread = || Reactor::builder().backend(Backend::Sim).build();
    let error = of_the_thread().unwrap_err();
    assert_eq!(error, BuildError::NoSimulation);
    assert!(error.to_string().contains("Builder::sim"), "{error}");
    let sim = calm();
    assert_eq!(sim.reactor().unwrap().backend(), Backend::Sim);
    assert_eq!(of_the_thread().unwrap().backend(), Backend::Sim);
    assert_eq!("sim".parse(), Ok(Backend::Sim));
}

#[test]
fn a_later_backend_replaces_the_simulation() {
    let sim = calm();
    let builder = Reactor::builder().sim(&sim.host([10, 0, 0, 1].into()));
    let real = builder.backend(Backend::Epoll).build().unwrap();
    assert_eq!(real.backend(), Backend::Epoll);
    assert!(!real.has_own_clock());
}

#[test]
fn latches_and_what_has_one_are_unwind_safe() {
    fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
    is_unwind_safe::<windlass_flow::Latch>();
    is_unwind_safe::<windlass::Stop>();
}

#[test]
fn debug_output_has_no_address() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let counter = sim.eventfd(0).unwrap();
    READABLE.with_fd(counter).with_handler(|_: &mut SimFd| {}).register_into(&mut reactor).unwrap();
    assert_eq!(format!("{:?}", sim.kernel()), "Kernel { now_ns: 0, steps: 0, .. }");
}

#[test]
fn descriptors_of_the_kernel_are_rejected() {
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let (one, _other) = UnixStream::pair().unwrap();
    let register = |reactor: &mut Reactor, fd: UnixStream| {
        READABLE.with_fd(fd).with_handler(|_: &mut UnixStream| {}).register_into(reactor)
    };
    let again = one.try_clone().unwrap();
    assert_eq!(register(&mut reactor, one).unwrap_err(), AddReason::Unsupported);
    let (stream, _other) = UnixStream::pair().unwrap();
    let added = StreamOptions::new().register(stream, Ignore, &mut reactor);
    assert_eq!(added.unwrap_err(), AddReason::Unsupported);
    let group = Group::new(()).fd(READABLE, again, |_: &mut (), _: &mut UnixStream| {});
    assert_eq!(
        group.register_into(&mut reactor).unwrap_err(),
        GroupReason::Descriptor(0, AddReason::Unsupported)
    );
    assert_eq!(reactor.stats().subscribers, 0);
    assert_eq!(reactor.embed().unwrap_err(), EmbedReason::Unsupported);
}

#[test]
fn a_listener_of_the_kernel_is_rejected_and_comes_back() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    let listener = windlass::stream::ListenOptions::new().from_fd(socket).unwrap();
    let refused = listener.with_handler(|_| Some(Ignore)).try_register_into(&mut reactor);
    let refused = refused.unwrap_err();
    assert_eq!(refused.reason, AddReason::Unsupported);
    TcpStream::connect(at).unwrap();
}

#[test]
fn what_is_simulated_belongs_to_one_simulation() {
    let other: SimFd = calm().eventfd(0).unwrap();
    let register = |reactor: &mut Reactor, fd: SimFd| {
        READABLE.with_fd(fd).with_handler(|_: &mut SimFd| {}).register_into(reactor)
    };
    let sim = calm();
    let mut reactor = sim.reactor().unwrap();
    assert_eq!(register(&mut reactor, other).unwrap_err(), AddReason::Unsupported);
    let mut real = Reactor::new().unwrap();
    assert_eq!(register(&mut real, sim.eventfd(0).unwrap()).unwrap_err(), AddReason::Unsupported);
    let listener = Listener::tcp(address("127.0.0.1:80")).unwrap();
    let added = listener.with_handler(|_| Some(Ignore)).register_into(&mut real);
    assert_eq!(added.unwrap_err(), AddReason::Unsupported);
}

/// Each worker is a program, at the host where it was started.
#[test]
fn workers_are_programs_of_the_simulation() {
    let sim = calm();
    let host = sim.host([10, 0, 0, 2].into());
    let at = address("10.0.0.2:80");
    let (log, threads) = (Log::new(), std::thread::current().id());
    LOG.set(Some(log.clone()));
    let start = || {
        let group = ListenOptions::new().tcp_group(at, 2).unwrap();
        let group = Mutex::new(group);
        Workers::new(2).start(move |worker| {
            assert_eq!(std::thread::current().id(), threads, "worker {}", worker.index);
            let mut reactor = Reactor::builder().backend(Backend::Sim).build()?;
            let log = LOG.with_borrow(|log| log.clone().unwrap());
            let listener = group.lock().unwrap().pop().unwrap();
            listener.with_handler(move |_| Some(Echo(log.clone()))).register_into(&mut reactor)?;
            Ok(reactor)
        })
    };
    let running = sim.at(&host, start).unwrap();
    let mut clients: Vec<_> = (0..8).map(|_| sim.connect(at).unwrap()).collect();
    for client in &mut clients {
        client.write_all(b"hello").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
    }
    let [first, _] = running.stops() else { panic!("two workers") };
    first.stop();
    running.join().unwrap();
    for client in &mut clients {
        assert!(matches!(client.read(&mut [0; 1]), Ok(0) | Err(_)), "a worker has not ended");
    }
}

thread_local! {
    /// What the workers' handlers note: a set-up could be called on another thread.
    static LOG: RefCell<Option<Log<Said>>> = const { RefCell::new(None) };
}

#[test]
fn a_worker_of_another_backend_has_no_place_in_a_simulation() {
    let _sim = calm();
    let error = Workers::new(1).start(|_| Ok(Reactor::new()?)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn the_end_of_the_last_simulation_brings_back_the_kernel() {
    let (first, second) = (calm(), calm());
    drop(first);
    // A port that the kernel would have to choose.
    let listener = Listener::tcp(address("10.9.8.7:80")).unwrap();
    drop(listener);
    drop(second);
    let error = Listener::tcp(address("10.9.8.7:80")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
}

#[test]
fn a_reactor_may_outlive_its_simulation() {
    let sim = Sim::new(1, Faults::calm());
    let mut reactor = sim.reactor().unwrap();
    let listener = Listener::tcp(address("127.0.0.1:80")).unwrap();
    listener.with_handler(|_| Some(Ignore)).register_into(&mut reactor).unwrap();
    drop(sim);
    assert_eq!(reactor.run_once(std::time::Duration::ZERO).unwrap(), 0);
}
