//! Messages and single frames as values.

use std::io::Cursor;

use bytes::Bytes;

use crate::stream::{Script, Step};

compare! {
    fn messages(log) {
        use ws::protocol::frame::{CloseFrame, Frame, coding::CloseCode};
        use ws::Message;
        let close = CloseFrame { code: CloseCode::Away, reason: "gone".into() };
        log.note("close", (close.to_string(), &close));
        let all = [
            Message::text("zwölf"),
            Message::from("a".to_owned()),
            Message::from(""),
            Message::binary(&b"\xff"[..]),
            Message::from(&b"abc"[..]),
            Message::from(Bytes::from_static(b"x")),
            Message::from(vec![1, 2, 3]),
            Message::Ping(Bytes::from_static(b"ping")),
            Message::Pong(Bytes::from_static(b"\xc3")),
            Message::Close(None),
            Message::Close(Some(close)),
            Message::Frame(Frame::ping(&b"raw"[..])),
            Message::Frame(Frame::pong(&b"\xff"[..])),
        ];
        for message in &all {
            let is = [message.is_text(), message.is_binary(), message.is_ping(), message.is_pong()];
            log.note("is", (is, message.is_close(), message.is_empty(), message.len()));
            log.note("text", (message.to_text(), message.clone().into_text()));
            log.note("data", (message.clone().into_data(), Bytes::from(message.clone())));
            log.note("show", (message.to_string(), message));
            log.note("eq", all.iter().map(|other| other == message).collect::<Vec<_>>());
        }
    }

    fn frames(log) {
        use ws::protocol::frame::{CloseFrame, Frame, FrameHeader};
        use ws::protocol::frame::coding::{CloseCode, Control, Data, OpCode};
        let masked = FrameHeader {
            mask: Some([1, 2, 3, 4]),
            opcode: OpCode::Data(Data::Text),
            ..FrameHeader::default()
        };
        let strange = FrameHeader {
            is_final: false,
            rsv1: true,
            rsv2: false,
            rsv3: true,
            opcode: OpCode::Control(Control::Reserved(12)),
            mask: None,
        };
        let mut changed = Frame::ping(&b"x"[..]);
        changed.header_mut().rsv2 = true;
        let all = [
            Frame::message(&b"text"[..], OpCode::Data(Data::Text), true),
            Frame::message(vec![0xff; 200], OpCode::Data(Data::Continue), false),
            Frame::message(vec![7; 70_000], OpCode::Data(Data::Binary), true),
            Frame::ping(Bytes::new()),
            Frame::pong(&b"pong"[..]),
            Frame::close(None),
            Frame::close(Some(CloseFrame { code: CloseCode::Size, reason: "big".into() })),
            Frame::from_payload(masked.clone(), Bytes::from_static(b"masked")),
            Frame::from_payload(strange.clone(), Bytes::from_static(b"?")),
            changed,
        ];
        for frame in all {
            log.note("frame", &frame);
            log.note("len", (frame.len(), frame.is_empty(), frame.header(), frame.payload()));
            log.note("text", (frame.to_text(), frame.clone().into_text()));
            log.note("payload", frame.clone().into_payload());
            log.note("shows the payload", frame.to_string().contains("payload: 0x"));
            let mut bytes = Vec::new();
            log.note("format", (frame.format(&mut bytes), bytes));
        }
        for header in [FrameHeader::default(), masked, strange] {
            for length in [0, 125, 126, 0xffff, 0x1_0000, u64::MAX] {
                let mut bytes = Vec::new();
                log.note("header", (header.len(length), header.format(length, &mut bytes)));
                for end in 0..=bytes.len() {
                    let mut cursor = Cursor::new(&bytes[..end]);
                    log.note("parse", FrameHeader::parse(&mut cursor));
                    if header.opcode != OpCode::Control(Control::Reserved(12)) {
                        log.note("position", cursor.position());
                    }
                }
                let mut behind = vec![9; 3];
                behind.append(&mut bytes);
                let mut cursor = Cursor::new(behind);
                cursor.set_position(3);
                log.note("from a position", FrameHeader::parse(&mut cursor));
            }
        }
    }

    fn frame_sockets(log) {
        use ws::protocol::frame::{Frame, FrameSocket};
        let input =
            [&b"\x82\x03abc\x01\x81\x01\x02\x03\x04x"[..], b"\x8a\x00\x82\x09rest"].concat();
        for size in [1, 2, 5, input.len()] {
            let steps = input.chunks(size).map(|bytes| Step::Bytes(bytes.to_vec()));
            let mut socket = FrameSocket::new(Script::new(steps));
            for _ in 0..4 {
                log.note("read", socket.read(None));
            }
            log.note("get", (socket.get_ref().flushes, socket.get_mut().flushes));
            let (_, rest) = socket.into_inner();
            log.note("rest", rest.ends_with(b"rest"));
        }
        let (script, part) = (Script::bytes("bc"), b"\x82\x03a".to_vec());
        let mut socket = FrameSocket::from_partially_read(script, part);
        log.note("part", socket.read(Some(3)));
        let huge = &b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"[..];
        for bytes in [&b"\x82\x03abc"[..], b"\x83\x00", huge] {
            log.note("bad", FrameSocket::new(Script::bytes(bytes)).read(Some(2)));
        }
        let mut script = Script::default();
        script.writes = [0, 1, 0].into();
        let mut socket = FrameSocket::new(script);
        log.note("write", socket.write(Frame::ping(&b"one"[..])));
        log.note("send", socket.send(Frame::pong(&b"two"[..])));
        log.note("written", socket.get_ref().written.clone());
        log.note("flush", socket.flush());
        log.note("written", (socket.get_ref().written.clone(), socket.get_ref().flushes));
    }
}
