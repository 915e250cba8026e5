//! `--header`: further headers of requests.

use std::str::FromStr;

/// Headers of requests that the program itself writes, or that would change their meaning.
const OWN: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A header of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl RequestHeader {
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

impl FromStr for RequestHeader {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').ok_or("a header is `NAME: VALUE`")?;
        let value = value.trim();
        // A token, and visible text (RFC 9110 sections 5.1 and 5.5).
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(format!("`{name}` is no name of a header"));
        }
        if !value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) {
            return Err("the value of a header is visible ASCII".to_owned());
        }
        let lower = name.to_ascii_lowercase();
        if OWN.contains(&lower.as_str()) || lower.starts_with("sec-websocket-") {
            return Err(format!("{name} is not to be set: this program writes it"));
        }
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_a_name_and_a_value() {
        let header = |name: &str, value: &str| {
            Ok(RequestHeader { name: name.to_owned(), value: value.to_owned() })
        };
        assert_eq!("Cookie:  a=b: c ".parse(), header("Cookie", "a=b: c"));
        assert_eq!("X-Empty:".parse(), header("X-Empty", ""));
        for nonsense in [
            "Cookie",
            ": a",
            "a b: c",
            "X: a\r\nHost: b",
            "Host: a",
            "Upgrade: h2c",
            "sec-websocket-KEY: x",
            "Content-Length: 1",
        ] {
            assert!(nonsense.parse::<RequestHeader>().is_err(), "{nonsense}");
        }
    }
}
