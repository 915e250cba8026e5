//! The suite `cluster`: topics over several servers.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::measured::Error;

/// A workload of the suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "case", rename_all = "snake_case")]
pub enum ClusterCase {
    /// A server echoes the messages of connections. None of them concerns a topic. A round is a
    /// message.
    NodeEcho {
        /// Length of a message's payload in bytes.
        bytes: usize,
        /// Number of connections.
        connections: usize,
        /// The server is a node of a cluster.
        bus: bool,
    },
    /// A connection publishes at the first node, and the receivers are at the last one. A round is
    /// a delivery.
    FanOut {
        /// Number of receivers.
        receivers: usize,
        /// Length of a message's payload in bytes.
        bytes: usize,
        /// Number of messages in flight, each of which all receivers must get.
        outstanding: usize,
    },
}

/// Maximum time until nats-server listens.
const START_MAX: Duration = Duration::from_secs(10);

/// Starts nats-server on a free port. It ends with this process.
///
/// # Errors
///
/// If it is not installed, or does not start.
pub fn start_nats() -> Result<(Child, SocketAddr), Error> {
    let folder = std::env::temp_dir().join(format!("windlass-bench-nats-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    // setpriv(1) runs the program in its own place.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program()?);
    command.args(["-a", "127.0.0.1", "-p", "-1", "--ports_file_dir"]).arg(&folder);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let file = folder.join(format!("nats-server_{}.ports", child.id()));
    let begun = Instant::now();
    let address = loop {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let found = text.split("nats://").nth(1).and_then(|rest| rest.split('"').next());
        if let Some(address) = found {
            break address.parse()?;
        }
        if child.try_wait()?.is_some() || begun.elapsed() > START_MAX {
            let _ = child.kill();
            return Err("nats-server does not start".into());
        }
        // sleep: the file has no event to wait for.
        std::thread::sleep(Duration::from_millis(5));
    };
    // The next run has another one.
    let _ = std::fs::remove_dir_all(&folder);
    Ok((child, address))
}

/// Finds nats-server. Debian has it in a directory that is not in everyone's `PATH`.
fn program() -> Result<PathBuf, Error> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&paths).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.map(|folder| folder.join("nats-server")).find(|path| path.is_file());
    found.ok_or_else(|| io::Error::other("nats-server is not installed").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Case;

    #[test]
    fn a_case_is_known_again_among_the_others() {
        let fan_out = ClusterCase::FanOut { receivers: 9, bytes: 64, outstanding: 1 };
        let echo = ClusterCase::NodeEcho { bytes: 20, connections: 1, bus: true };
        for (case, part) in [(fan_out, "cluster/fan_out"), (echo, "cluster/echo")] {
            let case = Case::Cluster(case);
            let line = serde_json::to_string(&case).unwrap();
            assert_eq!(serde_json::from_str::<Case>(&line).unwrap(), case);
            assert_eq!((case.suite(), case.part()), ("cluster", part));
        }
    }
}
