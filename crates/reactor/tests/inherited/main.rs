//! Sockets that the process inherits, as a service manager passes them.
//!
//! The binary starts itself again as the service, so it has a `main` of its own.

#![deny(unsafe_code)]

use std::{
    fmt::Debug,
    io::Write as _,
    net::{TcpListener, TcpStream},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    process::{Command, ExitCode, Output, Stdio},
};

use libtest_mimic::{Failed, Trial};
use rustix::{
    fs::{OFlags, fcntl_getfl},
    io::{FdFlags, fcntl_getfd},
};
use windlass::stream::{Inherited, InheritedError, inherited_sockets};

/// The argument that makes this binary the service.
const SERVICE: &str = "--as-the-service";
/// The argument for a service that opens a listener before it takes its sockets.
const LATE_SERVICE: &str = "--as-a-late-service";

/// Takes the inherited sockets. Called if the process is the service.
#[expect(unsafe_code, reason = "descriptors that come with the process are taken over by number")]
fn inherited() -> Result<Vec<Inherited>, InheritedError> {
    // SAFETY: no code of the service owns an inherited number. Other processes made the test's own
    // listeners. The late service does own one: the call must reject it, which is what its test
    // checks. If the call does not, the service ends without touching the listener.
    unsafe { inherited_sockets() }
}

/// Prints the results of a first and a second call, one line per socket.
fn service() -> ExitCode {
    let mut kept = Vec::new();
    for _ in 0..2 {
        match inherited() {
            Ok(sockets) => {
                println!("{} sockets", sockets.len());
                for inherited in sockets {
                    let socket = inherited.socket.as_fd();
                    let blocks =
                        !fcntl_getfl(socket).expect("it is open").contains(OFlags::NONBLOCK);
                    let passes_on =
                        !fcntl_getfd(socket).expect("it is open").contains(FdFlags::CLOEXEC);
                    let listener = TcpListener::from(inherited.socket);
                    let (mut client, _) = listener.accept().expect("the test has connected");
                    client.write_all(b"served").expect("six bytes fit");
                    println!("{} blocks:{blocks} passes_on:{passes_on}", inherited.name);
                    // Kept open, so that the second call cannot take the number again.
                    kept.push(listener);
                }
            }
            Err(error) => println!("{error}"),
        }
    }
    ExitCode::SUCCESS
}

/// Opens a listener with the first number of a service manager, before it takes its sockets.
fn late_service() -> ExitCode {
    let own = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    assert_eq!(own.as_raw_fd(), 3, "the lowest number that is free");
    match inherited() {
        Ok(sockets) => {
            println!("took {}", sockets.len());
            // Otherwise two owners would close one number.
            sockets.into_iter().for_each(std::mem::forget);
        }
        Err(error) => println!("{error}"),
    }
    let _client =
        TcpStream::connect(own.local_addr().expect("it has an address")).expect("it listens");
    println!("accepted: {}", own.accept().is_ok());
    ExitCode::SUCCESS
}

/// Runs the service with these variables, and with `inherited` as descriptors 3 and 4.
fn run(inherited: impl Into<OwnedFd>, variables: &str) -> Output {
    // Two descriptors of one socket count as two sockets.
    execute(inherited, &format!("{variables} exec \"$0\" {SERVICE} 3<&0 4<&0"))
}

/// Runs a script in which `$0` is this program. The shell calls `exec`, so `$$` is the program's
/// process id.
fn execute(input: impl Into<OwnedFd>, script: &str) -> Output {
    let this = std::env::current_exe().expect("it is known");
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(this).stdin(Stdio::from(input.into()));
    for variable in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        command.env_remove(variable);
    }
    command.output().expect("there is a shell")
}

fn listener() -> (TcpListener, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it has an address");
    let connect = || TcpStream::connect(address).expect("it listens");
    (listener, connect(), connect())
}

fn equal<T: PartialEq + Debug>(is: T, should_be: T) -> Result<(), Failed> {
    if is == should_be {
        Ok(())
    } else {
        Err(format!("it is {is:?} and should be {should_be:?}").into())
    }
}

/// Checks that the service prints these lines and nothing fails.
fn says(inherited: impl Into<OwnedFd>, variables: &str, lines: &str) -> Result<(), Failed> {
    let output = run(inherited, variables);
    equal(String::from_utf8_lossy(&output.stderr).as_ref(), "")?;
    equal(String::from_utf8_lossy(&output.stdout).as_ref(), lines)
}

fn sockets_are_taken_over_once() -> Result<(), Failed> {
    let (listener, _first, _second) = listener();
    let lines = "2 sockets\nhttp blocks:false passes_on:false\n\
                 unknown blocks:false passes_on:false\n0 sockets\n";
    says(listener, "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=http:", lines)
}

fn without_names_they_are_unknown() -> Result<(), Failed> {
    let (listener, _first, _second) = listener();
    let lines = "1 sockets\nunknown blocks:false passes_on:false\n0 sockets\n";
    says(listener, "LISTEN_PID=$$ LISTEN_FDS=1", lines)
}

fn those_of_another_process_are_left_alone() -> Result<(), Failed> {
    for variables in [
        "",
        "LISTEN_FDS=2",
        "LISTEN_PID=1 LISTEN_FDS=2",
        "LISTEN_PID=$$",
        "LISTEN_PID=$$ LISTEN_FDS=0",
    ] {
        says(listener().0, variables, "0 sockets\n0 sockets\n")?;
    }
    Ok(())
}

fn what_is_no_listening_socket_is_refused() -> Result<(), Failed> {
    let refusal = "descriptor 3 of LISTEN_FDS is no listening socket\n".repeat(2);
    says(std::fs::File::open("/dev/null")?, "LISTEN_PID=$$ LISTEN_FDS=1", &refusal)?;
    says(listener().1, "LISTEN_PID=$$ LISTEN_FDS=1", &refusal)?;
    // The second descriptor is not open. Then the first is not taken either.
    let refusal = "descriptor 5 of LISTEN_FDS is not open\n".repeat(2);
    says(listener().0, "LISTEN_PID=$$ LISTEN_FDS=3", &refusal)
}

/// Regression (issue 13): the call took over this socket. So two owners had the number, and the
/// first of them closed it.
fn a_socket_that_the_process_has_opened_is_refused() -> Result<(), Failed> {
    let script = format!("LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" {LATE_SERVICE} 3<&-");
    let output = execute(std::fs::File::open("/dev/null")?, &script);
    equal(String::from_utf8_lossy(&output.stderr).as_ref(), "")?;
    let refusal = "descriptor 3 of LISTEN_FDS has FD_CLOEXEC set, so this process has opened it; \
                   take inherited sockets first thing in main";
    equal(String::from_utf8_lossy(&output.stdout).as_ref(), &format!("{refusal}\naccepted: true\n"))
}

fn nonsense_is_refused() -> Result<(), Failed> {
    let refusal = "LISTEN_FDS is not a number from 0 to 1024\n".repeat(2);
    for count in ["many", "-1", "1025", "''"] {
        says(listener().0, &format!("LISTEN_PID=$$ LISTEN_FDS={count}"), &refusal)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(SERVICE) {
        return service();
    }
    if std::env::args().nth(1).as_deref() == Some(LATE_SERVICE) {
        return late_service();
    }
    let trials = vec![
        Trial::test("sockets_are_taken_over_once", sockets_are_taken_over_once),
        Trial::test("without_names_they_are_unknown", without_names_they_are_unknown),
        Trial::test(
            "those_of_another_process_are_left_alone",
            those_of_another_process_are_left_alone,
        ),
        Trial::test(
            "what_is_no_listening_socket_is_refused",
            what_is_no_listening_socket_is_refused,
        ),
        Trial::test(
            "a_socket_that_the_process_has_opened_is_refused",
            a_socket_that_the_process_has_opened_is_refused,
        ),
        Trial::test("nonsense_is_refused", nonsense_is_refused),
    ];
    windlass_testkit::mimic::run(trials)
}
