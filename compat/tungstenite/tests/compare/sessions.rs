//! Sessions after the handshake.

use std::io::ErrorKind;

use bytes::Bytes;

use crate::stream::{Script, Step, frame};

compare! {
    fn received_messages(log) {
        use ws::{WebSocket, protocol::Role};
        let long = vec![b'x'; 70_000];
        for role in [Role::Server, Role::Client] {
            let frame = |first, payload: &[u8]| frame(role == Role::Server, first, payload);
            let bytes = [
                frame(0x81, "zwölf".as_bytes()),
                frame(0x82, b""),
                frame(0x89, b"ping"),
                frame(0x01, "z\u{f6}".as_bytes()),
                frame(0x8a, b"pong"),
                frame(0x80, b"!"),
                frame(0x82, &long),
                frame(0x02, b"a"),
                frame(0x00, b""),
                frame(0x80, &long),
                frame(0x88, b"\x03\xe8bye"),
            ]
            .concat();
            for size in [1, 3, 1000, bytes.len()] {
                let steps = bytes.chunks(size).map(|bytes| Step::Bytes(bytes.to_vec()));
                let mut socket = WebSocket::from_raw_socket(Script::new(steps), role, None);
                for _ in 0..10 {
                    log.note("read", socket.read());
                    log.note("can", (socket.can_read(), socket.can_write()));
                }
                log.note("sent", socket.get_ref().frames());
            }
            let (part, rest) = bytes.split_at(7);
            let script = Script::bytes(rest);
            let mut socket = WebSocket::from_partially_read(script, part.to_vec(), role, None);
            log.note("part", (socket.read(), socket.read()));
        }
    }

    fn sent_messages(log) {
        use ws::{Message, WebSocket, protocol::{Role, frame::Frame}};
        use ws::protocol::frame::coding::{Data, OpCode};
        for role in [Role::Server, Role::Client] {
            let mut socket = WebSocket::from_raw_socket(Script::default(), role, None);
            log.note("write", socket.write(Message::text("first")));
            log.note("waits", socket.get_ref().written.len());
            log.note("send", socket.send(Message::binary(vec![7; 300])));
            log.note("sent", (socket.get_ref().frames(), socket.get_ref().flushes > 0));
            log.note("long", socket.write(Message::binary(vec![7; 200_000])));
            log.note("does not wait", socket.get_ref().written.len());
            for message in [
                Message::Ping(Bytes::from_static(b"ping")),
                Message::Pong(Bytes::from_static(b"pong")),
                Message::Frame(Frame::message(&b"a"[..], OpCode::Data(Data::Text), false)),
                Message::Frame(Frame::message(&b"b"[..], OpCode::Data(Data::Continue), true)),
            ] {
                log.note("send", socket.send(message));
            }
            log.note("close", socket.send(Message::Close(None)));
            log.note("can", (socket.can_read(), socket.can_write()));
            log.note("late", socket.send(Message::text("late")));
            log.note("again", socket.close(None));
            log.note("sent", socket.get_ref().frames());
            #[allow(deprecated, reason = "they are calls too")]
            {
                log.note("old", (socket.write_message(Message::text("x")), socket.write_pending()));
                log.note("old", socket.read_message());
            }
            log.note("over", (socket.read(), socket.send(Message::text("late"))));
        }
    }

    fn a_stream_that_blocks(log) {
        use ws::{Message, WebSocket, protocol::{Role, WebSocketConfig}};
        let config = WebSocketConfig::default().write_buffer_size(0).max_write_buffer_size(20);
        let mut script = Script::new([
            Step::Fails(ErrorKind::WouldBlock),
            Step::Bytes(frame(true, 0x81, b"split")[..4].to_vec()),
            Step::Fails(ErrorKind::WouldBlock),
            Step::Bytes(frame(true, 0x81, b"split")[4..].to_vec()),
            Step::Fails(ErrorKind::Interrupted),
        ]);
        script.writes = [0, 3, 0, 0, 1].into();
        let mut socket = WebSocket::from_raw_socket(script, Role::Server, Some(config));
        log.note("write", socket.write(Message::text("one")));
        log.note("write", socket.write(Message::text("two")));
        log.note("room", socket.write(Message::text("three")));
        log.note("full", socket.write(Message::text("0123456789")));
        log.note("flush", (socket.flush(), socket.flush()));
        log.note("sent", socket.get_ref().frames());
        for _ in 0..5 {
            log.note("read", socket.read());
        }
    }

    fn a_peer_that_pings_and_does_not_read(log) {
        use ws::{Message, WebSocket, protocol::Role};
        let pings = ["1", "2", "3"].map(|text| frame(true, 0x89, text.as_bytes()));
        let mut script = Script::bytes(pings.concat());
        script.writes = [0, 0, 0].into();
        let mut socket = WebSocket::from_raw_socket(script, Role::Server, None);
        log.note("read", (socket.read(), socket.read(), socket.read()));
        log.note("blocked", socket.get_ref().written.len());
        log.note("send", (socket.send(Message::text("x")), socket.flush()));
        log.note("sent", socket.get_ref().frames());
    }

    fn an_answer_that_was_blocked_is_written_by_a_later_read(log) {
        use ws::{WebSocket, protocol::Role};
        let blocks = || Step::Fails(ErrorKind::WouldBlock);
        let ping = Step::Bytes(frame(true, 0x89, b"ping"));
        let mut script = Script::new([ping, blocks(), blocks(), blocks()]);
        script.writes = [0, 1, 0].into();
        let mut socket = WebSocket::from_raw_socket(script, Role::Server, None);
        for _ in 0..4 {
            log.note("read", socket.read());
            log.note("written", socket.get_ref().written.len());
        }
        log.note("sent", socket.get_ref().frames());
    }

    fn a_pong_of_the_user_replaces_the_answer(log) {
        use ws::{Message, WebSocket, protocol::Role};
        let script = Script::bytes(frame(true, 0x89, b"ping"));
        let mut socket = WebSocket::from_raw_socket(script, Role::Server, None);
        log.note("read", socket.read());
        log.note("pong", socket.send(Message::Pong(Bytes::from_static(b"mine"))));
        log.note("sent", socket.get_ref().frames());
    }

    fn the_peer_closes(log) {
        use ws::{Message, WebSocket, protocol::Role};
        for role in [Role::Server, Role::Client] {
            let frame = |first, payload: &[u8]| frame(role == Role::Server, first, payload);
            for payload in [&b""[..], b"\x03\xe8", b"\x0f\xa0reason"] {
                for late in [vec![], frame(0x81, b"late")] {
                    let bytes = [frame(0x88, payload), late].concat();
                    let mut socket = WebSocket::from_raw_socket(Script::bytes(bytes), role, None);
                    log.note("read", (socket.read(), socket.can_read(), socket.can_write()));
                    log.note("write", socket.write(Message::text("late")));
                    log.note("then", (socket.read(), socket.read(), socket.read()));
                    log.note("sent", socket.get_ref().frames());
                }
                let script = Script::bytes(frame(0x88, payload));
                let mut socket = WebSocket::from_raw_socket(script, role, None);
                log.note("read", socket.read());
                log.note("flush", (socket.flush(), socket.close(None)));
                log.note("sent", socket.get_ref().frames());
            }
            let script = Script::new([
                Step::Bytes(frame(0x88, b"")),
                Step::Fails(ErrorKind::ConnectionReset),
            ]);
            let mut socket = WebSocket::from_raw_socket(script, role, None);
            log.note("reset", (socket.read(), socket.read()));
        }
    }

    fn this_side_closes(log) {
        use ws::{Message, WebSocket, protocol::{CloseFrame, Role}};
        use ws::protocol::frame::coding::CloseCode;
        for role in [Role::Server, Role::Client] {
            let frame = |first, payload: &[u8]| frame(role == Role::Server, first, payload);
            let bytes =
                [frame(0x81, b"still"), frame(0x89, b"ping"), frame(0x88, b"\x03\xe9")].concat();
            let mut socket = WebSocket::from_raw_socket(Script::bytes(bytes), role, None);
            let close = CloseFrame { code: CloseCode::Away, reason: "restart".into() };
            log.note("close", socket.close(Some(close)));
            for _ in 0..6 {
                log.note("read", socket.read());
                log.note("can", (socket.can_read(), socket.can_write()));
            }
            log.note("sent", socket.get_ref().frames());
            log.note("late", (socket.write(Message::text("late")), socket.flush()));
        }
    }

    fn the_stream_ends(log) {
        use ws::{WebSocket, protocol::Role};
        for role in [Role::Server, Role::Client] {
            for bytes in [vec![], frame(role == Role::Server, 0x81, b"whole")[..5].to_vec()] {
                let steps = (!bytes.is_empty()).then_some(Step::Bytes(bytes));
                let mut socket = WebSocket::from_raw_socket(Script::new(steps), role, None);
                log.note("read", (socket.read(), socket.read()));
            }
            let script = Script::new([Step::Fails(ErrorKind::ConnectionReset)]);
            let mut socket = WebSocket::from_raw_socket(script, role, None);
            log.note("reset", (socket.read(), socket.can_read()));
        }
    }

    fn contexts(log) {
        use ws::{Message, protocol::{Role, WebSocketConfig, WebSocketContext}};
        let mut stream = Script::bytes([frame(true, 0x81, b"hi"), frame(true, 0x88, b"")].concat());
        let mut context = WebSocketContext::new(Role::Server, None);
        log.note("read", context.read(&mut stream));
        log.note("write", context.write(&mut stream, Message::text("x")));
        log.note("flush", context.flush(&mut stream));
        log.note("can", (context.can_read(), context.can_write()));
        log.note("close", (context.read(&mut stream), context.close(&mut stream, None)));
        log.note("sent", stream.frames());
        let config = WebSocketConfig::default().max_frame_size(Some(1));
        let part = frame(false, 0x82, b"ab");
        let mut context = WebSocketContext::from_partially_read(part, Role::Client, Some(config));
        context.set_config(|config| config.max_frame_size = Some(2));
        log.note("config", context.get_config().max_frame_size);
        log.note("part", context.read(&mut Script::default()));
    }
}
