//! Where the fields and methods of a crate's types are used, if other folders can see them.
//!
//! A type is known from the declared types of `self`, parameters, fields and results, not through
//! generics, closures, iterators and aliases. There a name decides, if only one type has it.

use std::collections::BTreeMap;

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Arm, Block, Expr, ExprClosure, ExprField, ExprForLoop, ExprIf, ExprLet, ExprMatch,
    ExprMethodCall, ExprPath, ExprStruct, ExprWhile, FnArg, Ident, ImplItemFn, ItemFn, ItemImpl,
    ItemMod, ItemTrait, Local, Macro, Member, Pat, Path, Signature, Token, TraitItemFn, Type, UnOp,
};

use super::members::{Typed, Types};
use super::syntax::{self, Syntax};

/// The use of a field or method.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// The type, as an index of [`Types::list`].
    pub(super) of: usize,
    /// As `.field` or `::method`.
    pub(super) name: String,
    pub(super) line: usize,
}

/// Reads a file. `module` is the path of its module.
pub(super) fn read(types: &Types<'_>, syntax: &Syntax, module: &[String]) -> Vec<Use> {
    let mut reader =
        Reader { types, module: module.to_vec(), own: None, scopes: Vec::new(), found: Vec::new() };
    syntax.items.iter().for_each(|item| reader.visit_item(item));
    reader.found
}

struct Reader<'t, 's> {
    types: &'t Types<'s>,
    module: Vec<String>,
    /// The type that is `Self` here.
    own: Option<usize>,
    /// The types of local variables, from the outermost block of a function.
    scopes: Vec<BTreeMap<String, Option<Typed>>>,
    found: Vec<Use>,
}

/// Methods of the standard library that return a view of their receiver.
const VIEWS: &[&str] = &[
    "as_deref",
    "as_deref_mut",
    "as_mut",
    "as_ref",
    "borrow",
    "borrow_mut",
    "by_ref",
    "clone",
    "get_mut",
    "take",
];

/// Methods that return the value in an `Option` or a `Result`.
const UNWRAP: &[&str] =
    &["expect", "get_or_insert_with", "insert", "unwrap", "unwrap_or", "unwrap_or_else"];

/// Methods of the standard library and of dependencies, with names that are not guessed by.
const FOREIGN: &[&str] =
    &["as_pin_mut", "encoded_len", "get_mut", "into_inner", "is_full", "notify_all"];

/// Whether a method of this name may be one of the crate. Most single words are methods of the
/// standard library as well.
fn is_telling(name: &str) -> bool {
    name.starts_with('.') || (name.contains('_') && !FOREIGN.contains(&&name[2..]))
}

fn line(name: &Ident) -> usize {
    name.span().start().line
}

impl Reader<'_, '_> {
    /// Enters the use of a member. Its type is `None` if it is not known.
    fn used(&mut self, of: Option<usize>, name: String, line: usize) {
        let guess = || self.types.owner(&name).filter(|_| is_telling(&name));
        let Some(of) = of.or_else(guess) else { return };
        if self.types.member(of, &name).is_some_and(|member| member.is_shared) {
            self.found.push(Use { of, name, line });
        }
    }

    fn field(&mut self, of: Option<usize>, member: &Member) {
        if let Member::Named(name) = member {
            self.used(of, format!(".{name}"), line(name));
        }
    }

    fn typed(&self, ty: &Type) -> Option<Typed> {
        self.types.typed(ty, self.own, &self.module)
    }

    fn type_of(&self, expr: &Expr) -> Option<Typed> {
        match expr {
            Expr::Await(inner) => self.type_of(&inner.base),
            Expr::Group(inner) => self.type_of(&inner.expr),
            Expr::Paren(inner) => self.type_of(&inner.expr),
            Expr::Reference(inner) => self.type_of(&inner.expr),
            Expr::Try(inner) => self.type_of(&inner.expr).map(|typed| Typed::plain(typed.of)),
            Expr::Unary(inner) if matches!(inner.op, UnOp::Deref(_)) => self.type_of(&inner.expr),
            Expr::Struct(literal) => self.named(&literal.path).map(Typed::plain),
            Expr::Path(path) => {
                let name = path.path.get_ident()?.to_string();
                let local = self.scopes.iter().rev().find_map(|scope| scope.get(&name)).copied();
                let own = || self.own.filter(|_| name == "self").map(Typed::plain);
                local.unwrap_or_else(own)
            }
            Expr::Field(field) => {
                let Member::Named(name) = &field.member else { return None };
                let name = format!(".{name}");
                let of = self.type_of(&field.base).map(|typed| typed.of);
                self.types.member_type(of.or_else(|| self.types.owner(&name))?, &name)
            }
            Expr::Call(call) => {
                let Expr::Path(path) = &*call.func else { return None };
                let (of, name) = self.associated(&path.path)?;
                self.types.member_type(of, &format!("::{name}"))
            }
            Expr::MethodCall(call) => {
                let name = call.method.to_string();
                let receiver = self.type_of(&call.receiver)?;
                let own = format!("::{name}");
                if !receiver.is_wrapped && self.types.member(receiver.of, &own).is_some() {
                    return self.types.member_type(receiver.of, &own);
                }
                let is_unwrapped = receiver.is_wrapped && UNWRAP.contains(&name.as_str());
                if is_unwrapped {
                    return Some(Typed::plain(receiver.of));
                }
                Some(receiver).filter(|_| VIEWS.contains(&name.as_str()))
            }
            _ => None,
        }
    }

    /// The type with this path.
    fn named(&self, path: &Path) -> Option<usize> {
        let name = path.segments.last()?.ident.to_string();
        self.types.named(&name, self.own, &self.module)
    }

    /// The type and the name in `Type::name`.
    fn associated<'p>(&self, path: &'p Path) -> Option<(usize, &'p Ident)> {
        let mut names = path.segments.iter().rev().map(|segment| &segment.ident);
        let (name, of) = (names.next()?, names.next()?);
        Some((self.types.named(&of.to_string(), self.own, &self.module)?, name))
    }

    /// Reads a block, whose variables end with it.
    fn scope(&mut self, read: impl FnOnce(&mut Self)) {
        self.scopes.push(BTreeMap::new());
        read(self);
        self.scopes.pop();
    }

    /// Reads a function, which has no variables of what surrounds it.
    fn function(&mut self, read: impl FnOnce(&mut Self)) {
        let outer = std::mem::take(&mut self.scopes);
        self.scope(read);
        self.scopes = outer;
    }

    /// Reads an item whose `Self` is `own`.
    fn owned(&mut self, own: Option<usize>, read: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.own, own);
        read(self);
        self.own = outer;
    }

    /// Enters the variables of a pattern that a value of this type matches.
    fn bind(&mut self, pattern: &Pat, typed: Option<Typed>) {
        match pattern {
            Pat::Ident(variable) => {
                if let Some(scope) = self.scopes.last_mut() {
                    scope.insert(variable.ident.to_string(), typed);
                }
            }
            Pat::Guard(guarded) => {
                self.bind(&guarded.pat, typed);
                self.visit_expr(&guarded.guard);
            }
            Pat::Type(annotated) => {
                let typed = self.typed(&annotated.ty);
                self.bind(&annotated.pat, typed);
            }
            Pat::Paren(inner) => self.bind(&inner.pat, typed),
            Pat::Reference(inner) => self.bind(&inner.pat, typed),
            Pat::Or(or) => or.cases.iter().for_each(|case| self.bind(case, typed)),
            Pat::Slice(slice) => slice.elems.iter().for_each(|one| self.bind(one, None)),
            Pat::Tuple(tuple) => tuple.elems.iter().for_each(|one| self.bind(one, None)),
            Pat::TupleStruct(variant) => {
                let is_value = variant.path.is_ident("Some") || variant.path.is_ident("Ok");
                let inner = typed.filter(|typed| is_value && typed.is_wrapped);
                let inner = inner.map(|typed| Typed::plain(typed.of));
                variant.elems.iter().for_each(|one| self.bind(one, inner));
            }
            Pat::Struct(parts) => {
                let of = self.named(&parts.path);
                for part in &parts.fields {
                    if of.is_some() {
                        self.field(of, &part.member);
                    }
                    let typed = match &part.member {
                        Member::Named(name) => {
                            of.and_then(|of| self.types.member_type(of, &format!(".{name}")))
                        }
                        Member::Unnamed(_) => None,
                    };
                    self.bind(&part.pat, typed);
                }
            }
            _ => {}
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_, '_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let own = self.types.typed(&item.self_ty, None, &self.module).map(|typed| typed.of);
        self.owned(own, |reader| visit::visit_item_impl(reader, item));
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.owned(None, |reader| visit::visit_item_trait(reader, item));
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(|reader| visit::visit_item_fn(reader, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(|reader| visit::visit_impl_item_fn(reader, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.function(|reader| visit::visit_trait_item_fn(reader, item));
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        for input in &signature.inputs {
            if let FnArg::Typed(input) = input {
                let typed = self.typed(&input.ty);
                self.bind(&input.pat, typed);
            }
        }
    }

    fn visit_block(&mut self, block: &'ast Block) {
        self.scope(|reader| visit::visit_block(reader, block));
    }

    fn visit_expr_closure(&mut self, closure: &'ast ExprClosure) {
        self.scope(|reader| visit::visit_expr_closure(reader, closure));
    }

    fn visit_expr_if(&mut self, expr: &'ast ExprIf) {
        self.scope(|reader| visit::visit_expr_if(reader, expr));
    }

    fn visit_expr_while(&mut self, expr: &'ast ExprWhile) {
        self.scope(|reader| visit::visit_expr_while(reader, expr));
    }

    fn visit_expr_for_loop(&mut self, expr: &'ast ExprForLoop) {
        self.scope(|reader| visit::visit_expr_for_loop(reader, expr));
    }

    fn visit_expr_match(&mut self, expr: &'ast ExprMatch) {
        self.visit_expr(&expr.expr);
        let typed = self.type_of(&expr.expr);
        for Arm { pat, body, .. } in &expr.arms {
            self.scope(|reader| {
                reader.bind(pat, typed);
                reader.visit_expr(body);
            });
        }
    }

    fn visit_expr_let(&mut self, expr: &'ast ExprLet) {
        self.visit_expr(&expr.expr);
        let typed = self.type_of(&expr.expr);
        self.bind(&expr.pat, typed);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        let typed = local.init.as_ref().and_then(|init| {
            self.visit_local_init(init);
            self.type_of(&init.expr)
        });
        self.bind(&local.pat, typed);
    }

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        self.bind(pattern, None);
    }

    fn visit_expr_field(&mut self, expr: &'ast ExprField) {
        let typed = self.type_of(&expr.base);
        self.field(typed.map(|typed| typed.of), &expr.member);
        visit::visit_expr_field(self, expr);
    }

    fn visit_expr_method_call(&mut self, expr: &'ast ExprMethodCall) {
        let typed = self.type_of(&expr.receiver);
        if typed.is_none_or(|typed| !typed.is_wrapped) {
            let name = format!("::{}", expr.method);
            self.used(typed.map(|typed| typed.of), name, line(&expr.method));
        }
        visit::visit_expr_method_call(self, expr);
    }

    fn visit_expr_struct(&mut self, expr: &'ast ExprStruct) {
        if let of @ Some(_) = self.named(&expr.path) {
            expr.fields.iter().for_each(|field| self.field(of, &field.member));
        }
        visit::visit_expr_struct(self, expr);
    }

    fn visit_expr_path(&mut self, expr: &'ast ExprPath) {
        if let Some((of, name)) = self.associated(&expr.path) {
            self.used(Some(of), format!("::{name}"), line(name));
        }
        visit::visit_expr_path(self, expr);
    }

    /// Reads what is in a macro as expressions or as statements, and otherwise as tokens.
    fn visit_macro(&mut self, call: &'ast Macro) {
        let expressions = Punctuated::<Expr, Token![,]>::parse_terminated;
        if let Ok(expressions) = call.parse_body_with(expressions) {
            return expressions.iter().for_each(|expr| self.visit_expr(expr));
        }
        if let Ok(statements) = call.parse_body_with(Block::parse_within) {
            return self.scope(|reader| {
                statements.iter().for_each(|statement| reader.visit_stmt(statement));
            });
        }
        let tokens = syntax::flat(call.tokens.clone());
        for (at, window) in tokens.windows(3).enumerate() {
            let [(before, _), (dot, _), (name, line)] = window else { continue };
            if before != "." && dot == "." {
                let of = self.own.filter(|_| before == "self");
                let is_call = tokens.get(at + 3).is_some_and(|(after, _)| after == "(");
                let mark = if is_call { "::" } else { "." };
                self.used(of, format!("{mark}{name}"), *line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two types, with equal names of members, so that nothing can be guessed.
    const TYPES: &str = "
        pub(crate) struct A { pub(crate) b: B, pub(crate) n: u8, secret: u8 }
        pub(crate) struct B { pub(crate) a: Option<Box<A>>, pub(crate) n: u8, pub(crate) only: u8 }
        impl A {
            pub(crate) fn make() -> Self {}
            pub(crate) fn b(&mut self) -> Option<&mut B> {}
            pub(crate) fn get(&self) -> &B {}
            pub(crate) fn by_name(&self) {}
        }
        impl B { pub(crate) fn get(&self) -> &A {} }
        trait T { fn of_trait(&self); }
        impl A { pub(crate) fn of_trait(&self) {} }
        macro_rules! m { () => { struct C { made: u8 } } }
        pub(crate) struct D { pub(crate) made: u8 }";

    /// The members that the text of another module uses.
    fn used(text: &str) -> Vec<String> {
        let [types, text] = [TYPES, text].map(|text| syntax::parse(text).expect("it is Rust"));
        let modules = ["types".to_owned(), "user".to_owned()];
        let [of_types, of_user] = [&modules[..1], &modules[1..]];
        let read = Types::read([(&types, of_types), (&text, of_user)].into_iter());
        let name = |one: Use| format!("{}{}", read.list[one.of].name, one.name);
        let mut names: Vec<String> =
            super::read(&read, &text, of_user).into_iter().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn the_types_of_parameters_fields_and_results_are_followed() {
        assert_eq!(used("fn f(a: &mut A) { a.n }"), ["A.n"]);
        assert_eq!(used("fn f(a: &mut A) { a.b.n = 1; }"), ["A.b", "B.n"]);
        assert_eq!(used("fn f(a: Rc<A>) { a.get().get().n }"), ["A.n", "A::get", "B::get"]);
        assert_eq!(used("fn f(b: B) -> u8 { b.a.unwrap().n }"), ["A.n", "B.a"]);
        assert_eq!(used("fn f(a: A) -> Option<u8> { Some(a.b()?.n) }"), ["A::b", "B.n"]);
        assert_eq!(used("fn f() { A::make().n }"), ["A.n", "A::make"]);
        assert_eq!(used("struct S { a: A } impl S { fn f(&self) { self.a.n } }"), ["A.n"]);
        assert_eq!(used("impl B { fn f(&self) { self.n } }"), ["B.n"]);
    }

    #[test]
    fn the_types_of_variables_are_followed() {
        assert_eq!(used("fn f(a: A) { let b = &a.b; b.n }"), ["A.b", "B.n"]);
        assert_eq!(used("fn f(x: u8) { let b: &B = g(x); b.n }"), ["B.n"]);
        let let_some = "fn f(b: B) { if let Some(a) = b.a.as_deref_mut() { a.n } }";
        assert_eq!(used(let_some), ["A.n", "B.a"]);
        let arms = "fn f(b: B) { match &b.a { Some(a) if a.n > 1 => a.n, None => b.n } }";
        assert_eq!(used(arms), ["A.n", "A.n", "B.a", "B.n"]);
        assert_eq!(used("fn f() { g(|a: &A| a.n) }"), ["A.n"]);
        // A variable of the same name, whose type is not known.
        assert_eq!(used("fn f(a: A) { { let a = g(); a.n } a.n }"), ["A.n"]);
    }

    #[test]
    fn patterns_and_literals_use_fields() {
        assert_eq!(used("fn f(x: u8) { let A { b, .. } = g(x); b.n }"), ["A.b", "B.n"]);
        assert_eq!(used("fn f() { B { a: None, ..g() } }"), ["B.a"]);
        assert_eq!(used("fn f() { g(A::get, B::get) }"), ["A::get", "B::get"]);
    }

    #[test]
    fn macros_are_read() {
        assert_eq!(used("fn f(a: A) { assert!(a.n > 1, \"{}\", a.b.n) }"), ["A.b", "A.n", "B.n"]);
        assert_eq!(used("fn f(a: A) { block! { let b = a.b; b.n } }"), ["A.b", "B.n"]);
        assert_eq!(used("fn f(x: u8) { matches!(x.only, 1 | 2 if y.only) }"), ["B.only", "B.only"]);
        assert_eq!(
            used("macro_rules! m { ($x:expr) => { 1..only; $x.by_name() } }"),
            ["A::by_name"]
        );
    }

    #[test]
    fn a_name_of_one_type_is_enough() {
        assert_eq!(used("fn f(x: impl Sized) { x.only; x.by_name() }"), ["A::by_name", "B.only"]);
        // Two types have these, or a trait, or a macro makes them.
        assert_eq!(used("fn f(x: u8) { x.n; x.get(); x.of_trait(); x.made }"), [""; 0]);
        // These may be methods of the standard library.
        assert_eq!(used("fn f(x: u8) { x.make(); x.b() }"), [""; 0]);
    }

    #[test]
    fn what_others_cannot_see_is_not_used() {
        assert_eq!(used("fn f(a: A) { a.secret }"), [""; 0]);
        assert_eq!(used("struct Own { n: u8 } fn f(x: Own) { x.n }"), [""; 0]);
    }
}
