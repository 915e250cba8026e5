//! Bytes between tasks: none is lost, reordered or invented, whatever the faults are.

use std::{cell::Cell, io, rc::Rc, time::Duration};

use windlass::sim::{Faults, Kernel, Sim};
use windlass_task::{
    net::{OwnedReadHalf, OwnedWriteHalf, TcpListener, TcpStream, UnixListener, UnixStream},
    spawn,
    time::timeout,
    yield_now,
};
use windlass_testkit::ends::{bytes_of, check};

use crate::tools::{address, again_async, executor, whole};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a run counts: ends that are whole, ends in all, and panics of detached tasks.
#[derive(Clone, Default)]
struct Counts(Rc<Cell<usize>>, Rc<Cell<usize>>, Rc<Cell<usize>>);

/// A detached task has it, and nobody else would hear of its panic.
struct NotesPanic(Counts);

impl Drop for NotesPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.2.set(self.0.2.get() + 1);
        }
    }
}

impl Counts {
    fn add(&self, is_whole: bool) {
        self.0.set(self.0.get() + usize::from(is_whole));
        self.1.set(self.1.get() + 1);
    }
}

/// Writes all bytes of a direction in parts of many sizes, flushes, and ends it.
macro_rules! send {
    ($kernel:expr, $half:expr, $of:expr, $len:expr) => {{
        let mut at = 0;
        while at < $len {
            let count = 1 + usize::try_from($kernel.choose(9_000)).unwrap();
            let end = $len.min(at + count);
            let bytes = bytes_of($of, at, end - at);
            match $kernel.choose(3) {
                0 => $half.write_all(&bytes).await?,
                1 => {
                    let (first, second) = bytes.split_at(bytes.len() / 2);
                    let parts = [io::IoSlice::new(first), io::IoSlice::new(second)];
                    at += $half.write_vectored(&parts).await?;
                    continue;
                }
                _ => {
                    at += $half.write(&bytes).await?;
                    continue;
                }
            }
            at = end;
        }
        $half.flush().await?;
        $half.shutdown().await
    }};
}

/// Reads to the end, and checks what comes. Returns its length.
macro_rules! receive {
    ($kernel:expr, $half:expr, $of:expr, $len:expr) => {{
        let mut done = 0;
        loop {
            let mut room = vec![0; 1 + usize::try_from($kernel.choose(9_000)).unwrap()];
            let count = $half.read(&mut room).await?;
            assert!(count <= $len - done, "{:?}: more than was sent", $of);
            check($of, done, &room[..count]);
            done += count;
            if count == 0 {
                return io::Result::Ok(done);
            }
        }
    }};
}

macro_rules! transfer {
    ($name:ident, $stream:ty) => {
        /// Both directions of one end at once, in two tasks. True if both were whole.
        async fn $name(
            kernel: Kernel,
            stream: $stream,
            number: u8,
            lens: [usize; 2],
            end: u8,
        ) -> bool {
            let (mut reader, mut writer): (OwnedReadHalf<$stream>, OwnedWriteHalf<$stream>) =
                stream.into_split();
            let (own, other) = ((number, end), (number, 1 - end));
            let (to_send, to_receive) = (lens[usize::from(end)], lens[usize::from(1 - end)]);
            let of_reader = kernel.clone();
            let received = spawn(async move { receive!(of_reader, reader, other, to_receive) });
            let sent = async move { send!(kernel, writer, own, to_send) };
            let sent =
                timeout(PATIENCE, sent).await.is_ok_and(|result: io::Result<()>| result.is_ok());
            let received = timeout(PATIENCE, received).await;
            let received = received.ok().and_then(|joined| match joined {
                Ok(result) => result.ok(),
                Err(error) => match error.resume_panic() {
                    Ok(never) => match never {},
                    Err(_) => None,
                },
            });
            // A FIN follows complete output only. The error of a reset is told once: if the writing
            // half has got it, the reading half sees an end.
            if let (true, Some(received)) = (sent, received) {
                assert_eq!(received, to_receive, "{other:?}: a clean end of a part");
            }
            sent && received.is_some()
        }
    };
}

transfer!(transfer_tcp, TcpStream);
transfer!(transfer_unix, UnixStream);

/// The first byte of a connection is its number.
macro_rules! serve {
    ($listener:expr, $transfer:ident, $kernel:expr, $lens:expr, $counts:expr) => {
        loop {
            let (mut stream, _) = again_async!($listener.accept());
            let (kernel, lens, counts) = ($kernel.clone(), Rc::clone(&$lens), $counts.clone());
            spawn(async move {
                let _notes = NotesPanic(counts.clone());
                let mut number = [0];
                let first = timeout(PATIENCE, stream.read_exact(&mut number)).await;
                let is_whole = match first {
                    Ok(Ok(_)) => {
                        let lens = lens[usize::from(number[0])];
                        $transfer(kernel, stream, number[0], lens, 1).await
                    }
                    _ => false,
                };
                counts.add(is_whole);
            })
            .detach();
        }
    };
}

macro_rules! connect {
    ($connect:expr, $transfer:ident, $kernel:expr, $lens:expr, $number:expr) => {{
        let mut stream = loop {
            match timeout(PATIENCE, $connect).await {
                Ok(Ok(stream)) => break stream,
                _ => yield_now().await,
            }
        };
        let number = [$number];
        match stream.write_all(&number).await {
            Ok(()) => $transfer($kernel, stream, $number, $lens, 0).await,
            Err(_) => false,
        }
    }};
}

fn lens(sim: &Sim, connections: u8, longest: u64) -> Rc<Vec<[usize; 2]>> {
    let len = || usize::try_from(sim.kernel().choose(longest)).unwrap();
    Rc::new((0..connections).map(|_| [len(), len()]).collect())
}

/// Connections between executors of two hosts. Returns how many clients were whole.
fn over_tcp(sim: &Sim, connections: u8, longest: u64) -> usize {
    let lens = lens(sim, connections, longest);
    let (served, clients) = (Counts::default(), Counts::default());
    let (kernel, of_server, of_task) = (sim.kernel().clone(), Rc::clone(&lens), served.clone());
    executor(sim, 2).simulate(sim, async move {
        let listener = again_async!(TcpListener::bind(address("10.0.0.2:80")));
        serve!(listener, transfer_tcp, kernel, of_server, of_task);
    });
    let (kernel, counts) = (sim.kernel().clone(), clients.clone());
    let client = executor(sim, 3).simulate(sim, async move {
        let tasks: Vec<_> = (0..connections)
            .map(|number| {
                let (kernel, lens) = (kernel.clone(), lens[usize::from(number)]);
                let counts = counts.clone();
                spawn(async move {
                    let to = address("10.0.0.2:80");
                    let connect = || TcpStream::connect(to);
                    counts.add(connect!(connect(), transfer_tcp, kernel, lens, number));
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    sim.run_until(|| client.has_ended()).unwrap();
    assert_eq!(clients.1.get(), usize::from(connections));
    assert_eq!(served.2.get(), 0, "a task of the server has panicked");
    clients.0.get()
}

/// The same by Unix sockets, of two executors of one host.
fn over_unix(sim: &Sim, connections: u8, longest: u64) -> usize {
    let lens = lens(sim, connections, longest);
    let (served, clients) = (Counts::default(), Counts::default());
    let (kernel, of_server, of_task) = (sim.kernel().clone(), Rc::clone(&lens), served.clone());
    executor(sim, 2).simulate(sim, async move {
        let listener = again_async!(async { UnixListener::bind("/socket") });
        serve!(listener, transfer_unix, kernel, of_server, of_task);
    });
    let (kernel, counts) = (sim.kernel().clone(), clients.clone());
    let client = executor(sim, 2).simulate(sim, async move {
        for number in 0..connections {
            let lens = lens[usize::from(number)];
            let connect = || UnixStream::connect("/socket");
            counts.add(connect!(connect(), transfer_unix, kernel.clone(), lens, number));
        }
    });
    sim.run_until(|| client.has_ended()).unwrap();
    assert_eq!(served.2.get(), 0, "a task of the server has panicked");
    clients.0.get()
}

#[test]
fn no_byte_is_lost_in_calm_weather() {
    let sim = Sim::new(1, Faults::calm());
    assert_eq!(over_tcp(&sim, 20, 100_000), 20);
    let sim = Sim::new(1, Faults::calm());
    assert_eq!(over_unix(&sim, 5, 300_000), 5);
}

#[test]
fn no_byte_of_tcp_is_lost_reordered_or_invented() {
    windlass::sim::check(|sim| assert_eq!(over_tcp(sim, 4, 30_000), 4, "one is not whole"))
        .seeds(50)
        .faults(whole(Faults::rough()))
        .twice()
        .run();
}

#[test]
fn no_byte_of_tcp_is_lost_reordered_or_invented_in_a_hostile_world() {
    windlass::sim::check(|sim| {
        over_tcp(sim, 3, 10_000);
    })
    .seeds(150)
    .faults(whole(Faults::hostile()))
    .run();
}

/// TCP goes by completion, and Unix sockets are polled.
#[test]
fn no_byte_is_lost_reordered_or_invented_on_a_ring() {
    windlass::sim::check(|sim| {
        sim.set_ring(true);
        over_tcp(sim, 3, 10_000);
        over_unix(sim, 2, 10_000);
    })
    .seeds(60)
    .faults(whole(Faults::hostile()))
    .run();
}

#[test]
fn no_byte_of_a_unix_stream_is_lost_reordered_or_invented() {
    windlass::sim::check(|sim| assert_eq!(over_unix(sim, 3, 30_000), 3, "one is not whole"))
        .seeds(50)
        .faults(whole(Faults::rough()))
        .run();
    windlass::sim::check(|sim| {
        over_unix(sim, 3, 30_000);
    })
    .seeds(100)
    .faults(whole(Faults::hostile()))
    .run();
}
