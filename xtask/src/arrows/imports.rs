//! Which paths of its own crate a Rust file names, in imports and elsewhere.
//!
//! 1. A path counts if it begins with `crate`, `self` or `super`. Other paths stay in their module.
//! 2. Items under `#[cfg(test)]` do not count, and neither do paths in a visibility.
//! 3. Macros and their calls are read as tokens. A path in them counts up to its first brace.

use syn::visit::{self, Visit};
use syn::{ItemMod, ItemUse, Macro, Path, UseTree, Visibility};

use super::syntax::{self, Syntax};

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

/// Reads a file. `module` is the path of its module, empty for the root of a crate.
pub(super) fn read(syntax: &Syntax, module: &[String]) -> Vec<Import> {
    let mut reader = Reader { module: module.to_vec(), found: Vec::new() };
    syntax.items.iter().for_each(|item| reader.visit_item(item));
    reader.found
}

struct Reader {
    /// The module of what is read, including inline ones.
    module: Vec<String>,
    found: Vec<Import>,
}

impl Reader {
    /// Replaces the leading `crate`, `self` and `super`s of a path; `None` if it has none.
    fn resolve(&self, names: &[String]) -> Option<Vec<String>> {
        let mut path = self.module.clone();
        let is_base = |name: &&String| matches!(name.as_str(), "crate" | "self" | "super");
        let count = names.iter().take_while(is_base).count();
        for base in &names[..count] {
            match base.as_str() {
                "crate" => path.clear(),
                "super" => drop(path.pop()),
                _ => {}
            }
        }
        path.extend_from_slice(&names[count..]);
        (count > 0).then_some(path)
    }

    /// Enters a path outside a `use`. A single `self` is a value.
    fn path(&mut self, names: &[String], line: usize) {
        if let Some(path) = self.resolve(names).filter(|_| names.len() > 1) {
            self.found.push(Import { path, line, is_reexport: false, name: None });
        }
    }

    /// Enters the leaves of a `use`.
    fn tree(&mut self, mut names: Vec<String>, tree: &UseTree, is_reexport: bool) {
        let (leaf, name, span) = match tree {
            UseTree::Path(path) => {
                names.push(path.ident.to_string());
                return self.tree(names, &path.tree, is_reexport);
            }
            UseTree::Group(group) => {
                let trees = group.items.iter();
                return trees.for_each(|tree| self.tree(names.clone(), tree, is_reexport));
            }
            UseTree::Name(leaf) => (leaf.ident.to_string(), None, leaf.ident.span()),
            UseTree::Rename(leaf) => {
                (leaf.ident.to_string(), Some(leaf.rename.to_string()), leaf.ident.span())
            }
            UseTree::Glob(glob) => ("*".to_owned(), None, glob.star_token.spans[0]),
        };
        // `self` in braces is the module itself.
        if leaf != "self" || names.is_empty() {
            names.push(leaf);
        }
        let name = name.or_else(|| names.last().cloned());
        // In the root of a crate, the name of a module may stand first.
        let path = self.resolve(&names).or_else(|| self.module.is_empty().then_some(names));
        let line = span.start().line;
        let import = path.map(|path| Import { path, line, is_reexport, name });
        self.found.extend(import);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        self.tree(Vec::new(), &item.tree, is_reexport);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast Path) {
        let names: Vec<String> = path.segments.iter().map(|one| one.ident.to_string()).collect();
        let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
        self.path(&names, line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let tokens = syntax::flat(call.tokens.clone());
        for (names, line) in syntax::paths(&tokens) {
            self.path(&names, line);
        }
        visit::visit_macro(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str, module: &str) -> Vec<String> {
        let module: Vec<String> =
            module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        imports(text, &module).iter().map(|import| import.path.join("::")).collect()
    }

    fn imports(text: &str, module: &[String]) -> Vec<Import> {
        read(&syntax::parse(text).expect("it is Rust"), module)
    }

    #[test]
    fn a_tree_of_imports_is_read_leaf_by_leaf() {
        let text = "use crate::{A, b::{self, C as D, e::*}};\nuse std::io;\nuse super::super::f;";
        assert_eq!(paths(text, "x::y"), ["A", "b", "b::C", "b::e::*", "f"]);
        let found = imports(text, &["x".to_owned()]);
        assert_eq!(found[2].name.as_deref(), Some("D"));
        assert_eq!((found[0].line, found[4].line), (1, 3));
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
        let found = imports(text, &["m".to_owned()]);
        assert_eq!(found.len(), 1);
        assert!(found[0].is_reexport);
        assert!(!imports("pub fn f() {}\nuse crate::D;", &["m".to_owned()])[0].is_reexport);
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
        assert_eq!(syntax::parse(text).expect("it is Rust").test_modules, [["tests"], ["more"]]);
    }

    #[test]
    fn an_inline_module_is_one_level_deeper() {
        let text = "mod a { use super::super::b::C; fn f() { super::g() } }\nuse super::d::E;";
        assert_eq!(paths(text, "m"), ["b::C", "m::g", "d::E"]);
    }

    #[test]
    fn the_root_of_a_crate_names_its_modules_without_crate() {
        let found = imports("pub use a::b::{C, D as E};", &[]);
        let names: Vec<_> = found.iter().map(|i| (i.path.join("::"), i.name.clone())).collect();
        assert_eq!(
            names,
            [("a::b::C".into(), Some("C".into())), ("a::b::D".into(), Some("E".into()))]
        );
        assert!(paths("use a::b;", "m").is_empty());
    }

    #[test]
    fn paths_in_macros_count() {
        let text = "fn f() { assert!(x == crate::a::B { c: 1 }.c, \"crate::d\"); }\n\
                    macro_rules! m { ($x:expr) => { $crate::e::f(super::g, $x) } }";
        assert_eq!(paths(text, "m"), ["a::B", "e::f", "g"]);
    }
}
