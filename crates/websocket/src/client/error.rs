//! Why no connection was made.

use std::{fmt, io, net::SocketAddr, time::Duration};

use super::{proxy::ProxyError, url::UrlError};
use crate::ClientError;

/// A part of making a connection, with a limit of time of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The URL is read, and the TLS configuration made.
    Prepare,
    /// The host's name is resolved, or that of the proxy.
    Resolve,
    /// A TCP connection is opened.
    Connect,
    /// The proxy connects to the host.
    Proxy,
    /// The TLS handshake.
    Tls,
    /// The WebSocket's opening handshake.
    Handshake,
}

impl Phase {
    /// The limit of time by default.
    pub(super) const fn time_limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Prepare | Self::Resolve | Self::Connect | Self::Handshake => 10,
            Self::Proxy | Self::Tls => 10,
        })
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prepare => "preparing",
            Self::Resolve => "resolving the host",
            Self::Connect => "connecting",
            Self::Proxy => "connecting through the proxy",
            Self::Tls => "the TLS handshake",
            Self::Handshake => "the WebSocket handshake",
        })
    }
}

/// Why no connection was made. [`phase`](Self::phase) names the part that failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL of the server or the proxy.
    Url(UrlError),
    /// The URL is `wss`, or that of the proxy `https`, and the crate was built without the feature
    /// `rustls`.
    NoTls,
    /// The TLS configuration could not be made, for example because no root certificate of the
    /// system was found.
    TlsConfig(io::Error),
    /// The name was not resolved.
    Resolve(io::Error),
    /// The name has no address.
    NoAddress,
    /// No address could be reached. Each attempt has its error.
    Connect(Vec<(SocketAddr, io::Error)>),
    /// The proxy did not connect to the host.
    Proxy(ProxyError),
    /// The TLS handshake failed. The source of the error is that of rustls.
    Tls(io::Error),
    /// The WebSocket handshake failed.
    Handshake(ClientError),
    /// The server answered with another status than 101.
    Refused(Box<ServerResponse>),
    /// The limit of time of a phase is over.
    TimedOut(Phase),
}

impl ConnectError {
    /// The part that failed.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match self {
            Self::Url(_) | Self::NoTls | Self::TlsConfig(_) => Phase::Prepare,
            Self::Resolve(_) | Self::NoAddress => Phase::Resolve,
            Self::Connect(_) => Phase::Connect,
            Self::Proxy(_) => Phase::Proxy,
            Self::Tls(_) => Phase::Tls,
            Self::Handshake(_) | Self::Refused(_) => Phase::Handshake,
            Self::TimedOut(phase) => *phase,
        }
    }

    /// The response, if the server answered with another status than 101.
    #[must_use]
    pub fn response(&self) -> Option<&ServerResponse> {
        match self {
            Self::Refused(response) => Some(response),
            _ => None,
        }
    }

    /// Whether a later attempt cannot succeed either: the request itself or the configuration is
    /// wrong, or the server answered with 400 to 499, but for 408 and 429.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Url(_) | Self::NoTls | Self::TlsConfig(_) => true,
            Self::Handshake(ClientError::Request(_)) => true,
            Self::Refused(response) => {
                matches!(response.status, 400..=499) && !matches!(response.status, 408 | 429)
            }
            _ => false,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(error) => error.fmt(f),
            Self::NoTls => {
                f.write_str("wss: and a proxy with https: need TLS; enable the feature rustls-ring")
            }
            Self::TlsConfig(error) => write!(f, "TLS cannot be configured: {error}"),
            Self::NoAddress => f.write_str("the host has no address"),
            Self::Connect(attempts) => {
                f.write_str("no address could be reached")?;
                for (index, (address, error)) in attempts.iter().enumerate() {
                    write!(f, "{} {address}: {error}", if index == 0 { ":" } else { ";" })?;
                }
                Ok(())
            }
            Self::Resolve(error) => write!(f, "{} failed: {error}", self.phase()),
            Self::Proxy(error) => write!(f, "{} failed: {error}", self.phase()),
            Self::Tls(error) => write!(f, "{} failed: {error}", self.phase()),
            Self::Handshake(error) => write!(f, "{} failed: {error}", self.phase()),
            Self::Refused(response) => {
                write!(f, "the server answered with status {} instead of 101", response.status)
            }
            Self::TimedOut(phase) => {
                write!(f, "{phase} took too long; Client::time_limit sets the limit")
            }
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Url(error) => Some(error),
            Self::TlsConfig(error) | Self::Resolve(error) | Self::Tls(error) => Some(error),
            Self::Connect(attempts) => attempts.first().map(|(_, error)| error as _),
            Self::Proxy(error) => Some(error),
            Self::Handshake(error) => Some(error),
            Self::NoTls | Self::NoAddress | Self::Refused(_) | Self::TimedOut(_) => None,
        }
    }
}

/// A server's response to the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerResponse {
    /// The status.
    pub status: u16,
    /// The names and values of all headers, in their order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The start of the body, at most 4 KiB, without its transfer coding. It is empty after a 101.
    pub body: Vec<u8>,
}

impl ServerResponse {
    /// The value of the first header with this name, ignoring case. `None` also if the value is not
    /// UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(other, _)| other.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(value).ok()
    }
}
