//! Tests run `windlass serve` under the filters of `docs/syscalls`. After its start it needs no
//! other calls.

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::process::{ExitStatusExt as _, parent_id},
    panic::catch_unwind,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdout, ExitStatus, abort},
    thread,
};

use rustix::{process::Signal, thread::gettid};
use windlass_testkit::{
    certificates::certificate, rings, seccomp, signals::signal_thread, waiting::until,
};

use super::{Command, parse, read_again, serve};

const PARTS: &[&str] = &["reactor", "serve", "admin", "reload"];

/// The path of the configuration, which the test writes and the confined process reads.
fn file(process: u32, test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("windlass-{test}-{process}.toml"))
}

/// Writes the configuration. It names files that a reload reads again.
fn configure(file: &Path, backend: &str, more: &str) {
    let [cert, key] = ["localhost.pem", "localhost.key"].map(certificate);
    let text = format!(
        "listen = ['http://127.0.0.1:0', 'https://127.0.0.1:0']\nadmin = 'http://127.0.0.1:0'\n\
         tls-cert = {cert:?}\ntls-key = {key:?}\nbackend = '{backend}'\n\
         drain-timeout = 1\nworkers = 2\n{more}\n"
    );
    fs::write(file, text).expect("it can be written");
}

/// Runs the server in the confined process, until a signal ends it.
fn serve(file: &Path, backend: &'static str, forbidden: Option<&'static str>) {
    println!("\nsupervisor {}", gettid().as_raw_nonzero());
    thread::spawn(move || {
        // The test has seen that the start is over.
        io::stdin().read_exact(&mut [0]).expect("it says so");
        // The test would wait for ever for a process that is not confined.
        catch_unwind(|| seccomp::confine(backend, PARTS, forbidden)).unwrap_or_else(|_| abort());
        println!("confined");
    });
    let arguments = ["windlass".as_ref(), "serve".as_ref(), "--config".as_ref(), file.as_os_str()];
    let arguments = arguments.map(OsString::from);
    let (cli, given) = parse(arguments.to_vec()).expect("they are valid");
    let Some(Command::Serve(args)) = cli.command else { panic!("they start a server") };
    let configuration = serve::Configuration { args, given };
    let again = Box::new(move || read_again(arguments.to_vec()));
    serve::run(&configuration, again, Ok(Vec::new()), &mut io::stdout()).expect("it ends well");
}

/// The confined process, seen from outside.
struct Confined {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Its log.
    errors: BufReader<ChildStderr>,
    /// The kernel's number of the thread that gets the signals.
    supervisor: i32,
    server: String,
    admin: String,
    file: PathBuf,
}

impl Confined {
    /// Starts the server, and confines it. `None` in its process, at the end.
    fn start(test: &str, backend: &'static str, forbidden: Option<&'static str>) -> Option<Self> {
        if seccomp::is_to_be_confined() {
            serve(&file(parent_id(), test), backend, forbidden);
            return None;
        }
        let file = file(std::process::id(), test);
        configure(&file, backend, "");
        let (mut child, mut output) = seccomp::start(&format!("confined::{test}"));
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut after = |words| seccomp::line_after(&mut output, words).expect("it starts");
        let supervisor = after("supervisor ").parse().expect("a number");
        let admin = after("admin at ");
        let server = after("listening on ");
        after("listening on ");
        let mut confined = Self { child, output, errors, supervisor, server, admin, file };
        confined.wait_for_the_start();
        let mut input = confined.child.stdin.take().expect("piped");
        input.write_all(&[0]).expect("it reads");
        seccomp::line_after(&mut confined.output, "confined").expect("it is confined");
        Some(confined)
    }

    /// Waits until all threads sleep: the start is over. That of a thread takes calls of its own.
    fn wait_for_the_start(&self) {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let loops = [
            libc::SYS_epoll_pwait2,
            libc::SYS_epoll_wait,
            libc::SYS_io_uring_enter,
            libc::SYS_ppoll,
        ];
        let is_in = |task: &Path, waits: &[i64]| {
            let call = fs::read_to_string(task.join("syscall")).unwrap_or_default();
            let number = call.split(' ').next().and_then(|number| number.parse().ok());
            number.is_some_and(|number| waits.contains(&number))
        };
        let waits = [&loops[..], &[libc::SYS_futex, libc::SYS_read]].concat();
        let is_over = || {
            // The supervisor is the last to begin, so all threads are there by then.
            is_in(&tasks.join(self.supervisor.to_string()), &loops)
                && fs::read_dir(&tasks)
                    .is_ok_and(|all| all.flatten().all(|task| is_in(&task.path(), &waits)))
        };
        until(|| is_over().then_some(()), || "the server does not sleep".to_owned());
    }

    fn signal(&self, signal: Signal) {
        // The main thread of a test program does not block it, and would take it.
        signal_thread(self.child.id(), self.supervisor, signal.as_raw());
    }

    /// Makes all requests of the admin listener, and one of the server. Returns whether each was
    /// answered.
    fn answers(&self) -> bool {
        let pages = ["/metrics", "/healthz", "/readyz", "/status", "/connections", "/rooms"];
        let answers = pages.iter().map(|page| get(&self.admin, page));
        answers.chain([get(&self.server, "/")]).all(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    /// Reloads the configuration. Returns whether the log has a line with these words.
    fn reload(&mut self, backend: &str, more: &str, words: &str) -> bool {
        configure(&self.file, backend, more);
        self.signal(Signal::HUP);
        self.errors.by_ref().lines().map_while(Result::ok).any(|line| line.contains(words))
    }

    fn end(mut self) -> ExitStatus {
        let status = self.child.wait().expect("it is ours");
        fs::remove_file(&self.file).expect("it is there");
        status
    }
}

/// Returns the whole answer. It is empty if the process was killed.
fn get(place: &str, path: &str) -> String {
    let address = place.trim_start_matches("http://").trim_end_matches('/');
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    if let Ok(mut client) = TcpStream::connect(address) {
        let _ = client.write_all(request.as_bytes());
        let _ = client.read_to_string(&mut answer);
    }
    answer
}

/// Runs the server with all that the parts are for.
fn needs_no_other_calls(test: &str, backend: &'static str) {
    let Some(mut server) = Confined::start(test, backend, None) else { return };
    assert!(server.answers());
    assert!(server.reload(backend, "log-level = 'debug'", "configuration reloaded"));
    assert!(server.reload(backend, "unknown = 1", "configuration not reloaded"));
    assert!(server.answers());
    server.signal(Signal::TERM);
    assert!(server.end().success());
}

#[test]
fn a_server_on_epoll_needs_no_other_calls() {
    needs_no_other_calls("a_server_on_epoll_needs_no_other_calls", "epoll");
}

#[test]
fn a_server_on_poll_needs_no_other_calls() {
    needs_no_other_calls("a_server_on_poll_needs_no_other_calls", "poll");
}

#[test]
fn a_server_on_a_ring_needs_no_other_calls() {
    let test = "a_server_on_a_ring_needs_no_other_calls";
    if rings::are_to_be_had(test) {
        needs_no_other_calls(test, "uring");
    }
}

// The filter is in force: a call that it lacks kills the process.
#[test]
fn without_a_call_of_its_part_the_admin_listener_kills_the_process() {
    let test = "without_a_call_of_its_part_the_admin_listener_kills_the_process";
    let Some(server) = Confined::start(test, "epoll", Some("getdents64")) else { return };
    assert!(!server.answers());
    assert_eq!(server.end().signal(), Some(Signal::SYS.as_raw()));
}
