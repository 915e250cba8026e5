//! Requests to the admin listener.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs as _},
    os::{fd::AsFd, unix::net::UnixStream},
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tokio_rustls::rustls::{ClientConnection, StreamOwned};
use windlass_server::printable;
use windlass_tls::TlsConnector;

/// Maximum time of a request, after the lookup of a name.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum length of a response in bytes. The names of rooms may be long.
const RESPONSE_MAX: u64 = 8 << 20;

/// The address of an admin listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AdminUrl {
    /// Host and port.
    Tcp(String),
    /// The same with TLS.
    Tls(String),
    /// The path of a Unix socket.
    Unix(String),
}

impl FromStr for AdminUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.to_owned()));
        }
        let (of, rest): (fn(String) -> Self, _) = match text.strip_prefix("https://") {
            Some(rest) => (Self::Tls, rest),
            None => (Self::Tcp, text.strip_prefix("http://").unwrap_or(text)),
        };
        let place = rest.strip_suffix('/').unwrap_or(rest);
        let port = place.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        if place.contains('/') || port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            return Err("it is neither http://HOST:PORT, https://HOST:PORT nor unix:PATH");
        }
        Ok(of(place.to_owned()))
    }
}

impl fmt::Display for AdminUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(place) => write!(f, "http://{place}"),
            Self::Tls(place) => write!(f, "https://{place}"),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// What asks an admin listener.
#[derive(Debug)]
pub(crate) struct AdminClient {
    pub(crate) url: AdminUrl,
    pub(crate) token: Option<String>,
    /// For a listener with TLS.
    pub(crate) tls: Option<TlsConnector>,
}

impl AdminClient {
    /// Returns the body of the response to a GET.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<String> {
        self.request("GET", path)
    }

    /// Returns the body of the response to a POST.
    pub(crate) fn post(&self, path: &str) -> anyhow::Result<String> {
        self.request("POST", path)
    }

    fn request(&self, method: &str, path: &str) -> anyhow::Result<String> {
        let url = &self.url;
        let response = self.exchange(method, path);
        let response = response.with_context(|| format!("cannot read {url}{path}"))?;
        body_of(&response).with_context(|| format!("{url}{path}"))
    }

    fn exchange(&self, method: &str, path: &str) -> anyhow::Result<String> {
        let token = self.token.as_deref();
        match (&self.url, &self.tls) {
            (AdminUrl::Unix(file), _) => {
                let deadline = Instant::now() + TIMEOUT;
                let socket = Timed { socket: UnixStream::connect(file)?, deadline };
                exchange(socket, "localhost", method, path, token)
            }
            (AdminUrl::Tls(place), Some(tls)) => {
                let (host, _) = place.rsplit_once(':').context("it has a port")?;
                let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let session = ClientConnection::new(tls.client_config(), name.try_into()?)?;
                exchange(StreamOwned::new(session, connect(place)?), place, method, path, token)
            }
            (AdminUrl::Tcp(place) | AdminUrl::Tls(place), _) => {
                exchange(connect(place)?, place, method, path, token)
            }
        }
    }
}

fn connect(place: &str) -> anyhow::Result<Timed<TcpStream>> {
    let (mut last, addresses) = (None, place.to_socket_addrs()?);
    let deadline = Instant::now() + TIMEOUT;
    for address in addresses {
        let connected = left(deadline).and_then(|left| TcpStream::connect_timeout(&address, left));
        match connected {
            Ok(socket) => return Ok(Timed { socket, deadline }),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error.into()),
        None => bail!("the host has no address"),
    }
}

/// A socket whose steps end at a time, however many they are.
#[derive(Debug)]
struct Timed<S> {
    socket: S,
    deadline: Instant,
}

impl<S: Read + AsFd> Read for Timed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        set_socket_timeout(&self.socket, Timeout::Recv, Some(left(self.deadline)?))?;
        self.socket.read(buffer)
    }
}

impl<S: Write + AsFd> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        set_socket_timeout(&self.socket, Timeout::Send, Some(left(self.deadline)?))?;
        self.socket.write(bytes)
    }

    /// A handshake that fails has one call for all of its last records.
    fn write_vectored(&mut self, bytes: &[io::IoSlice<'_>]) -> io::Result<usize> {
        set_socket_timeout(&self.socket, Timeout::Send, Some(left(self.deadline)?))?;
        self.socket.write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn exchange(
    mut socket: impl Read + Write,
    host: &str,
    method: &str,
    path: &str,
    token: Option<&str>,
) -> anyhow::Result<String> {
    let authorization =
        token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{authorization}\r\n"
    );
    socket.write_all(request.as_bytes())?;
    let mut response = String::new();
    socket.take(RESPONSE_MAX).read_to_string(&mut response)?;
    Ok(response)
}

/// Returns the body of a response with status 200.
fn body_of(response: &str) -> anyhow::Result<String> {
    let (head, body) = response.split_once("\r\n\r\n").context("the response has no end")?;
    let status = head.split(' ').nth(1).context("the response has no status")?;
    let (reason, shown) = (printable(body.trim_end()), printable(status));
    let hint = if status == "401" { " (--token-file)" } else { "" };
    ensure!(status == "200", "status {shown}: {reason}{hint}");
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_with_a_port_or_a_path() {
        let tcp = |place: &str| Ok(AdminUrl::Tcp(place.to_owned()));
        assert_eq!("http://127.0.0.1:9002/".parse(), tcp("127.0.0.1:9002"));
        assert_eq!("[::1]:9002".parse(), tcp("[::1]:9002"));
        assert_eq!("https://a:1".parse(), Ok(AdminUrl::Tls("a:1".to_owned())));
        assert_eq!("unix:/run/a".parse(), Ok(AdminUrl::Unix("/run/a".to_owned())));
        for nonsense in ["", "unix:", "9002", ":9002", "http://a", "https://a", "http://a:1/b"] {
            assert!(nonsense.parse::<AdminUrl>().is_err(), "{nonsense}");
        }
    }

    /// A peer that always has another byte does not prolong it.
    #[test]
    fn an_exchange_ends_at_its_deadline() {
        for (timeout, is_in_time) in [(TIMEOUT, true), (Duration::ZERO, false)] {
            let (socket, mut peer) = UnixStream::pair().unwrap();
            peer.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            peer.shutdown(std::net::Shutdown::Write).unwrap();
            let mut timed = Timed { socket, deadline: Instant::now() + TIMEOUT };
            timed.write_all(b"GET").unwrap();
            timed.deadline = Instant::now() + timeout;
            let read = timed.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
            assert_eq!(read.is_ok(), is_in_time, "{read:?}");
            timed.deadline = Instant::now();
            let written = timed.write(b"x").map_err(|error| error.kind());
            assert_eq!(written, Err(io::ErrorKind::TimedOut));
        }
    }

    #[test]
    fn only_a_response_with_status_200_has_a_body() {
        assert_eq!(body_of("HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}").unwrap(), "{}");
        let refused = body_of("HTTP/1.1 401 U\r\n\r\nno\x1b[2J").unwrap_err().to_string();
        assert_eq!(refused, "status 401: no\\u{1b}[2J (--token-file)");
        assert!(body_of("HTTP/1.1 200 OK\r\n").is_err() && body_of("\r\n\r\n").is_err());
    }
}
