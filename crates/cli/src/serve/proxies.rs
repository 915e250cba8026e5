//! `--proxy-protocol-from`, `--forwarded-from`: proxies in front of the server.

use anyhow::Context as _;
use clap::ValueEnum;
use windlass_server::http::{self, Networks, Proxies};

/// The proxies whose statements about clients are believed.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProxyArgs {
    /// Network of proxies whose connections begin with a PROXY header, version 1 or 2: an address,
    /// ADDRESS/BITS, or `unix` for Unix sockets. A connection from there without one is closed; may
    /// be repeated [default: none]
    #[arg(long, value_name = "NET")]
    pub(crate) proxy_protocol_from: Vec<String>,

    /// Network of proxies whose --forwarded-header names the client: the rightmost address in it
    /// that is not in such a network; may be repeated [default: none]
    #[arg(long, value_name = "NET")]
    pub(crate) forwarded_from: Vec<String>,

    /// Header in which the proxies of --forwarded-from name the client. They must write it in each
    /// request
    #[arg(long, value_enum, default_value_t = ForwardedHeader::XForwardedFor)]
    pub(crate) forwarded_header: ForwardedHeader,
}

/// The header that names the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ForwardedHeader {
    /// X-Forwarded-For
    XForwardedFor,
    /// Forwarded (RFC 7239)
    Forwarded,
}

impl ProxyArgs {
    /// Whether no proxy is trusted.
    pub(crate) fn is_default(&self) -> bool {
        self.proxy_protocol_from.is_empty() && self.forwarded_from.is_empty()
    }

    pub(crate) fn set(&self, proxies: &mut Proxies) -> anyhow::Result<()> {
        proxies.proxy_protocol =
            Networks::parse(&self.proxy_protocol_from).context("invalid --proxy-protocol-from")?;
        proxies.forwarded =
            Networks::parse(&self.forwarded_from).context("invalid --forwarded-from")?;
        proxies.forwarded_header = match self.forwarded_header {
            ForwardedHeader::XForwardedFor => http::ForwardedHeader::XForwardedFor,
            ForwardedHeader::Forwarded => http::ForwardedHeader::Forwarded,
        };
        Ok(())
    }
}
