//! A connection to a server, until the server has accepted it.

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, lookup_host},
    time,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{self, ClientConfig, pki_types::ServerName},
};
use windlass_tls::TlsConfigError;

use crate::{
    address::Address,
    identity::Identity,
    protocol::{Info, Input, Operation},
};

/// How servers are connected.
pub(crate) struct ConnectSettings {
    pub(crate) addresses: Vec<Address>,
    pub(crate) identity: Option<Identity>,
    pub(crate) tls: TlsSettings,
    pub(crate) name: Option<String>,
    /// For the lookup of a name, and for each IP address.
    pub(crate) timeout: Duration,
}

/// Which files TLS uses, and when it begins.
#[derive(Clone, Default)]
pub(crate) struct TlsSettings {
    pub(crate) is_required: bool,
    /// Before the server says anything.
    pub(crate) is_first: bool,
    /// In place of the authorities of the system.
    pub(crate) ca_file: Option<PathBuf>,
    /// A certificate with its chain, and its key.
    pub(crate) client_certificate: Option<(PathBuf, PathBuf)>,
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection that the server has accepted.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    /// What has arrived behind the server's answer.
    pub(crate) input: Input,
    pub(crate) info: Info,
}

/// Why a server could not be connected. The text may have parts of the server.
pub(crate) struct ConnectError(String);

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<&str> for ConnectError {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl ConnectSettings {
    /// Connects to one of the servers, in a random order.
    ///
    /// # Errors
    /// No server can be connected. The error is that of the last one.
    pub(crate) async fn connect(&self) -> Result<Connection, ConnectError> {
        let lookup = async |address: &Address| {
            let found = lookup_host((&*address.host, address.port)).await?;
            Ok(found.collect())
        };
        self.connect_by(lookup).await
    }

    async fn connect_by(
        &self,
        lookup: impl AsyncFn(&Address) -> io::Result<Vec<SocketAddr>>,
    ) -> Result<Connection, ConnectError> {
        let mut last = ConnectError::from("it has no IP address");
        for address in shuffled(&self.addresses) {
            let found = match time::timeout(self.timeout, lookup(address)).await {
                Ok(Ok(found)) => found,
                Ok(Err(error)) => {
                    last = error.into();
                    continue;
                }
                Err(_) => {
                    last = ConnectError::from("the lookup of its name timed out");
                    continue;
                }
            };
            for place in found {
                match time::timeout(self.timeout, self.connect_to(address, place)).await {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(error)) => last = error,
                    Err(_) => last = ConnectError::from("timed out"),
                }
            }
        }
        Err(last)
    }

    async fn connect_to(
        &self,
        address: &Address,
        place: SocketAddr,
    ) -> Result<Connection, ConnectError> {
        let socket = TcpStream::connect(place).await?;
        socket.set_nodelay(true)?;
        let (mut stream, mut input): (Box<dyn Stream>, _) = (Box::new(socket), Input::default());
        if self.tls.is_first {
            stream = self.tls.handshake(stream, &address.host).await?;
        }
        let first = |operation: Operation<'_>| {
            Some(match operation {
                Operation::Info(info) => Ok(*info),
                Operation::Error(text) => Err(ConnectError(text.to_owned())),
                _ => Err("its first line is no INFO".into()),
            })
        };
        let mut info = until(&mut input, &mut stream, first).await?;
        let is_wanted = self.tls.is_required || address.requires_tls || info.tls_required;
        if is_wanted && !self.tls.is_first {
            if !info.tls_required && !info.tls_available {
                return Err("TLS is required, and the server does not offer it".into());
            }
            // What came before TLS is not the server's for certain.
            if !input.is_empty() {
                return Err("it sends more than its INFO before TLS".into());
            }
            stream = self.tls.handshake(stream, &address.host).await?;
        }
        let connect = self.connect_line(&info, is_wanted || self.tls.is_first);
        send(&mut stream, &connect).await?;
        loop {
            let is_accepted = until(&mut input, &mut stream, |operation| {
                Some(match operation {
                    Operation::Pong => Ok(true),
                    Operation::Ping => Ok(false),
                    Operation::Error(text) => Err(ConnectError(text.to_owned())),
                    Operation::Message { .. } => Err("it sends a message before its PONG".into()),
                    Operation::Info(newer) => {
                        info = *newer;
                        return None;
                    }
                    Operation::Ok => return None,
                })
            });
            if is_accepted.await? {
                return Ok(Connection { stream, input, info });
            }
            send(&mut stream, "PONG\r\n").await?;
        }
    }

    /// CONNECT, and a question for an answer.
    fn connect_line(&self, info: &Info, has_tls: bool) -> String {
        let mut fields = Map::new();
        let settings = [
            ("verbose", Value::Bool(false)),
            ("pedantic", Value::Bool(false)),
            // Own publications do not come back.
            ("echo", Value::Bool(false)),
            ("headers", Value::Bool(false)),
            ("tls_required", Value::Bool(has_tls)),
            // The server may send a further INFO at any time.
            ("protocol", json!(1)),
            ("lang", json!("rust-windlass")),
            ("version", json!(env!("CARGO_PKG_VERSION"))),
        ];
        fields.extend(settings.map(|(name, value)| (name.to_owned(), value)));
        if let Some(name) = &self.name {
            fields.insert("name".to_owned(), json!(name));
        }
        if let Some(identity) = &self.identity {
            identity.add_to(&mut fields, &info.nonce);
        }
        format!("CONNECT {}\r\nPING\r\n", Value::Object(fields))
    }
}

/// Reads until `take` has a result.
async fn until<T>(
    input: &mut Input,
    stream: &mut Box<dyn Stream>,
    mut take: impl FnMut(Operation<'_>) -> Option<Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    loop {
        match input.next().map_err(|error| ConnectError(error.to_string()))? {
            Some(operation) => {
                if let Some(result) = take(operation) {
                    return result;
                }
            }
            None => {
                if input.fill(stream).await? == 0 {
                    return Err("it has closed the connection".into());
                }
            }
        }
    }
}

async fn send(stream: &mut Box<dyn Stream>, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes()).await?;
    stream.flush().await
}

impl TlsSettings {
    /// Reads the files. They may be renewed while the bus runs.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn read(&self) -> Result<Arc<ClientConfig>, TlsConfigError> {
        let mut builder = windlass_tls::TlsConnector::builder();
        if let Some(path) = &self.ca_file {
            builder = builder.roots(path);
        }
        if let Some((certificate, key)) = &self.client_certificate {
            builder = builder.certificate(certificate, key);
        }
        Ok(builder.build()?.client_config())
    }

    async fn handshake(
        &self,
        stream: Box<dyn Stream>,
        host: &str,
    ) -> Result<Box<dyn Stream>, ConnectError> {
        let config = self.read().map_err(|error| ConnectError(error.to_string()))?;
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        match TlsConnector::from(config).connect(name, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(ConnectError(format!("TLS: {}", tls_reason(&error)))),
        }
    }
}

/// Why a handshake has failed, in words for an operator.
fn tls_reason(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.map_or_else(|| error.to_string(), |inner| windlass_tls::failure(inner).to_string())
}

/// The addresses in a random order, so that the nodes do not all use the first one.
fn shuffled(addresses: &[Address]) -> Vec<&Address> {
    // The standard library seeds its hashers from the system's random numbers.
    let random = RandomState::new();
    let mut places: Vec<_> = (0..addresses.len()).collect();
    places.sort_by_cached_key(|place| random.hash_one(place));
    places.into_iter().map(|place| &addresses[place]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lookup_of_a_name_has_a_time_limit() {
        let connect = ConnectSettings {
            addresses: vec![Address::parse("nats.example").unwrap()],
            identity: None,
            tls: TlsSettings::default(),
            name: None,
            timeout: Duration::from_millis(1),
        };
        let runtime = crate::thread::runtime().unwrap();
        let connected = runtime.block_on(async {
            let connecting = connect.connect_by(async |_| std::future::pending().await);
            time::timeout(Duration::from_secs(30), connecting).await.expect("it has a limit")
        });
        assert!(connected.err().unwrap().to_string().contains("lookup"));
    }
}
