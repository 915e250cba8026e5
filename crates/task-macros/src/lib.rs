//! The attributes `main` and `test` of the crate `windlass-task`, which exports them.

#![deny(unsafe_code)]

use proc_macro::{Delimiter, Group, Span, TokenStream, TokenTree};

/// Runs an `async fn main` with `windlass_task::block_on`.
///
/// The executor has the default settings. For others, write a plain `main` that uses
/// `Executor::builder`.
///
/// # Errors
/// A compiler error if the function is not `async`, takes parameters, or the attribute has options.
#[proc_macro_attribute]
pub fn main(options: TokenStream, function: TokenStream) -> TokenStream {
    expand("main", options, function, "").unwrap_or_else(Rejected::into_tokens)
}

/// Makes a test of an `async fn`, which runs with `windlass_task::block_on`.
///
/// Other attributes of tests, such as `#[should_panic]` and `#[ignore]`, stand beside it. The only
/// option is `paused_clock = true`: the test runs with the setting of that name of
/// `ExecutorBuilder`, so sleeps take no time.
///
/// # Errors
/// A compiler error if the function is not `async`, takes parameters, or the attribute has other
/// options.
#[proc_macro_attribute]
pub fn test(options: TokenStream, function: TokenStream) -> TokenStream {
    expand("test", options, function, "#[::core::prelude::v1::test]")
        .unwrap_or_else(Rejected::into_tokens)
}

/// Why a function is not accepted, and where.
struct Rejected {
    message: String,
    span: Span,
}

impl Rejected {
    /// The compiler's error.
    fn into_tokens(self) -> TokenStream {
        let call = format!("::core::compile_error! {{ {:?} }}", self.message);
        parse(&call, self.span)
    }
}

/// Tokens of this crate's own text, at a place of the user's.
fn parse(text: &str, span: Span) -> TokenStream {
    let tokens: TokenStream = text.parse().expect("the text is written in this file");
    tokens
        .into_iter()
        .map(|mut token| {
            token.set_span(span);
            token
        })
        .collect()
}

fn is_word(token: Option<&TokenTree>, word: &str) -> bool {
    matches!(token, Some(TokenTree::Ident(found)) if found.to_string() == word)
}

/// Runs a test with a paused clock.
const PAUSED: &str = "::windlass_task::Executor::builder().paused_clock(true).build()\
    .expect(\"cannot build the reactor of the executor\").block_on";

fn first_span(tokens: TokenStream) -> Span {
    tokens.into_iter().next().map_or_else(Span::call_site, |token| token.span())
}

/// Takes `async` away, and puts the body into `block_on`.
fn expand(
    attribute: &str,
    options: TokenStream,
    function: TokenStream,
    before: &str,
) -> Result<TokenStream, Rejected> {
    let rejected = |message: &str, span| {
        let message = format!("`#[windlass_task::{attribute}]` {message}");
        Err(Rejected { message, span })
    };
    let runner = match (attribute, options.to_string().as_str()) {
        (_, "") => "::windlass_task::block_on",
        ("test", "paused_clock = true") => PAUSED,
        ("test", _) => {
            let message =
                "has one option, `paused_clock = true`; for others, use `Executor::builder`";
            return rejected(message, first_span(options));
        }
        _ => return rejected("has no options; use `Executor::builder`", first_span(options)),
    };
    let mut tokens: Vec<TokenTree> = function.into_iter().collect();
    let name = tokens.iter().position(|token| is_word(Some(token), "fn")).map(|at| at + 1);
    let Some(name) = name else {
        return rejected("stands before an `async fn`", Span::call_site());
    };
    let Some(is_async) = tokens[..name].iter().position(|token| is_word(Some(token), "async"))
    else {
        return rejected("needs an `async fn`", tokens[name - 1].span());
    };
    match tokens.get(name + 1) {
        Some(TokenTree::Group(list))
            if list.delimiter() == Delimiter::Parenthesis && list.stream().is_empty() => {}
        Some(TokenTree::Punct(angle)) if angle.as_char() == '<' => {
            return rejected("needs a function without generic parameters", angle.span());
        }
        other => {
            let span = other.map_or_else(Span::call_site, TokenTree::span);
            return rejected("needs a function without parameters", span);
        }
    }
    let Some(TokenTree::Group(body)) = tokens.pop() else {
        return rejected("needs a function with a body", Span::call_site());
    };
    let span = body.span();
    let mut call: TokenStream = parse("async move", span);
    call.extend([TokenTree::Group(body)]);
    let mut body = parse(runner, span);
    let mut argument = Group::new(Delimiter::Parenthesis, call);
    // So that the compiler shows the body if its type is wrong.
    argument.set_span(span);
    body.extend([TokenTree::Group(argument)]);
    let mut block = Group::new(Delimiter::Brace, body);
    block.set_span(span);

    tokens.remove(is_async);
    let mut expanded = parse(before, Span::call_site());
    expanded.extend(tokens);
    expanded.extend([TokenTree::Group(block)]);
    Ok(expanded)
}
