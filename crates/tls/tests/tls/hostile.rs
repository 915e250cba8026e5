//! Peers that do not speak TLS, or speak it badly.

use std::{io::Write, net::Shutdown};

use windlass::stream::{DisconnectReason, TlsFailure};

use crate::{
    Build,
    bed::{Log, Said, connect, localhost, read_to_end, serve, until},
};

fn plain_http_is_answered_clearly(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let address = serve(&mut reactor, localhost().build().unwrap(), &log);
    for parts in [vec![&b"GET / HTTP/1.1\r\n\r\n"[..]], vec![b"P", b"O", b"ST / HTTP/1.1\r\n"]] {
        let mut client = connect(address);
        for part in parts {
            client.write_all(part).unwrap();
            reactor.run_once(std::time::Duration::from_millis(10)).unwrap();
        }
        let answer = String::from_utf8(read_to_end(&mut reactor, &mut client)).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
        assert!(body.contains("wss://"), "{answer}");
        drop(client);
        until(&mut reactor, || log.closed().is_some());
        let reason = DisconnectReason::Tls(TlsFailure::PlainHttp);
        assert_eq!(log.take(), [Said::Close(reason)]);
    }
}

fn bytes_that_are_no_tls_are_rejected(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let address = serve(&mut reactor, localhost().build().unwrap(), &log);
    // The last one announces the longest record that a header can.
    for (bytes, failure) in [
        (&b"SSH-2.0-OpenSSH_9.2\r\n"[..], TlsFailure::NotTls),
        (&[0; 100], TlsFailure::NotTls),
        (&[0x16, 3, 1, 0xff, 0xff], TlsFailure::NotTls),
        // An alert in place of a ClientHello.
        (&[0x15, 3, 3, 0, 2, 2, 40], TlsFailure::AlertReceived(40)),
        // A handshake message that is not a ClientHello.
        (&[0x16, 3, 1, 0, 4, 14, 0, 0, 0], TlsFailure::ProtocolViolation),
    ] {
        let mut client = connect(address);
        client.write_all(bytes).unwrap();
        read_to_end(&mut reactor, &mut client);
        drop(client);
        until(&mut reactor, || log.closed().is_some());
        assert_eq!(log.take(), [Said::Close(DisconnectReason::Tls(failure))], "{bytes:?}");
    }
}

fn a_handshake_without_end_is_bounded(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let address = serve(&mut reactor, localhost().build().unwrap(), &log);
    let mut client = connect(address);
    // A ClientHello of 65,535 bytes, in records of one byte.
    let mut first = vec![0x16, 3, 1, 0, 4, 1, 0, 0xff, 0xff];
    let one = [0x16, 3, 1, 0, 1, 0];
    for _ in 0..20_000 {
        first.extend_from_slice(&one);
    }
    let (mut sent, mut most) = (0, 0);
    while log.closed().is_none() && sent < first.len() {
        // It fails once the server has closed the connection.
        sent += client.write(&first[sent..first.len().min(sent + 3000)]).unwrap_or(0);
        reactor.run_once(std::time::Duration::from_millis(1)).unwrap();
        most = most.max(reactor.stream_memory());
        if client.take_error().unwrap().is_some() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Write);
    drop(client);
    until(&mut reactor, || log.closed().is_some());
    let reason = DisconnectReason::Tls(TlsFailure::HandshakeTooLong);
    assert_eq!(log.take(), [Said::Close(reason)]);
    assert!(most < 100 << 10, "{most}");
}

/// Each length of a ClientHello's beginning, and each with a changed byte.
fn cut_and_changed_beginnings_end_without_a_panic(build: Build) {
    let mut reactor = build().build().unwrap();
    let log = Log::default();
    let acceptor = localhost().build().unwrap();
    let address = serve(&mut reactor, acceptor.clone(), &log);
    let mut hello = Vec::new();
    let config = std::sync::Arc::new(crate::bed::both());
    let mut tls = rustls::ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    tls.write_tls(&mut hello).unwrap();
    for len in (0..hello.len()).step_by(5) {
        for is_changed in [false, true] {
            let mut bytes = hello.clone();
            if is_changed {
                bytes[len] ^= 0x81;
            } else {
                bytes.truncate(len);
            }
            let mut client = connect(address);
            client.write_all(&bytes).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            until(&mut reactor, || log.closed().is_some());
            let said = log.take();
            assert!(matches!(said[..], [Said::Close(DisconnectReason::Tls(_))]), "{said:?}");
        }
    }
    let counts = acceptor.handshakes();
    assert_eq!(counts.started, counts.failed + counts.abandoned);
}

scenarios! {
    plain_http_is_answered_clearly,
    bytes_that_are_no_tls_are_rejected,
    a_handshake_without_end_is_bounded,
    cut_and_changed_beginnings_end_without_a_panic,
}
