//! The options for a cluster.

use std::process::Stdio;

use crate::{
    fake::Fake,
    harness::windlass,
    jwt,
    nats::{Folder, Nats},
    node::Node,
    rooms::subject,
};

/// The seed of an NKEY of a user and its public key: the example in the documentation of NATS.
const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
const PUBLIC_KEY: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

fn certificate(name: &str) -> String {
    format!("{}/../tls/tests/certificates/{name}", env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn each_identity_is_taken_from_its_file() {
    let folder = Folder::new("identities");
    let file = |name: &str, text: &str| folder.write(name, text).display().to_string();
    let (good, bad) = (file("good", "a secret\n"), file("bad", "another"));
    let user = "authorization { user: ada, password: \"a secret\" }";
    let token = "authorization { token: \"a secret\" }";
    let nkey = format!("authorization {{ users = [ {{ nkey: {PUBLIC_KEY} }} ] }}");
    let seed = file("seed", SEED);
    let creds = file("creds", &jwt::credentials(jwt::USER_SEED));
    for (settings, options) in [
        (user, &["--cluster-user", "ada", "--cluster-password-file", &good][..]),
        (token, &["--cluster-token-file", &good]),
        (&nkey, &["--cluster-nkey-file", &seed]),
        (&jwt::settings(), &["--cluster-creds", &creds]),
    ] {
        let node = Node::of(&Nats::with(settings), options);
        node.server.stop_cleanly();
    }
    // A wrong password is told, and the server serves.
    let nats = Nats::with(token);
    let url = nats.url();
    let node = Node::start(&["--cluster", &url, "--cluster-token-file", &bad]);
    let line = node.server.wait_for_error("no NATS server can be connected");
    assert!(line.contains("Authorization") && !line.contains("another"), "{line}");
    assert_eq!((node.get("/readyz").0, node.get("/healthz").0), (503, 200));
    node.server.stop_cleanly();
}

pub(crate) fn tls_checks_the_server_and_shows_a_certificate() {
    let of = |name: &str| certificate(name);
    let settings = format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}",
        of("localhost.pem"),
        of("localhost.key"),
        of("ca.pem")
    );
    let nats = Nats::with(&settings);
    let (ca, other) = (of("ca.pem"), of("other-ca.pem"));
    let (cert, key) = (of("client.pem"), of("client.key"));
    let shown = ["--cluster-cert", &cert, "--cluster-key", &key];
    let required = ["--cluster-tls", "required"];
    let node = Node::of(&nats, &[&["--cluster-ca", &ca][..], &shown, &required].concat());
    node.server.stop_cleanly();
    let of_another = [&["--cluster-ca", other.as_str()][..], &shown].concat();
    let without_certificate = vec!["--cluster-ca", ca.as_str()];
    for options in [of_another, without_certificate] {
        let url = nats.url();
        let node = Node::start(&[&["--cluster", url.as_str()][..], &options].concat());
        node.server.wait_for_error("no NATS server can be connected");
        assert_eq!(node.get("/readyz").0, 503);
        node.server.stop_cleanly();
    }
    // A server without TLS is refused.
    let plain = Nats::start();
    let url = plain.url();
    for tls in [["--cluster-tls", "required"], ["--cluster-ca", &ca]] {
        let node = Node::start(&[&["--cluster", url.as_str()][..], &tls].concat());
        node.server.wait_for_error("TLS is required");
        assert_eq!(node.get("/readyz").0, 503);
        node.server.stop_cleanly();
    }
}

/// nats-server has `handshake_first` from 2.10 on, and distributions have older ones.
pub(crate) fn tls_begins_before_the_nats_server_says_anything() {
    let server = Fake::tls_first();
    let (url, ca) = (server.url(), certificate("ca.pem"));
    // The first connection asks for the longest message.
    let ends = std::thread::spawn(move || {
        [(); 2].map(|()| server.accept().expect("TLS is first").publication())
    });
    let tls = ["--cluster-tls", "first", "--cluster-ca", &ca];
    let node = Node::start(&[&["--cluster", url.as_str()][..], &tls].concat());
    node.wait_until_ready();
    node.server.stop_cleanly();
    assert_eq!(ends.join().expect("it answers"), [None, None]);
}

pub(crate) fn servers_with_other_prefixes_are_apart() {
    let nats = Nats::start();
    let nodes =
        ["one", "one", "two.b"].map(|prefix| Node::of(&nats, &["--cluster-prefix", prefix]));
    let mut members = nodes.each_ref().map(|node| node.enter("/room/a"));
    nats.wait_for_subscriptions(&subject("one", "/room/a"), 2);
    nats.wait_for_subscriptions(&subject("two.b", "/room/a"), 1);
    members[0].say("to one");
    members[1].hears("to one");
    members[2].say("to two");
    members[2].hears_nothing();
    members[1].say("again");
    members[0].hears("again");
    members[0].hears_nothing();
    assert_eq!(nodes[2].cluster()["received"], 0);
    for node in nodes {
        node.server.stop_cleanly();
    }
}

pub(crate) fn wrong_options_are_errors_that_name_them() {
    let folder = Folder::new("options");
    let empty = folder.write("empty", "").display().to_string();
    let cluster = ["--cluster", "nats://127.0.0.1:1"];
    let with = |options: &[&'static str]| [&cluster[..], options].concat();
    for (options, expected) in [
        (vec!["--cluster", "http://127.0.0.1:1"], "no address of a NATS server"),
        (with(&["--cluster-prefix", "a b"]), "--cluster-prefix"),
        (with(&["--cluster-creds", "/no/such"]), "/no/such"),
        (with(&["--cluster-token-file", "/no/such"]), "--cluster-token-file /no/such"),
        (with(&["--cluster-user", "ada"]), "--cluster-password-file"),
        (with(&["--cluster-cert", "/no/such"]), "--cluster-key"),
        (with(&["--mode", "echo"]), "mode chat"),
        (with(&["--mode", "raw"]), "mode chat"),
        (vec!["--cluster-ca", "/no/such"], "--cluster"),
        (with(&["--cluster-token-file", "/a", "--cluster-creds", "/b"]), "cannot be used with"),
        ([&cluster[..], &["--cluster-ca", &empty]].concat(), ": no certificate"),
    ] {
        let all = [&["serve", "--listen", "127.0.0.1:0"], &options[..]].concat();
        let output = windlass(&all).stdin(Stdio::null()).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(expected), "{options:?}: {errors}");
    }
}
