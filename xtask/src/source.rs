//! Splits Rust source into code and comments. A rule about one is then not misled by the other, or
//! by a string.

use proc_macro2::{LineColumn, Literal, Span, TokenStream, TokenTree};

/// The text of a file, as code and as comments, with the same lines and columns.
#[derive(Debug)]
pub(crate) struct Source {
    /// The code. Comments and the insides of strings and character literals are blank.
    pub(crate) code: Vec<String>,
    /// The comments. Everything else is blank.
    pub(crate) comments: Vec<String>,
    /// For each line, the width of its widest unbreakable string literal. No backslash can break a
    /// raw literal, or one without white space.
    pub(crate) unbreakable: Vec<usize>,
}

impl Source {
    /// Splits `text`. Text that is not Rust has comments alone; the compiler reports it.
    pub(crate) fn new(text: &str) -> Self {
        let mut splitter = Splitter {
            lines: text.lines().map(|line| line.chars().collect()).collect(),
            kinds: text.lines().map(|line| vec![Kind::Comment; line.chars().count()]).collect(),
            unbreakable: vec![0; text.lines().count()],
        };
        if let Ok(tokens) = text.parse() {
            splitter.tokens(tokens);
        }
        Self {
            code: splitter.pick(Kind::Code),
            comments: splitter.pick(Kind::Comment),
            unbreakable: splitter.unbreakable,
        }
    }

    /// The comment lines directly above line `index` (from 0), nearest first. Attributes between
    /// them and the line are skipped.
    pub(crate) fn comments_above(&self, index: usize) -> impl Iterator<Item = &str> {
        (0..index)
            .rev()
            .take_while(|above| {
                let code = self.code[*above].trim();
                let comment = self.comments[*above].trim();
                code.starts_with("#[") || (code.is_empty() && !comment.is_empty())
            })
            .map(|above| self.comments[above].trim())
    }
}

/// The kind of a character. What no token has is a comment, or blank.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

struct Splitter {
    lines: Vec<Vec<char>>,
    /// Of each character.
    kinds: Vec<Vec<Kind>>,
    unbreakable: Vec<usize>,
}

impl Splitter {
    fn tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            // A comment of documentation comes as the tokens of its attribute.
            let start = token.span().start();
            let is_slash = self.lines[start.line - 1].get(start.column) == Some(&'/');
            match token {
                TokenTree::Punct(punct) if is_slash && punct.as_char() != '/' => {}
                TokenTree::Group(_) if is_slash => {}
                TokenTree::Group(group) => {
                    self.mark(group.span_open(), Kind::Code);
                    self.tokens(group.stream());
                    self.mark(group.span_close(), Kind::Code);
                }
                TokenTree::Literal(literal) => self.literal(&literal),
                token => self.mark(token.span(), Kind::Code),
            }
        }
    }

    /// The quotes of a literal stay code, so that `""` still looks like an expression.
    fn literal(&mut self, literal: &Literal) {
        let (span, text) = (literal.span(), literal.to_string());
        self.mark(span, Kind::Code);
        let Some(open) = text.find(['"', '\'']) else { return };
        let (start, end) = (span.start(), span.end());
        let inside = LineColumn { column: start.column + open + 1, ..start };
        self.mark_range(inside, LineColumn { column: end.column - 1, ..end }, Kind::Literal);
        if text[..open].contains('r') || !text.contains(char::is_whitespace) {
            for line in start.line..=end.line {
                let columns = self.columns(start, end, line);
                let widest = &mut self.unbreakable[line - 1];
                *widest = columns.len().max(*widest);
            }
        }
    }

    fn mark(&mut self, span: Span, kind: Kind) {
        self.mark_range(span.start(), span.end(), kind);
    }

    fn mark_range(&mut self, start: LineColumn, end: LineColumn, kind: Kind) {
        for line in start.line..=end.line {
            let columns = self.columns(start, end, line);
            self.kinds[line - 1][columns].fill(kind);
        }
    }

    /// The columns of a line, from 1, that are between two places.
    fn columns(&self, start: LineColumn, end: LineColumn, line: usize) -> std::ops::Range<usize> {
        let first = if line == start.line { start.column } else { 0 };
        let last = if line == end.line { end.column } else { self.lines[line - 1].len() };
        first..last.max(first)
    }

    /// The lines with the characters of one kind, and blanks for all others.
    fn pick(&self, kind: Kind) -> Vec<String> {
        let pick = |(line, kinds): (&Vec<char>, &Vec<Kind>)| {
            let both = line.iter().zip(kinds);
            both.map(|(character, one)| if *one == kind { *character } else { ' ' }).collect()
        };
        self.lines.iter().zip(&self.kinds).map(pick).collect()
    }
}

/// Whether `line` contains `word` as a whole word.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(start, found)| {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let before = line[..start].chars().next_back();
        let after = line[start + found.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_comments_are_blank_in_the_code() {
        let source = Source::new("let a = \"unsafe { }\"; // unsafe\nunsafe { b() }");
        assert!(!has_word(&source.code[0], "unsafe"));
        assert!(has_word(&source.comments[0], "unsafe"));
        assert!(has_word(&source.code[1], "unsafe"));
        assert_eq!(source.comments[1].trim(), "");
    }

    #[test]
    fn escapes_and_raw_strings_end_where_they_should() {
        let source = Source::new(r##"f("\"todo", r#"a "todo" b"#, br"todo", 'x', '\'', done)"##);
        assert!(!source.code[0].contains("todo"));
        assert!(source.code[0].contains("done"));
    }

    #[test]
    fn a_lifetime_is_not_a_character() {
        let source = Source::new("fn f<'a>(x: &'a str) -> &'static str { \"y\" }");
        assert!(source.code[0].contains("static str {"));
    }

    #[test]
    fn block_comments_nest_and_keep_their_lines() {
        let source = Source::new("/* a /* b */\n c */ code");
        assert_eq!(source.code[1].trim(), "code");
        assert_eq!(source.comments[1].trim(), "c */");
    }

    #[test]
    fn a_name_that_ends_in_r_does_not_open_a_raw_string() {
        let source = Source::new("for\"x\" + code");
        assert!(source.code[0].contains("+ code"));
    }

    #[test]
    fn literals_that_no_backslash_can_break_are_measured() {
        let text = "f(\"ab cd\", \"abcd\");\nlet x = r#\"a b\ncd\"#; // \"abcdefghij\"\n'x'";
        assert_eq!(Source::new(text).unbreakable, [6, 6, 4, 3]);
    }

    #[test]
    fn text_that_is_not_rust_has_no_code() {
        for text in ["\"", "r#\"", "/*", "'\\", "\"\\", "r#", "b'", "f()) unsafe"] {
            assert!(Source::new(text).code.concat().trim().is_empty());
        }
    }

    #[test]
    fn comments_of_documentation_are_comments_and_attributes_are_code() {
        let text = "//! a\n/// b\n#[doc = \"c\"]\nfn d() {} /** e */\n/// f\nlet g = h / i;";
        let source = Source::new(text);
        let trimmed = |lines: &[String]| -> Vec<String> {
            lines.iter().map(|line| line.trim().to_owned()).collect()
        };
        let code = ["", "", "#[doc = \" \"]", "fn d() {}", "", "let g = h / i;"];
        assert_eq!(trimmed(&source.code), code);
        assert_eq!(trimmed(&source.comments), ["//! a", "/// b", "", "/** e */", "/// f", ""]);
    }

    #[test]
    fn comments_above_step_over_attributes_and_stop_at_code() {
        let source = Source::new("x();\n// one\n// two\n#[inline]\nfn f() {}");
        let above: Vec<&str> = source.comments_above(4).collect();
        assert_eq!(above, ["", "// two", "// one"]);
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("a unsafe{", "unsafe"));
        assert!(!has_word("deny(unsafe_code)", "unsafe"));
    }
}
