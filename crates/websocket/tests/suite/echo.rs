//! Messages that come back.

use windlass_websocket::{CloseCode, Config, Message, Role};

use crate::{
    bed::{Manner, both, connected, poll_once, run, sockets},
    peer::{Frame, TEXT, frames, socket_and_peer},
};

/// Messages of both kinds, with lengths around the limits of the frame's forms.
pub(crate) fn messages() -> Vec<Message> {
    let lens = [0, 1, 20, 125, 126, 127, 4096, 65_535, 65_536, 200_000];
    let texts = lens.map(|len| Message::from("zwölf ".repeat(len).get(..len).unwrap_or("ab")));
    let bytes = lens.map(|len| Message::from((0..len).map(|at| at as u8).collect::<Vec<_>>()));
    texts.into_iter().chain(bytes).collect()
}

#[test]
fn what_is_replied_comes_back_in_order() {
    for manner in [Manner::SMOOTH, Manner { chunk: 1000, ..Manner::BYTE_BY_BYTE }] {
        let (mut server, mut client) = connected(manner, &Config::new(), &Config::new());
        let echo = async {
            while let Some(message) = server.recv().await.expect("the client is good") {
                message.reply().expect("the connection is open");
            }
        };
        let exchange = async {
            for message in messages() {
                client.send(&message).await.expect("the connection is open");
                let received = client.recv().await.expect("the server is good").expect("an echo");
                assert_eq!(received.to_message(), Some(message));
            }
            for message in messages() {
                client.feed(message).await.expect("the connection is open");
            }
            client.flush().await.expect("the connection is open");
            for message in messages() {
                let received = client.recv().await.expect("the server is good").expect("an echo");
                assert_eq!(received.to_message(), Some(message));
            }
            client.close(CloseCode::NORMAL, "done").await.expect("it is answered");
        };
        both(echo, exchange);
        let close = server.peer_close().expect("the client has closed");
        assert_eq!((close.code, close.reason.as_str()), (Some(CloseCode::NORMAL), "done"));
        assert!(server.own_close().is_none(), "it has answered only");
    }
}

#[test]
fn a_message_is_changed_and_sent_back_where_it_lies() {
    let (mut server, mut client) = sockets(Manner::SMOOTH, &Config::new());
    let echo = async {
        while let Some(mut message) = server.recv().await.expect("the client is good") {
            match message.bytes_mut() {
                Some(bytes) => bytes.reverse(),
                None => message.change_text(<[u8]>::make_ascii_uppercase).expect("it is UTF-8"),
            }
            message.reply().expect("the connection is open");
        }
    };
    let exchange = async {
        client.send("zwölf").await.expect("the connection is open");
        client.send(&[1, 2, 3]).await.expect("the connection is open");
        let text = client.recv().await.expect("the server is good").expect("an echo");
        assert_eq!(text.as_str(), Some("ZWöLF"));
        let bytes = client.recv().await.expect("the server is good").expect("an echo");
        assert_eq!(bytes.as_bytes(), [3, 2, 1]);
        client.close(CloseCode::NORMAL, "").await.expect("it is answered");
    };
    both(echo, exchange);
}

#[test]
fn a_text_that_is_changed_to_something_else_is_not_sent() {
    let (mut server, mut client) = sockets(Manner::SMOOTH, &Config::new());
    run(client.send("text")).expect("the connection is open");
    let mut message = run(server.recv()).expect("it is good").expect("a message");
    let broken = message.change_text(|bytes| bytes[0] = 0xff);
    assert!(broken.is_err());
    assert_eq!((message.as_str(), message.to_message()), (None, None));
    message.change_text(|bytes| bytes[0] = b'T').expect("it is mended");
    assert_eq!(message.as_str(), Some("Text"));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = message.change_text(|bytes| {
            bytes[0] = 0xff;
            panic!("by the test");
        });
    }));
    assert!(panicked.is_err());
    assert_eq!(message.as_str(), None);
    let refused = message.reply();
    assert!(matches!(refused, Err(windlass_websocket::SendError::NotUtf8)), "{refused:?}");
    assert_eq!(server.buffered(), 0);
}

/// A server writes its head and its payload by one call, which may take any part of them.
#[test]
fn a_long_owned_message_goes_on_where_a_vectored_write_stopped() {
    let manner = Manner { is_vectored: true, ..Manner::SMOOTH };
    for len in [1024, 65_536] {
        let message = Message::from((0..len).map(|at| at as u8).collect::<Vec<_>>());
        let head_len = if len < 65_536 { 4 } else { 10 };
        let frame_len = head_len + len;
        // Within the head, at its end, within the payload, at the end.
        for taken in [1, head_len - 1, head_len, head_len + 1, frame_len - 1, frame_len] {
            for stutters in [false, true] {
                let manner = Manner { capacity: taken, stutters, ..manner };
                let (mut server, mut peer) = socket_and_peer(manner, Role::Server, &Config::new());
                let sent = poll_once(server.send(message.clone()));
                peer.read();
                if stutters {
                    // The first write takes nothing, and the second is that of the flush.
                    assert!(sent.is_pending());
                } else {
                    assert_eq!(sent.is_ready(), taken == frame_len, "{taken} of {frame_len}");
                    assert_eq!(peer.bytes.len(), taken);
                }
                assert_eq!(server.buffered(), frame_len - peer.bytes.len());
                while server.buffered() > 60_000 {
                    let _ = poll_once(server.flush());
                    peer.read();
                }
                run(server.feed("next")).expect("it is open");
                while poll_once(server.flush()).is_pending() {
                    peer.read();
                }
                peer.read();
                let expected = [Frame::of(&message), Frame::new(TEXT, "next")];
                assert!(frames(&peer.bytes) == (expected.into(), 0), "{taken} of {frame_len}");
            }
        }
    }
}
