//! Streams and datagrams between hosts: handshakes, time, cuts and ends.

use std::io;
use std::net::Shutdown;

use rustix::io::Errno;
use windlass_sim::{
    Fault, Faults, Fd, HostId, Kernel, Link, PollEvent, SimAddr, SocketKind, Step, mask,
};

const LATENCY_NS: u64 = 50_000;

fn calm() -> (Kernel, HostId, HostId) {
    let kernel = Kernel::new(1, Faults::calm());
    let (a, b) = (kernel.host([10, 0, 0, 1].into()), kernel.host([10, 0, 0, 2].into()));
    (kernel, a, b)
}

/// Lets everything arrive that is under way.
fn settle(kernel: &Kernel) {
    assert_eq!(kernel.step(), Step::Quiet);
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Errno {
    Errno::from_io_error(&result.expect_err("it fails")).expect("an errno")
}

fn address(kernel: &Kernel, host: HostId, port: u16) -> SimAddr {
    SimAddr::from((kernel.address_of(host), port))
}

fn listen(kernel: &Kernel, host: HostId, backlog: u32) -> Fd {
    let listener = kernel.socket(host, SocketKind::Tcp).expect("a socket");
    kernel.bind(listener, &address(kernel, host, 80)).expect("a port");
    kernel.listen(listener, backlog).expect("it is bound");
    listener
}

fn connect(kernel: &Kernel, from: HostId, to: HostId) -> Fd {
    let client = kernel.socket(from, SocketKind::Tcp).expect("a socket");
    assert_eq!(errno(kernel.connect(client, &address(kernel, to, 80))), Errno::INPROGRESS);
    client
}

/// A connection: the end of the client and that of the server.
fn pair(kernel: &Kernel, from: HostId, to: HostId) -> (Fd, Fd) {
    let listener = listen(kernel, to, 8);
    let client = connect(kernel, from, to);
    settle(kernel);
    let (server, peer) = kernel.accept(listener).expect("a connection");
    assert_eq!(peer, kernel.local_addr(client).expect("an address"));
    (client, server)
}

fn read(kernel: &Kernel, fd: Fd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 100_000];
    let count = kernel.recv(fd, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

#[test]
fn a_connection_takes_a_round_trip_and_the_server_sees_it_later() {
    let (kernel, a, b) = calm();
    let listener = listen(&kernel, b, 8);
    let client = connect(&kernel, a, b);
    assert_eq!(kernel.poll(client).expect("it is open"), 0);
    assert_eq!(errno(kernel.connect(client, &address(&kernel, b, 80))), Errno::ALREADY);
    kernel.set_time_max(2 * LATENCY_NS);
    assert_eq!(kernel.step(), Step::Limit);
    assert_eq!(kernel.poll(client).expect("it is open"), mask::OUT);
    assert_eq!(errno(kernel.accept(listener)), Errno::AGAIN);
    kernel.set_time_max(u64::MAX);
    settle(&kernel);
    assert_eq!(kernel.now_ns(), 3 * LATENCY_NS);
    assert_eq!(kernel.poll(listener).expect("it is open"), mask::IN);
    let (server, _) = kernel.accept(listener).expect("a connection");
    assert_eq!(kernel.peer_addr(client).ok(), kernel.local_addr(server).ok());
    // The first call that finds it connected says so.
    kernel.connect(client, &address(&kernel, b, 80)).expect("it is connected");
    assert_eq!(errno(kernel.connect(client, &address(&kernel, b, 80))), Errno::ISCONN);
}

#[test]
fn a_socket_that_was_refused_can_connect_again() {
    let (kernel, a, b) = calm();
    let client = connect(&kernel, a, b);
    settle(&kernel);
    let again = || errno(kernel.connect(client, &address(&kernel, b, 80)));
    assert_eq!(again(), Errno::CONNREFUSED);
    assert_eq!(kernel.poll(client).expect("it is open"), mask::OUT | mask::HUP);
    let listener = listen(&kernel, b, 8);
    assert_eq!(again(), Errno::INPROGRESS);
    settle(&kernel);
    assert_eq!(kernel.poll(client).expect("it is open"), mask::OUT);
    kernel.accept(listener).expect("a connection");
}

#[test]
fn a_socket_that_is_not_connected_has_the_errors_of_its_family() {
    let (kernel, a, b) = calm();
    let tcp = kernel.socket(a, SocketKind::Tcp).expect("a socket");
    let unix = kernel.socket(a, SocketKind::Unix).expect("a socket");
    let listener = listen(&kernel, b, 8);
    for (fd, send, recv) in [
        (tcp, Errno::PIPE, Errno::NOTCONN),
        (listener, Errno::PIPE, Errno::NOTCONN),
        (unix, Errno::NOTCONN, Errno::INVAL),
    ] {
        assert_eq!(errno(kernel.send(fd, b"x")), send);
        assert_eq!(errno(read(&kernel, fd)), recv);
    }
}

#[test]
fn a_listener_that_reads_no_more_stops() {
    let (kernel, a, b) = calm();
    let listener = listen(&kernel, b, 8);
    let client = connect(&kernel, a, b);
    settle(&kernel);
    kernel.shutdown(listener, Shutdown::Write).expect("nothing happens");
    assert_eq!(kernel.poll(listener).expect("it is open"), mask::IN);
    kernel.shutdown(listener, Shutdown::Read).expect("it stops");
    assert_eq!(errno(kernel.accept(listener)), Errno::INVAL);
    settle(&kernel);
    assert_eq!(errno(read(&kernel, client)), Errno::CONNRESET);
}

#[test]
fn nobody_who_listens_is_a_refusal_and_no_host_is_unreachable() {
    let (kernel, a, b) = calm();
    let client = connect(&kernel, a, b);
    settle(&kernel);
    let all = mask::IN | mask::OUT | mask::ERR | mask::HUP | mask::RDHUP;
    assert_eq!(kernel.poll(client).expect("it is open"), all);
    let error = kernel.take_error(client).expect("it is open").expect("it was refused");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(read(&kernel, client).expect("the end"), []);
    let other = kernel.socket(a, SocketKind::Tcp).expect("a socket");
    let nowhere = SimAddr::from(([10, 9, 9, 9].into(), 80));
    assert_eq!(errno(kernel.connect(other, &nowhere)), Errno::HOSTUNREACH);
    assert_eq!(kernel.poll(other).expect("it is open"), mask::OUT | mask::HUP);
}

#[test]
fn a_loopback_listener_is_for_its_own_host() {
    let (kernel, a, b) = calm();
    let listener = kernel.socket(b, SocketKind::Tcp).expect("a socket");
    let local = SimAddr::from(([127, 0, 0, 1].into(), 80));
    kernel.bind(listener, &local).expect("a port");
    kernel.listen(listener, 1).expect("it is bound");
    let (other, own) = (connect(&kernel, a, b), kernel.socket(b, SocketKind::Tcp).expect("one"));
    assert_eq!(errno(kernel.connect(own, &local)), Errno::INPROGRESS);
    settle(&kernel);
    assert_ne!(kernel.poll(other).expect("it is open") & mask::ERR, 0);
    assert_eq!(kernel.poll(own).expect("it is open"), mask::OUT);
}

#[test]
fn a_full_backlog_delays_a_connection() {
    let (kernel, a, b) = calm();
    let listener = listen(&kernel, b, 0);
    let (first, second) = (connect(&kernel, a, b), connect(&kernel, a, b));
    kernel.set_time_max(500_000_000);
    assert_eq!(kernel.step(), Step::Limit);
    kernel.accept(listener).expect("the first");
    assert_eq!(errno(kernel.accept(listener)), Errno::AGAIN);
    kernel.set_time_max(u64::MAX);
    settle(&kernel);
    assert!(kernel.now_ns() > 1_000_000_000);
    kernel.accept(listener).expect("the second");
    for client in [first, second] {
        assert_eq!(kernel.poll(client).expect("it is open"), mask::OUT);
    }
}

#[test]
fn bytes_come_in_order_and_the_end_comes_last() {
    let (kernel, a, b) = calm();
    let (client, server) = pair(&kernel, a, b);
    kernel.send(client, b"hello ").expect("room");
    kernel.send(client, b"world").expect("room");
    kernel.shutdown(client, Shutdown::Write).expect("it is connected");
    assert_eq!(errno(kernel.send(client, b"x")), Errno::PIPE);
    assert_eq!(errno(read(&kernel, server)), Errno::AGAIN);
    settle(&kernel);
    let ready = kernel.poll(server).expect("it is open");
    assert_eq!(ready, mask::IN | mask::OUT | mask::RDHUP);
    let mut start = [0; 3];
    assert_eq!(kernel.peek(server, &mut start).expect("input"), 3);
    assert_eq!(kernel.unread(server).expect("it is open"), 11);
    assert_eq!(read(&kernel, server).expect("input"), b"hello world");
    assert_eq!(read(&kernel, server).expect("the end"), b"");
    // The other direction is open.
    kernel.send(server, b"yes").expect("room");
    settle(&kernel);
    assert_eq!(read(&kernel, client).expect("input"), b"yes");
}

#[test]
fn unread_input_makes_a_close_a_reset() {
    let (kernel, a, b) = calm();
    let (client, server) = pair(&kernel, a, b);
    kernel.send(client, b"unread").expect("room");
    settle(&kernel);
    kernel.send(server, b"answer").expect("room");
    kernel.close(server).expect("it is open");
    settle(&kernel);
    // Linux delivers what came before the reset.
    assert_eq!(read(&kernel, client).expect("input"), b"answer");
    assert_eq!(errno(read(&kernel, client)), Errno::CONNRESET);
    assert_eq!(read(&kernel, client).expect("the end"), b"");
    assert_eq!(errno(kernel.send(client, b"x")), Errno::PIPE);
}

#[test]
fn bytes_for_an_end_that_has_shut_down_both_directions_are_answered_by_a_reset() {
    let (kernel, a, b) = calm();
    let (client, server) = pair(&kernel, a, b);
    kernel.send(client, b"before").expect("room");
    settle(&kernel);
    kernel.shutdown(server, Shutdown::Both).expect("it is connected");
    settle(&kernel);
    kernel.send(client, b"after").expect("nobody knows yet");
    kernel.shutdown(client, Shutdown::Write).expect("nobody knows yet");
    settle(&kernel);
    assert_eq!(read(&kernel, server).expect("input"), b"before");
    assert_eq!(errno(read(&kernel, server)), Errno::CONNRESET);
    assert_eq!(read(&kernel, server).expect("the end"), b"");
    // The client is in LAST_ACK: its pipe is not broken but reset.
    assert_eq!(read(&kernel, client).expect("the end"), b"");
    assert_eq!(errno(kernel.send(client, b"x")), Errno::CONNRESET);
    for fd in [client, server] {
        assert_eq!(errno(kernel.peer_addr(fd)), Errno::NOTCONN);
    }
}

#[test]
fn an_end_that_only_reads_no_more_takes_bytes() {
    let (kernel, a, b) = calm();
    let (client, server) = pair(&kernel, a, b);
    kernel.shutdown(server, Shutdown::Read).expect("it is connected");
    kernel.send(client, b"taken").expect("room");
    settle(&kernel);
    assert_eq!(read(&kernel, server).expect("input"), b"taken");
    assert_eq!(read(&kernel, server).expect("the end"), b"");
    assert_eq!(kernel.poll(client).expect("it is open"), mask::OUT);
}

#[test]
fn a_reset_after_both_fins_is_not_heard() {
    for in_flight in [false, true] {
        let (kernel, a, b) = calm();
        let (client, server) = pair(&kernel, a, b);
        kernel.send(client, b"unread").expect("room");
        kernel.shutdown(client, Shutdown::Write).expect("it is connected");
        settle(&kernel);
        kernel.send(server, b"answer").expect("room");
        kernel.shutdown(server, Shutdown::Write).expect("it is connected");
        if !in_flight {
            settle(&kernel);
            assert_eq!(errno(kernel.shutdown(client, Shutdown::Both)), Errno::NOTCONN);
        }
        kernel.close(server).expect("it is open");
        settle(&kernel);
        assert_eq!(read(&kernel, client).expect("input"), b"answer");
        assert_eq!(read(&kernel, client).expect("the end"), b"");
        assert!(kernel.take_error(client).expect("it is open").is_none());
    }
}

#[test]
fn bytes_for_a_closed_socket_are_answered_by_a_reset() {
    let (kernel, a, b) = calm();
    let (client, server) = pair(&kernel, a, b);
    kernel.close(server).expect("it is open");
    settle(&kernel);
    assert_eq!(read(&kernel, client).expect("the end"), b"");
    kernel.send(client, b"late").expect("nobody knows yet");
    settle(&kernel);
    assert_ne!(kernel.poll(client).expect("it is open") & (mask::ERR | mask::HUP), 0);
    assert_eq!(errno(kernel.send(client, b"x")), Errno::PIPE);
}

#[test]
fn the_setting_to_reset_is_inherited_from_the_listener() {
    let (kernel, a, b) = calm();
    let listener = listen(&kernel, b, 8);
    kernel.set_reset_on_close(listener, true).expect("a socket");
    let client = connect(&kernel, a, b);
    settle(&kernel);
    let (server, _) = kernel.accept(listener).expect("a connection");
    kernel.close(server).expect("it is open");
    settle(&kernel);
    assert_eq!(errno(read(&kernel, client)), Errno::CONNRESET);
}

#[test]
fn a_closed_listener_resets_what_waits() {
    let (kernel, a, b) = calm();
    let listener = listen(&kernel, b, 8);
    let client = connect(&kernel, a, b);
    settle(&kernel);
    kernel.close(listener).expect("it is open");
    settle(&kernel);
    assert_eq!(errno(read(&kernel, client)), Errno::CONNRESET);
    // The port is free again.
    listen(&kernel, b, 8);
}

#[test]
fn a_full_buffer_takes_no_more_until_it_was_read() {
    let (kernel, a, b) = calm();
    let (client, server) = pair(&kernel, a, b);
    kernel.set_buffers(client, 1_000).expect("a socket");
    assert_eq!(kernel.send(client, &[1; 5_000]).expect("room"), 1_000);
    assert_eq!(errno(kernel.send(client, &[1])), Errno::AGAIN);
    assert_eq!(kernel.poll(client).expect("it is open"), 0);
    settle(&kernel);
    assert_eq!(read(&kernel, server).expect("input").len(), 1_000);
    let before_ns = kernel.now_ns();
    settle(&kernel);
    // The news of room takes the time of the link.
    assert_eq!(kernel.now_ns() - before_ns, LATENCY_NS);
    assert_eq!(kernel.poll(client).expect("it is open"), mask::OUT);
}

#[test]
fn a_link_carries_its_bandwidth() {
    let (kernel, a, b) = calm();
    kernel.set_link(a, b, Link { latency_ns: 1_000, jitter_ns: 0, bytes_per_s: 1_000_000 });
    let (client, server) = pair(&kernel, a, b);
    let before_ns = kernel.now_ns();
    kernel.send(client, &[1; 10_000]).expect("room");
    kernel.send(client, &[1; 10_000]).expect("room");
    settle(&kernel);
    assert_eq!(kernel.now_ns() - before_ns, 20_000_000 + 1_000);
    assert_eq!(read(&kernel, server).expect("input").len(), 20_000);
}

#[test]
fn a_cut_holds_bytes_until_it_is_healed() {
    let (kernel, a, b) = calm();
    let (client, server) = pair(&kernel, a, b);
    kernel.partition(a, b);
    kernel.send(client, b"held").expect("room");
    kernel.shutdown(client, Shutdown::Write).expect("it is connected");
    kernel.set_time_max(kernel.now_ns() + 60_000_000_000);
    assert_eq!(kernel.step(), Step::Limit);
    assert_eq!(errno(read(&kernel, server)), Errno::AGAIN);
    kernel.heal(a, b);
    assert_eq!(kernel.step(), Step::Limit);
    assert_eq!(read(&kernel, server).expect("input"), b"held");
    assert_eq!(read(&kernel, server).expect("the end"), b"");
}

#[test]
fn a_cut_that_does_not_end_fails_connections_in_the_end() {
    let (kernel, a, b) = calm();
    let (client, server) = pair(&kernel, a, b);
    kernel.partition(a, b);
    kernel.send(client, b"lost").expect("room");
    let new = connect(&kernel, a, b);
    settle(&kernel);
    for fd in [client, new] {
        let error = kernel.take_error(fd).expect("it is open").expect("it has failed");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
    // 15 minutes for the connection.
    assert!((900_000_000_000..1_000_000_000_000).contains(&kernel.now_ns()));
    // The server has nothing to send, so it knows nothing.
    assert_eq!(errno(read(&kernel, server)), Errno::AGAIN);
}

#[test]
fn ports_are_unique_unless_they_are_shared() {
    let (kernel, a, b) = calm();
    listen(&kernel, b, 8);
    let other = kernel.socket(b, SocketKind::Tcp).expect("a socket");
    assert_eq!(errno(kernel.bind(other, &address(&kernel, b, 80))), Errno::ADDRINUSE);
    assert_eq!(errno(kernel.bind(other, &address(&kernel, a, 81))), Errno::ADDRNOTAVAIL);
    let shared: Vec<Fd> = (0..2)
        .map(|_| {
            let fd = kernel.socket(a, SocketKind::Tcp).expect("a socket");
            kernel.set_reuse_port(fd, true).expect("a socket");
            kernel.bind(fd, &address(&kernel, a, 80)).expect("a shared port");
            kernel.listen(fd, 100).expect("it is bound");
            fd
        })
        .collect();
    let _clients: Vec<Fd> = (0..40).map(|_| connect(&kernel, b, a)).collect();
    settle(&kernel);
    for fd in shared {
        kernel.accept(fd).expect("each gets some");
    }
}

#[test]
fn unix_sockets_connect_at_once_by_their_path() {
    let (kernel, a, b) = calm();
    let listener = kernel.socket(a, SocketKind::Unix).expect("a socket");
    let path = SimAddr::unix("/run/x");
    kernel.bind(listener, &path).expect("a path");
    kernel.listen(listener, 0).expect("it is bound");
    let client = |host| kernel.socket(host, SocketKind::Unix).expect("a socket");
    assert_eq!(errno(kernel.connect(client(b), &path)), Errno::NOENT);
    let first = client(a);
    kernel.connect(first, &path).expect("at once");
    assert_eq!(errno(kernel.connect(client(a), &path)), Errno::AGAIN);
    let (server, _) = kernel.accept(listener).expect("a connection");
    kernel.send(first, b"now").expect("room");
    assert_eq!(read(&kernel, server).expect("input"), b"now");
    assert_eq!(kernel.local_addr(server).expect("an address"), path);
}

#[test]
fn datagrams_keep_their_borders_and_know_their_sender() {
    let (kernel, a, b) = calm();
    let socket = |host| kernel.socket(host, SocketKind::Udp).expect("a socket");
    let (sender, receiver) = (socket(a), socket(b));
    kernel.bind(receiver, &address(&kernel, b, 53)).expect("a port");
    for text in ["one", "three"] {
        kernel.send_to(sender, text.as_bytes(), &address(&kernel, b, 53)).expect("room");
    }
    settle(&kernel);
    assert_eq!(kernel.poll(receiver).expect("it is open"), mask::IN | mask::OUT);
    let mut bytes = [0; 4];
    let (count, from) = kernel.recv_from(receiver, &mut bytes).expect("a datagram");
    assert_eq!(&bytes[..count], b"one");
    // The rest does not fit and is lost.
    let (count, _) = kernel.recv_from(receiver, &mut bytes).expect("a datagram");
    assert_eq!(&bytes[..count], b"thre");
    assert_eq!(errno(kernel.recv_from(receiver, &mut bytes)), Errno::AGAIN);
    kernel.send_to(receiver, b"back", &from).expect("room");
    settle(&kernel);
    assert_eq!(kernel.recv_from(sender, &mut bytes).expect("a datagram").0, 4);
    assert_eq!(errno(kernel.send_to(sender, &[0; 65_508], &from)), Errno::MSGSIZE);
}

#[test]
fn the_end_of_a_process_closes_what_it_has_made() {
    let (kernel, a, b) = calm();
    let listener = listen(&kernel, b, 8);
    let process = kernel.actor(a, "process");
    assert_eq!(kernel.step(), Step::Run(process));
    let client = connect(&kernel, a, b);
    kernel.park(process, None);
    settle(&kernel);
    let (server, _) = kernel.accept(listener).expect("a connection");
    kernel.end(process);
    settle(&kernel);
    assert_eq!(errno(kernel.send(client, b"x")), Errno::BADF);
    assert_eq!(read(&kernel, server).expect("the end"), b"");
}

#[test]
fn a_mortal_process_ends_by_a_fault() {
    let faults = Faults { process_end: 1_000_000, ..Faults::calm() };
    let kernel = Kernel::new(1, faults);
    let host = kernel.host([10, 0, 0, 1].into());
    let (mortal, other) = (kernel.actor(host, "mortal"), kernel.actor(host, "other"));
    kernel.set_mortal(mortal, true);
    let next = || {
        let step = kernel.step();
        if let Step::Run(actor) = step {
            kernel.park(actor, None);
        }
        step
    };
    let mut steps = [next(), next()];
    steps.sort_by_key(|step| matches!(step, Step::End(_)));
    assert_eq!(steps, [Step::Run(other), Step::End(mortal)]);
    assert_eq!(kernel.fault_count(Fault::ProcessEnd), 1);
}

#[test]
fn the_wall_clock_steps_and_the_virtual_one_does_not() {
    let faults = Faults { clock_step: 1_000_000, ..Faults::calm() };
    let kernel = Kernel::new(3, faults);
    let host = kernel.host([10, 0, 0, 1].into());
    let actor = kernel.actor(host, "clock");
    let start_ns = kernel.wall_ns();
    assert_eq!(kernel.step(), Step::Run(actor));
    kernel.park(actor, Some(1_000));
    assert_eq!(kernel.step(), Step::Run(actor));
    assert_eq!(kernel.now_ns(), 1_000);
    assert!((kernel.wall_ns() - start_ns).abs() > 1_000_000);
}

#[test]
fn signals_merge_and_one_read_returns_all() {
    let (kernel, a, _) = calm();
    let fd = kernel.signalfd(a, 0b110).expect("a descriptor");
    for signal in [3, 1, 2, 3] {
        kernel.raise(a, signal);
    }
    assert_eq!(kernel.poll(fd).expect("it is open"), mask::IN);
    let mut infos = [0; 3 * 128];
    assert_eq!(kernel.read(fd, &mut infos).expect("signals"), 2 * 128);
    assert_eq!((infos[0], infos[128]), (2, 3));
    assert_eq!(errno(kernel.read(fd, &mut infos)), Errno::AGAIN);
    assert_eq!(kernel.poll(fd).expect("it is open"), 0);
}

#[test]
fn a_timer_expires_at_its_time_and_counts_the_intervals() {
    let (kernel, a, _) = calm();
    let fd = kernel.timerfd(a).expect("a timer");
    kernel.set_timer(fd, Some(500), 100).expect("a timer");
    kernel.set_time_max(499);
    assert_eq!(kernel.step(), Step::Limit);
    assert_eq!(errno(kernel.read(fd, &mut [0; 8])), Errno::AGAIN);
    kernel.set_time_max(720);
    assert_eq!(kernel.step(), Step::Limit);
    let mut count = [0; 8];
    kernel.read(fd, &mut count).expect("it has expired");
    assert_eq!(u64::from_ne_bytes(count), 3);
    kernel.set_timer(fd, None, 0).expect("a timer");
    kernel.set_time_max(u64::MAX);
    settle(&kernel);
    assert_eq!(kernel.poll(fd).expect("it is open"), 0);
}

#[test]
fn a_writer_that_only_polls_is_told_of_room() {
    let (kernel, a, b) = calm();
    let (client, server) = pair(&kernel, a, b);
    kernel.set_buffers(client, 1_000).expect("a socket");
    assert_eq!(kernel.send(client, &[1; 1_000]).expect("room"), 1_000);
    let actor = kernel.actor(a, "writer");
    let set = kernel.poll_set(actor);
    set.add(client, mask::OUT | mask::ET, 7).expect("it is open");
    assert!(!set.is_ready());
    assert_eq!(kernel.step(), Step::Run(actor));
    kernel.park(actor, None);
    settle(&kernel);
    read(&kernel, server).expect("input");
    assert_eq!(kernel.step(), Step::Run(actor));
    let mut events = [PollEvent::default(); 2];
    assert_eq!(set.wait(&mut events).expect("an event"), 1);
    assert_eq!(events[0], PollEvent { mask: mask::OUT, data: 7 });
}
