//! Errors as values.

use std::{error::Error as _, io};

use crate::stream::{Script, Step};

compare! {
    fn conversions(log) {
        use ws::error::{CapacityError, Error, ProtocolError, SubProtocolError, TlsError, UrlError};
        let invalid = vec![0xff];
        let header = ws::http::HeaderName::from_bytes(b"a b").unwrap_err();
        let value = ws::http::HeaderValue::from_bytes(b"\n").unwrap_err();
        let text = ws::http::HeaderValue::from_bytes(b"\xff").unwrap().to_str().unwrap_err();
        let all = [
            Error::from(io::Error::from(io::ErrorKind::Other)),
            Error::from(CapacityError::TooManyHeaders),
            Error::from(CapacityError::MessageTooLong { size: 2, max_size: 1 }),
            Error::from(ProtocolError::from(httparse::Error::Token)),
            Error::from(ProtocolError::SecWebSocketSubProtocolError(
                SubProtocolError::NoSubProtocol,
            )),
            Error::from(UrlError::NoHostName),
            Error::from(std::str::from_utf8(&invalid).unwrap_err()),
            Error::from(String::from_utf8(invalid.clone()).unwrap_err()),
            Error::from(header),
            Error::from(value),
            Error::from(text),
            Error::from("a b".parse::<ws::http::Uri>().unwrap_err()),
            Error::from(ws::http::StatusCode::from_u16(1).unwrap_err()),
            Error::from(httparse::Error::TooManyHeaders),
            Error::from(httparse::Error::NewLine),
            Error::ConnectionClosed,
            Error::AlreadyClosed,
            Error::AttackAttempt,
            Error::Utf8("text".to_owned()),
            Error::WriteBufferFull(Box::new(ws::Message::text("x"))),
            Error::Http(Box::new(ws::http::Response::new(None))),
        ];
        for error in all {
            log.note("error", &error);
            log.note("source", error.source().is_some());
        }
        fn is_error<T: std::error::Error + Send + Sync + 'static>() {}
        is_error::<Error>();
        is_error::<TlsError>();
        log.note("equal", UrlError::NoHostName == UrlError::EmptyHostName);
        log.note("sizes", (size_of::<Error>() <= 32, size_of::<TlsError>() <= 16));
        log.note("size", size_of::<ProtocolError>() <= 16);
    }

    fn handshake_errors(log) {
        use ws::handshake::HandshakeError;
        let script = Script::new([Step::Fails(io::ErrorKind::WouldBlock)]);
        match ws::accept(script) {
            Err(HandshakeError::Interrupted(mut mid)) => {
                log.note("stream", mid.get_ref().get_ref().flushes);
                log.note("stream", mid.get_mut().get_mut().flushes);
            }
            other => panic!("{other:?}"),
        }
        let error = ws::accept(Script::default()).unwrap_err();
        log.note("source", error.source().is_some());
        match error {
            HandshakeError::Failure(error) => log.note("failure", error),
            HandshakeError::Interrupted(_) => panic!("the stream has ended"),
        }
    }
}
