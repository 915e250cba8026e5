//! The suites `engine`, `unmask`, `utf8` and `deflate`.

use windlass_bench_driver::protocol::{Case, Compressor, Content, Script};

const KIB: usize = 1024;

/// The size of a reactor's receive buffer.
const READ_BYTES: usize = 64 * KIB;

/// Returns the timed cases of one of these suites.
pub(super) fn cases(suite: &str, quick: bool) -> Vec<Case> {
    match suite {
        "engine" => engine(quick),
        "unmask" => unmask(quick),
        "utf8" => utf8(quick),
        "deflate" => deflate(quick),
        _ => Vec::new(),
    }
}

fn echo(content: Content, bytes: usize, messages: usize) -> Case {
    Case::Echo { content, bytes, messages, fragments: 1, read_bytes: READ_BYTES }
}

fn fragmented(content: Content, bytes: usize, fragments: usize) -> Case {
    Case::Echo { content, bytes, messages: 1, fragments, read_bytes: READ_BYTES }
}

fn engine(quick: bool) -> Vec<Case> {
    use Content::{Ascii, Binary, TwoByte};
    let mut cases = vec![Case::IdleEngine { engines: 100 }];
    if quick {
        cases.extend([
            echo(Binary, 20, 1),
            echo(Binary, 20, 16),
            echo(Ascii, 20, 1),
            echo(Binary, KIB, 1),
        ]);
        cases.extend([Binary, Ascii, TwoByte].map(|content| echo(content, 16 * KIB, 1)));
        cases.extend([Ascii, TwoByte].map(|content| fragmented(content, KIB, 4)));
        cases.extend([echo(Binary, 70 * KIB, 1), fragmented(TwoByte, 16 * KIB, 4)]);
        return cases;
    }
    for content in [Binary, Ascii, TwoByte] {
        for messages in [1, 16] {
            cases.extend([20, KIB, 16 * KIB, 70 * KIB].map(|bytes| echo(content, bytes, messages)));
        }
        cases.extend([fragmented(content, KIB, 4), fragmented(content, 16 * KIB, 4)]);
        // Received in one read, by a larger buffer. The buffer of the cases above needs two reads.
        cases.push(Case::Echo {
            content,
            bytes: 70 * KIB,
            messages: 1,
            fragments: 1,
            read_bytes: 2 * READ_BYTES,
        });
        // A message of a slow sender, received in twelve reads.
        cases.push(Case::Echo {
            content,
            bytes: 16 * KIB,
            messages: 1,
            fragments: 1,
            read_bytes: 1_460,
        });
    }
    cases
}

fn unmask(quick: bool) -> Vec<Case> {
    // The last does not fit into a cache.
    let all = [20, 64, 256, KIB, 16 * KIB, 64 * KIB, 1024 * KIB, 64 * 1024 * KIB];
    let sizes: &[usize] = if quick { &[20, KIB, 16 * KIB] } else { &all };
    // The length of a frame header for payloads up to 125 bytes, up to 65 535, and above.
    let offset = |bytes| match bytes {
        ..126 => 6,
        126..65_536 => 8,
        _ => 14,
    };
    let mut cases: Vec<Case> =
        sizes.iter().map(|&bytes| Case::Unmask { bytes, offset: offset(bytes) }).collect();
    cases.push(Case::Unmask { bytes: 16 * KIB, offset: 0 });
    cases
}

fn utf8(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for script in Script::ALL {
        let shapes: &[(usize, usize)] = if quick {
            &[(KIB, 4), (16 * KIB, 1)]
        } else {
            &[(20, 1), (KIB, 1), (KIB, 4), (16 * KIB, 1), (16 * KIB, 16)]
        };
        cases.extend(shapes.iter().map(|&(bytes, pieces)| Case::Validate {
            script,
            bytes,
            pieces,
        }));
    }
    if quick {
        cases.push(Case::Validate { script: Script::Cyrillic, bytes: 16 * KIB, pieces: 16 });
    }
    cases
}

fn deflate(quick: bool) -> Vec<Case> {
    use Compressor::{Dedicated, Shared};
    let settings = [
        (1, 15, false, Shared),
        (6, 15, false, Shared),
        (6, 15, false, Dedicated),
        (1, 15, true, Dedicated),
        (6, 15, true, Dedicated),
        (6, 12, true, Dedicated),
        (6, 9, true, Dedicated),
    ];
    let sizes: &[usize] = if quick { &[KIB] } else { &[KIB, 16 * KIB] };
    let mut cases = Vec::new();
    for &bytes in sizes {
        cases.extend(settings.map(|(level, window_bits, takeover, compressor)| Case::Compress {
            bytes,
            level,
            window_bits,
            takeover,
            compressor,
        }));
        let inflated = [(15, false), (15, true), (12, true), (9, true)];
        cases.extend(inflated.map(|(window_bits, takeover)| Case::Inflate {
            bytes,
            window_bits,
            takeover,
        }));
    }
    if quick { cases.into_iter().step_by(2).collect() } else { cases }
}

/// Returns the cases whose instructions are counted. A step takes microseconds, so cases with
/// hundreds of thousands of instructions are omitted.
pub(crate) fn counted(suite: &str, quick: bool) -> Vec<Case> {
    let is_counted = |case: &Case| match *case {
        Case::Echo { content: Content::Binary, bytes, messages, .. } => {
            bytes * messages <= 70 * KIB
        }
        Case::Echo { bytes, messages, .. } => bytes * messages <= KIB || is_large_text(case, quick),
        Case::Unmask { bytes, .. } => bytes <= 16 * KIB,
        Case::Validate { bytes, .. } => bytes <= KIB,
        _ => false,
    };
    cases(suite, quick).into_iter().filter(is_counted).collect()
}

/// Returns whether the case is one of the counted cases with large text messages. tungstenite takes
/// long for two bytes per character.
fn is_large_text(case: &Case, quick: bool) -> bool {
    let contents: &[_] =
        if quick { &[Content::Ascii] } else { &[Content::Ascii, Content::TwoByte] };
    contents.iter().any(|&content| *case == echo(content, 16 * KIB, 1))
}

/// Returns whether instructions of the case are also counted in the build with fat LTO. These are
/// the cases in which calls are a large part.
pub(crate) fn is_counted_with_lto(case: &Case) -> bool {
    let is_short_echo = matches!(case, Case::Echo { .. }) && size(case).1 <= KIB;
    is_short_echo || matches!(case, Case::SelfWake { turns: false, .. })
}

/// Returns the number of messages and of bytes of a round.
pub(crate) fn size(case: &Case) -> (usize, usize) {
    match *case {
        Case::Echo { bytes, messages, .. } => (messages, bytes * messages),
        Case::Unmask { bytes, .. } | Case::Validate { bytes, .. } => (1, bytes),
        Case::Insert { count } | Case::Fire { count } => (count, 0),
        Case::StreamWrites { streams, bytes } => (streams, streams * bytes),
        _ => (1, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_timed() {
        for suite in ["engine", "unmask", "utf8", "deflate"] {
            for quick in [false, true] {
                let timed = cases(suite, quick);
                assert!(counted(suite, quick).iter().all(|case| timed.contains(case)));
                assert_eq!(counted(suite, quick).is_empty(), suite == "deflate");
            }
        }
    }

    #[test]
    fn further_messages_are_counted_apart_from_the_first() {
        for quick in [false, true] {
            let counted = counted("engine", quick);
            for messages in [1, 16] {
                assert!(counted.contains(&echo(Content::Binary, 20, messages)));
            }
        }
    }

    #[test]
    fn a_shared_compressor_never_keeps_a_window() {
        for case in cases("deflate", false) {
            assert!(!matches!(
                case,
                Case::Compress { takeover: true, compressor: Compressor::Shared, .. }
            ));
        }
    }
}
