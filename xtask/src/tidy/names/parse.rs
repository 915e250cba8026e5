//! The items of a module that can bear a name of a type, read from the text without comments.
//!
//! This is not a parser of Rust. It steps from item to item, reads types, modules and imports, and
//! skips everything else by its brackets. Items that a macro writes are not seen.

/// The items of one module, inline modules included.
#[derive(Debug, Default, Clone)]
pub(super) struct Module {
    pub(super) types: Vec<Type>,
    pub(super) modules: Vec<Child>,
    pub(super) imports: Vec<Import>,
}

/// A struct, enum, union, trait or type alias.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) name: String,
    pub(super) is_public: bool,
    /// From 1.
    pub(super) line: usize,
}

/// A module inside another one.
#[derive(Debug, Clone)]
pub(super) struct Child {
    pub(super) name: String,
    pub(super) is_public: bool,
    /// `None` if it has a file of its own.
    pub(super) inline: Option<Module>,
}

/// One name that a `use` brings in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    /// The whole path. It ends in `*` if it brings in every public name of a module.
    pub(super) path: Vec<String>,
    /// The name under which it is known here.
    pub(super) name: String,
    pub(super) is_public: bool,
    /// From 1.
    pub(super) line: usize,
}

/// Reads a file's code, one string a line, without comments and without the insides of strings.
pub(super) fn module(code: &[String]) -> Module {
    let tokens = tokens(code);
    Parser { tokens: &tokens, at: 0 }.items()
}

/// A word or one other character, with its line from 1.
#[derive(Debug, Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

fn tokens(code: &[String]) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (index, line) in code.iter().enumerate() {
        let mut rest = line.as_str();
        while let Some(first) = rest.chars().next() {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            let length = match rest.find(|c| !is_part(c)) {
                Some(0) => first.len_utf8(),
                Some(end) => end,
                None => rest.len(),
            };
            if !first.is_whitespace() {
                tokens.push(Token { text: &rest[..length], line: index + 1 });
            }
            rest = &rest[length..];
        }
    }
    tokens
}

struct Parser<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
}

/// The attributes and the visibility of an item.
#[derive(Default)]
struct Front {
    /// `pub` without a restriction, and not `#[doc(hidden)]`.
    is_public: bool,
    /// The item is another file than its name says, or exists in tests alone.
    is_special: bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a str {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |token| token.line)
    }

    fn next(&mut self) -> &'a str {
        let text = self.peek();
        self.at += 1;
        text
    }

    /// Reads items up to the end of the text or of the block.
    fn items(&mut self) -> Module {
        let mut module = Module::default();
        while self.at < self.tokens.len() && self.peek() != "}" {
            self.item(&mut module);
        }
        module
    }

    fn item(&mut self, module: &mut Module) {
        let front = self.front();
        let line = self.line();
        let is_public = front.is_public;
        while matches!(self.peek(), "unsafe" | "auto") {
            self.at += 1;
        }
        match self.peek() {
            "struct" | "enum" | "trait" | "type" | "union" if is_name(self.peek_at(1)) => {
                self.at += 1;
                let name = self.next().to_owned();
                self.skip_item();
                if !front.is_special {
                    module.types.push(Type { name, is_public, line });
                }
            }
            "mod" => {
                self.at += 1;
                let name = self.next().to_owned();
                let inline = (self.next() == "{").then(|| {
                    let items = self.items();
                    self.at += 1;
                    items
                });
                if !front.is_special {
                    module.modules.push(Child { name, is_public, inline });
                }
            }
            "use" => {
                self.at += 1;
                let first = module.imports.len();
                self.tree(&mut Vec::new(), &mut module.imports);
                self.skip_item();
                for import in &mut module.imports[first..] {
                    (import.is_public, import.line) = (is_public, line);
                }
            }
            _ => self.skip_item(),
        }
    }

    /// Attributes and visibility.
    fn front(&mut self) -> Front {
        let mut front = Front::default();
        let mut is_hidden = false;
        while self.peek() == "#" {
            self.at += if self.peek_at(1) == "!" { 2 } else { 1 };
            let start = self.at;
            self.skip_group();
            let words: Vec<&str> =
                self.tokens[start..self.at.min(self.tokens.len())].iter().map(|t| t.text).collect();
            let begins = |with: &[&str]| words.get(1..).is_some_and(|rest| rest.starts_with(with));
            is_hidden |= begins(&["doc", "(", "hidden"]);
            front.is_special |= begins(&["path", "="]) || begins(&["cfg", "(", "test", ")"]);
        }
        if self.peek() == "pub" {
            self.at += 1;
            let is_restricted = self.peek() == "(";
            if is_restricted {
                self.skip_group();
            }
            front.is_public = !is_restricted && !is_hidden;
        }
        front
    }

    /// Reads the tree of a `use`, of which `path` has been read.
    fn tree(&mut self, path: &mut Vec<String>, imports: &mut Vec<Import>) {
        let depth = path.len();
        loop {
            match self.peek() {
                ":" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while !matches!(self.peek(), "}" | "") {
                        self.tree(path, imports);
                        if self.peek() == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    break;
                }
                text if is_name(text) || text == "*" => {
                    path.push(self.next().to_owned());
                    if self.peek() == ":" {
                        continue;
                    }
                    self.leaf(path.clone(), imports);
                    break;
                }
                _ => {
                    // Nothing that a path is made of: not Rust.
                    self.at += 1;
                    break;
                }
            }
        }
        path.truncate(depth);
    }

    fn leaf(&mut self, mut path: Vec<String>, imports: &mut Vec<Import>) {
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let mut name = path.last().cloned().unwrap_or_default();
        if self.peek() == "as" {
            self.at += 1;
            name = self.next().to_owned();
        }
        imports.push(Import { path, name, is_public: false, line: 0 });
    }

    /// Skips to the end of the item: a `;` or the end of a block.
    fn skip_item(&mut self) {
        while self.at < self.tokens.len() {
            match self.peek() {
                ";" => {
                    self.at += 1;
                    return;
                }
                "{" => return self.skip_group(),
                "}" => return,
                "(" | "[" => self.skip_group(),
                _ => self.at += 1,
            }
        }
    }

    /// Skips a bracket and everything up to the one that closes it.
    fn skip_group(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.next() {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return;
            }
        }
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

    fn read(text: &str) -> Module {
        module(&Source::new(text).code)
    }

    fn public_types(text: &str) -> Vec<String> {
        let types = read(text).types;
        types.into_iter().filter(|one| one.is_public).map(|one| one.name).collect()
    }

    #[test]
    fn every_kind_of_type_is_read_and_other_items_are_skipped() {
        let text = "pub struct A<T>(T) where T: B;\npub struct C { d: [u8; 4] }\npub enum E {}\n\
            pub unsafe trait F {}\npub union G { a: u8 }\npub type H = [u8; 2];\n\
            pub fn i() { struct J; }\npub const K: L = L { m: 1 };\nimpl N { }\n\
            macro_rules! o { () => { pub struct P; } }\npub static Q: [u8; 1] = [0];\n\
            pub struct R;";
        assert_eq!(public_types(text), ["A", "C", "E", "F", "G", "H", "R"]);
    }

    #[test]
    fn restricted_hidden_and_test_items_are_not_public() {
        let text = "struct A; pub(crate) struct B; pub(in crate::c) struct D;\n\
            #[doc(hidden)] pub struct E; #[cfg(test)] pub struct F;\n\
            #[derive(Debug)] #[non_exhaustive] pub struct G;";
        assert_eq!(public_types(text), ["G"]);
    }

    #[test]
    fn modules_are_inline_or_files() {
        let module = read("#![a]\nmod b;\npub mod c { pub struct D; mod e; }\npub struct F;");
        let [b, c] = &module.modules[..] else { panic!("{module:?}") };
        assert!(b.name == "b" && !b.is_public && b.inline.is_none());
        assert!(c.name == "c" && c.is_public);
        let inline = c.inline.as_ref().expect("it has a block");
        assert_eq!((inline.types[0].name.as_str(), inline.modules.len()), ("D", 1));
        assert_eq!(module.types[0].name, "F");
        assert_eq!(module.types[0].line, 4);
    }

    #[test]
    fn a_module_with_a_path_of_its_own_stands_for_another_one() {
        assert!(read("#[cfg(miri)]\n#[path = \"b.rs\"]\nmod a;").modules.is_empty());
    }

    #[test]
    fn imports_are_read_as_whole_paths() {
        let text = "use a::B;\npub use c::{D, e::{self, F as G}, h::*};\npub(crate) use ::i::J;";
        let imports: Vec<(String, String, bool)> = read(text)
            .imports
            .into_iter()
            .map(|import| (import.path.join("::"), import.name, import.is_public))
            .collect();
        let expected = [
            ("a::B", "B", false),
            ("c::D", "D", true),
            ("c::e", "e", true),
            ("c::e::F", "G", true),
            ("c::h::*", "*", true),
            ("i::J", "J", false),
        ];
        let expected = expected.map(|(path, name, public)| (path.into(), name.into(), public));
        assert_eq!(imports, expected);
    }

    #[test]
    fn unfinished_text_is_no_panic() {
        for text in ["pub", "pub use a::{b", "use", "mod", "#[", "pub struct", "use {}", "} }"] {
            let _ = read(text);
        }
    }
}
