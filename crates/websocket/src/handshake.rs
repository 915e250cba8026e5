//! The opening handshake over a stream (RFC 6455 section 4).

use std::{future::poll_fn, io};

use windlass_ws::handshake::{
    AcceptOptions, ClientRequest, HeadReader, Negotiated, Rejection, Upgrade, write_refusal,
};

use crate::{
    AcceptError, ClientError, Config, Role, WebSocket, core::Core, inbox::Inbox, shared,
    transport::Transport,
};

/// A server's answer to a request, by the closure of [`WebSocket::accept_with`].
///
/// ```
/// use windlass_websocket::Answer;
///
/// let accepted = Answer::accept().protocol("chat").header("Server", "example");
/// let refused = Answer::refuse(403);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Answer {
    refused: Option<u16>,
    protocol: Option<String>,
    headers: Vec<(String, String)>,
}

impl Answer {
    /// Accepts the connection, with the subprotocol that [`Config::protocols`] chooses.
    #[must_use]
    pub fn accept() -> Self {
        Self::default()
    }

    /// Refuses the connection with this status, for example 401 or 404.
    #[must_use]
    pub fn refuse(status: u16) -> Self {
        Self { refused: Some(status), ..Self::default() }
    }

    /// Chooses a subprotocol, which the client must have offered.
    #[must_use]
    pub fn protocol(mut self, protocol: impl Into<String>) -> Self {
        self.protocol = Some(protocol.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// The outcome of a request, before its answer is written.
pub(crate) struct Decision {
    pub(crate) answer: Vec<u8>,
    pub(crate) result: Result<Accepted, AcceptError>,
}

pub(crate) struct Accepted {
    #[cfg(feature = "deflate")]
    pub(crate) agreement: Option<windlass_ws::deflate::Agreement>,
    pub(crate) protocol: Option<Box<str>>,
}

impl<S: Transport> WebSocket<S> {
    /// Makes the handshake of a server over a stream. Requests that are no upgrade, or that the
    /// configuration does not allow, get an answer that says so.
    ///
    /// It has no limit of time: put it into the timeout of your runtime. If the future is dropped,
    /// so is the stream.
    ///
    /// # Errors
    /// See [`AcceptError`].
    pub async fn accept(stream: S, config: &Config) -> Result<Self, AcceptError> {
        Self::accept_with(stream, config, |_| Answer::accept()).await
    }

    /// Like [`accept`](Self::accept). The closure sees the request and decides.
    ///
    /// ```no_run
    /// # async fn serve<S: windlass_websocket::Transport>(
    /// #     stream: S,
    /// # ) -> Result<(), windlass_websocket::AcceptError> {
    /// use windlass_websocket::{Answer, Config, WebSocket};
    ///
    /// let mut room = String::new();
    /// let socket = WebSocket::accept_with(stream, &Config::new(), |upgrade| {
    ///     match upgrade.request().path().strip_prefix("/rooms/") {
    ///         Some(name) => {
    ///             room = name.to_owned();
    ///             Answer::accept()
    ///         }
    ///         None => Answer::refuse(404),
    ///     }
    /// })
    /// .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`AcceptError`].
    pub async fn accept_with(
        mut stream: S,
        config: &Config,
        decide: impl FnOnce(&Upgrade<'_>) -> Answer,
    ) -> Result<Self, AcceptError> {
        let mut head = HeadReader::new(config.settings().head_limits);
        let mut buffer = ReadBuffer::new();
        let (decision, rest) = loop {
            let count = buffer.read(&mut stream).await?;
            if count == 0 {
                return Err(AcceptError::Ended);
            }
            match head.request(&buffer.bytes[..count]) {
                Ok(None) => {}
                Ok(Some((request, used))) => {
                    let decision = match request.upgrade() {
                        Ok(upgrade) => self::decide(&upgrade, config, decide),
                        Err(rejection) => Decision::rejected(rejection),
                    };
                    break (decision, used..count);
                }
                Err(rejection) => break (Decision::rejected(rejection), count..count),
            }
        };
        write_all(&mut stream, &decision.answer).await?;
        match decision.result {
            Ok(accepted) => {
                let core = Core::new(stream, config, Role::Server, accepted.protocol);
                let socket = Self::from_parts(Inbox::with_bytes(&buffer.bytes[rest]), core);
                #[cfg(feature = "deflate")]
                if let Some(agreement) = accepted.agreement {
                    return Ok(socket.with_agreement(agreement));
                }
                Ok(socket)
            }
            Err(error) => {
                // The client has its answer, and may be gone.
                let _ = poll_fn(|context| stream.poll_shutdown(context)).await;
                Err(error)
            }
        }
    }

    /// Makes the handshake of a client over a stream. permessage-deflate is offered if the
    /// configuration has it.
    ///
    /// It has no limit of time: put it into the timeout of your runtime. If the future is dropped,
    /// so is the stream.
    ///
    /// ```no_run
    /// # async fn connect<S: windlass_websocket::Transport>(
    /// #     stream: S,
    /// # ) -> Result<(), windlass_websocket::ClientError> {
    /// use windlass_websocket::{ClientRequest, Config, WebSocket};
    ///
    /// let config = Config::new();
    /// let request = ClientRequest::new("example.com", "/chat", config.random_key());
    /// let socket = WebSocket::client(stream, request.protocol("chat"), &config).await?;
    /// assert_eq!(socket.protocol(), Some("chat"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn client(
        mut stream: S,
        request: ClientRequest<'_>,
        config: &Config,
    ) -> Result<Self, ClientError> {
        #[cfg(feature = "deflate")]
        let request = match &config.settings().deflate {
            Some(deflate) => request.deflate(deflate),
            None => request,
        };
        let mut out = Vec::new();
        request.write(&mut out)?;
        write_all(&mut stream, &out).await?;
        let mut head = HeadReader::new(config.settings().head_limits);
        let mut buffer = ReadBuffer::new();
        let mut unread = 0..0;
        loop {
            if unread.is_empty() {
                unread = 0..buffer.read(&mut stream).await?;
                if unread.is_empty() {
                    return Err(ClientError::Ended);
                }
            }
            let Some((response, used)) = head.response(&buffer.bytes[unread.clone()])? else {
                unread = 0..0;
                continue;
            };
            unread.start += used;
            // Other responses of 100 to 199 are interim (RFC 9110 section 15.2).
            if response.status() < 200 && response.status() != 101 {
                continue;
            }
            let negotiated: Negotiated<'_> = request.check(response)?;
            let protocol = negotiated.protocol.map(Into::into);
            let core = Core::new(stream, config, Role::Client, protocol);
            let socket = Self::from_parts(Inbox::with_bytes(&buffer.bytes[unread]), core);
            #[cfg(feature = "deflate")]
            if let Some(agreement) = negotiated.deflate {
                return Ok(socket.with_agreement(agreement));
            }
            return Ok(socket);
        }
    }
}

impl Config {
    /// 16 random bytes for [`ClientRequest::new`].
    #[must_use]
    pub fn random_key(&self) -> [u8; 16] {
        let mut key = [0; 16];
        (self.settings().entropy)(&mut key);
        key
    }
}

impl Decision {
    pub(crate) fn rejected(rejection: Rejection) -> Self {
        let mut answer = Vec::new();
        rejection.write(&mut answer);
        Self { answer, result: Err(AcceptError::Rejected(rejection)) }
    }

    pub(crate) fn refused(status: u16, headers: &[(&str, &str)]) -> Self {
        let mut answer = Vec::new();
        let result = match write_refusal(status, headers, &mut answer) {
            Ok(()) => AcceptError::Refused(status),
            Err(error) => AcceptError::Answer(error),
        };
        Self { answer, result: Err(result) }
    }
}

pub(crate) fn decide(
    upgrade: &Upgrade<'_>,
    config: &Config,
    decide: impl FnOnce(&Upgrade<'_>) -> Answer,
) -> Decision {
    let settings = config.settings();
    let is_listed = |list: &Option<Vec<String>>, value: Option<&str>| match (list, value) {
        (Some(list), Some(value)) => list.iter().any(|listed| listed.eq_ignore_ascii_case(value)),
        _ => true,
    };
    if !is_listed(&settings.hosts, upgrade.request().host()) {
        return Decision::refused(421, &[]);
    }
    if !is_listed(&settings.origins, upgrade.origin()) {
        return Decision::refused(403, &[]);
    }
    let answer = decide(upgrade);
    let headers: Vec<(&str, &str)> = settings
        .headers
        .iter()
        .chain(&answer.headers)
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    if let Some(status) = answer.refused {
        return Decision::refused(status, &headers);
    }
    let protocol = answer.protocol.as_deref().or_else(|| {
        let mut ours = settings.protocols.iter().map(String::as_str);
        ours.find(|ours| upgrade.protocols().any(|offered| offered == *ours))
    });
    let options = AcceptOptions::DEFAULT.protocol(protocol).headers(&headers);
    #[cfg(feature = "deflate")]
    let options = options.deflate(settings.deflate.as_ref());
    let mut out = Vec::new();
    let result = upgrade.accept(&options, &mut out).map_err(AcceptError::Answer);
    Decision {
        answer: out,
        result: result.map(|_accepted| Accepted {
            #[cfg(feature = "deflate")]
            agreement: _accepted.deflate,
            protocol: protocol.map(Into::into),
        }),
    }
}

/// A thread's read buffer, given back at the end.
struct ReadBuffer {
    bytes: Box<[u8]>,
}

impl ReadBuffer {
    fn new() -> Self {
        Self { bytes: shared::take_read_buffer() }
    }

    async fn read<S: Transport>(&mut self, stream: &mut S) -> io::Result<usize> {
        let count = poll_fn(|context| stream.poll_read(context, &mut self.bytes)).await?;
        Ok(count.min(self.bytes.len()))
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        shared::give_read_buffer(std::mem::take(&mut self.bytes));
    }
}

async fn write_all<S: Transport>(stream: &mut S, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match poll_fn(|context| stream.poll_write(context, bytes)).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => bytes = &bytes[count.min(bytes.len())..],
        }
    }
    poll_fn(|context| stream.poll_flush(context)).await
}
