//! The destination of a stage's output.

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
            // The macro is captured by the test harness. Writing to the stream would print test
            // results among those of this program's own tests.
            Self::Live => print!("{text}"),
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
