//! Which paths of its own crate a Rust file names, in imports and elsewhere.
//!
//! 1. The text is read as tokens, without comments and the insides of strings.
//! 2. A path counts if it begins with `crate`, `self` or `super`. Other paths stay in their module.
//! 3. Items under `#[cfg(test)]` do not count, and neither do paths in a visibility.

use crate::source::Source;

/// A path of the file's own crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    /// Its segments after `crate`. The last one of a glob is `*`.
    pub(super) path: Vec<String>,
    /// From 1.
    pub(super) line: usize,
    /// Whether it is made visible under another path: `pub use`, `pub(crate) use`.
    pub(super) is_reexport: bool,
    /// The name under which a `use` imports it.
    pub(super) name: Option<String>,
}

/// The content of a file, as far as arrows are concerned.
#[derive(Debug, Default)]
pub(super) struct Imports {
    pub(super) paths: Vec<Import>,
    /// Modules that are declared for tests only. They are in files of their own.
    pub(super) test_modules: Vec<String>,
}

/// Reads a file. `module` is the path of its module, empty for the root of a crate.
pub(super) fn read(text: &str, module: &[String]) -> Imports {
    let tokens = tokens(text);
    let mut reader =
        Reader { tokens: &tokens, at: 0, module: module.to_vec(), found: Imports::default() };
    reader.items();
    reader.found
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

/// Splits code into names, `::` and single characters.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (index, line) in Source::new(text).code.iter().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let len = if is_name(first) {
                rest.find(|c| !is_name(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push(Token { text: rest[..len].to_owned(), line: index + 1 });
            rest = rest[len..].trim_start();
        }
    }
    tokens
}

/// The words with which an item begins.
const ITEMS: &[&str] = &[
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "let",
    "macro_rules",
    "mod",
    "static",
    "struct",
    "trait",
    "type",
    "union",
    "unsafe",
    "use",
];

struct Reader<'t> {
    tokens: &'t [Token],
    at: usize,
    /// The module at `at`, including inline ones.
    module: Vec<String>,
    found: Imports,
}

impl Reader<'_> {
    fn text(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text.as_str())
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |token| token.line)
    }

    fn is(&self, expected: &[&str]) -> bool {
        expected.iter().enumerate().all(|(ahead, text)| self.text(ahead) == *text)
    }

    /// Reads to the end of the file, or to the `}` that ends an inline module.
    fn items(&mut self) {
        let mut depth = 0_usize;
        let mut is_public = false;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "}" if depth == 0 => return,
                "{" => depth += 1,
                "}" => depth -= 1,
                "#" if self.is(&["#", "[", "cfg", "(", "test", ")", "]"])
                    || self.is(&["#", "[", "cfg", "(", "all", "(", "test"]) =>
                {
                    self.skip_test_item();
                    continue;
                }
                "pub" => {
                    is_public = true;
                    self.at += 1;
                    if self.text(0) == "(" {
                        self.skip_group();
                    }
                    continue;
                }
                "mod" if self.text(2) == "{" => {
                    let name = self.text(1).to_owned();
                    self.at += 3;
                    self.module.push(name);
                    self.items();
                    self.module.pop();
                }
                "use" => {
                    self.at += 1;
                    self.import(is_public);
                    is_public = false;
                    continue;
                }
                "crate" | "super" | "self" if self.text(1) == "::" => {
                    self.path();
                    continue;
                }
                _ => {}
            }
            is_public = false;
            self.at += 1;
        }
    }

    /// Steps over an attribute for tests and the item below it.
    fn skip_test_item(&mut self) {
        while self.text(0) == "#" {
            self.at += 1;
            self.skip_group();
        }
        if self.text(0) == "mod" && self.text(2) == ";" {
            self.found.test_modules.push(self.text(1).to_owned());
        }
        if self.text(0) == "pub" {
            self.at += 1;
            if self.text(0) == "(" {
                self.skip_group();
            }
        }
        // A field or a variant ends with a comma; in an item, commas separate other things.
        let is_item = ITEMS.contains(&self.text(0));
        while self.at < self.tokens.len() {
            match self.text(0) {
                ";" => break,
                "," if !is_item => break,
                "{" => return self.skip_group(),
                "(" | "[" => self.skip_group(),
                // The end of what the attribute's item is part of.
                "}" => return,
                _ => self.at += 1,
            }
        }
        self.at += 1;
    }

    /// Steps over a group in brackets, with those inside it.
    fn skip_group(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Reads the tree of a `use`.
    fn import(&mut self, is_reexport: bool) {
        let is_root = self.module.is_empty();
        let base = match self.text(0) {
            "crate" | "super" | "self" if self.text(1) == "::" => self.base(),
            // In the root of a crate, the name of a module may stand first.
            _ if is_root => Vec::new(),
            _ => {
                while !matches!(self.text(0), ";" | "") {
                    self.at += 1;
                }
                return;
            }
        };
        self.tree(&base, is_reexport);
    }

    /// Reads the leading `crate::`, `self::` or `super::`s, and returns the module they name.
    fn base(&mut self) -> Vec<String> {
        let mut base = self.module.clone();
        loop {
            match self.text(0) {
                "crate" => base.clear(),
                "super" => drop(base.pop()),
                _ => {}
            }
            self.at += 2;
            if !(matches!(self.text(0), "super" | "self") && self.text(1) == "::") {
                return base;
            }
        }
    }

    fn tree(&mut self, prefix: &[String], is_reexport: bool) {
        if self.text(0) == "{" {
            self.at += 1;
            while !matches!(self.text(0), "}" | "") {
                self.tree(prefix, is_reexport);
                if self.text(0) == "," {
                    self.at += 1;
                }
            }
            self.at += 1;
            return;
        }
        let line = self.line();
        let mut path = prefix.to_vec();
        // `self` in braces is the module itself.
        if self.text(0) != "self" {
            path.push(self.text(0).to_owned());
        }
        self.at += 1;
        if self.text(0) == "::" {
            self.at += 1;
            return self.tree(&path, is_reexport);
        }
        let mut name = path.last().cloned();
        if self.text(0) == "as" {
            name = Some(self.text(1).to_owned());
            self.at += 2;
        }
        self.found.paths.push(Import { path, line, is_reexport, name });
    }

    /// Reads a path outside a `use`.
    fn path(&mut self) {
        let line = self.line();
        let mut path = self.base();
        loop {
            path.push(self.text(0).to_owned());
            self.at += 1;
            let is_name = |text: &str| text.starts_with(|c: char| c.is_alphabetic() || c == '_');
            if self.text(0) != "::" || !is_name(self.text(1)) {
                break;
            }
            self.at += 1;
        }
        self.found.paths.push(Import { path, line, is_reexport: false, name: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str, module: &str) -> Vec<String> {
        let module: Vec<String> =
            module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        read(text, &module).paths.iter().map(|import| import.path.join("::")).collect()
    }

    #[test]
    fn a_tree_of_imports_is_read_leaf_by_leaf() {
        let text = "use crate::{A, b::{self, C as D, e::*}};\nuse std::io;\nuse super::super::f;";
        assert_eq!(paths(text, "x::y"), ["A", "b", "b::C", "b::e::*", "f"]);
        let found = read(text, &["x".to_owned()]);
        assert_eq!(found.paths[2].name.as_deref(), Some("D"));
        assert_eq!((found.paths[0].line, found.paths[4].line), (1, 3));
    }

    #[test]
    fn paths_in_code_count_and_those_in_comments_and_strings_do_not() {
        let text = "/// See crate::doc.\nfn f() -> crate::a::B<crate::c::D> {\n    \
                    let x = \"crate::e\"; crate::g::<u8>(x); super::h::i(self.j, self::k)\n}";
        assert_eq!(paths(text, "m::n"), ["a::B", "c::D", "g", "m::h::i", "m::n::k"]);
    }

    #[test]
    fn a_visibility_is_no_import() {
        let text = "pub(crate) fn f() {}\npub(in crate::a) struct B;\npub(super) use crate::c::D;";
        let found = read(text, &["m".to_owned()]).paths;
        assert_eq!(found.len(), 1);
        assert!(found[0].is_reexport);
        assert!(!read("pub fn f() {}\nuse crate::D;", &["m".to_owned()]).paths[0].is_reexport);
    }

    #[test]
    fn tests_are_left_out_and_nothing_after_them() {
        let text = "#[cfg(test)]\nuse crate::a::B;\n\
                    #[cfg(test)]\n#[path = \"t.rs\"]\nmod tests;\n\
                    #[cfg(all(test, unix))]\nmod more { use crate::c::D; }\n\
                    struct S { #[cfg(test)] x: crate::X, y: crate::Y }\n\
                    #[cfg(test)]\nfn f<A, B>(x: crate::a::E) -> u8 { crate::g() }\n\
                    use crate::h::I;";
        assert_eq!(paths(text, "m"), ["Y", "h::I"]);
        assert_eq!(read(text, &[]).test_modules, ["tests"]);
    }

    #[test]
    fn an_inline_module_is_one_level_deeper() {
        let text = "mod a { use super::super::b::C; fn f() { super::g() } }\nuse super::d::E;";
        assert_eq!(paths(text, "m"), ["b::C", "m::g", "d::E"]);
    }

    #[test]
    fn the_root_of_a_crate_names_its_modules_without_crate() {
        let found = read("pub use a::b::{C, D as E};", &[]).paths;
        let names: Vec<_> = found.iter().map(|i| (i.path.join("::"), i.name.clone())).collect();
        assert_eq!(
            names,
            [("a::b::C".into(), Some("C".into())), ("a::b::D".into(), Some("E".into()))]
        );
        assert!(paths("use a::b;", "m").is_empty());
    }

    #[test]
    fn unfinished_text_is_no_panic() {
        for text in ["use crate::", "use crate::{", "crate::", "mod a {", "#[cfg(test)]", "pub("] {
            let _ = read(text, &[]);
        }
    }
}
