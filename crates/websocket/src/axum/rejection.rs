//! Why a request is no request for a WebSocket.

use std::fmt;

use axum_core::response::{IntoResponse, Response};
use hyper::{Method, StatusCode};
use windlass_ws::handshake::Rejection;

use super::plain;
use crate::upgrade::Head;

macro_rules! rejections {
    ($($(#[$doc:meta])* $name:ident => $status:ident, $text:literal;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            #[non_exhaustive]
            pub struct $name;

            impl $name {
                /// The text of the response.
                #[must_use]
                pub fn body_text(&self) -> String {
                    self.to_string()
                }

                /// The status of the response.
                #[must_use]
                pub fn status(&self) -> StatusCode {
                    StatusCode::$status
                }
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str($text)
                }
            }

            impl std::error::Error for $name {}

            impl IntoResponse for $name {
                fn into_response(self) -> Response {
                    plain(StatusCode::$status, $text)
                }
            }

            impl From<$name> for WebSocketUpgradeRejection {
                fn from(rejection: $name) -> Self {
                    Self::$name(rejection)
                }
            }
        )+

        /// Why a request is no request for a WebSocket. The variants are those of axum, and
        /// [`MalformedRequest`].
        #[derive(Debug)]
        #[non_exhaustive]
        pub enum WebSocketUpgradeRejection {
            $($(#[$doc])* $name($name),)+
        }

        impl WebSocketUpgradeRejection {
            /// The text of the response.
            #[must_use]
            pub fn body_text(&self) -> String {
                self.to_string()
            }

            /// The status of the response.
            #[must_use]
            pub fn status(&self) -> StatusCode {
                match self {
                    $(Self::$name(rejection) => rejection.status(),)+
                }
            }
        }

        impl fmt::Display for WebSocketUpgradeRejection {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name(rejection) => rejection.fmt(f),)+
                }
            }
        }

        impl IntoResponse for WebSocketUpgradeRejection {
            fn into_response(self) -> Response {
                match self {
                    $(Self::$name(rejection) => rejection.into_response(),)+
                }
            }
        }
    };
}

rejections! {
    /// The method of a request of HTTP/1.1 is not GET.
    MethodNotGet => METHOD_NOT_ALLOWED, "Request method must be `GET`";
    /// The method of a request of HTTP/2 is not CONNECT.
    MethodNotConnect => METHOD_NOT_ALLOWED, "Request method must be `CONNECT`";
    /// The Connection header does not name Upgrade.
    InvalidConnectionHeader => BAD_REQUEST, "Connection header did not include 'upgrade'";
    /// The Upgrade header does not name WebSocket.
    InvalidUpgradeHeader => BAD_REQUEST, "`Upgrade` header did not include 'websocket'";
    /// The `:protocol` of a request of HTTP/2 is not `websocket`.
    InvalidProtocolPseudoheader => BAD_REQUEST,
        "`:protocol` pseudo-header did not include 'websocket'";
    /// The version of the protocol is not 13.
    InvalidWebSocketVersionHeader => BAD_REQUEST,
        "`Sec-WebSocket-Version` header did not include '13'";
    /// The key is missing or malformed.
    WebSocketKeyHeaderMissing => BAD_REQUEST, "`Sec-WebSocket-Key` header missing";
    /// The connection cannot be upgraded, for example because it is of HTTP/1.0.
    ConnectionNotUpgradable => UPGRADE_REQUIRED,
        "WebSocket request couldn't be upgraded since no upgrade state was present";
    /// Another header is malformed, or the head is too long.
    MalformedRequest => BAD_REQUEST, "malformed WebSocket request";
}

impl std::error::Error for WebSocketUpgradeRejection {}

impl WebSocketUpgradeRejection {
    pub(super) fn of(rejection: Rejection, head: &Head, method: &Method) -> Self {
        let is_connect = *method == Method::CONNECT;
        match rejection {
            _ if head.is_http2 && !is_connect => MethodNotConnect.into(),
            Rejection::MethodNotAllowed | Rejection::UnknownMethod if !head.is_http2 => {
                MethodNotGet.into()
            }
            Rejection::MethodNotAllowed | Rejection::NotAnUpgrade if head.is_http2 => {
                InvalidProtocolPseudoheader.into()
            }
            Rejection::NotAnUpgrade => InvalidUpgradeHeader.into(),
            Rejection::Connection => InvalidConnectionHeader.into(),
            Rejection::WebSocketVersion => InvalidWebSocketVersionHeader.into(),
            Rejection::Key => WebSocketKeyHeaderMissing.into(),
            Rejection::HttpVersion => ConnectionNotUpgradable.into(),
            _ => MalformedRequest.into(),
        }
    }
}
