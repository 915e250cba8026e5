//! Requests: a valid one, and its changes.

/// The example of RFC 6455 section 1.3.
pub(crate) const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub(crate) const ACCEPT: &str = "s3pplmbitxaq9kygzzhzrbk+xoo=";

/// A request for an upgrade whose lines can be changed.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    line: String,
    headers: Vec<String>,
    end: &'static str,
}

impl Head {
    /// Returns a request that is accepted.
    pub(crate) fn good() -> Self {
        let headers = [
            "Host: localhost",
            "Upgrade: websocket",
            "Connection: Upgrade",
            &format!("Sec-WebSocket-Key: {KEY}"),
            "Sec-WebSocket-Version: 13",
        ];
        Self {
            line: "GET / HTTP/1.1".to_owned(),
            headers: headers.map(str::to_owned).into(),
            end: "\r\n",
        }
    }

    /// Replaces the first line.
    pub(crate) fn line(mut self, line: &str) -> Self {
        line.clone_into(&mut self.line);
        self
    }

    /// Adds a header.
    pub(crate) fn and(mut self, header: &str) -> Self {
        self.headers.push(header.to_owned());
        self
    }

    /// Removes the headers with this name.
    pub(crate) fn without(mut self, name: &str) -> Self {
        let count = self.headers.len();
        self.headers.retain(|header| !header.starts_with(&format!("{name}:")));
        assert!(self.headers.len() < count, "there is no {name}");
        self
    }

    /// Replaces the value of an existing header.
    pub(crate) fn with(self, name: &str, value: &str) -> Self {
        self.without(name).and(&format!("{name}: {value}"))
    }

    /// Replaces the ends of lines.
    pub(crate) fn ending(mut self, end: &'static str) -> Self {
        self.end = end;
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{}{}", self.line, self.end);
        for header in &self.headers {
            text.push_str(header);
            text.push_str(self.end);
        }
        text.push_str(self.end);
        text.into_bytes()
    }
}
