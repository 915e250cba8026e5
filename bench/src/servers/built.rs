//! Servers whose programs are built, and the processors of a case.

use std::path::{Path, PathBuf};

use windlass_bench_driver::protocol::Case;

use super::process;
use crate::error::MeasureError;
use crate::pin::{Pin, allowed_cpus};
use crate::programs::servers::ServerProgram;

/// The processors of a server and of its client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Processors {
    pub(super) server: Option<usize>,
    pub(super) client: Option<usize>,
    /// Both have a real-time priority.
    pub(super) first: bool,
}

impl Processors {
    /// Chooses a processor for each side: the requested one is the server's.
    pub(super) fn choose(pin: Pin) -> Result<Self, MeasureError> {
        let Pin::To(server) = pin else {
            return Ok(Self { server: None, client: None, first: false });
        };
        let one = || {
            MeasureError::Unsupported(
                "the server and its client need a processor each, and there is only one".into(),
            )
        };
        let client = allowed_cpus().into_iter().find(|&cpu| cpu != server).ok_or_else(one)?;
        Ok(Self { server: Some(server), client: Some(client), first: may_raise_priority() })
    }

    /// Returns the pin of the client.
    pub(super) fn client_pin(self) -> Pin {
        self.client.map_or(Pin::Nowhere, Pin::To)
    }
}

/// Returns whether programs may have a real-time priority. A separate thread tries it, because this
/// changes the calling thread.
fn may_raise_priority() -> bool {
    std::thread::spawn(windlass_bench_driver::raise_priority).join().unwrap_or(false)
}

/// A server whose program is built.
#[derive(Debug)]
pub(super) struct BuiltServer {
    pub(super) server: &'static ServerProgram,
    pub(super) backend: &'static str,
    pub(super) path: PathBuf,
    /// The measured program, if it is a client. `path` is its server then.
    pub(super) client: Option<PathBuf>,
}

impl BuiltServer {
    pub(super) fn name(&self) -> &'static str {
        self.server.program.name
    }

    /// Returns the arguments of the server for a case.
    pub(super) fn arguments(&self, case: &Case, cpu: Option<usize>, first: bool) -> Vec<String> {
        let mut arguments = process::arguments(case, cpu, first);
        arguments.extend(self.server.arguments.iter().map(ToString::to_string));
        if self.server.program.backends.len() > 1 {
            arguments.extend(["--backend".to_owned(), self.backend.to_owned()]);
        }
        arguments
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_pinning_no_processor_is_chosen() {
        let processors = Processors::choose(Pin::Nowhere).unwrap();
        assert_eq!((processors.server, processors.client), (None, None));
    }
}
