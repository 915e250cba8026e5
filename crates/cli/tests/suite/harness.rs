//! Starts the program and communicates with it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::{
    io::{BufRead as _, BufReader, Read},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

/// Maximum time of any wait, after which the test fails.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// The name of the backend for programs that do not choose one. `cargo xtask ci` sets it to each
/// backend in turn.
const BACKEND: &str = "WINDLASS_TEST_BACKEND";

/// Returns the command of the program.
pub(crate) fn windlass(arguments: &[&str]) -> Command {
    with_arguments(Command::new(env!("CARGO_BIN_EXE_windlass")), arguments)
}

/// Adds arguments, and the backend of the environment, unless the arguments choose one or name a
/// configuration file. The program rejects unknown names.
pub(crate) fn with_arguments(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    let takes_one = matches!(arguments.first(), Some(&("serve" | "load")));
    let has_one = arguments.iter().any(|argument| matches!(*argument, "--backend" | "--config"));
    if let (true, Some(name)) = (takes_one && !has_one, std::env::var_os(BACKEND)) {
        command.arg("--backend").arg(name);
    }
    command
}

/// The same after `ulimit`. The shell then executes the program in its place.
pub(crate) fn windlass_under_ulimit(ulimit: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args([
        "-c",
        &format!("ulimit {ulimit} && exec \"$0\" \"$@\""),
        env!("CARGO_BIN_EXE_windlass"),
    ]);
    with_arguments(command, arguments)
}

/// A process that is killed when dropped, so that a failed test leaves none behind.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Waits for its end, with a time limit.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let pidfd =
            pidfd_open(self.pid(), PidfdFlags::empty()).expect("the process is not waited for yet");
        let patience = Timespec::try_from(WAIT_MAX).expect("seconds fit");
        let ended =
            poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&patience)).expect("poll works");
        assert_eq!(ended, 1, "the program does not end");
        self.0.wait().expect("it can be waited for")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both calls fail only if it has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A listening server.
pub(crate) struct Server {
    running: Running,
    pub(crate) address: SocketAddr,
    output: Receiver<String>,
    errors: Receiver<String>,
}

impl Server {
    /// Starts `windlass serve` on a free port.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        // The clients of most tests do not answer a Close frame.
        let hasty: &[&str] =
            if arguments.contains(&"--drain-timeout") { &[] } else { &["--drain-timeout", "0"] };
        Self::of(windlass(&[&["serve", "--listen", "127.0.0.1:0"], arguments, hasty].concat()))
    }

    /// Starts a command, and waits until it prints its address.
    pub(crate) fn of(command: Command) -> Self {
        Self::with_input(command, Stdio::null())
    }

    /// The same for a server with several addresses, the last of which is an IP address.
    pub(crate) fn of_several(command: Command, places: usize) -> Self {
        Self::with_lines(command, places).0
    }

    /// The same with the printed lines.
    pub(crate) fn with_lines(command: Command, lines: usize) -> (Self, Vec<String>) {
        Self::spawn(command, Stdio::null(), lines)
    }

    /// The same with a standard input.
    pub(crate) fn with_input(command: Command, input: Stdio) -> Self {
        Self::spawn(command, input, 1).0
    }

    fn spawn(mut command: Command, input: Stdio, places: usize) -> (Self, Vec<String>) {
        let mut child = command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let output = lines_of(child.stdout.take().expect("piped"));
        let errors = lines_of(child.stderr.take().expect("piped"));
        // The value is a `Server` from here on, so that a panic kills the child.
        let mut server =
            Self { running: Running(child), address: ([0; 4], 0).into(), output, errors };
        let mut lines = Vec::new();
        for _ in 0..places {
            lines.push(server.output.recv_timeout(WAIT_MAX).unwrap_or_else(|_| {
                let errors: Vec<String> = server.errors.try_iter().collect();
                panic!("the server said too little on its output; errors: {errors:?}")
            }));
        }
        let line = lines.last().map_or("", String::as_str);
        let address =
            line.strip_prefix("listening on ").unwrap_or_else(|| panic!("not an address: {line}"));
        let address = address
            .trim_start_matches("http://")
            .trim_start_matches("https://")
            .trim_start_matches("tcp://")
            .trim_start_matches("tls://")
            .trim_end_matches('/');
        server.address = address.parse().expect("an address");
        (server, lines)
    }

    /// Connects a client. Each of its waits has a time limit.
    pub(crate) fn connect(&self) -> TcpStream {
        let client = TcpStream::connect_timeout(&self.address, WAIT_MAX)
            .expect("the server takes connections");
        client.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
        client.set_write_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
        client
    }

    pub(crate) fn pid(&self) -> Pid {
        self.running.pid()
    }

    /// Waits for a line of standard error with this text, and returns it.
    pub(crate) fn wait_for_error(&self, words: &str) -> String {
        loop {
            let line = self.errors.recv_timeout(WAIT_MAX).expect("the server complains");
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Sends a signal and waits for the end. Returns the exit status and the summary.
    pub(crate) fn stop(self, signal: Signal) -> (ExitStatus, String) {
        kill_process(self.pid(), signal).expect("the server still runs");
        self.ended()
    }

    /// Waits for the end. Returns the exit status and the summary.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let line = self.output.recv_timeout(WAIT_MAX).expect("a line of statistics");
        let end = self.output.recv_timeout(WAIT_MAX);
        assert_eq!(end, Err(RecvTimeoutError::Disconnected), "nothing comes after the statistics");
        (self.running.wait(), line)
    }

    /// Kills the process and waits for its end.
    pub(crate) fn kill(mut self) {
        kill_process(self.pid(), Signal::KILL).expect("the server still runs");
        self.running.wait();
    }

    /// Stops the server, checks its exit status, and returns the summary.
    pub(crate) fn stop_cleanly(self) -> String {
        let (status, line) = self.stop(Signal::TERM);
        assert_eq!(status.code(), Some(0), "{line}");
        line
    }
}

/// Returns the number before this text.
pub(crate) fn number_before(words: &str, line: &str) -> u64 {
    let before = line.split_once(words).unwrap_or_else(|| panic!("no `{words}` in: {line}")).0;
    let number = before.trim_end().rsplit(' ').next().expect("a split has at least one part");
    number.parse().unwrap_or_else(|_| panic!("`{number}` before `{words}` is no number: {line}"))
}

/// Reads lines in a separate thread, so that a wait for one has a time limit.
pub(crate) fn lines_of(source: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(source).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Returns bytes without repetition, different for each seed.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        // Xorshift. Any generator without short repetitions would do.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
