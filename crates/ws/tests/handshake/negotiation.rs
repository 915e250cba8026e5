//! permessage-deflate in the handshake (RFC 7692 section 7.1).

use windlass_ws::deflate::{Agreement, Compressor, DeflateConfig};
use windlass_ws::handshake::{AcceptOptions, ClientRequest, HandshakeError, HeadLimits, Request};

/// Dedicated compressors. Shared ones never take context over.
const BASE: DeflateConfig = {
    let mut config = DeflateConfig::DEFAULT;
    config.compressor = Compressor::Dedicated;
    config
};

/// `BASE` with windows and contexts.
fn config(
    server_bits: u8,
    client_bits: u8,
    server_forgets: bool,
    client_forgets: bool,
) -> DeflateConfig {
    let mut config = BASE;
    config.server_max_window_bits = server_bits;
    config.client_max_window_bits = client_bits;
    config.server_no_context_takeover = server_forgets;
    config.client_no_context_takeover = client_forgets;
    config
}

/// The windows of server and client, and whether each takes no context over.
fn agreed(
    server_bits: u8,
    client_bits: u8,
    server_forgets: bool,
    client_forgets: bool,
) -> Agreement {
    let mut agreement = Agreement::DEFAULT;
    agreement.server_max_window_bits = server_bits;
    agreement.client_max_window_bits = client_bits;
    agreement.server_no_context_takeover = server_forgets;
    agreement.client_no_context_takeover = client_forgets;
    agreement
}

/// The server's answer to these header lines: the header's value, and the agreement.
fn answer(config: Option<&DeflateConfig>, offers: &[&str]) -> Option<(String, Agreement)> {
    let lines: String =
        offers.iter().map(|offer| format!("\nSec-WebSocket-Extensions: {offer}")).collect();
    let bytes = super::head(&format!("{}{lines}", super::GOOD));
    let upgrade = super::judge(&bytes).unwrap();
    let mut out = Vec::new();
    let accepted = upgrade.accept(&AcceptOptions::DEFAULT.deflate(config), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let header = text
        .lines()
        .find_map(|line| line.strip_prefix("Sec-WebSocket-Extensions: ").map(str::to_owned));
    assert!(text.ends_with("\r\n\r\n") && text.matches("\r\n\r\n").count() == 1);
    assert_eq!(header.is_some(), accepted.deflate.is_some());
    header.zip(accepted.deflate)
}

fn assert_answer(config: &DeflateConfig, offers: &[&str], header: &str, agreement: Agreement) {
    let expected = Some((header.to_owned(), agreement));
    assert_eq!(answer(Some(config), offers), expected, "{offers:?} under {config:?}");
}

#[test]
fn every_parameter_is_answered_by_the_configuration() {
    let plain = "permessage-deflate";
    let any = config(15, 15, false, false);
    assert_answer(&any, &[plain], plain, agreed(15, 15, false, false));
    assert_answer(
        &any,
        &["permessage-deflate; client_max_window_bits"],
        plain,
        agreed(15, 15, false, false),
    );
    assert_answer(
        &any,
        &["permessage-deflate; client_max_window_bits=10"],
        "permessage-deflate; client_max_window_bits=10",
        agreed(15, 10, false, false),
    );
    assert_answer(
        &any,
        &["permessage-deflate; client_max_window_bits=8"],
        "permessage-deflate; client_max_window_bits=8",
        agreed(15, 8, false, false),
    );
    assert_answer(
        &any,
        &["permessage-deflate; server_max_window_bits=9"],
        "permessage-deflate; server_max_window_bits=9",
        agreed(9, 15, false, false),
    );
    assert_answer(
        &any,
        &["permessage-deflate; server_max_window_bits=15"],
        "permessage-deflate; server_max_window_bits=15",
        agreed(15, 15, false, false),
    );
    assert_answer(
        &any,
        &["permessage-deflate; server_no_context_takeover; client_no_context_takeover"],
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover",
        agreed(15, 15, true, true),
    );
    let strict = config(11, 12, true, true);
    assert_answer(
        &strict,
        &["permessage-deflate; client_max_window_bits"],
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover; \
         server_max_window_bits=11; \
         client_max_window_bits=12",
        agreed(11, 12, true, true),
    );
    assert_answer(
        &strict,
        &["permessage-deflate; client_max_window_bits=10; server_max_window_bits=10"],
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover; \
         server_max_window_bits=10; \
         client_max_window_bits=10",
        agreed(10, 10, true, true),
    );
    let shared = DeflateConfig::DEFAULT;
    assert_eq!(shared.compressor, Compressor::Shared);
    assert_answer(
        &shared,
        &[plain],
        "permessage-deflate; server_no_context_takeover",
        agreed(15, 15, true, false),
    );
}

#[test]
fn offers_that_cannot_be_met_are_declined() {
    for offer in [
        "",
        "x-webkit-deflate-frame",
        "Permessage-Deflate",
        "permessage-deflate; unknown",
        "permessage-deflate; Server_No_Context_Takeover",
        "permessage-deflate; server_no_context_takeover=1",
        "permessage-deflate; client_no_context_takeover=\"1\"",
        "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
        "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
        "permessage-deflate; server_max_window_bits",
        "permessage-deflate; server_max_window_bits=8",
        "permessage-deflate; server_max_window_bits=7",
        "permessage-deflate; server_max_window_bits=16",
        "permessage-deflate; server_max_window_bits=010",
        "permessage-deflate; server_max_window_bits=100",
        "permessage-deflate; server_max_window_bits=+9",
        "permessage-deflate; server_max_window_bits=x",
        "permessage-deflate; server_max_window_bits=10; server_max_window_bits=10",
        "permessage-deflate; client_max_window_bits=7",
        "permessage-deflate; client_max_window_bits=16",
        "permessage-deflate; client_max_window_bits=09",
        "permessage-deflate; client_max_window_bits; client_max_window_bits=10",
    ] {
        assert_eq!(answer(Some(&BASE), &[offer]), None, "{offer}");
    }
    // A client that cannot be limited, and a server that wants it.
    assert_eq!(answer(Some(&config(15, 14, false, false)), &["permessage-deflate"]), None);
    assert_eq!(answer(None, &["permessage-deflate"]), None, "a server that does not want it");
    assert_eq!(answer(Some(&BASE), &[]), None, "a client that does not offer it");
}

#[test]
fn the_first_offer_that_can_be_met_is_taken() {
    let ten = "permessage-deflate; server_max_window_bits=10";
    for offers in [
        &["permessage-deflate; unknown, permessage-deflate; server_max_window_bits=10, \
             permessage-deflate"][..],
        &[
            "permessage-deflate; server_max_window_bits=8",
            "permessage-deflate; server_max_window_bits=10",
        ],
        &["x-a; b=\"c\", permessage-deflate;server_max_window_bits=\"10\"", "permessage-deflate"],
        &["x-a", ",permessage-deflate ; server_max_window_bits = \"\\1\\0\" , x-b"],
    ] {
        assert_answer(&BASE, offers, ten, agreed(10, 15, false, false));
    }
}

/// The client's agreement for this header of the server.
fn check(config: &DeflateConfig, header: &str) -> Result<Option<Agreement>, HandshakeError> {
    let bytes = super::head(&format!(
        "HTTP/1.1 101 x\nUpgrade: websocket\nConnection: Upgrade\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo={header}"
    ));
    let request = ClientRequest::new("a", "/", *b"the sample nonce").deflate(config);
    let (upgraded, _) = request.read_response(&bytes, &HeadLimits::DEFAULT)?.unwrap();
    Ok(upgraded.deflate)
}

fn offer(config: &DeflateConfig) -> String {
    let mut out = Vec::new();
    ClientRequest::new("a", "/", [0; 16]).deflate(config).write(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    text.lines()
        .find_map(|line| line.strip_prefix("Sec-WebSocket-Extensions: "))
        .unwrap()
        .to_owned()
}

#[test]
fn a_client_offers_its_configuration() {
    assert_eq!(offer(&BASE), "permessage-deflate; client_max_window_bits");
    assert_eq!(
        offer(&DeflateConfig::DEFAULT),
        "permessage-deflate; client_no_context_takeover; client_max_window_bits"
    );
    assert_eq!(
        offer(&config(9, 10, true, true)),
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover; \
         server_max_window_bits=9; \
         client_max_window_bits=10"
    );
}

#[test]
fn a_client_checks_the_answer_against_its_offer() {
    let any = config(15, 15, false, false);
    let limited = config(12, 11, false, false);
    let forgetful = config(15, 15, true, true);
    for (config, parameters, expected) in [
        (any, "", Some(agreed(15, 15, false, false))),
        (any, "; server_no_context_takeover", Some(agreed(15, 15, true, false))),
        (any, "; client_no_context_takeover", Some(agreed(15, 15, false, true))),
        (any, "; server_max_window_bits=8", Some(agreed(8, 15, false, false))),
        (any, "; server_max_window_bits=\"15\"", Some(agreed(15, 15, false, false))),
        (any, "; client_max_window_bits=9", Some(agreed(15, 9, false, false))),
        (any, "; client_max_window_bits=15", Some(agreed(15, 15, false, false))),
        // zlib does not compress so.
        (any, "; client_max_window_bits=8", None),
        (any, "; client_max_window_bits", None),
        (any, "; client_max_window_bits=16", None),
        (any, "; server_max_window_bits", None),
        (any, "; server_max_window_bits=16", None),
        (any, "; server_no_context_takeover=1", None),
        (any, "; server_no_context_takeover; server_no_context_takeover", None),
        (any, "; unknown", None),
        (any, ", permessage-deflate", None),
        (any, ", x-other", None),
        (limited, "; server_max_window_bits=12", Some(agreed(12, 11, false, false))),
        (
            limited,
            "; server_max_window_bits=9; client_max_window_bits=10",
            Some(agreed(9, 10, false, false)),
        ),
        (limited, "", None),
        (limited, "; server_max_window_bits=13", None),
        (limited, "; server_max_window_bits=12; client_max_window_bits=12", None),
        (forgetful, "; server_no_context_takeover", Some(agreed(15, 15, true, true))),
        (forgetful, "", None),
        (forgetful, "; client_no_context_takeover", None),
    ] {
        let header = format!("\nSec-WebSocket-Extensions: permessage-deflate{parameters}");
        let expected = expected.map(Some).ok_or(HandshakeError::Extension);
        assert_eq!(check(&config, &header), expected, "{parameters:?} under {config:?}");
    }
    assert_eq!(check(&any, ""), Ok(None), "a server that does not want it");
    assert_eq!(check(&any, "\nSec-WebSocket-Extensions: x-other"), Err(HandshakeError::Extension));
    assert_eq!(
        check(&any, "\nSec-WebSocket-Extensions: permessage-deflate;"),
        Err(HandshakeError::Extension)
    );
}

#[test]
fn both_sides_come_to_the_same_agreement() {
    let all = [9, 12, 15].map(|server| [9, 13, 15].map(|client| (server, client))).concat();
    let flags = [(false, false), (false, true), (true, false), (true, true)];
    let mut configs = vec![DeflateConfig::DEFAULT];
    for &(server, client) in &all {
        configs.extend(flags.map(|(server_forgets, client_forgets)| {
            config(server, client, server_forgets, client_forgets)
        }));
    }
    for client in &configs {
        let request = ClientRequest::new("a", "/", [7; 16]).deflate(client);
        let mut sent = Vec::new();
        request.write(&mut sent).unwrap();
        let upgrade =
            Request::parse(&sent, &HeadLimits::DEFAULT).unwrap().unwrap().0.upgrade().unwrap();
        for server in &configs {
            let mut answer = Vec::new();
            let accepted =
                upgrade.accept(&AcceptOptions::DEFAULT.deflate(Some(server)), &mut answer).unwrap();
            let (upgraded, _) =
                request.read_response(&answer, &HeadLimits::DEFAULT).unwrap().unwrap();
            assert_eq!(upgraded.deflate, accepted.deflate);
            let agreement = accepted.deflate.expect("such a client can always be served");
            let most = |a: u8, b: u8| a.min(b);
            assert_eq!(
                agreement.server_max_window_bits,
                most(server.server_max_window_bits, client.server_max_window_bits)
            );
            assert_eq!(
                agreement.client_max_window_bits,
                most(server.client_max_window_bits, client.client_max_window_bits)
            );
        }
    }
}
