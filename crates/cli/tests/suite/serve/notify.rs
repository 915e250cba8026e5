//! What a service manager is told, and the units for systemd.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::{Signal, kill_process};
use windlass_testkit::ptrace::StoppedThread;

use super::{hangup::with_default_hangup, tls::Folder};
use crate::harness::{Server, WAIT_MAX, windlass};

/// A service manager's end of the notifications.
pub(crate) struct Manager {
    pub(crate) folder: Folder,
    socket: UnixDatagram,
}

impl Manager {
    pub(crate) fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let socket = UnixDatagram::bind(folder.path("notify")).expect("the path is free");
        socket.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
        Self { folder, socket }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = with_default_hangup(windlass(arguments));
        command.env("NOTIFY_SOCKET", self.folder.path("notify"));
        command
    }

    /// Returns the lines of the next message.
    pub(crate) fn next(&self) -> Vec<String> {
        let mut buffer = [0; 4096];
        let count = self.socket.recv(&mut buffer).expect("the server says something");
        let text = std::str::from_utf8(&buffer[..count]).expect("it is text");
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn a_service_manager_hears_of_start_reload_and_stop() {
    let manager = Manager::new("notify");
    let server = Server::of(manager.command(&["serve", "--listen", "127.0.0.1:0"]));
    let status = format!("STATUS=serving at http://{}/", server.address);
    assert_eq!(manager.next(), ["READY=1", &status]);

    kill_process(server.pid(), Signal::HUP).expect("it runs");
    let reloading = manager.next();
    assert_eq!(reloading.len(), 2, "the time is in the same message: {reloading:?}");
    assert_eq!(reloading[0], "RELOADING=1");
    let time = reloading[1].strip_prefix("MONOTONIC_USEC=").expect("the time of the clock");
    assert!(time.parse::<u64>().is_ok_and(|time| time > 0), "{reloading:?}");
    assert_eq!(manager.next(), ["READY=1"]);

    let (status, line) = server.stop(Signal::TERM);
    assert!(status.success(), "{line}");
    assert_eq!(manager.next(), ["STOPPING=1", "STATUS=draining"]);
}

/// A failed reload is over too: otherwise the manager would wait for its end.
#[test]
fn a_service_manager_hears_the_end_of_a_failed_reload() {
    let manager = Manager::new("notify-failed");
    let file = manager.folder.path("windlass.toml");
    fs::write(&file, "listen = '127.0.0.1:0'\n").expect("it can be written");
    let server = Server::of(manager.command(&["serve", "--config", &file]));
    assert_eq!(manager.next()[0], "READY=1");
    fs::write(&file, "listen = \n").expect("it can be written");
    kill_process(server.pid(), Signal::HUP).expect("it runs");
    assert_eq!(manager.next()[0], "RELOADING=1");
    assert_eq!(manager.next(), ["READY=1"]);
    server.wait_for_error("configuration not reloaded");
    server.stop_cleanly();
}

/// Waits for messages of the watchdog: at least two come, or none for a while.
fn watchdog_is_fed(manager: &Manager, wanted: bool) {
    let end = Instant::now() + WAIT_MAX;
    let a_while = Duration::from_secs(2);
    manager.socket.set_read_timeout(Some(a_while)).expect("a timeout can be set");
    let mut fed = 0;
    while Instant::now() < end {
        match manager.socket.recv(&mut [0; 4096]) {
            Ok(_) => fed += 1,
            Err(_) if !wanted => return,
            Err(_) => fed = 0,
        }
        if wanted && fed == 2 {
            return;
        }
    }
    panic!("the watchdog is fed: {}", !wanted);
}

#[test]
fn the_watchdog_is_fed_unless_a_worker_is_stopped() {
    let manager = Manager::new("watchdog");
    let options = ["serve", "--listen", "127.0.0.1:0", "--workers", "2", "--stall-limit", "6"];
    let mut command = manager.command(&options);
    command.env("WATCHDOG_USEC", "200000");
    let server = Server::of(command);
    assert_eq!(manager.next()[0], "READY=1");
    watchdog_is_fed(&manager, true);
    let process = server.pid().as_raw_nonzero().get();
    let Some(worker) = StoppedThread::of(process, "wl-worker-0") else {
        eprintln!("skipped here: the_watchdog_is_fed_unless_a_worker_is_stopped: no ptrace(2)");
        return;
    };
    // The messages are read meanwhile: the server waits while nobody does.
    watchdog_is_fed(&manager, false);
    let line = server.wait_for_error("a worker hangs");
    assert!(line.contains("ERROR") && line.contains("--stall-limit"), "{line}");
    let (_, seconds) = line.split_once("seconds=").expect("the line says how long");
    let seconds = seconds.split(|byte: char| !byte.is_ascii_digit()).next().expect("a part");
    assert!(seconds.parse::<u64>().is_ok_and(|seconds| seconds >= 6), "{line}");
    drop(worker);
    watchdog_is_fed(&manager, true);
    server.stop_cleanly();
}

/// The units are valid, with the program of this test in the place of the installed one.
#[test]
fn the_units_for_systemd_are_valid() {
    let folder = Folder::new("units");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for name in ["windlass.service", "windlass.socket"] {
        let unit = fs::read_to_string(docs.join(name)).expect("it is there");
        let unit = unit.replace("/usr/local/bin/windlass", env!("CARGO_BIN_EXE_windlass"));
        fs::write(folder.path(name), unit).expect("it can be written");
    }
    let units = ["windlass.service", "windlass.socket"].map(|name| folder.path(name));
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(units).output();
    let Ok(output) = verify else {
        eprintln!("ignored: systemd-analyze is not installed");
        return;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
}
