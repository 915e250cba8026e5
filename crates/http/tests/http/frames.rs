//! HTTP/2 frame by frame, over a stream in memory.

use std::{future::poll_fn, rc::Rc, task::Poll, time::Duration};

use hyper::service::service_fn;
use windlass_http::HttpServer;
use windlass_task::{spawn, time::sleep};

use crate::{
    scenarios::Build,
    stalls::frame,
    tools::{Log, answer, run_paused},
    wire::{OneWire, Wire},
};

/// Longer than what a paused clock needs to run all tasks.
const MOMENT: Duration = Duration::from_millis(1);

/// The kinds and flags of RFC 9113 section 6.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// GET, http, and the authority, by the static table (RFC 7541 appendix A). The path is there too.
const ROOT: &[u8] = b"\x82\x86\x84\x41\x04here";
const INDEX: &[u8] = b"\x82\x86\x85\x41\x04here";

#[derive(Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    payload: Vec<u8>,
}

fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let [a, b, c, kind, flags, _, _, _, _, rest @ ..] = bytes {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let (payload, rest) = rest.split_at(length);
        frames.push(Frame { kind: *kind, flags: *flags, payload: payload.to_vec() });
        bytes = rest;
    }
    assert!(bytes.is_empty(), "a part of a frame: {bytes:?}");
    frames
}

fn of_kind(frames: &[Frame], kind: u8) -> Vec<&Frame> {
    frames.iter().filter(|frame| frame.kind == kind).collect()
}

/// The preface, settings and a request.
fn request(head: &[u8]) -> Vec<u8> {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let head = frame(HEADERS, END_STREAM | END_HEADERS, 1, head);
    [preface, frame(SETTINGS, 0, 0, &[]), head].concat()
}

/// The shutdown begins between the accept of a connection and the first poll of its task.
fn a_request_of_http2_that_comes_with_the_shutdown_is_answered(build: Build) {
    run_paused(build, async {
        let (log, wire) = (Log::default(), Rc::new(Wire::default()));
        wire.push(request(ROOT));
        let mut polls = 0;
        let until = poll_fn(move |_| {
            polls += 1;
            if polls == 1 { Poll::Pending } else { Poll::Ready(()) }
        });
        let listener = OneWire(Some(Rc::clone(&wire)));
        let server = spawn(log.server().serve_until(listener, service_fn(answer), until));
        sleep(MOMENT).await;
        let frames = frames(&wire.written_bytes());
        let [head] = of_kind(&frames, HEADERS)[..] else { panic!("{frames:?}") };
        // The status 200 of the static table.
        assert_eq!(head.payload[0], 0x88, "{frames:?}");
        let data = of_kind(&frames, DATA);
        assert_eq!(
            data.iter().flat_map(|frame| &frame.payload[..]).copied().collect::<Vec<_>>(),
            b"hello"
        );
        assert_eq!(of_kind(&frames, GOAWAY).len(), 1, "{frames:?}");
        // It has asked the peer whether more requests are on their way.
        assert!(!server.is_finished() && !wire.is_dropped());
        wire.put(Ok(Vec::new()));
        server.await.unwrap().unwrap();
        assert!(wire.is_dropped());
        assert_eq!(log.lines(), [""; 0]);
    });
}

/// No frame without bytes follows, for the end alone.
fn the_last_frame_with_content_ends_its_stream(build: Build) {
    run_paused(build, async {
        for (head, flags, content) in
            [(ROOT, END_HEADERS, Some("hello")), (INDEX, END_HEADERS | END_STREAM, None)]
        {
            let wire = Rc::new(Wire::default());
            wire.push(request(head));
            let listener = OneWire(Some(Rc::clone(&wire)));
            let server = spawn(HttpServer::new().serve(listener, service_fn(answer)));
            sleep(MOMENT).await;
            let frames = frames(&wire.written_bytes());
            let [head] = of_kind(&frames, HEADERS)[..] else { panic!("{frames:?}") };
            assert_eq!(head.flags, flags, "{frames:?}");
            let data = of_kind(&frames, DATA);
            assert_eq!(data.len(), usize::from(content.is_some()), "{frames:?}");
            for data in data {
                assert_eq!(data.payload, content.unwrap().as_bytes());
                assert_eq!(data.flags, END_STREAM, "{frames:?}");
            }
            server.abort();
        }
    });
}

scenarios! {
    a_request_of_http2_that_comes_with_the_shutdown_is_answered,
    the_last_frame_with_content_ends_its_stream,
}
