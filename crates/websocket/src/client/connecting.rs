//! The way to a connection, phase by phase, as a future with a name.

use std::{
    fmt,
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    ClientSocket, Settings,
    error::{ConnectError, Phase, ServerResponse},
    exchange::Exchange,
    handshake::{Accepted, Handshake},
    happy_eyeballs::Attempts,
    proxy::{Proxy, ProxyDialogue},
    runtime::Runtime,
    stream::MaybeTls,
    url::Target,
};
use crate::{ClientError, Role, Timed, WebSocket, core::Core, inbox::Inbox, timer::Timer as _};

/// A connection that is being made. It is a future, which may be polled on any task. Dropping it
/// gives the connection up.
#[must_use = "a future does nothing unless it is polled"]
pub struct Connecting<R: Runtime> {
    settings: Arc<Settings>,
    runtime: R,
    /// `None` if the URL is bad, or the connection made.
    timer: Option<R::Timer>,
    target: Option<Arc<Target>>,
    /// The last phase, which is prepared first: what is wrong with the request is known then.
    handshake: Option<(Handshake, Vec<u8>)>,
    keeps_response: bool,
    state: State<R>,
    deadline: Duration,
}

enum State<R: Runtime> {
    Start,
    Resolve(R::Resolving),
    Connect(Attempts<R>),
    #[cfg(feature = "rustls")]
    ProxyTls(Box<TlsConnect<R>>),
    Proxy(MaybeTls<R::Stream>, Exchange<ProxyDialogue>),
    #[cfg(feature = "rustls")]
    Tls(Box<TlsConnect<R>>),
    Handshake(MaybeTls<R::Stream>, Exchange<Handshake>),
    Done,
}

#[cfg(feature = "rustls")]
type TlsConnect<R> = super::tls::Connect<MaybeTls<<R as Runtime>::Stream>>;

/// A socket, and the response if it was asked for.
type Connected<R> = (ClientSocket<R>, Option<ServerResponse>);

impl<R: Runtime> Connecting<R> {
    pub(super) fn new(settings: Arc<Settings>, runtime: R) -> Self {
        Self {
            settings,
            runtime,
            timer: None,
            target: None,
            handshake: None,
            keeps_response: false,
            state: State::Start,
            deadline: Duration::ZERO,
        }
    }

    /// Waits for the connection, and returns the server's response with it.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn with_response(
        mut self,
    ) -> Result<(ClientSocket<R>, ServerResponse), ConnectError> {
        self.keeps_response = true;
        let (socket, response) = std::future::poll_fn(|context| self.poll_all(context)).await?;
        Ok((socket, response.unwrap_or_default()))
    }

    fn poll_all(&mut self, context: &mut Context<'_>) -> Poll<Result<Connected<R>, ConnectError>> {
        let result = ready!(self.poll_phases(context));
        self.state = State::Done;
        Poll::Ready(result)
    }

    fn poll_phases(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Connected<R>, ConnectError>> {
        loop {
            if let Poll::Ready(step) = self.poll_step(context) {
                match step? {
                    Some(connected) => return Poll::Ready(Ok(connected)),
                    None => continue,
                }
            }
            let Some(timer) = &mut self.timer else { return Poll::Pending };
            ready!(timer.poll_until(context, self.deadline));
            let phase = self.state.phase();
            return Poll::Ready(Err(match &mut self.state {
                State::Handshake(_, exchange) => exchange.dialogue.take_refusal(),
                _ => None,
            }
            .unwrap_or(ConnectError::TimedOut(phase))));
        }
    }

    /// Ends a phase, or the last one with the socket.
    fn poll_step(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Connected<R>>, ConnectError>> {
        match &mut self.state {
            State::Start => self.start()?,
            State::Resolve(resolving) => {
                let addresses =
                    ready!(Pin::new(resolving).poll(context)).map_err(ConnectError::Resolve)?;
                self.open(&addresses)?;
            }
            State::Connect(attempts) => {
                let stream = ready!(attempts.poll(context)).map_err(ConnectError::Connect)?;
                self.reach_proxy(stream)?;
            }
            #[cfg(feature = "rustls")]
            State::ProxyTls(connect) => {
                let stream = ready!(Pin::new(&mut **connect).poll(context))
                    .map_err(|error| ConnectError::Proxy(super::ProxyError::Tls(error)))?;
                // The limit of time goes on: the phase is the same.
                self.state = self.ask_proxy(MaybeTls::proxy(stream))?;
            }
            State::Proxy(stream, exchange) => {
                ready!(exchange.poll(stream, context)).map_err(ConnectError::Proxy)?;
                let State::Proxy(stream, _) = std::mem::replace(&mut self.state, State::Done)
                else {
                    unreachable!("it was so above");
                };
                self.secure(stream)?;
            }
            #[cfg(feature = "rustls")]
            State::Tls(connect) => {
                let stream =
                    ready!(Pin::new(&mut **connect).poll(context)).map_err(ConnectError::Tls)?;
                self.ask(MaybeTls::tls(stream));
            }
            State::Handshake(stream, exchange) => {
                let accepted = ready!(exchange.poll(stream, context))?;
                return Poll::Ready(Ok(Some(self.finish(accepted))));
            }
            State::Done => panic!("a future was polled after its end"),
        }
        Poll::Ready(Ok(None))
    }

    fn enter(&mut self, state: State<R>) {
        let limit = self.settings.time_limit(state.phase());
        if let Some(timer) = &self.timer {
            self.deadline = timer.now().saturating_add(limit);
        }
        self.state = state;
    }

    fn start(&mut self) -> Result<(), ConnectError> {
        let target = self.settings.target.clone().map_err(ConnectError::Url)?;
        let proxy = self.settings.proxy.clone().transpose().map_err(ConnectError::Url)?;
        let is_proxy_secure = proxy.as_ref().is_some_and(Proxy::is_secure);
        if (target.is_secure || is_proxy_secure) && cfg!(not(feature = "rustls")) {
            return Err(ConnectError::NoTls);
        }
        let handshake = Handshake::new(self.settings.clone(), target.clone())
            .map_err(|error| ConnectError::Handshake(ClientError::Request(error)))?;
        self.handshake = Some(handshake);
        let (host, port) = match proxy {
            None => (target.host.clone(), target.port),
            Some(proxy) => (proxy.host, proxy.port),
        };
        self.target = Some(target);
        self.timer = Some(self.runtime.timer());
        if let Ok(address) = host.parse::<IpAddr>() {
            return self.open(&[SocketAddr::new(address, port)]);
        }
        let resolving = self.runtime.resolve(&host, port);
        self.enter(State::Resolve(resolving));
        Ok(())
    }

    fn open(&mut self, addresses: &[SocketAddr]) -> Result<(), ConnectError> {
        if addresses.is_empty() {
            return Err(ConnectError::NoAddress);
        }
        let attempts = Attempts::new(self.runtime.clone(), addresses);
        self.enter(State::Connect(attempts));
        Ok(())
    }

    fn target(&self) -> Arc<Target> {
        self.target.clone().expect("the first phase has read it")
    }

    fn reach_proxy(&mut self, stream: R::Stream) -> Result<(), ConnectError> {
        let stream = MaybeTls::plain(stream);
        let state = match &self.settings.proxy {
            #[cfg(feature = "rustls")]
            Some(Ok(proxy)) if proxy.is_secure() => {
                let connect = self.tls(&self.settings.proxy_tls, &proxy.host, stream)?;
                State::ProxyTls(connect)
            }
            Some(_) => self.ask_proxy(stream)?,
            None => return self.secure(stream),
        };
        self.enter(state);
        Ok(())
    }

    fn ask_proxy(&self, stream: MaybeTls<R::Stream>) -> Result<State<R>, ConnectError> {
        let target = self.target();
        let Some(Ok(proxy)) = &self.settings.proxy else {
            unreachable!("the first phase has read it");
        };
        let dialogue = proxy.dialogue(&target.host, target.port);
        let (dialogue, out) = dialogue.map_err(ConnectError::Url)?;
        Ok(State::Proxy(stream, Exchange::new(dialogue, out)))
    }

    fn secure(&mut self, stream: MaybeTls<R::Stream>) -> Result<(), ConnectError> {
        #[cfg(feature = "rustls")]
        if self.target().is_secure {
            let connect = self.tls(&self.settings.tls, &self.target().host, stream)?;
            self.enter(State::Tls(connect));
            return Ok(());
        }
        self.ask(stream);
        Ok(())
    }

    /// A TLS handshake with a host, with this configuration or the default.
    #[cfg(feature = "rustls")]
    fn tls(
        &self,
        config: &Option<Arc<super::rustls::ClientConfig>>,
        host: &str,
        stream: MaybeTls<R::Stream>,
    ) -> Result<Box<TlsConnect<R>>, ConnectError> {
        let name = super::tls::name(host).map_err(ConnectError::Url)?;
        let config = match config {
            Some(config) => config.clone(),
            None => super::tls::config(self.settings.roots).map_err(ConnectError::TlsConfig)?,
        };
        Ok(Box::new(super::tls::connect(config, name, stream)))
    }

    fn ask(&mut self, stream: MaybeTls<R::Stream>) {
        let handshake = self.handshake.take();
        let (mut handshake, out) = handshake.expect("the first phase has made it");
        handshake.keeps_response = self.keeps_response;
        self.enter(State::Handshake(stream, Exchange::new(handshake, out)));
    }

    fn finish(&mut self, accepted: Accepted) -> Connected<R> {
        let state = std::mem::replace(&mut self.state, State::Done);
        let (State::Handshake(stream, _), Some(timer)) = (state, self.timer.take()) else {
            unreachable!("it is the last phase, and the first has made the timer");
        };
        let stream = Timed::new(stream, timer);
        let core = Core::new(stream, &self.settings.config, Role::Client, accepted.protocol);
        let socket = WebSocket::from_parts(Inbox::with_bytes(&accepted.rest), core);
        #[cfg(feature = "deflate")]
        let socket = match accepted.agreement {
            Some(agreement) => socket.with_agreement(agreement),
            None => socket,
        };
        (socket, accepted.response)
    }
}

impl<R: Runtime> State<R> {
    fn phase(&self) -> Phase {
        match self {
            Self::Start | Self::Done => Phase::Prepare,
            Self::Resolve(_) => Phase::Resolve,
            Self::Connect(_) => Phase::Connect,
            #[cfg(feature = "rustls")]
            Self::ProxyTls(_) => Phase::Proxy,
            Self::Proxy(..) => Phase::Proxy,
            #[cfg(feature = "rustls")]
            Self::Tls(_) => Phase::Tls,
            Self::Handshake(..) => Phase::Handshake,
        }
    }
}

impl<R: Runtime> Future for Connecting<R> {
    type Output = Result<ClientSocket<R>, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_all(context).map_ok(|(socket, _)| socket)
    }
}

impl<R: Runtime> fmt::Debug for Connecting<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("phase", &self.state.phase()).finish_non_exhaustive()
    }
}
