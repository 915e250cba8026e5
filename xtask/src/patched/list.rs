//! The crates that run with the patched packages.

/// A crate that uses tungstenite, in the version that is checked.
#[derive(Debug)]
pub(super) struct User {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// The version of tungstenite that it asks for.
    pub(super) asks: &'static str,
    /// The text after its version in a manifest: its features.
    pub(super) features: &'static str,
    pub(super) check: Check,
}

/// The tests or the program that run with it.
#[derive(Debug)]
pub(super) enum Check {
    /// Its own tests of WebSockets: the options of `cargo test`, and the beginning of their names.
    Tests(&'static [&'static str], &'static str),
    /// A program in `compat/patch/programs`, and the further dependencies that it needs.
    Program(&'static str, &'static str),
}

use Check::{Program, Tests};

/// rumqttc 0.25 is not among them: it asks for tungstenite 0.26, which no patch here reaches.
pub(super) const USERS: &[User] = &[
    User {
        name: "axum",
        version: "0.8.9",
        asks: "0.29",
        features: r#", features = ["ws"]"#,
        check: Tests(
            &["--features", "ws,http2,macros,axum-macros/__private", "--lib"],
            "extract::ws::",
        ),
    },
    User {
        name: "hyper-tungstenite",
        version: "0.30.0",
        asks: "0.30",
        features: "",
        check: Tests(&["--tests"], ""),
    },
    User {
        name: "engineioxide",
        version: "0.17.9",
        asks: "0.30",
        features: "",
        check: Tests(&["--features", "v3,__test_harness", "--lib", "--tests"], ""),
    },
    User {
        name: "socketioxide",
        version: "0.18.9",
        asks: "0.30",
        features: "",
        check: Tests(
            &["--features", "v4,tracing,__test_harness", "--test", "disconnect_reason"],
            "",
        ),
    },
    User {
        name: "axum-test",
        version: "21.1.0",
        asks: "0.30",
        features: r#", features = ["ws"]"#,
        check: Tests(&["--features", "ws", "--lib"], "test_web_socket::"),
    },
    User {
        name: "tokio-tungstenite-wasm",
        version: "0.9.0",
        asks: "0.29",
        features: "",
        check: Tests(&["--lib"], ""),
    },
    User {
        name: "async-tungstenite",
        version: "0.34.1",
        asks: "0.29",
        features: r#", features = ["tokio-runtime"]"#,
        check: Program("async_tungstenite.rs", ""),
    },
    User {
        name: "async-tungstenite",
        version: "0.35.0",
        asks: "0.30",
        features: r#", features = ["tokio-runtime"]"#,
        check: Program("async_tungstenite.rs", ""),
    },
    User {
        name: "alloy-transport-ws",
        version: "2.5.0",
        asks: "0.29",
        features: r#", default-features = false, features = ["ring"]"#,
        check: Program(
            "alloy_transport_ws.rs",
            "alloy-json-rpc = \"=2.5.0\"\nalloy-pubsub = \"=2.5.0\"\n\
             alloy-transport = \"=2.5.0\"\n",
        ),
    },
    User {
        name: "warp",
        version: "0.4.3",
        asks: "0.29",
        features: r#", features = ["server", "websocket"]"#,
        check: Program("warp.rs", ""),
    },
    User {
        name: "kube-client",
        version: "5.0.0",
        asks: "0.30",
        features: r#", default-features = false, features = ["ws"]"#,
        check: Program(
            "kube_client.rs",
            "k8s-openapi = { version = \"0.29\", features = [\"latest\"] }\nhttp = \"1\"\n\
             tokio-tungstenite = { version = \"0.30\", default-features = false }\n",
        ),
    },
    User {
        name: "thirtyfour",
        version: "0.38.1",
        asks: "0.30",
        features: r#", default-features = false, features = ["reqwest", "bidi"]"#,
        check: Program(
            "thirtyfour.rs",
            // It leaves the choice of the cryptography to programs.
            "rustls = { version = \"0.23\", default-features = false, features = [\"ring\"] }\n",
        ),
    },
    User {
        name: "slack-morphism",
        version: "2.31.1",
        asks: "0.30",
        features: r#", features = ["hyper"]"#,
        check: Program(
            "slack_morphism.rs",
            "hyper-util = { version = \"0.1\", features = [\"client-legacy\", \"http1\"] }\n",
        ),
    },
    User {
        name: "headless_chrome",
        version: "1.0.22",
        asks: "0.29",
        features: "",
        check: Program("headless_chrome.rs", ""),
    },
    User {
        name: "bollard",
        version: "0.21.1",
        asks: "0.29",
        features: r#", features = ["websocket"]"#,
        check: Program("bollard.rs", ""),
    },
];

/// The dependencies of programs beside their crate.
pub(super) const SHARED: &str = "\
base64 = \"0.22\"
futures-util = { version = \"0.3\", features = [\"sink\"] }
serde_json = { version = \"1\", features = [\"raw_value\"] }
sha1 = \"0.11\"
tokio = { version = \"1\", features = [\"io-util\", \"macros\", \"net\", \"rt\", \"sync\"] }
";

impl User {
    /// A name for its package and its program, of its own.
    pub(super) fn label(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// Whether its own tests run.
    pub(super) fn has_tests(&self) -> bool {
        matches!(self.check, Tests(..))
    }
}
