//! The destination of a stage's output.

use std::io::{self, ErrorKind, Write};

/// The terminal, or a buffer that is shown as one piece.
#[derive(Debug)]
pub(crate) enum Output {
    /// Printed at once.
    Live,
    /// Kept, because another stage prints meanwhile.
    Kept(String),
}

impl Output {
    /// An output that keeps everything.
    pub(crate) fn kept() -> Self {
        Self::Kept(String::new())
    }

    /// Adds text, line ends included.
    pub(crate) fn say(&mut self, text: &str) {
        match self {
            Self::Live => print(text),
            Self::Kept(kept) => kept.push_str(text),
        }
    }

    /// The kept text.
    pub(crate) fn into_kept(self) -> String {
        match self {
            Self::Live => String::new(),
            Self::Kept(kept) => kept,
        }
    }
}

/// Prints `text`, line ends included. A reader may close the pipe at any time, as `head` does; the
/// rest is then not printed. `print!` would panic.
pub(crate) fn print(text: &str) {
    if cfg!(test) {
        // The harness captures the macro. Writing to the stream would print test results among
        // those of this program's own tests.
        print!("{text}");
    } else if let Err(error) = write(&mut io::stdout().lock(), text) {
        eprintln!("xtask: cannot print: {error}");
    }
}

/// Writes `text`, unless nobody reads it.
fn write(stream: &mut impl Write, text: &str) -> io::Result<()> {
    match stream.write_all(text.as_bytes()).and_then(|()| stream.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_error() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        drop(reader);
        assert!(write(&mut writer, "nobody reads this").is_ok());
    }

    #[test]
    fn other_errors_are_returned() {
        let mut full = io::Cursor::new([0; 4]);
        assert!(write(&mut full, "too long").is_err());
    }
}
