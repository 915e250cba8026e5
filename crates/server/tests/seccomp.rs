//! Runs a server under a filter of system calls. After start-up it needs a fixed set of calls,
//! which docs/technical.md lists.
//!
//! A violation kills the process (`SECCOMP_RET_KILL_PROCESS`, seccomp(2)), so the test cannot miss
//! one.

#![allow(
    unsafe_code,
    reason = "prctl(2) and seccomp(2) take a program by its address; each block has its argument"
)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use windlass_testkit::rings;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    time::Duration,
};

use windlass::Backend;
use windlass_server::{
    Connection, Handler, Message, Options, Server,
    http::{Accept, Reject, UpgradeRequest},
};

/// The environment variable of the process that runs the server.
const CHILD: &str = "WINDLASS_SECCOMP_CHILD";

/// The calls of every server: sockets, memory, and the end of threads and of the process.
const COMMON: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // The latch, the log, and waits for another thread.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_futex,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_getrandom,
    // The end.
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The calls with which a backend waits.
const fn of_the_wait(backend: Backend) -> &'static [i64] {
    match backend {
        Backend::Epoll => &[libc::SYS_epoll_ctl, libc::SYS_epoll_wait, libc::SYS_epoll_pwait2],
        Backend::Poll => &[libc::SYS_ppoll, libc::SYS_poll, libc::SYS_fstat, libc::SYS_newfstatat],
        // The ring asks as poll does whether a descriptor can be polled.
        _ => &[
            libc::SYS_io_uring_enter,
            // At the end the ring's own number is released.
            libc::SYS_io_uring_register,
            libc::SYS_poll,
            libc::SYS_fstat,
            libc::SYS_newfstatat,
        ],
    }
}

/// `AUDIT_ARCH_X86_64` (linux/audit.h).
const ARCHITECTURE: u32 = 0xc000_003e;

/// Returns the filter's program: it checks the architecture, compares each allowed call, and kills
/// the process otherwise.
fn program(allowed: &[i64]) -> Vec<libc::sock_filter> {
    let load = |offset| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: offset };
    let unless_equal_skip =
        |value, skip| libc::sock_filter { code: 0x15, jt: 0, jf: skip, k: value };
    let answer = |value| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: value };
    let mut program = vec![
        // `struct seccomp_data`: the number at 0, the architecture at 4.
        load(4),
        unless_equal_skip(ARCHITECTURE, 1),
        load(0),
        // On another architecture the number is not loaded. The accumulator then holds the
        // architecture, which is the number of no call.
    ];
    for call in allowed {
        program.push(unless_equal_skip(u32::try_from(*call).expect("the number of a call"), 1));
        program.push(answer(libc::SECCOMP_RET_ALLOW));
    }
    program.push(answer(libc::SECCOMP_RET_KILL_PROCESS));
    program
}

/// Puts all threads of the process under the filter.
fn confine(allowed: &[i64]) {
    let mut program = program(allowed);
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("a short program"),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the option takes only numbers (PR_SET_NO_NEW_PRIVS(2const)).
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program has the length that it states. It lives until the call returns, and the
    // call copies it (seccomp(2)).
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const filter,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

struct Echo;

impl Handler for Echo {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        let _ = connection.reply_in_place(message);
    }
}

/// Runs the server in the confined process until its standard input is closed.
fn serve(backend: Backend, forbidden: Option<i64>) {
    let address = "127.0.0.1:0".parse().expect("an address");
    let running = Server::new(Options::new(), |_| Echo)
        .backend(backend)
        .listen(address)
        .start()
        .expect("it starts");
    let mut allowed = [COMMON, of_the_wait(running.backend())].concat();
    allowed.retain(|call| Some(*call) != forbidden);
    confine(&allowed);
    println!("\nlistening on {}", running.addresses()[0]);
    let _ = std::io::stdin().read(&mut [0]);
    running.drain(Duration::from_secs(5));
    running.join().expect("it ends well");
}

/// Talks to the server: a short and a long message, a second client that disconnects without a
/// request, and a Close frame.
fn talk(address: &str) -> std::io::Result<()> {
    let mut client = TcpStream::connect(address)?;
    client.set_read_timeout(Some(Duration::from_secs(20)))?;
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    client.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(client.try_clone()?);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(reader.read_line(&mut line)? > 0, "the head ends");
    }
    drop(TcpStream::connect(address)?);
    for length in [5usize, 100_000] {
        // A final text frame, masked with zeros (RFC 6455 section 5.2).
        let mut frame = vec![0x81];
        let mut expected = vec![0x81];
        if length < 126 {
            frame.push(0x80 | u8::try_from(length).expect("short"));
            expected.push(u8::try_from(length).expect("short"));
        } else {
            frame.push(0xff);
            expected.push(0x7f);
            frame.extend((length as u64).to_be_bytes());
            expected.extend((length as u64).to_be_bytes());
        }
        frame.extend([0; 4]);
        frame.resize(frame.len() + length, b'x');
        expected.resize(expected.len() + length, b'x');
        client.write_all(&frame)?;
        let mut came = vec![0; expected.len()];
        reader.read_exact(&mut came)?;
        assert!(came == expected, "what was sent comes back");
    }
    client.write_all(&[0x88, 0x80, 0, 0, 0, 0])?;
    reader.read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Runs a confined server in its own process and talks to it. Returns whether both succeeded.
fn is_served(test: &str, backend: Backend, forbidden: Option<i64>) -> bool {
    if std::env::var_os(CHILD).is_some() {
        serve(backend, forbidden);
        return true;
    }
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        // AddressSanitizer searches for leaks at the end of a process, with calls that no server
        // makes.
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let mut lines = output.lines().map_while(Result::ok);
    let address =
        lines.by_ref().find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
    let talked = address.is_some_and(|address| talk(&address).is_ok());
    drop(child.stdin.take());
    let rest: Vec<String> = lines.collect();
    let status = child.wait().expect("it is ours");
    println!("{status}: {rest:?}");
    talked && status.success()
}

#[test]
fn a_server_on_epoll_needs_no_other_calls() {
    assert!(is_served("a_server_on_epoll_needs_no_other_calls", Backend::Epoll, None));
}

#[test]
fn a_server_on_poll_needs_no_other_calls() {
    assert!(is_served("a_server_on_poll_needs_no_other_calls", Backend::Poll, None));
}

#[test]
fn a_server_on_a_ring_needs_no_other_calls() {
    const NAME: &str = "a_server_on_a_ring_needs_no_other_calls";
    if rings::are_to_be_had(NAME) {
        assert!(is_served(NAME, Backend::Uring, None));
    }
}

// The filter is in force: a forbidden call kills the server.
#[test]
fn a_forbidden_system_call_kills_the_process() {
    let is_served = is_served(
        "a_forbidden_system_call_kills_the_process",
        Backend::Epoll,
        Some(libc::SYS_accept4),
    );
    assert!(!is_served || std::env::var_os(CHILD).is_some());
}
