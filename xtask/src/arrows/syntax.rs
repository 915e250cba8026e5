//! Rust files as trees of syntax, without what is compiled for tests only.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{Attribute, Fields, ImplItem, Item, Meta, Result, TraitItem};

/// A file of a crate.
pub(super) struct Syntax {
    pub(super) items: Vec<Item>,
    /// Modules that are declared for tests only, inside the file's own. They have files of theirs.
    pub(super) test_modules: Vec<Vec<String>>,
}

/// Reads a file.
///
/// # Errors
///
/// If the text is not Rust.
pub(super) fn parse(text: &str) -> Result<Syntax> {
    let mut syntax = Syntax { items: syn::parse_file(text)?.items, test_modules: Vec::new() };
    remove_tests(&mut syntax.items, &[], &mut syntax.test_modules);
    Ok(syntax)
}

fn remove_tests(items: &mut Vec<Item>, module: &[String], test_modules: &mut Vec<Vec<String>>) {
    let inner = |name: &syn::Ident| [module, &[name.to_string()]].concat();
    items.retain(|item| {
        let is_test = is_test(attributes(item));
        if let (true, Item::Mod(module)) = (is_test, item) {
            test_modules.push(inner(&module.ident));
        }
        !is_test
    });
    for item in items {
        match item {
            Item::Mod(item) => {
                if let Some((_, items)) = &mut item.content {
                    remove_tests(items, &inner(&item.ident), test_modules);
                }
            }
            Item::Impl(item) => item.items.retain(|item| match item {
                ImplItem::Const(item) => !is_test(&item.attrs),
                ImplItem::Fn(item) => !is_test(&item.attrs),
                ImplItem::Type(item) => !is_test(&item.attrs),
                _ => true,
            }),
            Item::Trait(item) => item.items.retain(|item| match item {
                TraitItem::Fn(item) => !is_test(&item.attrs),
                _ => true,
            }),
            Item::Struct(item) => {
                if let Fields::Named(fields) = &mut item.fields {
                    let named = std::mem::take(&mut fields.named);
                    fields.named = named.into_iter().filter(|one| !is_test(&one.attrs)).collect();
                }
            }
            _ => {}
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string().replace(' ', "");
            condition == "test" || condition.starts_with("all(test,")
        }
        _ => false,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// A token of a macro, with its line.
pub(super) type Token = (String, usize);

/// The tokens of a macro in one row, those of groups too.
pub(super) fn flat(tokens: TokenStream) -> Vec<Token> {
    let mut row = Vec::new();
    for token in tokens {
        let line = token.span().start().line;
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                row.push((open.to_owned(), line));
                row.extend(flat(group.stream()));
                row.push((close.to_owned(), line));
            }
            other => row.push((other.to_string(), line)),
        }
    }
    row
}

/// The paths among tokens.
pub(super) fn paths(tokens: &[Token]) -> Vec<(Vec<String>, usize)> {
    let is_name = |(token, _): &Token| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let mut paths = Vec::new();
    let mut at = 0;
    while let Some((first, line)) = tokens.get(at) {
        at += 1;
        if !is_name(&tokens[at - 1]) {
            continue;
        }
        let mut path = vec![first.clone()];
        while let [(a, _), (b, _), name, ..] = &tokens[at..] {
            if a != ":" || b != ":" || !is_name(name) {
                break;
            }
            path.push(name.0.clone());
            at += 3;
        }
        paths.push((path, *line));
    }
    paths
}
