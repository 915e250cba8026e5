//! The root certificates of clients without a TLS configuration of their own.

use windlass_testkit::{certificates::certificate, own_process::is_own_process_with};
use windlass_websocket::client::{Backoff, Client, ConnectError, Phase, ReconnectError};

use crate::server::echo_server;

/// One echo over TLS with a server whose certificate is that of the authority `ca`.
fn echo(change: impl FnOnce(Client) -> Client) -> Result<(), ConnectError> {
    let url = format!("wss://localhost:{}/", echo_server(true).port());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut socket = change(Client::new(&url)).connect().await?;
        socket.send("hello").await.expect("it is open");
        let echo = socket.recv().await.expect("it is good").expect("an echo");
        assert_eq!(echo.as_str(), Some("hello"));
        Ok(())
    })
}

fn assert_unknown_issuer(outcome: Result<(), ConnectError>) {
    let error = outcome.expect_err("nothing says that the authority is trusted");
    assert_eq!(error.phase(), Phase::Tls, "{error}");
    let text = format!("{error} {error:?}");
    assert!(text.contains("UnknownIssuer"), "{text}");
}

// The roots of the system are read once in a process, so each of these tests has its own. On Linux
// the variable names the file with all of them.

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "SSL_CERT_FILE is for Linux")]
fn the_authorities_of_ssl_cert_file_are_trusted() {
    let trusted = certificate("ca.pem");
    let test = "roots::the_authorities_of_ssl_cert_file_are_trusted";
    if is_own_process_with(test, &[("SSL_CERT_FILE", &trusted)]) {
        echo(|client| client).expect("its authority is in the file");
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "SSL_CERT_FILE is for Linux")]
fn another_authority_in_ssl_cert_file_is_not_enough() {
    let other = certificate("other-ca.pem");
    let test = "roots::another_authority_in_ssl_cert_file_is_not_enough";
    if is_own_process_with(test, &[("SSL_CERT_FILE", &other)]) {
        assert_unknown_issuer(echo(|client| client));
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "SSL_CERT_FILE is for Linux")]
fn a_system_without_authorities_ends_a_reconnecting_socket() {
    let missing = certificate("missing.pem");
    let test = "roots::a_system_without_authorities_ends_a_reconnecting_socket";
    if is_own_process_with(test, &[("SSL_CERT_FILE", &missing), ("SSL_CERT_DIR", &missing)]) {
        let url = format!("wss://localhost:{}/", echo_server(true).port());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let mut backoff = Backoff::DEFAULT;
            backoff.attempts_max = Some(1);
            let mut socket = Client::new(&url).reconnecting().backoff(backoff);
            let error = socket.recv().await.expect_err("no certificate can be checked");
            let is_told = matches!(&error, ReconnectError::Permanent(ConnectError::TlsConfig(_)));
            assert!(is_told, "{error}");
        });
    }
}

/// Even where the system trusts it, so that it is clear which roots count.
#[test]
fn the_bundled_roots_trust_no_private_authority() {
    let trusted = certificate("ca.pem");
    let test = "roots::the_bundled_roots_trust_no_private_authority";
    if is_own_process_with(test, &[("SSL_CERT_FILE", &trusted)]) {
        assert_unknown_issuer(echo(Client::bundled_roots));
    }
}
