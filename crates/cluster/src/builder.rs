//! The settings of a bus.

use core::fmt;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use windlass_tls::TlsConfigError;

use crate::{
    NatsBus, NatsConfigError, NatsEvent,
    address::Address,
    connection::{ConnectSettings, TlsSettings},
    identity::{Identity, UserKey},
};

/// The number of publications that wait for the connection. Default of
/// [`NatsBusBuilder::queue_messages`].
pub const QUEUE_MESSAGES_DEFAULT: usize = 16_384;

/// Their bytes. Default of [`NatsBusBuilder::queue_bytes`].
pub const QUEUE_BYTES_DEFAULT: usize = 32 << 20;

/// Called for each event.
pub(crate) type OnEvent = Arc<dyn Fn(&NatsEvent) + Send + Sync>;

/// How a node proves who it is.
#[derive(Clone, PartialEq, Eq)]
enum Credentials {
    User(String, String),
    Token(String),
    File(PathBuf),
    Seed(String),
}

/// The settings of a [`NatsBus`].
///
/// ```
/// use std::time::Duration;
/// use windlass_cluster::NatsBus;
///
/// # fn main() -> Result<(), windlass_cluster::NatsConfigError> {
/// let bus = NatsBus::builder(["nats://nats-1.example:4222", "nats://nats-2.example:4222"])
///     .user_and_password("chat", "secret")
///     .name("chat-1")
///     .queue_messages(1000)
///     .ping_interval(Duration::from_secs(2))
///     .on_event(|event| eprintln!("cluster: {event}"))
///     .build()?;
/// # drop(bus);
/// # Ok(())
/// # }
/// ```
#[must_use = "`build` makes the bus"]
pub struct NatsBusBuilder {
    addresses: Vec<String>,
    credentials: Vec<Credentials>,
    tls: TlsSettings,
    name: Option<String>,
    queue_messages: usize,
    queue_bytes: usize,
    ping_interval: Duration,
    answer_timeout: Duration,
    connect_timeout: Duration,
    reconnect_delay_max: Duration,
    on_event: OnEvent,
}

impl NatsBusBuilder {
    pub(crate) fn new(addresses: Vec<String>) -> Self {
        Self {
            addresses,
            credentials: Vec::new(),
            tls: TlsSettings::default(),
            name: None,
            queue_messages: QUEUE_MESSAGES_DEFAULT,
            queue_bytes: QUEUE_BYTES_DEFAULT,
            ping_interval: Duration::from_secs(3),
            answer_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            reconnect_delay_max: Duration::from_secs(2),
            on_event: Arc::new(|_| {}),
        }
    }

    /// Connects as this user.
    pub fn user_and_password(
        mut self,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.credentials.push(Credentials::User(user.into(), password.into()));
        self
    }

    /// Connects with this token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.credentials.push(Credentials::Token(token.into()));
        self
    }

    /// Connects with a file of credentials (`.creds`), which has a JWT and a seed.
    pub fn credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials.push(Credentials::File(path.into()));
        self
    }

    /// Connects with the seed of an NKEY of a user. It begins with `SU`.
    pub fn nkey_seed(mut self, seed: impl Into<String>) -> Self {
        self.credentials.push(Credentials::Seed(seed.into()));
        self
    }

    /// Connects with TLS only, also to addresses with `nats://`. [`tls_first`](Self::tls_first),
    /// [`ca_file`](Self::ca_file) and [`client_certificate`](Self::client_certificate) imply it. An
    /// address with `tls://` requires TLS for itself.
    ///
    /// Without any of these the server decides. Then whoever is between can read the credentials.
    pub fn require_tls(mut self) -> Self {
        self.tls.is_required = true;
        self
    }

    /// Begins with TLS, before the server says anything: for servers with `handshake_first`. TLS is
    /// required then.
    pub fn tls_first(mut self) -> Self {
        self.tls.is_required = true;
        self.tls.is_first = true;
        self
    }

    /// Trusts the certificates of a PEM file, and not those of the system. TLS is required then.
    ///
    /// Each is trusted as an authority, and also as the server's own certificate: one that
    /// `openssl req -x509` makes is both. Its name and its dates must be right in any case.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.is_required = true;
        self.tls.ca_file = Some(path.into());
        self
    }

    /// Shows a certificate to the server: PEM files of the certificate, with its chain, and of its
    /// key. TLS is required then.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.tls.is_required = true;
        self.tls.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// The name of the connection in the monitoring of the NATS server. Default: none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the maximum number of publications that wait for the connection. When there are more,
    /// the oldest one is dropped and counted. Default: [`QUEUE_MESSAGES_DEFAULT`].
    pub fn queue_messages(mut self, messages: usize) -> Self {
        self.queue_messages = messages;
        self
    }

    /// Sets the maximum of their bytes. When there are more, the oldest ones are dropped and
    /// counted. No single payload may be longer. Default: [`QUEUE_BYTES_DEFAULT`].
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes;
        self
    }

    /// Sets how often the server is asked for an answer. The next question waits for the answer to
    /// the one before. Default: 3 s.
    pub fn ping_interval(mut self, interval: Duration) -> Self {
        self.ping_interval = interval;
        self
    }

    /// Sets how long the server may take to answer, and to take 64 KiB of what is sent. Then the
    /// connection is lost, whatever the server has sent besides. Default: 10 s.
    ///
    /// The server answers when it has read all that was sent before. So it should be longer than a
    /// slow network takes for what the buffer of a socket holds.
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// Sets the maximum time of an attempt to connect, for the lookup of a name and for each IP
    /// address. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the maximum time between attempts to connect. It begins with 50 ms and is doubled each
    /// time, with a random part. Default: 2 s.
    pub fn reconnect_delay_max(mut self, delay: Duration) -> Self {
        self.reconnect_delay_max = delay;
        self
    }

    /// Calls a function for each event, on the thread of the bus. It must not block: nothing
    /// arrives and nothing is sent meanwhile. It must not wait for the end of the server either.
    ///
    /// If it panics, the bus ends, with the state [`Closed`](windlass_server::bus::BusState).
    pub fn on_event(mut self, callback: impl Fn(&NatsEvent) + Send + Sync + 'static) -> Self {
        self.on_event = Arc::new(callback);
        self
    }

    /// Makes the bus. It reads the files, and does not connect yet.
    ///
    /// # Errors
    /// See [`NatsConfigError`].
    pub fn build(self) -> Result<NatsBus, NatsConfigError> {
        Ok(NatsBus::new(self.config()?))
    }

    pub(crate) fn config(self) -> Result<Config, NatsConfigError> {
        for (name, is_zero) in [
            ("queue_messages", self.queue_messages == 0),
            ("queue_bytes", self.queue_bytes == 0),
            ("ping_interval", self.ping_interval.is_zero()),
            ("answer_timeout", self.answer_timeout.is_zero()),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("reconnect_delay_max", self.reconnect_delay_max.is_zero()),
        ] {
            if is_zero {
                return Err(NatsConfigError::Zero(name));
            }
        }
        let mut credentials = self.credentials.clone();
        let mut addresses = Vec::with_capacity(self.addresses.len());
        for text in &self.addresses {
            let address = Address::parse(text)?;
            credentials.extend(address.login.clone().map(|login| match login {
                (user, Some(password)) => Credentials::User(user, password),
                (token, None) => Credentials::Token(token),
            }));
            addresses.push(address);
        }
        if addresses.is_empty() {
            return Err(NatsConfigError::NoAddress);
        }
        // Every address may have the same ones.
        credentials.dedup();
        if credentials.len() > 1 {
            return Err(NatsConfigError::SeveralCredentials);
        }
        check_tls(&self.tls)?;
        let connect = ConnectSettings {
            addresses,
            identity: credentials.pop().map(identity).transpose()?,
            tls: self.tls,
            name: self.name,
            timeout: self.connect_timeout,
        };
        Ok(Config {
            connect: Arc::new(connect),
            queue_messages: self.queue_messages,
            queue_bytes: self.queue_bytes,
            ping_interval: self.ping_interval,
            answer_timeout: self.answer_timeout,
            reconnect_delay_max: self.reconnect_delay_max,
            on_event: self.on_event,
        })
    }
}

impl fmt::Debug for NatsBusBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses may have a password.
        f.debug_struct("NatsBusBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Checked settings.
pub(crate) struct Config {
    pub(crate) connect: Arc<ConnectSettings>,
    pub(crate) queue_messages: usize,
    pub(crate) queue_bytes: usize,
    pub(crate) ping_interval: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) reconnect_delay_max: Duration,
    pub(crate) on_event: OnEvent,
}

fn identity(credentials: Credentials) -> Result<Identity, NatsConfigError> {
    Ok(match credentials {
        Credentials::User(user, password) => Identity::User(user, password),
        Credentials::Token(token) => Identity::Token(token),
        Credentials::File(path) => {
            let text = String::from_utf8_lossy(&read(&path)?).into_owned();
            Identity::from_credentials(&text)
                .ok_or_else(|| content(&path, "it has no JWT and seed of NATS".to_owned()))?
        }
        Credentials::Seed(seed) => {
            let key = UserKey::from_seed(&seed).ok_or_else(|| NatsConfigError::Content {
                place: "the seed of the NKEY".to_owned(),
                reason: "the seed of a user has 58 letters and digits and begins with SU"
                    .to_owned(),
            })?;
            Identity::Key(key)
        }
    })
}

fn read(path: &Path) -> Result<Vec<u8>, NatsConfigError> {
    fs::read(path).map_err(|error| NatsConfigError::File { path: path.to_owned(), error })
}

fn content(path: &Path, reason: String) -> NatsConfigError {
    NatsConfigError::Content { place: path.display().to_string(), reason }
}

/// Checks the files. Each connection reads them again, so they may be renewed.
fn check_tls(tls: &TlsSettings) -> Result<(), NatsConfigError> {
    // The authorities of the system are needed only if a server wants TLS.
    if tls.ca_file.is_none() && tls.client_certificate.is_none() {
        return Ok(());
    }
    tls.read().map(drop).map_err(|error| match error {
        TlsConfigError::Read(path, error) => NatsConfigError::File { path, error },
        error => NatsConfigError::Content {
            place: "a file for TLS".to_owned(),
            reason: error.to_string(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(builder: NatsBusBuilder) -> String {
        builder.config().err().expect("it is wrong").to_string()
    }

    #[test]
    fn wrong_addresses_are_errors_without_passwords() {
        assert!(error(NatsBus::builder::<String>([])).contains("no address"));
        for (address, what) in [
            ("http://user:secret@host", "invalid scheme"),
            ("nats://user:secret@host:99999", "port"),
            ("nats://user:secret@", "host"),
            ("wss://user:secret@host", "WebSockets"),
            ("", "host"),
        ] {
            let text = error(NatsBus::builder([address]));
            assert!(text.contains(what) && !text.contains("secret"), "{address}: {text}");
        }
    }

    #[test]
    fn credentials_are_given_once() {
        for builder in [
            NatsBus::builder(["host"]).token("t").user_and_password("u", "p"),
            NatsBus::builder(["u:p@host", "u:q@host"]),
            NatsBus::builder(["u:p@host"]).token("t"),
        ] {
            assert!(error(builder).contains("more than once"));
        }
        assert!(NatsBus::builder(["u:p@one", "u:p@other"]).config().is_ok());
        assert!(NatsBus::builder(["u:p@one"]).user_and_password("u", "p").config().is_ok());
    }

    #[test]
    fn limits_are_not_zero() {
        let builder = || NatsBus::builder(["host"]);
        for (builder, name) in [
            (builder().queue_messages(0), "queue_messages"),
            (builder().queue_bytes(0), "queue_bytes"),
            (builder().ping_interval(Duration::ZERO), "ping_interval"),
            (builder().answer_timeout(Duration::ZERO), "answer_timeout"),
            (builder().connect_timeout(Duration::ZERO), "connect_timeout"),
            (builder().reconnect_delay_max(Duration::ZERO), "reconnect_delay_max"),
        ] {
            assert!(error(builder).contains(name));
        }
    }

    #[test]
    fn files_and_seeds_are_checked() {
        let builder = || NatsBus::builder(["host"]);
        let (missing, other) = ("/nonexistent/file", "/proc/self/status");
        for path in [missing, other] {
            for builder in [
                builder().credentials_file(path),
                builder().ca_file(path),
                builder().client_certificate(path, path),
            ] {
                let text = error(builder);
                let what = if path == missing { "cannot be read" } else { "cannot be used" };
                assert!(text.contains(what) && text.contains(path), "{text}");
            }
        }
        let text = error(builder().nkey_seed("SUAsecret"));
        assert!(text.contains("58") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn each_option_of_tls_requires_it() {
        let builder = || NatsBus::builder(["nats://host"]);
        assert!(!builder().tls.is_required);
        for builder in [
            builder().require_tls(),
            builder().tls_first(),
            builder().ca_file("file"),
            builder().client_certificate("file", "file"),
        ] {
            assert!(builder.tls.is_required);
        }
    }

    #[test]
    fn nothing_shows_a_password() {
        let builder = NatsBus::builder(["u:secret@host"]).token("secret").name("node");
        assert!(!format!("{builder:?}").contains("secret"));
    }
}
