//! Values without a stream: codes, text, URLs, buffers, settings.

use std::{
    borrow::{Borrow as _, Cow},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Cursor, ErrorKind},
};

use bytes::{Buf as _, Bytes, BytesMut};
use windlass_testkit::panics::caught;

use crate::stream::{Script, Step};

compare! {
    fn opcodes(log) {
        use ws::protocol::frame::coding::OpCode;
        for number in 0..16 {
            let code = OpCode::from(number);
            log.note("from", (code, code.to_string(), u8::from(code)));
            match code {
                OpCode::Data(data) => log.note("data", data.to_string()),
                OpCode::Control(control) => log.note("control", control.to_string()),
            }
        }
        log.note("too large", caught(|| OpCode::from(16)).is_err());
    }

    fn close_codes(log) {
        use ws::protocol::frame::coding::CloseCode;
        for number in 0..=u16::MAX {
            let code = CloseCode::from(number);
            log.note("from", (code, code.to_string(), code.is_allowed()));
            log.note("into", (u16::from(code), u16::from(&code)));
        }
    }

    fn text(log) {
        use ws::Utf8Bytes;
        let all = [
            Utf8Bytes::from_static("zwölf"),
            Utf8Bytes::from("zwölf"),
            Utf8Bytes::from("zwölf".to_owned()),
            Utf8Bytes::from(&"zwölf".to_owned()),
            Utf8Bytes::try_from("zwölf".as_bytes().to_vec()).unwrap(),
            Utf8Bytes::try_from(Bytes::from("zwölf")).unwrap(),
            Utf8Bytes::try_from(BytesMut::from("zwölf")).unwrap(),
            Utf8Bytes::default(),
        ];
        for text in all {
            let mut hasher = DefaultHasher::new();
            text.hash(&mut hasher);
            log.note("hash", hasher.finish());
            let borrowed: &str = text.borrow();
            log.note("borrow", borrowed);
            log.note("deref", (text.len(), text.as_str(), text.to_string(), text.clone()));
            let (bytes, str, shared): (&[u8], &str, &Bytes) =
                (text.as_ref(), text.as_ref(), text.as_ref());
            log.note("as_ref", (bytes, str, shared));
            log.note("eq", (text == "zwölf", text == &"zwölf".to_owned()));
            log.note("eq", (text == "zwölf".to_owned(), text == Cow::from("zwölf")));
            log.note("cmp", (text.cmp(&"zz".into()), text.partial_cmp(&"a".into())));
            log.note("into", Bytes::from(text));
        }
        for bad in [&b"\xff"[..], b"a\xc3", b"\xed\xa0\x80"] {
            log.note("bad", Utf8Bytes::try_from(bad.to_vec()));
            log.note("bad", Utf8Bytes::try_from(Bytes::from(bad)));
            log.note("bad", Utf8Bytes::try_from(BytesMut::from(bad)));
        }
    }

    fn settings(log) {
        use ws::protocol::WebSocketConfig;
        let note = |log: &mut crate::log::Log, config: WebSocketConfig| {
            log.note("sizes", (config.read_buffer_size, config.write_buffer_size));
            log.note("sizes", (config.max_write_buffer_size, config.max_message_size));
            log.note("others", (config.max_frame_size, config.accept_unmasked_frames));
        };
        note(log, WebSocketConfig::default());
        let config = WebSocketConfig::default()
            .read_buffer_size(1)
            .write_buffer_size(2)
            .max_write_buffer_size(3)
            .max_message_size(Some(4))
            .max_frame_size(None)
            .accept_unmasked_frames(true);
        note(log, config);
        let role = ws::protocol::Role::Server;
        let mut socket = ws::WebSocket::from_raw_socket((), role, Some(config));
        socket.set_config(|config| config.max_message_size = None);
        note(log, *socket.get_config());
        let bad = WebSocketConfig::default().max_write_buffer_size(128 << 10);
        let make = || ws::WebSocket::from_raw_socket((), ws::protocol::Role::Client, Some(bad));
        log.note("panics", caught(make).is_err());
        log.note("can", (socket.can_read(), socket.can_write()));
        log.note("stream", (*socket.get_ref(), *socket.get_mut(), socket.into_inner()));
        log.note("role", (ws::protocol::Role::Server, ws::protocol::Role::Client));
    }

    fn buffers(log) {
        use ws::buffer::ReadBuffer;
        let mut buffer = ReadBuffer::<4>::new();
        let mut input = Cursor::new(b"Hello World!");
        for advance in [2, 4, 0, 1, 0] {
            log.note("read", buffer.read_from(&mut input));
            log.note("bytes", (buffer.remaining(), buffer.chunk().to_vec()));
            buffer.advance(advance);
            let cursor = buffer.as_cursor();
            log.note("cursor", (cursor.position(), cursor.get_ref()));
        }
        log.note("rest", buffer.into_vec());
        let mut buffer = ReadBuffer::<4>::from_partially_read(b"part".to_vec());
        buffer.as_cursor_mut().set_position(1);
        log.note("part", buffer.into_vec());
        log.note("empty", ReadBuffer::<4>::default().into_vec());
        log.note("capacity", ReadBuffer::<4>::with_capacity(9).into_vec());
        let mut failing = Script::new([Step::Fails(ErrorKind::Other)]);
        let mut buffer = ReadBuffer::<4>::from_partially_read(b"kept".to_vec());
        log.note("fails", (buffer.read_from(&mut failing).is_err(), buffer.into_vec()));
    }

    fn blocking(log) {
        use ws::util::{NonBlockingError as _, NonBlockingResult as _};
        for kind in [ErrorKind::WouldBlock, ErrorKind::BrokenPipe] {
            log.note("io", io::Error::from(kind).into_non_blocking());
            log.note("error", ws::Error::Io(kind.into()).into_non_blocking());
            log.note("result", Err::<u8, _>(io::Error::from(kind)).no_block());
            log.note("result", Err::<u8, _>(ws::Error::Io(kind.into())).no_block());
        }
        log.note("other", ws::Error::AttackAttempt.into_non_blocking());
        log.note("ok", Ok::<_, io::Error>(7).no_block());
    }

    fn urls(log) {
        use ws::client::{ClientRequestBuilder, IntoClientRequest as _, uri_mode};
        for url in ["ws://a", "wss://a", "http://a", "/a", "WS://a"] {
            log.note("mode", uri_mode(&url.parse().unwrap()));
        }
        let same_key = |request: ws::Result<ws::handshake::client::Request>| {
            request.map(|mut request| {
                let key = request.headers_mut().remove("Sec-WebSocket-Key");
                (request, key.map(|key| key.len()))
            })
        };
        for url in [
            "ws://localhost",
            "wss://user:pass@example.com:9001/a?b=c",
            "ws://[::1]:80/",
            "ws://user@",
            "/only/a/path",
            "a b",
            "",
            "example.com",
        ] {
            log.note("str", same_key(url.into_client_request()));
            log.note("String", same_key(url.to_owned().into_client_request()));
            log.note("&String", same_key((&url.to_owned()).into_client_request()));
            if let Ok(uri) = url.parse::<ws::http::Uri>() {
                log.note("&Uri", same_key((&uri).into_client_request()));
                log.note("Uri", same_key(uri.clone().into_client_request()));
                let builder = ClientRequestBuilder::new(uri)
                    .with_header("X-One", "1")
                    .with_header("X-One", "2")
                    .with_sub_protocol("a")
                    .with_sub_protocol("b");
                log.note("builder", same_key(builder.clone().into_client_request()));
                log.note("name", same_key(builder.with_header("a b", "").into_client_request()));
            }
            if let Ok(url) = url.parse::<url::Url>() {
                log.note("&Url", same_key((&url).into_client_request()));
                log.note("Url", same_key(url.into_client_request()));
            }
        }
        let builder = ClientRequestBuilder::new("ws://a".parse().unwrap());
        log.note("value", same_key(builder.with_header("a", "\n").into_client_request()));
        let request = ws::http::Request::builder().uri("ws://a").body(()).unwrap();
        log.note("request", same_key(request.into_client_request()));
        for head in [
            &b"GET /a HTTP/1.1\r\nA: b\r\n\r\n"[..],
            b"POST /a HTTP/1.1\r\n\r\n",
            b"GET /a HTTP/1.0\r\n\r\n",
        ] {
            let mut headers = [httparse::EMPTY_HEADER; 4];
            let mut request = httparse::Request::new(&mut headers);
            request.parse(head).unwrap();
            log.note("httparse", same_key(request.into_client_request()));
        }
    }

    fn streams(log) {
        use std::io::{Read as _, Write as _};
        use ws::stream::{MaybeTlsStream, Mode, NoDelay as _};
        log.note("mode", (Mode::Plain, Mode::Tls));
        let mut stream = MaybeTlsStream::Plain(Script::bytes("in"));
        let mut buffer = [0; 4];
        log.note("read", (stream.read(&mut buffer).unwrap(), buffer));
        log.note("write", (stream.write(b"out").unwrap(), stream.flush().unwrap()));
        let MaybeTlsStream::Plain(script) = stream else { panic!("it is plain") };
        log.note("written", script.written);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for on in [true, false] {
            ws::stream::NoDelay::set_nodelay(&mut tcp, on).unwrap();
            log.note("nodelay", tcp.nodelay().unwrap());
        }
        let mut tcp = MaybeTlsStream::Plain(tcp);
        tcp.set_nodelay(true).unwrap();
        let MaybeTlsStream::Plain(tcp) = tcp else { panic!("it is plain") };
        log.note("nodelay", tcp.nodelay().unwrap());
    }
}
