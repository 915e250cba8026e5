//! The common part of the programs in `examples/examples/`, which are the content of this package:
//! the command line. `examples/README.md` lists the programs.

#![deny(unsafe_code)]

use std::ffi::OsString;

use windlass::{Backend, Builder, Reactor, Stop, UnknownBackend};

/// The programs in the documents. `cargo test --doc` compiles them, and runs those that end.
#[cfg(doctest)]
mod documents {
    macro_rules! documents {
        ($($name:ident $path:literal)*) => {
            $(#[doc = include_str!($path)] mod $name {})*
        };
    }
    documents! {
        readme "../README.md"
        flow_readme "../crates/flow/README.md"
        reactor_readme "../crates/reactor/README.md"
        server_readme "../crates/server/README.md"
        websocket_readme "../crates/websocket/README.md"
        ws_readme "../crates/ws/README.md"
        flow "../docs/flow.md"
        from_fastwebsockets "../docs/from-fastwebsockets.md"
        from_tungstenite "../docs/from-tungstenite.md"
        tungstenite_interface "../docs/tungstenite-interface.md"
        server "../docs/server.md"
        streams "../docs/streams.md"
        technical "../docs/technical.md"
        websocket "../docs/websocket.md"
        websocket_client "../docs/websocket-client.md"
    }
}

/// Returns a builder with the backend of `--backend NAME` on the command line.
///
/// # Errors
/// [`UnknownBackend`] if there is no backend with this name.
pub fn builder() -> Result<Builder, UnknownBackend> {
    Ok(Reactor::builder().backend(backend()?))
}

/// Returns the backend of `--backend NAME` on the command line. The default is that of
/// `WINDLASS_TEST_BACKEND` in the environment, with which the tests of the examples run on each
/// backend.
///
/// # Errors
/// [`UnknownBackend`] if there is no backend with this name.
pub fn backend() -> Result<Backend, UnknownBackend> {
    let chosen = read(std::env::args().skip(1))
        .0
        .map(OsString::from)
        .or_else(|| std::env::var_os("WINDLASS_TEST_BACKEND"));
    chosen.map_or(Ok(Backend::Auto), |name| name.to_string_lossy().parse())
}

/// Returns the first argument that is not an option, such as an address.
#[must_use]
pub fn first_word() -> Option<String> {
    words().into_iter().next()
}

/// Returns all arguments that are not options.
#[must_use]
pub fn words() -> Vec<String> {
    read(std::env::args().skip(1)).1
}

/// Stops a reactor when it is dropped. A thread that the reactor waits for holds it, so that the
/// reactor ends with the thread, also if that fails or panics.
#[derive(Debug)]
pub struct StopOnDrop(pub Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Returns the value of `--backend`, and the arguments that are not options.
fn read(mut arguments: impl Iterator<Item = String>) -> (Option<String>, Vec<String>) {
    let (mut backend, mut words) = (None, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--backend" => backend = Some(arguments.next().unwrap_or_default()),
            option if option.starts_with('-') => {}
            _ => words.push(argument),
        }
    }
    (backend, words)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_backend_stands_anywhere_and_is_no_word() {
        let read = |line: &str| super::read(line.split(' ').map(str::to_owned));
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(read("--backend poll here there"), (Some("poll".into()), words("here there")));
        assert_eq!(read("here --backend uring"), (Some("uring".into()), words("here")));
        assert_eq!(read("--quiet here"), (None, words("here")));
        assert_eq!(read("--backend"), (Some(String::new()), vec![]), "which is the name of none");
    }
}
