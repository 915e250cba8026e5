//! Several workers, and threads that send: guarantees across them.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use windlass_server::{Options, Server, handler_fn};

use crate::{
    backend::chosen,
    fixture::{EventLog, Fixture, TestHandler, options},
    raw_client::{BINARY, CLOSE, Frame, RawClient, TEXT, upgrade},
};

#[test]
pub(crate) fn messages_of_several_threads_keep_each_threads_order() {
    const THREADS: u32 = 4;
    const MESSAGES: u32 = 2000;
    let mut options = options();
    options.receiver_buffer_max = 64 << 20;
    // The queue is full now and then, so that senders wait.
    options.sender_bounds = windlass_flow::Bounds::items(64).bytes(1 << 20);
    let mut fixture = Fixture::new(&options);
    let mut client = fixture.open("/sink");
    let (id, sender) = (fixture.last_opened(), fixture.service.sender());
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let sender = sender.clone();
            thread::spawn(move || {
                for number in 0..MESSAGES {
                    let message = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                    sender.send(id, &message[..]).expect("the connection is open");
                }
            })
        })
        .collect();
    let mut next = [0; THREADS as usize];
    for _ in 0..THREADS * MESSAGES {
        let frame = fixture.frame(&mut client);
        let word = |at: usize| {
            u32::from_be_bytes(frame.payload[at..at + 4].try_into().expect("four bytes"))
        };
        assert_eq!((frame.first, word(4)), (BINARY, next[word(0) as usize]), "thread {}", word(0));
        next[word(0) as usize] += 1;
    }
    threads.into_iter().for_each(|thread| thread.join().expect("it has sent all"));
    assert_eq!(client.received(), b"");
    drop(client);
    fixture.expect_empty();
}

#[test]
pub(crate) fn sends_to_an_ended_service_fail_without_waiting() {
    let mut fixture = Fixture::new(&options());
    let client = fixture.open("/sink");
    let (id, sender) = (fixture.last_opened(), fixture.service.sender());
    drop(client);
    fixture.until_connections(0);
    // The service looks up the ID. A queued message is not guaranteed to be delivered.
    let _ = sender.try_send(id, "nobody is there");
    fixture.settle();
    let waiting = thread::spawn({
        let sender = sender.clone();
        move || while sender.send(id, "nobody is there").is_ok() {}
    });
    drop(fixture);
    waiting.join().expect("it was told");
    assert!(sender.send(id, "nobody is there").is_err());
}

/// Waits for a client that is driven without a reactor of the test.
fn wait<T>(client: &mut RawClient, mut look: impl FnMut(&mut RawClient) -> Option<T>) -> T {
    let start = std::time::Instant::now();
    loop {
        if let Some(found) = look(client) {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it does not come");
        client.wait(Duration::from_millis(100));
    }
}

fn open(address: SocketAddr, path: &str) -> RawClient {
    handshake(RawClient::connect(address), path)
}

fn handshake(mut client: RawClient, path: &str) -> RawClient {
    client.send(&upgrade(path, ""));
    let head = wait(&mut client, RawClient::head);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    client
}

fn serve(options: Options) -> (windlass_server::RunningServer, SocketAddr) {
    let server = Server::new(options, |_| TestHandler(EventLog::default().into()))
        .workers(3)
        .backend(chosen());
    let running = server.listen(([127, 0, 0, 1], 0).into()).start().expect("there is a free port");
    let address = running.addresses()[0].socket_addr().expect("an IP address");
    (running, address)
}

#[test]
fn a_room_across_workers_receives_each_sender_in_order() {
    const PEERS: usize = 12;
    const MESSAGES: u32 = 300;
    let mut options = options();
    options.receiver_buffer_max = 64 << 20;
    let (running, address) = serve(options);
    let mut clients: Vec<RawClient> = (0..PEERS).map(|_| open(address, "/room")).collect();
    thread::scope(|scope| {
        for (index, client) in clients.iter_mut().enumerate() {
            scope.spawn(move || {
                let mut next = [0; PEERS];
                next[index] = MESSAGES;
                let mut said = 0;
                while said < MESSAGES || next != [MESSAGES; PEERS] {
                    if said < MESSAGES {
                        client.send_frame(
                            BINARY,
                            [(index as u32).to_be_bytes(), said.to_be_bytes()].concat(),
                        );
                        said += 1;
                    }
                    let frame = if said < MESSAGES {
                        client.frame()
                    } else {
                        Some(wait(client, RawClient::frame))
                    };
                    let Some(frame) = frame else { continue };
                    let word = |at: usize| {
                        u32::from_be_bytes(
                            frame.payload[at..at + 4].try_into().expect("four bytes"),
                        )
                    };
                    let speaker = word(0) as usize;
                    assert_eq!(word(4), next[speaker], "{index} hears {speaker}");
                    next[speaker] += 1;
                }
            });
        }
    });
    let stats = running.stats();
    assert_eq!((stats.dropped, stats.lost_between_workers), (0, 0));
    running.drain(Duration::from_secs(60));
    for client in &mut clients {
        assert_eq!(wait(client, RawClient::frame).close_code(), 1001);
        client.send_frame(CLOSE, 1001_u16.to_be_bytes());
    }
    drop(clients);
    running.join().expect("the workers end in peace");
}

#[test]
fn connections_are_counted_over_all_workers_and_listeners() {
    const MOST: usize = 5;
    let mut options = options();
    options.connections_max = MOST;
    let running = Server::new(options, |_| TestHandler(EventLog::default().into()))
        .workers(3)
        .backend(chosen())
        .listen(([127, 0, 0, 1], 0).into())
        .listen(([127, 0, 0, 1], 0).into())
        .start()
        .expect("the workers start");
    let address = |at: usize| running.addresses()[at % 2].socket_addr().expect("an IP address");
    let mut waiting: Vec<RawClient> = (0..20)
        .map(|at| {
            let mut client = RawClient::connect(address(at));
            client.send(&upgrade("/echo", ""));
            client
        })
        .collect();
    let mut served = Vec::new();
    let start = Instant::now();
    while !waiting.is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{} wait and {} are served",
            waiting.len(),
            served.len()
        );
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for mut client in waiting {
            if client.head().is_some() { now.push(client) } else { later.push(client) }
        }
        waiting = later;
        served.append(&mut now);
        assert!(served.len() <= MOST, "{} at once", served.len());
        if served.len() == MOST {
            // All connections are in use, on all listeners. The free one goes to a waiting client
            // on any listener.
            drop(served.swap_remove(0));
        }
        thread::yield_now();
    }
    drop(served);
    running.drain(Duration::from_secs(60));
    running.join().expect("the workers end in peace");
}

#[test]
fn connections_per_address_are_counted_over_all_workers() {
    let mut options = options();
    options.connections_per_address_max = Some(5);
    let (running, address) = serve(options);
    let mut clients = Vec::new();
    let mut taken = 0;
    for _ in 0..20 {
        let mut client = RawClient::connect(address);
        client.send(&upgrade("/echo", ""));
        taken += usize::from(wait(&mut client, |client| match client.head() {
            Some(_) => Some(true),
            None => client.has_ended().then_some(false),
        }));
        clients.push(client);
    }
    assert_eq!(taken, 5);
    clients.retain_mut(|client| !client.has_ended());
    assert_eq!(clients.len(), 5);
    for client in &mut clients {
        client.send_frame(BINARY, b"hello");
        assert_eq!(wait(client, RawClient::frame), Frame::new(BINARY, b"hello"));
    }
    drop(clients);
    running.drain(Duration::from_secs(60));
    running.join().expect("the workers end in peace");
}

/// Messages to the handler of [`a_lowered_limit_evicts_nobody_of_a_worker_that_holds_little`].
const JOIN: &[u8] = b"join a topic, and name your worker";
const FILL: &[u8] = b"answer with more than a client takes that does not read";
const BLOCK: &[u8] = b"block the worker";

/// The worker that holds too much is blocked meanwhile, so that the other one looks first.
#[test]
fn a_lowered_limit_evicts_nobody_of_a_worker_that_holds_little() {
    const BUFFER: usize = 1 << 20;
    let mut options = options();
    (options.receiver_buffer_max, options.limits.message_max) = (BUFFER, BUFFER / 2);
    options.memory_max = Some(64 * BUFFER);
    let (blocked, is_blocked) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let running = Server::new(options.clone(), move |worker| {
        let (blocked, released) = (blocked.clone(), Arc::clone(&released));
        let name = worker.index.to_string();
        handler_fn(move |connection, message| match message.as_bytes() {
            JOIN => {
                let _ = connection.subscribe("topic");
                let _ = connection.send(&*name);
            }
            FILL => while connection.send(&vec![0; BUFFER / 8][..]).is_ok() {},
            _ => {
                let _ = blocked.send(());
                let _ = released.lock().unwrap_or_else(PoisonError::into_inner).recv();
            }
        })
    })
    .workers(2)
    .backend(chosen())
    .listen(([127, 0, 0, 1], 0).into())
    .start()
    .expect("there is a free port");
    // It is dropped before the server if the test fails.
    let release = release;
    let address = running.addresses()[0].socket_addr().expect("an IP address");
    let mut of_workers = [Vec::new(), Vec::new()];
    while of_workers[0].len() < 3 || of_workers[1].len() < 8 {
        let mut client = handshake(RawClient::with_small_window(address), "/");
        client.send_frame(TEXT, JOIN);
        let at = usize::from(wait(&mut client, RawClient::frame).payload == b"1");
        of_workers[at].push(client);
    }
    let [mut innocent, mut hogs] = of_workers;
    let (blocker, hogs) = hogs.split_first_mut().expect("there are eight");
    let figures = || {
        let stats = running.stats_handle().fresh_stats();
        (stats.connections as usize, stats.evicted_for_memory, stats.memory as usize)
    };
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}: {:?}", figures());
        }
    };
    for client in hogs {
        for _ in 0..10 {
            client.send_frame(TEXT, FILL);
        }
    }
    until("enough waits", &|| figures().2 > 5 * BUFFER);
    blocker.send_frame(TEXT, BLOCK);
    is_blocked.recv().expect("the worker takes it");
    let total = innocent.len() + 8;
    options.memory_max = Some(2 * BUFFER);
    running.reconfigurer().reconfigure(&options).expect("they are good");
    let echo = |client: &mut RawClient| {
        client.send_frame(TEXT, JOIN);
        assert_eq!(wait(client, RawClient::frame).payload, b"0");
    };
    innocent.iter_mut().for_each(echo);
    drop(release);
    until("the others are evicted", &|| figures().1 > 0 && figures().2 <= 2 * BUFFER);
    innocent.iter_mut().for_each(echo);
    let (connections, evicted, _) = figures();
    assert!(connections >= innocent.len() && evicted as usize <= total - innocent.len());
    running.stop();
    running.join().expect("the workers end in peace");
}
