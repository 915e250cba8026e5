//! What a peer must not send.

use crate::stream::{Script, Step, frame};

compare! {
    fn violations(log) {
        use ws::{WebSocket, protocol::Role};
        for role in [Role::Server, Role::Client] {
            let masked = role == Role::Server;
            let frame = |first, payload: &[u8]| frame(masked, first, payload);
            let all = [
                frame(0x91, b""),
                frame(0xa2, b""),
                frame(0xc1, b""),
                frame(0x83, b""),
                frame(0x8f, b""),
                crate::stream::frame(!masked, 0x81, b"x"),
                frame(0x09, b""),
                frame(0x89, &[0; 126]),
                frame(0x80, b"x"),
                frame(0x00, b"x"),
                [frame(0x01, b"a"), frame(0x82, b"b")].concat(),
                [frame(0x02, b"a"), frame(0x81, b"b")].concat(),
                frame(0x88, b"x"),
            ];
            for bytes in all {
                for size in [1, bytes.len()] {
                    let steps = bytes.chunks(size).map(|bytes| Step::Bytes(bytes.to_vec()));
                    let mut socket = WebSocket::from_raw_socket(Script::new(steps), role, None);
                    log.note("read", socket.read());
                }
            }
            for text in [frame(0x81, b"\xff"), frame(0x88, b"\x03\xe8\xff")] {
                let mut socket = WebSocket::from_raw_socket(Script::bytes(text), role, None);
                log.note("text", matches!(socket.read(), Err(ws::Error::Utf8(_))));
            }
            for code in [999_u16, 1004, 1005, 1006, 1015, 1016, 2999, 5000] {
                let bytes = frame(0x88, &code.to_be_bytes());
                let mut socket = WebSocket::from_raw_socket(Script::bytes(bytes), role, None);
                log.note("close", (socket.read(), socket.can_read(), socket.can_write()));
                log.note("then", (socket.read(), socket.read()));
            }
        }
    }

    fn limits(log) {
        use ws::{WebSocket, protocol::{Role, WebSocketConfig}};
        let config = WebSocketConfig::default().max_message_size(Some(10)).max_frame_size(Some(8));
        let server = |bytes: Vec<u8>, config| {
            WebSocket::from_raw_socket(Script::bytes(bytes), Role::Server, Some(config))
        };
        let frame = |first, payload: &[u8]| frame(true, first, payload);
        for bytes in [
            frame(0x82, &[7; 8]),
            frame(0x82, &[7; 9]),
            [frame(0x02, &[7; 8]), frame(0x80, &[7; 2])].concat(),
            [frame(0x01, &[7; 8]), frame(0x80, &[7; 3])].concat(),
        ] {
            let mut socket = server(bytes, config);
            log.note("read", socket.read());
        }
        let two = [frame(0x82, &[7; 5]), frame(0x82, &[7; 5])].concat();
        let mut socket = server(two, config);
        log.note("before", socket.read());
        socket.set_config(|config| config.max_message_size = Some(4));
        log.note("after", socket.read());
        let none = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let bytes = frame(0x82, &[7; 100_000]);
        let mut socket = server(bytes, none);
        log.note("no limit", socket.read().unwrap().len());
    }

    fn unmasked_frames(log) {
        use ws::{WebSocket, protocol::{Role, WebSocketConfig}};
        let config = WebSocketConfig::default().accept_unmasked_frames(true);
        let server = |bytes: Vec<u8>, config| {
            WebSocket::from_raw_socket(Script::bytes(bytes), Role::Server, Some(config))
        };
        let bytes = [frame(false, 0x81, b"plain"), frame(true, 0x81, b"masked")].concat();
        let mut socket = server(bytes, config);
        log.note("read", (socket.read(), socket.read()));
    }
}
