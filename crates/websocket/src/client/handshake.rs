//! The opening handshake as a dialogue.

use std::{io, sync::Arc};

#[cfg(feature = "deflate")]
use windlass_ws::deflate::Agreement;
use windlass_ws::handshake::{ClientRequest, HeadLimits, HeadReader, RequestError};

use super::{
    Settings,
    error::{ConnectError, ServerResponse},
    exchange::Dialogue,
    response::{BodyReader, head_of},
    url::Target,
};
use crate::ClientError;

/// Waits for a server's response.
pub(super) struct Handshake {
    settings: Arc<Settings>,
    target: Arc<Target>,
    key: [u8; 16],
    /// The response of status 101 is part of the outcome.
    pub(super) keeps_response: bool,
    head: HeadReader,
    /// The server has answered with another status than 101.
    refused: Option<BodyReader>,
}

/// The outcome of a handshake.
pub(super) struct Accepted {
    #[cfg(feature = "deflate")]
    pub(super) agreement: Option<Agreement>,
    pub(super) protocol: Option<Box<str>>,
    pub(super) response: Option<ServerResponse>,
    /// What was read behind the response.
    pub(super) rest: Vec<u8>,
}

impl Handshake {
    /// The dialogue, and the request.
    pub(super) fn new(
        settings: Arc<Settings>,
        target: Arc<Target>,
    ) -> Result<(Self, Vec<u8>), RequestError> {
        let key = settings.config.random_key();
        let head = HeadReader::new(settings.config.settings().head_limits);
        let it = Self { settings, target, key, keeps_response: false, head, refused: None };
        let mut out = Vec::new();
        let Some(credentials) = &it.target.credentials else {
            it.request().write(&mut out)?;
            return Ok((it, out));
        };
        // A header of the caller comes before the user of the URL.
        let is_authorization =
            |(name, _): &(String, String)| name.eq_ignore_ascii_case("Authorization");
        let basic = credentials.basic();
        let request = match it.settings.headers.iter().any(is_authorization) {
            true => it.request(),
            false => it.request().header("Authorization", &basic),
        };
        request.write(&mut out)?;
        Ok((it, out))
    }

    fn request(&self) -> ClientRequest<'_> {
        let Self { settings, target, key, .. } = self;
        let mut request = ClientRequest::new(&target.authority, &target.resource, *key);
        if let Some(origin) = &settings.origin {
            request = request.origin(origin);
        }
        for protocol in &settings.protocols {
            request = request.protocol(protocol);
        }
        for (name, value) in &settings.headers {
            request = request.header(name, value);
        }
        #[cfg(feature = "deflate")]
        if let Some(deflate) = &settings.config.settings().deflate {
            request = request.deflate(deflate);
        }
        request
    }

    /// The response other than 101 as far as it has come.
    pub(super) fn take_refusal(&mut self) -> Option<ConnectError> {
        let body = self.refused.take()?;
        Some(ConnectError::Refused(Box::new(body.response)))
    }
}

impl Dialogue for Handshake {
    type Output = Accepted;
    type Error = ConnectError;

    fn input(
        &mut self,
        mut bytes: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<Option<Accepted>, ConnectError> {
        let failed = |error| ConnectError::Handshake(ClientError::Response(error));
        while self.refused.is_none() {
            let mut head = std::mem::replace(&mut self.head, HeadReader::new(HeadLimits::DEFAULT));
            let Some((response, used)) = head.response(bytes).map_err(failed)? else {
                self.head = head;
                return Ok(None);
            };
            bytes = &bytes[used..];
            match response.status() {
                101 => {
                    let negotiated = self.request().check(response).map_err(failed)?;
                    return Ok(Some(Accepted {
                        #[cfg(feature = "deflate")]
                        agreement: negotiated.deflate,
                        protocol: negotiated.protocol.map(Into::into),
                        response: self.keeps_response.then(|| head_of(&response)),
                        rest: bytes.to_vec(),
                    }));
                }
                // Interim responses (RFC 9110 section 15.2).
                100..=199 => self.head = head,
                _ => self.refused = Some(BodyReader::new(&response)),
            }
        }
        let is_done = self.refused.as_mut().is_some_and(|body| body.input(bytes) || body.is_done());
        if is_done { self.take_refusal().map_or(Ok(None), Err) } else { Ok(None) }
    }

    fn end(&mut self) -> ConnectError {
        self.take_refusal().unwrap_or(ConnectError::Handshake(ClientError::Ended))
    }

    fn failed(&mut self, error: io::Error) -> ConnectError {
        // A server may reset the connection behind its response.
        self.take_refusal().unwrap_or(ConnectError::Handshake(ClientError::Io(error)))
    }
}
