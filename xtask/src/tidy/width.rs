//! The width of lines, in Rust and in Markdown.
//!
//! A line has at most 100 columns. Three kinds of lines may be wider:
//!
//! 1. a row of a table, in Markdown or in a comment: it begins with `|`;
//! 2. a line of prose that fits without its words that contain `://`;
//! 3. a line of code that fits without a string literal, where the literal cannot be broken and
//!    does not fit into a line of its own. A backslash breaks a literal at white space. So a raw
//!    literal cannot be broken, and neither can one without white space.

use super::Violation;
use crate::repository::TextFile;
use crate::source::Source;

/// The widest line, in characters. `rustfmt.toml` has the same number.
pub(crate) const COLUMNS_MAX: usize = 100;

/// Checks one file, if it is Markdown or Rust. `source` is that of a Rust file.
pub(super) fn check(file: &TextFile, source: Option<&Source>, found: &mut Vec<Violation>) {
    for (line, width) in wide_lines(file, source) {
        let message = format!("{width} columns, more than {COLUMNS_MAX}: break the line");
        found.push(Violation::new(&file.path, line, message));
    }
}

/// The lines (from 1) that are too wide and not exempt, with their widths.
pub(crate) fn wide_lines(file: &TextFile, source: Option<&Source>) -> Vec<(usize, usize)> {
    if source.is_none() && !file.path.ends_with(".md") {
        return Vec::new();
    }
    let lines = file.text.lines().enumerate();
    let wide = lines.filter_map(|(index, line)| {
        let width = line.chars().count();
        let is_exempt = || match source {
            Some(source) if !is_comment(source, index) => {
                is_literal(line, source.unbreakable[index])
            }
            _ => is_table_row(line) || fits_without_urls(line),
        };
        (width > COLUMNS_MAX && !is_exempt()).then_some((index + 1, width))
    });
    wide.collect()
}

/// Whether there is a comment in the line and nothing else.
fn is_comment(source: &Source, index: usize) -> bool {
    source.code[index].trim().is_empty() && !source.comments[index].trim().is_empty()
}

fn is_table_row(line: &str) -> bool {
    let comment = line.trim_start().trim_start_matches('/').trim_start_matches('!');
    comment.trim_start().starts_with('|')
}

fn fits_without_urls(line: &str) -> bool {
    let urls = line.split(' ').filter(|word| word.contains("://"));
    line.chars().count() - urls.map(|word| word.chars().count()).sum::<usize>() <= COLUMNS_MAX
}

/// Whether the line fits without `literal` columns, and a line of its own would not hold them with
/// the comma that follows.
fn is_literal(line: &str, literal: usize) -> bool {
    let indent = line.chars().take_while(|c| *c == ' ').count();
    line.chars().count() - literal <= COLUMNS_MAX && indent + literal + 1 > COLUMNS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(path: &str, text: &str) -> Vec<usize> {
        let file = TextFile { path: path.to_owned(), text: text.to_owned(), ..TextFile::default() };
        let source = file.is_rust().then(|| Source::new(text));
        wide_lines(&file, source.as_ref()).into_iter().map(|(line, _)| line).collect()
    }

    /// Words of five columns with their blanks.
    fn words(columns: usize) -> String {
        "word ".repeat(columns / 5)
    }

    #[test]
    fn a_line_may_have_the_widest_width_and_no_more() {
        let widest = "é".repeat(COLUMNS_MAX);
        assert!(wide("a.md", &format!("{widest}\n// x")).is_empty());
        assert_eq!(wide("a.md", &format!("x\n{widest}é")), [2]);
        assert_eq!(wide("a.rs", &format!("// {}\nf({});", words(100), words(100))), [1, 2]);
        assert!(wide("a.toml", &format!("# {}", words(200))).is_empty());
    }

    #[test]
    fn rows_of_tables_may_be_wider() {
        let row = format!("| {}|", words(100));
        assert!(wide("a.md", &row).is_empty());
        assert!(wide("a.rs", &format!("    /// {row}\n//! {row}")).is_empty());
        assert_eq!(wide("a.rs", &format!("f(a\n{row})")), [2]);
    }

    #[test]
    fn urls_do_not_count_in_prose() {
        let url = format!("https://example.org/{}", "x".repeat(90));
        assert!(wide("a.md", &format!("see [there]({url}).")).is_empty());
        assert!(wide("a.rs", &format!("/// See <{url}>.")).is_empty());
        assert_eq!(wide("a.md", &format!("{} {url}", words(105))), [1]);
        assert_eq!(wide("a.rs", &format!("f(\"a {url}\");")), [1]);
    }

    #[test]
    fn a_literal_that_cannot_be_broken_may_be_wider() {
        let word = "x".repeat(100);
        assert!(wide("a.rs", &format!("    let a = \"{word}\";")).is_empty());
        assert!(wide("a.rs", &format!("    let a = r#\"{} {word}\"#;", words(20))).is_empty());
        assert!(wide("a.rs", &format!("    let a = r\"\n{}\n\";", words(120))).is_empty());
    }

    #[test]
    fn a_literal_that_can_be_broken_may_not() {
        assert_eq!(wide("a.rs", &format!("    let a = \"{}\";", words(120))), [1]);
        // White space that is escaped is none.
        let word = "x\\n".repeat(40);
        assert!(wide("a.rs", &format!("    let a = \"{word}\";")).is_empty());
    }

    #[test]
    fn a_literal_that_fits_into_a_line_of_its_own_excuses_nothing() {
        let word = "x".repeat(60);
        assert_eq!(
            wide("a.rs", &format!("    let a_long_name = f({}, \"{word}\");", "y".repeat(30))),
            [1]
        );
        let call = format!("    call({}, \"{}\");", words(90), "x".repeat(100));
        assert_eq!(wide("a.rs", &call), [1], "the rest is too wide by itself");
    }
}
