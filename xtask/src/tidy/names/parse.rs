//! The items of a module that can bear a name of a type: types, modules and imports. Items that a
//! macro writes are not seen.

use syn::{Attribute, Ident, Item, UseTree, Visibility};

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

/// Reads a file. A file that is not Rust has no items; the compiler reports it.
pub(super) fn module(text: &str) -> Module {
    syn::parse_file(text).map(|file| items(&file.items)).unwrap_or_default()
}

fn items(items: &[Item]) -> Module {
    let mut module = Module::default();
    for item in items {
        match item {
            Item::Struct(item) => module.add(&item.ident, &item.attrs, &item.vis),
            Item::Enum(item) => module.add(&item.ident, &item.attrs, &item.vis),
            Item::Union(item) => module.add(&item.ident, &item.attrs, &item.vis),
            Item::Trait(item) => module.add(&item.ident, &item.attrs, &item.vis),
            Item::Type(item) => module.add(&item.ident, &item.attrs, &item.vis),
            Item::Mod(item) if !is_special(&item.attrs) => module.modules.push(Child {
                name: item.ident.to_string(),
                is_public: is_public(&item.attrs, &item.vis),
                inline: item.content.as_ref().map(|(_, content)| self::items(content)),
            }),
            Item::Use(item) => {
                let is_public = is_public(&item.attrs, &item.vis);
                let line = item.use_token.span.start().line;
                for (path, name) in leaves(Vec::new(), &item.tree) {
                    module.imports.push(Import { path, name, is_public, line });
                }
            }
            _ => {}
        }
    }
    module
}

impl Module {
    fn add(&mut self, name: &Ident, attributes: &[Attribute], visibility: &Visibility) {
        if !is_special(attributes) {
            let is_public = is_public(attributes, visibility);
            let line = name.span().start().line;
            self.types.push(Type { name: name.to_string(), is_public, line });
        }
    }
}

/// `pub` without a restriction, and not `#[doc(hidden)]`.
fn is_public(attributes: &[Attribute], visibility: &Visibility) -> bool {
    let is_hidden = attributes.iter().any(|attribute| has_argument(attribute, "doc", "hidden"));
    matches!(visibility, Visibility::Public(_)) && !is_hidden
}

/// Whether the item is another file than its name says, or exists in tests alone.
fn is_special(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("path") || has_argument(attribute, "cfg", "test")
    })
}

/// Whether the attribute is `name(argument)`.
fn has_argument(attribute: &Attribute, name: &str, argument: &str) -> bool {
    let is_argument = |ident: Ident| ident == argument;
    attribute.path().is_ident(name) && attribute.parse_args().is_ok_and(is_argument)
}

/// The whole paths of a `use`, each with the name that it brings in.
fn leaves(mut path: Vec<String>, tree: &UseTree) -> Vec<(Vec<String>, String)> {
    let (leaf, name) = match tree {
        UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            return leaves(path, &tree.tree);
        }
        UseTree::Group(group) => {
            return group.items.iter().flat_map(|tree| leaves(path.clone(), tree)).collect();
        }
        UseTree::Name(leaf) => (leaf.ident.to_string(), None),
        UseTree::Rename(leaf) => (leaf.ident.to_string(), Some(leaf.rename.to_string())),
        UseTree::Glob(_) => ("*".to_owned(), None),
    };
    // `self` in braces is the module itself.
    if leaf != "self" || path.is_empty() {
        path.push(leaf);
    }
    let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
    vec![(path, name)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public_types(text: &str) -> Vec<String> {
        let types = module(text).types;
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
        let module = module("#![a]\nmod b;\npub mod c { pub struct D; mod e; }\npub struct F;");
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
        assert!(module("#[cfg(miri)]\n#[path = \"b.rs\"]\nmod a;").modules.is_empty());
    }

    #[test]
    fn imports_are_read_as_whole_paths() {
        let text = "use a::B;\npub use c::{D, e::{self, F as G}, h::*};\npub(crate) use ::i::J;";
        let imports: Vec<(String, String, bool)> = module(text)
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
    fn text_that_is_not_rust_has_no_items() {
        for text in ["pub", "pub use a::{b", "mod", "#[", "pub struct A; }"] {
            assert!(module(text).types.is_empty());
        }
    }
}
