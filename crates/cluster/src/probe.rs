//! The question for the limit of a server, before the bus starts.

use std::{io, sync::Arc, time::Duration};

use tokio::time;
use windlass_server::printable;

use crate::{NatsBus, thread};

impl NatsBus {
    /// Connects once, asks the server for its maximum payload, and closes that connection. Returns
    /// the maximum length of what [`publish`](windlass_server::bus::Bus::publish) takes, in bytes.
    ///
    /// It is for limits that are set before the server starts, such as the maximum length of a
    /// message. A server of NATS that takes over later may have a smaller maximum.
    ///
    /// It blocks, with a runtime of its own: call it neither in a handler nor in a task.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use windlass_cluster::NatsBus;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bus = NatsBus::builder(["nats://127.0.0.1:4222"]).build()?;
    /// let longest = bus.probe_payload_max(Duration::from_secs(2))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`TimedOut`](io::ErrorKind::TimedOut) if no server answers in this time.
    /// - [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the bus was started before.
    /// - Another kind if no server can be connected. The error says why.
    pub fn probe_payload_max(&self, timeout: Duration) -> io::Result<usize> {
        let (connect, queue_bytes) = self
            .settings(|config| (Arc::clone(&config.connect), config.queue_bytes))
            .ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))?;
        let runtime = thread::runtime()?;
        let ask = async {
            let connected = connect.connect().await;
            let connection = connected.map_err(|e| io::Error::other(printable(&e.to_string())))?;
            io::Result::Ok(connection.info.max_payload)
        };
        let answer = runtime.block_on(async { time::timeout(timeout, ask).await });
        // Without waiting for the lookup of a name.
        runtime.shutdown_background();
        let bytes = answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(bytes.min(queue_bytes))
    }
}
