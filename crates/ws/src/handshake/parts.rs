//! The parts of an answer, for hosts that read requests and write responses by other means.

use super::key;

/// The value of `Sec-WebSocket-Accept` for a request's `Sec-WebSocket-Key` (RFC 6455 section
/// 4.2.2), for a host that answers requests by other means than [`Upgrade`](super::Upgrade): a
/// hyper server, say. `None` when it is not the base64 of 16 bytes: then the request is to be
/// answered with 400.
///
/// The host has to see to the rest of section 4.2.1: a GET of HTTP/1.1 with `Upgrade: websocket`,
/// `Connection: Upgrade` and `Sec-WebSocket-Version: 13`.
///
/// ```
/// let accept = windlass_ws::handshake::accept_value(b"dGhlIHNhbXBsZSBub25jZQ==");
/// assert_eq!(accept.as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
/// assert_eq!(windlass_ws::handshake::accept_value(b"no key"), None);
/// ```
#[must_use]
pub fn accept_value(key: &[u8]) -> Option<alloc::string::String> {
    let accept = key::checked(key).map(key::accept)?;
    Some(accept.iter().copied().map(char::from).collect())
}

/// Answers the offers of permessage-deflate in the values of a request's
/// `Sec-WebSocket-Extensions`, each the value of one header: the value of the response's, and what
/// was agreed on. `None`: the response has no such header, and nothing is compressed. Malformed
/// values offer nothing.
///
/// ```
/// use windlass_ws::{deflate::DeflateConfig, handshake::answer_extensions};
///
/// let offers = [&b"permessage-deflate; client_max_window_bits"[..]];
/// let (value, agreement) = answer_extensions(offers, &DeflateConfig::DEFAULT).unwrap();
/// assert_eq!(value, "permessage-deflate; server_no_context_takeover");
/// assert!(agreement.server_no_context_takeover);
/// assert!(answer_extensions([&b"x-other"[..]], &DeflateConfig::DEFAULT).is_none());
/// ```
#[cfg(feature = "deflate")]
#[must_use]
pub fn answer_extensions<'a>(
    values: impl IntoIterator<Item = &'a [u8]>,
    config: &crate::deflate::DeflateConfig,
) -> Option<(alloc::string::String, crate::deflate::Agreement)> {
    let mut out = alloc::vec::Vec::new();
    let agreement = answer_offers(values, config, &mut out)?;
    Some((out.into_iter().map(char::from).collect(), agreement))
}

/// Appends the answer to the first offer that can be met (RFC 7692 section 5.1): the client likes
/// the first one best.
#[cfg(feature = "deflate")]
pub(super) fn answer_offers<'a>(
    values: impl IntoIterator<Item = &'a [u8]>,
    config: &crate::deflate::DeflateConfig,
    out: &mut alloc::vec::Vec<u8>,
) -> Option<crate::deflate::Agreement> {
    use crate::deflate::negotiate;
    values
        .into_iter()
        .flat_map(super::extensions::Extensions::new)
        .flatten()
        .filter(|extension| extension.name == negotiate::NAME)
        .filter_map(negotiate::Parameters::read)
        .find_map(|offer| negotiate::answer(config, &offer, out))
}
