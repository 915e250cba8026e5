//! Runs `windlass load` and reads its output.

use std::{
    io::Read,
    process::{Child, Stdio},
    thread::{self, JoinHandle},
};

use serde_json::Value;

use crate::harness::{Running, windlass};

/// A running `windlass load`.
pub(crate) struct Load {
    running: Running,
    output: JoinHandle<String>,
    errors: JoinHandle<String>,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) status: Option<i32>,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Load {
    /// Starts it with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = windlass(&[&["load"], arguments].concat());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child: Child = command.spawn().expect("the program starts");
        let output = read(child.stdout.take().expect("piped"));
        let errors = read(child.stderr.take().expect("piped"));
        Self { running: Running(child), output, errors }
    }

    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Loaded {
        let status = self.running.wait().code();
        let [output, errors] =
            [self.output, self.errors].map(|text| text.join().expect("it only reads"));
        Loaded { status, output, errors }
    }
}

/// Runs it to its end, with JSON on its standard output.
pub(crate) fn load(arguments: &[&str]) -> Loaded {
    Load::start(&[&["--json", "-", "--quiet"], arguments].concat()).wait()
}

impl Loaded {
    /// Returns the JSON of its standard output.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.output).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns a number of the JSON.
    pub(crate) fn number(&self, pointer: &str) -> f64 {
        let json = self.json();
        json.pointer(pointer)
            .and_then(Value::as_f64)
            .unwrap_or_else(|| panic!("no number at {pointer} in {json:#}"))
    }

    /// Returns the number of verified messages.
    pub(crate) fn verified(&self) -> u64 {
        self.number("/messages/verified") as u64
    }

    /// Checks that there were no errors and no messages about errors.
    #[track_caller]
    pub(crate) fn expect_clean(&self) -> &Self {
        assert_eq!((self.status, &*self.errors), (Some(0), ""), "{self:?}");
        assert_eq!(self.json()["errors"], serde_json::json!({}));
        assert_eq!(self.json()["is_clean"], true);
        self
    }

    /// Checks that every connection failed with this kind of fault and this text.
    #[track_caller]
    pub(crate) fn expect_fault(&self, kind: &str, words: &str) -> &Self {
        assert_eq!(self.status, Some(1), "{self:?}");
        assert!(self.errors.contains(words), "`{words}` is not in: {}", self.errors);
        let json = self.json();
        let failed = &json["connections"]["failed"];
        assert_eq!(json["errors"], serde_json::json!({ kind: failed }), "{}", self.errors);
        assert_ne!(failed, 0);
        assert_eq!(json["is_clean"], false);
        self
    }
}

/// Reads all output in a thread, so that the writer never blocks.
fn read(mut source: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        source.read_to_string(&mut text).expect("it is text");
        text
    })
}
