//! Where what a stage says goes.

/// The terminal, or memory, to be shown in one piece.
#[derive(Debug)]
pub(crate) enum Output {
    /// Shown as it comes.
    Live,
    /// Kept: another stage shows its own meanwhile.
    Kept(String),
}

impl Output {
    /// One that keeps everything.
    pub(crate) fn kept() -> Self {
        Self::Kept(String::new())
    }

    /// Takes some text, line ends included.
    pub(crate) fn say(&mut self, text: &str) {
        match self {
            // The macro and not the stream: a test of this program must not print test results of
            // its own.
            Self::Live => print!("{text}"),
            Self::Kept(kept) => kept.push_str(text),
        }
    }

    /// What was kept.
    pub(crate) fn into_kept(self) -> String {
        match self {
            Self::Live => String::new(),
            Self::Kept(kept) => kept,
        }
    }
}
