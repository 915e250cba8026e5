//! Texts of others in a log.

/// The longest text that [`printable`] returns, in characters of the original.
const CHARS_MAX: usize = 256;

/// Returns a text of foreign origin so that it can stand in a log line, an error or a terminal.
///
/// Control characters, line breaks, and what changes the direction of writing are replaced by their
/// escapes, as [`str::escape_debug`] does, and so is the backslash. Of a text with more than 256
/// characters it returns the first ones, and `…`.
///
/// ```
/// use windlass_server::printable;
///
/// assert_eq!(printable("Zoë's \"node\""), "Zoë's \"node\"");
/// assert_eq!(printable("a\nERROR b\u{1b}[2J"), "a\\nERROR b\\u{1b}[2J");
/// ```
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(CHARS_MAX));
    let mut chars = text.chars();
    for char in chars.by_ref().take(CHARS_MAX) {
        match char {
            // They are no danger there.
            '"' | '\'' => out.push(char),
            _ => out.extend(char.escape_debug()),
        }
    }
    if chars.next().is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_changes_a_line() {
        let text = "a\0\t\r\n\u{1b}[31m\u{7f}\u{85}\u{9b}\u{2028}\u{2029}\u{202e}\u{2066}\\";
        let expected = "a\\0\\t\\r\\n\\u{1b}[31m\\u{7f}\\u{85}\\u{9b}\\u{2028}\\u{2029}\\u{202e}\
                        \\u{2066}\\\\";
        assert_eq!(printable(text), expected);
        let plain = "Größe 東京 🎈 'x' \"y\"";
        assert_eq!(printable(plain), plain);
    }

    #[test]
    fn a_long_text_is_cut() {
        let fits = "é".repeat(CHARS_MAX);
        assert_eq!(printable(&fits), fits);
        assert_eq!(printable(&format!("{fits}x")), format!("{fits}…"));
    }
}
