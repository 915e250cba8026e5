//! The target of the load and its protocol: the URL of the command line.

use std::{
    fmt, io,
    net::{SocketAddr, ToSocketAddrs as _},
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::Context as _;
use windlass_ws::handshake::ClientRequest;

/// The port of a `ws:` or `http:` URL without a port (RFC 6455 section 3, RFC 9110 section 4.2.1).
const PORT_DEFAULT: u16 = 80;

/// The port of a `wss:` or `https:` URL without a port (RFC 6455 section 3, RFC 9110 section
/// 4.2.2).
const SECURE_PORT_DEFAULT: u16 = 443;

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The original text, for the report.
    url: String,
    endpoint: Endpoint,
    pub(crate) protocol: Protocol,
    /// The protocol is inside of TLS.
    is_secure: bool,
}

/// The protocol that the URL's scheme names, without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// A raw byte stream: `tcp:`, `tls:` and `unix:`.
    Bytes,
    /// `ws:`, `wss:` and `ws+unix:`.
    WebSocket(Resource),
    /// `http:` and `https:`.
    Http(Resource),
}

/// The resource of an HTTP request, such as that of a WebSocket handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// The Host header.
    pub(crate) host: String,
    /// Path and query.
    pub(crate) path: String,
}

/// The endpoint where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Endpoint {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// An address to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Target {
    /// Returns whether the protocol is WebSocket.
    pub(crate) const fn is_websocket(&self) -> bool {
        matches!(self.protocol, Protocol::WebSocket(_))
    }

    /// Returns whether the protocol is HTTP without WebSocket.
    pub(crate) const fn is_http(&self) -> bool {
        matches!(self.protocol, Protocol::Http(_))
    }

    /// Returns the host that the server's certificate must be valid for, if the URL asks for TLS.
    pub(crate) fn tls_host(&self) -> Option<&str> {
        match &self.endpoint {
            Endpoint::Tcp { host, .. } if self.is_secure => Some(host),
            _ => None,
        }
    }

    /// Returns the addresses of the endpoint; a name may have several. Never empty.
    ///
    /// # Errors
    ///
    /// If the name cannot be resolved.
    pub(crate) fn resolve(&self) -> anyhow::Result<Vec<Address>> {
        match &self.endpoint {
            Endpoint::Unix(path) => Ok(vec![Address::Unix(path.clone())]),
            Endpoint::Tcp { host, port } => {
                let resolved = (host.as_str(), *port).to_socket_addrs().and_then(|found| {
                    let found: Vec<Address> = found.map(Address::Tcp).collect();
                    if found.is_empty() {
                        Err(io::Error::other("it has no address"))
                    } else {
                        Ok(found)
                    }
                });
                resolved.with_context(|| format!("cannot find `{host}`"))
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why a URL is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UrlError {
    Scheme,
    UserInfo,
    Host,
    Port,
    NoPort,
    Path,
    TcpPath,
    UnixPath,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheme => {
                "the URL must begin with ws://, wss://, http://, https://, tcp://, tls://, \
                 ws+unix: or unix:"
            }
            Self::UserInfo => "a user name in the URL is not supported",
            Self::Host => "the host is malformed",
            Self::Port => "the port must be a number from 1 to 65535",
            Self::NoPort => "a port is missing: tcp://HOST:PORT or tls://HOST:PORT",
            Self::Path => "the path is malformed",
            Self::TcpPath => "a URL with tcp:// or tls:// has no path: tcp://HOST:PORT",
            Self::UnixPath => "the path of the socket is missing",
        })
    }
}

impl std::error::Error for UrlError {}

impl FromStr for Target {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        let (endpoint, protocol) = parse(url)?;
        let is_secure = ["wss:", "https:", "tls:"].iter().any(|scheme| url.starts_with(scheme));
        Ok(Self { url: url.to_owned(), endpoint, protocol, is_secure })
    }
}

fn parse(url: &str) -> Result<(Endpoint, Protocol), UrlError> {
    if let Some(rest) = url.strip_prefix("ws://") {
        return with_resource(rest, PORT_DEFAULT, Protocol::WebSocket);
    }
    if let Some(rest) = url.strip_prefix("wss://") {
        return with_resource(rest, SECURE_PORT_DEFAULT, Protocol::WebSocket);
    }
    if let Some(rest) = url.strip_prefix("http://") {
        return with_resource(rest, PORT_DEFAULT, Protocol::Http);
    }
    if let Some(rest) = url.strip_prefix("https://") {
        return with_resource(rest, SECURE_PORT_DEFAULT, Protocol::Http);
    }
    if let Some(rest) = url.strip_prefix("tcp://").or_else(|| url.strip_prefix("tls://")) {
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(UrlError::TcpPath);
        }
        let (host, port) = split_authority(authority)?;
        return Ok((Endpoint::Tcp { host, port: port.ok_or(UrlError::NoPort)? }, Protocol::Bytes));
    }
    if let Some(rest) = url.strip_prefix("ws+unix:") {
        let (socket, path) = rest.rsplit_once(':').unwrap_or((rest, "/"));
        return Ok((unix(socket)?, Protocol::WebSocket(resource("localhost", path)?)));
    }
    if let Some(rest) = url.strip_prefix("unix:") {
        return Ok((unix(rest)?, Protocol::Bytes));
    }
    Err(UrlError::Scheme)
}

/// Takes a URL of HTTP's form apart, behind its scheme: `HOST[:PORT][/PATH][?QUERY]`.
fn with_resource(
    rest: &str,
    port_default: u16,
    protocol: fn(Resource) -> Protocol,
) -> Result<(Endpoint, Protocol), UrlError> {
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (host, port) = split_authority(authority)?;
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let resource = resource(authority, &path)?;
    Ok((Endpoint::Tcp { host, port: port.unwrap_or(port_default) }, protocol(resource)))
}

/// Checks host and path by the handshake's own rules, before any connection.
fn resource(host: &str, path: &str) -> Result<Resource, UrlError> {
    match ClientRequest::new(host, path, [0; 16]).write(&mut Vec::new()) {
        Ok(()) => Ok(Resource { host: host.to_owned(), path: path.to_owned() }),
        Err(windlass_ws::handshake::RequestError::Host) => Err(UrlError::Host),
        Err(_) => Err(UrlError::Path),
    }
}

fn unix(path: &str) -> Result<Endpoint, UrlError> {
    if path.is_empty() {
        Err(UrlError::UnixPath)
    } else {
        Ok(Endpoint::Unix(Path::new(path).to_owned()))
    }
}

/// Splits an authority into the host, without the brackets of an IPv6 address, and the port.
fn split_authority(authority: &str) -> Result<(String, Option<u16>), UrlError> {
    if authority.contains('@') {
        return Err(UrlError::UserInfo);
    }
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or(UrlError::Host)?;
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err(UrlError::Host),
        }
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    if host.is_empty() {
        return Err(UrlError::Host);
    }
    let port = match port {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().ok().filter(|&port| port > 0).ok_or(UrlError::Port)?)
        }
        Some(_) => return Err(UrlError::Port),
        None => None,
    };
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.to_owned(), port }
    }

    fn asks(host: &str, path: &str) -> Protocol {
        Protocol::WebSocket(Resource { host: host.to_owned(), path: path.to_owned() })
    }

    fn gets(host: &str, path: &str) -> Protocol {
        Protocol::Http(Resource { host: host.to_owned(), path: path.to_owned() })
    }

    #[test]
    fn urls_are_taken_apart() {
        for (url, endpoint, protocol) in [
            ("ws://127.0.0.1:9001/echo", tcp("127.0.0.1", 9001), asks("127.0.0.1:9001", "/echo")),
            ("ws://localhost", tcp("localhost", 80), asks("localhost", "/")),
            ("ws://localhost?room=1", tcp("localhost", 80), asks("localhost", "/?room=1")),
            ("ws://[::1]:9001/a?b", tcp("::1", 9001), asks("[::1]:9001", "/a?b")),
            ("ws://[::1]", tcp("::1", 80), asks("[::1]", "/")),
            ("wss://localhost", tcp("localhost", 443), asks("localhost", "/")),
            ("wss://[::1]:9001/a?b", tcp("::1", 9001), asks("[::1]:9001", "/a?b")),
            ("http://[::1]?a", tcp("::1", 80), gets("[::1]", "/?a")),
            ("tcp://[::1]:7", tcp("::1", 7), Protocol::Bytes),
            ("tcp://host:65535/", tcp("host", 65535), Protocol::Bytes),
            ("tls://host:7", tcp("host", 7), Protocol::Bytes),
            ("https://[::1]/a", tcp("::1", 443), gets("[::1]", "/a")),
            ("unix:/run/a:b", Endpoint::Unix("/run/a:b".into()), Protocol::Bytes),
            ("ws+unix:/run/a", Endpoint::Unix("/run/a".into()), asks("localhost", "/")),
            ("ws+unix:a:b:/echo?c", Endpoint::Unix("a:b".into()), asks("localhost", "/echo?c")),
        ] {
            let is_secure = ["wss", "tls", "https"].iter().any(|begin| url.starts_with(begin));
            let target: Target = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
            let expected = Target { url: url.to_owned(), endpoint, protocol, is_secure };
            assert_eq!(target, expected, "{url}");
            assert_eq!(target.to_string(), url);
        }
    }

    #[test]
    fn a_certificate_is_for_the_host_without_brackets_and_port() {
        for (url, host) in [
            ("wss://example.org:9001/echo", Some("example.org")),
            ("wss://[::1]:9001/", Some("::1")),
            ("wss://127.0.0.1", Some("127.0.0.1")),
            ("tls://example.org:7", Some("example.org")),
            ("ws://example.org/", None),
            ("ws+unix:/run/wss", None),
            ("tcp://wss:1", None),
        ] {
            let target: Target = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(target.tls_host(), host, "{url}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said() {
        for (url, error) in [
            ("localhost:9001", UrlError::Scheme),
            ("", UrlError::Scheme),
            ("wss:localhost", UrlError::Scheme),
            ("wss://", UrlError::Host),
            ("wss://me:secret@localhost", UrlError::UserInfo),
            ("https:localhost", UrlError::Scheme),
            ("http:localhost", UrlError::Scheme),
            ("http://", UrlError::Host),
            ("http://localhost/two words", UrlError::Path),
            ("ws://me:secret@localhost", UrlError::UserInfo),
            ("ws://", UrlError::Host),
            ("ws://:80", UrlError::Host),
            ("ws://[::1", UrlError::Host),
            ("ws://[::1]9", UrlError::Host),
            ("ws://::1", UrlError::Host),
            ("ws://two words", UrlError::Host),
            ("ws://localhost:", UrlError::Port),
            ("ws://localhost:0", UrlError::Port),
            ("ws://localhost:65536", UrlError::Port),
            ("ws://localhost:+80", UrlError::Port),
            ("ws://localhost/two words", UrlError::Path),
            ("ws://localhost/#top", UrlError::Path),
            ("ws+unix:/run/a:echo", UrlError::Path),
            ("tcp://localhost", UrlError::NoPort),
            ("tcp://localhost:1/path", UrlError::TcpPath),
            ("unix:", UrlError::UnixPath),
            ("ws+unix::/", UrlError::UnixPath),
        ] {
            assert_eq!(url.parse::<Target>(), Err(error), "{url}");
        }
    }

    #[test]
    fn addresses_need_no_resolver() {
        let target: Target = "ws://[::1]:9001/".parse().expect("a URL");
        assert_eq!(
            target.resolve().expect("it is one"),
            [Address::Tcp("[::1]:9001".parse().expect("an address"))]
        );
        let target: Target = "unix:/run/a".parse().expect("a URL");
        assert_eq!(target.resolve().expect("a path"), [Address::Unix("/run/a".into())]);
    }
}
