//! Splits Rust source into code and comments. A rule about one is then not misled by the other, or
//! by a string.

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
    /// Splits `text`. Never panics, even if the text is not Rust.
    pub(crate) fn new(text: &str) -> Self {
        let mut splitter = Splitter::default();
        let characters: Vec<char> = text.chars().collect();
        let mut at = 0;
        while at < characters.len() {
            at = splitter.step(&characters, at);
        }
        Self {
            code: splitter.code.lines().map(str::to_owned).collect(),
            comments: splitter.comments.lines().map(str::to_owned).collect(),
            unbreakable: splitter.unbreakable.lines().map(widest_word).collect(),
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

/// The kind of a piece of text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Stands for a character of an unbreakable literal. Like a blank, it is one byte.
const MARK: char = '#';

#[derive(Default)]
struct Splitter {
    code: String,
    comments: String,
    /// A mark for each character of an unbreakable literal. Everything else is blank.
    unbreakable: String,
}

impl Splitter {
    fn push(&mut self, character: char, kind: Kind) {
        let blank = if character == '\n' { '\n' } else { ' ' };
        let pick = |wanted| if kind == wanted { character } else { blank };
        self.code.push(pick(Kind::Code));
        self.comments.push(pick(Kind::Comment));
        self.unbreakable.push(blank);
    }

    fn push_all(&mut self, characters: &[char], kind: Kind) {
        for character in characters {
            self.push(*character, kind);
        }
    }

    /// Takes the token at `at` and returns the index after it.
    fn step(&mut self, text: &[char], at: usize) -> usize {
        let rest = &text[at..];
        let end = match rest {
            ['/', '/', ..] => {
                let end = length_until(rest, '\n');
                self.push_all(&rest[..end], Kind::Comment);
                end
            }
            ['/', '*', ..] => {
                let end = block_comment_length(rest);
                self.push_all(&rest[..end], Kind::Comment);
                end
            }
            ['"', ..] => self.literal(rest, 1, string_length(rest)),
            ['r', '"' | '#', ..] if !continues_identifier(text, at) => match raw_string(rest) {
                Some((open, end)) => self.literal(rest, open, end),
                None => self.one(rest[0]),
            },
            ['\'', ..] => match character_literal_length(rest) {
                Some(end) => self.literal(rest, 1, end),
                None => self.one('\''),
            },
            [character, ..] => self.one(*character),
            [] => 1,
        };
        at + end
    }

    fn one(&mut self, character: char) -> usize {
        self.push(character, Kind::Code);
        1
    }

    /// Takes a literal of `end` characters, of which `open` belong to its opening. The quotes stay
    /// code, so that `""` still looks like an expression.
    fn literal(&mut self, rest: &[char], open: usize, end: usize) -> usize {
        self.push_all(&rest[..open], Kind::Code);
        let close = end.saturating_sub(1).max(open);
        let before = self.unbreakable.len();
        self.push_all(&rest[open..close], Kind::Literal);
        self.push_all(&rest[close..end], Kind::Code);
        let is_raw = rest[0] == 'r';
        if is_raw || !rest[..end].iter().any(|c| c.is_whitespace()) {
            // The opening was pushed before, as one mark per character.
            self.unbreakable.truncate(before - open);
            self.unbreakable
                .extend(rest[..end].iter().map(|c| if *c == '\n' { '\n' } else { MARK }));
        }
        end
    }
}

/// The length of the longest run without a blank.
fn widest_word(line: &str) -> usize {
    line.split(' ').map(str::len).max().unwrap_or_default()
}

fn length_until(text: &[char], stop: char) -> usize {
    text.iter().position(|character| *character == stop).unwrap_or(text.len())
}

/// Block comments nest.
fn block_comment_length(text: &[char]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        match text[at..] {
            ['/', '*', ..] => {
                depth += 1;
                at += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    text.len()
}

fn string_length(text: &[char]) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// The lengths of the opening and of the whole literal, for `r"…"` and `r#"…"#`.
fn raw_string(text: &[char]) -> Option<(usize, usize)> {
    let hashes = text[1..].iter().take_while(|c| **c == '#').count();
    let open = 1 + hashes + 1;
    if text.get(open - 1) != Some(&'"') {
        return None;
    }
    let closes = |at: usize| {
        text[at] == '"'
            && text.len() >= at + 1 + hashes
            && text[at + 1..=at + hashes].iter().all(|c| *c == '#')
    };
    let end = (open..text.len()).find(|at| closes(*at)).map_or(text.len(), |at| at + 1 + hashes);
    Some((open, end))
}

/// `'x'` and `'\n'` are literals, `'static` is a lifetime.
fn character_literal_length(text: &[char]) -> Option<usize> {
    if text.get(1) == Some(&'\\') {
        let close = text.iter().skip(3).position(|c| *c == '\'')?;
        return Some(3 + close + 1);
    }
    (text.get(2) == Some(&'\'')).then_some(3)
}

/// Whether the `r` at `at` is the end of a longer name, as in `bar"`. `br"` and `cr"` are raw
/// strings.
fn continues_identifier(text: &[char], at: usize) -> bool {
    let name_before =
        text[..at].iter().rev().take_while(|c| c.is_alphanumeric() || **c == '_').count();
    match name_before {
        0 => false,
        1 => !matches!(text[at - 1], 'b' | 'c'),
        _ => true,
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
    fn unfinished_text_is_no_panic() {
        for text in ["\"", "r#\"", "/*", "'", "'\\", "\"\\", "r", "r#", "b'"] {
            let _ = Source::new(text);
        }
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
