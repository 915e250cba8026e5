//! `--token-file`: the tokens with which clients may open a WebSocket.

use std::{
    collections::HashSet,
    fs,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use anyhow::{Context as _, ensure};
use sha2::{Digest as _, Sha256};
use windlass_server::http::{Reject, UpgradeRequest};

/// The shortest token that is taken.
const LEN_MIN: usize = 16;

/// The tokens of a file, as digests: a comparison tells nothing about another token.
#[derive(Debug)]
pub(crate) struct TokenSet(HashSet<[u8; 32]>);

impl TokenSet {
    /// Reads a file with a token in each line. Empty lines and those that begin with `#` are left
    /// out.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read --token-file {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("invalid --token-file {}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut tokens = HashSet::new();
        for (number, line) in (1..).zip(text.lines()) {
            let token = line.trim();
            if token.is_empty() || token.starts_with('#') {
                continue;
            }
            ensure!(
                token.len() >= LEN_MIN && token.bytes().all(|byte| byte.is_ascii_graphic()),
                "line {number} is no token: it has at least {LEN_MIN} visible ASCII characters"
            );
            tokens.insert(digest(token));
        }
        ensure!(!tokens.is_empty(), "it has no token, so nobody could connect");
        Ok(Self(tokens))
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The tokens in use, which all workers share.
#[derive(Debug)]
pub(crate) struct ClientTokens(RwLock<Arc<TokenSet>>);

impl ClientTokens {
    pub(crate) fn new(tokens: TokenSet) -> Arc<Self> {
        Arc::new(Self(RwLock::new(Arc::new(tokens))))
    }

    /// Takes the tokens of a file that was read again into use. Open connections stay.
    pub(crate) fn replace(&self, tokens: TokenSet) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
    }

    /// Checks the token of a client: `Authorization: Bearer TOKEN`, or the parameter `token`, for
    /// browsers.
    pub(crate) fn check(&self, request: &UpgradeRequest<'_>) -> Result<(), Reject> {
        let bearer = request.header("Authorization").and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim_start().to_owned())
        });
        let token = bearer.or_else(|| request.query_value("token").map(Into::into));
        let tokens = Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        if token.is_some_and(|token| tokens.0.contains(&digest(&token))) {
            return Ok(());
        }
        let text = "a WebSocket here needs a token: Authorization: Bearer, or ?token=";
        Err(Reject::status(401).text(text).header("WWW-Authenticate", "Bearer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_token_in_each_line() {
        let tokens = TokenSet::parse("# Ada\n  a-token-of-sixteen \n\nanother-of-sixteen\n");
        let tokens = tokens.expect("they are tokens");
        assert!(tokens.0.contains(&digest("a-token-of-sixteen")));
        assert!(tokens.0.contains(&digest("another-of-sixteen")));
        assert_eq!(tokens.0.len(), 2);
    }

    #[test]
    fn a_file_without_good_tokens_is_an_error() {
        for (text, expected) in [
            ("", "it has no token"),
            ("# nothing\n", "it has no token"),
            ("a-token-of-sixteen\nshort\n", "line 2 is no token"),
            ("a token of sixteen\n", "line 1 is no token"),
        ] {
            let error = TokenSet::parse(text).expect_err("it is not good").to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
