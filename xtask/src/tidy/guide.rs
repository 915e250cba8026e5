//! Rules about the book in `docs`: its table of contents, its code, and its translations.
//!
//! A page leads to a program of `examples/`, which is compiled and tested there. The mark
//! `<!-- file: PATH -->` above a block names the program, which must contain the block.

use std::collections::BTreeSet;

use pulldown_cmark::{CodeBlockKind, Event, Tag, TagEnd};

use super::Violation;
use crate::markdown;
use crate::repository::TextFile;

/// The folder of the book, which has the reference.
const BOOK: &str = "docs/";

/// The folder of the guide.
const GUIDE: &str = "docs/guide/";

/// The table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// The first page of the guide.
const INDEX: &str = "docs/guide/README.md";

/// The last heading of each page: mistakes and their symptoms.
const LAST_HEADING: &str = "When something goes wrong";

/// The folder of the programs, and how the guide leads to it: a link, or a block of code.
const PROGRAMS: &str = "examples/examples/";
const LINK: &str = "](../../examples/";
const SHOWN: &str = "<!-- file: examples/";

/// A command that runs one of them.
const RUN: &str = "cargo run --example ";

/// The mark in front of a block.
const MARK: &str = "<!-- file: ";

/// The end of the name of a translation, in place of `.md`.
const TRANSLATION: &str = ".zh.md";

/// Checks the book.
pub(super) fn check(files: &[TextFile], found: &mut Vec<Violation>) {
    let book: Vec<&TextFile> =
        files.iter().filter(|file| file.path.starts_with(BOOK) && is_page(file)).collect();
    check_contents(&book, found);
    for page in book.iter().filter(|page| page.path.starts_with(GUIDE)) {
        check_code(page, files, found);
        check_programs(page, files, found);
        let original = page.path.strip_suffix(TRANSLATION).map(|name| format!("{name}.md"));
        match original {
            Some(original) => {
                let original = book.iter().find(|page| page.path == original);
                check_translation(page, original.map_or("", |page| &page.text), found);
            }
            None if page.path != INDEX => check_last_heading(page, found),
            None => {}
        }
    }
}

fn is_page(file: &TextFile) -> bool {
    file.path.ends_with(".md") && !file.is_link
}

/// The contents list each page, and nothing else.
fn check_contents(book: &[&TextFile], found: &mut Vec<Violation>) {
    let Some(summary) = book.iter().find(|file| file.path == SUMMARY) else { return };
    let listed = markdown::events(&summary.text).filter_map(|(event, range)| match event {
        Event::Start(Tag::Link { dest_url, .. }) => {
            Some((format!("{BOOK}{dest_url}"), markdown::line(&summary.text, range.start)))
        }
        _ => None,
    });
    let listed: Vec<(String, usize)> = listed.collect();
    let pages: BTreeSet<&str> =
        book.iter().map(|page| &*page.path).filter(|path| *path != SUMMARY).collect();
    for (path, line) in &listed {
        if !pages.contains(&**path) {
            found.push(Violation::new(SUMMARY, *line, format!("lists {path}, which is no page")));
        }
    }
    for path in pages {
        if !listed.iter().any(|(listed, _)| listed == path) {
            found.push(Violation::new(path, 0, format!("is not listed in {SUMMARY}")));
        }
    }
}

/// A page leads to a program, and those that it runs exist and have tests.
fn check_programs(page: &TextFile, files: &[TextFile], found: &mut Vec<Violation>) {
    if page.path != INDEX && ![LINK, SHOWN].iter().any(|mark| page.text.contains(mark)) {
        let message = "leads to no program of `examples`".to_owned();
        found.push(Violation::new(&page.path, 0, message));
    }
    for (number, line) in page.text.lines().enumerate() {
        let Some((_, command)) = line.split_once(RUN) else { continue };
        let name = command.split([' ', '`']).next().unwrap_or_default();
        let path = format!("{PROGRAMS}{name}.rs");
        let message = match files.iter().find(|file| file.path == path) {
            None => format!("there is no example `{name}`"),
            Some(file) if !file.text.contains("#[cfg(test)]") => format!("{path} has no tests"),
            Some(_) => continue,
        };
        found.push(Violation::new(&page.path, number + 1, message));
    }
}

/// A fenced block.
#[derive(Debug)]
struct Block {
    /// From 1, of the first fence.
    line: usize,
    language: String,
    text: String,
}

/// Each block of Rust stands in the program that its mark names.
fn check_code(page: &TextFile, files: &[TextFile], found: &mut Vec<Violation>) {
    let lines: Vec<&str> = page.text.lines().collect();
    for block in blocks(&page.text) {
        let before = lines[..block.line - 1].iter().rev().find(|line| !line.trim().is_empty());
        let marked = before.and_then(|line| line.strip_prefix(MARK)?.strip_suffix(" -->"));
        let message = match marked {
            None if block.language != "rust" => continue,
            None => format!("a block of Rust needs a line `{MARK}PATH -->` above it"),
            Some(path) => match files.iter().find(|file| file.path == path) {
                None => format!("{path} is no file of this repository"),
                Some(file) if has_lines(&file.text, &block.text) => continue,
                Some(_) => format!("this block is no part of {path}"),
            },
        };
        found.push(Violation::new(&page.path, block.line, message));
    }
}

/// Whether these lines stand in `text` one after the other.
fn has_lines(text: &str, lines: &str) -> bool {
    format!("\n{text}").contains(&format!("\n{lines}"))
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_block = false;
    for (event, range) in markdown::events(text) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                is_block = true;
                let line = markdown::line(text, range.start);
                let language = language.split(',').next().unwrap_or_default().to_owned();
                blocks.push(Block { line, language, text: String::new() });
            }
            Event::End(TagEnd::CodeBlock) => is_block = false,
            Event::Text(part) if is_block => {
                blocks.iter_mut().last().into_iter().for_each(|block| block.text.push_str(&part));
            }
            _ => {}
        }
    }
    blocks
}

/// A page ends with what its reader may meet.
fn check_last_heading(page: &TextFile, found: &mut Vec<Violation>) {
    let headings = headings(&page.text);
    let last = headings.iter().rfind(|(level, _)| *level == 2);
    if last.is_none_or(|(_, title)| title != LAST_HEADING) {
        let message = format!("the last section of a page is `## {LAST_HEADING}`");
        found.push(Violation::new(&page.path, 0, message));
    }
}

/// The levels and titles of headings.
fn headings(text: &str) -> Vec<(usize, String)> {
    let headings = markdown::events(text).filter_map(|(event, range)| match event {
        Event::Start(Tag::Heading { level, .. }) => {
            Some((level as usize, text[range].trim_matches(['#', ' ', '\n']).to_owned()))
        }
        _ => None,
    });
    headings.collect()
}

/// A part of a page that its translation has too.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// The level of a heading, and its number if it has one.
    Heading(usize, Option<u32>),
    /// A fenced block: a figure or code.
    Figure(String),
    /// The number of rows of a table.
    Table(usize),
    /// The words in backquotes of a section, each once.
    Code(BTreeSet<String>),
}

/// A translation has the headings, figures, tables and words in backquotes of its original.
fn check_translation(page: &TextFile, original: &str, found: &mut Vec<Violation>) {
    let (parts, expected) = (parts(&page.text), parts(original));
    let differs =
        |at: &usize| parts.get(*at).map(|(part, _)| part) != expected.get(*at).map(|e| &e.0);
    if let Some(at) = (0..parts.len().max(expected.len())).find(differs) {
        let show = |part: Option<&(Part, usize)>| {
            part.map_or("nothing".to_owned(), |(part, _)| format!("{part:?}"))
        };
        let line = parts.get(at).map_or(0, |(_, line)| *line);
        let (here, there) = (show(parts.get(at)), show(expected.get(at)));
        let message = format!("differs from its original: {here} here, {there} there");
        found.push(Violation::new(&page.path, line, message));
    }
}

/// The parts with their lines, in order; the words of a section come at its end.
fn parts(text: &str) -> Vec<(Part, usize)> {
    let (mut parts, mut words, mut rows) = (Vec::new(), BTreeSet::new(), 0);
    let mut figures = blocks(text).into_iter();
    for (event, range) in markdown::events(text) {
        let line = markdown::line(text, range.start);
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                parts.push((Part::Code(std::mem::take(&mut words)), line));
                let title = text[range].trim_matches(['#', ' ', '\n']);
                let number = title.split('.').next().and_then(|number| number.parse().ok());
                parts.push((Part::Heading(level as usize, number), line));
            }
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))) => {
                let figure = figures.next().map_or(String::new(), |block| block.text);
                parts.push((Part::Figure(figure), line));
            }
            Event::Start(Tag::Table(_)) => rows = 0,
            Event::Start(Tag::TableRow) => rows += 1,
            Event::End(TagEnd::Table) => parts.push((Part::Table(rows), line)),
            Event::Code(code) => _ = words.insert(code.to_string()),
            _ => {}
        }
    }
    parts.push((Part::Code(words), markdown::line(text, text.len())));
    parts
}

#[cfg(test)]
mod tests {
    use super::super::testing::violations;
    use super::*;

    const PROGRAM: &str = "use std::io;\n\nfn main() {\n    run();\n}\n";
    const END: &str = "## When something goes wrong\n\n[x](../../examples/examples/x.rs)\n";
    const BEGIN: &str = "# A\n\n[x](../../examples/examples/x.rs)\n";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        violations(files, check)
    }

    /// The violations of a page of the guide, beside a program.
    fn in_page(text: &str) -> Vec<String> {
        found(&[("docs/guide/a.md", &format!("# A\n\n{text}\n{END}")), ("x/a.rs", PROGRAM)])
    }

    #[test]
    fn the_contents_list_each_page_and_nothing_else() {
        let summary = "# S\n\n- [A](a.md)\n- [B](guide/b.md)\n";
        let listed = |pages: &[&str]| {
            let mut files = vec![("docs/SUMMARY.md", summary)];
            files.extend(pages.iter().map(|page| (*page, END)));
            found(&files)
        };
        assert!(listed(&["docs/a.md", "docs/guide/b.md", "README.md"]).is_empty());
        assert_eq!(
            listed(&["docs/a.md", "docs/c.md"]),
            [
                "docs/SUMMARY.md:4: lists docs/guide/b.md, which is no page",
                "docs/c.md: is not listed in docs/SUMMARY.md"
            ]
        );
    }

    #[test]
    fn code_is_that_of_a_program() {
        let block = |mark: &str, code: &str| in_page(&format!("{mark}\n\n```rust\n{code}```\n"));
        let mark = "<!-- file: x/a.rs -->";
        assert!(block(mark, PROGRAM).is_empty());
        assert!(block(mark, "fn main() {\n    run();\n").is_empty());
        let other = ["docs/guide/a.md:5: this block is no part of x/a.rs"];
        assert_eq!(block(mark, "fn main() {\n    walk();\n"), other);
        assert_eq!(block(mark, "main() {\n"), other, "it begins inside of a line");
        let none = "docs/guide/a.md:5: x/b.rs is no file of this repository";
        assert_eq!(block("<!-- file: x/b.rs -->", PROGRAM), [none]);
    }

    #[test]
    fn rust_needs_a_program_and_other_blocks_do_not() {
        let none = "docs/guide/a.md:3: a block of Rust needs a line `<!-- file: PATH -->` above it";
        assert_eq!(in_page("```rust,no_run\nfn main() {}\n```\n"), [none]);
        assert!(in_page("```toml\n[dependencies]\n```\n").is_empty());
    }

    #[test]
    fn a_page_ends_with_what_goes_wrong() {
        let page = |path, text| found(&[(path, text)]);
        let missing = "the last section of a page is `## When something goes wrong`";
        assert_eq!(page("docs/guide/a.md", BEGIN), [format!("docs/guide/a.md: {missing}")]);
        let not_last = format!("{END}\n## More\n");
        assert_eq!(page("docs/guide/a.md", &not_last), [format!("docs/guide/a.md: {missing}")]);
        assert!(page("docs/guide/a.md", END).is_empty());
        let without = END.replace("../../examples", "..");
        assert_eq!(
            page("docs/guide/a.md", &without),
            ["docs/guide/a.md: leads to no program of `examples`"]
        );
        assert!(page("docs/guide/README.md", "# Guide\n").is_empty());
        assert!(page("docs/a.md", "# A\n").is_empty(), "the reference is none of the guide");
    }

    #[test]
    fn what_a_page_runs_exists_and_has_tests() {
        let run = |program: &str| {
            let page = format!("# A\n\n```sh\ncargo run --example a -- x\n```\n{END}");
            found(&[("docs/guide/a.md", &page), (program, "#[cfg(test)]\nmod tests {}\n")])
        };
        assert!(run("examples/examples/a.rs").is_empty());
        let none = ["docs/guide/a.md:4: there is no example `a`"];
        assert_eq!(run("examples/examples/b.rs"), none);
        let page = format!("# A\n\n`cargo run --example a`\n\n{END}");
        let untested = [("docs/guide/a.md", &*page), ("examples/examples/a.rs", PROGRAM)];
        let message = "docs/guide/a.md:3: examples/examples/a.rs has no tests";
        assert_eq!(found(&untested), [message]);
    }

    #[test]
    fn a_translation_has_the_headings_and_figures_of_its_original() {
        let figure = "```text\n[x]\n```\n";
        let table = "| a | b |\n|---|---|\n| c | d |\n";
        let end = "## 2. When\n";
        let page = |first: &str, middle: &str| format!("# T\n\n{first}\n\n{middle}\n{end}");
        let original = page("## 1. One `a`", &format!("`b` and `a`\n\n{figure}\n{table}"));
        let differ = |translation: &str| {
            let mut found = Vec::new();
            let text = translation.to_owned();
            let page = TextFile { path: "a.zh.md".to_owned(), text, ..TextFile::default() };
            check_translation(&page, &original, &mut found);
            found.len()
        };
        assert_eq!(differ(&page("## 1. 一 `a`", &format!("`a` 和 `b`\n\n{figure}\n{table}"))), 0);
        for (what, first, middle) in [
            ("the level of a heading", "### 1. 一 `a`", format!("`b`\n\n{figure}\n{table}")),
            ("its number", "## 3. 一 `a`", format!("`b`\n\n{figure}\n{table}")),
            ("a figure", "## 1. 一 `a`", format!("`b`\n\n```text\n[y]\n```\n\n{table}")),
            ("a missing figure", "## 1. 一 `a`", format!("`b`\n\n{table}")),
            ("a row", "## 1. 一 `a`", format!("`b`\n\n{figure}\n{table}| e | f |\n")),
            ("a word", "## 1. 一 `a`", format!("`c`\n\n{figure}\n{table}")),
        ] {
            assert_eq!(differ(&page(first, &middle)), 1, "{what}");
        }
        assert_eq!(differ(&format!("{original}## 3. More\n")), 1, "a section more");
        let translation = ("docs/guide/a.zh.md", BEGIN);
        assert_eq!(found(&[translation]).len(), 1, "its original is missing");
    }
}
