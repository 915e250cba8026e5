//! The headers of a head of HTTP/1.1.

use http::{HeaderMap, HeaderName, HeaderValue};
use httparse::{Header, Status};

use super::machine::TryParse;
use crate::error::Result;

/// The most headers in a head.
pub const MAX_HEADERS: usize = 124;

/// An array of so many.
pub(super) const EMPTY: [Header<'static>; MAX_HEADERS] = [httparse::EMPTY_HEADER; MAX_HEADERS];

pub(super) fn to_map(headers: &[Header<'_>]) -> Result<HeaderMap> {
    let mut map = HeaderMap::with_capacity(headers.len());
    for header in headers {
        let name = HeaderName::from_bytes(header.name.as_bytes())?;
        map.append(name, HeaderValue::from_bytes(header.value)?);
    }
    Ok(map)
}

/// Whether one of the values of a header lists this token. Its case does not matter.
pub(super) fn lists_token(headers: &HeaderMap, name: &str, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split([',', ' ', '\t'])).any(|it| it.eq_ignore_ascii_case(token))
}

/// Whether a header is this word. Its case does not matter.
pub(super) fn is_word(headers: &HeaderMap, name: &str, word: &str) -> bool {
    headers.get(name).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(word.as_bytes()))
}

impl TryParse for HeaderMap {
    fn try_parse(data: &[u8]) -> Result<Option<(usize, Self)>> {
        let mut headers = EMPTY;
        match httparse::parse_headers(data, &mut headers)? {
            Status::Complete((len, headers)) => Ok(Some((len, to_map(headers)?))),
            Status::Partial => Ok(None),
        }
    }
}
