//! Connections over TCP: each crate as the client and as the server of the other.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread,
};

/// Echoes until the end, with one crate.
macro_rules! serve {
    ($ws:ident, $listener:expr) => {
        thread::spawn(move || {
            let (stream, _) = $listener.accept().unwrap();
            let mut socket = $ws::accept(stream).unwrap();
            loop {
                match socket.read() {
                    Ok(message) if message.is_text() || message.is_binary() => {
                        socket.send(message).unwrap();
                    }
                    Ok(_) => {}
                    Err(error) => return error.to_string(),
                }
            }
        })
    };
}

macro_rules! pair {
    ($name:ident, $client:ident, $server:ident) => {
        #[test]
        fn $name() {
            use $client::{Error, Message, connect};
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("ws://{}/", listener.local_addr().unwrap());
            let server = serve!($server, listener);
            let (mut socket, response) = connect(url).unwrap();
            assert_eq!(response.status(), 101);
            for len in [0, 1, 125, 126, 1000, 70_000, 1 << 20] {
                for message in [Message::text("x".repeat(len)), Message::binary(vec![0xff; len])] {
                    socket.send(message.clone()).unwrap();
                    assert_eq!(socket.read().unwrap(), message);
                }
            }
            socket.close(None).unwrap();
            assert_eq!(socket.read().unwrap(), Message::Close(None));
            // The server closes first.
            drop(server.join().unwrap());
            assert!(matches!(socket.read(), Err(Error::ConnectionClosed)));
            assert!(matches!(socket.read(), Err(Error::AlreadyClosed)));
        }
    };
}

pair!(ours_with_ours, windlass_tungstenite, windlass_tungstenite);
pair!(ours_with_theirs, windlass_tungstenite, tungstenite);
pair!(theirs_with_ours, tungstenite, windlass_tungstenite);

/// Answers each connection with one of these heads, after the request.
fn answer(heads: Vec<String>) -> (u16, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let answer_one = |head: String| {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut bytes, mut buffer) = (Vec::new(), [0; 1024]);
            while !bytes.ends_with(b"\r\n\r\n") {
                let count = stream.read(&mut buffer).unwrap();
                assert!(count > 0, "the client has not sent a request");
                bytes.extend(&buffer[..count]);
            }
            stream.write_all(head.as_bytes()).unwrap();
            let request = String::from_utf8(bytes).unwrap();
            request.lines().next().unwrap().to_owned()
        };
        heads.into_iter().map(answer_one).collect()
    });
    (port, server)
}

compare! {
    fn redirections(log) {
        use ws::{Error, client::connect_with_config};
        let redirect = |to: &str| format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\n\r\n");
        let end = "HTTP/1.1 403 Forbidden\r\n\r\n".to_owned();
        for redirects_max in [0, 1, 3] {
            let (last_port, last) = answer(vec![end.clone()]);
            let there = format!("ws://127.0.0.1:{last_port}/there");
            let (port, first) = answer(vec![redirect(&there)]);
            let url = format!("ws://127.0.0.1:{port}/here");
            match connect_with_config(url, None, redirects_max) {
                Err(Error::Http(response)) => {
                    log.note("status", (response.status(), response.body()));
                }
                other => panic!("{other:?}"),
            }
            log.note("first", first.join().unwrap());
            if redirects_max > 0 {
                log.note("last", last.join().unwrap());
            }
        }
        let (port, server) = answer(vec!["HTTP/1.1 302 Found\r\n\r\n".to_owned()]);
        match ws::connect(format!("ws://127.0.0.1:{port}/")) {
            Err(Error::Http(response)) => log.note("without a place", response.status()),
            other => panic!("{other:?}"),
        }
        log.note("server", server.join().unwrap());
    }

    fn urls_that_cannot_be_opened(log) {
        use ws::{Error, error::UrlError};
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = ws::connect(format!("ws://{free}/")).unwrap_err();
        log.note("refused", matches!(error, Error::Url(UrlError::UnableToConnect(_))));
        for url in ["http://localhost/", "ws:///", "/", "not a url"] {
            log.note("url", ws::connect(url).map(|_| ()));
        }
    }
}
