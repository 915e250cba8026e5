//! What a test has seen.

use std::fmt::Debug;

/// One line for each result.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    lines: Vec<String>,
}

impl Log {
    pub(crate) fn note(&mut self, call: &str, result: impl Debug) {
        self.lines.push(format!("{call}: {result:?}"));
    }

    /// # Panics
    /// If the two differ, with the lines that do.
    pub(crate) fn assert_same(theirs: &Self, ours: &Self) {
        let pairs = theirs.lines.iter().zip(&ours.lines);
        let differing: Vec<_> = pairs.filter(|(theirs, ours)| theirs != ours).collect();
        assert!(differing.is_empty(), "theirs and ours differ: {differing:#?}");
        assert_eq!(theirs.lines.len(), ours.lines.len(), "{theirs:#?}\n{ours:#?}");
        assert!(!ours.lines.is_empty(), "a test that sees nothing proves nothing");
    }
}

/// Tests whose bodies run with both crates, each as `ws`.
macro_rules! compare {
    ($($(#[doc = $doc:expr])* fn $name:ident($log:ident) $body:block)+) => {
        $(
            mod $name {
                mod theirs {
                    #[allow(unused_imports, reason = "not every body uses everything")]
                    use {super::super::*, ::tungstenite as ws};
                    pub(super) fn run($log: &mut crate::log::Log) $body
                }
                mod ours {
                    #[allow(unused_imports, reason = "not every body uses everything")]
                    use {super::super::*, ::windlass_tungstenite as ws};
                    pub(super) fn run($log: &mut crate::log::Log) $body
                }
                $(#[doc = $doc])*
                #[test]
                fn is_the_same() {
                    let (mut one, mut other) = Default::default();
                    theirs::run(&mut one);
                    ours::run(&mut other);
                    crate::log::Log::assert_same(&one, &other);
                }
            }
        )+
    };
}
