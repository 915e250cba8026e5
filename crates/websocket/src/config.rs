//! The settings of an endpoint.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

#[cfg(feature = "deflate")]
use windlass_ws::deflate::DeflateConfig;
use windlass_ws::{EngineLimits, handshake::HeadLimits};

/// Which end of the connection a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Accepts connections.
    Server,
    /// Opens connections, and masks what it sends.
    Client,
}

/// The settings of an endpoint. Clones share them, so one clone for each socket costs a count.
///
/// | limit | default | what exceeding it does |
/// |---|---|---|
/// | [`frame_max`](Self::frame_max), [`message_max`](Self::message_max) | 1 MiB | Close 1009, [`RecvError::Violation`](crate::RecvError) |
/// | [`fragments_max`](Self::fragments_max) | 262,144 | Close 1008, the same |
/// | [`inflate_ratio_max`](Self::inflate_ratio_max) | 100, beyond 256 KiB | Close 1008, the same |
/// | [`controls_per_second_max`](Self::controls_per_second_max) | 1,000 | Close 1008, the same |
/// | [`high_watermark`](Self::high_watermark) | 64 KiB | `feed` and `send` wait |
/// | [`answers_max`](Self::answers_max) | 64 KiB | `recv` reads no more until the peer has read |
/// | [`head_limits`](Self::head_limits) | 8 KiB, 64 headers | 431 or 414, or a handshake error |
/// | [`close_timeout`](Self::close_timeout) | 10 s, with a timer | [`RecvError::TimedOut`](crate::RecvError) |
///
/// ```
/// use windlass_websocket::Config;
///
/// let config = Config::new().message_max(64 << 10).protocols(["chat"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Config {
    settings: Arc<Settings>,
}

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) limits: EngineLimits,
    #[cfg(feature = "deflate")]
    pub(crate) deflate: Option<DeflateConfig>,
    pub(crate) high_watermark: usize,
    pub(crate) answers_max: usize,
    pub(crate) head_limits: HeadLimits,
    pub(crate) origins: Option<Vec<String>>,
    pub(crate) hosts: Option<Vec<String>>,
    pub(crate) protocols: Vec<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) ping_interval: Option<Duration>,
    pub(crate) answer_timeout: Duration,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) lifetime_max: Option<Duration>,
    pub(crate) close_timeout: Duration,
    pub(crate) entropy: fn(&mut [u8]),
    server: OnceLock<Arc<windlass_ws::Config>>,
    client: OnceLock<Arc<windlass_ws::Config>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: EngineLimits::DEFAULT,
            #[cfg(feature = "deflate")]
            deflate: None,
            high_watermark: 64 << 10,
            answers_max: 64 << 10,
            head_limits: HeadLimits::DEFAULT,
            origins: None,
            hosts: None,
            protocols: Vec::new(),
            headers: Vec::new(),
            ping_interval: None,
            answer_timeout: Duration::from_secs(10),
            idle_timeout: None,
            lifetime_max: None,
            close_timeout: Duration::from_secs(10),
            entropy: crate::entropy::fill,
            server: OnceLock::new(),
            client: OnceLock::new(),
        }
    }
}

impl Clone for Settings {
    /// The engine's configurations are made anew, from what is changed next.
    fn clone(&self) -> Self {
        Self {
            origins: self.origins.clone(),
            hosts: self.hosts.clone(),
            protocols: self.protocols.clone(),
            headers: self.headers.clone(),
            server: OnceLock::new(),
            client: OnceLock::new(),
            ..*self
        }
    }
}

impl Config {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The engine's configuration for one role, shared by all its sockets.
    pub(crate) fn engine(&self, role: Role) -> &Arc<windlass_ws::Config> {
        let settings = &*self.settings;
        match role {
            Role::Server => settings.server.get_or_init(|| {
                Arc::new(windlass_ws::Config::server().with_limits(settings.limits))
            }),
            Role::Client => settings.client.get_or_init(|| {
                let config = windlass_ws::Config::client(settings.entropy);
                Arc::new(config.with_limits(settings.limits))
            }),
        }
    }

    fn edit(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        (settings.server, settings.client) = (OnceLock::new(), OnceLock::new());
        change(settings);
        self
    }

    /// The longest payload of one frame, in bytes. Default: 1 MiB.
    #[must_use]
    pub fn frame_max(self, bytes: usize) -> Self {
        self.edit(|it| it.limits.frame_max = bytes)
    }

    /// The longest message, in bytes, before and after decompression. Default: 1 MiB.
    #[must_use]
    pub fn message_max(self, bytes: usize) -> Self {
        self.edit(|it| it.limits.message_max = bytes)
    }

    /// The most frames in one message. Default: 262,144.
    #[must_use]
    pub fn fragments_max(self, frames: u32) -> Self {
        self.edit(|it| it.limits.fragments_max = frames)
    }

    /// The highest ratio of decompressed to compressed length, for messages of more than 256 KiB.
    /// Default: 100. `None` allows what DEFLATE can reach, about 1,000.
    #[must_use]
    pub fn inflate_ratio_max(self, ratio: Option<u32>) -> Self {
        self.edit(|it| it.limits.inflate_ratio_max = ratio)
    }

    /// The most pings and pongs that the peer may send in a second. Default: 1,000.
    ///
    /// The second is that of the transport's timer, or else of the system's clock. It is looked up
    /// after a read with such frames, so those after a quiet time count for an earlier second: at
    /// most twice as many pass within one second. On wasm32-unknown-unknown without a timer there
    /// is no clock, and no limit.
    #[must_use]
    pub fn controls_per_second_max(self, frames: u16) -> Self {
        self.edit(|it| it.limits.controls_per_second_max = frames)
    }

    /// How many bytes may wait for the transport before `feed` and `send` wait, in bytes. One
    /// message more is accepted then, of any length. Default: 64 KiB.
    #[must_use]
    pub fn high_watermark(self, bytes: usize) -> Self {
        self.edit(|it| it.high_watermark = bytes)
    }

    /// How many bytes of pongs and replies may wait for a peer that does not read, before `recv`
    /// stops reading what it sends. Default: 64 KiB.
    #[must_use]
    pub fn answers_max(self, bytes: usize) -> Self {
        self.edit(|it| it.answers_max = bytes)
    }

    /// The limits of a request's or response's head.
    #[must_use]
    pub fn head_limits(self, limits: HeadLimits) -> Self {
        self.edit(|it| it.head_limits = limits)
    }

    /// Offers permessage-deflate as a client, and accepts it as a server (RFC 7692). Off unless
    /// called.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub fn deflate(self, deflate: DeflateConfig) -> Self {
        self.edit(|it| it.deflate = Some(deflate))
    }

    /// The origins that a server accepts, such as `https://example.com`. A request from another one
    /// is answered with 403. Requests without an Origin, which no browser sends, are accepted.
    /// Default: every origin.
    #[must_use]
    pub fn origins(self, origins: impl IntoIterator<Item: Into<String>>) -> Self {
        let origins = origins.into_iter().map(Into::into).collect();
        self.edit(|it| it.origins = Some(origins))
    }

    /// The values of Host that a server accepts, ignoring case. A request with another one is
    /// answered with 421. Default: every host.
    #[must_use]
    pub fn hosts(self, hosts: impl IntoIterator<Item: Into<String>>) -> Self {
        let hosts = hosts.into_iter().map(Into::into).collect();
        self.edit(|it| it.hosts = Some(hosts))
    }

    /// The subprotocols that a server accepts, the best first. It chooses the first that the client
    /// offers, and none if there is no such. Default: none.
    #[must_use]
    pub fn protocols(self, protocols: impl IntoIterator<Item: Into<String>>) -> Self {
        let protocols = protocols.into_iter().map(Into::into).collect();
        self.edit(|it| it.protocols = protocols)
    }

    /// Adds a header to a server's answer. The handshake's own are an error when it is written.
    #[must_use]
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let header = (name.into(), value.into());
        self.edit(|it| it.headers.push(header))
    }

    /// Sends a ping when nothing was received for this long. It needs a timer: see
    /// [`Timed`](crate::Timed). Default: none.
    #[must_use]
    pub fn ping_interval(self, interval: Duration) -> Self {
        self.edit(|it| it.ping_interval = Some(interval))
    }

    /// How long the peer may stay silent after a ping of [`ping_interval`](Self::ping_interval).
    /// Default: 10 s.
    #[must_use]
    pub fn answer_timeout(self, limit: Duration) -> Self {
        self.edit(|it| it.answer_timeout = limit)
    }

    /// Ends a connection on which no message was received for this long. It needs a timer.
    /// Default: none.
    #[must_use]
    pub fn idle_timeout(self, limit: Duration) -> Self {
        self.edit(|it| it.idle_timeout = Some(limit))
    }

    /// Ends a connection after this long, whatever it does. It needs a timer. Default: none.
    #[must_use]
    pub fn lifetime_max(self, limit: Duration) -> Self {
        self.edit(|it| it.lifetime_max = Some(limit))
    }

    /// How long the closing handshake may take. It needs a timer. Default: 10 s.
    #[must_use]
    pub fn close_timeout(self, limit: Duration) -> Self {
        self.edit(|it| it.close_timeout = limit)
    }

    /// The source of a client's masking keys (RFC 6455 section 10.3): it fills a slice with
    /// unpredictable bytes. Default: that of the system. On wasm32-unknown-unknown there is none,
    /// and a client without one panics.
    #[must_use]
    pub fn entropy(self, entropy: fn(&mut [u8])) -> Self {
        self.edit(|it| it.entropy = entropy)
    }
}
