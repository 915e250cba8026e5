//! The parts of a request and of its answer, for hosts that use another HTTP implementation.

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

/// The value of a client's `Sec-WebSocket-Extensions` header, which offers permessage-deflate.
///
/// ```
/// use windlass_ws::{deflate::DeflateConfig, handshake::{check_extensions, offer_extensions}};
///
/// let config = DeflateConfig::DEFAULT;
/// let offer = "permessage-deflate; client_no_context_takeover; client_max_window_bits";
/// assert_eq!(offer_extensions(&config), offer);
/// let answer = b"permessage-deflate; client_max_window_bits=12";
/// assert_eq!(check_extensions(answer, &config).unwrap().client_max_window_bits, 12);
/// assert!(check_extensions(b"x-other", &config).is_none());
/// ```
#[cfg(feature = "deflate")]
#[must_use]
pub fn offer_extensions(config: &crate::deflate::DeflateConfig) -> alloc::string::String {
    let mut out = alloc::vec::Vec::new();
    super::negotiate::write_offer(config, &mut out);
    out.into_iter().map(char::from).collect()
}

/// Checks the value of a response's `Sec-WebSocket-Extensions` header, after a request with
/// [`offer_extensions`]. `None` means that the server chose something that was not offered, and the
/// connection must fail. A response without the header has no agreement; one without an offer must
/// have no such header (RFC 6455 section 4.1).
#[cfg(feature = "deflate")]
#[must_use]
pub fn check_extensions(
    value: &[u8],
    config: &crate::deflate::DeflateConfig,
) -> Option<crate::deflate::Agreement> {
    use super::negotiate;
    let mut extensions = super::extensions::Extensions::new(value);
    match (extensions.next(), extensions.next()) {
        (Some(Ok(extension)), None) if extension.name == negotiate::NAME => {
            negotiate::Parameters::read(extension)
                .and_then(|answer| negotiate::check(config, &answer))
        }
        _ => None,
    }
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
