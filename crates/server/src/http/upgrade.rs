//! The application's view of an upgrade, and its acceptance.

use core::{cell::OnceCell, fmt};
use std::borrow::Cow;

use windlass::stream::Address;
use windlass_ws::{
    deflate::{Agreement, DeflateConfig},
    handshake::{AcceptError, AcceptOptions, Headers, Protocols, Upgrade},
};

use super::{header::CustomHeaders, tls::TlsInfo};

/// A well-formed upgrade request to a path that accepts upgrades, with an allowed host and origin.
///
/// ```
/// use windlass::stream::Address;
/// use windlass_server::http::UpgradeRequest;
/// use windlass_ws::handshake::{HeadLimits, Request};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let head = b"GET /chat?room=lobby HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\n\
///     Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
///     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: chess, go\r\n\r\n";
/// let (request, _) = Request::parse(head, &HeadLimits::DEFAULT)?.expect("a whole head");
/// let upgrade = request.upgrade()?;
/// let peer = Address::Unix(None);
/// let request = UpgradeRequest::new(&upgrade, &peer);
/// assert_eq!((request.path(), request.query()), ("/chat", Some("room=lobby")));
/// assert_eq!(request.query_value("room").as_deref(), Some("lobby"));
/// assert_eq!(request.choose(&["go", "draughts"]), Some("go"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct UpgradeRequest<'a> {
    upgrade: &'a Upgrade<'a>,
    peer: PeerSource<'a>,
}

#[derive(Clone, Copy, Debug)]
enum PeerSource<'a> {
    Known(&'a Address, Option<&'a TlsInfo>),
    Lazy(&'a LazyPeer<'a>),
}

/// The address of a peer and its TLS, which are looked up only when they are used. That is rare.
pub(crate) struct LazyPeer<'a> {
    lookup: &'a dyn Fn() -> Address,
    lookup_tls: &'a dyn Fn() -> Option<TlsInfo>,
    address: OnceCell<Address>,
    tls: OnceCell<Option<TlsInfo>>,
}

impl<'a> LazyPeer<'a> {
    pub(crate) const fn new(
        lookup: &'a dyn Fn() -> Address,
        lookup_tls: &'a dyn Fn() -> Option<TlsInfo>,
    ) -> Self {
        Self { lookup, lookup_tls, address: OnceCell::new(), tls: OnceCell::new() }
    }
}

impl fmt::Debug for LazyPeer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl<'a> UpgradeRequest<'a> {
    /// Creates the view of an upgrade that came from `peer`.
    #[must_use]
    pub const fn new(upgrade: &'a Upgrade<'a>, peer: &'a Address) -> Self {
        Self { upgrade, peer: PeerSource::Known(peer, None) }
    }

    /// Sets the TLS of its connection, for a host that terminates TLS itself.
    #[must_use]
    pub fn with_tls(mut self, tls: &'a TlsInfo) -> Self {
        self.peer = PeerSource::Known(self.peer(), Some(tls));
        self
    }

    pub(crate) const fn lazy(upgrade: &'a Upgrade<'a>, peer: &'a LazyPeer<'a>) -> Self {
        Self { upgrade, peer: PeerSource::Lazy(peer) }
    }

    /// Returns the path, not decoded. It starts with a slash.
    #[must_use]
    pub const fn path(&self) -> &'a str {
        self.upgrade.request().path()
    }

    /// Returns the part of the target after the first question mark.
    #[must_use]
    pub const fn query(&self) -> Option<&'a str> {
        self.upgrade.request().query()
    }

    /// Returns the value of the first parameter with this name in the [query](Self::query),
    /// decoded as `application/x-www-form-urlencoded`: `+` is a space, and bytes that are not UTF-8
    /// become U+FFFD. A parameter without `=` has an empty value.
    #[must_use]
    pub fn query_value(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut pairs = form_urlencoded::parse(self.query()?.as_bytes());
        pairs.find_map(|(found, value)| (found == name).then_some(value))
    }

    /// Returns the host and port that the client asked for.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        self.upgrade.request().host()
    }

    /// Returns the origin of the page that opens the connection; `None` if the client is no
    /// browser.
    #[must_use]
    pub fn origin(&self) -> Option<&'a str> {
        self.upgrade.origin()
    }

    /// Returns the value of the first header with this name, case-insensitively. Also returns
    /// `None` if the value is not UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.upgrade.request().header(name)
    }

    /// Returns all headers, in order.
    #[must_use]
    pub const fn headers(&self) -> Headers<'a> {
        self.upgrade.request().headers()
    }

    /// Returns the subprotocols that the client offers, in its order of preference, without
    /// duplicates.
    #[must_use]
    pub const fn protocols(&self) -> Protocols<'a> {
        self.upgrade.protocols()
    }

    /// Returns the first of the client's subprotocols that is in this list, for
    /// [`Accept::protocol`].
    #[must_use]
    pub fn choose<'p>(&self, supported: &[&'p str]) -> Option<&'p str> {
        self.protocols()
            .find_map(|offered| supported.iter().copied().find(|supported| *supported == offered))
    }

    /// Returns the peer's address. Behind a [listed](crate::Options::proxies) proxy it is that of
    /// the client, behind another one that of the proxy.
    #[must_use]
    pub fn peer(&self) -> &'a Address {
        match self.peer {
            PeerSource::Known(address, _) => address,
            PeerSource::Lazy(LazyPeer { lookup, address, .. }) => address.get_or_init(lookup),
        }
    }

    /// Returns what the TLS handshake has negotiated; `None` without TLS. Behind a proxy that
    /// terminates TLS it is that of the proxy's own connection.
    #[must_use]
    pub fn tls(&self) -> Option<&'a TlsInfo> {
        match self.peer {
            PeerSource::Known(_, tls) => tls,
            PeerSource::Lazy(LazyPeer { lookup_tls, tls, .. }) => {
                tls.get_or_init(lookup_tls).as_ref()
            }
        }
    }
}

/// Accepts an upgrade: contains the data of the new connection, and additions to the handshake
/// response.
///
/// ```
/// use windlass_server::http::Accept;
///
/// struct Player { name: String }
/// let ada = Player { name: "Ada".into() };
/// let accept = Accept::new(ada).protocol("chess").header("Set-Cookie", "seen=1");
/// ```
#[derive(Debug)]
#[must_use]
pub struct Accept<D> {
    data: D,
    protocol: Option<Cow<'static, str>>,
    headers: CustomHeaders,
}

/// An [`Accept`] whose response was written.
///
/// ```
/// use windlass_server::http::Accept;
/// use windlass_ws::handshake::{HeadLimits, Request};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let head = b"GET /chat?room=lobby HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\n\
///     Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
///     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: chess, go\r\n\r\n";
/// let (request, _) = Request::parse(head, &HeadLimits::DEFAULT)?.expect("a whole head");
/// let upgrade = request.upgrade()?;
/// let mut response = Vec::new();
/// let opened = Accept::new("lobby").protocol("chess").accept(&upgrade, None, &mut response)?;
/// assert_eq!((opened.data, opened.protocol.as_deref()), ("lobby", Some("chess")));
/// assert!(opened.deflate.is_none() && response.starts_with(b"HTTP/1.1 101 "));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened<D> {
    /// The connection's data.
    pub data: D,
    /// The subprotocol named in the response.
    pub protocol: Option<Cow<'static, str>>,
    /// The permessage-deflate agreement, if both sides want compression.
    pub deflate: Option<Agreement>,
}

impl<D> Accept<D> {
    /// Accepts the upgrade without a subprotocol and without further headers.
    pub fn new(data: D) -> Self {
        Self { data, protocol: None, headers: CustomHeaders::default() }
    }

    /// Sets the subprotocol, which must be one that the client offers: see
    /// [`UpgradeRequest::choose`].
    pub fn protocol(mut self, protocol: impl Into<Cow<'static, str>>) -> Self {
        self.protocol = Some(protocol.into());
        self
    }

    /// Adds a header. An invalid one is detected when the response is [written](Self::accept).
    pub fn header(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.headers.push(name.into(), value.into());
        self
    }

    /// Appends the handshake response.
    ///
    /// # Errors
    /// An error is a mistake of the application. Nothing was appended, and the data is dropped.
    ///
    /// - [`AcceptError::ProtocolNotOffered`] if the client did not offer the subprotocol.
    /// - [`AcceptError::HeaderName`] if the name of a header is not a token.
    /// - [`AcceptError::HeaderValue`] if the value of a header has a control character.
    /// - [`AcceptError::ReservedHeader`] if the server writes that header itself.
    pub fn accept(
        self,
        upgrade: &Upgrade<'_>,
        deflate: Option<&DeflateConfig>,
        out: &mut Vec<u8>,
    ) -> Result<Opened<D>, AcceptError> {
        self.headers.check(&[])?;
        let headers = self.headers.pairs();
        let accept = AcceptOptions::DEFAULT
            .protocol(self.protocol.as_deref())
            .deflate(deflate)
            .headers(&headers);
        let accepted = upgrade.accept(&accept, out)?;
        Ok(Opened { data: self.data, protocol: self.protocol, deflate: accepted.deflate })
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use windlass_ws::handshake::{HeadLimits, Request};

    use super::*;

    const HEAD: &[u8] =
        b"GET /chat/7?a=b HTTP/1.1\r\nHost: example.com:81\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        Sec-WebSocket-Version: 13\r\nOrigin: http://example.com:81\r\n\
        Sec-WebSocket-Protocol: chat.v3, chat.v2\r\n\
        Sec-WebSocket-Protocol: chat.v1\r\nCookie: c=1\r\n\
        Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n";

    fn upgrade() -> Upgrade<'static> {
        let (request, _) = Request::parse(HEAD, &HeadLimits::DEFAULT).unwrap().unwrap();
        request.upgrade().unwrap()
    }

    #[test]
    fn the_whole_request_is_visible() {
        let peer = Address::Ip("1.2.3.4:5".parse().unwrap());
        let upgrade = upgrade();
        let request = UpgradeRequest::new(&upgrade, &peer);
        assert_eq!((request.path(), request.query()), ("/chat/7", Some("a=b")));
        assert_eq!(
            (request.host(), request.origin()),
            (Some("example.com:81"), Some("http://example.com:81"))
        );
        assert_eq!((request.header("cookie"), request.header("X")), (Some("c=1"), None));
        assert_eq!(request.headers().count(), 10);
        assert_eq!(request.protocols().collect::<Vec<_>>(), ["chat.v3", "chat.v2", "chat.v1"]);
        assert_eq!(*request.peer(), peer);
    }

    #[test]
    fn parameters_of_the_query_are_decoded() {
        let head = b"GET /?a=1&b=%C3%A9+x&a=2&c&=d&bad=%FF&%62c=e%2 HTTP/1.1\r\nHost: x\r\n\
            Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        let (request, _) = Request::parse(head, &HeadLimits::DEFAULT).unwrap().unwrap();
        let (upgrade, peer) = (request.upgrade().unwrap(), Address::Unix(None));
        let request = UpgradeRequest::new(&upgrade, &peer);
        for (name, value) in [
            ("a", Some("1")),
            ("b", Some("é x")),
            ("c", Some("")),
            ("", Some("d")),
            ("bad", Some("\u{fffd}")),
            ("bc", Some("e%2")),
            ("A", None),
        ] {
            assert_eq!(request.query_value(name).as_deref(), value, "{name:?}");
        }
    }

    #[test]
    fn the_clients_first_supported_protocol_is_chosen() {
        let upgrade = upgrade();
        let peer = Address::Unix(None);
        let choose =
            |supported: &[&'static str]| UpgradeRequest::new(&upgrade, &peer).choose(supported);
        assert_eq!(choose(&["chat.v1", "chat.v2"]), Some("chat.v2"));
        assert_eq!(choose(&["chat.v1"]), Some("chat.v1"));
        assert_eq!(choose(&["chat.v9", "CHAT.V1"]), None);
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn accept_returns_the_negotiated_parameters() {
        let welcome =
            Accept::new(7).protocol("chat.v2").header("Set-Cookie", "a=b").header("X-A", "c");
        let mut out = b"kept".to_vec();
        let opened = welcome.accept(&upgrade(), Some(&DeflateConfig::DEFAULT), &mut out).unwrap();
        assert_eq!(
            (opened.data, opened.protocol.as_deref(), opened.deflate.is_some()),
            (7, Some("chat.v2"), true)
        );
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("keptHTTP/1.1 101 Switching Protocols\r\n"), "{text}");
        for line in [
            "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
            "Sec-WebSocket-Protocol: chat.v2",
            "Set-Cookie: a=b",
            "X-A: c",
        ] {
            assert!(text.contains(&format!("\r\n{line}\r\n")), "{text}");
        }
        assert!(
            text.contains("\r\nSec-WebSocket-Extensions: permessage-deflate")
                && text.ends_with("\r\n\r\n"),
            "{text}"
        );
    }

    #[test]
    fn a_plain_accept_negotiates_nothing() {
        let mut out = Vec::new();
        let opened = Accept::new(()).accept(&upgrade(), None, &mut out).unwrap();
        assert!(opened.protocol.is_none() && opened.deflate.is_none());
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains("Protocol:") && !text.contains("Extensions"), "{text}");
    }

    #[test]
    fn an_invalid_accept_appends_nothing_and_drops_the_data() {
        let data = Rc::new(());
        for (welcome, error) in [
            (Accept::new(Rc::clone(&data)).protocol("chat.v9"), AcceptError::ProtocolNotOffered),
            (Accept::new(Rc::clone(&data)).protocol(""), AcceptError::ProtocolNotOffered),
            (Accept::new(Rc::clone(&data)).header("X", "a\r\nb"), AcceptError::HeaderValue),
            (Accept::new(Rc::clone(&data)).header("X Y", "a"), AcceptError::HeaderName),
            (
                Accept::new(Rc::clone(&data)).header("Sec-WebSocket-Protocol", "a"),
                AcceptError::ReservedHeader,
            ),
            (Accept::new(Rc::clone(&data)).header("Keep-Alive", "a"), AcceptError::ReservedHeader),
        ] {
            let mut out = Vec::new();
            assert_eq!(welcome.accept(&upgrade(), None, &mut out).unwrap_err(), error);
            assert!(out.is_empty());
        }
        assert_eq!(Rc::strong_count(&data), 1);
    }
}
