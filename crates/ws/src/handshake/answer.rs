//! The parts of an answer, for hosts that use another HTTP implementation.

use super::key;

/// The value of `Sec-WebSocket-Accept` for a request's `Sec-WebSocket-Key` (RFC 6455 section
/// 4.2.2). Use it in a host that answers requests without [`Upgrade`](super::Upgrade), for example
/// a hyper server. `None` if the key is not the base64 of 16 bytes: answer the request with 400
/// then.
///
/// The host must check the rest of section 4.2.1: a GET of HTTP/1.1 with `Upgrade: websocket`,
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

/// Answers the permessage-deflate offers of a request. Pass the values of its
/// `Sec-WebSocket-Extensions` headers, one item per header. Returns the value of the response's
/// header, and the agreement. `None` means that the response has no such header and nothing is
/// compressed. Malformed values count as no offer.
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

/// Appends the answer to the first acceptable offer. Offers come in the client's order of
/// preference (RFC 7692 section 5.1).
#[cfg(feature = "deflate")]
pub(super) fn answer_offers<'a>(
    values: impl IntoIterator<Item = &'a [u8]>,
    config: &crate::deflate::DeflateConfig,
    out: &mut alloc::vec::Vec<u8>,
) -> Option<crate::deflate::Agreement> {
    use super::negotiate;
    values
        .into_iter()
        .flat_map(super::extensions::Extensions::new)
        .flatten()
        .filter(|extension| extension.name == negotiate::NAME)
        .filter_map(negotiate::Parameters::read)
        .find_map(|offer| negotiate::answer(config, &offer, out))
}
